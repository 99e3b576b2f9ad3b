//! The standard library's map in memory behind a lock: what no durable store can be expected to
//! beat.
//!
//! Invariant: nothing survives its process.

use crate::store::{Done, Pair, Peer, Role, Site, Store, View, copy};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

pub const PEER: Peer = Peer {
    name: "btreemap",
    lasting: false,
    shared: false,
    open,
    make: super::nothing,
    unmake: super::nothing,
};

type Map = BTreeMap<Box<[u8]>, Box<[u8]>>;

struct Memory(RwLock<Map>);

fn open(_: &Site, _: Role) -> Done<Box<dyn Store>> {
    Ok(Box::new(Memory(RwLock::new(Map::new()))))
}

impl Store for Memory {
    fn commit(&self, pairs: &mut dyn Iterator<Item = Pair<'_>>) -> Done<()> {
        let mut map = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in pairs {
            map.insert(key.into(), value.into());
        }
        Ok(())
    }

    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Held(&map).get(key, out)
    }

    fn view(&self, body: &mut dyn FnMut(&mut dyn View) -> Done<()>) -> Done<()> {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        body(&mut Held(&map))
    }
}

struct Held<'a>(&'a Map);

impl View for Held<'_> {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        let found = self.0.get(key);
        if let Some(value) = found {
            copy(out, value);
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], n: usize, each: &mut dyn FnMut(&[u8], &[u8])) -> Done<()> {
        use std::ops::Bound;
        let range = self
            .0
            .range::<[u8], _>((Bound::Included(from), Bound::Unbounded));
        for (key, value) in range.take(n) {
            each(key, value);
        }
        Ok(())
    }
}
