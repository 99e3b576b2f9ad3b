//! A disk with a volatile cache, and every image that a power cut may leave of it.
//!
//! The log has each write and each flush in the order in which the disk took them. A cut at
//! position `c` leaves all that was written before the last flush among the first `c` entries, and
//! of what was written between that flush and `c` any part: a subset of the writes, each of them
//! whole or torn between two sectors. Nothing from `c` on.

use crate::random::Random;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

pub const SECTOR: usize = 512;
const PAGE: usize = 4096;

/// An index into the log: the entries before it have reached the disk.
pub type Position = usize;

/// What the disk took.
pub enum Entry {
    Write { at: u64, bytes: Box<[u8]> },
    Flush,
}

/// Bytes that images share until one of them is written to.
#[derive(Clone)]
pub struct Image {
    pages: Vec<Option<Arc<[u8; PAGE]>>>,
}

impl Image {
    /// An image of zeroes.
    pub fn new(bytes: u64) -> Image {
        Image {
            pages: vec![None; bytes as usize / PAGE],
        }
    }

    pub fn bytes(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }

    /// Reads up to `len` bytes from `at`; fewer at the end.
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let end = (at + len as u64).min(self.bytes());
        let mut bytes = Vec::with_capacity(len);
        let mut at = at;
        while at < end {
            let (page, offset) = (at as usize / PAGE, at as usize % PAGE);
            let part = (PAGE - offset).min((end - at) as usize);
            match &self.pages[page] {
                Some(page) => bytes.extend(&page[offset..offset + part]),
                None => bytes.resize(bytes.len() + part, 0),
            }
            at += part as u64;
        }
        bytes
    }

    /// Writes what fits.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let mut at = at as usize;
        let mut rest = bytes;
        while let Some(slot) = self.pages.get_mut(at / PAGE)
            && !rest.is_empty()
        {
            let offset = at % PAGE;
            let (part, more) = rest.split_at((PAGE - offset).min(rest.len()));
            let page = slot.get_or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[offset..offset + part.len()].copy_from_slice(part);
            at += part.len();
            rest = more;
        }
    }
}

impl Image {
    /// Writes it as a sparse file.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.bytes())?;
        for (number, page) in self.pages.iter().enumerate() {
            if let Some(page) = page {
                file.write_all_at(&page[..], (number * PAGE) as u64)?;
            }
        }
        Ok(())
    }
}

/// A disk in use: what it holds, and how it came to that.
pub struct Disk {
    pub image: Image,
    base: Image,
    log: Option<Vec<Entry>>,
    /// Where it takes no writes now, in bytes.
    bad: Vec<Range<u64>>,
    refused: usize,
}

/// A write that the disk did not take.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused;

impl Disk {
    /// A disk that holds this; `logged`: remembers what comes.
    pub fn new(image: Image, logged: bool) -> Disk {
        Disk {
            base: image.clone(),
            image,
            log: logged.then(Vec::new),
            bad: Vec::new(),
            refused: 0,
        }
    }

    /// From now on refuses writes that touch one of these ranges.
    pub fn fail_at(&mut self, bad: Vec<Range<u64>>) {
        self.bad = bad;
        self.refused = 0;
    }

    /// Takes all writes again; says how many it refused.
    pub fn mend(&mut self) -> usize {
        self.bad.clear();
        self.refused
    }

    /// How many writes it refused since it began to.
    pub fn refused(&self) -> usize {
        self.refused
    }

    /// Takes all of a write, or nothing.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Refused> {
        let end = at + bytes.len() as u64;
        if self.bad.iter().any(|bad| bad.start < end && at < bad.end) {
            self.refused += 1;
            return Err(Refused);
        }
        self.image.write(at, bytes);
        if let Some(log) = &mut self.log {
            log.push(Entry::Write {
                at,
                bytes: bytes.into(),
            });
        }
        Ok(())
    }

    pub fn flush(&mut self) {
        if let Some(log) = &mut self.log {
            log.push(Entry::Flush);
        }
    }

    /// Where the log ends now.
    pub fn position(&self) -> Position {
        self.log.as_ref().map_or(0, Vec::len)
    }

    /// Ends the log and gives it away.
    pub fn take_log(&mut self) -> Log {
        Log {
            base: self.base.clone(),
            entries: self.log.take().unwrap_or_default(),
        }
    }
}

/// What a disk held at first and all that it took since.
pub struct Log {
    base: Image,
    pub entries: Vec<Entry>,
}

/// What a cut leaves of the writes that no flush covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    None,
    All,
    /// The first of them, in order.
    Prefix,
    /// Each with the same chance, which is itself random.
    Subset,
    /// As `Subset`, and each of them torn between sectors.
    Torn,
}

/// One power cut.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub at: Position,
    pub rest: Rest,
    /// Decides about what is left to chance.
    pub seed: u64,
}

impl Log {
    /// The index after the last flush before `at`.
    fn durable(&self, at: Position) -> usize {
        let flush = self.entries[..at]
            .iter()
            .rposition(|entry| matches!(entry, Entry::Flush));
        flush.map_or(0, |index| index + 1)
    }

    /// The positions right before and right after each flush from `from` on.
    pub fn flush_boundaries(&self, from: Position) -> Vec<Position> {
        let flushes =
            (from..self.entries.len()).filter(|&index| matches!(self.entries[index], Entry::Flush));
        flushes.flat_map(|index| [index, index + 1]).collect()
    }

    /// The image that the cut leaves.
    pub fn image(&self, cut: Cut) -> Image {
        let mut image = self.base.clone();
        let durable = self.durable(cut.at);
        for entry in &self.entries[..durable] {
            if let Entry::Write { at, bytes } = entry {
                image.write(*at, bytes);
            }
        }
        let mut random = Random(cut.seed);
        let mut chance = random.below(101);
        let rest = &self.entries[durable..cut.at];
        let prefix = random.below(rest.len() as u64 + 1) as usize;
        for (index, entry) in rest.iter().enumerate() {
            let Entry::Write { at, bytes } = entry else {
                continue;
            };
            match cut.rest {
                Rest::None => {}
                Rest::All => image.write(*at, bytes),
                Rest::Prefix if index < prefix => image.write(*at, bytes),
                Rest::Prefix => {}
                Rest::Subset if random.chance(chance) => image.write(*at, bytes),
                Rest::Subset => {}
                Rest::Torn => {
                    chance = chance.clamp(10, 90);
                    tear(&mut image, *at, bytes, &mut random, chance);
                }
            }
        }
        image
    }
}

/// Writes some of the sectors. The first page of the device is there as a whole or not at all: ext4
/// compares the checksum of its superblock before it replays its journal, so it does not mount
/// where that was torn, whatever lies on it.
fn tear(image: &mut Image, at: u64, bytes: &[u8], random: &mut Random, chance: u64) {
    let first_page = random.chance(chance);
    for (index, sector) in bytes.chunks(SECTOR).enumerate() {
        let chosen = random.chance(chance);
        let inside = at + ((index * SECTOR) as u64) < PAGE as u64;
        if if inside { first_page } else { chosen } {
            image.write(at + (index * SECTOR) as u64, sector);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged() -> Log {
        let mut disk = Disk::new(Image::new(1 << 20), true);
        let mut write = |at, bytes: &[u8]| disk.write(at, bytes).expect("a sound disk");
        write(8192, &[1; 1024]);
        disk.flush();
        let mut write = |at, bytes: &[u8]| disk.write(at, bytes).expect("a sound disk");
        write(8192, &[2; 1024]);
        write(12000, &[3; 512]);
        write(0, &[4; 4096]);
        disk.take_log()
    }

    #[test]
    fn a_bad_place_takes_nothing_until_it_is_mended() {
        let mut disk = Disk::new(Image::new(1 << 20), true);
        disk.fail_at(vec![4096..8192, 16384..20480]);
        assert_eq!(disk.write(0, &[1; 4096]), Ok(()));
        assert_eq!(disk.write(0, &[2; 4097]), Err(Refused));
        assert_eq!(disk.write(20479, &[2; 512]), Err(Refused));
        assert_eq!(disk.write(8192, &[1; 8192]), Ok(()));
        assert_eq!(disk.mend(), 2);
        assert_eq!(disk.write(4096, &[3; 4096]), Ok(()));
        assert_eq!(disk.image.read(0, 4096), [1; 4096]);
        assert_eq!(disk.position(), 3, "what was refused is not in the log");
    }

    fn cut(at: Position, rest: Rest, seed: u64) -> Cut {
        Cut { at, rest, seed }
    }

    #[test]
    fn what_was_flushed_is_there_and_what_came_later_may_be() {
        let log = logged();
        assert_eq!(log.flush_boundaries(0), [1, 2]);
        let none = log.image(cut(5, Rest::None, 0));
        assert_eq!(none.read(8192, 1024), [1; 1024]);
        assert_eq!(none.read(12000, 512), [0; 512]);
        let all = log.image(cut(5, Rest::All, 0));
        assert_eq!(all.read(8192, 1024), [2; 1024]);
        assert_eq!(all.read(12000, 512), [3; 512], "over a page boundary");
        let before = log.image(cut(1, Rest::None, 0));
        assert_eq!(before.read(8192, 1024), [0; 1024], "not flushed yet");
    }

    #[test]
    fn later_writes_are_left_in_every_combination() {
        let log = logged();
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..400 {
            let image = log.image(cut(5, Rest::Torn, seed));
            let at = |at| image.read(at, 1)[0];
            assert_eq!(at(0), at(4095), "the first page is not torn");
            seen.insert((at(8192), at(8704), at(12000)));
        }
        assert_eq!(seen.len(), 8);
        for seed in 0..400 {
            let image = log.image(cut(5, Rest::Prefix, seed));
            assert!(image.read(8192, 1)[0] == 2 || image.read(12000, 1)[0] == 0);
        }
    }
}
