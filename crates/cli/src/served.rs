//! `holdfast run` on the pool of another user: a proxy makes the calls of the program.
//!
//! Invariants: those of `run`; nothing of the pool is mapped, and the run ends when the proxy does.

use crate::args::RunArgs;
use crate::failure::{self, Failure};
use crate::inherit::Inherited;
use crate::report::{Counts, ReportFile};
use crate::run::{Program, code_of, wait_for};
use crate::signals::Signals;
use crate::slow;
use holdfast_client::Served;
use rustix::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

const EACCES: i32 = 13;

/// A run that is about to begin.
pub struct ServedRun {
    pool: PathBuf,
    program: Program,
    served: Served,
    /// Open for as long as the run lasts.
    _connection: OwnedFd,
}

impl ServedRun {
    /// With what the service answered.
    pub fn new(
        args: &RunArgs,
        (pool, program): (PathBuf, Program),
        (connection, channel): (OwnedFd, OwnedFd),
    ) -> Result<ServedRun, Failure> {
        if args.consistency.is_some() {
            return Err(Failure::new(
                "the pool belongs to another user, who alone chooses its consistency",
            )
            .fix("leave out --consistency"));
        }
        if !slow::wanted(args)?.is_none() {
            return Err(Failure::new(
                "the pool belongs to another user, whose proxy copies for you and is never slow",
            )
            .fix("leave out --slow and HOLDFAST_SLOW"));
        }
        let at = program.at.as_os_str().as_bytes();
        let served = Served::enter(channel.as_fd(), connection.as_fd(), at);
        let served = served.map_err(|e| {
            let what = format!("the pool {} does not let you in: {e}", pool.display());
            match e.errno() {
                EACCES => Failure::new(what)
                    .fix("ask its owner for search permission on its root directory"),
                _ => Failure::new(what),
            }
        })?;
        Ok(ServedRun {
            pool,
            program,
            served,
            _connection: connection,
        })
    }

    /// Until the program ends.
    pub fn execute(self, args: &RunArgs) -> Result<u8, Failure> {
        let report = args.report.as_deref().map(ReportFile::create).transpose()?;
        let signals = Signals::to_hand_on()?;
        let stop = crate::point::Stop::put(&self.program.at);
        let connection = self.served.connection_for_program().map_err(gone)?;
        let inherited = Inherited::prepare_served(&connection, &self.pool, args)?;
        let (pool, at) = (self.pool.as_os_str(), self.program.at.as_os_str());
        let mut env = inherited.describe_served(args.map, pool.as_bytes(), at.as_bytes());
        env.record = args.record;
        let mut child = self.program.spawn(args, &env)?;
        // The program's end is seen by its connections: none of them may be left here.
        drop((connection, inherited));
        let status = wait_for(&mut child, signals)?;
        drop(stop);
        match self.served.report().map_err(gone) {
            Ok(counts) => {
                if let Some(report) = report {
                    report.write(&Counts::told(counts), args.program[0].as_os_str())?;
                }
            }
            Err(failure) => failure::say(failure),
        }
        Ok(code_of(status))
    }
}

fn gone(_: holdfast_client::Error) -> Failure {
    Failure::new("the pool's proxy ended before the program")
        .fix("ask the pool's owner for its log, and run the program again")
}
