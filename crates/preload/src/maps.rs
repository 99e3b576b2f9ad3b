//! The mappings of this process, from one reading of /proc/self/maps.
//!
//! Invariant: this is a snapshot; callers must still cope with a kernel that refuses.
use crate::sys::Fd;
use alloc::vec::Vec;

#[derive(Clone, Copy)]
pub struct Region {
    pub start: usize,
    pub end: usize,
    pub offset: usize,
    pub read: bool,
    pub write: bool,
    pub exec: bool,
    /// Device numbers, mixed into one word.
    pub dev: u64,
    /// 0 for what is no file.
    pub ino: u64,
    /// `[heap]`: grows upwards, so nothing may be put right behind it.
    pub heap: bool,
    pub vdso: bool,
}

/// All regions in address order; empty when /proc cannot be read.
pub fn read() -> Vec<Region> {
    let text = read_text().unwrap_or_default();
    text.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

fn read_text() -> Option<Vec<u8>> {
    let fd = Fd::open(b"/proc/self/maps\0", 0, 0)?;
    let mut text = Vec::with_capacity(16 << 10);
    let mut len = 0;
    loop {
        if text.len() - len < 4096 {
            text.resize(text.len() + (8 << 10), 0);
        }
        match fd.read(&mut text[len..])? {
            0 => break,
            n => len += n,
        }
    }
    text.truncate(len);
    Some(text)
}

fn parse_line(line: &[u8]) -> Option<Region> {
    let mut rest = line;
    let start = hex(&mut rest)? as usize;
    let end = hex(rest.strip_prefix(b"-").map(|r| {
        rest = r;
        &mut rest
    })?)? as usize;
    rest = rest.strip_prefix(b" ")?;
    let perm = rest.get(..4)?;
    rest = rest.get(5..)?;
    let offset = hex(&mut rest)? as usize;
    rest = rest.strip_prefix(b" ")?;
    let major = hex(&mut rest)?;
    rest = rest.strip_prefix(b":")?;
    let minor = hex(&mut rest)?;
    rest = rest.strip_prefix(b" ")?;
    let digits = rest.iter().take_while(|b| b.is_ascii_digit());
    let ino = digits.fold(0u64, |n, b| {
        n.wrapping_mul(10).wrapping_add(u64::from(b - b'0'))
    });
    Some(Region {
        start,
        end,
        offset,
        read: perm[0] == b'r',
        write: perm[1] == b'w',
        exec: perm[2] == b'x',
        dev: major << 32 | minor,
        ino,
        heap: line.ends_with(b"[heap]"),
        vdso: line.ends_with(b"[vdso]"),
    })
}

fn hex(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    let mut used = 0;
    for byte in rest.iter() {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => break,
        };
        value = value.wrapping_shl(4) | u64::from(digit);
        used += 1;
    }
    *rest = &rest[used..];
    (used > 0).then_some(value)
}

/// A free stretch of `len` bytes from which every byte of `lo..hi` is within `reach`.
pub fn gap_near(
    regions: &[Region],
    lo: usize,
    hi: usize,
    len: usize,
    reach: usize,
) -> Option<usize> {
    let floor = hi.saturating_sub(reach).max(1 << 16);
    let ceiling = lo.saturating_add(reach);
    let below = gaps(regions).rev().find_map(|(start, end, _)| {
        let at = end.min(lo).checked_sub(len)? & !0xfff;
        (at >= start.max(floor)).then_some(at)
    });
    below.or_else(|| {
        gaps(regions).find_map(|(start, end, heap)| {
            let at = if heap {
                end.checked_sub(len)? & !0xfff
            } else {
                start.max(hi)
            };
            (at >= start.max(hi) && at + len <= end.min(ceiling)).then_some(at)
        })
    })
}

/// The free stretches between regions: start, end, and whether the heap ends there.
fn gaps(regions: &[Region]) -> impl DoubleEndedIterator<Item = (usize, usize, bool)> + '_ {
    let first = regions.first().map(|r| (1 << 16, r.start, false));
    let between = regions
        .windows(2)
        .map(|w| (w[0].end, w[1].start, w[0].heap));
    first.into_iter().chain(between).filter(|gap| gap.0 < gap.1)
}
