//! The pool of a user who names none.
//!
//! Invariant: it is a directory that belongs to the user alone; if somebody else's directory is in
//! its place, it is refused and never used.

use crate::args::{
    Command, CreateArgs, KvArgs, LsofArgs, MapCommand, OWN, PoolCommand, QuotaArgs, RunArgs,
    ServeArgs, SnapshotArgs, TopArgs, VolumeArgs,
};
use crate::failure::{Failure, say};
use crate::size::Size;
use holdfast_pmem::Medium;
use holdfast_pool::format::superblock::Consistency;
use holdfast_service::{CreateOptions, Error, Files};
use rustix::process::geteuid;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the pool is or will be: memory if there is some, else with the user's run-time files,
/// else at home.
pub fn path() -> Result<PathBuf, Failure> {
    let uid = rustix::process::geteuid().as_raw();
    let mut places = vec![PathBuf::from(format!("/dev/shm/holdfast-{uid}"))];
    if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR") {
        places.push(Path::new(&dir).join("holdfast"));
    }
    if let Some(home) = std::env::var_os("HOME") {
        places.push(Path::new(&home).join(".local/share/holdfast"));
    }
    let usable = |place: &&PathBuf| place.exists() || place.parent().is_some_and(is_writable);
    let place = places.iter().find(usable).cloned();
    place.ok_or_else(|| {
        Failure::new("there is no place for a pool of your own").fix("holdfast run --pool POOL")
    })
}

fn is_writable(directory: &Path) -> bool {
    rustix::fs::access(
        directory,
        rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
    )
    .is_ok()
}

/// Where it is, whether it is there or not.
pub fn own() -> Result<PathBuf, Failure> {
    owned(path()?)
}

/// Puts it where the command line has `@`.
pub fn put_into(command: &mut Command) -> Result<(), Failure> {
    if let Command::Run(RunArgs { pool, .. }) = command {
        // Which makes it.
        pool.take_if(|pool| pool.as_os_str() == OWN);
        return Ok(());
    }
    if let Command::Export(args) = command
        && let Some(word) = args.words.iter_mut().find(|word| *word == OWN)
    {
        *word = owned(path()?)?.into();
    }
    if let Command::Du(args) = command {
        for path in &mut args.pool {
            if let Ok(below) = path.strip_prefix(OWN) {
                *path = owned(self::path()?)?.join(below);
            }
        }
    }
    if let Some(pool) = named(command).filter(|pool| pool.as_os_str() == OWN) {
        *pool = owned(path()?)?;
    }
    Ok(())
}

fn named(command: &mut Command) -> Option<&mut PathBuf> {
    match command {
        Command::Pool(
            PoolCommand::Status { pool, .. }
            | PoolCommand::Check { pool, .. }
            | PoolCommand::Block { pool, .. }
            | PoolCommand::Destroy { pool }
            | PoolCommand::Resize { pool, .. }
            | PoolCommand::Create(CreateArgs { pool, .. }),
        )
        | Command::Top(TopArgs { pool, .. })
        | Command::Lsof(LsofArgs { pool, .. })
        | Command::Serve(ServeArgs {
            pool: Some(pool), ..
        })
        | Command::Kv(KvArgs { pool, .. })
        | Command::Snapshot(SnapshotArgs { pool, .. })
        | Command::Quota(QuotaArgs { pool, .. })
        | Command::Volume(VolumeArgs { pool, .. })
        | Command::Map(MapCommand::Drop { pool }) => Some(pool),
        Command::Save(args) => Some(&mut args.what.pool),
        Command::Send(args) => Some(&mut args.what.pool),
        Command::Restore(args) => Some(&mut args.to.pool),
        Command::Receive(args) => Some(&mut args.to.pool),
        _ => None,
    }
}

/// The path, unless something that is not the user's is there.
fn owned(path: PathBuf) -> Result<PathBuf, Failure> {
    match std::fs::symlink_metadata(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(path),
        Err(e) => Err(Failure::io(path.display(), &e)),
        Ok(found) if found.is_dir() && found.uid() == geteuid().as_raw() => Ok(path),
        Ok(_) => {
            let what = format!("{} is not a directory of yours", path.display());
            Err(Failure::new(what).fix("name another pool, by its directory"))
        }
    }
}

/// Makes the pool if it is not there, and says so; makes sure that it is the user's.
pub fn ensure() -> Result<PathBuf, Failure> {
    let path = owned(path()?)?;
    // Somebody may be making it now, or was interrupted before there was anything in it.
    if !path.join(holdfast_pool::segment::META).exists() && make(&path)? {
        let files = Files::open_read_only(&path)?;
        let size = Size(files.superblock.data_len);
        let stays = match files.medium {
            Medium::Memory => " in memory, and what is in it is gone when the machine restarts",
            _ => "",
        };
        let place = path.display();
        say(format!(
            "holdfast: your own pool was made: {place}, {size}{stays}."
        ));
    }
    Ok(path)
}

/// False: somebody else has just made it.
fn make(path: &Path) -> Result<bool, Failure> {
    let options = CreateOptions {
        size: None,
        medium: None,
        consistency: Consistency::Posix,
    };
    match holdfast_service::create(path, &options) {
        Err(Error::NotEmpty { .. }) | Err(Error::InUse { .. }) => Ok(false),
        done => Ok(done.map(|_| true)?),
    }
}
