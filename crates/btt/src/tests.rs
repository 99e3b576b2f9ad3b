//! Tables on a device in memory that remembers what it was told, so that every state is looked at
//! that a loss of power may leave.

use crate::info::{self, Info};
use crate::{Device, Error, Shape, Space, Sum, Table, device_len};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

const UUID: [u8; 16] = *b"a table of tests";
const SECTORS: u64 = 200;
const PAGE: u64 = 4096;

/// No sum that anybody should use.
const SUM: Option<Sum> = Some(|bytes| {
    let add = |sum: u32, byte: &u8| sum.rotate_left(5).wrapping_add(u32::from(*byte) + 1);
    bytes.iter().fold(7, add)
});

fn shape(sector: u32) -> Shape {
    let sums = true;
    Shape { sector, sums }
}

/// What was done to a device.
#[derive(Clone, Debug)]
enum Event {
    /// One aligned word, or a part of one.
    Word(u64, Vec<u8>),
    /// A page became a hole.
    Punch(u64),
    Order,
}

/// Pages by number; those that are missing are holes.
type Pages = BTreeMap<u64, Arc<[u8; PAGE as usize]>>;

#[derive(Default)]
struct Inside {
    pages: Pages,
    log: Vec<Event>,
    recording: bool,
    /// So many changes more can be made.
    budget: Option<u32>,
    /// No page more can be had.
    full: bool,
    /// A snapshot has these, so that a write to one needs a page.
    shared: BTreeSet<u64>,
}

struct Memory {
    size: u64,
    inside: Mutex<Inside>,
}

fn no_page() -> Arc<[u8; PAGE as usize]> {
    Arc::new([0; PAGE as usize])
}

/// Within one page.
fn store(pages: &mut Pages, at: u64, bytes: &[u8]) {
    let page = pages.entry(at / PAGE).or_insert_with(no_page);
    Arc::make_mut(page)[(at % PAGE) as usize..][..bytes.len()].copy_from_slice(bytes);
}

fn apply(pages: &mut Pages, event: &Event) {
    match event {
        Event::Word(at, bytes) => store(pages, *at, bytes),
        Event::Punch(page) => drop(pages.remove(page)),
        Event::Order => {}
    }
}

impl Memory {
    fn new(size: u64) -> Memory {
        Memory {
            size,
            inside: Mutex::default(),
        }
    }

    fn of(size: u64, pages: Pages) -> Memory {
        let memory = Memory::new(size);
        memory.inside.lock().unwrap().pages = pages;
        memory
    }

    fn formatted(sectors: u64, sector: u32) -> Memory {
        let memory = Memory::new(device_len(sectors, shape(sector)));
        Table::format(&&memory, sectors, shape(sector), UUID).unwrap();
        memory
    }

    fn pages(&self) -> Pages {
        self.inside.lock().unwrap().pages.clone()
    }

    fn fail_after(&self, changes: u32) {
        self.inside.lock().unwrap().budget = Some(changes);
    }

    fn record(&self) {
        let mut inside = self.inside.lock().unwrap();
        inside.recording = true;
        inside.log.clear();
    }

    fn log(&self) -> Vec<Event> {
        self.inside.lock().unwrap().log.clone()
    }
}

impl Inside {
    fn change(&mut self, event: Event) -> Result<(), &'static str> {
        if let Some(left) = &mut self.budget {
            *left = left.checked_sub(1).ok_or("no space")?;
        }
        apply(&mut self.pages, &event);
        if self.recording {
            self.log.push(event);
        }
        Ok(())
    }
}

impl Device for &Memory {
    type Error = &'static str;

    fn size(&self) -> Result<u64, Self::Error> {
        Ok(self.size)
    }

    fn read(&self, room: &mut [u8], at: u64) -> Result<(), Self::Error> {
        assert!(at + room.len() as u64 <= self.size);
        let inside = self.inside.lock().unwrap();
        let (mut at, mut rest) = (at, room);
        while !rest.is_empty() {
            let skip = (at % PAGE) as usize;
            let (part, behind) = rest.split_at_mut(rest.len().min(PAGE as usize - skip));
            match inside.pages.get(&(at / PAGE)) {
                Some(page) => part.copy_from_slice(&page[skip..][..part.len()]),
                None => part.fill(0),
            }
            at += part.len() as u64;
            rest = behind;
        }
        Ok(())
    }

    fn write(&self, mut bytes: &[u8], mut at: u64) -> Result<(), Self::Error> {
        assert!(at + bytes.len() as u64 <= self.size);
        let mut inside = self.inside.lock().unwrap();
        for page in at / PAGE..(at + bytes.len() as u64).div_ceil(PAGE) {
            let needs = inside.shared.contains(&page) || !inside.pages.contains_key(&page);
            if inside.full && needs {
                return Err("no space");
            }
            inside.shared.remove(&page);
        }
        while !bytes.is_empty() {
            let (word, behind) = bytes.split_at(bytes.len().min(8 - at as usize % 8));
            inside.change(Event::Word(at, word.to_vec()))?;
            at += word.len() as u64;
            bytes = behind;
        }
        Ok(())
    }

    fn order(&self) -> Result<(), Self::Error> {
        self.inside.lock().unwrap().change(Event::Order)
    }

    fn reserve(&self, at: u64, len: u64) -> Result<(), Self::Error> {
        let mut inside = self.inside.lock().unwrap();
        for page in at / PAGE..(at + len).div_ceil(PAGE) {
            if inside.full && !inside.pages.contains_key(&page) {
                return Err("no space");
            }
            inside.pages.entry(page).or_insert_with(no_page);
        }
        Ok(())
    }

    fn punch(&self, at: u64, len: u64) -> Result<(), Self::Error> {
        assert!(at % PAGE == 0 && len % PAGE == 0);
        let mut inside = self.inside.lock().unwrap();
        (at / PAGE..(at + len) / PAGE).try_for_each(|page| inside.change(Event::Punch(page)))
    }

    fn next_data(&self, at: u64) -> Result<Option<u64>, Self::Error> {
        let inside = self.inside.lock().unwrap();
        let next = inside.pages.range(at / PAGE..).next();
        Ok(next.map(|(page, _)| at.max(page * PAGE)))
    }
}

struct Rng(u64);

impl Rng {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

fn filled(sector: u32, value: u8) -> Vec<u8> {
    vec![value; sector as usize]
}

fn whole<D: Device<Error = &'static str>>(table: &Table<D>) -> Vec<u8> {
    let mut bytes = vec![0xee; table.size() as usize];
    table.read(&mut bytes, 0).unwrap();
    bytes
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64, u8),
    Zero(u64, u64, Space),
}

fn step(rng: &mut Rng) -> Step {
    let first = rng.roll(SECTORS);
    let most = if rng.roll(3) == 0 { 150 } else { 4 };
    let count = (1 + rng.roll(most)).min(SECTORS - first);
    match rng.roll(6) {
        0 => Step::Zero(first, count, Space::Given),
        1 => Step::Zero(first, count, Space::Kept),
        _ => Step::Write(first, count, 1 + rng.roll(255) as u8),
    }
}

/// Sector by sector, its one value.
fn play(table: &Table<&Memory>, sector: u32, step: &Step, model: &mut [u8]) {
    let bytes = |count: u64| count * u64::from(sector);
    match *step {
        Step::Write(first, count, value) => {
            let range = first as usize..(first + count) as usize;
            model[range].fill(value);
            let data = filled(sector, value).repeat(count as usize);
            table.write(&data, bytes(first)).unwrap();
        }
        Step::Zero(first, count, space) => {
            model[first as usize..(first + count) as usize].fill(0);
            table.zero(bytes(first), bytes(count), space).unwrap();
        }
    }
}

fn expand(model: &[u8], sector: u32) -> Vec<u8> {
    model
        .iter()
        .flat_map(|value| filled(sector, *value))
        .collect()
}

#[test]
fn a_table_is_what_was_written_to_it() {
    for sector in [512, 4096] {
        for seed in 1..20 {
            let memory = Memory::formatted(SECTORS, sector);
            let mut table = Table::to_write(&memory, SUM).unwrap();
            assert_eq!(table.size(), SECTORS * u64::from(sector));
            let (mut rng, mut model) = (Rng(seed), vec![0; SECTORS as usize]);
            for n in 0..60 {
                let step = step(&mut rng);
                play(&table, sector, &step, &mut model);
                assert!(
                    whole(&table) == expand(&model, sector),
                    "{seed} {n} {step:?}"
                );
                if n % 16 == 0 {
                    table = Table::to_write(&memory, SUM).unwrap();
                }
            }
            table.check().unwrap();
            extents_are_right(&table, &model, sector);
            let reader = Table::to_read(&memory, SUM).unwrap();
            assert!(whole(&reader) == expand(&model, sector));
        }
    }
}

fn extents_are_right(table: &Table<&Memory>, model: &[u8], sector: u32) {
    let (mut at, mut steps) = (0, 0);
    while at < table.size() {
        let extent = table.extent(at).unwrap();
        assert!(extent.end > at && extent.end <= table.size());
        let range = (at / u64::from(sector)) as usize..(extent.end / u64::from(sector)) as usize;
        assert!(!extent.hole || model[range].iter().all(|value| *value == 0));
        at = extent.end;
        steps += 1;
    }
    assert!(steps <= model.len());
}

#[test]
fn what_nobody_wrote_is_one_hole_and_takes_no_space() {
    let memory = Memory::formatted(1 << 30, 4096);
    let table = Table::to_write(&memory, SUM).unwrap();
    assert!(table.size() == 4 << 40 && table.arenas() > 8);
    let size = memory.pages().len();
    table.zero(0, table.size(), Space::Given).unwrap();
    assert_eq!(memory.pages().len(), size);
    table.write(&filled(4096, 7), 1 << 40).unwrap();
    let (mut at, mut extents) = (0, Vec::new());
    while at < table.size() {
        let extent = table.extent(at).unwrap();
        extents.push((extent.end - at, extent.hole));
        at = extent.end;
    }
    let data: Vec<_> = extents.iter().filter(|(_, hole)| !hole).collect();
    assert_eq!(data, [&(4096, false)]);
    assert!(extents.len() < 64, "{}", extents.len());
}

#[test]
fn zeroed_sectors_give_their_space_back() {
    for sector in [512, 4096] {
        let memory = Memory::formatted(SECTORS, sector);
        let table = Table::to_write(&memory, SUM).unwrap();
        let before = memory.pages().len();
        let data = vec![3; table.size() as usize];
        table.write(&data, 0).unwrap();
        let full = memory.pages().len();
        table.zero(0, table.size(), Space::Given).unwrap();
        let after = memory.pages().len();
        assert!(full >= before + data.len() / 4096);
        // The map has its own.
        assert!(
            after <= before + 1 + 512 * 256 / 4096,
            "{before} {full} {after}"
        );
    }
}

/// All that may be there after a loss of power while `steps` were made: for each order, everything
/// before it, and some of what came between it and the next.
fn images(before: &Pages, log: &[Event], rng: &mut Rng, mut judge: impl FnMut(Pages)) {
    let mut durable = before.clone();
    for epoch in log.split_inclusive(|event| matches!(event, Event::Order)) {
        let mut choices: Vec<Vec<bool>> = (0..6)
            .map(|_| epoch.iter().map(|_| rng.roll(2) == 0).collect())
            .collect();
        // Each alone, and each alone missing, where there are few; else prefixes.
        for n in (0..epoch.len()).step_by(1 + epoch.len() / 12) {
            choices.push((0..epoch.len()).map(|at| at == n).collect());
            choices.push((0..epoch.len()).map(|at| at != n).collect());
            choices.push((0..epoch.len()).map(|at| at < n).collect());
        }
        for choice in choices {
            let mut pages = durable.clone();
            // A line keeps the order of what is stored to it.
            let mut behind = BTreeSet::new();
            for (event, chosen) in epoch.iter().zip(&choice) {
                let line = match event {
                    Event::Word(at, _) => Some(at / 64),
                    _ => None,
                };
                let can = line.is_none_or(|line| !behind.contains(&line));
                match *chosen && can {
                    true => apply(&mut pages, event),
                    false => behind.extend(line),
                }
            }
            judge(pages);
        }
        epoch.iter().for_each(|event| apply(&mut durable, event));
    }
}

/// The value of each sector, if it has one.
fn values(bytes: &[u8], sector: u32) -> Option<Vec<u8>> {
    let sectors = bytes.chunks_exact(sector as usize);
    let value = |bytes: &[u8]| {
        bytes
            .iter()
            .all(|byte| *byte == bytes[0])
            .then_some(bytes[0])
    };
    sectors.map(value).collect()
}

#[test]
fn a_loss_of_power_tears_no_sector() {
    let mut count = 0;
    for (sector, seed) in [
        (512, 1),
        (4096, 2),
        (512, 3),
        (4096, 4),
        (512, 5),
        (4096, 6),
    ] {
        let mut rng = Rng(seed);
        let memory = Memory::formatted(SECTORS, sector);
        let mut model = vec![0; SECTORS as usize];
        let mut table = Table::to_write(&memory, SUM).unwrap();
        for _ in 0..10 {
            play(&table, sector, &step(&mut rng), &mut model);
        }
        for n in 0..8 {
            let (before, old) = (memory.pages(), model.clone());
            memory.record();
            let step = step(&mut rng);
            play(&table, sector, &step, &mut model);
            let new = &model;
            images(&before, &memory.log(), &mut rng, |pages| {
                count += 1;
                let memory = Memory::of(memory.size, pages);
                // A reader needs nothing completed.
                for writes in [false, true] {
                    let table = match writes {
                        true => Table::to_write(&memory, SUM).unwrap(),
                        false => Table::to_read(&memory, SUM).unwrap(),
                    };
                    if writes {
                        table.check().unwrap();
                    }
                    let found = values(&whole(&table), sector).expect("no sector is torn");
                    let sectors = found.iter().zip(old.iter().zip(new));
                    let wrong = sectors
                        .enumerate()
                        .find(|(_, (a, (b, c)))| *a != *b && *a != *c);
                    assert_eq!(wrong, None, "{sector} {seed} {n} {step:?}");
                }
            });
            if n % 3 == 0 {
                table = Table::to_write(&memory, SUM).unwrap();
            }
        }
    }
    assert!(count > 3000, "{count}");
}

/// The next writes go on from an image as well.
#[test]
fn what_was_half_done_is_completed_and_used() {
    let memory = Memory::formatted(SECTORS, 512);
    let table = Table::to_write(&memory, SUM).unwrap();
    table.write(&filled(512, 1).repeat(100), 0).unwrap();
    let before = memory.pages();
    memory.record();
    table.write(&filled(512, 2).repeat(3), 0).unwrap();
    let (log, mut rng) = (memory.log(), Rng(9));
    images(&before, &log, &mut rng, |pages| {
        let memory = Memory::of(memory.size, pages);
        let table = Table::to_write(&memory, SUM).unwrap();
        for value in 3..8 {
            table.write(&filled(512, value).repeat(64), 512).unwrap();
        }
        table.check().unwrap();
        let found = values(&whole(&table), 512).unwrap();
        assert!(found[0] == 1 || found[0] == 2);
        assert!(found[1..65].iter().all(|value| *value == 7));
        assert!(found[65..100].iter().all(|value| *value == 1));
    });
}

#[test]
fn a_write_that_fails_leaves_sectors_whole_and_lanes_unused() {
    for changes in 0..400 {
        let memory = Memory::formatted(SECTORS, 512);
        let table = Table::to_write(&memory, SUM).unwrap();
        table.write(&filled(512, 1).repeat(5), 0).unwrap();
        memory.fail_after(changes);
        let done = table.write(&filled(512, 2).repeat(5), 0);
        memory.inside.lock().unwrap().budget = None;
        for value in 3..5 {
            table.write(&filled(512, value), 512 * 100).unwrap();
        }
        let found = values(&whole(&table), 512).unwrap();
        let wanted = if done.is_ok() { &[2][..] } else { &[1, 2] };
        assert!(
            found[..5].iter().all(|value| wanted.contains(value)),
            "{changes}"
        );
        // What a crash would leave now.
        let table = Table::to_write(&memory, SUM).unwrap();
        table.check().unwrap();
        let found = values(&whole(&table), 512).unwrap();
        assert!(
            found[..5].iter().all(|value| [1, 2].contains(value)),
            "{changes}"
        );
        assert_eq!(found[100], 4);
    }
}

#[test]
fn a_full_device_refuses_what_needs_space_alone() {
    for sector in [512, 4096] {
        let memory = Memory::formatted(SECTORS, sector);
        let table = Table::to_write(&memory, SUM).unwrap();
        let bytes = |count: u64| count * u64::from(sector);
        table.write(&filled(sector, 1).repeat(72), 0).unwrap();
        table
            .write(&filled(sector, 2).repeat(8), bytes(128))
            .unwrap();
        table.zero(bytes(8), bytes(8), Space::Given).unwrap();
        memory.inside.lock().unwrap().full = true;
        for value in 3..60 {
            table.write(&filled(sector, value).repeat(8), 0).unwrap();
            table
                .write(&filled(sector, value).repeat(8), bytes(128))
                .unwrap();
            let refused = table.write(&filled(sector, value).repeat(8), bytes(8));
            assert_eq!(refused, Err(Error::Device("no space")));
        }
        table.zero(0, bytes(SECTORS), Space::Given).unwrap();
        assert!(whole(&table).iter().all(|byte| *byte == 0));
        table.check().unwrap();
    }
}

/// A write fails at its log or at its map, more often than there are lanes.
#[test]
fn writes_that_found_no_space_are_no_hindrance_later() {
    for unshared in [&[][..], &[0, 1, 2, 3]] {
        let memory = Memory::formatted(SECTORS, 4096);
        let table = Table::to_write(&memory, SUM).unwrap();
        table.write(&filled(4096, 1).repeat(100), 0).unwrap();
        let first_log = memory.size / PAGE - 5;
        let is_bytes = |page: &u64| *page < first_log - 1;
        let is_shared =
            |page: &u64| !is_bytes(page) && !unshared.iter().any(|n| first_log + n == *page);
        {
            let inside = &mut *memory.inside.lock().unwrap();
            inside.shared = inside.pages.keys().copied().filter(is_shared).collect();
            inside.full = true;
        }
        for n in 0..400 {
            let refused = table.write(&filled(4096, 2).repeat(1 + n % 7), 0);
            assert_eq!(refused, Err(Error::Device("no space")));
        }
        let found = values(&whole(&table), 4096).unwrap();
        assert!(found[..100].iter().all(|value| *value == 1));
        let same = Memory::of(memory.size, memory.pages());
        Table::to_write(&same, SUM).unwrap().check().unwrap();
        memory.inside.lock().unwrap().full = false;
        table.write(&filled(4096, 3).repeat(64), 0).unwrap();
        table.check().unwrap();
    }
}

#[test]
fn threads_see_whole_sectors() {
    let memory = Memory::formatted(SECTORS, 4096);
    let table = Table::to_write(&memory, SUM).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let table = &table;
            scope.spawn(move || {
                let mut rng = Rng(thread + 1);
                for _ in 0..150 {
                    let (first, count) = (rng.roll(20) * 4096, 1 + rng.roll(4));
                    match rng.roll(5) {
                        0..2 => {
                            let data = filled(4096, rng.roll(256) as u8);
                            table.write(&data.repeat(count as usize), first).unwrap();
                        }
                        2 => table.zero(first, count * 4096, Space::Given).unwrap(),
                        _ => {
                            let mut room = vec![0; count as usize * 4096];
                            table.read(&mut room, first).unwrap();
                            values(&room, 4096).expect("no sector is torn");
                        }
                    }
                }
            });
        }
    });
    table.check().unwrap();
}

/// A reader of another process has no locks with the writer.
#[test]
fn a_reader_beside_a_writer_sees_no_sector_of_others() {
    let memory = Memory::formatted(SECTORS, 4096);
    let table = Table::to_write(&memory, SUM).unwrap();
    // The first half of each is its number.
    let sector = |number: u64, value: u8| {
        let mut bytes = filled(4096, value);
        bytes[..2048].fill(number as u8);
        bytes
    };
    for number in 0..20 {
        table.write(&sector(number, 0), number * 4096).unwrap();
    }
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut rng = Rng(3);
            for n in 0..20_000 {
                let number = rng.roll(20);
                table
                    .write(&sector(number, n as u8), number * 4096)
                    .unwrap();
            }
        });
        let reader = Table::to_read(&memory, SUM).unwrap();
        let (mut rng, mut room) = (Rng(5), filled(4096, 0));
        while !writer.is_finished() {
            let number = rng.roll(20);
            // Where the writer was faster each time, the sum tells.
            match reader.read(&mut room, number * 4096) {
                Ok(()) => assert!(room[..2048].iter().all(|byte| *byte == number as u8)),
                Err(e) => assert!(matches!(e, Error::Changed { .. })),
            }
        }
    });
}

#[test]
fn a_table_grows() {
    let memory = Memory::formatted(SECTORS, 4096);
    let table = Table::to_write(&memory, SUM).unwrap();
    table.write(&filled(4096, 5), (SECTORS - 1) * 4096).unwrap();
    let len = table.device_len_with(300);
    let larger = Memory::of(len, memory.pages());
    larger.record();
    Table::to_write(&larger, SUM)
        .unwrap()
        .grow(300, UUID)
        .unwrap();
    let mut rng = Rng(4);
    images(&memory.pages(), &larger.log(), &mut rng, |pages| {
        let memory = Memory::of(len, pages);
        let table = Table::to_write(&memory, SUM).unwrap();
        let sectors = table.size() / 4096;
        assert!(sectors == SECTORS || sectors == SECTORS + 300);
        table.check().unwrap();
    });
    let table = Table::to_write(&larger, SUM).unwrap();
    table
        .write(&filled(4096, 6).repeat(4), (SECTORS - 2) * 4096)
        .unwrap();
    let found = values(&whole(&table), 4096).unwrap();
    assert_eq!(found[SECTORS as usize - 3..][..6], [0, 6, 6, 6, 6, 0]);
}

#[test]
fn bytes_that_change_by_themselves_are_found() {
    for sector in [512, 4096] {
        let memory = Memory::formatted(SECTORS, sector);
        let table = Table::to_write(&memory, SUM).unwrap();
        let bytes = |sectors: u64| sectors * u64::from(sector);
        table.write(&filled(sector, 5).repeat(100), 0).unwrap();
        table
            .write(&filled(sector, 6).repeat(10), bytes(30))
            .unwrap();
        for number in [7, 33] {
            let at = table.place(bytes(number)).unwrap().unwrap() + 100;
            (&memory).write(&[9], at).unwrap();
        }
        let mut room = vec![0; bytes(50) as usize];
        let changed = table.read(&mut room, 0);
        assert_eq!(changed, Err(Error::Changed { sector: 7 }));
        table
            .read(&mut room[..bytes(20) as usize], bytes(8))
            .unwrap();
        let checked = table.check().unwrap();
        assert_eq!((checked.written, &checked.changed[..]), (100, &[7, 33][..]));
        table.write(&filled(sector, 8), bytes(7)).unwrap();
        table.zero(bytes(33), bytes(1), Space::Kept).unwrap();
        assert_eq!(table.check().unwrap().changed, []);
        let plain = Table::to_read(&memory, None).unwrap();
        assert!(whole(&plain) == whole(&table));
    }
}

/// Sums know whose a block is: what the map gives to another sector is neither read nor freed.
#[test]
fn sectors_that_the_map_confuses_are_found_and_destroy_nothing() {
    let memory = Memory::formatted(SECTORS, 512);
    let table = Table::to_write(&memory, SUM).unwrap();
    for number in 0..4 {
        let bytes = filled(512, 1 + number as u8);
        table.write(&bytes, number * 512).unwrap();
        table.write(&bytes, number * 512).unwrap();
    }
    let info = info_of(&memory);
    let entry = |sector: u64| info.map + sector * 4;
    let mut old = [0; 8];
    (&memory).read(&mut old, entry(0)).unwrap();
    // Swapped; both the same; one that nobody wrote; the free block of a lane.
    let swapped = [&old[4..], &old[..4]].concat();
    let free = table.lane_free(0) | 3 << 30;
    let cases = [
        swapped,
        old[4..].repeat(2),
        vec![0; 4],
        free.to_le_bytes().to_vec(),
    ];
    for (n, changed) in cases.iter().enumerate() {
        (&memory).write(changed, entry(0)).unwrap();
        let mut room = filled(512, 0);
        let read = table.read(&mut room, 0);
        assert_eq!(read, Err(Error::Changed { sector: 0 }), "{n}");
        let damaged = Err(Error::Damaged {
            what: "the map",
            at: entry(0),
        });
        assert_eq!(table.write(&filled(512, 9), 0), damaged, "{n}");
        assert_eq!(table.zero(0, 512, Space::Given), damaged, "{n}");
        let checked = table.check();
        assert!(!checked.is_ok_and(|found| found.changed.is_empty()), "{n}");
        (&memory).write(&old, entry(0)).unwrap();
        assert!(table.check().unwrap().changed.is_empty());
    }
    assert_eq!(values(&whole(&table), 512).unwrap()[..4], [1, 2, 3, 4]);
}

fn info_of(memory: &Memory) -> Info {
    let mut bytes = [0; info::LEN];
    memory.read(&mut bytes, 0).unwrap();
    Info::decode(&bytes).unwrap()
}

#[test]
fn an_info_block_is_what_was_written() {
    let mut info = Info::new(UUID);
    (info.sector, info.next, info.copy) = (512, 7 << 40, 9);
    let bytes = info.encode();
    assert_eq!(Info::decode(&bytes), Some(info));
    for at in [0, 17, 50, 100, 4090] {
        let mut other = bytes;
        other[at] ^= 1;
        assert_eq!(Info::decode(&other), None);
    }
}

#[test]
fn one_info_block_is_enough() {
    for lost in [0, 1] {
        let memory = Memory::formatted(SECTORS, 512);
        let at = [0, memory.size - info::LEN as u64][lost];
        (&memory).write(&[0xff; 100], at).unwrap();
        let table = Table::to_read(&memory, SUM).unwrap();
        assert_eq!(table.size(), SECTORS * 512);
        Table::to_write(&memory, SUM).unwrap();
        let mut bytes = [0; info::LEN];
        (&memory).read(&mut bytes, 0).unwrap();
        assert!(Info::decode(&bytes).is_some());
        let last = memory.size - info::LEN as u64;
        (&memory).read(&mut bytes, last).unwrap();
        assert!(Info::decode(&bytes).is_some());
    }
    let memory = Memory::new(device_len(SECTORS, shape(512)));
    let error = Table::to_read(&memory, SUM).err();
    let what = "the info block";
    assert_eq!(error, Some(Error::Damaged { what, at: 0 }));
}

/// Whatever is there: no panic, and no access outside the device.
#[test]
fn garbage_is_an_error_or_some_table() {
    let mut rng = Rng(77);
    for n in 0..2000 {
        let memory = Memory::formatted(SECTORS, 512);
        let mut info = [0; info::LEN];
        (&memory).read(&mut info, 0).unwrap();
        let mut changed = Info::decode(&info).unwrap();
        for _ in 0..1 + rng.roll(3) {
            let value = match rng.roll(3) {
                0 => rng.roll(1 << 13),
                1 => u64::MAX - rng.roll(1 << 13),
                _ => rng.roll(u64::MAX),
            };
            match rng.roll(10) {
                0 => changed.sector = value as u32,
                1 => changed.sectors = value as u32,
                2 => changed.block = value as u32,
                3 => changed.blocks = value as u32,
                4 => changed.lanes = value as u32,
                5 => changed.next = value,
                6 => changed.data = value,
                7 => changed.map = value,
                8 => changed.flog = value,
                _ => changed.copy = value,
            }
        }
        if n % 2 == 0 {
            (&memory).write(&changed.encode(), 0).unwrap();
        }
        for _ in 0..rng.roll(4) {
            let at = memory.size - 28672 + rng.roll(24000) / 8 * 8;
            (&memory)
                .write(&rng.roll(u64::MAX).to_le_bytes(), at)
                .unwrap();
        }
        let Ok(table) = Table::to_write(&memory, SUM) else {
            continue;
        };
        let _ = table.check();
        let mut room = vec![0; 512 * 64];
        let _ = table.read(&mut room, 0);
        let _ = table.write(&room, 0);
        let _ = table.zero(0, 512 * 100, Space::Given);
        let _ = table.extent(0);
    }
}
