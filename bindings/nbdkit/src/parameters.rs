//! The plugin's parameters.
//!
//! Invariants: an unknown one is an error; where a parent is named, this process never outlives it.

use crate::reply::{EINVAL, ESHUTDOWN};
use holdfast::{Barrier, Pool, Protection, Scheme, Slow, Volume};
use nbdkit::{Error, Result};
use rustix::process::{Pid, Signal};

/// What `nbdkit --help` says of them.
pub const HELP: &str = "pool=DIRECTORY       (required) The pool.
volume=NAME          (required) The volume.
snapshot=NAME        The volume as it is in this snapshot.
read-only=true       Open the volume for reading, so that others can write to it.
protect=MODE         What keeps stray stores from the volume: none, pt, pt-batch, pmap,
                     pmap-cache, fd, pkey, or auto, the best that this machine has (default).
persist=SCHEME       How bytes are written: nt, clwb, clflushopt, clflush, wb, fd, or auto, as
                     the medium needs (default).
barrier=MODE         What a flush does to writes at the same time: plain, nothing (default);
                     strict, it waits for them, and they for it.
slow=MEDIUM          As if the pool lay on slower memory: pcm, memristor, stt-ram, nand, aerie,
                     or settings such as rdsx=2,wrsx=8 (default: HOLDFAST_SLOW, or none).
holdfast=PROGRAM     The command that starts the pool's service.
parent=PID           Be killed when this process, which started nbdkit, ends.";

/// As the command line has them.
pub struct Parameters {
    pool: Option<String>,
    volume: Option<String>,
    snapshot: Option<String>,
    read_only: bool,
    protect: Protection,
    persist: Scheme,
    barrier: Barrier,
    slow: Option<Slow>,
    holdfast: Option<String>,
    parent: Option<Pid>,
}

impl Parameters {
    pub const NONE: Parameters = Parameters {
        pool: None,
        volume: None,
        snapshot: None,
        read_only: false,
        protect: Protection::Auto,
        persist: Scheme::Auto,
        barrier: Barrier::Plain,
        slow: None,
        holdfast: None,
        parent: None,
    };

    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let text = Some(value.to_string());
        match key {
            // nbdkit leaves this directory before the pool is opened.
            "pool" => self.pool = Some(absolute(value)?),
            "volume" => self.volume = text,
            "snapshot" => self.snapshot = text,
            "read-only" => self.read_only = nbdkit::parse_bool(value)?,
            "protect" => self.protect = named(key, value, Protection::named(value))?,
            "persist" => self.persist = named(key, value, Scheme::named(value))?,
            "barrier" => self.barrier = named(key, value, Barrier::named(value))?,
            "slow" => self.slow = Some(Slow::parse(value).map_err(|why| wrong(why.to_string()))?),
            "holdfast" => self.holdfast = Some(absolute(value)?),
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
        let options = Pool::options()
            .protection(self.protect)
            .scheme(self.persist)
            .slow(self.slow);
        let pool = options.open(self.pool.as_deref().unwrap_or_default())?;
        let volume = match &self.snapshot {
            Some(snapshot) => pool.snapshot(snapshot)?.volume_to_read(name),
            None if self.read_only => pool.volume_to_read(name),
            None => pool.volume(name),
        }?;
        volume.set_barrier(self.barrier);
        Ok(volume)
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
