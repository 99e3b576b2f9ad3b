//! Nodes whose birth is not that of their commit, in pools with and without snapshots.
//!
//! In each case inodes of the first leaf change, or those of the last, each in a commit of its own,
//! and before each commit a snapshot is taken. Then one node is given another birth.

use super::check;
use super::plant::*;
use crate::apply::pool_tests::{DATA_LEN, assert_clean};
use crate::apply::{PoolStore, Store};
use crate::layout::inode;
use crate::layout::{INODES, ino_key};
use crate::pool::{Pool, WriteToken};
use crate::snapshot::find;
use std::format;
use std::string::String;
use std::vec::Vec;

const LAST: u64 = FIRST_MANY + MANY - 1;
const TREE: usize = INODES as usize;

/// Changes the inode, and so the leaf that it is in and the root.
fn touch(pool: &mut Pool, ino: u64) {
    let mut store = PoolStore::new(pool.begin(&WriteToken::for_service()));
    let (mut buf, mut out) = ([0; inode::ENCODED_MAX], [0; 2000]);
    let mut record = inode::find(&store, ino, &mut buf).unwrap().unwrap();
    record.mtime += 1;
    let len = record.encode(&mut out).unwrap();
    store.put(INODES, &ino_key(ino), &out[..len]).unwrap();
    store.commit(|_| ()).unwrap();
}

/// A pool with the snapshots 0, 1, ... between these changes.
fn pool_with(changes: &[u64]) -> Pool {
    let (mut pool, _) = sample();
    touch(&mut pool, FILE);
    for (n, ino) in changes.iter().enumerate() {
        let name = format!("{n}");
        pool.create_snapshot(&WriteToken::for_service(), name.as_bytes(), 0)
            .unwrap();
        touch(&mut pool, *ino);
    }
    assert_clean(pool.meta());
    pool
}

/// The commit that the snapshot keeps, and where its root of the inodes is.
fn snapshot(pool: &Pool, name: &str) -> (u64, usize) {
    let snapshot = find(&pool.reader(), name.as_bytes()).unwrap().unwrap();
    (snapshot.seq, snapshot.roots[TREE].addr as usize * 4096)
}

/// The findings after the node says another birth.
fn found(pool: &Pool, at: impl Fn(&Broken) -> usize, birth: u64) -> Vec<String> {
    let mut broken = Broken::new(pool);
    let at = at(&broken);
    assert_ne!(broken.u64_at(at + 16), birth, "nothing is planted");
    broken.put(at + 16, &birth.to_le_bytes());
    broken.seal(at);
    let report = broken.report();
    report.damage().map(|f| format!("{f}")).collect()
}

fn expect(all: &[String], wanted: &str) {
    assert!(
        all.iter().any(|f| f.contains(wanted)),
        "{wanted:?}: {all:#?}"
    );
}

fn first_leaf(b: &Broken) -> usize {
    b.child(b.root(TREE), 0)
}

fn last_leaf(b: &Broken) -> usize {
    let root = b.root(TREE);
    b.child(root, b.count(root) - 1)
}

const TOO_YOUNG: &str = "tree 0: a node is younger than what it hangs on";

#[test]
fn without_snapshots_no_node_is_younger_than_its_parent() {
    let mut pool = pool_with(&[]);
    // Commits that leave the tree as it is, so that there are numbers that a node can claim.
    let token = WriteToken::for_service();
    pool.create_snapshot(&token, b"s", 0).unwrap();
    pool.delete_snapshot(&token, b"s", usize::MAX).unwrap();
    assert_clean(pool.meta());
    let now = pool.superblock().seq;
    expect(&found(&pool, first_leaf, now), TOO_YOUNG);
    expect(&found(&pool, last_leaf, now), TOO_YOUNG);
    expect(&found(&pool, |b| b.root(TREE), now - 3), TOO_YOUNG);
}

/// Without snapshots nothing depends on how old a leaf is, and nothing tells.
#[test]
fn without_snapshots_a_leaf_may_say_that_it_is_older() {
    assert_eq!(found(&pool_with(&[]), first_leaf, 1), [""; 0]);
}

#[test]
fn a_node_of_the_present_has_its_birth_before_or_after_a_snapshot() {
    let pool = pool_with(&[FILE]);
    let (seq, _) = snapshot(&pool, "0");
    let lacks = "a node says that it is older than snapshot \"0\", which does not have it (page";
    expect(&found(&pool, first_leaf, seq), lacks);
    expect(&found(&pool, first_leaf, 1), lacks);
    expect(&found(&pool, |b| b.root(TREE), seq), TOO_YOUNG);
    let shared = "a snapshot has a node that does not fit tree 0";
    expect(&found(&pool, last_leaf, seq + 1), shared);
}

#[test]
fn a_node_is_older_than_no_snapshot_that_lacks_it() {
    let pool = pool_with(&[FILE, LAST]);
    let [(older, _), (newer, root)] = ["0", "1"].map(|name| snapshot(&pool, name));
    let lacks = |name| format!("older than snapshot \"{name}\", which does not have it");
    // The first leaf came between the two, the last one after both.
    expect(&found(&pool, first_leaf, older), &lacks("0"));
    expect(&found(&pool, first_leaf, newer + 1), "does not fit tree 0");
    expect(&found(&pool, last_leaf, newer), &lacks("1"));
    expect(&found(&pool, last_leaf, older), &lacks("1"));
    // What only the newer snapshot has, its root, is older than a leaf that the present has, too.
    expect(&found(&pool, |_| root, older), "does not fit tree 0");
}

#[test]
fn snapshots_are_compared_with_their_neighbours() {
    let pool = pool_with(&[FILE, FILE]);
    let [(older, _), (newer, root)] = ["0", "1"].map(|name| snapshot(&pool, name));
    let lacks = |name| format!("older than snapshot \"{name}\", which does not have it");
    // The present, the newer and the older one have a first leaf each.
    let leaf = |b: &Broken| b.child(root, 0);
    expect(&found(&pool, leaf, older), &lacks("0"));
    expect(&found(&pool, leaf, newer + 1), TOO_YOUNG);
    expect(&found(&pool, first_leaf, older), &lacks("1"));
}

/// Two nodes that agree about a wrong birth: the one below hangs in the snapshot as well.
#[test]
fn a_subtree_that_says_that_it_is_older_is_found() {
    let pool = pool_with(&[FILE]);
    let (seq, _) = snapshot(&pool, "0");
    let mut broken = Broken::new(&pool);
    for at in [first_leaf(&broken), broken.root(TREE)] {
        broken.put(at + 16, &seq.to_le_bytes());
        broken.seal(at);
    }
    let report = check(&&broken.0[..], DATA_LEN, None);
    let all: Vec<_> = report.damage().map(|f| format!("{f}")).collect();
    expect(
        &all,
        "snapshot \"0\" has a node that it lacks by the births",
    );
}
