//! The plugin's parameters.
//!
//! Invariants: an unknown one is an error; where a parent is named, this process never outlives it.

use crate::reply::{EINVAL, ESHUTDOWN};
use holdfast::{Barrier, Pool, Protection, Scheme, Slow, Volume};
use holdfast_status::{About, Published};
use nbdkit::{Error, Result};
use rustix::process::{Pid, Signal};
use std::io::ErrorKind::PermissionDenied;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What `nbdkit --help` says of them.
pub const HELP: &str = "pool=DIRECTORY       (required) The pool.
volume=NAME          (required) The volume.
snapshot=NAME        The volume as it is in this snapshot.
read-only=true       Open the volume for reading, so that others can write to it.
protect=MODE         What keeps stray stores from the volume: none, pt, pt-batch, pmap,
                     pmap-cache, fd, pkey, or auto, the best that this machine has (default:
                     what the volume keeps, else auto).
persist=SCHEME       How bytes are written: nt, clwb, clflushopt, clflush, wb, fd, or auto, as
                     the medium needs (default: what the volume keeps, else auto).
barrier=MODE         What a flush does to writes at the same time: plain, nothing (default);
                     strict, it waits for them, and they for it.
verify=true          Read each write back, and fail those that are not as they were written.
sub-block=true       Write only the lines of 64 bytes that change.
slow=MEDIUM          As if the pool lay on slower memory: pcm, memristor, stt-ram, nand, aerie,
                     or settings such as rdsx=2,wrsx=8 (default: HOLDFAST_SLOW, or none).
holdfast=PROGRAM     The command that starts the pool's service.
parent=PID           Be killed when this process, which started nbdkit, ends.
address=URI          What holdfast top shows as the address.";

/// As the command line has them.
pub struct Parameters {
    pool: Option<String>,
    volume: Option<String>,
    snapshot: Option<String>,
    read_only: bool,
    protect: Option<Protection>,
    persist: Option<Scheme>,
    barrier: Barrier,
    verify: bool,
    sub_block: bool,
    slow: Option<Slow>,
    holdfast: Option<String>,
    parent: Option<Pid>,
    address: Option<String>,
}

impl Parameters {
    pub const NONE: Parameters = Parameters {
        pool: None,
        volume: None,
        snapshot: None,
        read_only: false,
        protect: None,
        persist: None,
        barrier: Barrier::Plain,
        verify: false,
        sub_block: false,
        slow: None,
        holdfast: None,
        parent: None,
        address: None,
    };

    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let text = Some(value.to_string());
        match key {
            // nbdkit leaves this directory before the pool is opened.
            "pool" => self.pool = Some(absolute(value)?),
            "volume" => self.volume = text,
            "snapshot" => self.snapshot = text,
            "read-only" => self.read_only = nbdkit::parse_bool(value)?,
            "protect" => self.protect = Some(named(key, value, Protection::named(value))?),
            "persist" => self.persist = Some(named(key, value, Scheme::named(value))?),
            "barrier" => self.barrier = named(key, value, Barrier::named(value))?,
            "verify" => self.verify = nbdkit::parse_bool(value)?,
            "sub-block" => self.sub_block = nbdkit::parse_bool(value)?,
            "slow" => self.slow = Some(Slow::parse(value).map_err(|why| wrong(why.to_string()))?),
            "holdfast" => self.holdfast = Some(absolute(value)?),
            "address" => self.address = text,
            "parent" => self.parent = Some(process(value)?),
            _ => return Err(wrong(format!("there is no parameter {key:?}"))),
        }
        Ok(())
    }

    /// Whether all are there that have to be.
    pub fn complete(&self) -> Result<()> {
        match (&self.pool, &self.volume) {
            (Some(_), Some(_)) => Ok(()),
            _ => Err(wrong("the parameters pool= and volume= are required")),
        }
    }

    /// nbdkit itself waits for clients when its parent ends, and the volume would stay in use.
    pub fn end_with_parent(&self) -> Result<()> {
        let Some(parent) = self.parent else {
            return Ok(());
        };
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|e| Error::new(e.raw_os_error(), e))?;
        match rustix::process::getppid() {
            now if now == Some(parent) => Ok(()),
            _ => Err(Error::new(ESHUTDOWN, "the parent has ended already")),
        }
    }

    pub fn open(&self) -> holdfast::Result<Volume> {
        if let Some(program) = &self.holdfast {
            holdfast::use_program(program);
        }
        let name = self.volume.as_deref().unwrap_or_default();
        let path = self.pool.as_deref().unwrap_or_default();
        if let Some(snapshot) = &self.snapshot {
            // What is in a snapshot is never mapped for writing.
            let pool = Pool::options().slow(self.slow).open(path)?;
            return pool.snapshot(snapshot)?.volume_to_read(name);
        }
        let pool = Pool::open_to_serve(path, name, (self.protect, self.persist), self.slow)?;
        let volume = match self.read_only {
            true => pool.volume_to_read(name),
            false => pool.volume(name),
        }?;
        volume.set_barrier(self.barrier);
        volume.set_verify(self.verify);
        volume.set_sub_block(self.sub_block);
        Ok(volume)
    }
}

impl Parameters {
    /// Has `holdfast top` show what the volume does. It is served all the same where that fails.
    pub fn publish(&self, volume: &Volume, clients: &Arc<AtomicU64>) -> Option<Published> {
        let about = About {
            snapshot: self.snapshot.clone(),
            face: "nbd",
            address: self.address.clone().unwrap_or_else(|| "nbdkit".into()),
            clients: clients.clone(),
        };
        let pool = Path::new(self.pool.as_deref().unwrap_or_default());
        match holdfast_status::publish(pool, volume, about) {
            Ok(published) => Some(published),
            // Other users than the pool's owner and root.
            Err(e) if e.kind() == PermissionDenied => None,
            Err(e) => {
                eprintln!("holdfast: holdfast top does not show this export: {e}.");
                None
            }
        }
    }
}

fn absolute(path: &str) -> Result<String> {
    let absolute = std::path::absolute(path)?;
    let text = absolute.into_os_string().into_string();
    text.map_err(|_| wrong("the path of this directory is not text"))
}

fn named<T>(key: &str, value: &str, found: Option<T>) -> Result<T> {
    found.ok_or_else(|| wrong(format!("{key} has no {value:?}")))
}

fn process(value: &str) -> Result<Pid> {
    let pid = value.parse().ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| wrong(format!("{value:?} is not a process")))
}

fn wrong(what: impl Into<String>) -> Error {
    Error::new(EINVAL, what.into())
}
