//! `holdfast run`.
//!
//! Invariants: nothing is written to the program's standard output; the exit status is the
//! program's, or 128 plus the signal that killed it; if Holdfast fails before the program starts,
//! the status is 125 and the program does not start; while the program runs, the service is watched
//! and started again if it dies.

use crate::args::{ConsistencyArg, RunArgs};
use crate::environment;
use crate::failure::{self, Failure};
use crate::inherit::Inherited;
use crate::nested::Outer;
use crate::point::{self, Stop};
use crate::program::Seen;
use crate::report::{Counts, ReportFile};
use crate::restart::Restarts;
use crate::served::ServedRun;
use crate::session::{RunRecord, memory};
use crate::signals::Signals;
use crate::{default_pool, leaving, no_pool, program, slow, start};
use holdfast_client::attach::{Attachment, Joined};
use holdfast_client::env::SessionEnv;
use holdfast_pmem::Slow;
use holdfast_pool::directory::LOG;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// `run`.
pub fn run(args: &RunArgs) -> Result<u8, Failure> {
    let failed = |failure: Failure| match failure.status() {
        failure::FAILED => failure.code(failure::RUN_FAILED),
        _ => failure,
    };
    if let Some(outer) = Outer::of_this_process().map_err(failed)? {
        return outer.run(args).map_err(failed);
    }
    if args.no_pool {
        return no_pool::run(args).map_err(failed);
    }
    match begin(args).map_err(failed)? {
        Begun::Mapped(prepared) => prepared.execute(args),
        Begun::Served(run) => run.execute(args),
    }
    .map_err(failed)
}

/// How the program will reach the pool.
enum Begun {
    Mapped(Box<Prepared>),
    Served(Box<ServedRun>),
}

fn begin(args: &RunArgs) -> Result<Begun, Failure> {
    let library = environment::library()?;
    let at = point::check(Path::new(&args.at))?;
    let pool = find_pool(args)?;
    if at.starts_with(&pool) || pool.starts_with(&at) {
        let what = format!("{} and the pool {} overlap", at.display(), pool.display());
        return Err(Failure::new(what).fix("choose another directory with --at"));
    }
    let program = Program { at, library };
    let joined = match &args.snapshot {
        None => start::join_or_be_served(&pool)?,
        Some(name) => start::join_snapshot(&pool, name)?,
    };
    match joined {
        Joined::Mapped(attachment) => {
            let prepared = Prepared::new(args, (pool, program), attachment)?;
            Ok(Begun::Mapped(Box::new(prepared)))
        }
        Joined::Served {
            connection,
            channel,
        } => {
            let run = ServedRun::new(args, (pool, program), (connection, channel))?;
            Ok(Begun::Served(Box::new(run)))
        }
    }
}

/// Where the pool appears, and the library that shows it.
pub struct Program {
    pub at: PathBuf,
    library: PathBuf,
}

impl Program {
    /// Starts the program that the arguments name; `env` tells it where its session is.
    pub fn spawn(&self, args: &RunArgs, env: &SessionEnv<'_>) -> Result<Child, Failure> {
        let mut command = program::command(&args.program, &self.at)?;
        program::warn_if_uninstrumented(&args.program[0], Seen::Pool);
        environment::instrument(&mut command, &self.library, env)?;
        // What opens the pool in there by the library finds it as slow.
        command.env(holdfast::SLOW_VARIABLE, env.slow.to_string());
        crate::signals::open_for_a_child(|| command.spawn())
            .map_err(|e| program::not_started(&args.program[0], &e))
    }
}

struct Prepared {
    pool: PathBuf,
    program: Program,
    attachment: Attachment,
    record: RunRecord,
    slow: Slow,
    /// Nothing can change there: no service is needed any more.
    on_snapshot: bool,
}

impl Prepared {
    fn new(
        args: &RunArgs,
        (pool, program): (PathBuf, Program),
        attachment: Attachment,
    ) -> Result<Prepared, Failure> {
        let why = attachment.answer.text();
        failure::warn_of_damage(&pool, why);
        let only_reads = args.snapshot.is_some() || !why.is_empty();
        let at = program.at.as_os_str().as_bytes();
        let record = RunRecord::create(memory(&attachment)?, at)?;
        if let Some(wanted) = args.consistency {
            set_consistency(&record, wanted)?;
        }
        Ok(Prepared {
            pool,
            program,
            attachment,
            record,
            slow: slow::wanted(args)?,
            on_snapshot: only_reads,
        })
    }

    fn execute(mut self, args: &RunArgs) -> Result<u8, Failure> {
        let report = args.report.as_deref().map(ReportFile::create).transpose()?;
        let signals = Signals::to_hand_on()?;
        let stop = Stop::put(&self.program.at);
        let mut child = self.spawn(args)?;
        let status = self.watch(&mut child, signals)?;
        drop(stop);
        if let Some(report) = report {
            report.write(&Counts::of(&self.record)?, args.program[0].as_os_str())?;
        }
        if let Some(why) = self.record.given_up() {
            let log = self.pool.join(LOG);
            failure::say(Failure::new(why).fix(format!("see {}", log.display())));
        }
        self.leave();
        Ok(code_of(status))
    }

    fn spawn(&self, args: &RunArgs) -> Result<Child, Failure> {
        let inherited = Inherited::prepare(&self.attachment, &self.pool, args)?;
        let pool = self.pool.as_os_str().as_bytes();
        let at = self.program.at.as_os_str().as_bytes();
        let run = (self.record.index(), self.slow);
        let mut env = inherited.describe(&self.attachment, run, pool, at);
        env.map = args.map;
        env.record = args.record;
        env.keep_mapped = args.keep_mapped;
        self.program.spawn(args, &env)
    }

    /// Until the program ends: hands signals on and keeps a service there.
    fn watch(&mut self, child: &mut Child, signals: Signals) -> Result<ExitStatus, Failure> {
        let mut events = Watched::new(child, signals)?;
        let mut restarts = Restarts::new();
        loop {
            let wait = restarts.wait();
            let watched = wait.is_none() && !self.on_snapshot;
            let service = watched.then_some(&self.attachment.connection);
            match events.next(service, wait)? {
                Event::Ended(status) => return Ok(status),
                Event::ServiceLost => restarts.lost(&self.pool),
                Event::Nothing => {}
            }
            if restarts.wait() == Some(Duration::ZERO) {
                match self.rejoin() {
                    Ok(()) => restarts.found(),
                    Err(failure) => restarts.failed(failure),
                }
            }
        }
    }

    /// The last user waits until the service has written everything down and is gone, so that
    /// whoever comes next finds the pool closed.
    fn leave(self) {
        let alone = self.record.is_last().unwrap_or(false);
        drop(self.record);
        if !alone {
            return;
        }
        if self.on_snapshot {
            leaving::wait_for_end(self.attachment.connection, Duration::from_secs(1));
        } else if let Err(failure) = leaving::see_to_the_end(&self.pool, self.attachment) {
            failure::say(failure);
        }
    }

    /// A new service takes the session over.
    fn rejoin(&mut self) -> Result<(), Failure> {
        let attachment = start::join_again(&self.pool, memory(&self.attachment)?)?;
        self.attachment.connection = attachment.connection;
        Ok(())
    }
}

enum Event {
    Ended(ExitStatus),
    ServiceLost,
    Nothing,
}

/// A program that runs, and the signals to hand on to it.
struct Watched<'a> {
    child: &'a mut Child,
    ended: OwnedFd,
    signals: Signals,
}

/// Hands signals on until the program ends.
pub fn wait_for(child: &mut Child, signals: Signals) -> Result<ExitStatus, Failure> {
    let mut watched = Watched::new(child, signals)?;
    loop {
        if let Event::Ended(status) = watched.next(None, None)? {
            return Ok(status);
        }
    }
}

fn fail(e: std::io::Error) -> Failure {
    Failure::io("waiting for the program", &e)
}

impl Watched<'_> {
    fn new(child: &mut Child, signals: Signals) -> Result<Watched<'_>, Failure> {
        let pid = Pid::from_child(child);
        let ended = pidfd_open(pid, PidfdFlags::empty()).map_err(|e| fail(e.into()))?;
        Ok(Watched {
            child,
            ended,
            signals,
        })
    }

    /// Sleeps until something happens, at most for `time`; `service` is a connection to watch too.
    fn next(
        &mut self,
        service: Option<&OwnedFd>,
        time: Option<Duration>,
    ) -> Result<Event, Failure> {
        if let Some(status) = self.child.try_wait().map_err(fail)? {
            return Ok(Event::Ended(status));
        }
        let mut fds = vec![
            PollFd::new(&self.ended, PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        fds.extend(service.map(|connection| PollFd::new(connection, PollFlags::RDHUP)));
        let time = time.unwrap_or(Duration::from_secs(3600));
        let time = Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: time.subsec_nanos().into(),
        };
        match poll(&mut fds, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(fail(e.into())),
        }
        let lost = fds.get(2).is_some_and(|fd| !fd.revents().is_empty());
        drop(fds);
        while let Some(signal) = self.signals.next() {
            if !signal.from_terminal {
                let number = Signal::from_named_raw(signal.number);
                let pid = Pid::from_child(self.child);
                let _ = number.map(|n| rustix::process::kill_process(pid, n));
            }
        }
        Ok(if lost {
            Event::ServiceLost
        } else {
            Event::Nothing
        })
    }
}

/// The exit status that stands for how a program ended.
pub fn code_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128u8.wrapping_add(signal as u8),
        (None, None) => failure::RUN_FAILED,
    }
}

fn find_pool(args: &RunArgs) -> Result<PathBuf, Failure> {
    let path = match &args.pool {
        Some(path) => path.clone(),
        None => default_pool::ensure()?,
    };
    match path.canonicalize() {
        Ok(path) => Ok(path),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(holdfast_service::Error::Missing { path }.into())
        }
        Err(e) => Err(Failure::io(path.display(), &e)),
    }
}

/// Makes `wanted` the session's consistency, unless programs run in it that began with another.
pub fn set_consistency(record: &RunRecord, wanted: ConsistencyArg) -> Result<(), Failure> {
    let number = match wanted {
        ConsistencyArg::Posix => 0,
        ConsistencyArg::Sync => 1,
        ConsistencyArg::Strict => 2,
    };
    if record.set_consistency(number)? {
        return Ok(());
    }
    Err(
        Failure::new("programs that now run on the pool started with another consistency")
            .fix("wait for them to end, or leave out --consistency"),
    )
}
