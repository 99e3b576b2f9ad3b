//! What can be stored to while and after copies go on, and that they arrive.

use super::*;
use crate::copy;
use crate::fault::tests::route_faults;
use crate::{Access, ConstBuf, Medium, Region};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::{vec, vec::Vec};

const LEN: usize = 3 * HUGE + 5 * PAGE;

fn memfd(len: usize) -> OwnedFd {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let fd = rustix::fs::memfd_create("guard", flags).unwrap();
    rustix::fs::ftruncate(&fd, len as u64).unwrap();
    fd
}

/// Regions of a new file, one of each protection that the machine has, and one to look through.
fn all() -> (Vec<(Protection, Region)>, Region) {
    route_faults();
    let fd = memfd(LEN);
    let map = |protection| {
        let options = MapOptions::new(Access::ReadWrite, Medium::Memory).protection(protection);
        Region::map_with(fd.as_fd(), 0, LEN, &options)
    };
    let mut regions = Vec::new();
    for protection in Protection::ALL {
        match map(protection) {
            Ok(region) => regions.push((protection, region)),
            Err(e) => assert_eq!(protection, Protection::Key, "{e}"),
        }
    }
    let plain = map(Protection::None).unwrap();
    // It stays open for as long as the regions are used.
    std::mem::forget(fd);
    (regions, plain)
}

/// Stores the byte that is there already; whether that worked.
fn stray(region: &Region, off: u64) -> bool {
    let mut byte = [0];
    region.read(off, &mut byte).unwrap();
    let at = (region.addr() + off as usize) as *mut u8;
    // SAFETY: an address of the region's mapping, of which nobody has a reference; the routine ends
    // with a short count where it must not store.
    unsafe { copy::holdfast_copy(at, byte.as_ptr(), 1) }.left == 0
}

#[test]
fn names_are_told_apart() {
    for protection in Protection::ALL {
        assert_eq!(Protection::named(protection.name()), Some(protection));
    }
    assert_eq!(Protection::named(""), None);
    assert_eq!(Protection::named("PT"), None);
}

#[test]
fn copies_of_all_lengths_arrive_and_everybody_sees_them() {
    let (regions, other) = all();
    let borders = [0, PAGE, HUGE, 2 * HUGE, LEN - 1];
    for (protection, region) in &regions {
        for (n, border) in borders.into_iter().enumerate() {
            for len in [1, 8, 63, 64, 300, PAGE, PAGE + 7, HUGE + 100] {
                for before in [0, 1, 64, PAGE] {
                    let off = border.saturating_sub(before);
                    let len = len.min(LEN - off);
                    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + n + before) as u8).collect();
                    let copied = region.copy_over(off as u64, bytes[..].into());
                    assert_eq!(copied, Ok(len), "{protection:?}");
                    let mut seen = vec![0; len];
                    other.read(off as u64, &mut seen).unwrap();
                    assert!(seen == bytes, "{protection:?} {off} {len}");
                    region.zero_nt(off as u64, len).unwrap();
                    region.read(off as u64, &mut seen).unwrap();
                    assert!(seen.iter().all(|byte| *byte == 0), "{protection:?}");
                }
            }
        }
    }
}

#[test]
fn a_stray_store_is_stopped_before_and_after_copies() {
    let (regions, _) = all();
    for (protection, region) in &regions {
        let places = [0, 1, PAGE - 1, PAGE, HUGE - 1, HUGE, LEN - 1];
        let try_all = || places.map(|at| stray(region, at as u64)).into_iter();
        assert!(try_all().all(|done| done == (*protection == Protection::None)));
        region.write_nt(100, &[1; 2 * PAGE]).unwrap();
        region.write_nt(HUGE as u64 - 5, &[1; 10]).unwrap();
        assert!(try_all().all(|done| done == (*protection == Protection::None)));
    }
}

#[test]
fn a_stray_store_of_another_thread_is_stopped_while_copies_go_on() {
    let (regions, _) = all();
    for (protection, region) in &regions {
        if matches!(protection, Protection::None) {
            continue;
        }
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for i in 0..2000 {
                    region.write_nt(PAGE as u64, &[i as u8; PAGE]).unwrap();
                }
            });
            while !writer.is_finished() {
                // Page tables are of the process: that page may be open, those beside it not.
                let tables = [Protection::PageTable, Protection::PageTableBatch];
                let inside = tables.contains(protection);
                for at in [0, PAGE - 1, PAGE, 2 * PAGE - 1, 2 * PAGE, HUGE] {
                    let open = inside && (PAGE..2 * PAGE).contains(&at);
                    assert!(open || !stray(region, at as u64), "{protection:?} {at}");
                }
            }
        });
    }
}

#[test]
fn threads_do_not_close_the_windows_of_each_other() {
    let (regions, other) = all();
    for (protection, region) in &regions {
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    for round in 0..300u64 {
                        // Neighbours share pages and windows; the rounds visit them all.
                        let page = round * 37 % (LEN / PAGE) as u64 * PAGE as u64;
                        let off = page + thread * 1024;
                        let bytes = [(round * 4 + thread) as u8; 1024];
                        region.write_nt(off, &bytes).unwrap();
                        let mut seen = [0; 1024];
                        region.read(off, &mut seen).unwrap();
                        assert!(seen == bytes, "{protection:?}");
                    }
                });
            }
        });
        let mut byte = [0];
        other.read(LEN as u64 - 1, &mut byte).unwrap();
    }
}

#[test]
fn a_source_that_is_not_there_is_an_error_and_leaves_nothing_open() {
    let (regions, _) = all();
    for (protection, region) in &regions {
        // Nothing is mapped so low.
        // SAFETY: it is only copied from, and that is reported.
        let nothing = unsafe { ConstBuf::from_raw(16 as *const u8, 100) };
        let fault = region.copy_in(PAGE as u64, nothing).unwrap_err();
        assert!(
            matches!(fault, Fault::BadAddress { copied: 0 }),
            "{protection:?}"
        );
        assert_eq!(stray(region, PAGE as u64), *protection == Protection::None);
        region.write_nt(PAGE as u64, &[3; 64]).unwrap();
    }
}

#[test]
fn a_protected_region_has_no_words() {
    let (regions, _) = all();
    for (protection, region) in &regions {
        let none = *protection == Protection::None;
        assert_eq!(region.word(8).is_some(), none);
        assert_eq!(region.store_u64(8, 1).is_ok(), none);
    }
}

#[test]
fn pages_can_be_made_dirty_without_a_change() {
    let (regions, other) = all();
    for (protection, region) in &regions {
        region.write_nt(100, &[9; 5000]).unwrap();
        region.redirty(100, 5000).unwrap();
        let mut seen = [0; 5000];
        other.read(100, &mut seen).unwrap();
        assert_eq!(seen, [9; 5000]);
        assert_eq!(stray(region, 100), *protection == Protection::None);
    }
}

/// A child that begins while threads of its parent copy.
#[test]
fn a_child_begins_with_everything_closed_and_free() {
    let (regions, other) = all();
    for (protection, region) in &regions {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let over = &over;
                scope.spawn(move || {
                    while !over.load(Relaxed) {
                        region
                            .write_nt(thread * HUGE as u64, &[1; 3 * PAGE])
                            .unwrap();
                    }
                });
            }
            for round in 0..20u8 {
                let at = 2 * HUGE as u64 + u64::from(round);
                // SAFETY: the child makes system calls and touches memory of ours, and ends.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let done = region.write_nt(at, &[round + 1; 100]).is_ok();
                    let open = [0, HUGE as u64].into_iter().any(|at| stray(region, at));
                    let right = done && open == (*protection == Protection::None);
                    // SAFETY: as above.
                    unsafe { libc::_exit(i32::from(!right)) };
                }
                let mut status = -1;
                // SAFETY: waits for the child just made.
                unsafe { libc::waitpid(child, &mut status, 0) };
                assert_eq!(status, 0, "{protection:?}");
                let mut seen = [0; 100];
                other.read(at, &mut seen).unwrap();
                assert_eq!(seen, [round + 1; 100]);
            }
            over.store(true, Relaxed);
        });
    }
}
