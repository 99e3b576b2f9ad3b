//! Real faults: pages that cannot be touched, and a file that was truncated under its mapping.

use super::*;
use crate::copy::{self, CopyFn};
use crate::copy_cstr;
use crate::{Access, ConstBuf, CstrFault, Error, Fault, Medium, MutBuf, PAGE, Region, SegmentFile};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Once;
use std::{ptr, vec, vec::Vec};

extern "C" fn handler(sig: i32, _info: *mut libc::siginfo_t, ctx: *mut libc::c_void) {
    // SAFETY: the kernel passes a ucontext to a handler set with SA_SIGINFO.
    let regs = unsafe { &mut (*ctx.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let rip = &mut regs[libc::REG_RIP as usize];
    match landing_for(*rip as usize) {
        Some(ip) => *rip = ip as i64,
        // SAFETY: gives a fault that is not ours its default action.
        None => unsafe {
            libc::signal(sig, libc::SIG_DFL);
        },
    }
}

pub(crate) fn route_faults() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for sig in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: a zeroed sigaction with a handler of the SA_SIGINFO kind is valid.
            unsafe {
                let mut sa: libc::sigaction = std::mem::zeroed();
                sa.sa_sigaction = handler as *const () as usize;
                sa.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
                assert_eq!(libc::sigaction(sig, &sa, ptr::null_mut()), 0);
            }
        }
    });
}

/// One page that may be used, then one that may not.
struct Cliff(*mut u8);

impl Cliff {
    fn new() -> Cliff {
        route_faults();
        // SAFETY: a new private mapping of two pages; the second is then closed.
        unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let p = libc::mmap(ptr::null_mut(), 2 * PAGE, prot, flags, -1, 0).cast::<u8>();
            assert!(!p.is_null() && p as isize != -1);
            assert_eq!(libc::mprotect(p.add(PAGE).cast(), PAGE, libc::PROT_NONE), 0);
            for i in 0..PAGE {
                p.add(i).write(i as u8 | 1);
            }
            Cliff(p)
        }
    }

    /// The last `n` usable bytes, and where they start.
    fn edge(&self, n: usize) -> *mut u8 {
        self.0.wrapping_add(PAGE - n)
    }
}

impl Drop for Cliff {
    fn drop(&mut self) {
        // SAFETY: mapped by new, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.cast(), 2 * PAGE) };
    }
}

fn cached_routines() -> Vec<CopyFn> {
    vec![copy::holdfast_copy, copy::holdfast_copy_rep]
}

fn line_routines() -> Vec<CopyFn> {
    let mut all = cached_routines();
    all.push(copy::holdfast_copy_nt);
    if std::is_x86_feature_detected!("avx2") {
        all.push(copy::holdfast_copy_nt_ymm);
    }
    all
}

#[test]
fn a_source_that_ends_gives_the_exact_count() {
    let cliff = Cliff::new();
    let room = Region::in_memory(8192).unwrap();
    for routine in cached_routines() {
        for good in [
            0, 1, 3, 4, 7, 8, 15, 16, 17, 63, 64, 65, 100, 127, 128, 1000,
        ] {
            for bad in [1, 2, 8, 16, 64, 100, 3000] {
                let src = cliff.edge(good);
                // SAFETY: the room holds 8192 bytes; the source faults, which is routed.
                let out = unsafe { routine(room.addr() as *mut u8, src, good + bad) };
                assert_eq!((out.left, out.side), (bad, 1), "{good} + {bad}");
            }
        }
    }
    for routine in line_routines() {
        for good in [0, 1, 64, 65, 127, 200] {
            // SAFETY: as above, with a line-aligned destination and whole lines.
            let out = unsafe { routine(room.addr() as *mut u8, cliff.edge(good), 512) };
            assert_eq!((out.left, out.side), (512 - good, 1), "{good}");
        }
    }
}

#[test]
fn a_destination_that_ends_gives_the_exact_count() {
    let cliff = Cliff::new();
    let src = vec![7u8; 8192];
    for routine in cached_routines() {
        for good in [0, 1, 7, 8, 16, 31, 64, 200] {
            // SAFETY: the source is 8192 bytes; the destination faults, which is routed.
            let out = unsafe { routine(cliff.edge(good), src.as_ptr(), good + 100) };
            assert_eq!((out.left, out.side), (100, 2), "{good}");
        }
    }
    for routine in line_routines() {
        // SAFETY: as above; the destination starts on a line.
        let out = unsafe { routine(cliff.edge(128), src.as_ptr(), 512) };
        assert_eq!((out.left, out.side), (384, 2));
    }
    for good in [0, 1, 16, 100] {
        // SAFETY: as above; zeroing has no source.
        let out = unsafe { copy::holdfast_zero(cliff.edge(good), ptr::null(), good + 50) };
        assert!(out.left >= 50 && out.left < 50 + 16, "{out:?}");
        assert_eq!(out.side, 2);
    }
}

#[test]
fn copy_in_stops_where_the_program_memory_stops() {
    let cliff = Cliff::new();
    let r = Region::in_memory(16384).unwrap();
    for off in [0u64, 1, 60, 64] {
        for (good, len) in [(0, 10), (5, 10), (100, 200), (100, 4000), (3000, 5000)] {
            r.zero_nt(0, 16384).unwrap();
            // SAFETY: faults are routed.
            let src = unsafe { ConstBuf::from_raw(cliff.edge(good), len) };
            assert_eq!(r.copy_in(off, src), Err(Fault::BadAddress { copied: good }));
            let mut got = vec![0; len];
            r.read(off, &mut got).unwrap();
            // SAFETY: the last `good` bytes of the usable page.
            let want = unsafe { std::slice::from_raw_parts(cliff.edge(good), good) };
            assert_eq!(&got[..good], want);
            assert!(got[good..].iter().all(|b| *b == 0));
        }
    }
}

#[test]
fn copy_out_stops_where_the_program_memory_stops() {
    let cliff = Cliff::new();
    let r = Region::in_memory(16384).unwrap();
    for (good, len) in [(0, 10), (5, 10), (100, 200), (1500, 4000)] {
        // SAFETY: the memory is ours to overwrite, and faults are routed.
        let dst = unsafe { MutBuf::from_raw(cliff.edge(good), len) };
        assert_eq!(r.copy_out(3, dst), Err(Fault::BadAddress { copied: good }));
    }
}

/// A region that has its file, and the file.
fn with_file(len: usize) -> (Region, OwnedFd) {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let fd: OwnedFd = rustix::fs::memfd_create("through", flags).unwrap();
    rustix::fs::ftruncate(&fd, len as u64).unwrap();
    let r = Region::map(fd.as_fd(), 0, len, Access::ReadWrite, Medium::File).unwrap();
    let file = SegmentFile::new(fd.as_fd()).unwrap();
    (r.of_file(file), fd)
}

#[test]
fn system_calls_move_the_same_bytes_and_stop_at_the_same_places() {
    let cliff = Cliff::new();
    let (r, fd) = with_file(4 * PAGE);
    let bytes: Vec<u8> = (0..4 * PAGE).map(|i| (i % 251) as u8).collect();
    assert_eq!(r.write_through(5, bytes[5..].into()), Ok(4 * PAGE - 5));
    for (off, len) in [(5, 0), (5, 1), (4090, 20), (100, 3 * PAGE)] {
        let mut got = vec![0; len];
        assert_eq!(r.read_through(off, (&mut got[..]).into()), Ok(len));
        assert_eq!(got, bytes[off as usize..][..len]);
    }
    let mut out = [0; 8];
    let beyond = r.read_through(4 * PAGE as u64 - 7, (&mut out[..]).into());
    assert_eq!(beyond, Err(Fault::OutOfRange));
    for (good, len) in [(0, 10), (5, 10), (1500, 4000)] {
        // SAFETY: the memory is ours to overwrite, and faults are routed.
        let dst = unsafe { MutBuf::from_raw(cliff.edge(good), len) };
        let stopped = Err(Fault::BadAddress { copied: good });
        assert_eq!(r.read_through(7, dst), stopped);
        // SAFETY: the last `good` bytes of the usable page.
        let got = unsafe { std::slice::from_raw_parts(cliff.edge(good), good) };
        assert_eq!(got, &bytes[7..7 + good]);
    }
    // The descriptor means something else by now: nothing of that is read.
    let other = rustix::fs::memfd_create("other", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut number = fd;
    rustix::io::dup2(&other, &mut number).unwrap();
    let mut got = [0; 16];
    assert_eq!(r.read_through(64, (&mut got[..]).into()), Ok(16));
    assert_eq!(got, bytes[64..80]);
}

#[test]
fn a_system_call_that_meets_the_end_of_a_cut_file_is_an_error_of_the_medium() {
    route_faults();
    let (r, fd) = with_file(2 * PAGE);
    rustix::fs::ftruncate(&fd, PAGE as u64).unwrap();
    let mut got = [0; 64];
    let lost = r.read_through(PAGE as u64 - 10, (&mut got[..]).into());
    assert_eq!(lost, Err(Fault::Media { copied: 10 }));
}

#[test]
fn buffers_and_strings_report_bad_addresses() {
    let cliff = Cliff::new();
    let mut small = [0u8; 32];
    // SAFETY: faults are routed; the memory is ours.
    unsafe {
        let src = ConstBuf::from_raw(cliff.edge(3), 20);
        assert_eq!(src.read(&mut small), Err(Fault::BadAddress { copied: 3 }));
        let mut dst = MutBuf::from_raw(cliff.edge(3), 20);
        assert_eq!(dst.write(&[1; 20]), Err(Fault::BadAddress { copied: 3 }));
        assert_eq!(
            copy_cstr(cliff.edge(5) as usize, &mut small),
            Err(CstrFault::BadAddress)
        );
        assert_eq!(copy_cstr(8, &mut small), Err(CstrFault::BadAddress));
        assert_eq!(
            copy_cstr(usize::MAX - 2, &mut small),
            Err(CstrFault::BadAddress)
        );
        cliff.edge(1).write(0);
        assert_eq!(copy_cstr(cliff.edge(5) as usize, &mut small), Ok(4));
        assert_eq!(
            copy_cstr(cliff.edge(5) as usize, &mut small[..4]),
            Err(CstrFault::TooLong)
        );
    }
}

#[test]
fn a_file_cut_short_is_an_error_of_the_medium() {
    route_faults();
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let fd: OwnedFd = rustix::fs::memfd_create("cut", flags).unwrap();
    rustix::fs::ftruncate(&fd, 2 * PAGE as u64).unwrap();
    let access = Access::ReadWrite;
    let r = Region::map(fd.as_fd(), 0, 2 * PAGE, access, Medium::Memory).unwrap();
    rustix::fs::ftruncate(&fd, PAGE as u64).unwrap();
    let off = PAGE as u64 - 10;
    let mut buf = [0u8; 64];
    let lost = Err(Error::Media { off: PAGE as u64 });
    assert_eq!(r.read(off, &mut buf), lost);
    assert_eq!(r.store(off, &buf), lost);
    assert_eq!(r.write_nt(off, &buf), lost);
    assert_eq!(r.write_nt(PAGE as u64, &buf), lost);
    assert_eq!(r.zero_nt(PAGE as u64, 64), lost);
    let dst = MutBuf::from(&mut buf[..]);
    assert_eq!(r.copy_out(off, dst), Err(Fault::Media { copied: 10 }));
    assert_eq!(
        r.copy_in(off, (&[1; 64]).into()),
        Err(Fault::Media { copied: 10 })
    );
}

#[test]
fn addresses_elsewhere_are_not_ours() {
    assert_eq!(landing_for(0), None);
    assert_eq!(landing_for(usize::MAX), None);
    assert_eq!(landing_for(landing_for as *const () as usize), None);
}
