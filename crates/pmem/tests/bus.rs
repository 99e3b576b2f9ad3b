//! Memory that the host cannot provide, in a process that has only our handler, and in one that
//! had a handler of its own.

use holdfast_pmem::{Access, Error, Medium, PAGE, Region, fault};
use rustix::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A mapping of two pages of a file that has one.
fn cut_short() -> Region {
    let fd: OwnedFd = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, PAGE as u64).unwrap();
    Region::map(fd.as_fd(), 0, 2 * PAGE, Access::ReadWrite, Medium::Memory).unwrap()
}

static SEEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn mine(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo to a handler set with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    SEEN.fetch_add(1, Relaxed);
    if code > 0 {
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(42) };
    }
}

/// `None`: what a process has that set nothing.
fn set(handler: Option<extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)>) {
    // SAFETY: a zeroed sigaction is valid, and so is one with a handler of the SA_SIGINFO kind.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if let Some(handler) = handler {
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
        }
        let done = libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        assert_eq!(done, 0);
    }
}

/// What a process of this test's own does; each ends in a way that the test knows.
fn play(role: &str) {
    let region = cut_short();
    // The standard library has set one for stacks that overflow.
    match role {
        "theirs" | "sent" => set(Some(mine)),
        "none" | "unhandled" => set(None),
        _ => {}
    }
    match role {
        "last" => assert!(fault::install_with("the last words\n")),
        _ => assert!(fault::install() && fault::install()),
    }
    for _ in 0..3 {
        let lost = Err(Error::Media { off: PAGE as u64 });
        assert_eq!(region.write_nt(0, &[7; 2 * PAGE]), lost);
        assert_eq!(region.read(0, &mut [0; PAGE + 1]), lost);
        assert_eq!(region.zero_nt(PAGE as u64, PAGE), lost);
    }
    assert_eq!(SEEN.load(Relaxed), 0);
    if role == "sent" || role == "unhandled" {
        // SAFETY: a signal to this thread.
        unsafe { libc::raise(libc::SIGBUS) };
        assert_eq!(SEEN.load(Relaxed), 1);
        std::process::exit(43);
    }
    // A load that is not in a copy.
    let _ = region.load_u64(PAGE as u64);
    std::process::exit(1);
}

#[test]
fn only_faults_of_copies_are_ours() {
    use std::os::unix::process::ExitStatusExt;
    if let Ok(role) = std::env::var("HOLDFAST_BUS_ROLE") {
        return play(&role);
    }
    let run = |role: &str| {
        let me = std::env::current_exe().unwrap();
        let mut command = Command::new(me);
        command.args(["--exact", "only_faults_of_copies_are_ours", "--nocapture"]);
        command.env("HOLDFAST_BUS_ROLE", role).output().unwrap()
    };
    for role in ["none", "unhandled", "as it is"] {
        let ended = run(role);
        let signal = ended.status.signal();
        assert_eq!(signal, Some(libc::SIGBUS), "{role}: {ended:?}");
    }
    assert_eq!(run("theirs").status.code(), Some(42));
    assert_eq!(run("sent").status.code(), Some(43));
    let last = run("last");
    assert_eq!(last.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&last.stderr).ends_with("the last words\n"));
}
