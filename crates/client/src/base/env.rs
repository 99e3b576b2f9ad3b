//! How `holdfast run` tells a program's first instructions where its session is: by one environment
//! variable, which exec passes on.
//!
//! Invariants: `parse` accepts exactly what `format` makes and never panics; the value has no NUL;
//! paths are raw bytes preceded by their length, so no byte needs escaping.

use super::map_record::RecordAt;
use super::map_settings::{MAP_NUMBERS, MapSettings};
use super::trace_settings::{TRACE_NUMBERS, TraceSettings};
use pmem::Slow;

/// Name of the variable.
pub const VARIABLE: &str = "HOLDFAST_SESSION";

/// A program of a session that takes this name (PR_SET_NAME of prctl(2)) is shown Holdfast's own
/// descriptors from then on: `holdfast run` inside a run maps session memory.
pub const INSIDE: &core::ffi::CStr = c"holdfast-inside";
/// No value is longer: two paths of 4 KiB and the numbers.
pub const VALUE_MAX: usize = 8192 + 1024;

const VERSION: u64 = 9;

/// In the place of a medium: a proxy makes the calls. `session` is the connection to it, and there
/// are no segments.
pub const SERVED: u32 = 255;

/// In the place of a medium: there is no pool, and only mappings are looked at. `session` and the
/// other descriptors are none.
pub const NO_POOL: u32 = 254;

/// An inherited descriptor of a segment and the bytes to map of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The descriptor.
    pub fd: i32,
    /// Bytes.
    pub len: u64,
}

/// Everything that a process needs to join its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionEnv<'a> {
    /// Session memory.
    pub session: Segment,
    /// Superblocks and trees, read-only.
    pub meta: Segment,
    /// The session's journal.
    pub journal: Segment,
    /// File data.
    pub data: Segment,
    /// What every descriptor of a pool file is a duplicate of.
    pub base: i32,
    /// A removed directory: the kernel's working directory of processes whose own is in the pool.
    pub parking: i32,
    /// 0 memory, 1 file, 2 dax; `SERVED`: none is mapped.
    pub medium: u32,
    /// Index of the `Run`.
    pub run: u32,
    /// Index of the process slot that was made for the first process of the run.
    pub slot: u32,
    /// What `pmem::cpu::features` said, so that not every program asks the processor again.
    pub cpu: u32,
    /// Processes that give up their rights keep the pool mapped.
    pub keep_mapped: bool,
    /// How much slower than it is the pool is to the program.
    pub slow: Slow,
    /// How mappings of the host's files are sped up; `None`: they are not.
    pub map: Option<MapSettings>,
    /// Where it is counted what was done for mappings, if that is not in the session.
    pub record: Option<RecordAt>,
    /// Where calls are written down; `None`: nowhere.
    pub trace: Option<TraceSettings>,
    /// Absolute path of the pool's directory.
    pub pool: &'a [u8],
    /// Absolute path under which the pool appears.
    pub at: &'a [u8],
}

impl<'a> SessionEnv<'a> {
    /// What a program is told whose calls a proxy makes: the numbers of its connection, of `base`
    /// and of `parking`; the pool's directory, and where the pool appears.
    pub fn of_served(
        [connection, base, parking]: [i32; 3],
        map: Option<MapSettings>,
        pool: &'a [u8],
        at: &'a [u8],
    ) -> Self {
        let number = |fd| Segment { fd, len: 0 };
        SessionEnv {
            session: number(connection),
            // Some descriptor of ours: there are no segments.
            meta: number(base),
            journal: number(base),
            data: number(base),
            base,
            parking,
            medium: SERVED,
            run: 0,
            slot: 0,
            cpu: pmem::cpu::features(),
            keep_mapped: false,
            slow: Slow::NONE,
            map,
            record: None,
            trace: None,
            pool,
            at,
        }
    }

    /// What a program is told that runs without a pool.
    pub fn of_no_pool(map: MapSettings, record: RecordAt) -> Self {
        SessionEnv {
            medium: NO_POOL,
            map: Some(map),
            record: Some(record),
            ..SessionEnv::default()
        }
    }

    /// Writes the value to the start of `out`; `None` when it does not fit or holds a NUL.
    pub fn format(&self, out: &mut [u8]) -> Option<usize> {
        let mut at = 0;
        let slow = self.slow.numbers().map(u64::from);
        let map = MapSettings::numbers(self.map);
        let record = self.record.map_or([0; 2], |r| [r.pid, r.fd].map(u64::from));
        let trace = TraceSettings::numbers(self.trace);
        let first = self.numbers().into_iter().chain(slow);
        for number in first.chain(map).chain(record).chain(trace) {
            put_number(out, &mut at, number)?;
        }
        for path in [self.pool, self.at] {
            if path.contains(&0) {
                return None;
            }
            put_number(out, &mut at, path.len() as u64)?;
            put(out, &mut at, path)?;
        }
        Some(at)
    }

    fn numbers(&self) -> [u64; 16] {
        let fd = |fd: i32| u64::from(fd.unsigned_abs());
        [
            VERSION,
            fd(self.session.fd),
            self.session.len,
            fd(self.meta.fd),
            self.meta.len,
            fd(self.journal.fd),
            self.journal.len,
            fd(self.data.fd),
            self.data.len,
            fd(self.base),
            fd(self.parking),
            self.medium.into(),
            self.run.into(),
            self.slot.into(),
            self.cpu.into(),
            self.keep_mapped.into(),
        ]
    }

    /// Whether `value` is of another version of Holdfast, if that can be said.
    pub fn is_of_other_version(mut value: &[u8]) -> bool {
        take_number(&mut value).is_some_and(|version| version != VERSION)
    }

    /// The value of the variable, read back.
    pub fn parse(value: &'a [u8]) -> Option<SessionEnv<'a>> {
        let mut rest = value;
        if take_number(&mut rest)? != VERSION {
            return None;
        }
        let segment = |rest: &mut &[u8]| {
            Some(Segment {
                fd: take_number(rest)?.try_into().ok()?,
                len: take_number(rest)?,
            })
        };
        let env = SessionEnv {
            session: segment(&mut rest)?,
            meta: segment(&mut rest)?,
            journal: segment(&mut rest)?,
            data: segment(&mut rest)?,
            base: take_number(&mut rest)?.try_into().ok()?,
            parking: take_number(&mut rest)?.try_into().ok()?,
            medium: take_number(&mut rest)?.try_into().ok()?,
            run: take_number(&mut rest)?.try_into().ok()?,
            slot: take_number(&mut rest)?.try_into().ok()?,
            cpu: take_number(&mut rest)?.try_into().ok()?,
            keep_mapped: take_number(&mut rest).filter(|word| *word < 2)? == 1,
            slow: take_slow(&mut rest)?,
            map: take_map(&mut rest)?,
            record: take_record(&mut rest)?,
            trace: take_trace(&mut rest)?,
            pool: take_path(&mut rest)?,
            at: take_path(&mut rest)?,
        };
        rest.is_empty().then_some(env)
    }
}

fn put(out: &mut [u8], at: &mut usize, bytes: &[u8]) -> Option<()> {
    out.get_mut(*at..at.checked_add(bytes.len())?)?
        .copy_from_slice(bytes);
    *at += bytes.len();
    Some(())
}

/// Decimal digits and a colon.
fn put_number(out: &mut [u8], at: &mut usize, number: u64) -> Option<()> {
    let mut text = [b':'; 21];
    let mut first = text.len() - 1;
    let mut left = number;
    loop {
        first -= 1;
        text[first] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    put(out, at, &text[first..])
}

fn take_number(rest: &mut &[u8]) -> Option<u64> {
    let end = rest.iter().position(|&b| b == b':')?;
    let (digits, tail) = (&rest[..end], &rest[end + 1..]);
    if digits.is_empty() || (digits.len() > 1 && digits[0] == b'0') {
        return None;
    }
    let mut number = 0u64;
    for digit in digits {
        let digit = digit.checked_sub(b'0').filter(|d| *d < 10)?;
        number = number.checked_mul(10)?.checked_add(digit.into())?;
    }
    *rest = tail;
    Some(number)
}

fn take_slow(rest: &mut &[u8]) -> Option<Slow> {
    let mut numbers = [0; 6];
    for number in &mut numbers {
        *number = take_number(rest)?.try_into().ok()?;
    }
    Slow::of_numbers(numbers)
}

fn take_map(rest: &mut &[u8]) -> Option<Option<MapSettings>> {
    let mut numbers = [0; MAP_NUMBERS];
    for number in &mut numbers {
        *number = take_number(rest)?;
    }
    MapSettings::of_numbers(numbers)
}

fn take_record(rest: &mut &[u8]) -> Option<Option<RecordAt>> {
    let mut number = || u32::try_from(take_number(rest)?).ok();
    match (number()?, number()?) {
        (0, 0) => Some(None),
        (0, _) => None,
        (pid, fd) => Some(Some(RecordAt { pid, fd })),
    }
}

fn take_trace(rest: &mut &[u8]) -> Option<Option<TraceSettings>> {
    let mut numbers = [0; TRACE_NUMBERS];
    for number in &mut numbers {
        *number = take_number(rest)?;
    }
    TraceSettings::of_numbers(numbers)
}

fn take_path<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take_number(rest)?.try_into().ok()?;
    let (path, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    (!path.contains(&0)).then_some(path)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::base::trace_settings::TraceFilter;
    use std::vec;

    const SAMPLE: SessionEnv<'static> = SessionEnv {
        session: Segment {
            fd: 1020,
            len: u64::MAX,
        },
        meta: Segment { fd: 1021, len: 2 },
        journal: Segment { fd: 1022, len: 0 },
        data: Segment { fd: 0, len: 4 },
        base: 1019,
        parking: 1018,
        medium: 1,
        run: 63,
        slot: 511,
        cpu: 63,
        keep_mapped: true,
        slow: Slow::NONE,
        map: None,
        record: None,
        trace: None,
        pool: b"/dev/shm/a:b c\xff",
        at: b"/hf",
    };

    #[test]
    fn comes_back() {
        let mut out = [0; VALUE_MAX];
        let n = SAMPLE.format(&mut out).unwrap();
        assert_eq!(SessionEnv::parse(&out[..n]), Some(SAMPLE));
        assert_eq!(SAMPLE.format(&mut out[..n - 1]), None);
        let slow = SessionEnv {
            slow: Slow::parse("rdsx=1.5,wrlat=1000000000,wrbw=1").unwrap(),
            map: Some(MapSettings::DEFAULT),
            record: Some(RecordAt { pid: 7, fd: 0 }),
            trace: Some(TraceSettings {
                fd: 1024,
                filter: TraceFilter::SERVED,
            }),
            ..SAMPLE
        };
        let n = slow.format(&mut out).unwrap();
        assert_eq!(SessionEnv::parse(&out[..n]), Some(slow));
        let longest = vec![b'x'; 4096];
        let long = SessionEnv {
            pool: &longest,
            at: &longest,
            ..SAMPLE
        };
        assert!(long.format(&mut out).is_some());
        assert_eq!(
            SessionEnv {
                at: b"a\0b",
                ..SAMPLE
            }
            .format(&mut out),
            None
        );
    }

    #[test]
    fn anything_else_is_refused() {
        let mut out = [0; VALUE_MAX];
        let n = SAMPLE.format(&mut out).unwrap();
        for cut in 0..n {
            assert_eq!(SessionEnv::parse(&out[..cut]), None);
        }
        for bad in [
            "",
            "7:1:",
            "9:01:",
            "9::",
            "9:-1:",
            "9:99999999999999999999:",
            "x",
        ] {
            assert_eq!(SessionEnv::parse(bad.as_bytes()), None, "{bad}");
        }
        out[n] = b'x';
        assert_eq!(SessionEnv::parse(&out[..n + 1]), None);
    }
}
