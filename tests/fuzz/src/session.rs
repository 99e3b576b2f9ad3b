//! Session memory and journal that a hostile process of the session writes, under a client that
//! works there.
//!
//! What must hold: each call ends with a value or an error. Nobody serves this session: who waits
//! for the service is told after a moment that the session was given up.

pub mod calls;
pub mod scribble;

use crate::format;
use crate::input::Input;
use crate::sample::{DATA_LEN, Sample, sample};
use calls::Calls;
use holdfast_client::{Client, Segments, slots};
use holdfast_pmem::{Region, SharedMem, futex};
use holdfast_pool::session::free_table::{Feed, class_of};
use holdfast_pool::session::*;
use holdfast_pool::space::Run;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::MemfdFlags;
use scribble::Scribble;
use std::sync::atomic::Ordering::*;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Bytes of a journal lane.
pub const LANE_LEN: u64 = 64 * 1024;
/// Calls and changes that one input makes at most.
const STEPS_MAX: usize = 60;
/// So long somebody may wait for the service.
const PATIENCE: Duration = Duration::from_millis(60);

/// The segments of a session that nobody serves.
pub struct Fixture {
    session: OwnedFd,
    meta: OwnedFd,
    journal: OwnedFd,
    data: OwnedFd,
    pub memory: SharedMem,
}

/// Runs calls of a client and changes of what it reads, as the bytes say.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let how = input.u8();
    let segments = Fixture::new(
        if how & 1 == 0 { 0 } else { MEDIUM_FILE },
        u32::from(how >> 1 & 3),
    );
    if how & 8 != 0 {
        let meta = map(&segments.meta);
        format::patch(&meta, &mut Input::new(input.bytes(32)));
    }
    let Ok(client) = segments.client() else {
        return;
    };
    let (done, over) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| give_up_late(&segments.memory, over));
        work(&client, &segments, &mut input);
        drop(done);
    });
}

fn work(client: &Client, segments: &Fixture, input: &mut Input<'_>) {
    let mut calls = Calls::new(client);
    // What the input did to the trees may be in the way.
    let _ = calls.begin();
    let scribble = Scribble::new(
        &segments.memory,
        (map(&segments.journal), LANE_LEN),
        map(&segments.data),
    );
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        match input.u8() {
            what @ 0..128 => calls.call(what, input),
            what => scribble.change(what, input),
        }
    }
    calls.end();
    client.exit(true);
}

/// What a service does that gives up, for those who would wait for it. The header may be changed
/// meanwhile, so it is said again and again.
fn give_up_late(memory: &SharedMem, over: Receiver<()>) {
    let Some(header) = memory.at::<Header>(HEADER_AT as u64) else {
        return;
    };
    let mut patience = PATIENCE;
    while over.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
        patience = Duration::from_millis(5);
        header.poisoned.store(5, Release);
        header.applied_tick.fetch_add(1, Release);
        futex::wake(&header.applied_tick, u32::MAX);
    }
}

fn memfd(len: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a file");
    rustix::fs::ftruncate(&fd, len).expect("a length");
    fd
}

fn map(fd: &OwnedFd) -> Region {
    let len = rustix::fs::fstat(fd).expect("a file").st_size as usize;
    let (access, medium) = (
        holdfast_pmem::Access::ReadWrite,
        holdfast_pmem::Medium::Memory,
    );
    Region::map(fd.as_fd(), 0, len, access, medium).expect("a mapping")
}

impl Fixture {
    /// A new session on the sample.
    pub fn new(medium: u32, consistency: u32) -> Fixture {
        let len = session_len(medium, DATA_LEN);
        let (session, memory) = SharedMem::create_memfd("fuzz", len as usize).expect("memory");
        let meta = memfd(crate::sample::META_LEN);
        let image = map(&meta);
        for (page, bytes) in &sample().pages {
            image.store(page * 4096, bytes).expect("inside");
        }
        let segments = Fixture {
            session,
            meta,
            journal: memfd(LANE_LEN * LANES as u64),
            data: memfd(DATA_LEN),
            memory,
        };
        segments.begin(medium, consistency.min(2));
        segments
    }

    /// What the service writes at the start of a session.
    fn begin(&self, medium: u32, consistency: u32) {
        let Sample { free, applied, .. } = sample();
        let header: &Header = self.memory.at(HEADER_AT as u64).expect("inside");
        header.len.store(session_len(medium, DATA_LEN), Relaxed);
        header.medium.store(medium, Relaxed);
        header.consistency.store(consistency, Relaxed);
        header.data_len.store(DATA_LEN, Relaxed);
        header.lane_len.store(LANE_LEN, Relaxed);
        header.inode_limit.store(65_536, Relaxed);
        header.dentry_limit.store(98_304, Relaxed);
        header.inode_buckets.store(FIRST_BUCKETS, Relaxed);
        header.dentry_buckets.store(FIRST_BUCKETS, Relaxed);
        header.next_seq.store(applied + 1, Relaxed);
        header.applied_seq.store(*applied, Relaxed);
        header.synced_seq.store(*applied, Relaxed);
        header.acked_seq.store(*applied, Relaxed);
        header.next_ino.store(1000, Relaxed);
        header.ino_end.store(100_000, Relaxed);
        header.free_blocks.store(1000, Relaxed);
        header.total_blocks.store(DATA_LEN / 4096, Relaxed);
        header.epoch.store(1, Relaxed);
        header.magic.store(MAGIC, Release);
        let table: &FreeTable = self.memory.at(FREE_AT as u64).expect("inside");
        let blocks: Vec<u64> = free.0.iter().copied().collect();
        for extent in blocks.chunk_by(|a, b| a + 1 == *b) {
            let extent = Run::new(extent[0], extent.len() as u64);
            let ring = &table.classes[class_of(extent.len)];
            let mut feed = Feed::resume(ring);
            feed.push(ring, extent);
            feed.publish(ring);
        }
    }

    /// A client that has joined it.
    pub fn client(&self) -> holdfast_client::Result<Client> {
        let header: &Header = self.memory.at(HEADER_AT as u64).expect("inside");
        let len = |fd: &OwnedFd| rustix::fs::fstat(fd).map_or(0, |stat| stat.st_size as u64);
        fn with(fd: &OwnedFd, len: u64) -> (BorrowedFd<'_>, u64) {
            (fd.as_fd(), len)
        }
        let segments = Segments {
            session: self.session.as_fd(),
            meta: with(&self.meta, len(&self.meta)),
            journal: with(&self.journal, len(&self.journal)),
            data: with(&self.data, len(&self.data)),
            medium: header.medium.load(Relaxed),
            cpu: 0,
        };
        let client = Client::attach(&segments, b"/hf")?;
        slots::register(client.session(), std::process::id(), None)?;
        Ok(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else fuzzing would meet errors only.
    #[test]
    fn a_session_that_nobody_scribbles_on_works_and_waits_for_nobody() {
        for (medium, consistency) in [(0, 0), (0, 1), (0, 2), (MEDIUM_FILE, 0)] {
            let fixture = Fixture::new(medium, consistency);
            let client = fixture.client().expect("a client");
            let begun = std::time::Instant::now();
            let all = Calls::new(&client).begin();
            assert!(all, "on medium {medium} with consistency {consistency}");
            assert!(begun.elapsed() < Duration::from_secs(2), "it waited");
        }
    }
}
