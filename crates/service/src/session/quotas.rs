//! Quotas: which there are, and what the trees say is taken of them.
//!
//! Invariants:
//!  * What a quota has taken is counted where records are applied (`pool::quota::Usage`), from what
//!    all inodes together have when the quota is new, or the service.
//!  * Session memory has that sum and what clients took since. What a change of values takes away
//!    is taken from it once the trees have the change, and before anybody learns that they do. It
//!    is corrected only while nothing waits for the trees and nothing is dirty, so that both are
//!    the same.

use super::Session;
use super::memory::Memory;
use crate::base::error::{Error, Result};
use crate::journal::engine::Engine;
use holdfast_pmem::atomic::Ordering::*;
use holdfast_pmem::env::Instant;
use holdfast_pool::apply::{PoolStore, Store};
use holdfast_pool::layout::inode::{InodeRecord, KEYSPACE};
use holdfast_pool::layout::value::TreeKey;
use holdfast_pool::layout::{
    BadValue, INODES, ROOT_INO, TreeId, VALUES, XATTR_VALUE_MAX, parse_ino_key, xattr,
};
use holdfast_pool::quota::{self, Quota, Share, Subject, Taken, Usage, byte_limit, payers_of};
use holdfast_pool::session::{
    INODE_DIRTY, INODES as INODE_ENTRIES, QUOTA_DIRECTORY, QUOTA_PARTIAL, QUOTA_USER, QUOTA_USERS,
    QUOTAS, quota_hash,
};
use std::time::Duration;

/// For so long nothing may have changed before sums are corrected: whoever is in the midst of a
/// change has made it by then.
const QUIET: Duration = Duration::from_millis(100);

/// What the service knows of quotas.
#[derive(Default)]
pub struct Quotas {
    known: Vec<(usize, Quota)>,
    /// What differed when it was looked at last, and since when it has been so.
    differ: Option<(Differ, Instant)>,
}

/// The number of the next record, and sums in session memory that are not what the trees have.
type Differ = (u64, Vec<(usize, [u64; 2])>);

impl Session {
    /// Has what the trees say of quotas be so in session memory, if that changed, or `again`.
    pub(super) fn tend_quotas(&mut self, engine: &mut Engine, again: bool) -> Result<()> {
        // While a batch is put aside there is nothing to read the trees by, nor news in them.
        if engine.is_dividing() {
            return Ok(());
        }
        let usage = &mut engine.journal.carry.usage;
        let unknown = usage.unknown();
        if !(again || usage.changed) && unknown.is_empty() {
            pay(&self.memory, usage);
            return Ok(());
        }
        let store = PoolStore::begin(&mut engine.store.pool, &engine.store.token);
        let in_pool = |error| Error::Pool {
            path: engine.store.files.directory.clone(),
            error,
        };
        let quotas = read(&store).map_err(in_pool)?;
        let is_known = |(place, quota): &(usize, Quota)| {
            let mut known = self.quotas.known.iter();
            known.any(|(at, old)| at == place && old.subject == quota.subject)
        };
        let usage = &mut engine.journal.carry.usage;
        if !quotas.iter().all(is_known) || quotas.is_empty() {
            pay(&self.memory, usage);
            *usage = scan(&store, &quotas).map_err(in_pool)?;
        }
        for keyspace in usage.unknown() {
            usage.has_values(keyspace, values_of(&store, keyspace).map_err(in_pool)?);
        }
        pay(&self.memory, usage);
        usage.changed = false;
        show(&self.memory, &quotas, usage);
        self.quotas.known = quotas;
        Ok(())
    }

    /// While nothing happens: corrects what processes that died left behind. Whether to come again
    /// soon.
    pub(super) fn correct_quotas(&mut self, engine: &Engine) -> bool {
        if self.quotas.known.is_empty() {
            return false;
        }
        let usage = &engine.journal.carry.usage;
        let differ = (self.next_seq(), self.differing(usage));
        if differ.1.is_empty() || differ.0 != engine.journal.order.next_seq() {
            self.quotas.differ = None;
            return false;
        }
        match &self.quotas.differ {
            Some((same, since)) if *same == differ => {
                if since.elapsed() < QUIET {
                    return true;
                }
                if !is_dirty(&self.memory) && self.next_seq() == differ.0 {
                    self.correct(usage, &differ.1);
                }
                false
            }
            _ => {
                self.quotas.differ = Some((differ, Instant::now()));
                true
            }
        }
    }

    fn next_seq(&self) -> u64 {
        self.memory.header().next_seq.load(Acquire)
    }

    /// Places whose sums are not what the trees have, and these sums.
    fn differing(&self, usage: &Usage) -> Vec<(usize, [u64; 2])> {
        let mut differ = Vec::new();
        for (place, known) in &self.quotas.known {
            let Some(entry) = self.memory.quota(*place) else {
                continue;
            };
            let sums = [&entry.bytes, &entry.files].map(|sum| sum.load(Acquire));
            let Taken { bytes, files } = usage.of(*place, known.subject);
            if sums != [bytes, files] {
                differ.push((*place, sums));
            }
        }
        differ
    }

    fn correct(&self, usage: &Usage, differ: &[(usize, [u64; 2])]) {
        for (place, sums) in differ {
            let mut known = self.quotas.known.iter();
            let subject = known.find(|(at, _)| at == place).map(|(_, q)| q.subject);
            let (Some(entry), Some(subject)) = (self.memory.quota(*place), subject) else {
                continue;
            };
            let Taken { bytes, files } = usage.of(*place, subject);
            let words = [(&entry.bytes, bytes), (&entry.files, files)];
            for ((word, right), seen) in words.into_iter().zip(sums) {
                // Somebody who begins just now is right.
                let _ = word.compare_exchange(*seen, right, AcqRel, Relaxed);
            }
        }
    }
}

/// The quotas that the trees have.
fn read(store: &PoolStore<'_>) -> holdfast_pool::Result<Vec<(usize, Quota)>> {
    quota::read_all(|name| {
        let mut value = vec![0; XATTR_VALUE_MAX];
        let len = xattr::find(store, ROOT_INO, name, &mut value)?;
        Ok(len.map(|len| {
            value.truncate(len);
            value
        }))
    })
}

/// What all objects together take of the quotas.
fn scan(store: &PoolStore<'_>, quotas: &[(usize, Quota)]) -> holdfast_pool::Result<Usage> {
    let mut usage = Usage::new(quotas);
    if quotas.is_empty() {
        return Ok(usage);
    }
    each(store, INODES, (&[], &[u8::MAX; 9]), |key, value| {
        let inode = InodeRecord::decode(value)?;
        usage.change(None, Some(Share::of(&inode)));
        if inode.flags & KEYSPACE != 0 {
            usage.keyspace(parse_ino_key(key)?, Some(payers_of(&inode)), false);
        }
        Ok(())
    })?;
    for keyspace in usage.unknown() {
        usage.has_values(keyspace, values_of(store, keyspace)?);
    }
    // Nobody has counted anything yet.
    usage.take_owed();
    Ok(usage)
}

/// What the values of a keyspace take.
fn values_of(store: &PoolStore<'_>, keyspace: u64) -> holdfast_pool::Result<Taken> {
    let mut taken = Taken::default();
    let range = [keyspace, keyspace + 1].map(|ino| TreeKey::new(ino, &[]));
    let range = (range[0].as_slice(), range[1].as_slice());
    each(store, VALUES, range, |key, value| {
        taken = taken.and(Taken::by_entry(key, value)?);
        Ok(())
    })?;
    Ok(taken)
}

/// Shows the entries of a part of a tree, until there is one that `see` cannot read.
fn each(
    store: &PoolStore<'_>,
    tree: TreeId,
    (from, to): (&[u8], &[u8]),
    mut see: impl FnMut(&[u8], &[u8]) -> std::result::Result<(), BadValue>,
) -> holdfast_pool::Result<()> {
    let mut seen = Ok(());
    store.each(tree, from, to, &mut |key, value| {
        seen = see(key, value);
        seen.is_ok()
    })?;
    Ok(seen?)
}

/// What is taken changes by what is owed.
fn pay(memory: &Memory, usage: &mut Usage) {
    for (place, by) in usage.take_owed() {
        let Some(entry) = memory.quota(place) else {
            continue;
        };
        for (sum, by) in [(&entry.bytes, by.bytes), (&entry.files, by.files)] {
            if by != 0 {
                sum.fetch_add(by as u64, AcqRel);
            }
        }
    }
}

/// Shows the quotas to clients. What is taken of one that is there already is theirs to change.
fn show(memory: &Memory, quotas: &[(usize, Quota)], usage: &Usage) {
    let mut next = quotas.iter().peekable();
    for place in 0..QUOTAS {
        let quota = next.next_if(|(at, _)| *at == place).map(|(_, quota)| quota);
        let Some(entry) = memory.quota(place) else {
            continue;
        };
        let Some(quota) = quota else {
            entry.kind.store(0, Release);
            continue;
        };
        let (kind, id) = match quota.subject {
            Subject::User(uid) => (QUOTA_USER, u64::from(uid)),
            Subject::Directory(ino) if quota.partial => (QUOTA_PARTIAL, ino),
            Subject::Directory(ino) => (QUOTA_DIRECTORY, ino),
        };
        let old = entry.kind.load(Acquire);
        let same_kind = (old == QUOTA_USER) == (kind == QUOTA_USER) && old != 0;
        if !same_kind || entry.id.load(Relaxed) != id {
            entry.kind.store(0, Release);
            let taken = usage.of(place, quota.subject);
            entry.id.store(id, Relaxed);
            entry.bytes.store(taken.bytes, Relaxed);
            entry.files.store(taken.files, Relaxed);
        }
        entry.byte_limit.store(byte_limit(quota.bytes), Relaxed);
        entry.file_limit.store(quota.files, Relaxed);
        entry.kind.store(kind, Release);
    }
    show_users(memory, quotas);
    let on = u32::from(!quotas.is_empty());
    memory.header().quotas.store(on, Release);
}

/// Where the quotas of users are found. A place is taken away only where none follows that would
/// not be found any more, so what stays is always found.
fn show_users(memory: &Memory, quotas: &[(usize, Quota)]) {
    let mut wanted = vec![0; QUOTA_USERS];
    for (place, quota) in quotas {
        let Subject::User(uid) = quota.subject else {
            continue;
        };
        let at = (0..QUOTA_USERS).map(|n| (quota_hash(uid) + n) % QUOTA_USERS);
        if let Some(at) = at.into_iter().find(|at| wanted[*at] == 0) {
            wanted[at] = place + 1;
        }
    }
    let Some(users) = memory.quota_users() else {
        return;
    };
    // New places first: a user may be found twice for a moment, which is the same quota.
    for (word, wanted) in users.places.iter().zip(&wanted).filter(|(_, w)| **w != 0) {
        word.store(*wanted as u16, Release);
    }
    for (word, _) in users.places.iter().zip(&wanted).filter(|(_, w)| **w == 0) {
        word.store(0, Release);
    }
}

/// Whether anything is only in session memory.
fn is_dirty(memory: &Memory) -> bool {
    let used = memory.header().inode_used.load(Acquire) as usize;
    let entries = (0..used.min(INODE_ENTRIES)).filter_map(|index| memory.inode(index));
    entries
        .filter(|entry| entry.ino.load(Relaxed) != 0)
        .any(|entry| entry.state.load(Acquire) & INODE_DIRTY != 0)
}
