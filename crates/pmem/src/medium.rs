//! What backs a segment, and so what its instructions promise.

use crate::PAGE;
use crate::map::HUGE;
use core::ffi::c_void;
use core::ptr;
use rustix::fd::BorrowedFd;
use rustix::fs::{Mode, OFlags, StatFs};
use rustix::mm::{MapFlags, ProtFlags};

/// What backs a segment. `docs/spec/media.md` states what each promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Medium {
    /// tmpfs, hugetlbfs, ramfs, memfd: survives the process, not the power.
    Memory,
    /// An ordinary file: durable after [`crate::Region::sync`].
    File,
    /// A DAX file mapped with MAP_SYNC, or device DAX: durable after flush and fence.
    Dax,
    /// Memory that is treated as DAX: the same instructions, at the same cost; it promises what
    /// memory does.
    DaxTest,
}

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

impl Medium {
    /// Finds out what backs `fd`. Anything not known to be better is `File`.
    pub fn detect(fd: BorrowedFd<'_>) -> Medium {
        if let Ok(fs) = rustix::fs::fstatfs(fd) {
            if [TMPFS_MAGIC, RAMFS_MAGIC, HUGETLBFS_MAGIC].contains(&magic(&fs)) {
                return Medium::Memory;
            }
        }
        if maps_sync(fd) {
            Medium::Dax
        } else {
            Medium::File
        }
    }

    /// True where bytes outlive a power cut once they are made durable.
    pub fn survives_power_loss(&self) -> bool {
        !matches!(self, Medium::Memory | Medium::DaxTest)
    }
}

/// The magic is 32 bits wide; the field is wider and may be sign-extended.
fn magic(fs: &StatFs) -> u64 {
    fs.f_type as u64 & 0xffff_ffff
}

/// Bytes of a page of a file of hugetlbfs. Such files have a length of whole pages, are mapped and
/// punched by whole pages, and write(2) does not reach them.
pub fn huge_page(fd: BorrowedFd<'_>) -> Option<u64> {
    let fs = rustix::fs::fstatfs(fd).ok()?;
    (magic(&fs) == HUGETLBFS_MAGIC).then_some(fs.f_bsize as u64)
}

/// True when the kernel agrees to keep the file's metadata durable for stores through a map.
fn maps_sync(fd: BorrowedFd<'_>) -> bool {
    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    // Device DAX maps whole huge pages only.
    [PAGE, HUGE].into_iter().any(|len| {
        // SAFETY: a new mapping at an address of the kernel's choice; it is not touched.
        let map = unsafe { rustix::mm::mmap(ptr::null_mut(), len, ProtFlags::READ, flags, fd, 0) };
        if let Ok(p) = map {
            // SAFETY: p is what was mapped above and nothing refers to it.
            let _ = unsafe { rustix::mm::munmap(p.cast::<c_void>(), len) };
        }
        map.is_ok()
    })
}

/// True when the platform says that CPU caches survive a power cut for the device under `fd`.
pub fn caches_persistent(fd: BorrowedFd<'_>) -> bool {
    let Ok(stat) = rustix::fs::fstat(fd) else {
        return false;
    };
    let (major, minor) = (
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev),
    );
    // The namespace's parent is the region; a partition's parent is the disk.
    [
        "device/../persistence_domain",
        "../device/../persistence_domain",
    ]
    .iter()
    .any(|tail| {
        let path = alloc::format!("/sys/dev/block/{major}:{minor}/{tail}");
        let Ok(file) = rustix::fs::open(path.as_str(), OFlags::RDONLY, Mode::empty()) else {
            return false;
        };
        let mut text = [0u8; 16];
        let n = rustix::io::read(&file, &mut text).unwrap_or(0);
        text.get(..n).is_some_and(|t| t.starts_with(b"cpu_cache"))
    })
}
