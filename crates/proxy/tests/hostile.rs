//! A process that stores anything in its channel: nobody else notices, and the pool stays whole.

mod fixture;

use fixture::*;
use holdfast_client::attach;
use holdfast_client::kv::Durability;
use holdfast_client::served::pairs::{Change, Kind};
use holdfast_client::served::wire::*;
use holdfast_client::{Base, Flock, OfdLink, Served};
use holdfast_pmem::atomic::Ordering::*;
use holdfast_pmem::{ConstBuf, MutBuf, SharedMem};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::*;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// Requests of each kind that were granted: garbage that is all refused shows nothing.
static GRANTED: [AtomicU32; OPS] = [const { AtomicU32::new(0) }; OPS];
/// Numbers of what can be asked for are below this, with one more that means nothing.
const OPS: usize = Op::SnapshotList as usize + 2;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

const TEXTS: &[&[u8]] = &[
    b"",
    b".",
    b"..",
    b"/",
    b"a",
    b"b",
    b"a/b",
    b"a/../b",
    b"/a",
    b"\0",
    b"a\0b",
    b"a/",
    b"a/p",
    b"//",
    b"s",
    b"user.x",
    b"trusted.x",
    b"system.x",
    b"a",
    b"b",
    b"n",
    b"m",
    b"user.x",
];

const NUMBERS: &[u64] = &[
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    64,
    0o102,
    0o777,
    0o100_644,
    0o140_777,
    0o010_666,
    4096,
    65535,
    65536,
    1 << 20,
    (1 << 20) + 1,
    1 << 31,
    (1 << 31) + 1,
    u32::MAX as u64,
    1 << 32,
    2 | 1 << 32,
    2 | 4 << 32,
    2 | (1 << 31 | 1) << 32,
    1 << 40,
    i64::MAX as u64,
    i64::MAX as u64 - 4096,
    i64::MIN as u64,
    u64::MAX,
];

/// A request that means something in most of its fields.
fn structured(r: &mut Random, own: u32) -> ([u64; WORDS], Vec<u8>) {
    let (uid, gid) = me();
    let text = |r: &mut Random| match r.below(3) {
        0 => r.of(TEXTS),
        _ => r.of(&[&b"a"[..], b"b", b"n", b"m", b"a/b", b"user.x"]),
    };
    let (first, second) = (text(r), text(r));
    let op = match r.below(OPS as u64) as u32 {
        // It closes all that other garbage could meet.
        op if op == Op::Exit as u32 && r.below(50) > 0 => Op::Write as u32,
        op => op,
    };
    let data = match op == Op::KvChange as u32 {
        true => changes(r),
        false => vec![b'x'; r.of(&[0, 0, 5, 100, 70_000])],
    };
    let text = [first, second, &data].concat();
    let head = Head {
        op,
        member: r.of(&[0, own, own, 77]),
        uid: r.of(&[uid, uid, uid, uid, uid, uid, 0, 12345]),
        gid,
        privileged: r.below(8) == 0,
        lens: [first.len(), second.len(), data.len()].map(|len| len as u32),
    };
    let mut words = [0; WORDS];
    words[..HEAD].copy_from_slice(&head.encode());
    for word in &mut words[HEAD..] {
        *word = match r.below(5) {
            0 => r.of(NUMBERS),
            1 => 0,
            2 => r.of(&[u64::MAX, 1 << 31, 0o100_644]),
            3 => r.of(&[0, 1, 2 | 1 << 32, 2 | 4 << 32, 2 | 2 << 32]),
            _ => r.below(6),
        };
    }
    if r.below(20) == 0 {
        words[r.below(4) as usize] = r.next();
    }
    (words, text)
}

/// Changes of keys and values, most of which are possible.
fn changes(r: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..r.below(5) {
        let kinds = [
            Kind::Put,
            Kind::Put,
            Kind::Erase,
            Kind::EraseRange,
            Kind::Part,
        ];
        let change = Change {
            kind: r.of(&kinds),
            keyspace: r.below(4) as u32,
            key: r.of(&[
                &b""[..],
                b"a",
                b"b",
                b"file",
                b"a\0b",
                &[b'k'; 1024],
                &[b'k'; 1025],
            ]),
            value: &vec![b'v'; r.of(&[0, 10, 3000, 100_000])],
        };
        bytes.extend_from_slice(&change.head());
        bytes.extend_from_slice(change.key);
        bytes.extend_from_slice(change.value);
    }
    match r.below(8) {
        0 => bytes.truncate(r.below(bytes.len() as u64 + 1) as usize),
        1 if !bytes.is_empty() => {
            let at = r.below(bytes.len() as u64) as usize;
            bytes[at] = r.next() as u8;
        }
        _ => {}
    }
    bytes
}

/// Files, links, descriptors and keyspaces for garbage to meet; how the proxy names us.
fn prepare(connection: &OwnedFd, channel: &OwnedFd) -> u32 {
    let served = Served::enter(channel.as_fd(), connection.as_fd(), b"/hf").unwrap();
    let c = caller();
    // What was there before is as good.
    let _ = served.mkdir(&c, Base::Root, b"a", 0o700);
    let _ = served.symlink(&c, b"a/b", Base::Root, b"s");
    let _ = served.mkdir(&c, Base::Root, b"t", 0o1777);
    let _ = served.mknod(&c, Base::Root, b"a/p", 0o010_666, 0);
    for (fd, name, flags) in [
        (0, &b"t"[..], 0o200000),
        (1, b"b", 0o102),
        (2, b"a/b", 0o102),
        (3, b".", 0),
    ] {
        if let Ok(file) = served.open(&c, Base::Root, name, flags, 0o600, 0) {
            served.bind(fd, file).unwrap();
        }
    }
    if let Some(file) = served.lookup(1) {
        let _ = served.write(file, ConstBuf::from(&[7; 5000][..]));
    }
    let _ = served.chdir(&c, Base::Root, b"t");
    for name in [&b"k"[..], b"l"] {
        if let Ok(keyspace) = served.keyspace(&c, name, true) {
            let pair = (&b"a"[..], &[1; 5000][..]);
            let _ = served.kv_put(&c, keyspace, pair, Durability::Ordered);
            let _ = served.view(Some(keyspace));
        }
    }
    if let Ok(file) = served.open(&c, Base::Root, b"k/file", 0o102, 0o600, 0) {
        let _ = served.write(file, ConstBuf::from(&b"content"[..]));
        let _ = served.release(file);
    }
    served.id()
}

/// Requests of one hostile process.
const REQUESTS: u64 = 150_000;
/// Of one of its connections, which ends with a message that is none.
const AT_ONCE: u64 = 500;

fn hostile(fixture: &Fixture, seed: u64) {
    let mut r = Random(seed);
    let mut served = 0;
    while served < REQUESTS {
        let (connection, channel) = fixture.connect();
        let memory = SharedMem::map(channel.as_fd(), CHANNEL_LEN).unwrap();
        let own = prepare(&connection, &channel);
        let line: &Line = memory.at(line_at(0)).unwrap();
        for _ in 0..AT_ONCE {
            let (words, text) = match r.below(50) {
                0 => (std::array::from_fn(|_| r.next()), vec![0xff; 64]),
                _ => structured(&mut r, own),
            };
            if r.below(20) == 0 {
                tell_anything(&memory, &mut r);
            }
            assert!(ask(&memory, 0, &words, &text), "seed {seed}, {words:?}");
            if line.answer[0].load(Relaxed) == 0 {
                let op = GRANTED.get(words[0] as u32 as usize);
                op.map(|granted| granted.fetch_add(1, Relaxed));
            }
            // What a child would get is thrown away.
            while recv(&connection, &mut [0; 64][..], RecvFlags::DONTWAIT).is_ok() {}
        }
        let note: [u8; NOTE_LEN] = std::array::from_fn(|_| r.next() as u8);
        let _ = send(&connection, &note, SendFlags::NOSIGNAL);
        served += AT_ONCE;
    }
}

/// Leaves word that descriptors were closed or read, or garbage in its place.
fn tell_anything(memory: &SharedMem, r: &mut Random) {
    let untold: &Untold = memory.at(UNTOLD_AT).unwrap();
    let item = Item {
        fd: r.below(8) as u32,
        what: match r.below(2) {
            0 => Done::Closed,
            _ => Done::At(r.below(OFFSET_END)),
        },
    };
    let word = match r.below(4) {
        0 => r.next(),
        1 => BEING_DONE,
        _ => item.encode().unwrap(),
    };
    let entry = r.below(UNTOLD as u64) as usize;
    untold.entries[entry].store(word, SeqCst);
    untold.count.store(r.below(3) as u32, SeqCst);
}

const FILES: u32 = 10;

/// Somebody who only works, and what it wrote is what it reads. It works below a directory that it
/// has open, since the hostile ones are the same user and may change the root.
struct Honest {
    served: Served,
    _connection: OwnedFd,
}

impl Honest {
    fn new(fixture: &Fixture) -> Honest {
        let (connection, channel) = fixture.connect();
        let served = Served::enter(channel.as_fd(), connection.as_fd(), b"/hf").unwrap();
        let c = caller();
        served.mkdir(&c, Base::Root, b"honest", 0o700).unwrap();
        for (fd, name) in [(0, &b"honest"[..]), (1, b".")] {
            let opened = served.open(&c, Base::Root, name, 0o200000, 0, 0);
            served.bind(fd, opened.unwrap()).unwrap();
        }
        let honest = Honest {
            served,
            _connection: connection,
        };
        // The hostile ones may fill the pool: what it stores later finds its blocks there.
        for round in 0..FILES {
            honest.round(round);
        }
        honest
    }

    fn work(&self, until: Instant) -> u32 {
        let root = self.served.lookup(1).unwrap();
        let mut rounds = 0u32;
        while Instant::now() < until || rounds < 100 {
            self.served.fchmod(&caller(), root, 0o1777).unwrap();
            self.round(rounds);
            rounds += 1;
        }
        rounds
    }

    /// Stores into one of its files, and reads what it stored.
    fn round(&self, number: u32) {
        let (served, c) = (&self.served, caller());
        let base = Base::Ofd(served.lookup(0).unwrap());
        let name = (number % FILES).to_string();
        let opened = served.open(&c, base, name.as_bytes(), 0o102, 0o600, 0);
        served.bind(5, opened.unwrap()).unwrap();
        let file = served.lookup(5).unwrap();
        let text = format!("{number:08}").repeat(1000);
        let wrote = served.write(file, ConstBuf::from(text.as_bytes())).unwrap();
        assert_eq!(wrote, text.len());
        let mut back = vec![0; text.len() + 1];
        let len = served.pread(file, MutBuf::from(&mut back[..]), 0).unwrap();
        assert_eq!(&back[..len], text.as_bytes());
        assert!(served.unbind(5).unwrap());
    }
}

/// Two, or as many as HF_SEEDS says.
fn seeds() -> std::ops::Range<u64> {
    let many = std::env::var("HF_SEEDS").ok();
    0..many.and_then(|many| many.parse().ok()).unwrap_or(2)
}

#[test]
fn nobody_notices_a_hostile_process() {
    let mut fixture = Fixture::new("hostile");
    let honest = Honest::new(&fixture);
    std::thread::scope(|scope| {
        let until = Instant::now() + Duration::from_secs(1);
        let (fixture, honest) = (&fixture, &honest);
        let honest = scope.spawn(move || honest.work(until));
        for seed in seeds() {
            scope.spawn(move || hostile(fixture, seed));
        }
        assert!(honest.join().unwrap() >= 100);
    });
    assert_eq!(PANICS.load(SeqCst), 0);
    let granted = |op: &u32| GRANTED[*op as usize].load(Relaxed) > 0;
    let ops = (0..OPS as u32).filter(|op| Op::from_raw(*op).is_some());
    let never: Vec<u32> = ops.filter(|op| !granted(op)).collect();
    // A run is entered once, and the test did that; no place was offered to anybody; and a few
    // need more luck than there is.
    assert!(
        never.len() <= 15 && never.contains(&(Op::Adopt as u32)),
        "{never:?}"
    );
    drop(honest);
    fixture.check();
}

/// What a process asks for at once it gets once, and what it leaves behind when it hangs up amid
/// its calls is nothing.
#[test]
fn a_process_gets_one_place_and_leaves_none() {
    let mut fixture = Fixture::new("places");
    let pool = fixture.dir.as_os_str().as_bytes().to_vec();
    let processes = || attach::status(&pool).unwrap().processes;
    let before = processes();
    for round in 0..50 {
        let (connection, channel) = fixture.connect();
        let memory = SharedMem::map(channel.as_fd(), CHANNEL_LEN).unwrap();
        let request = |op: Op, len: u32| {
            let head = Head {
                op: op as u32,
                lens: [len, 0, 0],
                ..Head::default()
            };
            let mut words = [0; WORDS];
            words[..HEAD].copy_from_slice(&head.encode());
            words
        };
        for line in 1..LINES {
            let note = Note::Line(line as u32).encode();
            send(&connection, &note, SendFlags::empty()).unwrap();
        }
        for line in 0..LINES {
            post(&memory, line, &request(Op::Enter, 3), b"/hf");
        }
        let granted = (0..LINES).filter(|line| {
            assert!(is_answered(&memory, *line));
            let state: &Line = memory.at(line_at(*line)).unwrap();
            state.answer[0].load(Relaxed) == 0
        });
        assert_eq!(granted.count(), 1, "round {round}");
        // Children are asked for, and nobody waits for the answers.
        for line in 0..LINES {
            post(&memory, line, &request(Op::ChildPrepare, 0), &[]);
        }
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let begun = Instant::now();
    while processes() != before {
        assert!(begun.elapsed() < Duration::from_secs(20), "{}", processes());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(PANICS.load(SeqCst), 0);
    fixture.check();
}

/// Descriptors on their way are counted for the pool's owner: who does not receive what was asked
/// for gets nothing else, so that nobody keeps the others from theirs.
#[test]
fn who_receives_nothing_gets_one_thing() {
    let mut fixture = Fixture::new("unread");
    let (connection, channel) = fixture.connect();
    let memory = SharedMem::map(channel.as_fd(), CHANNEL_LEN).unwrap();
    Served::enter(channel.as_fd(), connection.as_fd(), b"/hf").unwrap();
    let children = |n: usize| {
        let head = Head {
            op: Op::ChildPrepare as u32,
            ..Head::default()
        };
        let mut words = [0; WORDS];
        words[..HEAD].copy_from_slice(&head.encode());
        let granted = |_: &usize| {
            assert!(ask(&memory, 0, &words, &[]));
            let state: &Line = memory.at(line_at(0)).unwrap();
            state.answer[0].load(Relaxed) == 0
        };
        (0..n).filter(granted).count()
    };
    assert_eq!(children(20), 1);
    assert!(receive(&connection, &mut [0; NOTE_LEN]).is_some());
    assert_eq!(children(20), 1);
    drop(connection);
    fixture.check();
}

/// A process of its own connection, with its working directory in the root.
fn process(fixture: &Fixture) -> (OwnedFd, Served) {
    let (connection, channel) = fixture.connect();
    let served = Served::enter(channel.as_fd(), connection.as_fd(), b"/hf").unwrap();
    (connection, served)
}

fn wait_for(holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A process does not wait for the end of a file that it opened. The file ends before the next call
/// of that process, and soon without one.
#[test]
fn what_was_opened_is_closed_before_the_next_call_or_soon() {
    const LEN: usize = 32 << 20;
    let mut fixture = Fixture::new("closing");
    let ((_a, reader), (_b, other)) = (process(&fixture), process(&fixture));
    let c = caller();
    let blocks = |served: &Served| served.statfs_at(&c, Base::Root, b"/", 0).unwrap().free;
    let open = |fd, flags| reader.open_as((fd, &c), Base::Root, b"big", flags, 0o600, 0);
    // The file's only description, whose name is gone: 3 reads it.
    let make = |flags| {
        open(2, 0o101).unwrap();
        let file = reader.lookup(2).unwrap();
        reader.fallocate(file, 0, 0, LEN as i64).unwrap();
        assert!(reader.unbind(2).unwrap());
        open(3, flags).unwrap();
        reader.unlink(&c, Base::Root, b"big").unwrap();
        blocks(&other)
    };
    let freed = (LEN / 4096) as u64 / 2;

    for flags in [0, 1, 2] {
        let before = make(flags);
        assert!(reader.unbind(3).unwrap());
        assert!(reader.lookup(3).is_none());
        wait_for(|| blocks(&other) >= before + freed);
    }

    // The number is another file's at once, and stays it.
    let before = make(0);
    assert!(reader.unbind(3).unwrap());
    open(3, 0o102).unwrap();
    let file = reader.lookup(3).unwrap();
    assert_eq!(reader.write(file, ConstBuf::from(&b"new"[..])).unwrap(), 3);
    wait_for(|| blocks(&other) >= before + freed);
    assert!(reader.unbind(3).unwrap());
    reader.unlink(&c, Base::Root, b"big").unwrap();

    // More at a time than can be put off.
    reader.mkdir(&c, Base::Root, b"d", 0o700).unwrap();
    for fd in 10..110 {
        reader.open_as((fd, &c), Base::Root, b"d", 0, 0, 0).unwrap();
    }
    for fd in 10..110 {
        assert!(reader.unbind(fd).unwrap());
        assert!(reader.lookup(fd).is_none());
    }
    for fd in 10..110 {
        assert_eq!(reader.dup(fd, 7).unwrap_err().errno(), 9);
    }
    fixture.check();
}

/// A process moves the offset of a file that nobody else has by itself.
#[test]
fn offsets_are_told_before_the_next_call() {
    let mut fixture = Fixture::new("offsets");
    let (connection, channel) = fixture.connect();
    let served = Served::enter(channel.as_fd(), connection.as_fd(), b"/hf").unwrap();
    let memory = SharedMem::map(channel.as_fd(), CHANNEL_LEN).unwrap();
    let asked = || {
        let line: &Line = memory.at(line_at(0)).unwrap();
        Op::from_raw(line.request[0].load(SeqCst) as u32)
    };
    let is_asked = || asked() == Some(Op::Lseek);
    let c = caller();
    let seek = |fd, to| served.lseek(served.lookup(fd).unwrap(), to, 0).unwrap();
    let read = |fd| {
        let mut got = [0; 3];
        let file = served.lookup(fd).unwrap();
        assert_eq!(served.read(file, (&mut got[..]).into()).unwrap(), 3);
        got
    };
    let open = |flags| served.open_as((3, &c), Base::Root, b"f", flags, 0o600, 0);
    open(0o102).unwrap();
    let file = served.lookup(3).unwrap();
    let digits = ConstBuf::from(&b"0123456789"[..]);
    assert_eq!(served.write(file, digits).unwrap(), 10);

    assert_eq!((seek(3, 4), is_asked()), (4, false));
    assert_eq!((seek(3, 5), is_asked()), (5, false));
    assert_eq!(read(3), *b"567");
    // A duplicate has the same offset, which nobody moves without the proxy then.
    assert_eq!((seek(3, 2), is_asked()), (2, false));
    served.dup(3, 4).unwrap();
    assert_eq!((read(4), read(3)), (*b"234", *b"567"));
    assert_eq!((seek(3, 1), is_asked()), (1, true));
    assert_eq!(read(4), *b"123");
    // What was told of a file that is closed does not concern the next one of that number.
    assert!(served.unbind(4).unwrap() && served.unbind(3).unwrap());
    open(0).unwrap();
    assert_eq!((seek(3, 6), is_asked()), (6, false));
    assert!(served.unbind(3).unwrap());
    open(0).unwrap();
    assert_eq!(read(3), *b"012");
    // More than there is room for.
    for fd in 10..110 {
        served.open_as((fd, &c), Base::Root, b"f", 0, 0, 0).unwrap();
    }
    for fd in 10..110 {
        assert_eq!(seek(fd, 7), 7);
    }
    for fd in 10..110 {
        assert_eq!(read(fd), *b"789");
    }
    fixture.check();
}

/// What a lock is on is closed when close returns.
#[test]
fn a_lock_ends_when_close_returns() {
    let mut fixture = Fixture::new("locks");
    let ((_a, holder), (_b, other)) = (process(&fixture), process(&fixture));
    let c = caller();
    let lock = |served: &Served, fd| {
        let mut whole = Flock {
            kind: 1,
            whence: 0,
            start: 0,
            len: 0,
            pid: 0,
        };
        // F_SETLK
        served.fcntl_lock(served.lookup(fd).unwrap(), 6, &mut whole)
    };
    holder
        .open_as((3, &c), Base::Root, b"f", 0o102, 0o600, 0)
        .unwrap();
    other
        .open_as((3, &c), Base::Root, b"f", 0o102, 0o600, 0)
        .unwrap();
    for _ in 0..100 {
        lock(&holder, 3).unwrap();
        assert_eq!(lock(&other, 3).unwrap_err().errno(), 11);
        // Any descriptor of the file ends it, one for reading too.
        holder.open_as((4, &c), Base::Root, b"f", 0, 0, 0).unwrap();
        assert!(holder.unbind(4).unwrap());
        lock(&other, 3).unwrap();
        assert!(other.unbind(3).unwrap());
        other
            .open_as((3, &c), Base::Root, b"f", 0o102, 0, 0)
            .unwrap();
    }
    fixture.check();
}

/// Who waits for the other side of a pipe keeps nobody else from anything, and waits no more when
/// the process has ended: not even the kernel's pipe is open for it then.
#[test]
fn who_waits_for_the_other_side_of_a_pipe_ends_with_the_process() {
    const READ: u32 = 0;
    const WRITE_AT_ONCE: u32 = 0o4001;
    let mut fixture = Fixture::new("pipes");
    let ((connection, reader), (_b, other)) = (process(&fixture), process(&fixture));
    let c = caller();
    other.mknod(&c, Base::Root, b"p", 0o010_600, 0).unwrap();
    let open = |served: &Served, flags| {
        let opened = served.open_as((3, &c), Base::Root, b"p", flags, 0, 0);
        served.open_pipe(opened.unwrap().unwrap(), 3)
    };
    let no_reader = || matches!(open(&other, WRITE_AT_ONCE), Err(e) if e.errno() == 6);
    assert!(no_reader());
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| open(&reader, READ).unwrap());
        wait_for(|| open(&other, WRITE_AT_ONCE).is_ok());
        drop(reads.join().unwrap());
        assert!(no_reader());
        let lost = scope.spawn(|| open(&reader, READ).map(drop));
        std::thread::sleep(Duration::from_millis(50));
        other.mkdir(&c, Base::Root, b"beside", 0o700).unwrap();
        shutdown(&connection, Shutdown::Both).unwrap();
        assert!(lost.join().unwrap().is_err());
        wait_for(no_reader);
    });
    assert_eq!(PANICS.load(SeqCst), 0);
    fixture.check();
}

/// A handle opens what the name's permissions allowed, whatever else is asked with it, and what is
/// no open pipe is given to nobody.
#[test]
fn a_handle_is_a_pipe_only_as_it_was_opened() {
    let mut fixture = Fixture::new("handles");
    let (connection, served) = process(&fixture);
    let c = caller();
    served.mknod(&c, Base::Root, b"p", 0o010_600, 0).unwrap();
    let open = |name: &[u8], flags| served.open_as((3, &c), Base::Root, name, flags, 0o600, 0);
    // For reading, and at once.
    let handle = open(b"p", 0o4000).unwrap().unwrap();
    let pipe = served.open_pipe(handle, 3).unwrap();
    assert!(rustix::io::write(&pipe, b"x").is_err());
    let [bound, file] = [served.lookup(3).unwrap(), {
        let file = served.open(&c, Base::Root, b"f", 0o102, 0o600, 0);
        file.unwrap()
    }];
    for handle in [
        bound,
        file,
        handle,
        OfdLink::from_raw(1 << 31 | 77).unwrap(),
    ] {
        assert!(served.open_pipe(handle, 4).is_err(), "{handle:?}");
        assert!(served.lookup(4).is_none());
    }
    drop(connection);
    fixture.check();
}

/// Of the descriptors that may be on their way in messages one user has a part, and gets it back
/// when they are lost.
#[test]
fn who_keeps_messages_keeps_no_more_than_a_part() {
    const PART: usize = 128;
    let mut fixture = Fixture::new("tokens");
    let ((_a, served), (_b, other)) = (process(&fixture), process(&fixture));
    let c = caller();
    let file = served.open(&c, Base::Root, b"f", 0o102, 0o600, 0).unwrap();
    served.bind(3, file).unwrap();
    let file = served.lookup(3).unwrap();
    served.write(file, ConstBuf::from(&b"text"[..])).unwrap();
    let make = || served.make_token(file);
    for _ in 0..2 {
        let mut tokens: Vec<_> = std::iter::from_fn(|| make().ok()).collect();
        assert_eq!(tokens.len(), PART);
        let (token, key) = tokens.pop().unwrap();
        // Who has it can do nothing else with it.
        assert!(rustix::io::write(&token, b"x").is_err());
        assert!(other.receive(key ^ 1 << 40).is_none());
        let got = other.receive(key).unwrap();
        other.bind(7, got).unwrap();
        let mut text = [0; 4];
        let got = other.lookup(7).unwrap();
        let len = other.pread(got, MutBuf::from(&mut text[..]), 0).unwrap();
        assert_eq!(&text[..len], b"text");
        drop(token);
        assert!(make().is_ok());
    }
    fixture.check();
}

/// What is mapped is named by an index in a memory: nobody takes more from the count than was put
/// there, gets what is for writing by what is for reading, or names what others have mapped.
#[test]
fn a_mapping_is_its_own_memorys() {
    let mut fixture = Fixture::new("maps");
    let ((_a, served), (_b, other)) = (process(&fixture), process(&fixture));
    let c = caller();
    let open = |number: u32, flags: u32| {
        let file = served.open(&c, Base::Root, b"f", flags, 0o600, 0).unwrap();
        served.bind(number, file).unwrap();
        served.lookup(number).unwrap()
    };
    let (writes, reads) = (open(3, 0o102), open(4, 0));
    served.write(writes, ConstBuf::from(&b"text"[..])).unwrap();
    let denied = served.map_pin(reads, 3, true).unwrap_err();
    assert_eq!(denied.errno(), 13);
    let pin = served.map_pin(reads, 1, true).unwrap();
    assert!(served.lent_file(pin, true).is_err());
    let file = served.lent_file(pin, false).unwrap();
    assert!(rustix::io::pwrite(&file, b"x", 0).is_err());
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_mode & 0o7777, 0o600);
    // What another memory has mapped.
    assert!(other.lent_file(pin, false).is_err());
    assert!(other.map_repin(pin).is_err() && other.map_unpin(pin, true).is_err());
    served.map_repin(pin).unwrap();
    for _ in 0..2 {
        served.map_unpin(pin, true).unwrap();
    }
    assert!(served.map_unpin(pin, true).is_err() && served.map_repin(pin).is_err());
    assert!(served.lent_file(pin, false).is_err());
    // The file can be mapped again, stored to, and read by calls.
    let pin = served.map_pin(writes, 3, true).unwrap();
    let file = served.lent_file(pin, true).unwrap();
    assert_eq!(rustix::io::pwrite(&file, b"T", 0), Ok(1));
    let mut text = [0; 4];
    served.pread(reads, MutBuf::from(&mut text[..]), 0).unwrap();
    assert_eq!(&text, b"Text");
    // Whoever has the lent file cuts it: nobody else minds.
    rustix::fs::ftruncate(&file, 0).unwrap();
    assert_eq!(served.pread(reads, MutBuf::from(&mut text[..]), 0), Ok(4));
    rustix::fs::ftruncate(&file, 1 << 40).unwrap();
    served.msync(pin, 0, u64::MAX).unwrap();
    served.write(writes, ConstBuf::from(&b"more"[..])).unwrap();
    served.ftruncate(writes, 6).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 6);
    served.map_unpin(pin, true).unwrap();
    fixture.check();
}
