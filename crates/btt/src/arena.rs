//! Sectors of one arena.
//!
//! Invariants:
//!  * A block that is free in a lane is read by nobody: readers hold the lock of the sectors that
//!    they read, and only who holds it alone changes their entries of the map.
//!  * The bytes of a sector are durable before the log says that it moves, the log before the map,
//!    and the map before the block that the sector had is written.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::flog::{self, Group, Move, Slots};
use crate::lanes::{Lane, Lanes, Taken};
use crate::layout::{Layout, SUM_LEN};
use crate::map::{self, Entry};
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// So many neighbours have a lock together: what a request of theirs needs is taken once.
pub const NEIGHBOURS: u32 = 64;
const LOCKS: usize = 256;
/// So many sectors are zeroed at a time.
pub const ZEROED_MAX: u32 = 4096;
/// How often a reader looks again whose sectors move.
const READS_MAX: usize = 16;
/// The map gets its space by pages.
const PAGE: u64 = 4096;

/// On a line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Lock(RwLock<()>);

/// How a block's checksum is made.
pub type Sum = fn(&[u8]) -> u32;

pub struct Arena {
    pub layout: Layout,
    /// The first of its sectors, counted from the table's.
    first: u64,
    /// There is one exactly if the layout has checksums.
    sum: Sum,
    slots: Slots,
    /// None, where the table is only read.
    pub lanes: Lanes,
    locks: Box<[Lock]>,
}

/// What becomes of the blocks of sectors that are zeroed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Their space is given back.
    Given,
    /// They have it, or get it.
    Kept,
}

impl Arena {
    pub fn to_read(layout: Layout, first: u64, sum: Sum) -> Arena {
        Arena {
            layout,
            first,
            sum,
            slots: Slots::NEW,
            lanes: Lanes::new([]),
            locks: locks(),
        }
    }

    /// Completes what was half done.
    pub fn to_write<D: Device>(
        device: &D,
        layout: Layout,
        first: u64,
        sum: Sum,
    ) -> Result<Arena, D::Error> {
        let mut bytes = vec![0; layout.lanes as usize * flog::LEN];
        device.read(&mut bytes, layout.flog)?;
        let (groups, _) = bytes.as_chunks::<{ flog::LEN }>();
        let damaged = |at| Error::Damaged {
            what: "the log",
            at,
        };
        let slots = Slots::of(groups).ok_or(damaged(layout.flog))?;
        let mut arena = Arena::to_read(layout, first, sum);
        arena.slots = slots;
        let mut lanes = Vec::with_capacity(groups.len());
        let mut free = HashSet::new();
        for (number, group) in groups.iter().enumerate() {
            let at = arena.layout.log(number);
            let (slot, newest) = arena.newest(group).ok_or(damaged(at))?;
            arena.complete(device, &newest)?;
            if !free.insert(newest.old) {
                return Err(damaged(at));
            }
            lanes.push(Lane::after(slot, &newest));
        }
        arena.lanes = Lanes::new(lanes);
        Ok(arena)
    }

    /// The newest entry of a log, if it can be one.
    pub fn newest(&self, group: &Group) -> Option<(usize, Move)> {
        let (slot, newest) = self.slots.newest(group)?;
        let blocks = self.layout.blocks;
        let known = newest.old < blocks && newest.new < blocks;
        (known && newest.sector < self.layout.sectors.max(self.layout.lanes))
            .then_some((slot, newest))
    }

    /// Sets the map as the log says, if that was not done.
    fn complete<D: Device>(&self, device: &D, last: &Move) -> Result<(), D::Error> {
        if last.old == last.new || last.sector >= self.layout.sectors {
            return Ok(());
        }
        let mut room = [Entry::default()];
        self.entries(device, last.sector, &mut room)?;
        match room[0].block(last.sector) == last.old {
            true => {
                let entry = Entry::written(last.new).encode();
                device.write(&entry, self.layout.entry(last.sector))?;
                Ok(device.order()?)
            }
            false => Ok(()),
        }
    }

    /// The log of a new arena, and the space of the free blocks.
    pub fn format_log<D: Device>(device: &D, layout: &Layout) -> Result<(), D::Error> {
        let free = u64::from(layout.lanes) * layout.block;
        device.reserve(layout.place(layout.sectors), free)?;
        if let Some(at) = layout.sum(layout.sectors) {
            device.reserve(at, u64::from(layout.lanes) * SUM_LEN)?;
        }
        let mut bytes = Vec::with_capacity(layout.lanes as usize * flog::LEN);
        for lane in 0..layout.lanes {
            let entry = Move::initial(lane, layout.sectors + lane).encode();
            bytes.extend(entry.as_flattened());
            bytes.resize((lane as usize + 1) * flog::LEN, 0);
        }
        Ok(device.write(&bytes, layout.flog)?)
    }

    /// Entries of the map from sector `first` on, each with a block that there is.
    pub fn entries<D: Device>(
        &self,
        device: &D,
        first: u32,
        room: &mut [Entry],
    ) -> Result<(), D::Error> {
        let mut bytes = [0; NEIGHBOURS as usize * map::LEN];
        let mut sector = first;
        for some in room.chunks_mut(NEIGHBOURS as usize) {
            let bytes = bytes.get_mut(..some.len() * map::LEN).unwrap_or_default();
            let at = self.layout.entry(sector);
            device.read(bytes, at)?;
            for (entry, bytes) in some.iter_mut().zip(bytes.as_chunks().0) {
                *entry = Entry::decode(*bytes);
                if entry.block(sector) >= self.layout.blocks {
                    let what = "the map";
                    return Err(Error::Damaged { what, at });
                }
                sector += 1;
            }
        }
        Ok(())
    }

    fn lock(&self, sector: u32) -> &RwLock<()> {
        let number = sector / NEIGHBOURS;
        &self.locks[number as usize % LOCKS].0
    }

    fn shared(&self, sector: u32) -> RwLockReadGuard<'_, ()> {
        let lock = self.lock(sector).read();
        lock.unwrap_or_else(|e| e.into_inner())
    }

    fn alone(&self, sector: u32) -> RwLockWriteGuard<'_, ()> {
        let lock = self.lock(sector).write();
        lock.unwrap_or_else(|e| e.into_inner())
    }

    /// The locks of a range, in an order that all have.
    fn alone_all(&self, sectors: Range<u32>) -> Vec<RwLockWriteGuard<'_, ()>> {
        let groups = sectors.start / NEIGHBOURS..sectors.end.div_ceil(NEIGHBOURS);
        let mut numbers: Vec<_> = groups.map(|group| group as usize % LOCKS).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let each = numbers
            .into_iter()
            .map(|number| self.locks[number].0.write());
        each.map(|lock| lock.unwrap_or_else(|e| e.into_inner()))
            .collect()
    }

    /// Reads neighbours.
    pub fn read<D: Device>(&self, device: &D, room: &mut [u8], first: u32) -> Result<(), D::Error> {
        let size = self.layout.sector as usize;
        let mut entries = [Entry::default(); NEIGHBOURS as usize];
        let entries = &mut entries[..room.len() / size];
        let _kept = self.shared(first);
        self.entries(device, first, entries)?;
        if !self.lanes.is_empty() {
            return self.read_blocks(device, room, first, entries);
        }
        // Another process may write, and knows nothing of our lock: what was in a block counts if
        // the block is still the sector's.
        let mut again = entries.to_vec();
        for _ in 0..READS_MAX {
            let read = self.read_blocks(device, room, first, entries);
            self.entries(device, first, &mut again)?;
            if again == entries {
                return read;
            }
            entries.copy_from_slice(&again);
        }
        self.read_blocks(device, room, first, entries)
    }

    fn read_blocks<D: Device>(
        &self,
        device: &D,
        room: &mut [u8],
        first: u32,
        entries: &[Entry],
    ) -> Result<(), D::Error> {
        let size = self.layout.sector as usize;
        let mut rest = room;
        for run in runs(entries, first) {
            let (part, behind) = rest.split_at_mut(run.sectors.len() * size);
            rest = behind;
            match run.kind {
                Kind::Zeroes => part.fill(0),
                Kind::Error => {
                    let sector = self.first + u64::from(run.sectors.start);
                    return Err(Error::Unreadable { sector });
                }
                Kind::Bytes | Kind::First => {
                    device.read(part, self.layout.place(run.block))?;
                    self.verify(device, part, &run)?;
                }
            }
        }
        Ok(())
    }

    /// Whether blocks are what was written to them for these sectors.
    fn verify<D: Device>(&self, device: &D, bytes: &[u8], run: &Run) -> Result<(), D::Error> {
        let Some(at) = self.layout.sum(run.block) else {
            return Ok(());
        };
        let mut sums = [0; NEIGHBOURS as usize * SUM_LEN as usize];
        let sums = &mut sums[..run.sectors.len() * SUM_LEN as usize];
        device.read(sums, at)?;
        let blocks = bytes.chunks_exact(self.layout.sector as usize);
        for ((block, known), sector) in blocks.zip(sums.as_chunks().0).zip(run.sectors.clone()) {
            let wanted = match run.kind {
                // Nobody has written to the first block of a sector.
                Kind::First => [0; SUM_LEN as usize],
                _ => self.sum_of(block, sector),
            };
            if *known != wanted {
                let sector = self.first + u64::from(sector);
                return Err(Error::Changed { sector });
            }
        }
        Ok(())
    }

    /// The checksum of a block, and whose it is.
    fn sum_of(&self, bytes: &[u8], sector: u32) -> [u8; SUM_LEN as usize] {
        let sum = u64::from((self.sum)(bytes));
        (u64::from(sector + 1) << 32 | sum).to_le_bytes()
    }

    /// Whether these sectors have blocks of their own, as far as checksums tell: else the map is
    /// damaged, and a block that somebody else has would become free.
    pub fn owns<D: Device>(
        &self,
        device: &D,
        entries: &[Entry],
        first: u32,
    ) -> Result<(), D::Error> {
        for (entry, sector) in entries.iter().zip(first..) {
            let Some(at) = self.layout.sum(entry.block(sector)) else {
                return Ok(());
            };
            let mut sum = [0; SUM_LEN as usize];
            device.read(&mut sum, at)?;
            let owner = u64::from_le_bytes(sum) >> 32;
            let own = u64::from(sector) + 1;
            let right = match entry {
                _ if entry.is_initial() => owner == 0,
                _ if entry.is_zeroes() => owner == 0 || owner == own,
                _ => owner == own,
            };
            if !right {
                let (what, at) = ("the map", self.layout.entry(sector));
                return Err(Error::Damaged { what, at });
            }
        }
        Ok(())
    }

    /// Writes some neighbours, at least one: how many.
    pub fn write<D: Device>(&self, device: &D, bytes: &[u8], first: u32) -> Result<u32, D::Error> {
        let size = self.layout.sector as usize;
        let mut lanes = self.lanes.take(bytes.len() / size);
        if lanes.is_empty() {
            return Err(Error::Interrupted);
        }
        for ((taken, bytes), sector) in lanes.iter().zip(bytes.chunks_exact(size)).zip(first..) {
            device.write(bytes, self.layout.place(taken.lane.free))?;
            if let Some(at) = self.layout.sum(taken.lane.free) {
                device.write(&self.sum_of(bytes, sector), at)?;
            }
        }
        device.order()?;
        let mut old = [Entry::default(); NEIGHBOURS as usize];
        let old = &mut old[..lanes.len()];
        let _alone = self.alone(first);
        self.entries(device, first, old)?;
        self.owns(device, old, first)?;
        self.reserve_map(device, first, old)?;
        self.reserve_free(device, first, old)?;
        self.move_all(device, &mut lanes, first, old)?;
        Ok(lanes.len() as u32)
    }

    /// Neighbours go to the free blocks of the lanes, which hold their bytes. If that fails nothing
    /// is changed; the lanes are not used again if that cannot be said.
    fn move_all<D: Device>(
        &self,
        device: &D,
        lanes: &mut [Taken<'_>],
        first: u32,
        old: &[Entry],
    ) -> Result<(), D::Error> {
        let moved = self.try_move(device, lanes, first, old);
        match moved {
            Ok(()) => {
                for (sector, (taken, old)) in (first..).zip(lanes.iter_mut().zip(old)) {
                    taken.lane.advance(old.block(sector));
                }
            }
            Err(_) => self.take_back(device, lanes, first, old),
        }
        moved
    }

    fn try_move<D: Device>(
        &self,
        device: &D,
        lanes: &mut [Taken<'_>],
        first: u32,
        old: &[Entry],
    ) -> Result<(), D::Error> {
        let mut map = [0; NEIGHBOURS as usize * map::LEN];
        let map = &mut map[..lanes.len() * map::LEN];
        for (sector, (taken, old)) in (first..).zip(lanes.iter_mut().zip(old)) {
            self.log(device, taken, sector, old.block(sector))?;
        }
        for (entry, taken) in map.chunks_exact_mut(map::LEN).zip(lanes.iter()) {
            entry.copy_from_slice(&Entry::written(taken.lane.free).encode());
        }
        device.order()?;
        device.write(map, self.layout.entry(first))?;
        // Before a block is written that a sector had.
        Ok(device.order()?)
    }

    /// Says that a sector goes from block `old` to the free block of the lane.
    fn log<D: Device>(
        &self,
        device: &D,
        Taken { number, lane }: &mut Taken<'_>,
        sector: u32,
        old: u32,
    ) -> Result<(), D::Error> {
        let [one, two] = Move {
            sector,
            old,
            new: lane.free,
            sequence: lane.sequence,
        }
        .encode();
        let at = self.layout.log(*number) + self.slots.offset(lane.slot);
        // Alone it is a part of the older entry, which nobody reads any more.
        device.write(&one, at)?;
        lane.interrupted = true;
        Ok(device.write(&two, at + one.len() as u64)?)
    }

    /// The entries that were logged become ones that move nothing: only their first words are other
    /// ones, so they may stop being true one word at a time.
    fn take_back<D: Device>(&self, device: &D, lanes: &mut [Taken<'_>], first: u32, old: &[Entry]) {
        let mut now = vec![Entry::default(); old.len()];
        if self.entries(device, first, &mut now).is_err() || now != old {
            return;
        }
        for taken in lanes.iter_mut().filter(|taken| taken.lane.interrupted) {
            let (sector, free) = (taken.number as u32, taken.lane.free);
            let logged = self.log(device, taken, sector, free);
            if logged.is_ok() && device.order().is_ok() {
                taken.lane.advance(free);
            }
        }
    }

    /// Where no entry was set yet there may be a hole, and a change of the map must not fail for
    /// want of space.
    fn reserve_map<D: Device>(
        &self,
        device: &D,
        first: u32,
        entries: &[Entry],
    ) -> Result<(), D::Error> {
        if !entries.iter().any(|entry| entry.is_initial()) {
            return Ok(());
        }
        let at = self.layout.entry(first) / PAGE * PAGE;
        let end = self.layout.entry(first + entries.len() as u32);
        Ok(device.reserve(at, end.next_multiple_of(PAGE) - at)?)
    }

    /// The blocks that become free have their space: only a write to a sector without any needs
    /// some, and no write to another one fails for it.
    fn reserve_free<D: Device>(
        &self,
        device: &D,
        first: u32,
        entries: &[Entry],
    ) -> Result<(), D::Error> {
        let (mut rows, mut sums) = (Rows::default(), BTreeSet::new());
        for (entry, sector) in entries.iter().zip(first..) {
            if entry.is_initial() || entry.is_zeroes() {
                let block = entry.block(sector);
                rows.add(self.layout.place(block), self.layout.block);
                // Whole pages, so that their sums are reserved once.
                if let Some(at) = self.layout.sum(block) {
                    sums.insert(at / PAGE * PAGE);
                }
            }
        }
        sums.into_iter()
            .try_for_each(|at| device.reserve(at, PAGE))?;
        let reserve = |row: &Range<u64>| device.reserve(row.start, row.end - row.start);
        Ok(rows.0.iter().try_for_each(reserve)?)
    }

    /// Zeroes at most `ZEROED_MAX` sectors.
    pub fn zero<D: Device>(
        &self,
        device: &D,
        sectors: Range<u32>,
        space: Space,
    ) -> Result<(), D::Error> {
        let _alone = self.alone_all(sectors.clone());
        let mut entries = vec![Entry::default(); sectors.len()];
        self.entries(device, sectors.start, &mut entries)?;
        self.owns(device, &entries, sectors.start)?;
        self.reserve_map(device, sectors.start, &entries)?;
        let mut bytes = Vec::with_capacity(sectors.len() * map::LEN);
        for (entry, sector) in entries.iter_mut().zip(sectors.clone()) {
            *entry = Entry::zeroes(entry.block(sector));
            bytes.extend(entry.encode());
        }
        device.write(&bytes, self.layout.entry(sectors.start))?;
        device.order()?;
        let mut rows = Rows::default();
        for (entry, sector) in entries.iter().zip(sectors) {
            rows.add(self.layout.place(entry.block(sector)), self.layout.block);
        }
        rows.0
            .into_iter()
            .try_for_each(|row| spare(device, row, space))
    }

    /// How many of these sectors, from the first on, have entries that are a hole of the device.
    pub fn unset<D: Device>(&self, device: &D, sectors: Range<u32>) -> Result<u32, D::Error> {
        let entry = self.layout.entry(sectors.start);
        let data = device.next_data(entry)?;
        Ok(until(data, entry, map::LEN as u64, sectors.len()))
    }

    /// How many of these sectors, from the first on, were never written and take no space.
    pub fn untouched<D: Device>(&self, device: &D, sectors: Range<u32>) -> Result<u32, D::Error> {
        let (first, place) = (sectors.start, self.layout.place(sectors.start));
        let data = device.next_data(place)?;
        let holes = until(data, place, self.layout.block, sectors.len());
        if holes == 0 {
            return Ok(0);
        }
        match self.unset(device, sectors)? {
            0 => {
                let mut entries = vec![Entry::default(); holes.min(ZEROED_MAX) as usize];
                self.entries(device, first, &mut entries)?;
                Ok(entries
                    .iter()
                    .take_while(|entry| entry.is_initial())
                    .count() as u32)
            }
            unset => Ok(holes.min(unset)),
        }
    }

    /// Where those end that are like this sector, or some of them; and whether they are a hole.
    pub fn extent<D: Device>(&self, device: &D, sector: u32) -> Result<(u32, bool), D::Error> {
        let untouched = self.untouched(device, sector..self.layout.sectors)?;
        if untouched > 0 {
            return Ok((sector + untouched, true));
        }
        let count = ZEROED_MAX.min(self.layout.sectors - sector);
        let mut entries = vec![Entry::default(); count as usize];
        let _kept = self.shared(sector);
        self.entries(device, sector, &mut entries)?;
        let is_hole = |entry: &Entry| entry.is_zeroes();
        let hole = entries.first().is_some_and(is_hole);
        let alike = entries.iter().take_while(|entry| is_hole(entry) == hole);
        // What was never written, behind what was, may be a hole: it is asked for by itself.
        let alike = match hole {
            true => alike.count(),
            false => alike.take_while(|entry| !entry.is_initial()).count().max(1),
        };
        Ok((sector + alike as u32, hole))
    }
}

fn locks() -> Box<[Lock]> {
    (0..LOCKS).map(|_| Lock::default()).collect()
}

/// How many units lie between two places, at most `most`; all of them, if nothing is found.
fn until(found: Option<u64>, from: u64, unit: u64, most: usize) -> u32 {
    let count = found.map_or(u64::MAX, |at| at.saturating_sub(from) / unit);
    count.min(most as u64) as u32
}

/// Ranges of the device; what follows another is one with it.
#[derive(Default)]
struct Rows(Vec<Range<u64>>);

impl Rows {
    fn add(&mut self, at: u64, len: u64) {
        match self.0.last_mut() {
            Some(last) if last.end == at => last.end += len,
            _ => self.0.push(at..at + len),
        }
    }
}

/// Blocks that nothing is read from any more give their space back, or have it.
fn spare<D: Device>(device: &D, row: Range<u64>, space: Space) -> Result<(), D::Error> {
    // The rest of a page is of others.
    let whole = row.start.next_multiple_of(PAGE)..row.end / PAGE * PAGE;
    match space {
        Space::Kept => device.reserve(row.start, row.end - row.start)?,
        Space::Given if whole.start < whole.end => {
            device.punch(whole.start, whole.end - whole.start)?;
        }
        Space::Given => {}
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bytes,
    /// In the block of their number, to which nobody has written.
    First,
    Zeroes,
    Error,
}

/// Sectors that are read at once.
struct Run {
    sectors: Range<u32>,
    kind: Kind,
    block: u32,
}

fn runs(entries: &[Entry], first: u32) -> impl Iterator<Item = Run> {
    let one = |entry: &Entry, sector: u32| {
        let kind = match entry {
            _ if entry.is_zeroes() => Kind::Zeroes,
            _ if entry.is_error() => Kind::Error,
            _ if entry.is_initial() => Kind::First,
            _ => Kind::Bytes,
        };
        (kind, entry.block(sector))
    };
    let mut rest = entries;
    let mut sector = first;
    std::iter::from_fn(move || {
        let (kind, block) = one(rest.first()?, sector);
        let follows = |n: u32| match kind {
            Kind::Bytes | Kind::First => block.checked_add(n),
            _ => None,
        };
        let alike = rest.iter().zip(0..).take_while(|(entry, n)| {
            let (other, at) = one(entry, sector + n);
            other == kind && follows(*n).is_none_or(|wanted| wanted == at)
        });
        let count = alike.count();
        rest = rest.get(count..).unwrap_or_default();
        let start = sector;
        sector += count as u32;
        Some(Run {
            sectors: start..sector,
            kind,
            block,
        })
    })
}
