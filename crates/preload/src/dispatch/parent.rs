//! The directory of the host above the pool: its listing has the pool's name, as that of a
//! directory has in which something is mounted.
//!
//! Invariants: a name that the host has there itself is the host's; ours comes last, once after
//! each beginning of a listing; the directory is known by its device and inode. A
//! descriptor that openat2(2), dup2(2) or an open without O_DIRECTORY made is not known, and its
//! listing lacks the name.

use super::args;
use super::nr;
use super::outcome::{Outcome, Stop};
use super::place::AT_FDCWD;
use super::process::Process;
use super::{at, names};
use crate::calls;
use crate::sys;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use holdfast_client::abi::{AT_SYMLINK_NOFOLLOW, SEEK_CUR};
use holdfast_pool::layout::ROOT_INO;

type Args = [usize; 6];

/// Device and inode; 0: not looked at yet.
static ID: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// `d_type` of a directory.
const DT_DIR: u8 = 4;
/// Descriptors above are not looked at.
const DESCRIPTORS: usize = 1024;
/// By descriptor: whether its listing has had the name.
static GIVEN: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];

/// What openat(2) with O_DIRECTORY led to. A directory of the host is opened here, so that its
/// descriptor is known if it is the one above the pool.
pub fn opened(p: &Process, a: &Args, outcome: Outcome) -> Outcome {
    let fd = match outcome {
        // SAFETY: the program's own call.
        Err(Stop::Native) => unsafe { sys::raw(nr::OPENAT, *a) },
        Err(Stop::Outside(path)) if at::inside(&p.at, &path).is_none() => {
            let path = names::terminated(&path);
            let args = [AT_FDCWD as usize, path.as_ptr() as usize, a[2], a[3], 0, 0];
            // SAFETY: the program's own call, with a path that lives until here.
            unsafe { sys::raw(nr::OPENAT, args) }
        }
        other => return other,
    };
    mark(p, fd);
    Err(Stop::Passed(fd))
}

/// dup(2), or fcntl(2) with F_DUPFD, of a descriptor that is not the pool's.
pub fn duplicated(p: &Process, number: usize, a: &Args) -> Outcome {
    // SAFETY: the program's own call, which touches no memory.
    let fd = unsafe { sys::raw(number, *a) };
    mark(p, fd);
    Err(Stop::Passed(fd))
}

/// Listings through `fd` come here if it is the directory above the pool.
fn mark(p: &Process, fd: isize) {
    if fd >= 0 && is_parent(p, fd as usize) {
        calls::mark_fd(fd as u32);
    }
}

/// getdents64(2) of a descriptor that is not the pool's.
pub fn getdents64(p: &Process, a: &Args) -> Outcome {
    let fd = a[0] as u32 as usize;
    if fd >= DESCRIPTORS || !is_parent(p, fd) {
        return Err(Stop::Native);
    }
    let (word, bit) = (&GIVEN[fd / 64], 1 << (fd % 64));
    // SAFETY: touches no memory.
    let offset = unsafe { sys::raw(nr::LSEEK, [fd, 0, SEEK_CUR as usize, 0, 0, 0]) };
    if offset == 0 {
        word.fetch_and(!bit, Relaxed);
    }
    // SAFETY: the program's own call.
    let ret = unsafe { sys::raw(nr::GETDENTS64, *a) };
    if ret != 0 || word.load(Relaxed) & bit != 0 || is_hosts(p, fd) {
        return Err(Stop::Passed(ret));
    }
    let len = put_entry(name(p), offset, a[1], a[2] as u32 as usize)?;
    word.fetch_or(bit, Relaxed);
    Ok(len)
}

/// A `struct linux_dirent64` with a NUL behind the name.
fn put_entry(name: &[u8], offset: isize, to: usize, room: usize) -> Outcome {
    const NAME_AT: usize = 19;
    const LONGEST: usize = 280;
    let mut entry = [0; LONGEST];
    let len = (NAME_AT + name.len() + 1).next_multiple_of(8);
    if len > room || len > LONGEST {
        return Err(args::EINVAL.into());
    }
    entry[..8].copy_from_slice(&ROOT_INO.to_le_bytes());
    entry[8..16].copy_from_slice(&(offset as u64).to_le_bytes());
    entry[16..18].copy_from_slice(&(len as u16).to_le_bytes());
    entry[18] = DT_DIR;
    entry[NAME_AT..NAME_AT + name.len()].copy_from_slice(name);
    args::write_bytes(to, &entry[..len])?;
    Ok(len as isize)
}

/// Where the last component of the pool's path begins.
fn name_at(p: &Process) -> usize {
    p.at.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1)
}

fn name(p: &Process) -> &[u8] {
    &p.at[name_at(p)..]
}

/// Whether the host has the name itself.
fn is_hosts(p: &Process, fd: usize) -> bool {
    let name = names::terminated(name(p));
    let mut st = [0u64; 18];
    let (name, st) = (name.as_ptr() as usize, st.as_mut_ptr() as usize);
    let args = [fd, name, st, AT_SYMLINK_NOFOLLOW as usize, 0, 0];
    // SAFETY: the name ends with a NUL; the kernel fills a struct stat, which is as long.
    unsafe { sys::raw(nr::NEWFSTATAT, args) == 0 }
}

fn is_parent(p: &Process, fd: usize) -> bool {
    let [dev, ino] = ID.each_ref().map(|word| word.load(Relaxed));
    let (dev, ino) = match ino {
        0 => look(p),
        _ => (dev, ino),
    };
    ino != 0 && sys::stat_fd(fd).is_some_and(|st| (st.dev, st.ino) == (dev, ino))
}

/// The directory above the pool, if it is there.
#[cold]
fn look(p: &Process) -> (u64, u64) {
    let path = names::terminated(&p.at[..name_at(p)]);
    let path = core::ffi::CStr::from_bytes_with_nul(&path);
    let Some(st) = path.ok().and_then(sys::stat_path) else {
        return (0, 0);
    };
    ID[0].store(st.dev, Relaxed);
    ID[1].store(st.ino, Relaxed);
    (st.dev, st.ino)
}
