//! A heartbeat in session memory while one step of the service takes long.
//!
//! Invariants:
//!  * The thread that writes the pool says when it is working; while it is idle nothing beats, and
//!    this thread sleeps, too.
//!  * Only work beats: a thread that sleeps in the middle of its work may never continue.

use crate::base::process;
use crate::session::memory::Memory;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Half of what clients may rely on.
const PERIOD: Duration = Duration::from_millis(50);

/// Where the memory of the session is that there is now.
pub type Place = Arc<Mutex<Option<Arc<Memory>>>>;

#[derive(Debug, Default)]
struct Watch {
    /// Odd while the thread is at work.
    stint: AtomicU64,
    /// Nobody is watched, until somebody is woken.
    parked: AtomicBool,
    ended: AtomicBool,
}

/// Beats while the thread that made it is at work.
pub struct Heartbeat {
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// For the calling thread, which is not at work yet.
    pub fn start(place: Place) -> Heartbeat {
        let task = rustix::thread::gettid().as_raw_nonzero().get();
        let watch = Arc::new(Watch::default());
        let watching = watch.clone();
        let thread = std::thread::Builder::new().name("heartbeat".into());
        // Without it a service that works long at one thing is taken for gone.
        let thread = thread.spawn(move || watching.beat(task.unsigned_abs(), &place));
        Heartbeat {
            watch,
            thread: thread.ok(),
        }
    }

    /// The thread is at work from now on.
    pub fn begin(&self) {
        if self.watch.stint.load(Relaxed).is_multiple_of(2) {
            self.watch.stint.fetch_add(1, SeqCst);
            if self.watch.parked.load(SeqCst) {
                self.wake();
            }
        }
    }

    /// The thread is about to nap.
    pub fn end(&self) {
        if self.watch.stint.load(Relaxed) % 2 == 1 {
            self.watch.stint.fetch_add(1, SeqCst);
        }
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.watch.ended.store(true, SeqCst);
        self.wake();
        self.thread.take().map(JoinHandle::join);
    }
}

impl Watch {
    fn beat(&self, task: u32, place: &Place) {
        let mut ran = 0;
        while !self.ended.load(SeqCst) {
            let stint = self.stint.load(SeqCst);
            if stint.is_multiple_of(2) {
                self.parked.store(true, SeqCst);
                // Who begins now either sees that or is seen.
                if self.stint.load(SeqCst) == stint && !self.ended.load(SeqCst) {
                    std::thread::park();
                }
                self.parked.store(false, SeqCst);
                continue;
            }
            std::thread::park_timeout(PERIOD);
            let works = works(task, &mut ran);
            if works && self.stint.load(SeqCst) == stint {
                note(place);
            }
        }
    }
}

fn note(place: &Place) {
    if let Ok(memory) = place.lock()
        && let Some(memory) = memory.as_ref()
    {
        memory.header().heartbeat.fetch_add(1, Release);
    }
}

/// Whether the thread runs, is about to, waits for a disk, or ran since the last look.
fn works(task: u32, ran: &mut u64) -> bool {
    match process::activity(task) {
        Some((state, now)) => std::mem::replace(ran, now) != now || matches!(state, b'R' | b'D'),
        // Nobody can tell.
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::memory::Constants;
    use std::time::Instant;

    fn memory() -> Arc<Memory> {
        let constants = Constants {
            consistency: 0,
            medium: 0,
            data_len: 1 << 24,
            data_room: 1 << 24,
            lane_len: 1 << 20,
        };
        Arc::new(Memory::create("heartbeat", &constants).unwrap())
    }

    #[test]
    fn long_work_beats_and_a_nap_does_not() {
        let memory = memory();
        let beats = || memory.header().heartbeat.load(Acquire);
        let heart = Heartbeat::start(Arc::new(Mutex::new(Some(memory.clone()))));
        for _ in 0..3 {
            heart.begin();
            let (first, begun) = (beats(), Instant::now());
            while beats().wrapping_sub(first) < 3 {
                assert!(begun.elapsed().as_secs() < 20, "work does not beat");
            }
            heart.end();
            // One may be on its way.
            std::thread::sleep(PERIOD);
            let last = beats();
            std::thread::sleep(5 * PERIOD);
            assert_eq!(beats(), last);
        }
    }

    #[test]
    fn a_thread_that_is_stuck_does_not_beat() {
        let memory = memory();
        let beats = || memory.header().heartbeat.load(Acquire);
        let heart = Heartbeat::start(Arc::new(Mutex::new(Some(memory.clone()))));
        heart.begin();
        std::thread::sleep(10 * PERIOD);
        // What it ran before the first look counts.
        assert!(beats() <= 2, "{} beats", beats());
    }
}
