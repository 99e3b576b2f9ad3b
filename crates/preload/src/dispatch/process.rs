//! What this process knows of its session.
//!
//! Invariants: set up once before the program runs and never freed; credentials are a snapshot
//! that is replaced whole whenever the program changes them.

use super::nr;
use crate::calls;
use crate::sys;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use holdfast_client::{Caller, Client};

/// Environment variables that every program of the session gets.
pub const VARIABLES: usize = 3;

/// Descriptors that Holdfast keeps open in every process.
pub const INTERNAL: usize = 6;

/// Ids as of the last change.
struct Credentials {
    fs_uid: u32,
    fs_gid: u32,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    privileged: bool,
}

/// The process.
pub struct Process {
    pub client: Client,
    /// Absolute path under which the pool appears.
    pub at: Box<[u8]>,
    /// The kernel's working directory while that of the process is in the pool: a removed one.
    pub parking_fd: u32,
    /// Where the kernel's pipes and sockets with a name in the pool are.
    pub special_dir: Box<[u8]>,
    /// Path of the running program if it lies in the pool.
    pub exe: Option<Box<[u8]>>,
    /// What descriptors of pool files duplicate.
    pub base_fd: u32,
    /// The data segment, for mappings.
    pub data_fd: u32,
    /// Our environment variables, as `NAME=value` with NUL.
    pub env: [Box<[u8]>; VARIABLES],
    internal: [u32; INTERNAL],
    pid: AtomicU32,
    credentials: AtomicPtr<Credentials>,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());

/// The process, once `install` ran.
#[inline]
pub fn process() -> Option<&'static Process> {
    let p = PROCESS.load(Acquire);
    // SAFETY: null or leaked by `install`, and only shared from then on.
    unsafe { p.as_ref() }
}

/// Everything that `Process::new` needs besides what it asks the kernel.
pub struct Parts {
    pub client: Client,
    pub at: Box<[u8]>,
    pub parking_fd: u32,
    pub special_dir: Box<[u8]>,
    pub exe: Option<Box<[u8]>>,
    pub base_fd: u32,
    pub data_fd: u32,
    pub env: [Box<[u8]>; VARIABLES],
    /// All of our descriptors.
    pub internal: [u32; INTERNAL],
}

/// Makes `parts` the process; only called once, before the program's first instruction.
pub fn install(parts: Parts) -> &'static Process {
    let mut internal = parts.internal;
    internal.sort_unstable();
    let process = Process {
        client: parts.client,
        at: parts.at,
        parking_fd: parts.parking_fd,
        special_dir: parts.special_dir,
        exe: parts.exe,
        base_fd: parts.base_fd,
        data_fd: parts.data_fd,
        env: parts.env,
        internal,
        pid: AtomicU32::new(sys::getpid()),
        credentials: AtomicPtr::new(Box::into_raw(Box::new(Credentials::now()))),
    };
    process.client.set_creation_mask(kernel_umask());
    let process: &'static Process = Box::leak(Box::new(process));
    PROCESS.store(core::ptr::from_ref(process).cast_mut(), Release);
    process
}

fn call(nr: usize, a: usize) -> isize {
    // SAFETY: only used for calls that touch no memory.
    unsafe { sys::raw(nr, [a, a, 0, 0, 0, 0]) }
}

/// The umask, which can only be read by setting it; nobody else runs yet.
fn kernel_umask() -> u32 {
    let mask = call(nr::UMASK, 0o77);
    call(nr::UMASK, mask as usize);
    mask as u32
}

const CAP_VERSION_3: u32 = 0x2008_0522;
const CAP_DAC_OVERRIDE: u32 = 1;

/// Whether file permissions bind the process: the effective capabilities tell.
fn privileged() -> bool {
    let header = [CAP_VERSION_3, 0];
    let mut data = [0u32; 6];
    let args = [
        header.as_ptr() as usize,
        data.as_mut_ptr() as usize,
        0,
        0,
        0,
        0,
    ];
    // SAFETY: version 3 fills two structs of three words.
    let ret = unsafe { sys::raw(nr::CAPGET, args) };
    ret == 0 && data[0] & (1 << CAP_DAC_OVERRIDE) != 0
}

fn groups() -> Vec<u32> {
    let count = call(nr::GETGROUPS, 0).max(0) as usize;
    let mut list = alloc::vec![0u32; count];
    // SAFETY: the kernel writes at most `count` ids.
    let got = unsafe {
        sys::raw(
            nr::GETGROUPS,
            [count, list.as_mut_ptr() as usize, 0, 0, 0, 0],
        )
    };
    list.truncate(got.max(0) as usize);
    list
}

impl Credentials {
    fn now() -> Credentials {
        Credentials {
            // An id that no user has: the kernel answers the current one and changes nothing.
            fs_uid: call(nr::SETFSUID, u32::MAX as usize) as u32,
            fs_gid: call(nr::SETFSGID, u32::MAX as usize) as u32,
            uid: call(nr::GETUID, 0) as u32,
            gid: call(nr::GETGID, 0) as u32,
            groups: groups(),
            privileged: privileged(),
        }
    }
}

impl Process {
    /// Calls `f` with the credentials of the caller. What is kept here is the owner's of this
    /// memory; those of a child that runs in it the kernel tells.
    fn with_credentials<T>(&self, f: impl FnOnce(&Credentials) -> T) -> T {
        if self.borrowed() {
            return f(&Credentials::now());
        }
        let c = self.credentials.load(Acquire);
        // SAFETY: always a leaked box; replaced values are never freed.
        f(unsafe { &*c })
    }

    /// Calls `f` with the rights of the process.
    pub fn with_caller<T>(&self, f: impl FnOnce(&Caller) -> T) -> T {
        let umask = self.client.creation_mask();
        self.with_credentials(|c| {
            f(&Caller {
                uid: c.fs_uid,
                gid: c.fs_gid,
                groups: &c.groups,
                umask,
                privileged: c.privileged,
            })
        })
    }

    /// Calls `f` with the rights of the real user, as access(2) asks.
    pub fn with_real_caller<T>(&self, f: impl FnOnce(&Caller) -> T) -> T {
        let umask = self.client.creation_mask();
        self.with_credentials(|c| {
            f(&Caller {
                uid: c.uid,
                gid: c.gid,
                groups: &c.groups,
                umask,
                privileged: c.uid == 0,
            })
        })
    }

    /// The program changed its ids: look again. Old snapshots stay, other threads may read them.
    pub fn refresh_credentials(&self) {
        if self.borrowed() {
            return;
        }
        self.credentials
            .store(Box::into_raw(Box::new(Credentials::now())), Release);
    }

    pub fn pid(&self) -> u32 {
        self.pid.load(Relaxed)
    }

    /// In a forked child.
    pub fn set_pid(&self, pid: u32) {
        self.pid.store(pid, Relaxed);
    }

    /// Whether the caller is a child that runs in its parent's memory.
    pub fn borrowed(&self) -> bool {
        crate::process::in_shared_child()
    }

    /// Whether the descriptor is one of ours.
    #[inline]
    pub fn is_internal(&self, fd: u32) -> bool {
        fd >= self.internal[0] && self.internal.contains(&fd)
    }

    pub fn internal_sorted(&self) -> [u32; INTERNAL] {
        self.internal
    }

    /// Calls on `fd` no longer need a look, unless another process with this memory needs one.
    pub fn unmark(&self, fd: u32) {
        if !crate::process::is_shared() && !self.is_internal(fd) {
            calls::unmark_fd(fd);
        }
    }
}
