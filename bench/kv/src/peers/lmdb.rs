//! LMDB, plain and with MDB_WRITEMAP.
//!
//! Invariant: a process opens an environment once.

use crate::store::{Done, Pair, Peer, Site, Store, View, copy};
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RoTxn};
use std::ops::Bound;

pub const PLAIN: Peer = Peer {
    name: "lmdb",
    lasting: true,
    shared: true,
    open: |site, _| open(site, EnvFlags::empty()),
    make: super::nothing,
    unmake: super::nothing,
};

pub const WRITEMAP: Peer = Peer {
    name: "lmdb-writemap",
    open: |site, _| open(site, EnvFlags::WRITE_MAP),
    ..PLAIN
};

struct Lmdb {
    env: Env,
    db: Database<Bytes, Bytes>,
}

fn open(site: &Site, flags: EnvFlags) -> Done<Box<dyn Store>> {
    let mut options = EnvOpenOptions::new();
    options.map_size((site.room() as usize).next_multiple_of(1 << 20));
    // SAFETY: no flag here lets the caller break LMDB's rules, this process opens the directory
    // once at a time, and nothing but LMDB touches its files.
    let env = unsafe { options.flags(flags).open(&site.dir) }?;
    let mut txn = env.write_txn()?;
    let db = env.create_database(&mut txn, None)?;
    txn.commit()?;
    Ok(Box::new(Lmdb { env, db }))
}

impl Store for Lmdb {
    fn commit(&self, pairs: &mut dyn Iterator<Item = Pair<'_>>) -> Done<()> {
        let mut txn = self.env.write_txn()?;
        for (key, value) in pairs {
            self.db.put(&mut txn, key, value)?;
        }
        Ok(txn.commit()?)
    }

    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        let txn = self.env.read_txn()?;
        Held {
            db: self.db,
            txn: &txn,
        }
        .get(key, out)
    }

    fn view(&self, body: &mut dyn FnMut(&mut dyn View) -> Done<()>) -> Done<()> {
        let txn = self.env.read_txn()?;
        body(&mut Held {
            db: self.db,
            txn: &txn,
        })
    }
}

struct Held<'a> {
    db: Database<Bytes, Bytes>,
    txn: &'a RoTxn<'a>,
}

impl View for Held<'_> {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        let found = self.db.get(self.txn, key)?;
        if let Some(value) = found {
            copy(out, value);
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], n: usize, each: &mut dyn FnMut(&[u8], &[u8])) -> Done<()> {
        let range = (Bound::Included(from), Bound::Unbounded);
        for pair in self.db.range(self.txn, &range)?.take(n) {
            let (key, value) = pair?;
            each(key, value);
        }
        Ok(())
    }
}
