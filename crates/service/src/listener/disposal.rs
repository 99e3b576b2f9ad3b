//! Closing what others sent.
//!
//! Invariants:
//!  * The sender can make closing take arbitrarily long: a TCP socket lingers, and so does a
//!    message in a queue that has one. So the thread that calls `Disposal::put` closes nothing.
//!  * A thread that hangs delays only what it closes; there are at most `THREADS_MAX`.

use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Threads that close. What comes while all of them hang stays open.
const THREADS_MAX: usize = 1024;
/// Descriptors that wait before another thread helps.
const WAITING_MAX: usize = 4;
/// A thread with nothing to close ends after so long.
const IDLE_MAX: Duration = Duration::from_secs(1);
const STACK_LEN: usize = 64 * 1024;

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<OwnedFd>,
    threads: usize,
    idle: usize,
    /// Descriptors that were taken from the queue.
    taken: u64,
    /// `taken` when `tend` last looked.
    seen: u64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    more: Condvar,
}

/// Closes descriptors on threads of its own.
#[derive(Clone, Debug, Default)]
pub struct Disposal {
    shared: Arc<Shared>,
}

impl Disposal {
    /// Closes `fd`, some time.
    pub fn put(&self, fd: OwnedFd) {
        let mut state = self.shared.lock();
        state.queue.push_back(fd);
        match state.idle {
            0 if state.threads == 0 || state.queue.len() >= WAITING_MAX => self.help(&mut state),
            0 => {}
            _ => self.shared.more.notify_one(),
        }
    }

    /// Gets another thread to work if nothing was closed since the last call. To be called now and
    /// then.
    pub fn tend(&self) {
        let mut state = self.shared.lock();
        let stuck = state.seen == state.taken && state.idle == 0 && !state.queue.is_empty();
        if stuck {
            self.help(&mut state);
        }
        state.seen = state.taken;
    }

    /// Threads that close something, or wait for something to close.
    #[cfg(test)]
    pub fn threads(&self) -> usize {
        self.shared.lock().threads
    }

    fn help(&self, state: &mut State) {
        if state.threads >= THREADS_MAX {
            return;
        }
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().stack_size(STACK_LEN);
        // Without a thread the descriptor stays open: `tend` tries again.
        if thread.spawn(move || shared.work()).is_ok() {
            state.threads += 1;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            while let Some(fd) = state.queue.pop_front() {
                state.taken += 1;
                drop(state);
                drop(fd);
                state = self.lock();
            }
            state.idle += 1;
            let waited = self.more.wait_timeout(state, IDLE_MAX);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if timeout.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    /// A socket whose last close(2) takes an hour, while the other one that is returned is there.
    pub(crate) fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        sender.set_nonblocking(true).unwrap();
        while sender.write(&[0; 64 * 1024]).is_ok() {}
        // Lingering is only for sockets that block.
        sender.set_nonblocking(false).unwrap();
        let hour = Some(Duration::from_secs(3600));
        rustix::net::sockopt::set_socket_linger(&sender, hour).unwrap();
        (sender.into(), receiver)
    }

    #[test]
    fn one_that_lingers_keeps_no_other_from_being_closed() {
        let disposal = Disposal::default();
        let mut receivers = Vec::new();
        for _ in 0..3 {
            let (sender, receiver) = lingering();
            receivers.push(receiver);
            disposal.put(sender);
        }
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let begun = Instant::now();
        disposal.put(theirs);
        loop {
            disposal.tend();
            let mut fds = [PollFd::new(&ours, PollFlags::empty())];
            let turn = Timespec::try_from(Duration::from_millis(10)).unwrap();
            if poll(&mut fds, Some(&turn)).unwrap() > 0 {
                break;
            }
            assert!(begun.elapsed().as_secs() < 10, "the descriptor is open");
        }
        // Those that linger still do.
        assert!(disposal.threads() >= 3);
        // The kernel answers what comes for a socket that is gone: the others are closed, too.
        drop(receivers);
        while disposal.threads() > 0 {
            assert!(begun.elapsed().as_secs() < 10, "threads hang");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
