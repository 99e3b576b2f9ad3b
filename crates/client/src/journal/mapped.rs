//! From descriptors to a mapped session.
//!
//! Invariants: the meta segment is mapped for reading only; vector registers beyond xmm are not
//! touched, because this code runs inside other people's programs; of the data segment all that it
//! may become is mapped, or it does not grow while the session lives.

use crate::base::error::{Error, Result};
use crate::base::trees::Trees;
use crate::journal::recover;
use crate::session::{RETRIES, Session};
use pmem::atomic::Ordering::{Acquire, Relaxed};
use pmem::{
    Access, DirtyMap, MapOptions, Medium, Pace, RecordLocks, Region, Reservation, SegmentFile,
    SharedMem, Slow, Writing,
};
use pool::session::{DIRTY_AT, HEADER_AT, Header, METER_AT, SESSION_LEN};
use pool::tree::Fixed;
use rustix::fd::BorrowedFd;
use rustix::fs::fstat;
use rustix::process::{Resource, getrlimit};

/// What the service handed out: descriptors and how much to map of each.
pub struct Segments<'fd> {
    /// Session memory. No descriptor of it may be closed while the process has a place there.
    pub session: BorrowedFd<'fd>,
    /// Superblocks and trees.
    pub meta: (BorrowedFd<'fd>, u64),
    /// The session's journal.
    pub journal: (BorrowedFd<'fd>, u64),
    /// File data, which may be shorter than that so far.
    pub data: (BorrowedFd<'fd>, u64),
    /// 0 memory, 1 file, 2 dax, 3 memory that is treated as dax.
    pub medium: u32,
    /// What is known of the processor (`pmem::cpu::features`); 0: nothing.
    pub cpu: u32,
}

fn medium(number: u32) -> Medium {
    match number {
        0 => Medium::Memory,
        2 => Medium::Dax,
        3 => Medium::DaxTest,
        _ => Medium::File,
    }
}

/// The roots of the snapshot that the session is on.
fn snapshot_in(mem: &SharedMem) -> Option<Fixed> {
    let header: &Header = mem.at(HEADER_AT as u64)?;
    let seq = header.snapshot_seq.load(Acquire);
    let words = header
        .snapshot_roots
        .each_ref()
        .map(|word| word.load(Relaxed));
    (seq != 0).then(|| Fixed::unpack(seq, &words))
}

/// Maps everything. All but meta's have to stay open for as long as the session is used.
pub fn map(segments: &Segments) -> Result<Session> {
    map_with(segments, Writing::default(), Slow::NONE)
}

/// As `map`; how file data is written, and how long copies take, is given.
pub fn map_with(segments: &Segments, writing: Writing, slow: Slow) -> Result<Session> {
    pmem::cpu::assume(segments.cpu);
    if getrlimit(Resource::As).current.is_none() {
        return map_data_to(segments, segments.data.1, (writing, slow));
    }
    // Only what there is: the program needs its addresses.
    for _ in 0..RETRIES {
        let stat = fstat(segments.data.0).map_err(|e| Error::Kernel {
            call: "fstat",
            errno: e.raw_os_error(),
        })?;
        let len = segments.data.1.min(stat.st_size as u64);
        let session = map_data_to(segments, len, (writing, slow))?;
        if session.keeps_data_from_growing()? {
            return Ok(session);
        }
    }
    Err(Error::Busy)
}

fn map_data_to(segments: &Segments, len: u64, (writing, slow): (Writing, Slow)) -> Result<Session> {
    let medium = medium(segments.medium);
    // One reservation for all: every program that is started pays for each call to the kernel.
    // The journal is small and goes first: it shares page tables with the tables after it.
    let lens = [segments.meta.1, segments.journal.1, len].map(|len| len as usize);
    let (room, [journal_at, mem_at, meta_at, data_at]) =
        Reservation::for_all([lens[1], SESSION_LEN, lens[0], lens[2]])?;
    let region = |(fd, len): (BorrowedFd, u64), access, at| {
        let options = MapOptions::new(access, medium).place(&room, at);
        Region::map_with(fd, 0, len as usize, &options)
    };
    let options = MapOptions::new(Access::ReadWrite, Medium::Memory).place(&room, mem_at);
    let mem = SharedMem::map_with(segments.session, SESSION_LEN, &options)?;
    let locks = RecordLocks::new(segments.session)?;
    let meta = region(segments.meta, Access::ReadOnly, meta_at)?;
    if medium == Medium::File {
        meta.expect_random();
    }
    let journal = region(segments.journal, Access::ReadWrite, journal_at)?;
    let snapshot = snapshot_in(&mem);
    let access = match snapshot {
        Some(_) => Access::ReadOnly,
        None => Access::ReadWrite,
    };
    let options = MapOptions::new(access, medium)
        .place(&room, data_at)
        .writing(writing);
    let mut data = Region::map_with(segments.data.0, 0, lens[2], &options)?;
    let strays = HEADER_AT + core::mem::offset_of!(Header, strays);
    data = data.counting_strays(&mem, strays as u64);
    // A dump would touch every page of them, and so make memory of what nobody uses.
    room.leave_out_of_core_dumps();
    let mut journal = journal;
    if medium == Medium::File {
        // The caller keeps the descriptors open.
        data = data.of_file(SegmentFile::new(segments.data.0)?);
    }
    if medium == Medium::File && snapshot.is_none() {
        let dirty = DirtyMap::map(segments.session, DIRTY_AT as u64, segments.data.1)?;
        data = data.noting(dirty);
        journal = journal.of_file(SegmentFile::new(segments.journal.0)?);
    }
    let pace = Pace::new(slow, &mem, METER_AT as u64)?;
    let [meta, journal, data] = [meta, journal, data].map(|region| match &pace {
        None => region,
        Some(pace) => region.slowed(pace),
    });
    let header: Option<&Header> = mem.at(HEADER_AT as u64);
    let since = header.map_or(u64::MAX, |header| header.begun_after.load(Acquire));
    let trees = Trees::new(meta).verifying(since)?;
    let trees = match snapshot {
        Some(fixed) => trees.of_snapshot(fixed),
        None => trees,
    };
    Session::new((mem, locks), journal, data, trees, recover::lanes)?.lends_as(segments.meta.0)
}
