//! A table: the arenas of a device, one behind the other.
//!
//! Invariant: one table at a time is open for writing on a device; its owner sees to that.

use crate::arena::{Arena, NEIGHBOURS, ZEROED_MAX};
use crate::check::Checked;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::info::{self, Info};
use crate::layout::{ARENA_MAX, Layout, Shape, device_len, plan};
use std::ops::Range;

pub use crate::arena::{Space, Sum};

/// A row of sectors that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it ends, in bytes.
    pub end: u64,
    /// Whether it reads as zeroes, and was written by nobody since.
    pub hole: bool,
}

/// A table on a device. Its offsets and lengths are in bytes, and of whole sectors inside it:
/// that is for the caller to see to.
pub struct Table<D> {
    device: D,
    arenas: Vec<Arena>,
    /// The first sector of each arena, and of one behind the last.
    firsts: Vec<u64>,
    shape: Shape,
}

/// A part of a request, inside one arena.
struct Part<'a> {
    arena: &'a Arena,
    /// In the arena.
    sectors: Range<u32>,
}

impl<D: Device> Table<D> {
    /// Makes a table of so many sectors on a device of zeroes that has `device_len` bytes; `uuid`
    /// is its name.
    pub fn format(device: &D, sectors: u64, shape: Shape, uuid: [u8; 16]) -> Result<(), D::Error> {
        format_arenas(device, &plan(0, sectors, shape), uuid)
    }

    /// The table of a device, to read it only. Others may write to it. `sum`: how the checksums are
    /// made that it has.
    pub fn to_read(device: D, sum: Option<Sum>) -> Result<Table<D>, D::Error> {
        let open = |layout, first| Ok(Arena::to_read(layout, first, sum.unwrap_or(no_sum)));
        let arenas = layouts(&device, false, sum.is_some())?;
        let arenas = opened(arenas, open)?;
        Ok(Table::of(device, arenas))
    }

    /// The table of a device. What a writer left half done is completed.
    pub fn to_write(device: D, sum: Option<Sum>) -> Result<Table<D>, D::Error> {
        let sums = sum.is_some();
        let open = |layout, first| Arena::to_write(&device, layout, first, sum.unwrap_or(no_sum));
        let arenas = opened(layouts(&device, true, sums)?, open)?;
        Ok(Table::of(device, arenas))
    }

    fn of(device: D, arenas: Vec<Arena>) -> Table<D> {
        let mut firsts = vec![0];
        for arena in &arenas {
            let first = firsts.last().copied().unwrap_or_default();
            firsts.push(first + u64::from(arena.layout.sectors));
        }
        let layout = arenas.first().map(|arena| &arena.layout);
        Table {
            device,
            shape: Shape {
                sector: layout.map_or(512, |layout| layout.sector as u32),
                sums: layout.is_some_and(|layout| layout.sums.is_some()),
            },
            arenas,
            firsts,
        }
    }

    /// What it lies on.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// What it lay on.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Bytes of a sector.
    pub fn sector(&self) -> u64 {
        self.shape.sector.into()
    }

    /// Bytes of all sectors.
    pub fn size(&self) -> u64 {
        self.firsts.last().copied().unwrap_or_default() * self.sector()
    }

    #[cfg(test)]
    pub(crate) fn lane_free(&self, number: usize) -> u32 {
        self.arenas[0].lanes.free_of(number)
    }

    #[cfg(test)]
    pub(crate) fn arenas(&self) -> usize {
        self.arenas.len()
    }

    /// The part of a range of sectors that one arena has from its beginning on.
    fn part(&self, sectors: &Range<u64>) -> Option<Part<'_>> {
        let after = self.firsts.partition_point(|first| *first <= sectors.start);
        let number = after.checked_sub(1)?;
        let (arena, first) = (self.arenas.get(number)?, self.firsts.get(number)?);
        let start = sectors.start - first;
        let end = (sectors.end - first).min(arena.layout.sectors.into());
        let sectors = start as u32..end as u32;
        (!sectors.is_empty()).then_some(Part { arena, sectors })
    }

    fn sectors(&self, offset: u64, len: usize) -> Range<u64> {
        let first = offset / self.sector();
        first..first + len as u64 / self.sector()
    }

    /// Fills `room` from `offset`. A sector is as one write left it.
    pub fn read(&self, mut room: &mut [u8], offset: u64) -> Result<(), D::Error> {
        let mut all = self.sectors(offset, room.len());
        while let Some(Part { arena, sectors }) = self.part(&all) {
            let sectors = neighbours(sectors);
            let (part, behind) = room.split_at_mut(sectors.len() * self.sector() as usize);
            arena.read(&self.device, part, sectors.start)?;
            room = behind;
            all.start += sectors.len() as u64;
        }
        Ok(())
    }

    /// Writes `bytes` at `offset`, each sector as a whole or not at all; durable when it returns.
    pub fn write(&self, mut bytes: &[u8], offset: u64) -> Result<(), D::Error> {
        let mut all = self.sectors(offset, bytes.len());
        while let Some(Part { arena, sectors }) = self.part(&all) {
            let sectors = neighbours(sectors);
            let (part, _) = bytes.split_at(sectors.len() * self.sector() as usize);
            let done = arena.write(&self.device, part, sectors.start)?;
            bytes = bytes.split_at(done as usize * self.sector() as usize).1;
            all.start += u64::from(done);
        }
        Ok(())
    }

    /// Zeroes a range.
    pub fn zero(&self, offset: u64, len: u64, space: Space) -> Result<(), D::Error> {
        let mut all = offset / self.sector()..(offset + len) / self.sector();
        while let Some(Part { arena, sectors }) = self.part(&all) {
            let holes = match space {
                Space::Given => arena.untouched(&self.device, sectors.clone())?,
                Space::Kept => 0,
            };
            if holes > 0 {
                all.start += u64::from(holes);
                continue;
            }
            let end = sectors.end.min(sectors.start + ZEROED_MAX);
            let some = sectors.start..end;
            all.start += some.len() as u64;
            arena.zero(&self.device, some, space)?;
        }
        Ok(())
    }

    /// What is at `offset`.
    pub fn extent(&self, offset: u64) -> Result<Extent, D::Error> {
        let all = offset / self.sector()..u64::MAX;
        let Some(Part { arena, sectors }) = self.part(&all) else {
            let end = self.size();
            return Ok(Extent { end, hole: true });
        };
        let (end, hole) = arena.extent(&self.device, sectors.start)?;
        let end = all.start + u64::from(end - sectors.start);
        Ok(Extent {
            end: end * self.sector(),
            hole,
        })
    }

    /// Where the sector at `offset` is in the device.
    pub fn place(&self, offset: u64) -> Result<Option<u64>, D::Error> {
        let all = self.sectors(offset, self.sector() as usize);
        let Some(Part { arena, sectors }) = self.part(&all) else {
            return Ok(None);
        };
        let mut entry = [Default::default()];
        arena.entries(&self.device, sectors.start, &mut entry)?;
        Ok(Some(arena.layout.place(entry[0].block(sectors.start))))
    }

    /// Bytes that the device needs for so many sectors more.
    pub fn device_len_with(&self, more: u64) -> u64 {
        self.end() + device_len(more, self.shape)
    }

    fn end(&self) -> u64 {
        let last = self.arenas.last();
        last.map_or(0, |arena| arena.layout.start + arena.layout.len)
    }

    /// Adds sectors to the table, whose device has `device_len_with` bytes, zeroes behind the
    /// table. They are there when it is opened again.
    pub fn grow(&self, more: u64, uuid: [u8; 16]) -> Result<(), D::Error> {
        let device = &self.device;
        let Some(mut last) = layouts(device, true, self.shape.sums)?.pop() else {
            return Ok(());
        };
        let arenas = plan(last.start + last.len, more, self.shape);
        format_arenas(device, &arenas, uuid)?;
        last.more = true;
        let mut info = info_at(device, last.start)?.ok_or(no_table(last.start))?;
        info.next = last.len;
        write_info(device, &last, &info)
    }

    /// Looks at all of the map and the logs, while nobody writes.
    pub fn check(&self) -> Result<Checked, D::Error> {
        let mut found = Checked::default();
        for arena in &self.arenas {
            arena.check(&self.device, &mut found)?;
        }
        Ok(found)
    }
}

/// Of a table without checksums.
fn no_sum(_: &[u8]) -> u32 {
    0
}

/// Each arena, with the number of its first sector.
fn opened<E>(
    layouts: Vec<Layout>,
    open: impl Fn(Layout, u64) -> Result<Arena, E>,
) -> Result<Vec<Arena>, E> {
    let mut first = 0;
    let each = layouts.into_iter().map(|layout| {
        let sectors = u64::from(layout.sectors);
        let arena = open(layout, first);
        first += sectors;
        arena
    });
    each.collect()
}

/// Those at the beginning that have a lock together.
fn neighbours(sectors: Range<u32>) -> Range<u32> {
    let end = (sectors.start / NEIGHBOURS + 1) * NEIGHBOURS;
    sectors.start..sectors.end.min(end)
}

fn no_table<E>(at: u64) -> Error<E> {
    Error::Damaged {
        what: "the info block",
        at,
    }
}

fn format_arenas<D: Device>(device: &D, arenas: &[Layout], uuid: [u8; 16]) -> Result<(), D::Error> {
    for layout in arenas {
        Arena::format_log(device, layout)?;
        write_info(device, layout, &layout.info(uuid))?;
    }
    Ok(())
}

/// First the copy, so that one of both is whole.
fn write_info<D: Device>(device: &D, layout: &Layout, info: &Info) -> Result<(), D::Error> {
    let bytes = info.encode();
    device.write(&bytes, layout.copy)?;
    device.order()?;
    device.write(&bytes, layout.start)?;
    Ok(device.order()?)
}

fn info_at<D: Device>(device: &D, at: u64) -> Result<Option<Info>, D::Error> {
    let mut bytes = [0; info::LEN];
    device.read(&mut bytes, at)?;
    Ok(Info::decode(&bytes))
}

/// The arenas of a device. An info block that is damaged is put right from its copy, if `mend`.
fn layouts<D: Device>(device: &D, mend: bool, sums: bool) -> Result<Vec<Layout>, D::Error> {
    let size = device.size()?;
    let mut found: Vec<Layout> = Vec::new();
    let mut start = 0;
    loop {
        if size.saturating_sub(start) < info::LEN as u64 {
            return Err(no_table(start));
        }
        let mut bytes = [0; info::LEN];
        device.read(&mut bytes, start)?;
        let layout = match Info::decode(&bytes) {
            Some(info) => {
                let layout = Layout::of(&info, start, size, sums)?;
                if mend && info_at(device, layout.copy)? != Some(info) {
                    device.write(&bytes, layout.copy)?;
                    device.order()?;
                }
                layout
            }
            None => from_copy(device, start..size, &bytes, (mend, sums))?,
        };
        if found
            .first()
            .is_some_and(|first| first.sector != layout.sector)
        {
            return Err(no_table(start));
        }
        let (next, more) = (layout.start + layout.len, layout.more);
        found.push(layout);
        if !more {
            return Ok(found);
        }
        start = next;
    }
}

/// The copy is at the end of the arena: where the damaged info block says, at the end of the
/// device, or as far on as arenas are long.
fn from_copy<D: Device>(
    device: &D,
    Range { start, end: size }: Range<u64>,
    damaged: &[u8; info::LEN],
    (mend, sums): (bool, bool),
) -> Result<Layout, D::Error> {
    let len = info::LEN as u64;
    let ends = [size, start.saturating_add(ARENA_MAX)].map(|end| end.saturating_sub(len));
    let said = Info::read(damaged).map(|info| start.saturating_add(info.copy));
    for at in said.into_iter().chain(ends) {
        if at <= start || at > size - len {
            continue;
        }
        let Some(info) = info_at(device, at)?.filter(|info| info.copy == at - start) else {
            continue;
        };
        let layout = Layout::of(&info, start, size, sums)?;
        if mend {
            write_info(device, &layout, &info)?;
        }
        return Ok(layout);
    }
    Err(no_table(start))
}
