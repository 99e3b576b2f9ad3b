//! Calls that take paths, and their variants on descriptors.
//!
//! Invariants: the pool serves a call with one path in the pool; a call with two paths needs both
//! there (EXDEV otherwise, as between two file systems).

use super::args::{self, EINVAL, Errno};
use super::data::{not_a_path, object, ours};
use super::outcome::{Outcome, Stop, count, done};
use super::place::{AT_FDCWD, DESCRIPTOR, at_flags, in_pool};
use super::process::Process;
use super::{nr, xattrs};
use crate::sys;
use alloc::boxed::Box;
use alloc::vec::Vec;
use holdfast_client::abi::*;
use holdfast_client::{Base, Error, SetTime};

type Args = [usize; 6];

const CWD: usize = AT_FDCWD as usize;
const ENOENT: Errno = 2;
const EXDEV: Errno = 18;
const EBADF: Errno = 9;
const ENOTDIR: Errno = 20;
const ERANGE: Errno = 34;

pub fn mkdir(p: &Process, a: &Args) -> Outcome {
    mkdirat(p, &[CWD, a[0], a[1], 0, 0, 0])
}

pub fn mkdirat(p: &Process, a: &Args) -> Outcome {
    in_pool(p, a[0], a[1], |base, path| {
        p.with_caller(|c| done(p.client.mkdir(c, base, path, a[2] as u32)))
    })
}

pub fn mknod(p: &Process, a: &Args) -> Outcome {
    mknodat(p, &[CWD, a[0], a[1], a[2], 0, 0])
}

pub fn mknodat(p: &Process, a: &Args) -> Outcome {
    in_pool(p, a[0], a[1], |base, path| {
        p.with_caller(|c| done(p.client.mknod(c, base, path, a[2] as u32, a[3] as u64)))
    })
}

pub fn rmdir(p: &Process, a: &Args) -> Outcome {
    in_pool(p, CWD, a[0], |base, path| {
        p.with_caller(|c| done(p.client.rmdir(c, base, path)))
    })
}

pub fn unlink(p: &Process, a: &Args) -> Outcome {
    in_pool(p, CWD, a[0], |base, path| {
        p.with_caller(|c| done(p.client.unlink(c, base, path)))
    })
}

pub fn unlinkat(p: &Process, a: &Args) -> Outcome {
    let flags = a[2] as u32;
    in_pool(p, a[0], a[1], |base, path| {
        if flags & !AT_REMOVEDIR != 0 {
            return Err(EINVAL.into());
        }
        p.with_caller(|c| match flags & AT_REMOVEDIR {
            0 => done(p.client.unlink(c, base, path)),
            _ => done(p.client.rmdir(c, base, path)),
        })
    })
}

pub fn symlink(p: &Process, a: &Args) -> Outcome {
    symlinkat(p, &[a[0], CWD, a[1], 0, 0, 0])
}

pub fn symlinkat(p: &Process, a: &Args) -> Outcome {
    in_pool(p, a[1], a[2], |base, path| {
        let mut made = Err(Stop::Native);
        args::with_path(a[0], |target| {
            made = p.with_caller(|c| done(p.client.symlink(c, target, base, path)));
            Ok(())
        })?;
        made
    })
}

/// Where one of two paths lies.
enum Side {
    Pool(Base, Vec<u8>),
    Kernel,
}

fn side(p: &Process, dirfd: usize, addr: usize) -> Result<Side, Stop> {
    // A path that cannot be read has no place: the call fails wherever the other one is.
    args::with_path(addr, |_| Ok(()))?;
    let mut found = Side::Kernel;
    let outcome = in_pool(p, dirfd, addr, |base, path| {
        found = Side::Pool(base, path.to_vec());
        Ok(0)
    });
    match outcome {
        Ok(_) | Err(Stop::Native) => Ok(found),
        Err(stop) => Err(stop),
    }
}

/// Runs `f` on two paths that both lie in the pool.
fn two(
    p: &Process,
    old: (usize, usize),
    new: (usize, usize),
    f: impl FnOnce((Base, &[u8]), (Base, &[u8])) -> Outcome,
) -> Outcome {
    match (side(p, old.0, old.1)?, side(p, new.0, new.1)?) {
        (Side::Kernel, Side::Kernel) => Err(Stop::Native),
        (Side::Pool(b1, p1), Side::Pool(b2, p2)) => f((b1, &p1), (b2, &p2)),
        (Side::Kernel, _) => {
            is_directory(old)?;
            Err(EXDEV.into())
        }
        (Side::Pool(base, path), Side::Kernel) => {
            // The kernel looks at the first path first, to rename it at its directory only.
            let flags = AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH;
            match p.with_caller(|c| p.client.stat(c, base, &path, flags)) {
                Err(Error::NotFound) => {}
                found => drop(found?),
            }
            is_directory(new)?;
            Err(EXDEV.into())
        }
    }
}

/// Whether a path of the kernel's begins somewhere.
fn is_directory((dirfd, path): (usize, usize)) -> Result<(), Errno> {
    let first = args::with_path(path, |path| Ok(path.first().copied()))?;
    let relative = first != Some(b'/');
    if !relative || dirfd as i32 == CWD as i32 {
        return Ok(());
    }
    match sys::stat_fd(dirfd) {
        // The path is read before the descriptor is looked at.
        None => Err(if first.is_none() { ENOENT } else { EBADF }),
        Some(stat) if stat.mode & S_IFMT != S_IFDIR => Err(ENOTDIR),
        Some(_) => Ok(()),
    }
}

/// A call whose first or second path leaves the pool would join two file systems.
fn same_world(result: holdfast_client::Result<()>) -> Outcome {
    match result {
        Err(holdfast_client::Error::Outside(_) | holdfast_client::Error::OutsideSecond(_)) => {
            Err(EXDEV.into())
        }
        other => done(other),
    }
}

pub fn link(p: &Process, a: &Args) -> Outcome {
    linkat(p, &[CWD, a[0], CWD, a[1], 0, 0])
}

pub fn linkat(p: &Process, a: &Args) -> Outcome {
    if a[4] as u32 & !(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH) != 0 {
        return Err(EINVAL.into());
    }
    if let Some(fd) = descriptor_source(p, a) {
        return link_descriptor(p, fd, a);
    }
    two(p, (a[0], a[1]), (a[2], a[3]), |old, new| {
        p.with_caller(|c| same_world(p.client.link(c, old, new, a[4] as u32)))
    })
}

/// linkat("/proc/self/fd/N", AT_SYMLINK_FOLLOW) names an O_TMPFILE file.
fn descriptor_source(p: &Process, a: &Args) -> Option<holdfast_client::OfdLink> {
    if a[4] as u32 & AT_SYMLINK_FOLLOW == 0 {
        return None;
    }
    let mut fd = None;
    args::with_path(a[1], |path| {
        fd = super::at::descriptor_link(path, p.pid());
        Ok(())
    })
    .ok()?;
    p.client.lookup(fd?)
}

fn link_descriptor(p: &Process, ofd: holdfast_client::OfdLink, a: &Args) -> Outcome {
    match side(p, a[2], a[3])? {
        Side::Kernel => Err(EXDEV.into()),
        Side::Pool(base, path) => p.with_caller(|c| {
            let old = (Base::Ofd(ofd), b"".as_slice());
            same_world(p.client.link(c, old, (base, &path), AT_EMPTY_PATH))
        }),
    }
}

pub fn rename(p: &Process, a: &Args) -> Outcome {
    renameat2(p, &[CWD, a[0], CWD, a[1], 0, 0])
}

pub fn renameat(p: &Process, a: &Args) -> Outcome {
    renameat2(p, &[a[0], a[1], a[2], a[3], 0, 0])
}

pub fn renameat2(p: &Process, a: &Args) -> Outcome {
    const EXCHANGE: usize = 2;
    const KNOWN: usize = 7;
    let flags = a[4] as u32 as usize;
    if flags & !KNOWN != 0 || (flags & EXCHANGE != 0 && flags != EXCHANGE) {
        return Err(EINVAL.into());
    }
    two(p, (a[0], a[1]), (a[2], a[3]), |old, new| {
        p.with_caller(|c| same_world(p.client.rename(c, old, new, a[4] as u32)))
    })
}

pub fn readlink(p: &Process, a: &Args) -> Outcome {
    readlinkat(p, &[CWD, a[0], a[1], a[2], 0, 0])
}

pub fn readlinkat(p: &Process, a: &Args) -> Outcome {
    if let Some(outcome) = read_descriptor_link(p, a) {
        return outcome;
    }
    in_pool(p, a[0], a[1], |base, path| {
        if a[3] as i32 <= 0 {
            return Err(EINVAL.into());
        }
        let out = args::target(a[2], a[3] as i32 as usize);
        match p.with_caller(|c| count(p.client.readlink(c, base, path, out))) {
            // Of a descriptor itself, that of a link is asked for.
            Err(Stop::Errno(EINVAL)) if path.is_empty() => Err(ENOENT.into()),
            read => read,
        }
    })
}

/// readlink("/proc/self/fd/N") and "/proc/self/cwd" show the pool's path.
fn read_descriptor_link(p: &Process, a: &Args) -> Option<Outcome> {
    enum Link {
        Fd(u32),
        Cwd,
        Exe,
    }
    let mut link = None;
    args::with_path(a[1], |path| {
        link = match path {
            b"/proc/self/cwd" | b"/proc/thread-self/cwd" => Some(Link::Cwd),
            b"/proc/self/exe" | b"/proc/thread-self/exe" => Some(Link::Exe),
            _ if path.starts_with(b"/proc/") || path.starts_with(b"/dev/fd/") => {
                super::at::descriptor_link(path, p.pid()).map(Link::Fd)
            }
            _ => None,
        };
        Ok(())
    })
    .ok()?;
    let mut room = [0; PATH_MAX];
    let len = match link? {
        Link::Fd(fd) => pool_path(p, &mut room, |out| {
            p.client.lookup(fd).map(|ofd| p.client.path_of(ofd, out))
        })?,
        Link::Cwd if p.client.cwd_inside() => {
            pool_path(p, &mut room, |out| Some(p.client.getcwd(out)))?
        }
        Link::Cwd => return None,
        Link::Exe => {
            let exe = p.exe.as_ref()?;
            room.get_mut(..exe.len())?.copy_from_slice(exe);
            exe.len()
        }
    };
    let n = len.min(a[3]);
    Some(
        args::write_bytes(a[2], &room[..n])
            .map(|()| n as isize)
            .map_err(Stop::from),
    )
}

/// Puts the host path of something in the pool into `room`; its length.
fn pool_path(
    p: &Process,
    room: &mut [u8],
    f: impl FnOnce(&mut [u8]) -> Option<holdfast_client::Result<usize>>,
) -> Option<usize> {
    let (prefix, rest) = room.split_at_mut_checked(p.at.len())?;
    prefix.copy_from_slice(&p.at);
    let len = f(rest)?.ok()?;
    let rest = &rest[..len];
    Some(p.at.len() + if rest == b"/" { 0 } else { len })
}

pub fn access(p: &Process, a: &Args) -> Outcome {
    faccessat2(p, &[CWD, a[0], a[1], 0, 0, 0])
}

pub fn faccessat(p: &Process, a: &Args) -> Outcome {
    faccessat2(p, &[a[0], a[1], a[2], 0, 0, 0])
}

pub fn faccessat2(p: &Process, a: &Args) -> Outcome {
    let (mode, flags) = (a[2] as u32, a[3] as u32);
    in_pool(p, a[0], a[1], |base, path| {
        if mode & !7 != 0 || flags & !(AT_EACCESS | AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) != 0 {
            return Err(EINVAL.into());
        }
        let (path, flags) = at_flags(path, flags);
        let check = |c: &holdfast_client::Caller| done(p.client.access(c, base, path, mode, flags));
        if flags & AT_EACCESS != 0 {
            p.with_caller(check)
        } else {
            p.with_real_caller(check)
        }
    })
}

pub fn chmod(p: &Process, a: &Args) -> Outcome {
    fchmodat2(p, &[CWD, a[0], a[1], 0, 0, 0])
}

pub fn fchmodat(p: &Process, a: &Args) -> Outcome {
    fchmodat2(p, &[a[0], a[1], a[2], 0, 0, 0])
}

pub fn fchmodat2(p: &Process, a: &Args) -> Outcome {
    in_pool(p, a[0], a[1], |base, path| {
        let (path, flags) = at_flags(path, a[3] as u32);
        p.with_caller(|c| done(p.client.chmod(c, base, path, a[2] as u32, flags)))
    })
}

pub fn fchmod(p: &Process, a: &Args) -> Outcome {
    let ofd = object(p, a[0])?;
    p.with_caller(|c| done(p.client.fchmod(c, ofd, a[1] as u32)))
}

/// -1 leaves an id alone.
fn owner(p: &Process, a: &[usize]) -> Result<(Option<u32>, Option<u32>), Stop> {
    let id = |v: usize| (v as u32 != u32::MAX).then_some(v as u32);
    p.owner(id(a[0]), id(a[1])).ok_or(Stop::Errno(EINVAL))
}

pub fn chown(p: &Process, a: &Args) -> Outcome {
    fchownat(p, &[CWD, a[0], a[1], a[2], 0, 0])
}

pub fn lchown(p: &Process, a: &Args) -> Outcome {
    fchownat(p, &[CWD, a[0], a[1], a[2], AT_SYMLINK_NOFOLLOW as usize, 0])
}

pub fn fchownat(p: &Process, a: &Args) -> Outcome {
    in_pool(p, a[0], a[1], |base, path| {
        let (path, flags) = at_flags(path, a[4] as u32);
        let owner = owner(p, &a[2..4])?;
        p.with_caller(|c| done(p.client.chown(c, base, path, owner, flags)))
    })
}

pub fn fchown(p: &Process, a: &Args) -> Outcome {
    let ofd = object(p, a[0])?;
    let owner = owner(p, &a[1..3])?;
    p.with_caller(|c| done(p.client.fchown(c, ofd, owner)))
}

pub fn truncate(p: &Process, a: &Args) -> Outcome {
    in_pool(p, CWD, a[0], |base, path| {
        if let (Base::Ofd(ofd), DESCRIPTOR) = (base, path) {
            return done(p.client.ftruncate(ofd, a[1] as i64));
        }
        p.with_caller(|c| done(p.client.truncate(c, base, path, a[1] as i64)))
    })
}

const UTIME_NOW: i64 = (1 << 30) - 1;
const UTIME_OMIT: i64 = (1 << 30) - 2;
const NANOS: i64 = 1_000_000_000;

fn timespecs(addr: usize) -> Result<[SetTime; 2], Errno> {
    if addr == 0 {
        return Ok([SetTime::Now; 2]);
    }
    let mut times = [SetTime::Omit; 2];
    for (i, time) in times.iter_mut().enumerate() {
        let seconds = args::read_u64(addr + i * 16)? as i64;
        let nanos = args::read_u64(addr + i * 16 + 8)? as i64;
        *time = match nanos {
            UTIME_NOW => SetTime::Now,
            UTIME_OMIT => SetTime::Omit,
            0..NANOS => SetTime::At(seconds.saturating_mul(NANOS).saturating_add(nanos)),
            _ => return Err(EINVAL),
        };
    }
    Ok(times)
}

/// Pairs of seconds and microseconds.
fn timevals(addr: usize) -> Result<[SetTime; 2], Errno> {
    if addr == 0 {
        return Ok([SetTime::Now; 2]);
    }
    let mut times = [SetTime::Omit; 2];
    for (i, time) in times.iter_mut().enumerate() {
        let seconds = args::read_u64(addr + i * 16)? as i64;
        let micros = args::read_u64(addr + i * 16 + 8)? as i64;
        if !(0..1_000_000).contains(&micros) {
            return Err(EINVAL);
        }
        *time = SetTime::At(seconds.saturating_mul(NANOS).saturating_add(micros * 1000));
    }
    Ok(times)
}

fn set_times(p: &Process, dirfd: usize, addr: usize, times: [SetTime; 2], flags: u32) -> Outcome {
    in_pool(p, dirfd, addr, |base, path| {
        let (path, flags) = at_flags(path, flags);
        p.with_caller(|c| done(p.client.utimens(c, base, path, times, flags)))
    })
}

/// utimensat(dirfd, path, times, flags); a null path means the descriptor itself.
pub fn utimensat(p: &Process, a: &Args) -> Outcome {
    if matches!(timespecs(a[2]), Ok([SetTime::Omit, SetTime::Omit])) {
        // Nothing else is looked at.
        return Ok(0);
    }
    if a[1] == 0 {
        let ofd = object(p, a[0])?;
        not_a_path(p, ofd)?;
        let times = timespecs(a[2])?;
        return p.with_caller(|c| done(p.client.futimens(c, ofd, times)));
    }
    in_pool(p, a[0], a[1], |base, path| {
        let (path, flags) = at_flags(path, a[3] as u32);
        let times = match timespecs(a[2]) {
            // Whether there is a file is told before what is wrong with its times.
            Err(EINVAL) if flags & !(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) == 0 => {
                p.with_caller(|c| p.client.stat(c, base, path, flags))?;
                return Err(EINVAL.into());
            }
            times => times?,
        };
        p.with_caller(|c| done(p.client.utimens(c, base, path, times, flags)))
    })
}

pub fn utimes(p: &Process, a: &Args) -> Outcome {
    futimesat(p, &[CWD, a[0], a[1], 0, 0, 0])
}

pub fn futimesat(p: &Process, a: &Args) -> Outcome {
    let times = timevals(a[2]);
    match times {
        Ok(times) => set_times(p, a[0], a[1], times, 0),
        Err(_) => Err(Stop::Native),
    }
}

/// utime(path, { actime, modtime }) in seconds.
pub fn utime(p: &Process, a: &Args) -> Outcome {
    in_pool(p, CWD, a[0], |base, path| {
        let times = if a[1] == 0 {
            [SetTime::Now; 2]
        } else {
            let at = |i: usize| {
                let seconds = args::read_u64(a[1] + i * 8)? as i64;
                Ok::<_, Errno>(SetTime::At(seconds.saturating_mul(NANOS)))
            };
            [at(0)?, at(1)?]
        };
        let (path, flags) = at_flags(path, 0);
        p.with_caller(|c| done(p.client.utimens(c, base, path, times, flags)))
    })
}

/// The kernel's working directory becomes a removed one, in which nobody finds or makes
/// anything: a call that we miss fails instead of touching the wrong files.
fn park(p: &Process) -> Outcome {
    // SAFETY: touches no memory.
    let ret = unsafe { sys::raw(nr::FCHDIR, [p.parking_fd as usize, 0, 0, 0, 0, 0]) };
    if ret < 0 {
        Err(Stop::Errno(-ret as Errno))
    } else {
        Ok(0)
    }
}

pub fn chdir(p: &Process, a: &Args) -> Outcome {
    let outcome = in_pool(p, CWD, a[0], |base, path| {
        p.with_caller(|c| done(p.client.chdir(c, base, path)))?;
        park(p)
    });
    match outcome {
        Err(Stop::Native) => leave(p, nr::CHDIR, [a[0], 0, 0, 0, 0, 0]),
        // What leads back into the pool comes again, as an absolute path (`super::come_back`).
        Err(Stop::Outside(path)) if super::at::inside(&p.at, &path).is_none() => {
            let path = terminated(&path);
            leave(p, nr::CHDIR, [path.as_ptr() as usize, 0, 0, 0, 0, 0])
        }
        other => other,
    }
}

pub fn fchdir(p: &Process, a: &Args) -> Outcome {
    match ours(p, a[0]) {
        Err(Stop::Native) => leave(p, nr::FCHDIR, [a[0], 0, 0, 0, 0, 0]),
        ofd => {
            p.with_caller(|c| done(p.client.fchdir(c, ofd?)))?;
            park(p)
        }
    }
}

/// Changes to a directory of the kernel's world.
fn leave(p: &Process, nr: usize, args: [usize; 6]) -> Outcome {
    // SAFETY: the program's own call; it changes no memory.
    let ret = unsafe { sys::raw(nr, args) };
    if ret < 0 {
        return Err(Stop::Errno(-ret as Errno));
    }
    p.client.chdir_outside()?;
    Ok(0)
}

/// `path` with a NUL.
pub fn terminated(path: &[u8]) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(path.len() + 1);
    bytes.extend_from_slice(path);
    bytes.push(0);
    bytes.into_boxed_slice()
}

pub fn getcwd(p: &Process, a: &Args) -> Outcome {
    if !p.client.cwd_inside() {
        return Err(Stop::Native);
    }
    let mut room = [0; PATH_MAX];
    let len =
        pool_path(p, &mut room, |out| Some(p.client.getcwd(out))).ok_or(Stop::Errno(ENOENT))?;
    if len + 1 > a[1] {
        return Err(ERANGE.into());
    }
    room[len] = 0;
    args::write_bytes(a[0], &room[..len + 1])?;
    Ok(len as isize + 1)
}

pub use xattrs::*;
