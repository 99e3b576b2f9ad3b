//! The form of a channel and of the calls in it; `docs/spec/proxy.md` states every field.
//!
//! Invariant: words and bytes here are whatever the other side stored: both sides copy them once
//! and check what they copied.

use crate::base::error::Error;
use crate::base::types::{Base, OfdLink, SetTime, Stat};
use alloc::vec::Vec;
use pmem::atomic::Ordering::Relaxed;
use pmem::atomic::{AtomicU32, AtomicU64};
use pmem::env::ticks;

/// Calls that can be under way in one channel.
pub const LINES: usize = 16;
/// Bytes that one call can carry in each direction.
pub const BUFFER: usize = 1 << 20;
/// Words of a request, and of an answer.
pub const WORDS: usize = 16;
/// Bytes of a channel.
pub const CHANNEL_LEN: usize = BUFFERS_AT + LINES * BUFFER;
const LINES_AT: usize = 4096;
const BUFFERS_AT: usize = 16 * 4096;

/// `Line::turn`: nobody uses the line.
pub const IDLE: u32 = 0;
/// It is the proxy's turn.
pub const ASKED: u32 = 1;
/// It is the caller's turn.
pub const ANSWERED: u32 = 2;
/// Nobody uses the line, and there is something untold.
pub const KNOCKED: u32 = 3;

pmem::shared! {
    /// At the beginning of a channel: what the caller has counted, until the proxy adds it to the
    /// counts of the run.
    pub struct Counts {
        /// Calls that the pool served.
        pub served: AtomicU64,
        /// Calls that were left to the kernel.
        pub passed: AtomicU64,
    }

    /// What the caller did without the proxy, which does the same before the next call on any
    /// line, or when it has nothing else to do.
    #[repr(align(64))]
    pub struct Untold {
        /// How many there are: the proxy has done them when it counts them down.
        pub count: AtomicU32,
        /// `Item::encode` of each; 0: free.
        pub entries: [AtomicU64; UNTOLD],
    }

    /// One call at a time.
    #[repr(align(64))]
    pub struct Line {
        /// Whose turn it is; both sides sleep here.
        pub turn: AtomicU32,
        /// The proxy sleeps, or is about to.
        pub proxy_sleeps: AtomicU32,
        /// The caller does.
        pub caller_sleeps: AtomicU32,
        /// The caller wants the call to end: a signal came.
        pub cancel: AtomicU32,
        pub request: [AtomicU64; WORDS],
        pub answer: [AtomicU64; WORDS],
        /// The processor on which the caller fell asleep last.
        pub caller_cpu: AtomicU32,
    }
}

/// How much the caller can do without the proxy.
pub const UNTOLD: usize = 32;

const _: () = assert!(UNTOLD_AT as usize + size_of::<Untold>() <= LINES_AT);
const _: () = assert!(LINES_AT + LINES * size_of::<Line>() <= BUFFERS_AT);

/// Whether one side looks at a line for a while before it sleeps there. Looking costs less than
/// sleeping where the other side runs meanwhile, and keeps it from running where it waits for this
/// processor: who looked in vain does not look for some calls, and for twice as many the next time.
/// Where both sides have fallen asleep neither is there in time for a look of the other, so who
/// looks again after a pause looks for longer than it takes to wake up, and for some calls more.
#[derive(Default)]
pub struct Patience {
    skipped: AtomicU32,
    left: AtomicU32,
    long: AtomicU32,
}

/// How long a look takes at most, in ticks of some GHz: longer than a call that changes something,
/// 30 us. The instruction that waits between two glances takes any time in a virtual machine, so
/// they are not counted.
const LOOK_TICKS: u64 = 75_000;
/// Longer than it takes the other side to wake up and answer, 100 us.
const LONG_LOOK_TICKS: u64 = 250_000;
/// Long looks after one that was not in vain.
const LONG_LOOKS: u32 = 127;
/// Calls without a look between two looks, at most.
const SKIPPED_MAX: u32 = 127;

impl Patience {
    /// Looks until `is_there` says so; false when that takes too long, or is not to be expected.
    pub fn look(&self, is_there: impl Fn() -> bool) -> bool {
        let left = self.left.load(Relaxed);
        if left > 0 {
            self.left.store(left - 1, Relaxed);
            return is_there();
        }
        let after_pause = self.skipped.load(Relaxed) > 0;
        let long = self.long.load(Relaxed);
        let ticks_max = match after_pause || long > 0 {
            true => LONG_LOOK_TICKS,
            false => LOOK_TICKS,
        };
        let begun = ticks();
        loop {
            let is_over = ticks().wrapping_sub(begun) >= ticks_max;
            if is_there() {
                let more = match after_pause {
                    true => LONG_LOOKS,
                    false => long.saturating_sub(1),
                };
                self.long.store(more, Relaxed);
                self.skipped.store(0, Relaxed);
                return true;
            }
            // What came while the time passed is seen.
            if is_over {
                break;
            }
            core::hint::spin_loop();
        }
        self.long.store(0, Relaxed);
        let skipped = (self.skipped.load(Relaxed) * 2 + 1).min(SKIPPED_MAX);
        self.skipped.store(skipped, Relaxed);
        self.left.store(skipped, Relaxed);
        false
    }
}

/// Where the counts are.
pub const COUNTS_AT: u64 = 0;
/// Where the untold is.
pub const UNTOLD_AT: u64 = 64;

/// In OPEN's answer, beside the flags of the description: it is a regular file, and may be read,
/// written or sought in.
pub const REGULAR: u32 = 1 << 30;

/// Bytes of a file that OPEN answers with, at most.
pub const CONTENT_MAX: usize = 16 << 10;

/// What the process that a channel was made for did to its descriptor `fd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    pub fd: u32,
    pub what: Done,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Closed,
    /// The file offset is this one now.
    At(u64),
}

/// In the place of an item: the proxy does it, so that it cannot be replaced.
pub const BEING_DONE: u64 = u64::MAX;
const ITEM_FD_BITS: u32 = 17;
/// File offsets that can be told are below this.
pub const OFFSET_END: u64 = 1 << 46;

impl Item {
    /// `None`: it is out of the range that can be told.
    pub fn encode(self) -> Option<u64> {
        let number = u64::from(self.fd) + 1;
        let rest = match self.what {
            Done::Closed => 0,
            Done::At(offset) if offset < OFFSET_END => offset + 1,
            Done::At(_) => return None,
        };
        (number >> ITEM_FD_BITS == 0).then_some(rest << ITEM_FD_BITS | number)
    }

    /// The item in a word; `None`: there is none.
    pub fn decode(word: u64) -> Option<Item> {
        let number = word as u32 & ((1 << ITEM_FD_BITS) - 1);
        Some(Item {
            fd: number.checked_sub(1)?,
            what: match (word >> ITEM_FD_BITS).checked_sub(1) {
                None => Done::Closed,
                Some(offset) => Done::At(offset),
            },
        })
    }
}

/// Where a line is.
pub fn line_at(line: usize) -> u64 {
    (LINES_AT + line * size_of::<Line>()) as u64
}

/// Where its bytes are.
pub fn buffer_at(line: usize) -> u64 {
    (BUFFERS_AT + line * BUFFER) as u64
}

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident $number:literal,)*) => {
        /// What is asked.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Op { $($(#[$doc])* $name = $number,)* }

        impl Op {
            /// The one with this number.
            pub fn from_raw(raw: u32) -> Option<Op> {
                match raw {
                    $($number => Some(Op::$name),)*
                    _ => None,
                }
            }
        }
    };
}

ops! {
    /// The first call of a run: the path at which the pool appears.
    Enter 1,
    /// The first call of a program.
    Resume 2,
    Open 3,
    Mkdir 4,
    Mknod 5,
    Symlink 6,
    Link 7,
    Unlink 8,
    Rmdir 9,
    Rename 10,
    Readlink 11,
    Access 12,
    Chmod 13,
    Chown 14,
    Utimens 15,
    Truncate 16,
    Stat 17,
    Statfs 18,
    Chdir 19,
    Fchdir 20,
    ChdirOutside 21,
    CwdInside 22,
    Getcwd 23,
    PathOf 24,
    Getxattr 25,
    Setxattr 26,
    Listxattr 27,
    Removexattr 28,
    Lookup 29,
    NextDescriptor 30,
    Bind 31,
    Dup 32,
    Unbind 33,
    Release 34,
    Getfl 35,
    Setfl 36,
    InoOf 37,
    Read 38,
    Write 39,
    Lseek 40,
    CopyRange 41,
    Ftruncate 42,
    Fallocate 43,
    Fsync 44,
    SyncRange 45,
    Sync 46,
    Getdents 47,
    WithinLimit 48,
    FileLimit 49,
    Fstat 50,
    Fchmod 51,
    Fchown 52,
    Futimens 53,
    Lock 54,
    Flock 55,
    ChildPrepare 56,
    Exit 57,
    Umask 58,
    Refuse 60,
    Uninstrumented 61,
    Report 62,
    Narrow 63,
    /// The first call of a process that had the pool mapped: the place that it left.
    Adopt 64,
    /// A socket with a name in the pool was bound, at this path of the host.
    PlaceSocket 65,
    /// The kernel's socket behind a name, which comes by an OBJECT.
    SocketAt 66,
    /// Opens the kernel's pipe behind a handle that OPEN gave, and waits for the other side.
    OpenPipe 67,
    /// That pipe comes by an OBJECT, and a descriptor is bound to the handle.
    TakePipe 68,
    /// A token that stands for a description in a message comes by an OBJECT; its key.
    SendToken 69,
    /// What a token with this key stands for.
    ReceiveToken 70,
    /// A token with this key was closed.
    SettleToken 71,
    /// Lends the file of a description, to be mapped shared: the index of the mapping.
    MapLend 72,
    /// The file to map comes by an OBJECT.
    MapFile 73,
    MapMore 74,
    MapLess 75,
    MapStored 76,
    MapSync 77,
    /// How the proxy names a keyspace from now on, and its number.
    KvOpen 78,
    /// Names of keyspaces.
    KvList 79,
    /// A value, in the present or in a view.
    KvGet 80,
    /// More of a value that did not fit an answer.
    KvRest 81,
    /// Changes, which are made or kept for later.
    KvChange 82,
    /// A file without a name becomes the value of a key.
    KvName 83,
    ViewBegin 84,
    ScanBegin 85,
    /// The next pairs.
    ScanNext 86,
    /// A view, a scan, changes that were kept or the rest of a value are not needed any more.
    KvDrop 87,
    /// The snapshots of the pool.
    SnapshotList 88,
    /// A keyspace goes, with all its keys.
    KvRemove 89,
    /// A keyspace gets another name.
    KvRename 90,
    /// A change of one key, if its value is what is expected.
    KvSwap 91,
    /// How many keys a scan has before it.
    ScanCount 92,
    /// Memory where answers are kept, and the words of leases, come by an OBJECT: as whom they are
    /// answered.
    Answers 93,
}

/// In the list of descriptors that RESUME answers with, and in LOOKUP's answer: it is a pipe.
pub const PIPE: u32 = 1 << 31;

/// A message on a connection, beside the calls: its kind, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// The caller will use this line.
    Line(u32),
    /// A program has begun by execve(2) in the process of this number, and has no channel.
    Renew(u32),
    /// A process of this number was born by fork(2).
    Born(u32),
    /// The connection and the channel of a child come with it.
    Child(u32),
    /// A channel comes with it.
    Channel,
    /// What was asked for comes with it.
    Object,
}

/// Bytes of a note.
pub const NOTE_LEN: usize = 16;
const NOTE_MAGIC: u32 = 0x4e50_4648;

impl Note {
    /// The message.
    pub fn encode(self) -> [u8; NOTE_LEN] {
        let (kind, value) = match self {
            Note::Line(line) => (1, line),
            Note::Renew(pid) => (2, pid),
            Note::Child(member) => (3, member),
            Note::Channel => (4, 0),
            Note::Born(pid) => (5, pid),
            Note::Object => (6, 0),
        };
        let mut out = [0; NOTE_LEN];
        out[..4].copy_from_slice(&NOTE_MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&u32::to_le_bytes(kind));
        out[8..12].copy_from_slice(&value.to_le_bytes());
        out
    }

    /// The note in `bytes`; `None` for anything that `encode` does not make.
    pub fn decode(bytes: &[u8]) -> Option<Note> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let note = match word(4)? {
            1 => Note::Line(word(8)?),
            2 => Note::Renew(word(8)?),
            3 => Note::Child(word(8)?),
            4 => Note::Channel,
            5 => Note::Born(word(8)?),
            6 => Note::Object,
            _ => return None,
        };
        (note.encode()[..] == *bytes).then_some(note)
    }
}

/// Handles of descriptions that no descriptor refers to yet have this bit; the others are a
/// descriptor's number plus one.
pub const UNBOUND: u32 = 1 << 31;

/// Who asks, what, and with what; the first words of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub op: u32,
    /// Which of the processes that use this channel; 0: the one that it was made for.
    pub member: u32,
    pub uid: u32,
    pub gid: u32,
    pub privileged: bool,
    /// Bytes of the first text, the second one, and of what follows them in the buffer.
    pub lens: [u32; 3],
}

/// Words that a head takes; the rest are arguments.
pub const HEAD: usize = 4;

impl Head {
    pub fn encode(&self) -> [u64; HEAD] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [
            pair(self.op, self.member),
            pair(self.uid, self.gid),
            pair(self.privileged.into(), self.lens[0]),
            pair(self.lens[1], self.lens[2]),
        ]
    }

    pub fn decode(words: &[u64; WORDS]) -> Head {
        let (low, high) = (|w: u64| w as u32, |w: u64| (w >> 32) as u32);
        Head {
            op: low(words[0]),
            member: high(words[0]),
            uid: low(words[1]),
            gid: high(words[1]),
            privileged: low(words[2]) & 1 != 0,
            lens: [high(words[2]), low(words[3]), high(words[3])],
        }
    }
}

/// Where a walk starts, as a word.
pub fn base_word(base: Base) -> u64 {
    match base {
        Base::Root => 0,
        Base::Cwd => 1,
        Base::Ofd(handle) => 2 | u64::from(handle.raw()) << 32,
        // Nobody who is served has one; it is refused.
        Base::Node(_) => 3,
    }
}

/// The same read back, with a handle in the place of a description.
pub fn word_base(word: u64) -> Option<Base> {
    match (word as u32, (word >> 32) as u32) {
        (0, 0) => Some(Base::Root),
        (1, 0) => Some(Base::Cwd),
        (2, handle) => OfdLink::from_raw(handle).map(Base::Ofd),
        _ => None,
    }
}

const NOW: u64 = i64::MIN as u64;
const OMIT: u64 = NOW + 1;

/// A time of utimensat(2), as a word.
pub fn time_word(time: SetTime) -> u64 {
    match time {
        SetTime::Now => NOW,
        SetTime::Omit => OMIT,
        SetTime::At(at) => at as u64,
    }
}

/// The same read back.
pub fn word_time(word: u64) -> SetTime {
    match word {
        NOW => SetTime::Now,
        OMIT => SetTime::Omit,
        at => SetTime::At(at as i64),
    }
}

/// An id that may stay as it is.
pub fn id_word(id: Option<u32>) -> u64 {
    id.map_or(u64::MAX, u64::from)
}

/// The same read back.
pub fn word_id(word: u64) -> Option<u32> {
    u32::try_from(word).ok()
}

/// In the place of an offset: the file offset.
const AT_FILE_OFFSET: u64 = i64::MIN as u64;

/// In place of the flags of preadv2(2): read(2) or pread(2) is asked for.
pub const PLAIN_READ: u64 = u64::MAX;

/// An offset, or the file offset.
pub fn offset_word(offset: Option<i64>) -> u64 {
    offset.map_or(AT_FILE_OFFSET, |at| at as u64)
}

/// The same read back.
pub fn word_offset(word: u64) -> Option<i64> {
    (word != AT_FILE_OFFSET).then_some(word as i64)
}

/// Attributes, as words of an answer.
pub fn stat_words(stat: &Stat) -> [u64; 11] {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    [
        stat.ino,
        pair(stat.mode, stat.nlink),
        pair(stat.uid, stat.gid),
        stat.rdev,
        stat.size,
        stat.block_size.into(),
        stat.blocks,
        stat.atime as u64,
        stat.mtime as u64,
        stat.ctime as u64,
        stat.btime as u64,
    ]
}

/// The same read back.
pub fn words_stat(words: &[u64]) -> Stat {
    let word = |at: usize| words.get(at).copied().unwrap_or(0);
    Stat {
        ino: word(0),
        mode: word(1) as u32,
        nlink: (word(1) >> 32) as u32,
        uid: word(2) as u32,
        gid: (word(2) >> 32) as u32,
        rdev: word(3),
        size: word(4),
        block_size: word(5) as u32,
        blocks: word(6),
        atime: word(7) as i64,
        mtime: word(8) as i64,
        ctime: word(9) as i64,
        btime: word(10) as i64,
    }
}

/// Errors that callers tell from others, or show.
const TOLD: &[Error] = &[
    Error::NotPermitted,
    Error::NotFound,
    Error::TooBig,
    Error::BadDescriptor,
    Error::NoMemory,
    Error::Denied,
    Error::NotDirectory,
    Error::IsDirectory,
    Error::Invalid,
    Error::FileTooLarge,
    Error::NoSpace,
    Error::ReadOnly,
    Error::NameTooLong,
    Error::TooManyViews,
    Error::ViewTooOld,
    Error::OverQuota,
];

const OUTSIDE: u64 = 1 << 16;
const OUTSIDE_SECOND: u64 = 2 << 16;
const OVER_LIMIT: u64 = 3 << 16;
const NO_PLACE: u64 = 4 << 16;
/// In the place of an error: the call waits still, and is to be made again. So no line is away for
/// long, and no call outlives its caller.
pub const WAITS: u64 = 5 << 16;

/// An error as the first word of an answer, which is 0 for none; a path that leads on is told in
/// the buffer.
pub fn error_word(error: &Error) -> u64 {
    match error {
        Error::Outside(_) => OUTSIDE,
        Error::OutsideSecond(_) => OUTSIDE_SECOND,
        Error::OverLimit => OVER_LIMIT,
        Error::NoPlace => NO_PLACE,
        other => other.errno().unsigned_abs().clamp(1, 4095).into(),
    }
}

/// The same read back, with the bytes in the buffer.
pub fn word_error(word: u64, path: Vec<u8>) -> Error {
    match word {
        OUTSIDE => Error::Outside(path.into()),
        OUTSIDE_SECOND => Error::OutsideSecond(path.into()),
        OVER_LIMIT => Error::OverLimit,
        NO_PLACE => Error::NoPlace,
        errno => {
            let errno = errno.min(4095) as i32;
            let mut told = TOLD.iter().filter(|error| error.errno() == errno);
            let call = "the proxy";
            told.next()
                .cloned()
                .unwrap_or(Error::Kernel { call, errno })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_and_heads_come_back() {
        for note in [
            Note::Line(7),
            Note::Renew(8),
            Note::Child(u32::MAX),
            Note::Channel,
            Note::Born(9),
            Note::Object,
        ] {
            let bytes = note.encode();
            assert_eq!(Note::decode(&bytes), Some(note));
            assert_eq!(Note::decode(&bytes[1..]), None);
        }
        assert_eq!(Note::decode(&[0; NOTE_LEN]), None);
        let head = Head {
            op: 3,
            member: u32::MAX,
            uid: 1,
            gid: 2,
            privileged: true,
            lens: [4, 5, 6],
        };
        let mut words = [u64::MAX; WORDS];
        words[..HEAD].copy_from_slice(&head.encode());
        assert_eq!(Head::decode(&words), head);
    }

    #[test]
    fn items_come_back() {
        let item = |fd, what| Item { fd, what };
        for item in [
            item(0, Done::Closed),
            item(65_535, Done::Closed),
            item(3, Done::At(0)),
            item(65_535, Done::At(OFFSET_END - 1)),
        ] {
            let word = item.encode().unwrap();
            assert!(word != 0 && word != BEING_DONE);
            assert_eq!(Item::decode(word), Some(item));
        }
        assert_eq!(item(1 << 17, Done::Closed).encode(), None);
        assert_eq!(item(3, Done::At(OFFSET_END)).encode(), None);
        assert_eq!(Item::decode(0), None);
    }

    #[test]
    fn errors_that_callers_tell_come_back() {
        let error = |e: Error| word_error(error_word(&e), Vec::new());
        assert!(matches!(error(Error::NotFound), Error::NotFound));
        assert!(matches!(error(Error::IsDirectory), Error::IsDirectory));
        assert_eq!(error(Error::Exists).errno(), Error::Exists.errno());
    }

    #[test]
    fn arguments_come_back() {
        let handle = OfdLink::from_raw(UNBOUND | 3).unwrap();
        for base in [Base::Root, Base::Cwd, Base::Ofd(handle)] {
            assert_eq!(word_base(base_word(base)), Some(base));
        }
        assert_eq!(word_base(2), None);
        assert_eq!(word_base(base_word(Base::Node(1))), None);
        assert_eq!(word_base(9), None);
        for time in [SetTime::Now, SetTime::Omit, SetTime::At(-1), SetTime::At(5)] {
            assert_eq!(word_time(time_word(time)), time);
        }
        for offset in [None, Some(0), Some(-1), Some(i64::MAX)] {
            assert_eq!(word_offset(offset_word(offset)), offset);
        }
        for id in [None, Some(0), Some(u32::MAX - 1)] {
            assert_eq!(word_id(id_word(id)), id);
        }
        let stat = Stat {
            ino: 1,
            mode: 2,
            nlink: 3,
            uid: 4,
            gid: 5,
            rdev: 6,
            size: 7,
            block_size: 8,
            blocks: 9,
            atime: -10,
            mtime: 11,
            ctime: 12,
            btime: 13,
        };
        assert_eq!(words_stat(&stat_words(&stat)), stat);
    }

    #[test]
    fn errors_come_back() {
        let path = || b"/x".to_vec();
        for error in [
            Error::Outside(path().into()),
            Error::OutsideSecond(path().into()),
            Error::OverLimit,
            Error::NoPlace,
        ] {
            assert_eq!(word_error(error_word(&error), path()), error);
        }
        for error in [Error::Denied, Error::Interrupted, Error::NoSpace] {
            let errno = word_error(error_word(&error), path()).errno();
            assert_eq!(errno, error.errno());
        }
    }
}
