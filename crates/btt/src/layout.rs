//! Where everything is in an arena, and arenas in a device.
//!
//! Invariants: the parts of an arena do not overlap and are inside the device, whoever made it; the
//! arenas follow each other from the device's beginning.

use crate::error::{Error, Result};
use crate::flog;
use crate::info::{self, Info};
use crate::map;

const PAGE: u64 = 4096;
/// The kernel's driver takes nothing smaller.
const ARENA_MIN: u64 = 16 << 20;
pub const ARENA_MAX: u64 = 512 << 30;
const LANES: u32 = 256;
/// Numbers of blocks have so many values.
const NUMBERS: u64 = 1 << 30;
/// Lanes of tables that others made.
const LANES_MAX: u32 = 4096;

/// The most sectors of a table: what arenas of a thousand times 512 GiB have.
pub const BLOCKS_MAX: u64 = 1 << 40;

/// Where the parts of an arena are in the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a sector, and of the block that it is in.
    pub sector: u64,
    pub block: u64,
    pub sectors: u32,
    pub blocks: u32,
    pub lanes: u32,
    /// Where the arena begins, and how long it is.
    pub start: u64,
    pub len: u64,
    pub data: u64,
    /// The checksums of the blocks, if there are any.
    pub sums: Option<u64>,
    pub map: u64,
    pub flog: u64,
    pub copy: u64,
    /// Whether another arena follows.
    pub more: bool,
}

/// Bytes of a block's checksum, and of whose it is.
pub const SUM_LEN: u64 = 8;

/// Sectors of the largest arena.
fn sectors_max(sector: u64) -> u64 {
    let fixed = 2 * info::LEN as u64 + u64::from(LANES) * flog::LEN as u64 + 3 * PAGE;
    let fit = (ARENA_MAX - fixed) / (sector + map::LEN as u64 + SUM_LEN);
    fit.min(NUMBERS) - u64::from(LANES)
}

/// What a new table is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a sector: 512 or 4096.
    pub sector: u32,
    /// Whether there are checksums of blocks.
    pub sums: bool,
}

/// The arenas of a table of so many sectors, which begin at `start`.
pub fn plan(mut start: u64, mut sectors: u64, shape: Shape) -> Vec<Layout> {
    let mut arenas = Vec::new();
    while sectors > 0 {
        let some = sectors.min(sectors_max(shape.sector.into()));
        sectors -= some;
        let arena = arena(start, some as u32, shape, sectors > 0);
        start += arena.len;
        arenas.push(arena);
    }
    arenas
}

/// Bytes of the checksums of so many blocks.
fn sums_len(blocks: u32) -> u64 {
    (u64::from(blocks) * SUM_LEN).next_multiple_of(PAGE)
}

fn arena(start: u64, sectors: u32, Shape { sector, sums }: Shape, more: bool) -> Layout {
    let blocks = sectors + LANES;
    let data_len = (u64::from(blocks) * u64::from(sector)).next_multiple_of(PAGE);
    let map_len = (u64::from(sectors) * map::LEN as u64).next_multiple_of(PAGE);
    let flog_len = u64::from(LANES) * flog::LEN as u64;
    let sums_len = if sums { sums_len(blocks) } else { 0 };
    let needed = 2 * PAGE + data_len + sums_len + map_len + flog_len;
    // What it is longer for is a hole behind the blocks.
    let len = needed.max(ARENA_MIN);
    let copy = start + len - PAGE;
    let flog = copy - flog_len;
    Layout {
        sector: sector.into(),
        block: sector.into(),
        sectors,
        blocks,
        lanes: LANES,
        start,
        len,
        data: start + PAGE,
        sums: sums.then_some(flog - map_len - sums_len),
        map: flog - map_len,
        flog,
        copy,
        more,
    }
}

/// Bytes of the device for a table of so many sectors.
pub fn device_len(sectors: u64, shape: Shape) -> u64 {
    let arenas = plan(0, sectors, shape);
    arenas.last().map_or(0, |last| last.start + last.len)
}

impl Layout {
    pub fn info(&self, uuid: [u8; 16]) -> Info {
        let mut info = Info::new(uuid);
        info.sector = self.sector as u32;
        info.block = self.block as u32;
        (info.sectors, info.blocks, info.lanes) = (self.sectors, self.blocks, self.lanes);
        info.next = if self.more { self.len } else { 0 };
        info.data = self.data - self.start;
        info.map = self.map - self.start;
        info.flog = self.flog - self.start;
        info.copy = self.copy - self.start;
        info
    }

    /// What an info block at `start` of a device of `device` bytes says. `sums`: it has checksums
    /// before the map, of which info blocks know nothing.
    pub fn of<E>(info: &Info, start: u64, device: u64, sums: bool) -> Result<Layout, E> {
        let damaged = Error::Damaged {
            what: "the geometry in an info block",
            at: start,
        };
        let layout = Layout {
            sector: info.sector.into(),
            block: info.block.into(),
            sectors: info.sectors,
            blocks: info.blocks,
            lanes: info.lanes,
            start,
            len: match info.next {
                0 => info.copy.saturating_add(PAGE),
                next => next,
            },
            data: start.saturating_add(info.data),
            sums: sums.then(|| {
                let map = start.saturating_add(info.map);
                map.saturating_sub(sums_len(info.blocks))
            }),
            map: start.saturating_add(info.map),
            flog: start.saturating_add(info.flog),
            copy: start.saturating_add(info.copy),
            more: info.next != 0,
        };
        let fits = info.flags == 0 && layout.makes_sense(device);
        fits.then_some(layout).ok_or(damaged)
    }

    fn makes_sense(&self, device: u64) -> bool {
        let end = |at: u64, count: u32, len: u64| {
            let bytes = u64::from(count).checked_mul(len)?;
            at.checked_add(bytes)
        };
        let ends = || {
            let data = end(self.data, self.blocks, self.block)?;
            let map = end(self.map, self.sectors, map::LEN as u64)?;
            let flog = end(self.flog, self.lanes, flog::LEN as u64)?;
            let all = self.start.checked_add(self.len)?;
            let copy = self.copy.checked_add(PAGE)?;
            Some([data, map, flog, copy, all])
        };
        let Some([data, map, flog, copy, all]) = ends() else {
            return false;
        };
        let in_order = self.start < self.data
            && data <= self.sums.unwrap_or(self.map)
            && map <= self.flog
            && flog <= self.copy
            && copy <= all
            && all <= device;
        let aligned = [self.data, self.map, self.flog, self.copy];
        in_order
            && aligned.iter().all(|at| at.is_multiple_of(512))
            && matches!(self.sector, 512 | 4096)
            && self.block == self.sector
            && (1..=LANES_MAX).contains(&self.lanes)
            && u64::from(self.blocks) <= NUMBERS
            && self.sectors >= 1
            && self.sectors.checked_add(self.lanes) == Some(self.blocks)
    }

    /// Where a block is in the device.
    pub fn place(&self, block: u32) -> u64 {
        self.data + u64::from(block) * self.block
    }

    /// Where the map's entry for a sector is in the device.
    pub fn entry(&self, sector: u32) -> u64 {
        self.map + u64::from(sector) * map::LEN as u64
    }

    /// Where the checksum of a block is in the device, if there is one.
    pub fn sum(&self, block: u32) -> Option<u64> {
        self.sums.map(|at| at + u64::from(block) * SUM_LEN)
    }

    /// Where the log of a lane is in the device.
    pub fn log(&self, lane: usize) -> u64 {
        self.flog + (lane * flog::LEN) as u64
    }
}
