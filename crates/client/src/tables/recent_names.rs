//! Which names the latest records changed: a listing of a directory shows what the trees have,
//! with these put right, and waits for nobody.
//!
//! Invariants: who publishes what a record makes of a name notes its entry before the operation
//! returns. A note is never replaced by that of an earlier record. Where notes do not tell enough,
//! because too many records came since, or an entry found no room, the reader waits for the trees.

use crate::base::error::Result;
use crate::session::{Session, drain};
use crate::tables::dentry_table::{self, Found};
use crate::tables::inode_table::InodeRef;
use alloc::vec::Vec;
use pmem::atomic::{AtomicU64, Ordering::*};
use pool::session::{RECENT, RECENT_UNKNOWN};

/// A name, and what it leads to in place of what the trees say: `ino` 0 is nothing.
pub(crate) type Changed = (Vec<u8>, Found);

fn word(seq: u64, link: u32) -> u64 {
    u64::from(seq as u32) << 32 | u64::from(link)
}

/// How much later the record of a note is than `seq`, which is never far away.
fn later(note: u64, seq: u64) -> i32 {
    ((note >> 32) as u32).wrapping_sub(seq as u32) as i32
}

/// Record `seq` changed the name of the entry that `link` refers to.
pub(super) fn note(s: &Session, seq: u64, link: u32) {
    let Ok(notes) = s.recent_names(seq) else {
        return;
    };
    let wanted = word(seq, link);
    for at in &notes.words {
        let mut old = at.load(Acquire);
        loop {
            if old == wanted || old != 0 && later(old, seq) > 0 {
                return;
            }
            if old != 0 && later(old, seq) == 0 {
                break;
            }
            match at.compare_exchange(old, wanted, AcqRel, Acquire) {
                Ok(_) => return clear_older(&notes.words, seq),
                Err(now) => old = now,
            }
        }
    }
    // More names than there is room for: those of a batch.
    let unknown = word(seq, RECENT_UNKNOWN);
    let mine = |old| (later(old, seq) == 0).then_some(unknown);
    let _ = notes.words[0].fetch_update(AcqRel, Acquire, mine);
}

/// Few records change two names: the second note of an early one would stay until its number comes
/// round again and looks late.
fn clear_older(words: &[AtomicU64], seq: u64) {
    for at in words {
        let old = at.load(Relaxed);
        if old != 0 && later(old, seq) < 0 {
            let _ = at.compare_exchange(old, 0, AcqRel, Relaxed);
        }
    }
}

/// The names of a directory that the trees do not know as they are, each once; the trees have all
/// others when they are read after this.
pub(crate) fn of(s: &Session, dir: &InodeRef<'_>) -> Result<Vec<Changed>> {
    let (applied, last) = (s.applied_seq(), dir.e.dir_seq.load(Acquire));
    if last <= applied {
        return Ok(Vec::new());
    }
    match links(s, applied, last)? {
        Some(links) => changed(s, dir.ino, applied, &links),
        None => drain::wait_applied(s, last).map(|()| Vec::new()),
    }
}

/// The entries of all names that records changed after `applied` and up to `last`; `None`: not all
/// of them are noted.
fn links(s: &Session, applied: u64, last: u64) -> Result<Option<Vec<u32>>> {
    let mut links = Vec::new();
    if last - applied > RECENT as u64 {
        return Ok(None);
    }
    for seq in applied + 1..=last {
        for at in &s.recent_names(seq)?.words {
            let note = at.load(Acquire);
            match later(note, seq) {
                0 if note as u32 == RECENT_UNKNOWN => return Ok(None),
                0 if note != 0 => links.push(note as u32),
                1.. if note != 0 => return Ok(None),
                _ => {}
            }
        }
    }
    links.sort_unstable();
    links.dedup();
    Ok(Some(links))
}

fn changed(s: &Session, dir: u64, applied: u64, links: &[u32]) -> Result<Vec<Changed>> {
    let mut names = Vec::new();
    for link in links {
        // An entry that is gone since is one that the trees know.
        names.extend(dentry_table::changed_in(
            s,
            dir,
            link.wrapping_sub(1),
            applied,
        )?);
    }
    Ok(names)
}
