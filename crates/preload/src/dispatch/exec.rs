//! execve(2) and execveat(2).
//!
//! Invariants: the new program always gets our two environment variables, whatever list the
//! program passes; a program in the pool runs from a sealed copy in memory; a program that the
//! library cannot enter is named in the report before it starts.

use super::args::{self, Errno};
use super::handover::{self, Handover};
use super::names::terminated;
use super::outcome::{Outcome, Stop};
use super::place::{self, AT_FDCWD};
use super::process::{Process, VARIABLES};
use super::{maps, nr, recognize};
use crate::sys::{self, Fd};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use holdfast_client::abi::*;
use holdfast_client::{Base, OfdLink};
use holdfast_pmem::MutBuf;

type Args = [usize; 6];

const ENOENT: Errno = 2;
const E2BIG: Errno = 7;
const ENOEXEC: Errno = 8;
const EACCES: Errno = 13;
const ELOOP: Errno = 40;
/// Scripts whose interpreter is a script, as deep as the kernel goes.
const DEPTH: usize = 5;
/// Bytes that are read of a program: most have their notes, by which we know Go, in so many.
const HEAD: usize = 2048;
/// Bytes that a script's first line may have (BINPRM_BUF_SIZE).
const LINE: usize = 256;
const ARGS_MAX: usize = 128 * 1024;
const MFD_CLOEXEC: usize = 1;
/// Longest name of memfd_create(2).
const MEMFD_NAME: usize = 249;
/// Tells a program that runs from a copy what /proc/self/exe should say.
pub const EXE_VARIABLE: &[u8] = b"HOLDFAST_EXE=";

/// What to execute, as pointers the kernel can take.
struct Request {
    dirfd: usize,
    path: usize,
    argv: usize,
    envp: usize,
    flags: usize,
}

pub fn execve(p: &Process, a: &Args) -> Outcome {
    let (cwd, flags) = (AT_FDCWD as usize, 0);
    run(
        p,
        &Request {
            dirfd: cwd,
            path: a[0],
            argv: a[1],
            envp: a[2],
            flags,
        },
        0,
    )
}

pub fn execveat(p: &Process, a: &Args) -> Outcome {
    run(
        p,
        &Request {
            dirfd: a[0],
            path: a[1],
            argv: a[2],
            envp: a[3],
            flags: a[4],
        },
        0,
    )
}

fn run(p: &Process, r: &Request, depth: usize) -> Outcome {
    if depth > DEPTH {
        return Err(ELOOP.into());
    }
    let mut opened = Err(Stop::Native);
    let inside = place::in_pool(p, r.dirfd, r.path, |base, path| {
        opened = open_program(p, base, path, r.flags as u32).map(|ofd| (ofd, path.to_vec()));
        Ok(0)
    });
    match (inside, opened) {
        (Ok(_), Ok((ofd, path))) => {
            let outcome = from_pool(p, r, ofd, &path, depth);
            p.client.release(ofd)?;
            outcome
        }
        (Ok(_), Err(Stop::Outside(path))) => {
            let path = terminated(&path);
            let outside = Request {
                dirfd: AT_FDCWD as usize,
                path: path.as_ptr() as usize,
                ..*r
            };
            match super::at::inside(&p.at, &path[..path.len() - 1]) {
                Some(_) => run(p, &outside, depth + 1),
                None => from_kernel(p, &outside, depth),
            }
        }
        (Err(Stop::Native), _) => from_kernel(p, r, depth),
        (_, Err(stop)) | (Err(stop), _) => Err(stop),
    }
}

/// Opens a program of the pool as execve(2) does: a regular file with execute permission.
fn open_program(p: &Process, base: Base, path: &[u8], flags: u32) -> Result<OfdLink, Stop> {
    let flags = flags & (AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW);
    let stat = p.with_caller(|c| p.client.stat(c, base, path, flags))?;
    if stat.mode & S_IFMT == S_IFLNK {
        return Err(ELOOP.into());
    }
    if stat.mode & S_IFMT != S_IFREG || stat.mode & 0o111 == 0 {
        return Err(EACCES.into());
    }
    p.with_caller(|c| p.client.access(c, base, path, X_OK, flags))?;
    if let (Base::Ofd(ofd), true) = (base, path.is_empty()) {
        // One more use of an open program: read through the description itself.
        p.client.retain(ofd)?;
        return Ok(ofd);
    }
    Ok(p.with_caller(|c| p.client.open_program(c, base, path))?)
}

fn from_pool(p: &Process, r: &Request, ofd: OfdLink, path: &[u8], depth: usize) -> Outcome {
    let mut head = [0; HEAD];
    let len = p.client.pread(ofd, MutBuf::from(&mut head[..]), 0)?;
    if head.starts_with(b"#!") {
        let named = named_path(r).unwrap_or_else(|| shown_path(p, ofd, path));
        return script(p, r, &named, &head[..len], depth);
    }
    if !head.starts_with(b"\x7fELF") {
        return Err(ENOEXEC.into());
    }
    let shown = shown_path(p, ofd, path);
    recognize::note(p, &head[..len], &shown, r.argv, |at, out| {
        p.client
            .pread(ofd, MutBuf::from(out), at as i64)
            .unwrap_or(0)
    });
    let copy = Fd(copy_of(p, ofd, &shown)?);
    let exe = terminated(&[EXE_VARIABLE, &shown].concat());
    let handover = handover::prepare(p)?;
    let env = environment(p, r.envp, Some(&exe), handover.as_ref())?;
    let empty = c"".as_ptr() as usize;
    let args = [
        copy.0,
        empty,
        r.argv,
        env.pointer(r.envp),
        AT_EMPTY_PATH as usize,
        0,
    ];
    enter(p, handover, args)
}

/// The path that the program gave, which the interpreter of a script is told.
fn named_path(r: &Request) -> Option<Vec<u8>> {
    let mut named = None;
    if r.dirfd as i32 == AT_FDCWD {
        args::with_path(r.path, |path| {
            named = Some(path.to_vec());
            Ok(())
        })
        .ok()?;
    }
    named
}

/// Absolute host path of a program in the pool.
fn shown_path(p: &Process, ofd: OfdLink, path: &[u8]) -> Vec<u8> {
    let mut shown = p.at.to_vec();
    let mut room = vec![0; PATH_MAX];
    match p.client.path_of(ofd, &mut room) {
        Ok(len) => shown.extend_from_slice(&room[..len]),
        Err(_) => {
            shown.push(b'/');
            shown.extend_from_slice(path);
        }
    }
    shown
}

/// A copy of the program in anonymous memory; its descriptor, closed by a successful exec. The
/// kernel shows its name behind `/memfd:`, and the loader takes $ORIGIN from there before the
/// library is in place: see `place::absolute`.
fn copy_of(p: &Process, ofd: OfdLink, shown: &[u8]) -> Result<usize, Stop> {
    let name = match shown.len() {
        ..=MEMFD_NAME => shown,
        _ => shown.rsplit(|b| *b == b'/').next().unwrap_or(shown),
    };
    let name = terminated(&name[..name.len().min(MEMFD_NAME)]);
    // SAFETY: the name is NUL-terminated.
    let fd = unsafe {
        sys::raw(
            nr::MEMFD_CREATE,
            [name.as_ptr() as usize, MFD_CLOEXEC, 0, 0, 0, 0],
        )
    };
    if fd < 0 {
        return Err(Stop::Errno(-fd as Errno));
    }
    match fill(p, ofd, fd as usize) {
        Ok(()) => Ok(fd as usize),
        Err(stop) => {
            // SAFETY: the descriptor is ours.
            unsafe { sys::raw(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
            Err(stop)
        }
    }
}

fn fill(p: &Process, ofd: OfdLink, fd: usize) -> Result<(), Stop> {
    let mut buf = vec![0; 256 * 1024];
    let mut at = 0;
    loop {
        let n = p.client.pread(ofd, MutBuf::from(&mut buf[..]), at)?;
        if n == 0 {
            return Ok(());
        }
        let mut from = 0;
        while from < n {
            // SAFETY: the kernel reads `n - from` bytes of `buf`.
            let ret = unsafe {
                sys::raw(
                    nr::WRITE,
                    [fd, buf[from..].as_ptr() as usize, n - from, 0, 0, 0],
                )
            };
            if ret <= 0 {
                return Err(Stop::Errno(-ret as Errno));
            }
            from += ret as usize;
        }
        at += n as i64;
    }
}

/// `#!interpreter [argument]`: the interpreter with the script's path behind.
fn script(p: &Process, r: &Request, path: &[u8], head: &[u8], depth: usize) -> Outcome {
    let (interpreter, argument) = shebang(head).ok_or(Stop::Errno(ENOEXEC))?;
    let interpreter = terminated(interpreter);
    let argument = argument.map(terminated);
    let path = terminated(path);
    let mut argv = vec![interpreter.as_ptr() as usize];
    argv.extend(argument.as_ref().map(|a| a.as_ptr() as usize));
    argv.push(path.as_ptr() as usize);
    for i in 1.. {
        let arg = args::read_u64(r.argv + 8 * i)? as usize;
        // An empty argv has no element 0 to replace.
        if arg == 0 || args::read_u64(r.argv)? == 0 {
            break;
        }
        argv.push(arg);
        if argv.len() > ARGS_MAX {
            return Err(E2BIG.into());
        }
    }
    argv.push(0);
    let next = Request {
        dirfd: AT_FDCWD as usize,
        path: interpreter.as_ptr() as usize,
        argv: argv.as_ptr() as usize,
        envp: r.envp,
        flags: 0,
    };
    run(p, &next, depth + 1)
}

/// Interpreter and argument of a `#!` line.
fn shebang(head: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let line = head[..head.len().min(LINE)].strip_prefix(b"#!")?;
    let end = line
        .iter()
        .position(|b| *b == b'\n' || *b == 0)
        .unwrap_or(line.len());
    let line = line[..end].trim_ascii();
    let cut = line
        .iter()
        .position(|b| *b == b' ' || *b == b'\t')
        .unwrap_or(line.len());
    let (interpreter, rest) = line.split_at(cut);
    let rest = rest.trim_ascii();
    (!interpreter.is_empty()).then_some((interpreter, (!rest.is_empty()).then_some(rest)))
}

/// A program of the host: looked at before the kernel takes it.
fn from_kernel(p: &Process, r: &Request, depth: usize) -> Outcome {
    let mut head = [0; HEAD];
    let path = host_path(r.path);
    if let Some(file) = path.as_ref().and_then(|path| sys::Fd::open(path, 0, 0)) {
        let len = file.read(&mut head).unwrap_or(0);
        if let Some((interpreter, _)) = shebang(&head[..len]) {
            let interpreter = terminated(interpreter);
            let inside = super::at::inside(&p.at, &interpreter[..interpreter.len() - 1]);
            if let (Some(_), Some(path)) = (inside, &path) {
                return script(p, r, &path[..path.len() - 1], &head[..len], depth);
            }
        } else if let Some(path) = &path {
            recognize::note(
                p,
                &head[..len],
                &path[..path.len() - 1],
                r.argv,
                |at, out| pread(file.0, at, out),
            );
        }
    }
    let handover = handover::prepare(p)?;
    let env = environment(p, r.envp, None, handover.as_ref())?;
    let envp = env.pointer(r.envp);
    enter(p, handover, [r.dirfd, r.path, r.argv, envp, r.flags, 0])
}

fn pread(fd: usize, at: u64, out: &mut [u8]) -> usize {
    let args = [fd, out.as_mut_ptr() as usize, out.len(), at as usize, 0, 0];
    // SAFETY: the kernel writes at most `out.len()` bytes.
    unsafe { sys::raw(nr::PREAD64, args) }.max(0) as usize
}

fn host_path(addr: usize) -> Option<Box<[u8]>> {
    let mut copy = None;
    args::with_path(addr, |path| {
        copy = Some(terminated(path));
        Ok(())
    })
    .ok()?;
    copy
}

/// The environment to pass: the program's own list, or a copy with our variables put right.
enum Environment {
    AsGiven,
    Copied(Vec<usize>),
}

impl Environment {
    fn pointer(&self, given: usize) -> usize {
        match self {
            Environment::AsGiven => given,
            Environment::Copied(list) => list.as_ptr() as usize,
        }
    }
}

/// `exe`: what the program is called in the pool, which the kernel does not know.
fn environment(
    p: &Process,
    envp: usize,
    exe: Option<&[u8]>,
    handover: Option<&Handover>,
) -> Result<Environment, Stop> {
    let ours: [&[u8]; VARIABLES] = match handover {
        None => p.env.each_ref().map(|ours| &ours[..]),
        Some(handover) => [&p.env[0], &p.env[1], &handover.env],
    };
    let mut found = [false; VARIABLES];
    let mut list = Vec::new();
    let mut as_given = exe.is_none();
    for i in 0..ARGS_MAX {
        let entry = if envp == 0 {
            0
        } else {
            args::read_u64(envp + 8 * i)? as usize
        };
        if entry == 0 {
            break;
        }
        if !may_be_ours(p, entry) {
            list.push(entry);
            continue;
        }
        let mut replaced = matches!(compare(entry, EXE_VARIABLE)?, Same::Value);
        as_given &= !replaced;
        for (k, ours) in ours.iter().enumerate() {
            match compare(entry, ours)? {
                Same::Value => found[k] = true,
                Same::Name => replaced = true,
                Same::Neither => {}
            }
        }
        if !replaced {
            list.push(entry);
        }
    }
    if as_given && found == [true; VARIABLES] {
        return Ok(Environment::AsGiven);
    }
    for (k, ours) in ours.iter().enumerate() {
        if !found[k] {
            list.push(ours.as_ptr() as usize);
        }
    }
    list.extend(exe.map(|exe| exe.as_ptr() as usize));
    list.push(0);
    Ok(Environment::Copied(list))
}

/// Whether the string at `entry` begins as one of our variables does.
fn may_be_ours(p: &Process, entry: usize) -> bool {
    let mut first = [0];
    let is_known = args::source(entry, 1).read(&mut first).is_ok();
    let mut ours = p.env.iter().map(|ours| ours[0]).chain([EXE_VARIABLE[0]]);
    is_known && ours.any(|byte| byte == first[0])
}

enum Same {
    Value,
    Name,
    Neither,
}

/// Compares the string at `entry` with one of our variables (`NAME=value` with NUL).
fn compare(entry: usize, ours: &[u8]) -> Result<Same, Errno> {
    let name = ours.iter().position(|b| *b == b'=').unwrap_or(0) + 1;
    let mut first = [0; 32];
    let n = name.min(first.len());
    if args::source(entry, n).read(&mut first[..n]).is_err() || first[..n] != ours[..n] {
        return Ok(Same::Neither);
    }
    let mut at = n;
    while at < ours.len() {
        let step = (ours.len() - at).min(first.len());
        let same = args::source(entry + at, step)
            .read(&mut first[..step])
            .is_ok()
            && first[..step] == ours[at..at + step];
        if !same {
            return Ok(Same::Name);
        }
        at += step;
    }
    Ok(Same::Value)
}

/// Leaves this program for another; comes back only with an error.
fn enter(p: &Process, handover: Option<Handover>, args: [usize; 6]) -> Outcome {
    super::mapping::ending();
    let next = p.client.exec_prepare()?;
    // Otherwise the mappings are those of another process as well.
    let leaves = !crate::process::is_shared();
    if leaves {
        maps::leave_for_exec(p);
    }
    // SAFETY: replaces this program or fails; the arguments are the program's or live above.
    let ret = unsafe { crate::signals::exec(nr::EXECVEAT, &args) };
    drop(handover);
    if leaves {
        maps::enter_all(p);
    }
    p.client.exec_failed(next);
    debug_assert!(ret != 0, "exec returned without an error");
    let errno = if ret < 0 { -ret as Errno } else { ENOENT };
    Err(Stop::Errno(errno))
}
