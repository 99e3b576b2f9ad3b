//! Ends system calls that wait in other threads of a process of our own.
//!
//! Invariant: the signal has a handler that does nothing, without SA_RESTART. So it ends what waits
//! in the kernel, and changes nothing else.

use crate::sigaction::{Action, SA_RESTORER, sigaction};
use crate::sys;

/// One that no test of this crate has a handler of its own for.
const SIGUSR2: i32 = 12;
const SYS_TGKILL: usize = 234;

extern "C" fn nothing(_signal: i32) {}

/// Must be called before `interrupt`, without which the signal would end the process. False: the
/// kernel refused.
pub fn allow() -> bool {
    let action = Action {
        handler: nothing as *const () as usize,
        flags: SA_RESTORER,
        ..Action::default_action()
    };
    sigaction(SIGUSR2, Some(&action), None)
}

/// The number of the thread that calls.
pub fn own_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// The call that this thread of the process waits in fails with EINTR. One that it is only about to
/// make does not: who wants the end of it interrupts again.
pub fn interrupt(thread: u32) {
    let pid = crate::process::own_pid() as usize;
    let args = [pid, thread as usize, SIGUSR2 as usize, 0];
    // SAFETY: touches no memory; the handler that `allow` set does nothing.
    unsafe { sys::syscall(SYS_TGKILL, args) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::*};
    use std::time::Duration;

    #[test]
    fn a_call_that_waits_ends() {
        assert!(allow());
        static THREAD: AtomicU32 = AtomicU32::new(0);
        let waits = std::thread::spawn(|| {
            THREAD.store(own_thread(), SeqCst);
            let (_writer, reader) = std::os::unix::net::UnixStream::pair().unwrap();
            rustix::io::read(&reader, &mut [0u8; 1])
        });
        while !waits.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
            match THREAD.load(SeqCst) {
                0 => {}
                thread => interrupt(thread),
            }
        }
        assert_eq!(waits.join().unwrap(), Err(rustix::io::Errno::INTR));
    }
}
