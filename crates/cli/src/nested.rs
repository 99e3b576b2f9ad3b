//! `holdfast run` inside `holdfast run`, for example in a Makefile that was itself started on the
//! pool.
//!
//! Invariants: the program joins the session that this process is in, with the same pool at the
//! same place, or does not start; no service is started from inside a run, because it would see the
//! pool's files in place of the host's; the outer run watches the service.

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::program::Seen;
use crate::report::{Counts, ReportFile};
use crate::run::{code_of, set_consistency};
use crate::session::RunRecord;
use crate::signals::{Signals, open_for_a_child};
use crate::{default_pool, environment, paths, program, slow};
use holdfast_client::MapSettings;
use holdfast_client::env::{INSIDE, NO_POOL, SERVED, SessionEnv, VARIABLE};
use holdfast_pmem::{Slow, record_locks};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The run that this process is a program of.
pub struct Outer {
    pool: PathBuf,
    at: PathBuf,
    record: u32,
    /// The descriptor of session memory, as a number.
    session: i32,
    is_served: bool,
    slow: Slow,
    map: Option<MapSettings>,
}

impl Outer {
    /// `None`: this process was not started by a run with a pool, or escaped from it (a setuid
    /// program did not hand the library on).
    pub fn of_this_process() -> Result<Option<Outer>, Failure> {
        let Some(value) = std::env::var_os(VARIABLE).filter(|_| environment::is_preloaded()) else {
            return Ok(None);
        };
        let env = SessionEnv::parse(value.as_bytes())
            .ok_or_else(|| Failure::new(format!("{VARIABLE} in the environment is damaged")))?;
        if env.medium == NO_POOL {
            return Ok(None);
        }
        Ok(Some(Outer {
            pool: OsStr::from_bytes(env.pool).into(),
            at: OsStr::from_bytes(env.at).into(),
            record: env.run,
            session: env.session.fd,
            is_served: env.medium == SERVED,
            slow: env.slow,
            map: env.map,
        }))
    }

    /// Runs the program in the outer run's session.
    pub fn run(&self, args: &RunArgs) -> Result<u8, Failure> {
        self.refuse_another(args)?;
        let (program, arguments) = match args.program.split_first() {
            Some((program, _)) if program.is_empty() => {
                return Err(Failure::new("the program's name is empty").code(127));
            }
            Some(words) => words,
            None => return Err(Failure::new("no program was named")),
        };
        let mut command = Command::new(program);
        command.args(arguments);
        program::warn_if_uninstrumented(program, Seen::Pool);
        if args.report.is_none() && args.consistency.is_none() {
            // The environment is what a program of the session needs.
            let error = open_for_a_child(|| command.exec());
            return Err(program::not_started(program, &error));
        }
        self.run_watched(args, command)
    }

    fn refuse_another(&self, args: &RunArgs) -> Result<(), Failure> {
        if args.no_pool {
            let what = format!(
                "this program already runs on the pool {}",
                self.pool.display()
            );
            return Err(
                Failure::new(what).fix("leave out --no-pool, or start it outside of the run")
            );
        }
        if args.snapshot.is_some() {
            let what = "a program that runs on a pool cannot start another on a snapshot";
            return Err(Failure::new(what).fix("start it outside of holdfast run"));
        }
        if slow::wanted(args)? != self.slow {
            let what = format!("this program already runs with --slow {}", self.slow);
            return Err(Failure::new(what).fix("ask for the same, or start it outside of the run"));
        }
        if args.map.is_some() && args.map != self.map {
            let what = match &self.map {
                Some(settings) => format!("this program already runs with --map={settings}"),
                None => "this program already runs without --map".into(),
            };
            return Err(Failure::new(what).fix("ask for the same, or start it outside of the run"));
        }
        if args.trace.is_some() {
            let what = "a program that runs on a pool cannot begin a trace";
            return Err(Failure::new(what).fix("give --trace to the outer holdfast run"));
        }
        let pool = match &args.pool {
            Some(path) => path.clone(),
            None => default_pool::path()?,
        };
        let pool = pool.canonicalize().unwrap_or(pool);
        let at = paths::absolute(Path::new(&args.at));
        let at = at.map_err(|e| Failure::io(Path::new(&args.at).display(), &e))?;
        if (&pool, &at) == (&self.pool, &self.at) {
            return Ok(());
        }
        let what = format!(
            "this program already runs on the pool {} at {}, and cannot start another on {} at {}",
            self.pool.display(),
            self.at.display(),
            pool.display(),
            at.display()
        );
        Err(Failure::new(what)
            .fix("use the same pool and --at, or start it outside of holdfast run"))
    }

    /// With options that need the session's memory. The report is what the outer run counted
    /// meanwhile: also calls of its other programs, if there are any just then.
    fn run_watched(&self, args: &RunArgs, mut command: Command) -> Result<u8, Failure> {
        if self.is_served {
            let what =
                "the pool belongs to another user: a run inside a run takes no options there";
            return Err(Failure::new(what).fix("leave out --report and --consistency"));
        }
        let _ = rustix::thread::set_name(INSIDE);
        // As this process inherited it: nothing may close one while we are in the session.
        let session = record_locks::kept_open(self.session)
            .ok_or_else(|| Failure::new("the session of this run has ended"))?;
        let record = RunRecord::existing(session, self.record)?;
        if let Some(wanted) = args.consistency {
            set_consistency(&record, wanted)?;
        }
        let report = args.report.as_deref().map(ReportFile::create).transpose()?;
        let before = Counts::of(&record)?;
        let signals = Signals::to_hand_on()?;
        let mut child = open_for_a_child(|| command.spawn())
            .map_err(|e| program::not_started(&args.program[0], &e))?;
        let status = crate::run::wait_for(&mut child, signals)?;
        if let Some(report) = report {
            let counts = Counts::of(&record)?.since(&before);
            report.write(&counts, &args.program[0])?;
        }
        Ok(code_of(status))
    }
}
