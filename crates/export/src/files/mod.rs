//! The files of a pool as a file system that the kernel mounts, by FUSE: for programs that cannot
//! be started by `holdfast run`.
//!
//! Invariants: it is one more program of the pool's session, so it and the others see each other's
//! changes at once; what was written is durable when the file system is unmounted in order.

pub mod args;
mod listing;
mod locks;
mod nodes;
mod requests;
mod shares;
mod tree;
mod who;

use crate::failure::Failure;
use crate::signals::Signals;
use args::{MOUNTED, Mount};
use clap::Parser;
use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use holdfast::Pool;
use requests::Requests;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use rustix::process::{chdir, configure_io_flusher_behavior, getegid, geteuid, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use tree::Tree;

/// Requests are answered by so many threads at most.
const THREADS_MAX: usize = 8;
/// There is nobody any more who answers for a mounted file system.
const NOTCONN: i32 = rustix::io::Errno::NOTCONN.raw_os_error();
/// As what `df` and `findmnt` know it, behind `fuse.`.
const SUBTYPE: &str = "holdfast";

/// Mounts the files until a signal comes or somebody unmounts them.
pub fn mount(words: impl Iterator<Item = OsString>) -> Result<(), Failure> {
    let args = Mount::try_parse_from([OsString::from("holdfast mount")].into_iter().chain(words));
    let args = args.map_err(|e| Failure::usage(e.to_string()))?;
    let no_pool = || Failure::usage("no pool is named");
    let directory = args.pool.as_deref().ok_or_else(no_pool)?;
    let dir = place(&args.dir, directory)?;
    let pool = Pool::open(directory)?;
    // The files of a snapshot are there as long as somebody looks at it.
    let view = args.snapshot.as_deref().map(|name| pool.snapshot(name));
    let view = view.transpose()?;
    let pool = view.as_ref().map_or(pool, |view| view.pool().clone());
    // Memory that is needed for a write must not wait for this one. Only root may say so.
    let _ = configure_io_flusher_behavior(true);
    let tree = Arc::new(Tree::new(pool)?);
    let signals = Signals::catch()?;
    let mut session = session(&args, &tree, (directory, &dir))?;
    if !args.foreground {
        // Whoever ends the terminal does not end it.
        let _ = setsid();
    }
    let _ = writeln!(io::stdout(), "{MOUNTED} {}", dir.display());
    if !args.foreground {
        leave_terminal().map_err(|e| Failure::io("/dev/null", &e))?;
    }
    let unmounter = session.unmount_callable();
    let end = dir.clone();
    thread::spawn(move || end_at_signal(signals, unmounter, &end));
    let served = session.run();
    tree.sync()?;
    served.map_err(|e| Failure::io("the FUSE file system", &e))
}

/// The directory, whole.
fn place(dir: &Path, pool: &Path) -> Result<PathBuf, Failure> {
    let shown = dir.display();
    let found = dir
        .canonicalize()
        .and_then(|dir| Ok((dir.metadata()?, dir)));
    let (what, dir) = found.map_err(|e| match e.raw_os_error() == Some(NOTCONN) {
        true => Failure::new(format!(
            "{shown} is still mounted by a program that was killed"
        ))
        .fix(format!("holdfast umount {shown}")),
        false => Failure::io(&shown, &e),
    })?;
    if !what.is_dir() {
        return Err(Failure::new(format!("{shown} is not a directory")));
    }
    let pool = pool.canonicalize().unwrap_or_default();
    if dir.starts_with(&pool) && !pool.as_os_str().is_empty() {
        return Err(
            Failure::new(format!("{shown} is in the pool's own directory"))
                .fix("mount it at a directory elsewhere"),
        );
    }
    Ok(dir)
}

fn session(
    args: &Mount,
    tree: &Arc<Tree>,
    (pool, dir): (&Path, &Path),
) -> Result<Session<Requests>, Failure> {
    let mut config = Config::default();
    let threads = thread::available_parallelism().map_or(2, |n| n.get());
    config.n_threads = Some(threads.clamp(2, THREADS_MAX));
    config.acl = match args.allow_other {
        true => SessionACL::All,
        false => SessionACL::Owner,
    };
    let requests = Requests(Arc::clone(tree));
    let source = source(&pool.canonicalize().unwrap_or(pool.into()));
    let read_only = args.read_only || args.snapshot.is_some();
    if geteuid().is_root() {
        let cannot = |e: io::Error| crate::fuse::cannot_mount(dir, &e);
        let device = mount_as_root((&source, dir), read_only, args.allow_other).map_err(cannot)?;
        return Session::from_fd(requests, device, config.acl, config).map_err(cannot);
    }
    config.mount_options = vec![
        MountOption::FSName(source),
        MountOption::Subtype(SUBTYPE.into()),
        MountOption::NoSuid,
        MountOption::NoDev,
        match read_only {
            true => MountOption::RO,
            false => MountOption::RW,
        },
    ];
    Session::new(requests, dir, &config).map_err(|e| {
        let refused = args.allow_other && e.to_string().contains("user_allow_other");
        match refused {
            true => Failure::new("only root may let other users in here")
                .fix("put a line user_allow_other into /etc/fuse.conf"),
            false => crate::fuse::cannot_mount(dir, &e),
        }
    })
}

/// mount(2) with the type by which the file system is known, which needs no other program; what
/// fuser does for root has no such type.
fn mount_as_root(
    (source, dir): (&str, &Path),
    read_only: bool,
    allow_other: bool,
) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let number = device.as_raw_fd();
    let mut data = format!("fd={number},rootmode=40000,user_id={user},group_id={group}");
    if allow_other {
        data += ",allow_other";
    }
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    if read_only {
        flags |= MountFlags::RDONLY;
    }
    let data = std::ffi::CString::new(data)?;
    rustix::mount::mount(source, dir, format!("fuse.{SUBTYPE}"), flags, Some(&*data))?;
    Ok(device)
}

/// The pool, as `df` and `findmnt` show it: options are divided by commas.
fn source(pool: &Path) -> String {
    pool.to_string_lossy().replace([',', '\\'], "?")
}

/// From here on nobody is told anything.
fn leave_terminal() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    Ok(chdir("/")?)
}

/// Unmounts the files when a signal comes, even if they are in use: who has some open keeps them.
fn end_at_signal(mut signals: Signals, mut unmounter: SessionUnmounter, dir: &Path) {
    loop {
        signals.wait_for_end();
        // Of root's mounts it knows nothing.
        if geteuid().is_root() || unmounter.unmount().is_err() {
            let _ = unmount(dir, UnmountFlags::DETACH);
        }
    }
}
