//! What arguments point to, in the form of strace(1).
//!
//! Invariant: each function answers `None` if the program's memory there cannot be read.

use super::line::{Line, S_IFBLK, S_IFCHR, S_IFMT, SHOWN, put};
use super::words;
use crate::dispatch::args;
use core::fmt;
use core::fmt::Write;
use holdfast_client::calls::Set;

const UTIME_NOW: u64 = 0x3fff_ffff;
const UTIME_OMIT: u64 = 0x3fff_fffe;
/// O_CREAT and O_TMPFILE without O_DIRECTORY: open(2) has a mode.
pub const MAKES: u64 = 0o100 | 0o20_000_000;
const STAT: usize = 144;
const STATX: usize = 256;
const FLOCK: usize = 32;

/// The number of `len` bytes at `at` of a struct.
fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let mut number = [0; 8];
    number[..len].copy_from_slice(&bytes[at..at + len]);
    u64::from_le_bytes(number)
}

/// A device, by major and minor number (makedev(3)).
pub struct Device(pub u64);

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = self.0;
        let major = (d >> 8 & 0xfff) | (d >> 32 & !0xfff);
        let minor = (d & 0xff) | (d >> 12 & !0xff & 0xffff_ffff);
        write!(f, "makedev({major:#x}, {minor:#x})")
    }
}

/// `struct stat`, in short.
pub fn stat(at: usize) -> Option<Line> {
    let bytes: [u8; STAT] = args::read_bytes(at).ok()?;
    let mut line = Line::default();
    let mode = number(&bytes, 24, 4) as u32;
    put!(line, "{{st_mode=");
    line.mode(mode);
    match mode & S_IFMT {
        S_IFCHR | S_IFBLK => put!(line, ", st_rdev={}", Device(number(&bytes, 40, 8))),
        _ => put!(line, ", st_size={}", number(&bytes, 48, 8)),
    }
    put!(line, ", ...}}");
    Some(line)
}

/// `struct statx`, in short.
pub fn statx(at: usize) -> Option<Line> {
    let bytes: [u8; STATX] = args::read_bytes(at).ok()?;
    let mut line = Line::default();
    put!(line, "{{stx_mask=");
    line.flags(words::names(Set::StatxMask), number(&bytes, 0, 4));
    let attributes = number(&bytes, 8, 8);
    match attributes {
        0 => put!(line, ", stx_attributes=0, stx_mode="),
        _ => put!(line, ", stx_attributes={attributes:#x}, stx_mode="),
    }
    line.mode(number(&bytes, 28, 2) as u32);
    put!(line, ", stx_size={}, ...}}", number(&bytes, 40, 8));
    Some(line)
}

/// How many entries getdents(2) has filled: a record has its length behind two words, and in the
/// old call as well.
pub fn entries(at: usize, len: usize) -> Option<Line> {
    const LENGTH_AT: usize = 16;
    let (mut count, mut from) = (0, 0);
    while from < len {
        let bytes: [u8; 2] = args::read_bytes(at.wrapping_add(from + LENGTH_AT)).ok()?;
        from += usize::from(u16::from_le_bytes(bytes)).max(1);
        count += 1;
    }
    let mut line = Line::default();
    put!(line, "{at:#x} /* {count} entries */");
    Some(line)
}

/// Where a call begins in a file, if the program says that.
pub fn offset(at: usize) -> Option<i64> {
    let offset = args::read_u64(at).ok().filter(|_| at != 0)?;
    Some(offset as i64)
}

/// `struct rlimit64`.
pub fn limit(at: usize) -> Option<Line> {
    let bytes: [u8; 16] = args::read_bytes(at).ok().filter(|_| at != 0)?;
    let mut line = Line::default();
    for (from, name) in [(0, "{rlim_cur="), (8, ", rlim_max=")] {
        put!(line, "{name}");
        match number(&bytes, from, 8) {
            u64::MAX => put!(line, "RLIM64_INFINITY"),
            value if value > 1024 && value.is_multiple_of(1024) => {
                put!(line, "{}*1024", value / 1024);
            }
            value => put!(line, "{value}"),
        }
    }
    put!(line, "}}");
    Some(line)
}

/// `struct open_how` of openat2(2).
pub fn how(at: usize) -> Option<Line> {
    let bytes: [u8; 24] = args::read_bytes(at).ok().filter(|_| at != 0)?;
    let (flags, mode) = (number(&bytes, 0, 8), number(&bytes, 8, 8));
    let mut line = Line::default();
    put!(line, "{{flags=");
    line.flags(words::names(Set::Open), flags);
    if mode != 0 || flags & MAKES != 0 {
        put!(line, ", mode=");
        line.permissions(mode as u32);
    }
    put!(line, ", resolve=");
    line.flags(words::names(Set::Resolve), number(&bytes, 16, 8));
    put!(line, "}}");
    Some(line)
}

/// Two of `struct timespec`.
pub fn times(at: usize) -> Option<Line> {
    if at == 0 {
        return None;
    }
    let bytes: [u8; 32] = args::read_bytes(at).ok()?;
    let mut line = Line::default();
    for (from, before, behind) in [(0, "[", ", "), (16, "", "]")] {
        put!(line, "{before}");
        let (seconds, rest) = (number(&bytes, from, 8), number(&bytes, from + 8, 8));
        match rest {
            UTIME_NOW => put!(line, "UTIME_NOW"),
            UTIME_OMIT => put!(line, "UTIME_OMIT"),
            _ => put!(line, "{{tv_sec={}, tv_nsec={rest}}}", seconds as i64),
        }
        put!(line, "{behind}");
    }
    Some(line)
}

/// An array of buffers, the first `filled` bytes of which count; `None`: their addresses do.
pub fn buffers(array: usize, count: usize, filled: Option<usize>) -> Option<Line> {
    let mut left = filled.unwrap_or(0);
    let mut line = Line::default();
    put!(line, "[");
    for n in 0..count.min(SHOWN) {
        let (base, len) = args::iovec(array, n).ok()?;
        put!(line, "{}{{iov_base=", if n > 0 { ", " } else { "" });
        match filled {
            Some(_) => line.bytes(base, len.min(left)),
            None => line.address(base),
        }
        left -= len.min(left);
        put!(line, ", iov_len={len}}}");
    }
    put!(line, "{}]", if count > SHOWN { ", ..." } else { "" });
    Some(line)
}

/// The address of string `n` of an array that ends with a null pointer.
fn pointer(array: usize, n: usize) -> Option<usize> {
    args::read_u64(array.wrapping_add(n * 8))
        .ok()
        .map(|at| at as usize)
}

/// The arguments of a program.
pub fn arguments(array: usize) -> Option<Line> {
    let mut line = Line::default();
    put!(line, "[");
    for n in 0.. {
        let at = pointer(array, n)?;
        if at == 0 {
            break;
        }
        put!(line, "{}", if n > 0 { ", " } else { "" });
        if n == SHOWN {
            put!(line, "...");
            break;
        }
        line.string(at, SHOWN);
    }
    put!(line, "]");
    Some(line)
}

/// The environment of a program: how many variables it has.
pub fn environment(array: usize) -> Option<Line> {
    let mut count = 0;
    while pointer(array, count)? != 0 {
        count += 1;
    }
    let mut line = Line::default();
    let plural = if count == 1 { "" } else { "s" };
    put!(line, "{array:#x} /* {count} var{plural} */");
    Some(line)
}

/// Whether a command of fcntl(2) takes no argument.
pub fn only_asks(command: usize) -> bool {
    const GETFD: usize = 1;
    const GETFL: usize = 3;
    const GETOWN: usize = 9;
    const GETSIG: usize = 11;
    const GETLEASE: usize = 1025;
    const GETPIPE_SZ: usize = 1032;
    const GET_SEALS: usize = 1034;
    matches!(
        command,
        GETFD | GETFL | GETOWN | GETSIG | GETLEASE | GETPIPE_SZ | GET_SEALS
    )
}

/// What a command of fcntl(2) takes, or has filled; `None`: it is shown as it is.
pub fn control(command: usize, value: usize, filled: bool) -> Option<Line> {
    const DUPFD: usize = 0;
    const SETFD: usize = 2;
    const SETFL: usize = 4;
    const GETLK: usize = 5;
    const SETLKW: usize = 7;
    const OFD_GETLK: usize = 36;
    const OFD_SETLKW: usize = 38;
    const SETLEASE: usize = 1024;
    const DUPFD_CLOEXEC: usize = 1030;
    const SETPIPE_SZ: usize = 1031;
    let mut line = Line::default();
    match command {
        DUPFD | DUPFD_CLOEXEC | SETPIPE_SZ => put!(line, "{}", value as u32),
        SETFD if value == 1 => put!(line, "FD_CLOEXEC"),
        SETFL => line.flags(words::names(Set::Open), value as u64),
        GETLK | OFD_GETLK if !filled => return None,
        GETLK..=SETLKW | OFD_GETLK..=OFD_SETLKW => {
            return lock(value, matches!(command, GETLK | OFD_GETLK));
        }
        SETLEASE => line.flags(words::names(Set::Lock), value as u64),
        _ if value == 0 => put!(line, "0"),
        _ => return None,
    }
    Some(line)
}

/// `struct flock`.
fn lock(at: usize, with_pid: bool) -> Option<Line> {
    let bytes: [u8; FLOCK] = args::read_bytes(at).ok()?;
    let mut line = Line::default();
    put!(line, "{{l_type=");
    line.flags(words::names(Set::Lock), number(&bytes, 0, 2));
    put!(line, ", l_whence=");
    line.flags(words::names(Set::Whence), number(&bytes, 2, 2));
    let (start, len) = (number(&bytes, 8, 8) as i64, number(&bytes, 16, 8) as i64);
    put!(line, ", l_start={start}, l_len={len}");
    if with_pid {
        put!(line, ", l_pid={}", number(&bytes, 24, 4) as i32);
    }
    put!(line, "}}");
    Some(line)
}
