//! What the kernel knows of the pool's tree.
//!
//! Invariants: a node has the number of its object, so whatever becomes of names, it leads to the
//! object that the kernel found. Values of keyspaces have no object: theirs are found by the name
//! that led to them last.

use holdfast::is_value;
use holdfast_client::Base;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// By which name a node was found last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub dir: u64,
    pub name: Box<[u8]>,
}

struct Node {
    named: Named,
    /// How often the kernel was told of it, less what it forgot.
    known: u64,
    /// It was gone when it was to be opened, and this had its name.
    instead: Option<u64>,
}

/// All of them.
#[derive(Default)]
pub struct Nodes(Mutex<HashMap<u64, Node>>);

/// Where calls find an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub base: Base,
    /// Empty: the base itself.
    pub path: Box<[u8]>,
}

impl Nodes {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Node>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel is told of it.
    pub fn found(&self, ino: u64, dir: u64, name: &[u8]) {
        let mut all = self.all();
        let new = || Named {
            dir,
            name: name.into(),
        };
        let node = all.entry(ino).or_insert_with(|| Node {
            named: new(),
            known: 0,
            instead: None,
        });
        node.known += 1;
        if node.named.dir != dir || *node.named.name != *name {
            node.named = new();
        }
    }

    pub fn forget(&self, ino: u64, times: u64) {
        let mut all = self.all();
        if let Some(node) = all.get_mut(&ino) {
            node.known = node.known.saturating_sub(times);
            if node.known == 0 {
                all.remove(&ino);
            }
        }
    }

    /// The kernel opened the node, which is gone, and was given another object that has its name.
    pub fn stand_in(&self, ino: u64, other: u64) {
        if let Some(node) = self.all().get_mut(&ino) {
            node.instead = Some(other);
        }
    }

    /// By which name it was found last; the root has none.
    pub fn named(&self, ino: u64) -> Option<Named> {
        self.all().get(&ino).map(|node| node.named.clone())
    }

    pub fn place(&self, ino: u64) -> Place {
        if is_value(ino)
            && let Some(Named { dir, name }) = self.named(ino)
        {
            return Place {
                base: Base::Node(dir),
                path: name,
            };
        }
        let instead = self.all().get(&ino).and_then(|node| node.instead);
        Place {
            base: Base::Node(instead.unwrap_or(ino)),
            path: Box::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: u64 = 1 << 56 | 5;

    #[test]
    fn nodes_are_kept_until_they_are_forgotten_as_often_as_they_were_found() {
        let nodes = Nodes::default();
        nodes.found(7, 1, b"a");
        nodes.found(7, 1, b"b");
        assert_eq!(&*nodes.named(7).unwrap().name, b"b");
        nodes.forget(7, 1);
        assert!(nodes.named(7).is_some());
        nodes.stand_in(7, 8);
        assert_eq!(nodes.place(7).base, Base::Node(8));
        nodes.forget(7, 1);
        assert!(nodes.named(7).is_none());
        assert_eq!(nodes.place(7).base, Base::Node(7));
        nodes.forget(7, 1);
    }

    #[test]
    fn objects_are_found_by_number_and_values_by_name() {
        assert!(is_value(VALUE));
        let nodes = Nodes::default();
        nodes.found(7, 1, b"a");
        nodes.found(VALUE, 7, b"key");
        assert_eq!(nodes.place(7).base, Base::Node(7));
        assert!(nodes.place(7).path.is_empty());
        let value = nodes.place(VALUE);
        assert_eq!((value.base, &*value.path), (Base::Node(7), &b"key"[..]));
    }
}
