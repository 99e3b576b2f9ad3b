//! What the mapping cache did, for the run's report.
//!
//! Invariants: counts only grow; a thread of ours may count as well. They are kept in the session,
//! and without a pool in the run's record, if that can be found.

use crate::dispatch::nr;
use crate::dispatch::process::process;
use crate::sys::{self, Fd};
use alloc::boxed::Box;
use alloc::format;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use holdfast_client::map_record::{MAGIC, MapRecord, NAME, RecordAt};
use holdfast_pmem::SharedMem;
use rustix::fd::BorrowedFd;

pub use holdfast_client::MapCount as What;

static RECORD: AtomicPtr<MapRecord> = AtomicPtr::new(core::ptr::null_mut());

pub fn add(what: What, n: u64) {
    if let Some(p) = process().filter(|p| p.client.has_place()) {
        p.client.count_mapping(what, n);
    } else if let Some(record) = record().filter(|_| process().is_none()) {
        record.mapping[what as usize].fetch_add(n, Relaxed);
    }
}

/// The run's record.
pub fn record() -> Option<&'static MapRecord> {
    // SAFETY: null, or a record that stays mapped.
    unsafe { RECORD.load(Acquire).as_ref() }
}

/// Before the program's first instruction. Where the record is not found nothing is counted: the
/// run has ended, or /proc shows other processes or none.
pub fn count_in(at: RecordAt) {
    if let Some(record) = find(at) {
        RECORD.store(core::ptr::from_ref(record).cast_mut(), Release);
    }
}

fn find(at: RecordAt) -> Option<&'static MapRecord> {
    const O_RDWR: usize = 2;
    let path = format!("/proc/{}/fd/{}\0", at.pid, at.fd);
    // Another process may have the number by now, and opening what it has open is not for us.
    let mut target = [0u8; 64];
    let args = [
        path.as_ptr() as usize,
        target.as_mut_ptr() as usize,
        target.len(),
        0,
        0,
        0,
    ];
    // SAFETY: the kernel reads the path, which ends with NUL, and fills at most the whole array.
    let len = unsafe { sys::raw(nr::READLINK, args) };
    let target = target.get(..usize::try_from(len).ok()?)?;
    if !target
        .strip_prefix(b"/memfd:")?
        .starts_with(NAME.as_bytes())
    {
        return None;
    }
    let fd = Fd::open(path.as_bytes(), O_RDWR, 0)?;
    // SAFETY: open as long as `fd` lives.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd.0 as i32) };
    let memory = SharedMem::map(borrowed, size_of::<MapRecord>()).ok()?;
    let record = Box::leak(Box::new(memory)).at::<MapRecord>(0)?;
    (record.magic.load(Relaxed) == MAGIC).then_some(record)
}
