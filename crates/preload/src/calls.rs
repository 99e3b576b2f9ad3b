//! Which system calls are caught, and the two byte tables that trampolines look at.
//!
//! Invariants: a trampoline reads one byte by the low 16 bits of a number, so an entry may cover
//! too much but never too little; a call whose class is `NATIVE`, and a call of class `BY_FD` whose
//! descriptor is unmarked, run in the kernel without entering the hook.
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Runs natively; its sites need no patch.
pub const NATIVE: u8 = 0;
/// Always enters the hook.
pub const ALWAYS: u8 = 1;
/// Enters the hook when its first argument is a marked descriptor.
pub const BY_FD: u8 = 2;
/// Enters the hook in a run with `--map`.
pub const OF_MAPPINGS: u8 = 3;

/// Changes whenever the lists below, or what `scan` makes of an object, do: tables that were kept
/// under another revision are made anew.
pub const REVISION: u32 = 26;

/// Calls on one descriptor, their first argument.
const BY_FD_CALLS: &[u16] = &[
    0, 1, 3, 5, 8, 17, 18, 19, 20, // read write close fstat lseek pread pwrite *v
    32, 72, 73, 74, 75, 77, 78, // dup fcntl flock fsync fdatasync ftruncate getdents
    91, 93, 138, 187, 190, 193, 196, 199, // fchmod fchown fstatfs readahead f*xattr
    217, 221, 277, 285, // getdents64 fadvise64 sync_file_range fallocate
    295, 296, 306, 327, 328, 451, // preadv pwritev syncfs preadv2 pwritev2 cachestat
];

const ALWAYS_CALLS: &[u16] = &[
    2, 4, 6, 21, 76, 79, 80, 81, // open stat lstat access truncate getcwd chdir fchdir
    82, 83, 84, 85, 86, 87, 88, 89, 90, 92, 94, // rename .. readlink chmod chown lchown
    132, 133, 137, 161, 162, // utime mknod statfs chroot sync
    155, 163, 165, 166, 167, 168,
    179, // pivot_root acct mount umount2 swapon swapoff quotactl
    188, 189, 191, 192, 194, 195, 197, 198, 235, // path xattr calls, utimes
    254, 257, 258, 259, 260, 261, 262, 263, 264, 265, 266, 267, 268, 269, 280, // *at
    301, 303, 304, 316, 332, 428, 429, 437, 438, 439, 442, 443,
    452, // fanotify_mark .. fchmodat2
    463, 464, 465, 466, 467, 468, 469, // *xattrat open_tree_attr file_getattr file_setattr
    33, 292, 436, // dup2 dup3 close_range
    40, 275, 276, 326, // sendfile splice tee copy_file_range
    42, 44, 46, 47, 49, 51, 52, 299,
    307, // connect sendto sendmsg recvmsg bind get*name recvmmsg sendmmsg
    9, 10, 11, 25, 26, 28, 216, // mmap mprotect munmap mremap msync madvise remap_file_pages
    149, 150, 325, 329, // mlock munlock mlock2 pkey_mprotect
    16, 151, // ioctl (a driver may be handed a descriptor) mlockall
    13, 14, // rt_sigaction rt_sigprocmask
    56, 57, 58, 59, 60, 231, 322,
    435, // clone fork vfork execve exit exit_group execveat clone3
    95, 105, 106, 113, 114, 116, 117, 119, 122, 123, 126, // umask, credentials
    160, 302, // setrlimit prlimit64
    157, 272, 308, 317, // prctl unshare setns seccomp
    206, 207, 208, 209, 210, 333, 425, 426, 427, // libaio and io_uring
];

/// What else programs do to their mappings, or to one of their threads.
const MAPPING_CALLS: &[u16] = &[
    27, 30, // mincore shmat
    237, 446, 462, // mbind landlock_restrict_self mseal
];

/// What is caught in a run without a pool: what maps, what the kernel answers by what is mapped,
/// what ends keeping or mapping ahead, and what the hook itself has to see.
const WITHOUT_POOL: &[u16] = &[
    9, 10, 11, 25, 26, 27, 28, 30, // mmap mprotect munmap mremap msync mincore madvise shmat
    149, 150, 151, 216, // mlock munlock mlockall remap_file_pages
    237, 325, 329, 446, 462, // mbind mlock2 pkey_mprotect landlock_restrict_self mseal
    82, 87, 166, 263, 264, 316, // rename unlink umount2 unlinkat renameat renameat2
    16, 157, 317, // ioctl prctl seccomp
    105, 106, 113, 114, 116, 117, 119, 122, 123, 126, // credentials
    272, 308, // unshare setns
    59, 231, 322, // execve exit_group execveat
    13, 14, 56, 57, 58, 435, // rt_sigaction rt_sigprocmask clone fork vfork clone3
];

/// Classes by number; `mapping` is that of what only a run with `--map` has to see.
const fn classes<const N: usize>(mapping: u8) -> [u8; N] {
    let table = set([NATIVE; N], BY_FD_CALLS, BY_FD);
    let table = set(table, ALWAYS_CALLS, ALWAYS);
    set(table, MAPPING_CALLS, mapping)
}

const fn set<const N: usize>(mut table: [u8; N], calls: &[u16], class: u8) -> [u8; N] {
    let mut i = 0;
    while i < calls.len() {
        table[calls[i] as usize] = class;
        i += 1;
    }
    table
}

/// Class by number; above this it is native.
static CLASSES: [u8; 512] = classes(OF_MAPPINGS);

/// What trampolines look at.
#[repr(transparent)]
struct Numbers(UnsafeCell<[u8; 1 << 16]>);
// SAFETY: written by `catch_mappings` and `catch_without_pool` alone, before any trampoline exists
// or a thread is made.
unsafe impl Sync for Numbers {}

/// By the low 16 bits of the number: what it is in this run, so `NATIVE` or `ALWAYS` for a call of
/// class `OF_MAPPINGS`.
static NUMBERS: Numbers = Numbers(UnsafeCell::new(classes(NATIVE)));

static NO_POOL: AtomicBool = AtomicBool::new(false);

/// Whether only the calls of `WITHOUT_POOL` are of interest. Sites of others are not patched then,
/// so tables and images that are kept are others, too.
pub fn is_without_pool() -> bool {
    NO_POOL.load(Ordering::Relaxed)
}

/// Before anything is patched: the calls of `WITHOUT_POOL` enter the hook, and no others.
pub fn catch_without_pool() {
    NO_POOL.store(true, Ordering::Relaxed);
    // SAFETY: nobody else runs yet, and nothing refers to the table.
    let table = unsafe { &mut *NUMBERS.0.get() };
    table.fill(NATIVE);
    for nr in WITHOUT_POOL {
        table[usize::from(*nr)] = ALWAYS;
    }
}

/// Before anything is patched: calls of class `OF_MAPPINGS` enter the hook.
pub fn catch_mappings() {
    // SAFETY: nobody else runs yet, and nothing refers to the table.
    let table = unsafe { &mut *NUMBERS.0.get() };
    for nr in MAPPING_CALLS {
        table[usize::from(*nr)] = ALWAYS;
    }
}

/// Whether what is known of a program's mappings depends on every call of this number.
pub fn concerns_mappings(nr: u16) -> bool {
    WITHOUT_POOL.contains(&nr)
}

/// Whether every call of this number enters the hook.
pub const fn class_is_caught(nr: usize) -> bool {
    CLASSES[nr] == ALWAYS
}

/// By the low 16 bits of a descriptor: not zero when the hook must see calls on it. The first byte
/// is of a descriptor below 65536 and comes and goes; the second one is of all others with these
/// bits and stays, so that nobody has to know whether the last of them is gone.
static MARKED: [[AtomicU8; 2]; 1 << 16] = [const { [const { AtomicU8::new(0) }; 2] }; 1 << 16];

/// Of the calls that enter the hook in this run, or may do so.
pub fn class_of(nr: usize) -> u8 {
    match is_without_pool() {
        false => CLASSES.get(nr).copied().unwrap_or(NATIVE),
        true if WITHOUT_POOL.iter().any(|call| usize::from(*call) == nr) => ALWAYS,
        true => NATIVE,
    }
}

/// Calls that may return twice or on another stack: only ever made by the trampoline itself.
pub fn splits(nr: usize) -> bool {
    use crate::sys::nr::{CLONE, CLONE3, VFORK};
    matches!(nr, CLONE | VFORK | CLONE3)
}

pub fn number_table() -> usize {
    NUMBERS.0.get() as usize
}

pub fn fd_table() -> usize {
    MARKED.as_ptr() as usize
}

fn marks_of(fd: u32) -> &'static [AtomicU8; 2] {
    &MARKED[(fd & 0xffff) as usize]
}

/// From now on calls on `fd` enter the hook.
pub fn mark_fd(fd: u32) {
    marks_of(fd)[usize::from(fd > 0xffff)].store(1, Ordering::Relaxed);
}

static ALL_MARKED: AtomicBool = AtomicBool::new(false);

/// From now on calls on all descriptors enter the hook: a process with another memory makes
/// pool files of any of them.
pub fn mark_all() {
    if ALL_MARKED.swap(true, Ordering::Relaxed) {
        return;
    }
    for [_, stays] in &MARKED {
        stays.store(1, Ordering::Relaxed);
    }
}

/// Calls on `fd` pass again without entering the hook, if it is below 65536.
pub fn unmark_fd(fd: u32) {
    if fd <= 0xffff {
        marks_of(fd)[0].store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_marked(fd: u32) -> bool {
        marks_of(fd)
            .iter()
            .any(|mark| mark.load(Ordering::Relaxed) != 0)
    }

    #[test]
    fn what_has_a_name_is_caught() {
        for kind in holdfast_client::calls::KINDS {
            let class = class_of(kind.nr.into());
            assert!(matches!(class, ALWAYS | BY_FD), "{}", kind.name);
        }
    }

    #[test]
    fn what_is_caught_without_a_pool_is_patched() {
        for nr in WITHOUT_POOL {
            let class = class_of(usize::from(*nr));
            assert!(matches!(class, ALWAYS | OF_MAPPINGS), "{nr}");
        }
    }

    #[test]
    fn a_mark_stays_while_a_higher_number_needs_it() {
        let low = 40_000;
        mark_fd(low);
        assert!(is_marked(low) && !is_marked(low + 1));
        unmark_fd(low);
        assert!(!is_marked(low));
        mark_fd(low + 0x30000);
        mark_fd(low);
        unmark_fd(low);
        unmark_fd(low + 0x10000);
        assert!(is_marked(low + 0x30000));
    }
}
