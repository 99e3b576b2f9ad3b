//! The ranges of addresses at which this process has pool files mapped.
//!
//! Invariants: ranges do not overlap and are in order of address; each has one protection and
//! holds one pin of its file; two that continue each other are one, as in the kernel's list.

use super::advice::Manner;
use super::mutex::{Mutex, MutexGuard};
use super::outcome::Stop;
use super::process::Process;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use holdfast_client::MapPin;

/// One mapped range. Its length is a multiple of the page size.
#[derive(Clone, Copy)]
pub struct Range {
    pub addr: usize,
    pub len: usize,
    pub pin: MapPin,
    /// Offset in the file of `addr`.
    pub offset: u64,
    pub prot: usize,
    pub shared: bool,
    /// Bytes from `addr` to the last one that is there, of which some may be holes; what follows
    /// raises SIGBUS.
    pub reach: usize,
    /// The description allowed writing, so a shared mapping may become writable.
    pub may_write: bool,
    /// It is shared and was writable at some time: the file may have changed through it.
    pub stored: bool,
    /// Its pages are those of the lent file, also where that grows and shrinks.
    pub lent: bool,
    /// What the program said of it.
    pub manner: Manner,
}

impl Range {
    pub fn end(&self) -> usize {
        self.addr + self.len
    }

    pub fn overlaps(&self, addr: usize, len: usize) -> bool {
        self.addr < addr.saturating_add(len) && addr < self.end()
    }

    /// Without its first `n` bytes.
    pub fn tail(&self, n: usize) -> Range {
        Range {
            addr: self.addr + n,
            len: self.len - n,
            reach: self.reach.saturating_sub(n),
            offset: self.offset + n as u64,
            ..*self
        }
    }

    /// Its first `n` bytes.
    fn head(&self, n: usize) -> Range {
        Range {
            len: n,
            reach: self.reach.min(n),
            ..*self
        }
    }

    /// Whether the kernel would see one mapping in this and what follows it.
    fn continues_in(&self, next: &Range) -> bool {
        self.end() == next.addr
            && self.offset + self.len as u64 == next.offset
            && self.pin == next.pin
            && (self.prot, self.shared) == (next.prot, next.shared)
            && (self.may_write, self.manner) == (next.may_write, next.manner)
    }

    fn and(&self, next: &Range) -> Range {
        Range {
            len: self.len + next.len,
            reach: match next.reach {
                0 => self.reach,
                reach => self.len + reach,
            },
            stored: self.stored | next.stored,
            ..*self
        }
    }
}

/// All ranges of this process.
pub struct Ranges(Vec<Range>);

static RANGES: Mutex<Ranges> = Mutex::new(Ranges(Vec::new()));
/// How many there are, about: whether a look at them is worth the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Nobody else changes or reads the ranges while the value lives.
pub fn lock() -> MutexGuard<'static, Ranges> {
    RANGES.lock()
}

/// Whether there are none, as far as can be said without the lock.
#[inline]
pub fn is_empty() -> bool {
    COUNT.load(Relaxed) == 0
}

impl Ranges {
    pub fn iter(&self) -> impl Iterator<Item = &Range> {
        self.0.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Range> {
        self.0.iter_mut()
    }

    /// The index of the first range that ends behind `addr`.
    fn from(&self, addr: usize) -> usize {
        self.0.partition_point(|r| r.end() <= addr)
    }

    /// The ranges of which a part is in `addr..addr + len`.
    pub fn within(&self, addr: usize, len: usize) -> impl Iterator<Item = &Range> {
        let later = &self.0[self.from(addr)..];
        later.iter().take_while(move |r| r.overlaps(addr, len))
    }

    pub fn within_mut(&mut self, addr: usize, len: usize) -> impl Iterator<Item = &mut Range> {
        let from = self.from(addr);
        let later = &mut self.0[from..];
        later.iter_mut().take_while(move |r| r.overlaps(addr, len))
    }

    pub fn at(&self, addr: usize) -> Option<Range> {
        self.within(addr, 1).next().copied()
    }

    /// Adds a range, with the pin that the caller took for it, where no other is.
    pub fn add(&mut self, p: &Process, range: Range) {
        let at = self.from(range.addr);
        self.0.insert(at, range);
        self.join(p, range.addr, range.end());
    }

    /// Takes out what is in `addr..end`; the caller gives its pins back.
    pub fn take(&mut self, p: &Process, addr: usize, end: usize) -> Result<Vec<Range>, Stop> {
        self.split(p, addr)?;
        self.split(p, end)?;
        let (from, to) = (self.from(addr), self.0.partition_point(|r| r.addr < end));
        let taken = self.0.drain(from..to.max(from)).collect();
        COUNT.store(self.0.len(), Relaxed);
        Ok(taken)
    }

    /// Gives all of `addr..end` another protection.
    pub fn protect(
        &mut self,
        p: &Process,
        addr: usize,
        end: usize,
        prot: usize,
    ) -> Result<(), Stop> {
        self.change(p, addr, end, |r| {
            r.prot = prot;
            r.stored |= r.shared && prot & super::maps::PROT_WRITE != 0;
        })
    }

    /// Remembers what was said of `addr..end`.
    pub fn remember(
        &mut self,
        p: &Process,
        addr: usize,
        end: usize,
        set: u8,
        clear: u8,
    ) -> Result<(), Stop> {
        self.change(p, addr, end, |r| r.manner = r.manner.with(set, clear))
    }

    /// Changes what is in `addr..end`, and nothing else.
    fn change(
        &mut self,
        p: &Process,
        addr: usize,
        end: usize,
        each: impl Fn(&mut Range),
    ) -> Result<(), Stop> {
        self.split(p, addr)?;
        self.split(p, end)?;
        self.within_mut(addr, end.saturating_sub(addr))
            .for_each(each);
        self.join(p, addr, end);
        Ok(())
    }

    /// Makes `addr` a border between ranges.
    fn split(&mut self, p: &Process, addr: usize) -> Result<(), Stop> {
        let at = self.from(addr);
        let Some(r) = self.0.get(at).copied().filter(|r| r.addr < addr) else {
            return Ok(());
        };
        p.client.map_repin(r.pin)?;
        self.0[at] = r.head(addr - r.addr);
        self.0.insert(at + 1, r.tail(addr - r.addr));
        COUNT.store(self.0.len(), Relaxed);
        Ok(())
    }

    /// Makes one range of those that continue each other, at `addr`, at `end` and in between.
    fn join(&mut self, p: &Process, addr: usize, end: usize) {
        let mut at = self.from(addr.saturating_sub(1));
        while let [r, next, ..] = &self.0[at..]
            && r.addr <= end
        {
            if !r.continues_in(next) {
                at += 1;
                continue;
            }
            let (joined, pin) = (r.and(next), next.pin);
            self.0[at] = joined;
            self.0.remove(at + 1);
            // The other pin stays; one that cannot be dropped goes with the session.
            let _ = p.client.map_unpin(pin, false);
        }
        COUNT.store(self.0.len(), Relaxed);
    }
}
