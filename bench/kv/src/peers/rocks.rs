//! RocksDB: each write with `sync`, Bloom filters of ten bits, no compression.
//!
//! Invariant: reads that hold a transaction hold a snapshot.

use crate::store::{Done, Pair, Peer, Role, Site, Store, View, copy};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Options, Snapshot, WriteBatch, WriteOptions,
};

pub const PEER: Peer = Peer {
    name: "rocksdb",
    lasting: true,
    shared: false,
    open,
    make: super::nothing,
    unmake: super::nothing,
};

struct Rocks {
    db: DB,
    sync: WriteOptions,
}

fn open(site: &Site, _: Role) -> Done<Box<dyn Store>> {
    let mut blocks = BlockBasedOptions::default();
    blocks.set_bloom_filter(10.0, false);
    blocks.set_block_cache(&Cache::new_lru_cache(site.room() as usize));
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::None);
    options.set_block_based_table_factory(&blocks);
    let mut sync = WriteOptions::default();
    sync.set_sync(true);
    let db = DB::open(&options, &site.dir)?;
    Ok(Box::new(Rocks { db, sync }))
}

impl Store for Rocks {
    fn put(&self, key: &[u8], value: &[u8]) -> Done<()> {
        Ok(self.db.put_opt(key, value, &self.sync)?)
    }

    fn commit(&self, pairs: &mut dyn Iterator<Item = Pair<'_>>) -> Done<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in pairs {
            batch.put(key, value);
        }
        Ok(self.db.write_opt(batch, &self.sync)?)
    }

    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        let found = self.db.get_pinned(key)?;
        if let Some(value) = &found {
            copy(out, value);
        }
        Ok(found.is_some())
    }

    fn view(&self, body: &mut dyn FnMut(&mut dyn View) -> Done<()>) -> Done<()> {
        body(&mut Held(self.db.snapshot()))
    }
}

struct Held<'a>(Snapshot<'a>);

impl View for Held<'_> {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        let found = self.0.get_pinned(key)?;
        if let Some(value) = &found {
            copy(out, value);
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], n: usize, each: &mut dyn FnMut(&[u8], &[u8])) -> Done<()> {
        let mut cursor = self.0.raw_iterator();
        cursor.seek(from);
        for _ in 0..n {
            let Some((key, value)) = cursor.item() else {
                break;
            };
            each(key, value);
            cursor.next();
        }
        Ok(cursor.status()?)
    }
}
