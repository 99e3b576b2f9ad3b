//! Threads that do one piece of work after another: to start one and to end it costs as much as
//! several calls.
//!
//! Invariants: every piece of work has a thread at once, so none waits for another's end. A thread
//! without work ends after a while.

use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

const STACK: usize = 512 * 1024;
/// How long a thread waits for work.
const IDLE: Duration = Duration::from_secs(1);
/// Threads that may wait at a time.
const IDLE_MAX: usize = 64;

type Work = Box<dyn FnOnce() + Send>;

/// Those that wait for work: the last to come is the first to go, as its memory is warm.
static WAITING: Mutex<Vec<(ThreadId, SyncSender<Work>)>> = Mutex::new(Vec::new());

fn waiting() -> MutexGuard<'static, Vec<(ThreadId, SyncSender<Work>)>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does `work` in a thread of its own; false: there is none to be had.
pub fn run(work: impl FnOnce() + Send + 'static) -> bool {
    let mut work: Work = Box::new(work);
    loop {
        let Some((_, idle)) = waiting().pop() else {
            break;
        };
        match idle.send(work) {
            Ok(()) => return true,
            Err(refused) => work = refused.0,
        }
    }
    let thread = thread::Builder::new().stack_size(STACK);
    thread.spawn(move || serve(work)).is_ok()
}

fn serve(mut work: Work) {
    let own = thread::current().id();
    // There is room for the one piece of work that whoever takes us out of the list sends.
    let (to_us, next) = mpsc::sync_channel(1);
    loop {
        work();
        let mut waiting = waiting();
        if waiting.len() >= IDLE_MAX {
            return;
        }
        waiting.push((own, to_us.clone()));
        drop(waiting);
        work = match next.recv_timeout(IDLE) {
            Ok(work) => work,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) if resign(own) => return,
            // Somebody has taken us out of the list, and sends.
            Err(RecvTimeoutError::Timeout) => match next.recv() {
                Ok(work) => work,
                Err(_) => return,
            },
        };
    }
}

/// The thread waits no more; false: it has work.
fn resign(own: ThreadId) -> bool {
    let mut waiting = waiting();
    let at = waiting.iter().position(|(id, _)| *id == own);
    at.map(|at| waiting.remove(at)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    fn whose() -> Receiver<ThreadId> {
        let (tell, told) = channel();
        assert!(run(move || tell.send(thread::current().id()).unwrap()));
        told
    }

    #[test]
    fn work_that_does_not_end_keeps_no_other_from_being_done() {
        let (ends, end) = channel::<()>();
        assert!(run(move || assert!(end.recv().is_err())));
        let ids: Vec<ThreadId> = (0..20).map(|_| whose().recv().unwrap()).collect();
        drop(ends);
        assert_eq!(ids.len(), 20);
    }

    #[test]
    fn a_thread_takes_the_next_piece_of_work_and_ends_without() {
        // Others come between, but not each time.
        let mut again = false;
        for _ in 0..50 {
            let first = whose().recv().unwrap();
            thread::sleep(Duration::from_millis(2));
            again |= whose().recv().unwrap() == first;
        }
        assert!(again);
        thread::sleep(IDLE * 3);
        assert!(waiting().is_empty());
    }
}
