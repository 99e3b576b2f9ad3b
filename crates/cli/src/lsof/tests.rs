//! Looks at session memory that the test wrote: sound, and garbage.

use super::*;
use holdfast_client::live;
use holdfast_pmem::{RecordLocks, SharedMem};
use holdfast_pool::layout::ROOT_INO;
use holdfast_pool::session::*;
use rustix::fd::OwnedFd;
use std::sync::atomic::Ordering::*;

const DIRECTORY: u64 = 20;
const FILE: u64 = 21;

/// Session memory, in which this process has slot 0.
struct Fake {
    fd: OwnedFd,
    memory: SharedMem,
    _locks: RecordLocks,
}

impl Fake {
    fn new() -> Fake {
        let (fd, memory) = SharedMem::create_memfd("lsof", SESSION_LEN).unwrap();
        let locks = RecordLocks::new(fd.as_fd()).unwrap();
        let fake = Fake {
            fd,
            memory,
            _locks: locks,
        };
        fake.header().magic.store(MAGIC, Relaxed);
        fake.header().slots_used.store(2, Relaxed);
        for slot in 0..2 {
            fake.at::<Slot>(SLOTS_AT, slot)
                .state
                .store(live::SLOT_LIVE, Relaxed);
        }
        // Nobody has the life of slot 1.
        locks.hold(live::life_of(0, 0)).unwrap();
        fake
    }

    fn at<T: holdfast_pmem::Shared>(&self, base: usize, index: usize) -> &T {
        self.memory
            .at((base + index * size_of::<T>()) as u64)
            .unwrap()
    }

    fn header(&self) -> &Header {
        self.at(HEADER_AT, 0)
    }

    /// The object `ino` has the inode entry `index`.
    fn object(&self, index: usize, ino: u64, mode: u32) -> &Inode {
        let e: &Inode = self.at(INODES_AT, index);
        e.ino.store(ino, Relaxed);
        e.mode.store(mode, Relaxed);
        e.nlink.store(1, Relaxed);
        let used = &self.header().inode_used;
        used.fetch_max(index as u32 + 1, Relaxed);
        e
    }

    fn name(&self, index: usize, (parent, name): (u64, &str), (kind, ino): (u8, u64)) {
        let dentry: &Dentry = self.at(DENTRIES_AT, index);
        dentry.state.store(DENTRY_VALID, Relaxed);
        dentry.parent.store(parent, Relaxed);
        dentry.name_len.store(name.len() as u8, Relaxed);
        let bytes = dentry.name.iter().zip(name.as_bytes());
        bytes.for_each(|(to, from)| to.store(*from, Relaxed));
        dentry.kind.store(kind, Relaxed);
        dentry.ino.store(ino, Relaxed);
        let used = &self.header().dentry_used;
        used.fetch_max(index as u32 + 1, Relaxed);
    }

    /// Descriptor `fd` of slot `slot` is the description `index`, of inode entry `inode`.
    fn descriptor(&self, slot: usize, fd: u32, index: usize, (inode, ino): (usize, u64)) -> &Ofd {
        let ofd: &Ofd = self.at(OFDS_AT, index);
        ofd.inode.store(inode as u32 + 1, Relaxed);
        ofd.ino.store(ino, Relaxed);
        ofd.refs.store(1, Relaxed);
        let page: &FdPage = self.at(FD_TABLES_AT, slot);
        page.entries[fd as usize].store(index as u32 + 1, Relaxed);
        let limit = &self.at::<Slot>(SLOTS_AT, slot).fd_limit;
        limit.fetch_max(fd + 1, Relaxed);
        ofd
    }

    fn shown(&self, wanted: &[&str]) -> Shown {
        let memory = Memory::map(self.fd.as_fd()).unwrap();
        let wanted: Vec<_> = wanted.iter().map(|path| normal(Path::new(path))).collect();
        Shown::of(&memory, &Region::in_memory(1 << 20).unwrap(), &wanted)
    }
}

/// A file in a directory, open for writing as descriptor 3.
fn fake() -> Fake {
    let fake = Fake::new();
    fake.object(0, DIRECTORY, 0o40755);
    fake.object(1, FILE, 0o100644).size.store(9, Relaxed);
    fake.name(0, (ROOT_INO, "dir"), (4, DIRECTORY));
    fake.name(1, (DIRECTORY, "a file"), (8, FILE));
    let ofd = fake.descriptor(0, 3, 0, (1, FILE));
    ofd.flags.store(abi::O_WRONLY, Relaxed);
    ofd.offset.store(5, Relaxed);
    fake
}

fn lines(shown: &Shown) -> Vec<String> {
    let me = std::process::id().to_string();
    let text = shown.text();
    let rest = |line: &str| line.split_once(&me).unwrap().1.to_string();
    let lines = text.lines().filter(|line| line.contains(&me)).map(rest);
    // Without the user and the room between columns.
    let words = lines.map(|line| {
        let words: Vec<_> = line.split_whitespace().skip(1).map(String::from).collect();
        words.join(" ")
    });
    words.collect()
}

#[test]
fn what_a_live_process_has_is_shown() {
    let fake = fake();
    fake.descriptor(1, 4, 1, (1, FILE));
    assert_eq!(lines(&fake.shown(&[])), ["3w file 5 9 /dir/a file"]);
    let pin: &PinTable = fake.at(PIN_TABLES_AT, 0);
    pin.entries[7].inode.store(2, Relaxed);
    pin.entries[7].ino.store(FILE, Relaxed);
    pin.entries[7].count.store(2, Relaxed);
    fake.at::<Slot>(SLOTS_AT, 0).cwd.store(DIRECTORY, Relaxed);
    let all = [
        "cwd dir - 0 /dir",
        "3w file 5 9 /dir/a file",
        "map file - 9 /dir/a file",
    ];
    assert_eq!(lines(&fake.shown(&[])), all);
    assert_eq!(lines(&fake.shown(&["/"])), all);
    assert_eq!(lines(&fake.shown(&["dir/./a file/"])), all[1..]);
    assert!(lines(&fake.shown(&["/di", "/dir/a"])).is_empty());
}

#[test]
fn a_file_without_a_name_has_that_by_which_it_was_opened() {
    let fake = fake();
    fake.object(1, FILE, 0o100644).nlink.store(0, Relaxed);
    fake.name(1, (DIRECTORY, "a file"), (8, 0));
    let ofd = fake.descriptor(0, 3, 0, (1, FILE));
    assert_eq!(lines(&fake.shown(&[])), ["3w file 5 9 (deleted)"]);
    ofd.parent.store(DIRECTORY, Relaxed);
    ofd.name_len.store(3, Relaxed);
    for (to, from) in ofd.name.iter().zip(b"old") {
        to.store(*from, Relaxed);
    }
    assert_eq!(lines(&fake.shown(&[])), ["3w file 5 9 /dir/old (deleted)"]);
}

#[test]
fn who_waits_for_whom_is_shown() {
    let fake = fake();
    let lock: &RangeLock = fake.at(LOCKS_AT, 0);
    let own = [(&lock.kind, 1), (&lock.mode, 2), (&lock.slot, 1)];
    for (field, value) in own {
        field.store(value, Relaxed);
    }
    lock.ino.store(FILE, Relaxed);
    lock.last.store(LAST_BYTE, Relaxed);
    fake.header().locks_used.store(1, Relaxed);
    let held = "posix write 0 end /dir/a file";
    assert_eq!(lines(&fake.shown(&[]))[1..], [held]);
    fake.at::<Slot>(SLOTS_AT, 0).waits_for.store(1, Relaxed);
    let waits = format!("{held} (waits for process {})", std::process::id());
    assert_eq!(text_of_locks(&fake), [held.to_string(), waits]);
    // A lock of a process that is dead.
    lock.slot.store(2, Relaxed);
    assert_eq!(text_of_locks(&fake), [format!("{held} (waits)")]);
    fake.at::<Slot>(SLOTS_AT, 0)
        .waits_for
        .store(1 << 40, Relaxed);
    assert!(text_of_locks(&fake).is_empty());
}

fn text_of_locks(fake: &Fake) -> Vec<String> {
    let text = fake.shown(&[]).text();
    let locks = text.split_once("LOCK").map_or("", |(_, locks)| locks);
    let locks = locks.lines().skip(1).map(|line| {
        let words: Vec<_> = line.split_whitespace().skip(3).collect();
        words.join(" ")
    });
    locks.collect()
}

#[test]
fn directories_that_lead_in_a_circle_lead_nowhere() {
    let fake = fake();
    fake.name(0, (DIRECTORY + 5, "dir"), (4, DIRECTORY));
    fake.name(2, (DIRECTORY, "dir"), (4, DIRECTORY + 5));
    assert_eq!(lines(&fake.shown(&[])), ["3w file 5 9 ?"]);
}

#[test]
fn the_end_of_a_table_is_the_end() {
    let fake = fake();
    fake.at::<Slot>(SLOTS_AT, 0)
        .fd_limit
        .store(u32::MAX, Relaxed);
    fake.at::<Slot>(SLOTS_AT, 0)
        .fd_directory
        .store(u32::MAX, Relaxed);
    fake.header().slots_used.store(u32::MAX, Relaxed);
    fake.header().locks_used.store(u32::MAX, Relaxed);
    fake.header().reserved_locks_used.store(u32::MAX, Relaxed);
    assert_eq!(lines(&fake.shown(&[])).len(), 1);
}

/// Numbers that look random.
fn noise() -> impl FnMut() -> u32 {
    let mut state = 0x9e37_79b9_u32;
    move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        // Small ones and those at the ends are more often where something is.
        match state % 4 {
            0 => state,
            1 => state % 256,
            2 => u32::MAX - state % 3,
            _ => 1 << (state >> 27),
        }
    }
}

#[test]
fn garbage_is_looked_at_without_harm() {
    let fake = fake();
    let mut next = noise();
    let places = [
        SLOTS_AT,
        FD_TABLES_AT,
        FD_PAGES_AT,
        OFDS_AT,
        PIN_TABLES_AT,
        LOCKS_AT,
        DENTRIES_AT,
        LONG_DENTRIES_AT,
        INODES_AT,
        OPEN_VALUES_AT,
    ];
    let header = fake.header();
    let used = [
        &header.slots_used,
        &header.ofd_used,
        &header.dentry_used,
        &header.long_dentry_used,
        &header.inode_used,
        &header.locks_used,
        &header.reserved_locks_used,
    ];
    for round in 0..200 {
        for place in places {
            for _ in 0..500 {
                let at = place / 4 + next() as usize % (16 << 10);
                let word: &holdfast_pmem::atomic::AtomicU32 = fake.at(0, at);
                word.store(next(), Relaxed);
            }
        }
        for count in used {
            count.store(next() % 4096, Relaxed);
        }
        // This process keeps its place, and with it what is in its tables.
        let slot: &Slot = fake.at(SLOTS_AT, 0);
        slot.state.store(live::SLOT_LIVE, Relaxed);
        slot.generation.store(0, Relaxed);
        slot.run.store(0, Relaxed);
        header.slots_used.fetch_max(1, Relaxed);
        let wanted: &[&str] = if round % 2 == 0 { &[] } else { &["/dir"] };
        let shown = fake.shown(wanted);
        assert!(!shown.people.is_empty());
        assert!(shown.text().len() + shown.json().render().len() > 0);
    }
}
