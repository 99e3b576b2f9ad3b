//! canopydb: each commit is `commit_with(true)`, synced to its log.
//!
//! Invariant: values are not compressed.

use crate::store::{Done, Pair, Peer, Role, Site, Store, View, copy};
use canopydb::{Database, DbOptions, EnvOptions, ReadTransaction, TreeOptions};

pub const PEER: Peer = Peer {
    name: "canopydb",
    lasting: true,
    shared: false,
    open,
    make: super::nothing,
    unmake: super::nothing,
};

const TREE: &[u8] = b"kv";

struct Canopy(Database);

fn open(site: &Site, _: Role) -> Done<Box<dyn Store>> {
    let mut options = EnvOptions::new(&site.dir);
    options.page_cache_size = site.room() as usize;
    let db = Database::with_options(options, DbOptions::default())?;
    let txn = db.begin_write()?;
    let mut tree = TreeOptions::default();
    tree.compress_overflow_values = None;
    txn.get_or_create_tree_with(TREE, tree)?;
    txn.commit_with(true)?;
    Ok(Box::new(Canopy(db)))
}

impl Store for Canopy {
    fn commit(&self, pairs: &mut dyn Iterator<Item = Pair<'_>>) -> Done<()> {
        let txn = self.0.begin_write()?;
        let mut tree = txn.get_tree(TREE)?.ok_or("the tree is gone")?;
        for (key, value) in pairs {
            tree.insert(key, value)?;
        }
        drop(tree);
        txn.commit_with(true)?;
        Ok(())
    }

    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        Held(&self.0.begin_read()?).get(key, out)
    }

    fn view(&self, body: &mut dyn FnMut(&mut dyn View) -> Done<()>) -> Done<()> {
        let txn = self.0.begin_read()?;
        let tree = txn.get_tree(TREE)?.ok_or("the tree is gone")?;
        body(&mut HeldTree(tree))
    }
}

struct Held<'a>(&'a ReadTransaction);

impl Held<'_> {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        HeldTree(self.0.get_tree(TREE)?.ok_or("the tree is gone")?).get(key, out)
    }
}

struct HeldTree<'a>(canopydb::Tree<'a>);

impl View for HeldTree<'_> {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        let found = self.0.get(key)?;
        if let Some(value) = &found {
            copy(out, value);
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], n: usize, each: &mut dyn FnMut(&[u8], &[u8])) -> Done<()> {
        for pair in self.0.range(from..)?.take(n) {
            let (key, value) = pair?;
            each(&key, &value);
        }
        Ok(())
    }
}
