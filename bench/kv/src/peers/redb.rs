//! redb. While other processes read it is open in the mode that lets them.
//!
//! Invariant: a writer's commits are of durability `Immediate`, the default.

use crate::store::{Done, Pair, Peer, Role, Site, Store, View, copy};
use redb::{
    Builder, ConcurrencyMode, Database, ReadOnlyDatabase, ReadOnlyTable, ReadTransaction,
    ReadableDatabase, TableDefinition,
};

pub const PEER: Peer = Peer {
    name: "redb",
    lasting: true,
    shared: true,
    open,
    make: super::nothing,
    unmake: super::nothing,
};

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("kv");

struct Writer(Database);
struct Reader(ReadOnlyDatabase);

fn open(site: &Site, role: Role) -> Done<Box<dyn Store>> {
    let path = site.dir.join("redb");
    let mut builder = Builder::new();
    builder.set_cache_size(site.room() as usize);
    if role != Role::Alone {
        builder.set_concurrency_mode(ConcurrencyMode::SingleWriter);
    }
    if role == Role::Reader {
        return Ok(Box::new(Reader(builder.open_read_only(path)?)));
    }
    let writer = Writer(builder.create(path)?);
    let txn = writer.0.begin_write()?;
    txn.open_table(TABLE)?;
    txn.commit()?;
    Ok(Box::new(writer))
}

impl Store for Writer {
    fn commit(&self, pairs: &mut dyn Iterator<Item = Pair<'_>>) -> Done<()> {
        let txn = self.0.begin_write()?;
        let mut table = txn.open_table(TABLE)?;
        for (key, value) in pairs {
            table.insert(key, value)?;
        }
        drop(table);
        Ok(txn.commit()?)
    }

    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        Held::of(&self.0.begin_read()?)?.get(key, out)
    }

    fn view(&self, body: &mut dyn FnMut(&mut dyn View) -> Done<()>) -> Done<()> {
        body(&mut Held::of(&self.0.begin_read()?)?)
    }
}

impl Store for Reader {
    fn commit(&self, _: &mut dyn Iterator<Item = Pair<'_>>) -> Done<()> {
        Err("a reader does not write".into())
    }

    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        Held::of(&self.0.begin_read()?)?.get(key, out)
    }

    fn view(&self, body: &mut dyn FnMut(&mut dyn View) -> Done<()>) -> Done<()> {
        body(&mut Held::of(&self.0.begin_read()?)?)
    }
}

struct Held(ReadOnlyTable<&'static [u8], &'static [u8]>);

impl Held {
    fn of(txn: &ReadTransaction) -> Done<Held> {
        Ok(Held(txn.open_table(TABLE)?))
    }
}

impl View for Held {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        let found = self.0.get(key)?;
        if let Some(value) = &found {
            copy(out, value.value());
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], n: usize, each: &mut dyn FnMut(&[u8], &[u8])) -> Done<()> {
        for pair in self.0.range::<&[u8]>(from..)?.take(n) {
            let (key, value) = pair?;
            each(key.value(), value.value());
        }
        Ok(())
    }
}
