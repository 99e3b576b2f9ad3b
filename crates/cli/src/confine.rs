//! What a service may ask of the kernel: seccomp(2).
//!
//! Invariants: the filter is in force before a thread is made, and before a byte of a client is
//! read; the helper that writes back inherits it. A call that is not listed fails with ENOSYS, as
//! on a kernel that does not have it, and changes nothing: no network, no other process's memory,
//! no mounts, no change of user, no rings.

use crate::failure::Failure;
use libc::*;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// Files, of which the kernel decides by the user's rights.
const FILES: &[c_long] = &[
    SYS_access,
    SYS_chdir,
    SYS_chmod,
    SYS_close,
    SYS_close_range,
    SYS_copy_file_range,
    SYS_dup,
    SYS_dup2,
    SYS_dup3,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_fadvise64,
    SYS_fallocate,
    SYS_fchdir,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fcntl,
    SYS_fdatasync,
    SYS_flock,
    SYS_fstat,
    SYS_fstatfs,
    SYS_fsync,
    SYS_ftruncate,
    SYS_getcwd,
    SYS_getdents64,
    SYS_ioctl,
    SYS_link,
    SYS_linkat,
    SYS_lseek,
    SYS_lstat,
    SYS_mkdir,
    SYS_mkdirat,
    SYS_newfstatat,
    SYS_open,
    SYS_openat,
    SYS_pread64,
    SYS_preadv,
    SYS_pwrite64,
    SYS_pwritev,
    SYS_read,
    SYS_readlink,
    SYS_readlinkat,
    SYS_readv,
    SYS_rename,
    SYS_renameat,
    SYS_renameat2,
    SYS_rmdir,
    SYS_stat,
    SYS_statfs,
    SYS_statx,
    SYS_symlink,
    SYS_symlinkat,
    SYS_sync_file_range,
    SYS_umask,
    SYS_unlink,
    SYS_unlinkat,
    SYS_utimensat,
    SYS_write,
    SYS_writev,
];

/// The process's own memory.
const MEMORY: &[c_long] = &[
    SYS_brk,
    SYS_madvise,
    SYS_membarrier,
    SYS_memfd_create,
    SYS_mincore,
    SYS_mlock,
    SYS_mlock2,
    SYS_mmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_msync,
    SYS_munlock,
    SYS_munmap,
    SYS_pkey_alloc,
    SYS_pkey_free,
    SYS_pkey_mprotect,
];

/// Waiting, waking, and connections that are there or that are local.
const TALK: &[c_long] = &[
    SYS_accept,
    SYS_accept4,
    SYS_bind,
    SYS_connect,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_epoll_wait,
    SYS_eventfd2,
    SYS_futex,
    SYS_getpeername,
    SYS_getsockname,
    SYS_getsockopt,
    SYS_listen,
    SYS_pipe,
    SYS_pipe2,
    SYS_poll,
    SYS_ppoll,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_select,
    SYS_sendmsg,
    SYS_sendto,
    SYS_setsockopt,
    SYS_shutdown,
    SYS_signalfd4,
    SYS_socketpair,
    SYS_timerfd_create,
    SYS_timerfd_settime,
];

/// Threads, the helper, signals to stopped programs, time.
const PROCESSES: &[c_long] = &[
    SYS_arch_prctl,
    SYS_clock_getres,
    SYS_clock_gettime,
    SYS_clock_nanosleep,
    SYS_clone,
    SYS_clone3,
    SYS_execve,
    SYS_exit,
    SYS_exit_group,
    SYS_fork,
    SYS_getcpu,
    SYS_getegid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getgroups,
    SYS_getpgrp,
    SYS_getpid,
    SYS_getppid,
    SYS_getrandom,
    SYS_getresgid,
    SYS_getresuid,
    SYS_getrlimit,
    SYS_getrusage,
    SYS_getsid,
    SYS_gettid,
    SYS_gettimeofday,
    SYS_getuid,
    SYS_kill,
    SYS_nanosleep,
    SYS_pause,
    SYS_pidfd_open,
    SYS_pidfd_send_signal,
    SYS_prctl,
    SYS_prlimit64,
    SYS_restart_syscall,
    SYS_rseq,
    SYS_rt_sigaction,
    SYS_rt_sigpending,
    SYS_rt_sigprocmask,
    SYS_rt_sigqueueinfo,
    SYS_rt_sigreturn,
    SYS_rt_sigsuspend,
    SYS_rt_sigtimedwait,
    SYS_sched_getaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_setaffinity,
    SYS_sched_yield,
    SYS_set_robust_list,
    SYS_set_tid_address,
    SYS_setpriority,
    SYS_setrlimit,
    SYS_setsid,
    SYS_sigaltstack,
    SYS_sysinfo,
    SYS_tgkill,
    SYS_time,
    SYS_times,
    SYS_uname,
    SYS_vfork,
    SYS_wait4,
    SYS_waitid,
];

/// Confines the calling thread, and what it will start, for good.
pub fn confine() -> Result<(), Failure> {
    let program = program().map_err(|e| failed(&e))?;
    match seccompiler::apply_filter(&program) {
        Ok(()) => Ok(()),
        // Here the kernel, or a container around us, has no filters.
        Err(seccompiler::Error::Seccomp(e) | seccompiler::Error::Prctl(e))
            if matches!(e.raw_os_error(), Some(EINVAL | ENOSYS | EPERM | EACCES)) =>
        {
            tracing::warn!("the service runs without a filter of system calls: {e}");
            Ok(())
        }
        Err(e) => Err(failed(&e)),
    }
}

fn failed(error: &impl std::fmt::Display) -> Failure {
    Failure::new(format!(
        "the filter of system calls cannot be made: {error}"
    ))
}

fn program() -> Result<BpfProgram, seccompiler::BackendError> {
    let listed = [FILES, MEMORY, TALK, PROCESSES].concat();
    let mut rules: std::collections::BTreeMap<_, _> =
        listed.into_iter().map(|call| (call, Vec::new())).collect();
    let local =
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, AF_UNIX as u64)?;
    rules.insert(SYS_socket, vec![SeccompRule::new(vec![local])?]);
    // A proxy makes pipes, and no devices.
    let is_kind = SeccompCmpOp::MaskedEq(S_IFMT.into());
    let pipe = SeccompCondition::new(2, SeccompCmpArgLen::Dword, is_kind, S_IFIFO.into())?;
    rules.insert(SYS_mknodat, vec![SeccompRule::new(vec![pipe])?]);
    let (other, listed) = (SeccompAction::Errno(ENOSYS as u32), SeccompAction::Allow);
    SeccompFilter::new(rules, other, listed, TargetArch::x86_64)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    /// In a thread of its own, which alone is confined.
    #[test]
    fn a_confined_thread_works_and_cannot_reach_out() {
        let confined = std::thread::spawn(|| {
            assert!(std::net::UdpSocket::bind("127.0.0.1:0").is_ok());
            confine().unwrap();
            let refused = |e: std::io::Error| e.raw_os_error() == Some(ENOSYS);
            assert!(std::net::UdpSocket::bind("127.0.0.1:0").is_err_and(refused));
            assert!(std::net::TcpStream::connect("127.0.0.1:1").is_err_and(refused));
            let chroot = std::os::unix::fs::chroot("/");
            assert!(chroot.is_err_and(refused));
            let make = |kind| {
                let name = format!("/tmp/holdfast-confined-{}", std::process::id());
                let made = rustix::fs::mknodat(rustix::fs::CWD, &name, kind, 0o600.into(), 0);
                let _ = std::fs::remove_file(name);
                made.map_err(std::io::Error::from)
            };
            make(rustix::fs::FileType::Fifo).unwrap();
            assert!(make(rustix::fs::FileType::CharacterDevice).is_err_and(refused));
            let user = rustix::process::geteuid();
            assert!(rustix::thread::set_thread_uid(user).is_err());
            // What a service does goes on.
            let (one, other) = UnixDatagram::pair().unwrap();
            one.send(b"x").unwrap();
            assert_eq!(other.recv(&mut [0; 2]).unwrap(), 1);
            assert!(std::fs::read("/proc/self/status").is_ok());
            let status = std::process::Command::new("/bin/true").status();
            assert!(status.unwrap().success());
            std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_millis(1)))
                .join()
                .unwrap();
        });
        confined.join().unwrap();
        assert!(std::net::UdpSocket::bind("127.0.0.1:0").is_ok());
    }
}
