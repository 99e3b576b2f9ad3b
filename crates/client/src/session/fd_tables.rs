//! Descriptor tables: their contents, and which one a process uses, its own or that of another
//! process.
//!
//! Invariants:
//!  * The place of a table's first page follows from the number of the slot. The other pages are
//!    found through the slot's directory; they are added when a descriptor of theirs is bound, and
//!    freed with the slot.
//!  * Under `fd_pages_lock`: a page is in use if a slot's directory, or the slot itself, refers to
//!    it. All others below `fd_pages_used` are free and zero, and on the list of free pages unless
//!    the holder of the lock died: then the list is rebuilt.

use crate::base::error::{Error, Result};
use crate::session::Session;
use crate::session::live::SLOT_FREE;
use crate::session::lock::{self, Guard};
use pmem::atomic::{AtomicU32, Ordering::*};
use pool::session::{FD_PAGE, FD_PAGES, FDS, FdPage, Slot};

/// Whether the slot's own descriptor table (`files`) or working directory is used by others.
pub(crate) fn is_used(s: &Session, index: u32, files: bool, directory: bool) -> bool {
    if s.slot_at(index)
        .is_ok_and(|slot| slot.lent.load(Relaxed) == 0)
    {
        return false;
    }
    let uses = |slot: &Slot| {
        slot.state.load(SeqCst) != SLOT_FREE
            && (files && slot.files.load(SeqCst) == index + 1
                || directory && slot.directory.load(SeqCst) == index + 1)
    };
    (0..s.slots_used()).any(|other| other != index && s.slot_at(other).is_ok_and(uses))
}

/// Whether the descriptor table of slot `slot_plus1` is the one that it was when the generation
/// was `generation`, and is in use.
pub(crate) fn is_same(s: &Session, slot_plus1: u32, generation: u32) -> bool {
    let index = slot_plus1.wrapping_sub(1);
    let Ok(slot) = s.slot_at(index) else {
        return false;
    };
    slot.generation.load(Acquire) == generation
        && (s.is_alive(index) || is_used(s, index, true, false))
}

/// The generation of the slot whose descriptor table the caller uses.
pub(crate) fn generation(s: &Session) -> u32 {
    let slot = s.slot_at(s.table_index());
    slot.map_or(0, |slot| slot.generation.load(Relaxed))
}

/// The entry of descriptor `fd` in the table of slot `index`; `None`: it was never bound.
#[inline]
pub(crate) fn entry(s: &Session, index: u32, fd: u32) -> Option<&AtomicU32> {
    let first = s.first_fd_page(index).ok()?;
    match first.entries.get(fd as usize) {
        Some(entry) => Some(entry),
        None => far_entry(s, index, fd),
    }
}

#[inline(never)]
fn far_entry(s: &Session, index: u32, fd: u32) -> Option<&AtomicU32> {
    let directory = directory(s, s.slot_at(index).ok()?)?;
    let link = directory.entries.get(fd as usize / FD_PAGE)?.load(Acquire);
    s.fd_page(link).ok()?.entries.get(fd as usize % FD_PAGE)
}

fn directory<'a>(s: &'a Session, slot: &Slot) -> Option<&'a FdPage> {
    s.fd_page(slot.fd_directory.load(Acquire)).ok()
}

/// As `entry`, with a page for it. `TooManyFiles`: no table has such a number. `TableFull`: no
/// page is left.
#[inline]
pub(crate) fn entry_for(s: &Session, index: u32, fd: u32) -> Result<&AtomicU32> {
    match entry(s, index, fd) {
        Some(entry) => Ok(entry),
        None => grown(s, index, fd),
    }
}

#[cold]
fn grown(s: &Session, index: u32, fd: u32) -> Result<&AtomicU32> {
    if fd as usize >= FDS {
        return Err(Error::TooManyFiles);
    }
    let (_guard, slot) = (locked(s)?, s.slot_at(index)?);
    let directory = s.fd_page(linked(s, &slot.fd_directory)?)?;
    let page = s.fd_page(linked(s, &directory.entries[fd as usize / FD_PAGE])?)?;
    Ok(&page.entries[fd as usize % FD_PAGE])
}

/// What `word` refers to; if nothing, a free page from now on.
fn linked(s: &Session, word: &AtomicU32) -> Result<u32> {
    let old = word.load(Acquire);
    if old != 0 {
        return Ok(old);
    }
    let (h, link) = (s.header(), s.header().fd_pages_free.load(Relaxed));
    if link == 0 {
        let used = h.fd_pages_used.load(Relaxed);
        if used as usize >= FD_PAGES {
            return Err(Error::TableFull);
        }
        h.fd_pages_used.store(used + 1, Release);
        word.store(used + 1, Release);
        return Ok(used + 1);
    }
    let next = s.fd_page(link)?.entries[0].swap(0, Relaxed);
    h.fd_pages_free.store(next, Release);
    word.store(link, Release);
    Ok(link)
}

/// Frees all pages but the first of a table in which nothing is bound.
pub(crate) fn release(s: &Session, slot: &Slot) {
    if slot.fd_directory.load(Relaxed) == 0 {
        return;
    }
    // In a session that was given up they stay where they are.
    let (Ok(_guard), Some(directory)) = (locked(s), directory(s, slot)) else {
        return;
    };
    for word in &directory.entries {
        unlink(s, word);
    }
    unlink(s, &slot.fd_directory);
}

fn unlink(s: &Session, word: &AtomicU32) {
    let link = word.swap(0, AcqRel);
    if let Ok(page) = s.fd_page(link) {
        let free = &s.header().fd_pages_free;
        page.entries[0].store(free.load(Relaxed), Relaxed);
        free.store(link, Release);
    }
}

fn locked(s: &Session) -> Result<Guard<'_>> {
    let guard = lock::acquire_plain(s, &s.header().fd_pages_lock)?;
    if guard.was_stolen() {
        rebuild(s);
    }
    Ok(guard)
}

/// The list of free pages anew, from what slots refer to.
#[cold]
fn rebuild(s: &Session) {
    let h = s.header();
    let used = h.fd_pages_used.load(Relaxed).min(FD_PAGES as u32);
    let mut in_use = alloc::vec![false; used as usize + 1];
    let mut note = |link: u32| {
        if let Some(page) = in_use.get_mut(link as usize) {
            *page = true;
        }
    };
    for index in 0..s.slots_used() {
        let Ok(slot) = s.slot_at(index) else { break };
        if let Some(directory) = directory(s, slot) {
            note(slot.fd_directory.load(Acquire));
            let links = directory.entries.iter();
            links.for_each(|link| note(link.load(Acquire)));
        }
    }
    h.fd_pages_free.store(0, Relaxed);
    for link in (1..=used).filter(|link| !in_use[*link as usize]) {
        if let Ok(page) = s.fd_page(link) {
            page.entries[0].store(h.fd_pages_free.load(Relaxed), Relaxed);
            h.fd_pages_free.store(link, Release);
        }
    }
}

/// No descriptor of slot `index` from here on was ever bound.
pub(crate) fn limit(s: &Session, index: u32) -> u32 {
    let slot = s.slot_at(index);
    slot.map_or(0, |slot| slot.fd_limit.load(Acquire).min(FDS as u32))
}

/// The lowest bound descriptor of slot `index` that is not below `from`, and what it refers to.
pub(crate) fn next(s: &Session, index: u32, from: u32) -> Option<(u32, u32)> {
    let (limit, mut fd) = (limit(s, index), from);
    while fd < limit {
        let at = fd as usize % FD_PAGE;
        let page_end = (fd - at as u32).saturating_add(FD_PAGE as u32);
        let Some(page) = page_of(s, index, fd) else {
            fd = page_end;
            continue;
        };
        for entry in &page.entries[at..(page_end.min(limit) - fd) as usize + at] {
            match entry.load(SeqCst) {
                0 => fd += 1,
                link => return Some((fd, link)),
            }
        }
    }
    None
}

fn page_of(s: &Session, index: u32, fd: u32) -> Option<&FdPage> {
    match fd as usize / FD_PAGE {
        0 => s.first_fd_page(index).ok(),
        number => {
            let directory = directory(s, s.slot_at(index).ok()?)?;
            s.fd_page(directory.entries.get(number)?.load(Acquire)).ok()
        }
    }
}

/// All bound descriptors of slot `index`, from the lowest on, and what they refer to.
pub(crate) fn bound(s: &Session, index: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
    let mut from = 0;
    core::iter::from_fn(move || {
        let found = next(s, index, from)?;
        from = found.0 + 1;
        Some(found)
    })
}
