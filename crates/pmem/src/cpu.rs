//! The processor's features, queried once per process.
//!
//! Invariants: `features` never changes once a process knows it. In a virtual machine each cpuid
//! causes an exit to the hypervisor (10 us and more), so a process may be told what its parent
//! found out. A false value makes an instruction illegal, which ends the process that was told and
//! touches no memory.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count, _MM_HINT_T0, _mm_prefetch, _rdtsc};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The word means something.
const KNOWN: u32 = 1;
pub(crate) const SSE42: u32 = 1 << 1;
/// AVX2, and the kernel saves the ymm registers.
pub(crate) const AVX2: u32 = 1 << 2;
/// `rep movsb` is the fastest copy of a few KiB.
pub(crate) const FAST_STRINGS: u32 = 1 << 3;
pub(crate) const CLWB: u32 = 1 << 4;
pub(crate) const CLFLUSHOPT: u32 = 1 << 5;
const ALL: u32 = (1 << 6) - 1;

static FEATURES: AtomicU32 = AtomicU32::new(0);

/// Starts loading the lines of `bytes`; a hint.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    for line in bytes
        .chunks(crate::LINE)
        .chain(bytes.last_chunk::<1>().map(|last| &last[..]))
    {
        // SAFETY: inside of the slice; a prefetch changes and faults nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

/// A clock for short times, of some GHz. Processors may differ by a little.
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: rdtsc touches no memory. Where a process has forbidden it to itself, not even the
    // clock of the vDSO works.
    unsafe { _rdtsc() }
}

/// The features of this processor, for `assume` in a process that this one starts.
#[inline]
pub fn features() -> u32 {
    match FEATURES.load(Relaxed) {
        0 => {
            let found = detect();
            FEATURES.store(found, Relaxed);
            found
        }
        known => known,
    }
}

/// Takes what `features` said in another process of the same machine. Anything else is ignored.
pub fn assume(features: u32) {
    if features & KNOWN != 0 && features & !ALL == 0 {
        let _ = FEATURES.compare_exchange(0, features, Relaxed, Relaxed);
    }
}

#[inline]
pub(crate) fn has(feature: u32) -> bool {
    features() & feature != 0
}

#[cold]
#[allow(unused_unsafe)] // these intrinsics became safe after the oldest supported compiler
fn detect() -> u32 {
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
    // ERMS alone starts too slowly for a few KiB; fast short rep mov does not.
    let found = [
        (SSE42, bit(one.ecx, 20)),
        (AVX2, saves_ymm && bit(b, 5)),
        (FAST_STRINGS, bit(b, 9) && bit(d, 4)),
        (CLWB, bit(b, 24)),
        (CLFLUSHOPT, bit(b, 23)),
    ];
    let bits = found.iter().filter(|(_, is)| *is).map(|(bit, _)| *bit);
    bits.fold(KNOWN, |all, bit| all | bit)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_again_says_the_same_and_lies_come_too_late() {
        let found = features();
        assert_ne!(found & KNOWN, 0);
        assert_eq!(found, detect());
        assume(0);
        assume(KNOWN);
        assume(u32::MAX);
        assert_eq!(features(), found);
    }
}
