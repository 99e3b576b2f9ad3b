//! Compares trees and space with the model.
//!
//! Invariant: reads the trees through `layout` only, so it works for any store.

use super::count;
use super::model::{Model, Object, is_link};
use crate::layout::dirent::{self, Dirent};
use crate::layout::extent::{self, Extent};
use crate::layout::testing::MapTrees;
use crate::layout::{DIRENTS, EXTENTS, INODES, ORPHANS, ReadTrees, TreeId, XATTRS, inode, xattr};
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

/// Everything that is to be compared.
pub struct State {
    pub trees: MapTrees,
    pub used: BTreeSet<u64>,
    pub counts: [u64; 8],
    pub next_ino: u64,
    pub seed: u64,
}

/// The trees of files, entry by entry.
pub fn copy_trees<R: ReadTrees>(from: &R) -> MapTrees
where
    R::Error: core::fmt::Debug,
{
    let mut out = MapTrees::default();
    for tree in [INODES, DIRENTS, EXTENTS, XATTRS, ORPHANS] {
        let (mut key, mut value) = ([0; 1088], [0; 1024]);
        let mut at = Vec::new();
        while let Some((k, v)) = from.at_or_after(tree, &at, &mut key, &mut value).unwrap() {
            out.put(tree, &key[..k], &value[..v]);
            at = key[..k].to_vec();
            at.push(0);
        }
    }
    out
}

/// What the trees say about an object, in the model's terms.
fn object(store: &MapTrees, ino: u64) -> (Object, u32, u64) {
    let mut buf = [0; inode::ENCODED_MAX];
    let r = inode::find(store, ino, &mut buf).unwrap().unwrap();
    let mut o = Object {
        mode: r.mode,
        uid: r.uid,
        gid: r.gid,
        project: r.project.into(),
        rdev: r.rdev,
        size: r.size,
        times: [r.atime, r.mtime, r.ctime, r.btime],
        parent: r.parent,
        ..Object::default()
    };
    if r.is_file() {
        o.inline = r.tail.to_vec();
        assert_eq!(r.flags & inode::INLINE != 0, !r.tail.is_empty());
    }
    if r.is_symlink() {
        o.target = r.tail.to_vec();
        if r.flags & inode::TARGET_IN_XATTRS != 0 {
            o.target.resize(r.size as usize, 0);
            let n = xattr::find(store, ino, b"", &mut o.target).unwrap();
            assert_eq!(n, Some(o.target.len()));
        }
    }
    let mut name = [0; 255];
    let mut last = Vec::new();
    while let Some(n) = xattr::next_name(store, ino, &last, &mut name).unwrap() {
        let mut value = std::vec![0; 8192];
        let len = xattr::find(store, ino, &name[..n], &mut value)
            .unwrap()
            .unwrap();
        value.truncate(len);
        last = name[..n].to_vec();
        o.xattrs.insert(last.clone(), value);
    }
    assert_eq!(r.flags & inode::HAS_XATTRS != 0, !o.xattrs.is_empty());
    let mut at = 0;
    while let Some(e) = extent::next(store, ino, at).unwrap() {
        for i in 0..u64::from(e.len) {
            assert_eq!(o.blocks.insert(e.file_block + i, e.block.word() + i), None);
        }
        at = e.end();
    }
    assert_eq!(r.blocks, o.blocks.len() as u64);
    (o, r.nlink, r.entries)
}

/// Fails unless the state is exactly what the model says.
pub fn compare(state: &State, model: &Model) {
    let store = &state.trees;
    let of_tree = |tree: TreeId| store.0.iter().filter(move |((t, _), _)| *t == tree);
    let inos: Vec<u64> = of_tree(INODES)
        .map(|((_, k), _)| u64::from_be_bytes(k[..].try_into().unwrap()))
        .collect();
    assert_eq!(inos, model.objects.keys().copied().collect::<Vec<_>>());
    for (&ino, expected) in &model.objects {
        let (found, nlink, entries) = object(store, ino);
        assert_eq!(&found, expected, "object {ino}");
        assert_eq!(nlink, model.nlink(ino), "nlink of {ino}");
        assert_eq!(
            entries,
            model.entries(ino).count() as u64,
            "entries of {ino}"
        );
        assert!(is_link(expected) || expected.target.is_empty());
    }
    let mut names = BTreeMap::new();
    for ((_, k), v) in of_tree(DIRENTS) {
        let (dir, cookie) = dirent::parse_key(k).unwrap();
        let entry = Dirent::decode(v).unwrap();
        assert_eq!(cookie >> 8, dirent::name_hash(state.seed, entry.name));
        assert_eq!(u32::from(entry.kind), model.objects[&entry.ino].mode >> 12);
        names.insert((dir, entry.name.to_vec()), entry.ino);
    }
    assert_eq!(names, model.names);
    let orphans: BTreeSet<u64> = of_tree(ORPHANS)
        .map(|((_, k), _)| u64::from_be_bytes(k[..].try_into().unwrap()))
        .collect();
    assert_eq!(orphans, model.orphans);
    compare_space(state, model);
}

fn compare_space(store: &State, model: &Model) {
    let used: BTreeSet<u64> = model
        .objects
        .values()
        .flat_map(|o| o.blocks.values().copied())
        .collect();
    assert_eq!(used, store.used);
    let of_tree = |tree: TreeId| store.trees.0.iter().filter(move |((t, _), _)| *t == tree);
    for ((_, k), v) in of_tree(EXTENTS) {
        let (ino, at) = extent::parse_key(k).unwrap();
        assert!(model.objects.contains_key(&ino));
        Extent::decode(at, v).unwrap();
    }
    for ((_, k), _) in of_tree(XATTRS) {
        assert!(model.objects.contains_key(&xattr::parse_key(k).unwrap().0));
    }
    assert_eq!(count::objects(&store.counts), model.objects.len() as u64);
    let dirs = model.objects.keys().filter(|i| model.is_dir(**i)).count();
    assert_eq!(store.counts[count::DIRS], dirs as u64);
    assert_eq!(store.next_ino, model.next_ino);
}
