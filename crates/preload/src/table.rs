//! The patch table of one object: where its system calls are and what a patch replaces.
//!
//! Invariants: a window consists of whole instructions, has at least 5 bytes, contains its
//! `syscall`, and no known jump goes to an instruction inside it; addresses are the object's own,
//! so a table is valid wherever the object is loaded. A parsed table is checked for consistency
//! (`Site::is_sane`), and each window is compared with the live bytes before it is used.
use crate::calls;
use crate::elf::{u16_at, u32_at};
use alloc::vec::Vec;

pub const WINDOW_MAX: usize = 16;
const JMP_LEN: usize = 5;
/// No displacement to correct.
const NO_FIX: u8 = 0xff;
const NO_RESUME: i32 = i32::MIN;
pub const SHORT_JMP_LEN: u8 = 2;
pub const RECORD: usize = 32;

/// A 4-byte displacement relative to the end of its instruction, inside the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fix {
    pub at: u8,
    /// Where its instruction ends.
    pub end: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    /// First byte of the window.
    pub addr: u32,
    pub len: u8,
    /// Offset of the `syscall` in the window.
    pub syscall: u8,
    /// The number, where the code before the call leaves no doubt.
    pub nr: Option<u16>,
    pub fixes: [Option<Fix>; 2],
    /// The window ends in a short jump, to here relative to `addr`: not copied, but gone to.
    pub resume: Option<i32>,
    pub window: [u8; WINDOW_MAX],
}

#[derive(Clone, Default)]
pub struct Table {
    pub sites: Vec<Site>,
    pub unpatchable: Unpatchable,
}

/// Sites of interest that cannot be patched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpatchable {
    pub all: u32,
    /// Those of which it is not known that their calls are none that mappings depend on.
    pub of_mappings: u32,
}

impl Unpatchable {
    /// One more, with this number.
    pub fn add(&mut self, nr: Option<u16>) {
        self.all += 1;
        self.of_mappings += u32::from(nr.is_none_or(calls::concerns_mappings));
    }

    pub fn to_bits(self) -> u64 {
        u64::from(self.all) | u64::from(self.of_mappings) << 32
    }

    pub fn from_bits(bits: u64) -> Unpatchable {
        Unpatchable {
            all: bits as u32,
            of_mappings: (bits >> 32) as u32,
        }
    }
}

impl Site {
    pub fn bytes(&self) -> &[u8] {
        self.window.get(..usize::from(self.len)).unwrap_or(&[])
    }

    /// How many bytes of the window a trampoline carries out itself.
    pub fn copied_len(&self) -> usize {
        usize::from(
            self.len
                - if self.resume.is_some() {
                    SHORT_JMP_LEN
                } else {
                    0
                },
        )
    }

    pub fn encode(&self) -> [u8; RECORD] {
        let mut out = [0; RECORD];
        out[..4].copy_from_slice(&self.addr.to_le_bytes());
        out[4] = self.len;
        out[5] = self.syscall;
        out[6..8].copy_from_slice(&self.nr.unwrap_or(u16::MAX).to_le_bytes());
        for (i, fix) in self.fixes.iter().enumerate() {
            out[8 + i] = fix.map_or(NO_FIX, |f| f.at);
            out[10 + i] = fix.map_or(NO_FIX, |f| f.end);
        }
        out[12..16].copy_from_slice(&self.resume.unwrap_or(NO_RESUME).to_le_bytes());
        out[16..].copy_from_slice(&self.window);
        out
    }

    pub fn decode(record: &[u8]) -> Option<Site> {
        let fix = |i: usize| {
            let (at, end) = (record[8 + i], record[10 + i]);
            (at != NO_FIX).then_some(Fix { at, end })
        };
        let window = record.get(16..RECORD)?.try_into().ok()?;
        let nr = u16_at(record, 6)?;
        let resume = u32_at(record, 12)? as i32;
        let site = Site {
            addr: u32_at(record, 0)?,
            len: record[4],
            syscall: record[5],
            nr: (nr != u16::MAX).then_some(nr),
            fixes: [fix(0), fix(1)],
            resume: (resume != NO_RESUME).then_some(resume),
            window,
        };
        site.is_sane().then_some(site)
    }

    pub fn is_sane(&self) -> bool {
        let len = usize::from(self.len);
        let at = usize::from(self.syscall);
        let fix_ok = |f: &Fix| f.at.checked_add(4).is_some_and(|e| e <= f.end) && f.end <= self.len;
        (JMP_LEN..=WINDOW_MAX).contains(&len)
            && at + 2 <= self.copied_len()
            && self.window[at..at + 2] == [0x0f, 0x05]
            && self.fixes.iter().flatten().all(fix_ok)
    }
}
