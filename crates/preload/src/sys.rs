//! Raw system calls, made from our own text.
//!
//! Invariant: this object is never patched, so a call made here is never caught again. Results
//! are the kernel's: a value in `-4095..0` is a negated errno.
use core::arch::asm;

/// Numbers of the calls that this crate itself makes or looks at (x86-64).
#[allow(dead_code, reason = "dispatch picks from these")]
pub mod nr {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const OPEN: usize = 2;
    pub const CLOSE: usize = 3;
    pub const STAT: usize = 4;
    pub const FSTAT: usize = 5;
    pub const LSEEK: usize = 8;
    pub const MMAP: usize = 9;
    pub const MPROTECT: usize = 10;
    pub const MUNMAP: usize = 11;
    pub const RT_SIGACTION: usize = 13;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const RT_SIGRETURN: usize = 15;
    pub const IOCTL: usize = 16;
    pub const PREAD64: usize = 17;
    pub const PWRITE64: usize = 18;
    pub const MADVISE: usize = 28;
    pub const GETPID: usize = 39;
    pub const CLONE: usize = 56;
    pub const FORK: usize = 57;
    pub const VFORK: usize = 58;
    pub const EXECVE: usize = 59;
    pub const RENAME: usize = 82;
    pub const MKDIR: usize = 83;
    pub const UNLINK: usize = 87;
    pub const GETUID: usize = 102;
    pub const FDATASYNC: usize = 75;
    pub const CLOCK_GETTIME: usize = 228;
    pub const GETDENTS64: usize = 217;
    pub const RT_TGSIGQUEUEINFO: usize = 297;
    pub const GETTID: usize = 186;
    pub const EXIT_GROUP: usize = 231;
    pub const CLONE3: usize = 435;
}

pub const PROT_READ: usize = 1;
pub const PROT_WRITE: usize = 2;
pub const PROT_EXEC: usize = 4;
pub const MAP_PRIVATE: usize = 2;
pub const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
pub const MAP_ANONYMOUS: usize = 0x20;
pub const O_WRONLY: usize = 1;
pub const O_CREAT: usize = 0o100;
pub const O_EXCL: usize = 0o200;
pub const O_CLOEXEC: usize = 0o2_000_000;
pub const O_NOFOLLOW: usize = 0o400_000;
pub const O_DIRECTORY: usize = 0o200_000;

pub const EFAULT: isize = 14;

/// Makes the call `nr` natively.
///
/// # Safety
/// The caller answers for what the call does to memory: it must not unmap or overwrite what
/// Rust code still uses.
#[inline]
pub unsafe fn raw(nr: usize, args: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the kernel clobbers only rax, rcx and r11; its effect is the caller's contract.
    unsafe {
        asm!("syscall", inlateout("rax") nr as isize => ret,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

/// Whether a raw result is an error.
pub fn is_err(ret: isize) -> bool {
    (-4095..0).contains(&ret)
}

pub fn getpid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { raw(nr::GETPID, [0; 6]) as u32 }
}

pub fn gettid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { raw(nr::GETTID, [0; 6]) as u32 }
}

pub fn getuid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { raw(nr::GETUID, [0; 6]) as u32 }
}

/// An open descriptor of our own, closed on drop.
pub struct Fd(pub usize);

impl Fd {
    /// Opens `path`, which must end in a NUL byte.
    pub fn open(path: &[u8], flags: usize, mode: usize) -> Option<Fd> {
        if path.last() != Some(&0) {
            return None;
        }
        let args = [path.as_ptr() as usize, flags | O_CLOEXEC, mode, 0, 0, 0];
        // SAFETY: the path is NUL-terminated.
        let ret = unsafe { raw(nr::OPEN, args) };
        (!is_err(ret)).then_some(Fd(ret as usize))
    }

    /// Reads once; the number of bytes, or `None`.
    pub fn read(&self, buf: &mut [u8]) -> Option<usize> {
        let args = [self.0, buf.as_mut_ptr() as usize, buf.len(), 0, 0, 0];
        // SAFETY: the kernel writes at most `buf.len()` bytes of `buf`.
        let ret = unsafe { raw(nr::READ, args) };
        (ret >= 0).then_some(ret as usize)
    }

    pub fn write_all(&self, mut buf: &[u8]) -> Option<()> {
        while !buf.is_empty() {
            // SAFETY: the kernel only reads `buf`.
            let ret = unsafe {
                raw(
                    nr::WRITE,
                    [self.0, buf.as_ptr() as usize, buf.len(), 0, 0, 0],
                )
            };
            if ret <= 0 {
                return None;
            }
            buf = &buf[ret as usize..];
        }
        Some(())
    }

    /// Makes what was written durable.
    pub fn sync(&self) -> Option<()> {
        // SAFETY: touches no memory.
        (unsafe { raw(nr::FDATASYNC, [self.0, 0, 0, 0, 0, 0]) } == 0).then_some(())
    }

    pub fn stat(&self) -> Option<Stat> {
        stat_fd(self.0)
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        unsafe { raw(nr::CLOSE, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// The kernel's `struct stat`, as far as it is used.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Stat {
    pub dev: u64,
    pub ino: u64,
    pub nlink: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pad: u32,
    pub rdev: u64,
    pub size: i64,
    blksize: i64,
    pub blocks: i64,
    atime: [i64; 2],
    pub mtime: [i64; 2],
    pub ctime: [i64; 2],
    unused: [i64; 3],
}

pub fn stat_fd(fd: usize) -> Option<Stat> {
    let mut st = core::mem::MaybeUninit::<Stat>::zeroed();
    // SAFETY: the buffer has the size of the kernel's struct stat (144 bytes).
    let ret = unsafe { raw(nr::FSTAT, [fd, st.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    // SAFETY: zeroed and plain integers: any bytes are a valid Stat.
    (ret == 0).then(|| unsafe { st.assume_init() })
}

/// stat(2) of a path of the host.
pub fn stat_path(path: &core::ffi::CStr) -> Option<Stat> {
    let mut st = core::mem::MaybeUninit::<Stat>::zeroed();
    let args = [path.as_ptr() as usize, st.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: as in `stat_fd`; the path ends with a NUL.
    let ret = unsafe { raw(nr::STAT, args) };
    // SAFETY: as in `stat_fd`.
    (ret == 0).then(|| unsafe { st.assume_init() })
}

/// Seconds since 1970.
pub fn now() -> Option<i64> {
    let mut time = [0i64; 2];
    // SAFETY: the kernel writes a struct timespec, which is as long.
    let ret = unsafe {
        raw(
            nr::CLOCK_GETTIME,
            [0, time.as_mut_ptr() as usize, 0, 0, 0, 0],
        )
    };
    (ret == 0).then_some(time[0])
}

/// Anonymous private memory, or `None`.
pub fn map_anon(hint: usize, len: usize, prot: usize, extra: usize) -> Option<usize> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | extra;
    // SAFETY: a new mapping; MAP_FIXED is never passed here, so nothing is replaced.
    let ret = unsafe { raw(nr::MMAP, [hint, len, prot, flags, usize::MAX, 0]) };
    (!is_err(ret)).then_some(ret as usize)
}

/// Gives a mapping of ours back.
///
/// # Safety
/// Nothing may still use it.
pub unsafe fn unmap(addr: usize, len: usize) {
    // SAFETY: passed on to the caller.
    unsafe { raw(nr::MUNMAP, [addr, len, 0, 0, 0, 0]) };
}
