//! A pool in memory that outlives the machine, in a file: `holdfast serve --keep`, or `keep` in a
//! configuration.
//!
//! Invariants:
//!  * The file is saved by a process of its own, which is there before the service confines itself,
//!    and which learns that the service has ended from the end of its standard input: also when
//!    that was killed.
//!  * Signals that end the service do not end it: the last save comes afterwards.
//!  * A file that holds another pool, or anything else, is never replaced.

use crate::args::{KeeperArgs, MediumArg, RestoredArgs, SavedArgs};
use crate::config::Config;
use crate::failure::{self, Failure};
use crate::save::{self, Destination, Outcome};
use crate::saved::Saved;
use crate::states::Segments;
use crate::{log, owner, pool_commands, restore, signals};
use holdfast_pool::layout::name_seed;
use holdfast_service::{CreateOptions, Files, PoolLock};
use holdfast_stream::Restorer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What users put into a pool is for nobody else to read in its file.
const MODE: u32 = 0o600;

/// A service without users ends sooner; one that programs use does not end.
const ENDING_MAX: Duration = Duration::from_secs(2);

/// The process that saves.
pub struct Keeper {
    child: Child,
    file: PathBuf,
}

/// Makes sure that the file could be written now; then restores the pool if there is none, or makes
/// it if there is nothing to restore and that is wanted.
pub fn prepare(config: &Config) -> Result<(), Failure> {
    let pool = &config.pool;
    let is_there = owner::of(pool).is_some();
    if let Some(file) = &config.keep {
        save::try_destination(&destination(file, None))?;
        if is_there {
            check_whose(pool, file)?;
        }
    }
    if is_there {
        return Ok(());
    }
    if let Some(file) = &config.keep
        && file
            .try_exists()
            .map_err(|e| Failure::io(file.display(), &e))?
    {
        return restore_from(file, pool, config.medium);
    }
    let (Some(from), Some(size)) = (&config.from, config.size) else {
        return match &config.from {
            None => Ok(()),
            Some(from) => Err(nothing_there(config, from)),
        };
    };
    let options = CreateOptions {
        size: Some(size.0),
        medium: pool_commands::medium(config.medium),
        consistency: pool_commands::consistency(config.consistency),
    };
    holdfast_service::create(pool, &options)?;
    let (pool, from) = (pool.display(), from.display());
    failure::say(format!(
        "holdfast: a new pool was made: {pool}, {size}, as {from} says."
    ));
    Ok(())
}

fn nothing_there(config: &Config, from: &Path) -> Failure {
    let (pool, from) = (config.pool.display(), from.display());
    let file = config
        .keep
        .as_ref()
        .map(|file| format!(" and no {}", file.display()));
    let why = format!(
        "{from}: there is no pool {pool}{}, and no size for a new one",
        file.unwrap_or_default()
    );
    Failure::new(why).fix(format!("add a line such as size = \"4G\" to {from}"))
}

fn restore_from(file: &Path, pool: &Path, medium: MediumArg) -> Result<(), Failure> {
    let (to, size) = (pool.to_path_buf(), None);
    let to = RestoredArgs {
        pool: to,
        size,
        medium,
        anew: false,
    };
    restore::restore(file, &to, false)?;
    // Nobody has had time to use it.
    let segments = Segments::open(pool)?;
    let mark = segments.mark_at_rest(&segments.snapshots(pool)?);
    Saved::is_now(file, mark).keep(pool)
}

impl Keeper {
    /// Starts the process, which waits for `begin`.
    pub fn start(config: &Config) -> Result<Option<Keeper>, Failure> {
        let (pool, Some(file)) = (&config.pool, &config.keep) else {
            return Ok(None);
        };
        let failed = |e| Failure::io("the process that saves the pool cannot be started", &e);
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        let every = config.every.map_or(0, |every| every.as_secs().max(1));
        command.arg("keeper").arg("--every").arg(every.to_string());
        command.arg("--").arg(pool).arg(file);
        // Whoever started us waits for one line of ours, and for the end of it.
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.spawn().map_err(failed)?;
        let file = file.clone();
        Ok(Some(Keeper { child, file }))
    }

    /// The pool is served from now on.
    pub fn begin(&mut self) {
        // One that is gone cannot be told, and `finish` says it.
        let _ = self.child.stdin.as_mut().map(|to| to.write_all(&[1]));
    }

    /// The service has ended: the last save.
    pub fn finish(mut self) -> Result<(), Failure> {
        drop(self.child.stdin.take());
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(Failure::new(format!(
                "{} lacks what changed in the pool since it was last saved",
                self.file.display()
            ))),
            Err(e) => Err(Failure::io("the process that saves the pool", &e)),
        }
    }
}

fn destination(file: &Path, known: Option<u64>) -> Destination<'_> {
    Destination {
        file,
        mode: MODE,
        known,
        // The file is to have the present.
        goes_on: false,
    }
}

/// What is in the file already has to be an earlier state of the same pool.
fn check_whose(pool: &Path, file: &Path) -> Result<(), Failure> {
    let found = match File::open(file) {
        Ok(found) => found,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => {
            let user = rustix::process::geteuid().as_raw();
            let fix = format!("let user {user} read it, who owns {}", pool.display());
            return Err(Failure::io(file.display(), &e).fix(fix));
        }
    };
    if !found.metadata().is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    let ours = name_seed(Files::open_read_only(pool)?.superblock.uuid);
    let (file, pool) = (file.display(), pool.display());
    match Restorer::begin(found).map(|restorer| restorer.head().seed) {
        Ok(seed) if seed == ours => Ok(()),
        Ok(_) => Err(Failure::new(format!(
            "{file} holds another pool than {pool}"
        ))),
        Err(e) => Err(Failure::new(format!(
            "{file} holds something else than {pool}: {e}"
        ))),
    }
    .map_err(|failure| failure.fix("name another file, or move this one away"))
}

/// `keeper`, which nobody types.
pub fn keep(args: &KeeperArgs) -> Result<u8, Failure> {
    signals::outlive()?;
    let _ = rustix::process::setsid();
    log::start()?;
    if !begins() {
        // There was no service, for reasons that it has told.
        return Ok(failure::OK);
    }
    // The first save comes at once: what is wrong with the file shows now.
    let _ = save_now(args);
    while !has_ended(Duration::from_secs(args.every))? {
        let _ = save_now(args);
    }
    let done = save_now(args).map(|()| failure::OK);
    wait_for_service(&args.pool);
    done
}

/// The last save starts a service, which ends by itself: who ends what is left would cut it off.
fn wait_for_service(pool: &Path) {
    let begun = Instant::now();
    while PoolLock::holder(pool).is_some() && begun.elapsed() < ENDING_MAX {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Saves, unless nothing changed, and keeps a record of how that went.
fn save_now(args: &KeeperArgs) -> Result<(), Failure> {
    let (pool, file) = (&args.pool, &args.file);
    let before = Saved::of(pool).unwrap_or_default();
    let known = before.mark_in(file);
    let done = check_whose(pool, file).and_then(|()| {
        let what = SavedArgs {
            pool: pool.clone(),
            snapshot: None,
            since: None,
        };
        save::save_in(&what, &destination(file, known))
    });
    let now = match &done {
        Ok(Outcome::Unchanged) => {
            tracing::debug!("nothing changed since {} was saved", file.display());
            Saved::is_now(file, known.unwrap_or_default())
        }
        Ok(outcome @ Outcome::Written { mark, .. }) => {
            tracing::info!("{outcome}: {}", file.display());
            Saved::is_now(file, mark.unwrap_or_default())
        }
        Ok(outcome @ Outcome::ByOwner { .. }) => {
            tracing::info!("{outcome}: {}", file.display());
            Saved::is_now(file, 0)
        }
        Err(failure) => {
            tracing::error!("the pool could not be saved: {}", failure.in_one_line());
            Saved {
                file: file.clone(),
                failed: Some(failure.in_one_line()),
                ..before
            }
        }
    };
    if let Err(failure) = now.keep(pool) {
        tracing::warn!("{}", failure.in_one_line());
    }
    done.map(drop)
}

/// Waits until the pool is served; false: it will not be.
fn begins() -> bool {
    let mut byte = [0];
    std::io::stdin().read_exact(&mut byte).is_ok()
}

/// Waits for the service to end, and for so long at most; 0: for ever.
fn has_ended(every: Duration) -> Result<bool, Failure> {
    let begun = Instant::now();
    loop {
        let left = every.saturating_sub(begun.elapsed());
        if !every.is_zero() && left.is_zero() {
            return Ok(false);
        }
        let wait = (!every.is_zero()).then(|| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        let input = rustix::stdio::stdin();
        match poll(&mut [PollFd::new(&input, PollFlags::IN)], wait.as_ref()) {
            Ok(0) | Err(Errno::INTR) => {}
            // Nothing more is written: it ends.
            Ok(_) => return Ok(true),
            Err(e) => return Err(Failure::io("waiting for the service", &e.into())),
        }
    }
}
