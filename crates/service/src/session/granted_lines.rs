//! Lines of the file of grants, wherever it is: 16 bytes each, one after the other.
//!
//! Invariants: what was added is in the file, also if this process dies; a line is there as a whole
//! or not at all: its length, without which it is none, is stored last. Behind the last line there
//! is nothing, or lines of zeroes.

use crate::base::error::{Error, Result};
use crate::base::files;
use holdfast_pmem::{Access, Medium, Region, huge_page};
use holdfast_pool::space::Run;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of a line.
pub const LINE: usize = 16;

/// An open file of them.
pub enum Lines {
    /// Which write(2) adds to; it was opened for that.
    Written(File),
    /// Of hugetlbfs, which has no write(2) and whole pages alone.
    Mapped(Pages),
}

/// A mapping of the whole file, and where its lines end.
pub struct Pages {
    file: OwnedFd,
    page: u64,
    region: Region,
    end: u64,
}

impl Lines {
    /// Those of an open file, to be added to.
    pub fn of(file: OwnedFd) -> Result<Lines> {
        let Some(page) = huge_page(file.as_fd()) else {
            return Ok(Lines::Written(File::from(file)));
        };
        let stat = rustix::fs::fstat(&file).map_err(Error::os("the file of grants"))?;
        let len = (stat.st_size as u64).next_multiple_of(page).max(page);
        let region = map(&file, len)?;
        let mut end = 0;
        while end < len && region.load_u64(end + 8)? != 0 {
            end += LINE as u64;
        }
        Ok(Lines::Mapped(Pages {
            file,
            page,
            region,
            end,
        }))
    }

    /// Takes all of them out.
    pub fn clear(&mut self) -> Result<()> {
        match self {
            Lines::Written(file) => file.set_len(0).map_err(Error::io("the file of grants")),
            Lines::Mapped(pages) => {
                pages.region.zero_nt(0, pages.end as usize)?;
                pages.region.fence();
                pages.end = 0;
                Ok(())
            }
        }
    }

    /// Adds all of these, or says why some are missing.
    pub fn add(&mut self, extents: impl Iterator<Item = Run>) -> Result<()> {
        match self {
            Lines::Written(file) => {
                let lines: Vec<u8> = extents.flat_map(line).collect();
                file.write_all(&lines)
                    .map_err(Error::io("the file of grants"))
            }
            Lines::Mapped(pages) => extents.into_iter().try_for_each(|extent| pages.add(extent)),
        }
    }
}

impl Pages {
    fn add(&mut self, extent: Run) -> Result<()> {
        let len = self.region.len() as u64;
        if self.end >= len {
            self.region = map(&self.file, len + self.page)?;
        }
        self.region.store_u64(self.end, extent.start)?;
        self.region.store_u64(self.end + 8, extent.len)?;
        self.end += LINE as u64;
        Ok(())
    }
}

/// Maps a file of this length from now on, all of which has memory.
fn map(file: &OwnedFd, len: u64) -> Result<Region> {
    let os = |e| Error::os("the file of grants")(e);
    rustix::fs::ftruncate(file, len).map_err(os)?;
    files::set_aside(file, 0, len).map_err(os)?;
    files::map(file, len, Access::ReadWrite, Medium::Memory)
}

fn line(extent: Run) -> [u8; LINE] {
    let mut line = [0; LINE];
    line[..8].copy_from_slice(&extent.start.to_le_bytes());
    line[8..].copy_from_slice(&extent.len.to_le_bytes());
    line
}

/// What the lines of a file say, as far as it can be read.
pub fn read(file: OwnedFd) -> Vec<Run> {
    let mut bytes = Vec::new();
    let _ = File::from(file).read_to_end(&mut bytes);
    let runs = bytes.chunks_exact(LINE).filter_map(|line| {
        let block = u64::from_le_bytes(*line.first_chunk()?);
        let len = u64::from_le_bytes(*line.last_chunk()?);
        Some(Run::new(block, len.min(1 << 20)))
    });
    runs.filter(|run| run.len > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    fn memfd(flags: MemfdFlags) -> rustix::io::Result<OwnedFd> {
        rustix::fs::memfd_create("grants", flags | MemfdFlags::CLOEXEC)
    }

    fn many(count: u64) -> impl Iterator<Item = Run> {
        (0..count).map(|n| Run::new(n * 10, n % 9 + 1))
    }

    fn again(file: &OwnedFd) -> OwnedFd {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        OwnedFd::from(File::options().read(true).write(true).open(path).unwrap())
    }

    #[test]
    fn what_was_added_is_read_again() {
        let file = memfd(MemfdFlags::empty()).unwrap();
        let mut lines = Lines::of(file.try_clone().unwrap()).unwrap();
        lines.add(many(1000)).unwrap();
        assert!(read(again(&file)).into_iter().eq(many(1000)));
        lines.clear().unwrap();
        lines.add(many(3)).unwrap();
        assert!(read(again(&file)).into_iter().eq(many(3)));
    }

    /// Where the machine has huge pages.
    #[test]
    fn files_of_huge_pages_grow_and_are_added_to_later() {
        let Ok(file) = memfd(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB) else {
            return;
        };
        let Ok(mut lines) = Lines::of(file.try_clone().unwrap()) else {
            return;
        };
        let in_page = (2 << 20) / LINE as u64;
        lines.add(many(in_page - 1)).unwrap();
        assert!(read(again(&file)).into_iter().eq(many(in_page - 1)));
        // As the next service does.
        let mut lines = Lines::of(file.try_clone().unwrap()).unwrap();
        if lines.add(many(3)).is_ok() {
            let all = many(in_page - 1).chain(many(3));
            assert!(read(again(&file)).into_iter().eq(all));
            lines.clear().unwrap();
            lines.add(many(5)).unwrap();
            assert!(read(again(&file)).into_iter().eq(many(5)));
        }
    }
}
