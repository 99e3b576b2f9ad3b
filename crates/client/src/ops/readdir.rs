//! getdents64(2).
//!
//! Invariants:
//!  * Positions are cookies of the trees plus two, so they stay valid while names are added and
//!    removed; a reader sees every name once that was there before it began and is still there.
//!  * What changed before the call and is not in the trees yet is put right in the listing, or the
//!    trees are read once they have it; that includes changes of processes that died before they
//!    published them.
//!  * A name that the trees have not at all yet is, like a value, at the last cookie of its hash:
//!    it does not move behind a reader when the trees get it. One that leads elsewhere now stays
//!    where it is.
//!  * Who has seen the last name has seen all: a name that comes later shows after a rewind only,
//!    as on tmpfs, so nobody waits for the trees to learn that there is nothing more.
//!  * Values of a keyspace are among the names of its directory, at the last cookie of the hash of
//!    their key: a value that becomes a file does not move to a position that a reader has already
//!    passed, or has yet to reach.

use crate::base::abi::*;
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::names_ahead::{Ahead, Shown};
use crate::base::types::DirentFormat;
use crate::content::file::File;
use crate::ops::client::Client;
use crate::ops::path::KIND_DIR;
use crate::ops::read;
use crate::session::{OfdLink, Session};
use crate::session::{drain, lock};
use crate::tables::dentry_table::Found;
use crate::tables::inode_table::{self, InodeRef};
use crate::tables::recent_names::{self, Changed};
use crate::values::files;
use alloc::boxed::Box;
use alloc::vec::Vec;
use pmem::MutBuf;
use pmem::atomic::Ordering::{Acquire, Relaxed};
use pool::layout::dirent::{COLLISION_BITS, COLLISIONS_MAX, first_cookie, name_hash};

/// Positions 0 and 1 are `.` and `..`.
const FIRST_COOKIE: u64 = 2;
/// The position behind the last name. Cookies are below 1 << 62; locks from the position on need
/// room behind it.
const END: u64 = 3 << 61;
/// How often a keyspace is read again because it changed meanwhile.
const MERGES: usize = 100;
/// To find the next names of a keyspace all its values are looked at: so many names are kept for
/// the calls that follow, and for so long.
const AHEAD: usize = 64 * 1024;
const AHEAD_MS: u64 = 1000;
/// Bytes before the name in both formats.
const HEAD_64: usize = 19;
const HEAD_LEGACY: usize = 18;
/// The longest encoded entry.
const ENTRY_MAX: usize = (HEAD_64 + NAME_MAX + 1).next_multiple_of(8);

pub(crate) fn getdents(
    c: &Client,
    ofd: OfdLink,
    out: MutBuf,
    format: DirentFormat,
) -> Result<usize> {
    let s = &c.session;
    let file = File::usable(s, ofd)?;
    if file.kind() != S_IFDIR {
        return Err(Error::NotDirectory);
    }
    let now = clock::now();
    let a = inode_table::attrs(s, &file.inode)?;
    if a.nlink == 0 {
        return Err(Error::NotFound);
    }
    if file.ofd.offset.load(Relaxed) == END {
        read::touch(&file, now);
        return Ok(0);
    }
    if lock::is_dead_ones(s, &file.inode.e.lock) {
        // What a dead process did here and nobody published is not in `dir_seq`.
        inode_table::lock_ref(s, file.inode)?;
    }
    let keyspace = files::is_keyspace(&file.inode).then_some(file.inode);
    if keyspace.is_some() {
        drain::wait_applied(s, file.inode.e.dir_seq.load(Acquire))?;
    }
    let _position = lock::acquire(s, &file.ofd.lock)?;
    let mut listing = Listing {
        s,
        ofd,
        dir: a.ino,
        parent: a.parent,
        format,
        out,
        written: 0,
        at: file.ofd.offset.load(Relaxed),
        full: false,
    };
    let done = match keyspace {
        Some(dir) => listing.fill_merged(&dir),
        None => listing.fill(&file.inode),
    };
    if done.is_ok() && !listing.full {
        listing.at = END;
    }
    file.ofd.offset.store(listing.at, Relaxed);
    read::touch(&file, now);
    done.map(|()| listing.written)
}

impl Ahead {
    /// None yet.
    fn nothing(ofd: OfdLink, dir: &InodeRef, from: u64) -> Ahead {
        Ahead {
            ofd,
            dir: dir.ino,
            dir_seq: dir.e.dir_seq.load(Acquire),
            read: clock::monotonic_ms(),
            covers: from..from,
            names: Vec::new(),
        }
    }

    /// All names from `from` on, or the first `AHEAD` of them.
    fn read(s: &Session, ofd: OfdLink, dir: &InodeRef, from: u64) -> Result<Ahead> {
        let mut ahead = Ahead::nothing(ofd, dir, from);
        let mut names = files::first_values(s, dir, from, AHEAD)?;
        names.sort_unstable();
        ahead.covers.end = u64::MAX;
        if names.len() == AHEAD
            && let Some((last, ..)) = names.last()
        {
            // There may be more at the last cookie.
            ahead.covers.end = *last;
            names.retain(|(cookie, ..)| *cookie < ahead.covers.end);
        }
        ahead.names = names;
        Ok(ahead)
    }

    fn is_of(&self, ofd: OfdLink, dir: &InodeRef) -> bool {
        (self.ofd, self.dir) == (ofd, dir.ino)
    }

    /// Whether no name came or went since.
    fn is_current(&self, dir: &InodeRef) -> bool {
        self.dir_seq == dir.e.dir_seq.load(Acquire)
    }

    /// The first `most` names from `from` on; `None`: they have to be read.
    fn show(&self, ofd: OfdLink, dir: &InodeRef, from: u64, most: usize) -> Option<&[Shown]> {
        let old = clock::monotonic_ms().wrapping_sub(self.read) >= AHEAD_MS;
        if old || !self.is_of(ofd, dir) || !self.is_current(dir) || !self.covers.contains(&from) {
            return None;
        }
        let first = self.names.partition_point(|(cookie, ..)| *cookie < from);
        let rest = self.names.get(first..)?;
        let enough = rest.len() >= most || self.covers.end == u64::MAX;
        enough.then(|| &rest[..rest.len().min(most)])
    }
}

struct Listing<'a> {
    s: &'a Session,
    ofd: OfdLink,
    dir: u64,
    parent: u64,
    format: DirentFormat,
    out: MutBuf<'a>,
    written: usize,
    /// The next position.
    at: u64,
    /// There is a name that did not fit.
    full: bool,
}

impl Listing<'_> {
    /// The directory itself and its parent; false if the buffer is full.
    fn fill_dots(&mut self) -> Result<bool> {
        while self.at < FIRST_COOKIE {
            let (ino, name) = match self.at {
                0 => (self.dir, &b"."[..]),
                _ => (self.parent, &b".."[..]),
            };
            if !self.put(ino, KIND_DIR, name, self.at + 1)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn fill(&mut self, dir: &InodeRef) -> Result<()> {
        if !self.fill_dots()? {
            return Ok(());
        }
        let (s, from) = (self.s, self.at - FIRST_COOKIE);
        let (changed, mut new) = changes(s, dir, from)?;
        s.tree()
            .each_dirent(dir.ino, from, &mut |cookie, entry, name| {
                let next = cookie.saturating_add(1 + FIRST_COOKIE);
                if next <= self.at || next > i64::MAX as u64 {
                    return Err(Error::Damaged {
                        what: "directory",
                        index: dir.ino,
                    });
                }
                if !self.put_before(&mut new, cookie)? {
                    return Ok(false);
                }
                let Some(found) = now(&changed, name) else {
                    return self.put(entry.ino, entry.kind, name, next);
                };
                if found.ino == 0 {
                    return Ok(true);
                }
                // Here is its place: the trees will have it here as well.
                if let Some(at) = new.iter().rposition(|(_, new, ..)| new == name) {
                    new.remove(at);
                }
                self.put(found.ino, found.kind, name, next)
            })?;
        // A name that did not fit comes before all that follow, also before shorter ones.
        if !self.full {
            self.put_before(&mut new, u64::MAX)?;
        }
        Ok(())
    }

    /// Writes the names of `new`, which are in order, with lower cookies; false if the buffer is
    /// full.
    fn put_before(&mut self, new: &mut Vec<Shown>, cookie: u64) -> Result<bool> {
        while let Some((at, name, ino, kind)) = new.pop_if(|(at, ..)| *at < cookie) {
            if !self.put(ino, kind, &name, at + 1 + FIRST_COOKIE)? {
                return Ok(false);
            }
        }
        Ok(!self.full)
    }

    /// Names of files and of values, in the order of their cookies.
    fn fill_merged(&mut self, dir: &InodeRef) -> Result<()> {
        if !self.fill_dots()? {
            return Ok(());
        }
        let (s, from) = (self.s, self.at - FIRST_COOKIE);
        // More do not fit.
        let most = self.out.len() / HEAD_64 + 1;
        let mut names = Vec::new();
        for _ in 0..MERGES {
            let before = dir.e.dir_seq.load(Acquire);
            names = self.values(dir, from, most)?;
            drain::wait_applied(s, dir.e.dir_seq.load(Acquire))?;
            let mut left = most;
            s.tree()
                .each_dirent(dir.ino, from, &mut |cookie, entry, name| {
                    names.push((cookie, name.to_vec(), entry.ino, entry.kind));
                    left -= 1;
                    Ok(left > 0)
                })?;
            // Else a value may have become a file, or the other way round, and be missed.
            if dir.e.dir_seq.load(Acquire) == before {
                break;
            }
        }
        names.sort_unstable();
        let mut shown: Vec<&[u8]> = Vec::new();
        for (cookie, name, ino, kind) in &names {
            let hash = cookie >> COLLISION_BITS;
            // What became a file meanwhile is there twice, with the same hash.
            shown.retain(|name| name_hash(s.hash_seed(), name) == hash);
            if shown.contains(&name.as_slice()) {
                continue;
            }
            if !self.put(*ino, *kind, name, cookie + 1 + FIRST_COOKIE)? {
                return Ok(());
            }
            shown.push(name);
        }
        Ok(())
    }

    /// Names of values at the first `most` cookies from `from` on, and maybe more.
    fn values(&self, dir: &InodeRef, from: u64, most: usize) -> Result<Vec<Shown>> {
        let (s, ofd) = (self.s, self.ofd);
        // Who begins sees what is there now; and most directories end with that.
        if from == 0 {
            return files::first_values(s, dir, 0, most);
        }
        let ahead = match s.names_ahead.take() {
            Some(ahead) if ahead.show(ofd, dir, from, most).is_some() => ahead,
            Some(ahead) if ahead.is_of(ofd, dir) && !ahead.is_current(dir) => {
                // While names come and go, to read more of them would be in vain.
                s.names_ahead.put(Box::new(Ahead::nothing(ofd, dir, from)));
                return files::first_values(s, dir, from, most);
            }
            _ => Box::new(Ahead::read(s, ofd, dir, from)?),
        };
        let Some(names) = ahead.show(ofd, dir, from, most) else {
            return files::first_values(s, dir, from, most);
        };
        let names = names.to_vec();
        if !names.is_empty() {
            s.names_ahead.put(ahead);
        }
        Ok(names)
    }

    /// Writes one entry; false if the buffer is full.
    fn put(&mut self, ino: u64, kind: u8, name: &[u8], next: u64) -> Result<bool> {
        let mut entry = [0; ENTRY_MAX];
        let len = encode(&mut entry, self.format, ino, kind, name, next);
        let bytes = entry.get(..len).ok_or(Error::NameTooLong)?;
        if bytes.len() > self.out.len() {
            self.full = true;
            return if self.written == 0 {
                Err(Error::Invalid)
            } else {
                Ok(false)
            };
        }
        match self.out.write(bytes) {
            Ok(_) => {}
            Err(_) if self.written > 0 => {
                self.full = true;
                return Ok(false);
            }
            Err(fault) => return Err(fault.into()),
        }
        self.out.advance(len);
        self.written += len;
        self.at = next;
        Ok(true)
    }
}

/// The names that the trees do not have as they are, in order; and those of them that are to be
/// listed, from `from` on, the last one first.
fn changes(s: &Session, dir: &InodeRef, from: u64) -> Result<(Vec<Changed>, Vec<Shown>)> {
    let mut changed = recent_names::of(s, dir)?;
    let mut new = new_names(s, &changed, from);
    let hash = |cookie: u64| cookie >> COLLISION_BITS;
    let mut unclear = new.windows(2).any(|two| hash(two[0].0) == hash(two[1].0));
    if !from.is_multiple_of(COLLISIONS_MAX)
        && let Some((_, name, ..)) = new.pop_if(|(at, ..)| hash(*at) == hash(from))
    {
        // The reader has passed a name of this hash: this one, as a rule.
        unclear |= s.tree().dirent(dir.ino, &name)?.is_none();
    }
    if unclear {
        // Only the trees give each name of a hash a position of its own.
        drain::wait_applied(s, dir.e.dir_seq.load(Acquire))?;
        return Ok((Vec::new(), Vec::new()));
    }
    changed.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok((changed, new))
}

/// What a name leads to now, if the trees do not say.
fn now(changed: &[Changed], name: &[u8]) -> Option<Found> {
    let at = changed.binary_search_by(|(changed, _)| changed[..].cmp(name));
    at.ok()
        .and_then(|at| changed.get(at))
        .map(|(_, found)| *found)
}

/// The names among `changed` that are there.
fn new_names(s: &Session, changed: &[Changed], from: u64) -> Vec<Shown> {
    let there = changed.iter().filter(|(_, found)| found.ino != 0);
    let shown = there.map(|(name, found)| {
        let cookie = first_cookie(s.hash_seed(), name) | (COLLISIONS_MAX - 1);
        (cookie, name.clone(), found.ino, found.kind)
    });
    let mut new: Vec<Shown> = shown.filter(|(cookie, ..)| *cookie >= from).collect();
    new.sort_unstable_by(|a, b| b.cmp(a));
    new
}

/// `struct linux_dirent64` or `struct linux_dirent`; the length.
fn encode(
    out: &mut [u8; ENTRY_MAX],
    format: DirentFormat,
    ino: u64,
    kind: u8,
    name: &[u8],
    next: u64,
) -> usize {
    let (head, tail) = match format {
        DirentFormat::Linux64 => (HEAD_64, 1),
        DirentFormat::Legacy => (HEAD_LEGACY, 2),
    };
    let name = &name[..name.len().min(NAME_MAX)];
    let len = (head + name.len() + tail).next_multiple_of(8);
    out[0..8].copy_from_slice(&ino.to_le_bytes());
    out[8..16].copy_from_slice(&next.to_le_bytes());
    out[16..18].copy_from_slice(&(len as u16).to_le_bytes());
    out[head..head + name.len()].copy_from_slice(name);
    match format {
        DirentFormat::Linux64 => out[18] = kind,
        DirentFormat::Legacy => out[len - 1] = kind,
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_kernels_layout() {
        let mut out = [0; ENTRY_MAX];
        let len = encode(&mut out, DirentFormat::Linux64, 7, 8, b"name", 9);
        assert_eq!(len, 24);
        assert_eq!(&out[..8], &7u64.to_le_bytes());
        assert_eq!(&out[8..16], &9u64.to_le_bytes());
        assert_eq!((out[16], out[18], &out[19..24]), (24, 8, &b"name\0"[..]));
        let mut out = [0; ENTRY_MAX];
        let len = encode(&mut out, DirentFormat::Legacy, 7, 4, b"name", 9);
        assert_eq!((len, &out[18..23], out[len - 1]), (24, &b"name\0"[..], 4));
        let longest = [b'x'; NAME_MAX];
        assert!(encode(&mut out, DirentFormat::Linux64, 1, 8, &longest, 1) <= ENTRY_MAX);
    }
}
