//! A block translation table as somebody else left it: info blocks, logs, maps.
//!
//! What must hold: whatever is there, opening, reading, writing and checking end with values or
//! errors, inside the device; and a table that the check calls whole is whole after it was used,
//! and has what was written to it.

use crate::input::Input;
use holdfast_btt::{Device, Shape, Space, Sum, Table, device_len};
use holdfast_pool::checksum::crc32c;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const SECTORS: u64 = 100;
const SECTOR: usize = 512;
const PAGE: u64 = 4096;
/// Changes and requests that one input makes at most.
const PATCHES_MAX: usize = 48;
const REQUESTS_MAX: usize = 24;
/// The logs and the map are in so many pages before the copy of the info block.
const TABLE_PAGES: u64 = 6;

/// Pages by number; those that are missing are holes.
type Pages = BTreeMap<u64, [u8; PAGE as usize]>;

#[derive(Clone)]
struct Memory {
    size: u64,
    pages: Rc<RefCell<Pages>>,
}

impl Memory {
    fn each(&self, at: u64, len: usize, mut f: impl FnMut(&mut Pages, u64, usize, usize, usize)) {
        assert!(
            at.checked_add(len as u64)
                .is_some_and(|end| end <= self.size)
        );
        let mut done = 0;
        while done < len {
            let here = at + done as u64;
            let skip = (here % PAGE) as usize;
            let n = (len - done).min(PAGE as usize - skip);
            f(&mut self.pages.borrow_mut(), here / PAGE, skip, done, n);
            done += n;
        }
    }
}

impl Device for Memory {
    type Error = ();

    fn size(&self) -> Result<u64, ()> {
        Ok(self.size)
    }

    fn read(&self, room: &mut [u8], at: u64) -> Result<(), ()> {
        let len = room.len();
        self.each(at, len, |pages, page, skip, done, n| {
            match pages.get(&page) {
                Some(page) => room[done..done + n].copy_from_slice(&page[skip..skip + n]),
                None => room[done..done + n].fill(0),
            }
        });
        Ok(())
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<(), ()> {
        self.each(at, bytes.len(), |pages, page, skip, done, n| {
            let page = pages.entry(page).or_insert([0; PAGE as usize]);
            page[skip..skip + n].copy_from_slice(&bytes[done..done + n]);
        });
        Ok(())
    }

    fn order(&self) -> Result<(), ()> {
        Ok(())
    }

    fn reserve(&self, at: u64, len: u64) -> Result<(), ()> {
        self.each(at, len as usize, |pages, page, _, _, _| {
            pages.entry(page).or_insert([0; PAGE as usize]);
        });
        Ok(())
    }

    fn punch(&self, at: u64, len: u64) -> Result<(), ()> {
        assert!(at % PAGE == 0 && len % PAGE == 0);
        self.each(at, len as usize, |pages, page, _, _, _| {
            pages.remove(&page);
        });
        Ok(())
    }

    fn next_data(&self, at: u64) -> Result<Option<u64>, ()> {
        let pages = self.pages.borrow();
        let next = pages.range(at / PAGE..).next();
        Ok(next.map(|(page, _)| at.max(page * PAGE)))
    }
}

/// Changes a table, and uses it.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let shape = Shape {
        sector: SECTOR as u32,
        sums: input.u8() % 2 == 0,
    };
    let memory = Memory {
        size: device_len(SECTORS, shape),
        pages: Rc::default(),
    };
    let formatted = Table::format(&memory, SECTORS, shape, [7; 16]);
    assert!(formatted.is_ok());
    patch(&memory, &mut input);
    let sum: Option<Sum> = shape.sums.then_some(|bytes| crc32c(bytes));
    if let Ok(reader) = Table::to_read(memory.clone(), sum) {
        let mut room = vec![0; reader.size().min(1 << 16) as usize];
        let _ = reader.read(&mut room, 0);
        let _ = (reader.extent(0), reader.check());
    }
    if let Ok(table) = Table::to_write(memory.clone(), sum) {
        let whole = table.check().is_ok_and(|found| found.changed.is_empty());
        use_it(&table, &mut input, whole);
    }
}

/// Changes numbers of info blocks, with the right sum, and words of logs and of the map.
fn patch(memory: &Memory, input: &mut Input<'_>) {
    for _ in 0..input.below(PATCHES_MAX) {
        let last = memory.size - PAGE;
        match input.u8() % 4 {
            how @ 0..2 => {
                let at = if how == 0 { 0 } else { last };
                let field = 32 + 4 * input.below(32) as u64;
                let _ = memory.write(&(input.number() as u32).to_le_bytes(), at + field);
                seal(memory, at);
            }
            2 => {
                let word = input.below(TABLE_PAGES as usize * PAGE as usize / 4) as u64;
                let at = last - TABLE_PAGES * PAGE + word * 4;
                let _ = memory.write(&input.u32().to_le_bytes(), at);
            }
            _ => {
                let at = input.u64() % (memory.size - 8);
                let _ = memory.write(&input.u64().to_le_bytes(), at);
            }
        }
    }
}

/// Fletcher's sum of the info block at `at`.
fn seal(memory: &Memory, at: u64) {
    let mut block = [0; PAGE as usize];
    let _ = memory.read(&mut block, at);
    block[4088..].fill(0);
    let (mut low, mut high) = (0_u32, 0_u64);
    for word in block.chunks_exact(4) {
        low = low.wrapping_add(u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        high = high.wrapping_add(low.into());
    }
    let _ = memory.write(&(high << 32 | u64::from(low)).to_le_bytes(), at + 4088);
}

fn use_it(table: &Table<Memory>, input: &mut Input<'_>, whole: bool) {
    let size = table.sector() as usize;
    let sectors = table.size() / size as u64;
    let mut written = BTreeMap::new();
    for _ in 0..REQUESTS_MAX {
        if input.is_empty() || sectors == 0 {
            break;
        }
        let first = input.u16() as u64 % sectors;
        let count = (1 + input.below(80) as u64).min(sectors - first);
        let (at, value) = (first * size as u64, input.u8());
        let done = match value % 3 {
            0 => table.zero(at, count * size as u64, Space::Given),
            1 => table.zero(at, count * size as u64, Space::Kept),
            _ => table.write(&vec![value; count as usize * size], at),
        };
        assert!(done.is_ok() || !whole, "{done:?}");
        if done.is_ok() {
            let value = if value % 3 < 2 { 0 } else { value };
            written.extend((first..first + count).map(|sector| (sector, value)));
        }
    }
    if !whole {
        return;
    }
    let mut room = vec![0; size];
    for (sector, value) in written {
        assert!(table.read(&mut room, sector * size as u64).is_ok());
        assert!(room.iter().all(|byte| *byte == value), "sector {sector}");
    }
    assert!(table.check().is_ok_and(|found| found.changed.is_empty()));
}
