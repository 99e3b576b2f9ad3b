//! The persist routine: chosen once per mapping, then only called.
//!
//! What always holds here:
//! - `flush` writes back every line that the range touches, including partial first and last lines.
//! - Nothing flushed or written around the cache is durable before the same thread's fence.
//! - With [`Registers::Xmm`] no routine touches a register that a hook does not save.

use crate::LINE;
use crate::copy::{self, CopyFn, Outcome};
use crate::cpu;
use crate::medium::Medium;
use crate::scheme::Scheme;
use core::arch::asm;

/// How far a store must travel before a power cut cannot take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// Lines must leave the CPU caches: flush, then fence.
    Flushed,
    /// CPU caches survive a power cut: only ordering is needed.
    Cached,
    /// Only [`crate::Region::sync`] makes anything durable.
    Synced,
}

/// Which vector registers the copy routines may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Registers {
    /// xmm0-xmm15 only: what code inside a hook may use.
    #[default]
    Xmm,
    /// ymm too: for processes of our own.
    Ymm,
}

type FlushFn = unsafe fn(*const u8, usize);

/// The routines of one mapping.
#[derive(Clone, Copy)]
pub(crate) struct Routines {
    /// Whole lines to an aligned destination, around the cache; durable after a fence.
    pub copy_around: CopyFn,
    /// Whole lines to an aligned destination; around the cache where `flush` is real.
    pub copy_lines: CopyFn,
    pub zero_lines: CopyFn,
    /// Cached copy of any range.
    pub copy: CopyFn,
    /// Whole lines from an aligned address; the count is in lines.
    pub flush_lines: FlushFn,
    /// True when `copy_lines` goes around the cache.
    pub around_cache: bool,
    /// Copies of so many bytes go around the cache: to where nothing is yet, and over other bytes.
    pub around_new: usize,
    pub around_over: usize,
    /// True when `flush_lines` does something.
    pub flushes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlushKind {
    Clwb,
    ClflushOpt,
    Clflush,
}

impl FlushKind {
    fn best() -> FlushKind {
        match (cpu::has(cpu::CLWB), cpu::has(cpu::CLFLUSHOPT)) {
            (true, _) => FlushKind::Clwb,
            (_, true) => FlushKind::ClflushOpt,
            _ => FlushKind::Clflush,
        }
    }
}

impl Persistence {
    /// What the medium needs, when the platform says nothing better.
    pub fn of(medium: Medium, caches_persistent: bool) -> Persistence {
        match medium {
            Medium::File => Persistence::Synced,
            Medium::Dax if caches_persistent => Persistence::Cached,
            // A crash image of memory shows what DAX would lose.
            Medium::Memory if !cfg!(feature = "recording") => Persistence::Cached,
            Medium::Dax | Medium::DaxTest | Medium::Memory => Persistence::Flushed,
        }
    }
}

/// Where lines have to leave the caches, copies of so many bytes do not go through them. The writer
/// of fewer is likely to read or write them again soon, which would miss then.
const AROUND_MIN: usize = 256;
/// Where they need not, a store first loads the line that it is for: what is written over is often
/// in no cache, and for so many bytes to load it costs more than to go around.
const AROUND_OVER_MIN: usize = 2048;

impl Routines {
    pub(crate) fn choose(persistence: Persistence, registers: Registers) -> Routines {
        let copy = if cpu::has(cpu::FAST_STRINGS) {
            copy::holdfast_copy_auto
        } else {
            copy::holdfast_copy
        };
        let copy_around: CopyFn = match registers {
            Registers::Ymm if cpu::has(cpu::AVX2) => copy::holdfast_copy_nt_ymm,
            _ => copy::holdfast_copy_nt,
        };
        match persistence {
            Persistence::Flushed => Routines {
                copy_around,
                copy_lines: copy_around,
                zero_lines: copy::holdfast_zero_nt,
                copy,
                flush_lines: match FlushKind::best() {
                    FlushKind::Clwb => flush_clwb,
                    FlushKind::ClflushOpt => flush_clflushopt,
                    FlushKind::Clflush => flush_clflush,
                },
                around_cache: true,
                around_new: AROUND_MIN,
                around_over: AROUND_MIN,
                flushes: true,
            },
            Persistence::Cached | Persistence::Synced => Routines {
                copy_around,
                copy_lines: copy,
                zero_lines: copy::holdfast_zero,
                copy,
                flush_lines: flush_none,
                around_cache: false,
                around_new: usize::MAX,
                around_over: match persistence {
                    Persistence::Cached => AROUND_OVER_MIN,
                    _ => usize::MAX,
                },
                flushes: false,
            },
        }
    }
}

impl Routines {
    /// The same for a scheme that somebody chose. `None`: the CPU does not have it, or what it
    /// writes would not be durable on such a medium.
    pub(crate) fn by(self, scheme: Scheme, persistence: Persistence) -> Option<Routines> {
        let (copy_lines, zero_lines, flush_lines): (CopyFn, CopyFn, FlushFn) = match scheme {
            Scheme::Auto | Scheme::Descriptor => return Some(self),
            Scheme::NonTemporal => {
                let with = Routines::choose(Persistence::Flushed, Registers::Xmm);
                return Some(Routines {
                    copy_around: self.copy_around,
                    copy_lines: self.copy_around,
                    around_new: LINE,
                    around_over: LINE,
                    ..with
                });
            }
            Scheme::WriteBack => (copy_clwb, zero_clwb, flush_clwb),
            Scheme::FlushUnordered => (copy_clflushopt, zero_clflushopt, flush_clflushopt),
            Scheme::Flush => (copy_clflush, zero_clflush, flush_clflush),
            Scheme::Cached => (self.copy, copy::holdfast_zero, flush_none),
        };
        let durable = scheme != Scheme::Cached || persistence != Persistence::Flushed;
        (scheme.is_there() && durable).then_some(Routines {
            copy_lines,
            zero_lines,
            flush_lines,
            around_cache: false,
            around_new: usize::MAX,
            around_over: usize::MAX,
            flushes: scheme != Scheme::Cached,
            ..self
        })
    }
}

/// As the copies of whole lines, and each line is flushed.
macro_rules! flushed {
    ($copy:ident, $zero:ident, $flush:ident) => {
        unsafe extern "sysv64" fn $copy(dst: *mut u8, src: *const u8, len: usize) -> Outcome {
            // SAFETY: as the caller vouches for; what was stored is mapped.
            unsafe {
                let out = copy::holdfast_copy(dst, src, len);
                $flush(dst, (len - out.left).div_ceil(LINE));
                out
            }
        }

        unsafe extern "sysv64" fn $zero(dst: *mut u8, src: *const u8, len: usize) -> Outcome {
            // SAFETY: as above.
            unsafe {
                let out = copy::holdfast_zero(dst, src, len);
                $flush(dst, (len - out.left).div_ceil(LINE));
                out
            }
        }
    };
}

flushed!(copy_clwb, zero_clwb, flush_clwb);
flushed!(copy_clflushopt, zero_clflushopt, flush_clflushopt);
flushed!(copy_clflush, zero_clflush, flush_clflush);

macro_rules! flush_loop {
    ($name:ident, $insn:literal) => {
        unsafe fn $name(first: *const u8, lines: usize) {
            for i in 0..lines {
                // SAFETY: the caller passes mapped lines; write-back changes no contents. The
                // absence of `nomem` keeps earlier stores before it.
                unsafe {
                    asm!($insn, in(reg) first.add(i * LINE), options(nostack, preserves_flags));
                }
            }
        }
    };
}

flush_loop!(flush_clwb, "clwb [{0}]");
flush_loop!(flush_clflushopt, "clflushopt [{0}]");
flush_loop!(flush_clflush, "clflush [{0}]");

/// Caches are in the persistence domain, or only `sync` counts.
unsafe fn flush_none(_first: *const u8, _lines: usize) {}

/// Orders this thread's earlier stores, write-backs and non-temporal stores before later ones.
#[inline]
pub(crate) fn fence() {
    // SAFETY: sfence touches no register and no memory; without `nomem` the compiler keeps
    // memory accesses on their side of it.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}
