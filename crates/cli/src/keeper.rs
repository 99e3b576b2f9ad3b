//! `holdfast serve --keep`: a pool in memory that outlives the machine, in a file.
//!
//! Invariants:
//!  * The file is saved by a process of its own, which is there before the service confines itself,
//!    and which learns that the service has ended from the end of its standard input: also when
//!    that was killed.
//!  * Signals that end the service do not end it: the last save comes afterwards.

use crate::args::{KeeperArgs, KeptArgs, MediumArg, RestoredArgs, SavedArgs};
use crate::failure::{self, Failure};
use crate::{owner, restore, save, signals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The process that saves.
pub struct Keeper {
    child: Child,
    file: PathBuf,
}

impl Keeper {
    /// Restores the pool if there is none, and starts whoever saves it.
    pub fn start(pool: &Path, args: &KeptArgs) -> Result<Option<Keeper>, Failure> {
        let Some(file) = &args.keep else {
            return Ok(None);
        };
        let file = std::path::absolute(file).map_err(|e| Failure::io(file.display(), &e))?;
        if owner::of(pool).is_none() && file.exists() {
            let (pool, size, medium) = (pool.into(), None, MediumArg::Auto);
            restore::restore(&file, &RestoredArgs { pool, size, medium }, false)?;
        }
        let failed = |e| Failure::io("whoever saves the pool cannot be started", &e);
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        let every = args.every.map_or(0, |every| every.as_secs().max(1));
        command.arg("keeper").arg("--every").arg(every.to_string());
        command.arg("--").arg(pool).arg(&file);
        // Whoever started us waits for one line of ours, and for the end of it.
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.spawn().map_err(failed)?;
        Ok(Some(Keeper { child, file }))
    }

    /// The service has ended: the last save.
    pub fn finish(mut self) -> Result<(), Failure> {
        drop(self.child.stdin.take());
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(Failure::new(format!(
                "{} is not of now",
                self.file.display()
            ))),
            Err(e) => Err(Failure::io("whoever saves the pool", &e)),
        }
    }
}

/// `keeper`, which nobody types.
pub fn keep(args: &KeeperArgs) -> Result<u8, Failure> {
    signals::outlive()?;
    let _ = rustix::process::setsid();
    while !has_ended(Duration::from_secs(args.every))? {
        if let Err(failure) = save_now(args) {
            failure::say(failure);
        }
    }
    save_now(args)
}

fn save_now(args: &KeeperArgs) -> Result<u8, Failure> {
    let what = SavedArgs {
        pool: args.pool.clone(),
        snapshot: None,
        since: None,
    };
    save::save(&what, &args.file, false)
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
            // Nothing is ever written: it ends.
            Ok(_) => return Ok(true),
            Err(e) => return Err(Failure::io("waiting for the service", &e.into())),
        }
    }
}
