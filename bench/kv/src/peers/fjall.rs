//! fjall: each commit ends with `PersistMode::SyncAll`.
//!
//! Invariant: values of all sizes lie in the tree itself, as by default.

use crate::store::{Done, Pair, Peer, Role, Site, Store, View, copy};
use fjall::config::CompressionPolicy;
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot,
};

pub const PEER: Peer = Peer {
    name: "fjall",
    lasting: true,
    shared: false,
    open,
    make: super::nothing,
    unmake: super::nothing,
};

struct Fjall {
    db: Database,
    keyspace: Keyspace,
}

fn open(site: &Site, _: Role) -> Done<Box<dyn Store>> {
    let db = Database::builder(&site.dir)
        .cache_size(site.room())
        .journal_compression(CompressionType::None)
        .open()?;
    let plain = || CompressionPolicy::all(CompressionType::None);
    let options = || {
        KeyspaceCreateOptions::default()
            .data_block_compression_policy(plain())
            .index_block_compression_policy(plain())
    };
    let keyspace = db.keyspace("kv", options)?;
    Ok(Box::new(Fjall { db, keyspace }))
}

impl Store for Fjall {
    fn put(&self, key: &[u8], value: &[u8]) -> Done<()> {
        self.keyspace.insert(key, value)?;
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }

    fn commit(&self, pairs: &mut dyn Iterator<Item = Pair<'_>>) -> Done<()> {
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncAll));
        for (key, value) in pairs {
            batch.insert(&self.keyspace, key, value);
        }
        Ok(batch.commit()?)
    }

    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        let found = self.keyspace.get(key)?;
        if let Some(value) = &found {
            copy(out, value);
        }
        Ok(found.is_some())
    }

    fn view(&self, body: &mut dyn FnMut(&mut dyn View) -> Done<()>) -> Done<()> {
        body(&mut Held {
            snapshot: self.db.snapshot(),
            keyspace: &self.keyspace,
        })
    }
}

struct Held<'a> {
    snapshot: Snapshot,
    keyspace: &'a Keyspace,
}

impl View for Held<'_> {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        let found = self.snapshot.get(self.keyspace, key)?;
        if let Some(value) = &found {
            copy(out, value);
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], n: usize, each: &mut dyn FnMut(&[u8], &[u8])) -> Done<()> {
        for guard in self.snapshot.range(self.keyspace, from..).take(n) {
            let (key, value) = guard.into_inner()?;
            each(&key, &value);
        }
        Ok(())
    }
}
