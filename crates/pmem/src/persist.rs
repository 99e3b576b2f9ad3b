//! The persist routine: chosen once per mapping, then only called.
//!
//! What always holds here:
//! - `flush` writes back every line that the range touches, also the partial first and last.
//! - Nothing flushed or written around the cache is durable before the same thread's fence.
//! - With [`Registers::Xmm`] no routine touches a register that a hook does not save.

use crate::LINE;
use crate::copy::{self, CopyFn};
use crate::medium::Medium;
use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};

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
    /// Whole lines to an aligned destination; durable after a fence where `flush` is real.
    pub copy_lines: CopyFn,
    pub zero_lines: CopyFn,
    /// Cached copy of any range.
    pub copy: CopyFn,
    /// Whole lines from an aligned address; the count is in lines.
    pub flush_lines: FlushFn,
    /// True when `copy_lines` goes around the cache.
    pub around_cache: bool,
    /// True when `flush_lines` does something.
    pub flushes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlushKind {
    Clwb,
    ClflushOpt,
    Clflush,
}

impl Persistence {
    /// What the medium needs, when the platform says nothing better.
    pub fn of(medium: Medium, caches_persistent: bool) -> Persistence {
        match medium {
            Medium::File => Persistence::Synced,
            Medium::Dax if caches_persistent => Persistence::Cached,
            // Memory pays what DAX would pay, so that cost and crash behaviour are the real ones.
            Medium::Dax | Medium::Memory => Persistence::Flushed,
        }
    }
}

impl Routines {
    pub(crate) fn choose(persistence: Persistence, registers: Registers) -> Routines {
        let cpu = Cpu::detect();
        let copy = if cpu.fast_strings {
            copy::holdfast_copy_auto
        } else {
            copy::holdfast_copy
        };
        match persistence {
            Persistence::Flushed => Routines {
                copy_lines: match registers {
                    Registers::Ymm if cpu.avx2 => copy::holdfast_copy_nt_ymm,
                    _ => copy::holdfast_copy_nt,
                },
                zero_lines: copy::holdfast_zero_nt,
                copy,
                flush_lines: match cpu.flush {
                    FlushKind::Clwb => flush_clwb,
                    FlushKind::ClflushOpt => flush_clflushopt,
                    FlushKind::Clflush => flush_clflush,
                },
                around_cache: true,
                flushes: true,
            },
            Persistence::Cached | Persistence::Synced => Routines {
                copy_lines: copy,
                zero_lines: copy::holdfast_zero,
                copy,
                flush_lines: flush_none,
                around_cache: false,
                flushes: false,
            },
        }
    }
}

struct Cpu {
    avx2: bool,
    fast_strings: bool,
    flush: FlushKind,
}

impl Cpu {
    #[allow(unused_unsafe)] // these intrinsics became safe after the oldest supported compiler
    fn detect() -> Cpu {
        // SAFETY: every x86-64 CPU has cpuid with leaves 0 and 1.
        let (max, one) = unsafe { (__cpuid(0).eax, __cpuid(1)) };
        let (mut b, mut d) = (0, 0);
        if max >= 7 {
            // SAFETY: the CPU just said that the leaf exists.
            let leaf = unsafe { __cpuid_count(7, 0) };
            (b, d) = (leaf.ebx, leaf.edx);
        }
        let bit = |reg: u32, n: u32| reg >> n & 1 == 1;
        let saves_ymm = bit(one.ecx, 27) && xcr0() & 6 == 6;
        let flush = match (bit(b, 24), bit(b, 23)) {
            (true, _) => FlushKind::Clwb,
            (_, true) => FlushKind::ClflushOpt,
            _ => FlushKind::Clflush,
        };
        // ERMS alone starts too slowly for a few KiB; fast short rep mov does not.
        Cpu {
            avx2: saves_ymm && bit(b, 5),
            fast_strings: bit(b, 9) && bit(d, 4),
            flush,
        }
    }
}

/// Which register states the kernel saves. Only called when CPUID shows OSXSAVE.
fn xcr0() -> u32 {
    let (lo, _hi): (u32, u32);
    // SAFETY: xgetbv with ecx = 0 exists wherever OSXSAVE is set, and only reads.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") lo, out("edx") _hi, options(nomem, nostack));
    }
    lo
}

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
