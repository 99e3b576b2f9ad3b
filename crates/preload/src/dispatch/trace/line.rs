//! The line of one call, in the form of strace(1) with `-f -ttt -T`.
//!
//! Invariants: the program's memory is read by the copies of `args` alone, and what cannot be read
//! is shown by its address; a line ends with its only newline.

use super::structs::{self, Device};
use super::words::{self, Names};
use crate::dispatch::args;
use crate::sys;
use alloc::vec::Vec;
use core::fmt::Write;
use holdfast_client::calls::{Arg, Kind, Set};

/// Formats into a line, which cannot fail.
macro_rules! put {
    ($line:expr, $($part:tt)*) => { { let _ = write!($line, $($part)*); } };
}
pub(super) use put;

/// So many bytes of a string that is not a path are shown, and entries of an array.
pub const SHOWN: usize = 32;
/// Where strace begins a result.
const COLUMN: usize = 40;
const PATH_MAX: usize = 4096;

/// Nanoseconds since 1970, or of a call.
pub type Nanoseconds = u64;

/// A call, and what it will find in the offsets that it is given.
pub struct Begun {
    args: [usize; 6],
    offsets: [Option<i64>; 6],
}

impl Begun {
    pub fn new(kind: &Kind, args: [usize; 6]) -> Begun {
        let mut offsets = [None; 6];
        for (at, arg) in kind.args.iter().enumerate() {
            if matches!(arg, Arg::Offset | Arg::OffsetMoved) {
                offsets[at] = structs::offset(args[at]);
            }
        }
        Begun { args, offsets }
    }

    fn offset(&self, at: usize) -> Option<i64> {
        self.offsets[at]
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub enum Ended {
    /// With a result, or a negated errno.
    With(isize),
    /// It does not return, or the kernel does it when this line is written.
    Unknown,
}

/// A line that is being written.
#[derive(Default)]
pub struct Line(Vec<u8>);

impl Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl Line {
    /// Who makes a call, and when.
    pub fn begin(thread: u32, time: Nanoseconds) -> Line {
        let mut line = Line(Vec::with_capacity(256));
        let (seconds, rest) = (time / 1_000_000_000, time % 1_000_000_000);
        put!(line, "{thread:<5} {seconds}.{:06} ", rest / 1000);
        line
    }

    /// The call with its arguments, and its result.
    pub fn call(&mut self, kind: &Kind, call: &Begun, ended: Ended) {
        put!(self, "{}(", kind.name);
        let values = Values { kind, call, ended };
        for at in 0..values.count() {
            if at > 0 && kind.args[at] != Arg::Hidden {
                put!(self, ", ");
            }
            values.put(at, self);
        }
        put!(self, ")");
        self.result(kind, call, ended);
    }

    fn result(&mut self, kind: &Kind, call: &Begun, ended: Ended) {
        self.equals();
        match ended {
            Ended::Unknown => put!(self, "?"),
            Ended::With(value) if sys::is_err(value) => self.errno(-value as i32),
            Ended::With(value) => match (kind.name, call.args[1]) {
                ("fcntl", F_GETFD) if value != 0 => put!(self, "{value:#x} (flags FD_CLOEXEC)"),
                ("fcntl", F_GETFL) => {
                    put!(self, "{value:#x} (flags ");
                    self.flags(words::names(Set::Open), value as u64);
                    put!(self, ")");
                }
                ("mmap" | "mremap", _) => put!(self, "{value:#x}"),
                ("umask", _) => self.permissions(value as u32),
                _ => put!(self, "{value}"),
            },
        }
    }

    /// As strace does it: results are below each other.
    pub fn equals(&mut self) {
        put!(self, " ");
        while self.0.len() < COLUMN {
            self.0.push(b' ');
        }
        put!(self, "= ");
    }

    fn errno(&mut self, errno: i32) {
        match words::errno(errno) {
            Some((name, sentence)) => put!(self, "-1 {name} ({sentence})"),
            None => put!(self, "-1 (errno {errno})"),
        }
    }

    /// What is said of the call behind its result.
    pub fn remark(&mut self, text: &str) {
        put!(self, " ({text})");
    }

    pub fn took(&mut self, time: Nanoseconds) {
        let (seconds, rest) = (time / 1_000_000_000, time % 1_000_000_000);
        put!(self, " <{seconds}.{:06}>", rest / 1000);
    }

    pub fn end(mut self) -> Vec<u8> {
        self.0.push(b'\n');
        self.0
    }

    pub fn append(&mut self, other: &Line) {
        self.0.extend_from_slice(&other.0);
    }

    /// What was read at `at`, if that could be.
    fn or_address(&mut self, text: Option<Line>, at: usize) {
        match text {
            Some(text) => self.append(&text),
            None => self.address(at),
        }
    }

    pub fn address(&mut self, at: usize) {
        match at {
            0 => put!(self, "NULL"),
            _ => put!(self, "{at:#x}"),
        }
    }

    pub fn flags(&mut self, names: &Names, value: u64) {
        let word = value & names.mask;
        let known = names.words.iter().find(|(number, _)| *number == word);
        let mut left = value & !names.mask;
        match known {
            Some((_, name)) => put!(self, "{name}"),
            None if names.mask == 0 => {}
            None => put!(self, "{word:#x}"),
        }
        let mut between = if names.mask == 0 { "" } else { "|" };
        for (flag, name) in names.flags {
            if left & flag == *flag {
                put!(self, "{between}{name}");
                left &= !flag;
                between = "|";
            }
        }
        match left {
            0 if value == 0 && known.is_none() => put!(self, "{}", names.zero),
            0 => {}
            _ => put!(self, "{between}{left:#x}"),
        }
        let none = known.is_none() && left == value & !names.mask && value != 0;
        if none {
            put!(self, " /* {} */", names.unknown);
        }
    }

    /// A C string of these bytes.
    pub fn quoted(&mut self, bytes: &[u8]) {
        self.0.push(b'"');
        for (at, byte) in bytes.iter().enumerate() {
            let escaped: &[u8] = match byte {
                b'"' => b"\\\"",
                b'\\' => b"\\\\",
                b'\t' => b"\\t",
                b'\n' => b"\\n",
                0x0b => b"\\v",
                0x0c => b"\\f",
                b'\r' => b"\\r",
                b' '..=b'~' => core::slice::from_ref(byte),
                _ if matches!(bytes.get(at + 1), Some(b'0'..=b'7')) => {
                    put!(self, "\\{byte:03o}");
                    continue;
                }
                _ => {
                    put!(self, "\\{byte:o}");
                    continue;
                }
            };
            self.0.extend_from_slice(escaped);
        }
        self.0.push(b'"');
    }

    /// So many bytes of the program's memory, or the first of them.
    pub fn bytes(&mut self, at: usize, len: usize) {
        let mut shown = [0; SHOWN];
        let shown = &mut shown[..len.min(SHOWN)];
        if at == 0 || args::source(at, shown.len()).read(shown).is_err() {
            return self.address(at);
        }
        self.quoted(shown);
        if len > SHOWN {
            put!(self, "...");
        }
    }

    /// A string in the program's memory that ends with a zero byte.
    pub fn string(&mut self, at: usize, most: usize) {
        let mut text = alloc::vec![0; most + 1];
        match (at != 0).then(|| args::read_cstr(at, &mut text)) {
            Some(Ok(len)) => self.quoted(&text[..len]),
            // Longer than that.
            Some(Err(args::ENAMETOOLONG)) => self.bytes(at, SHOWN + 1),
            _ => self.address(at),
        }
    }

    /// Type and mode of an object.
    pub fn mode(&mut self, mode: u32) {
        let kind = u64::from(mode & S_IFMT);
        let names = words::names(Set::Type);
        if let Some((_, name)) = names.words.iter().find(|(word, _)| *word == kind) {
            put!(self, "{name}|");
        }
        for (bit, name) in [
            (0o4000, "S_ISUID"),
            (0o2000, "S_ISGID"),
            (0o1000, "S_ISVTX"),
        ] {
            if mode & bit != 0 {
                put!(self, "{name}|");
            }
        }
        self.permissions(mode & 0o777);
    }

    pub fn permissions(&mut self, mode: u32) {
        put!(self, "0{mode:02o}");
    }
}

pub const S_IFMT: u32 = 0o170_000;
pub const S_IFCHR: u32 = 0o20_000;
pub const S_IFBLK: u32 = 0o60_000;
const F_GETFD: usize = 1;
const F_GETFL: usize = 3;
const AT_FDCWD: i32 = -100;

/// The arguments of a call.
struct Values<'a> {
    kind: &'a Kind,
    call: &'a Begun,
    ended: Ended,
}

impl Values<'_> {
    /// How many are shown: the last one may be there for some calls only.
    fn count(&self) -> usize {
        let all = self.kind.args.len();
        let Some(last) = all.checked_sub(1) else {
            return 0;
        };
        let before = self.call.args[last.saturating_sub(1)];
        let is_there = match self.kind.args[last] {
            Arg::OpenMode => before as u64 & structs::MAKES != 0,
            Arg::Device => matches!(before as u32 & S_IFMT, S_IFCHR | S_IFBLK),
            Arg::Control => !structs::only_asks(before),
            _ => true,
        };
        if is_there { all } else { last }
    }

    /// What the call has filled.
    fn filled(&self) -> Option<usize> {
        match self.ended {
            Ended::With(n) if n >= 0 => Some(n as usize),
            _ => None,
        }
    }

    fn put(&self, at: usize, line: &mut Line) {
        let value = self.call.args[at];
        match self.kind.args[at] {
            Arg::DirFd if value as i32 == AT_FDCWD => put!(line, "AT_FDCWD"),
            Arg::Fd | Arg::DirFd | Arg::Int => put!(line, "{}", value as i32),
            Arg::Path => line.string(value, PATH_MAX),
            Arg::Text => line.string(value, SHOWN),
            Arg::In(len) => line.bytes(value, self.call.args[len]),
            Arg::Out => match self.filled() {
                Some(len) if len <= self.call.args[at + 1] => line.bytes(value, len),
                _ => line.address(value),
            },
            Arg::OutPath => match self.filled() {
                Some(_) => line.string(value, PATH_MAX),
                None => line.address(value),
            },
            Arg::InVec => self.buffers(at, Some(usize::MAX), line),
            Arg::OutVec => self.buffers(at, self.filled(), line),
            Arg::Long => put!(line, "{}", value as isize),
            Arg::Size => put!(line, "{value}"),
            Arg::Octal | Arg::OpenMode => line.permissions(value as u32),
            Arg::Hex if value == 0 => put!(line, "0"),
            Arg::Hex => put!(line, "{value:#x}"),
            Arg::Address => line.address(value),
            Arg::Stat | Arg::Statx | Arg::Entries => {
                let text = self.filled().and_then(|len| match self.kind.args[at] {
                    Arg::Stat => structs::stat(value),
                    Arg::Statx => structs::statx(value),
                    _ => structs::entries(value, len),
                });
                line.or_address(text, value);
            }
            Arg::LimitIn => line.or_address(structs::limit(value), value),
            Arg::LimitOut => {
                let text = self.filled().and_then(|_| structs::limit(value));
                line.or_address(text, value);
            }
            Arg::How => line.or_address(structs::how(value), value),
            Arg::Offset | Arg::OffsetMoved => match self.call.offset(at) {
                None => line.address(value),
                Some(offset) => {
                    put!(line, "[{offset}]");
                    let now = structs::offset(value).filter(|now| *now != offset);
                    if let (Arg::OffsetMoved, Some(now)) = (self.kind.args[at], now) {
                        put!(line, " => [{now}]");
                    }
                }
            },
            Arg::Hidden => {}
            Arg::Times => line.or_address(structs::times(value), value),
            Arg::Argv => line.or_address(structs::arguments(value), value),
            Arg::Envp => line.or_address(structs::environment(value), value),
            Arg::Flags(set) | Arg::Word(set) => line.flags(words::names(set), value as u32 as u64),
            Arg::NodeMode => line.mode(value as u32),
            Arg::Device => put!(line, "{}", Device(value as u64)),
            Arg::Control => {
                match structs::control(self.call.args[at - 1], value, self.filled().is_some()) {
                    Some(text) => line.append(&text),
                    None => put!(line, "{value:#x}"),
                }
            }
        }
    }

    /// Buffers of which the first `filled` bytes count; `None`: their addresses do.
    fn buffers(&self, at: usize, filled: Option<usize>, line: &mut Line) {
        let (array, count) = (self.call.args[at], self.call.args[at + 1]);
        line.or_address(structs::buffers(array, count, filled), array);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use holdfast_client::calls::kind;
    use std::string::String;

    fn shown(nr: usize, args: [usize; 6], ended: Ended) -> String {
        let kind = kind(nr).unwrap();
        let mut line = Line::begin(7, 1_700_000_000_123_456_789);
        line.call(kind, &Begun::new(kind, args), ended);
        line.took(1_234_567_890);
        String::from_utf8(line.end()).unwrap()
    }

    fn rest(nr: usize, args: [usize; 6], ended: Ended) -> String {
        let all = shown(nr, args, ended);
        let rest = all.strip_prefix("7     1700000000.123456 ").unwrap();
        rest.strip_suffix(" <1.234567>\n").unwrap().into()
    }

    fn at<T: ?Sized>(what: &T) -> usize {
        core::ptr::from_ref(what).cast::<u8>() as usize
    }

    #[test]
    fn results_are_below_each_other() {
        let line = rest(3, [5, 0, 0, 0, 0, 0], Ended::With(0));
        assert_eq!(line, "close(5)        = 0");
        assert_eq!(
            rest(3, [9, 0, 0, 0, 0, 0], Ended::With(-9)),
            "close(9)        = -1 EBADF (Bad file descriptor)"
        );
        assert_eq!(rest(231, [1; 6], Ended::Unknown), "exit_group(1)   = ?");
        assert_eq!(
            rest(3, [5, 0, 0, 0, 0, 0], Ended::With(-4000)),
            "close(5)        = -1 (errno 4000)"
        );
    }

    #[test]
    fn bytes_are_those_of_a_string_in_c() {
        let write = |bytes: &[u8]| {
            let args = [1, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
            let line = rest(1, args, Ended::With(bytes.len() as isize));
            line.strip_prefix("write(1, ").unwrap().into()
        };
        let wanted: [(&[u8], &str); 5] = [
            (b"", "\"\", 0) = 0"),
            (
                b"a\"\\\n\t\r\x0b\x0c",
                "\"a\\\"\\\\\\n\\t\\r\\v\\f\", 8) = 8",
            ),
            (b"\x00\x001\x008\xff", "\"\\0\\0001\\08\\377\", 6) = 6"),
            (
                &[b'x'; 32],
                "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\", 32) = 32",
            ),
            (
                &[b'x'; 33],
                "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"..., 33) = 33",
            ),
        ];
        for (bytes, line) in wanted {
            let found: String = write(bytes);
            assert_eq!(found, line);
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_address() {
        assert_eq!(
            rest(1, [1, 0, 3, 0, 0, 0], Ended::With(-14)),
            "write(1, NULL, 3) = -1 EFAULT (Bad address)"
        );
        assert_eq!(
            rest(0, [1, 0x10, 3, 0, 0, 0], Ended::With(-9)),
            "read(1, 0x10, 3) = -1 EBADF (Bad file descriptor)"
        );
    }

    #[test]
    fn flags_and_modes_have_names() {
        let path = c"a";
        let open = |flags: usize| rest(2, [at(path), flags, 0o640, 0, 0, 0], Ended::With(3));
        assert_eq!(open(0), "open(\"a\", O_RDONLY) = 3");
        assert_eq!(open(0o102), "open(\"a\", O_RDWR|O_CREAT, 0640) = 3");
        assert_eq!(
            open(0o20_200_001),
            "open(\"a\", O_WRONLY|O_TMPFILE, 0640) = 3"
        );
        assert_eq!(open(1 << 30), "open(\"a\", O_RDONLY|0x40000000) = 3");
        let access = |mode| rest(21, [at(path), mode, 0, 0, 0, 0], Ended::With(0));
        assert_eq!(access(0), "access(\"a\", F_OK) = 0");
        assert_eq!(access(5), "access(\"a\", R_OK|X_OK) = 0");
        assert_eq!(access(8), "access(\"a\", 0x8 /* ?_OK */) = 0");
        let node = |mode| rest(133, [at(path), mode, 0x103, 0, 0, 0], Ended::With(0));
        assert_eq!(node(0o010_600), "mknod(\"a\", S_IFIFO|0600) = 0");
        assert_eq!(
            node(0o022_600),
            "mknod(\"a\", S_IFCHR|S_ISGID|0600, makedev(0x1, 0x3)) = 0"
        );
    }

    #[test]
    fn fcntl_is_shown_by_its_command() {
        let fcntl =
            |command, value, ended| rest(72, [3, command, value, 0, 0, 0], Ended::With(ended));
        assert_eq!(
            fcntl(1, 99, 1),
            "fcntl(3, F_GETFD) = 0x1 (flags FD_CLOEXEC)"
        );
        assert_eq!(fcntl(1, 99, 0), "fcntl(3, F_GETFD) = 0");
        assert_eq!(
            fcntl(3, 0, 0x8002),
            "fcntl(3, F_GETFL) = 0x8002 (flags O_RDWR|O_LARGEFILE)"
        );
        assert_eq!(
            fcntl(4, 0o4000, 0),
            "fcntl(3, F_SETFL, O_RDONLY|O_NONBLOCK) = 0"
        );
        let lock: [u64; 4] = [1, 5, u64::MAX, 0];
        assert_eq!(
            fcntl(6, at(&lock), 0),
            "fcntl(3, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=5, l_len=-1}) = 0"
        );
    }
}
