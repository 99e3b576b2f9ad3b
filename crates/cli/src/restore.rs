//! `holdfast restore` and `receive`: a stream as a pool.
//!
//! Invariants:
//!  * A stream that is damaged, or ends too early, leaves no new pool, and of a pool that is there
//!    nothing but whole states behind each other.
//!  * What a restore has made of a new pool is left for the next one if that can go on with it, and
//!    is removed if not.

use crate::args::RestoredArgs;
use crate::failure::{self, Failure, printed};
use crate::json::Json;
use crate::owner;
use crate::pool_commands::medium;
use crate::progress::Line;
use crate::size::Size;
use holdfast_pool::layout::BlockAddr;
use holdfast_service::{CreateOptions, DataFile, Left, Restoring, Whole};
use holdfast_stream::{Error, Mark, Progress, Restored, Restorer, Sink, Target};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// `restore` and `receive`.
pub fn restore(file: &Path, to: &RestoredArgs, json: bool) -> Result<u8, Failure> {
    let input = match file == Path::new("-") {
        true => rustix::io::dup(rustix::stdio::stdin())
            .map(File::from)
            .map_err(io::Error::from),
        false => File::open(file),
    };
    let input = input.map_err(|e| Failure::io(file.display(), &e))?;
    let continues = owner::of(&to.pool).is_some();
    if continues {
        owner::become_owner(&to.pool)?;
    }
    let restorer = Restorer::begin(input).map_err(|e| failed(to, e, false))?;
    let done = match continues {
        true => go_on(restorer, to)?,
        false => make(restorer, to)?,
    };
    say(to, &done, json)
}

fn make(restorer: Restorer, to: &RestoredArgs) -> Result<Restored, Failure> {
    let head = restorer.head().clone();
    if let Some(base) = &head.base {
        let name = String::from_utf8_lossy(&base.name);
        let why = format!("the stream holds what changed since snapshot {name}, and no pool");
        return Err(Failure::new(why).fix("restore the stream that has that snapshot first"));
    }
    let options = CreateOptions {
        size: Some(to.size.map_or(head.size, |size| size.0)),
        medium: medium(to.medium),
        consistency: head.consistency,
    };
    let (mut making, mark) = match left(&restorer, &options, to)? {
        Found::Part(left, mark) => (*left, Some(mark)),
        Found::Whole(whole) => {
            let done = restorer.read_over().map_err(|e| failed(to, e, true))?;
            whole.finish()?;
            return Ok(done);
        }
        Found::Nothing => {
            let id = restorer.id();
            let made = Restoring::make(&to.pool, &options, head.seed, id)?;
            (made, None)
        }
    };
    let filled = run(&mut making, |target, see| match mark {
        Some(mark) => restorer.fill_on(mark, target, see),
        None => restorer.fill(target, see),
    });
    match filled {
        Ok(done) => {
            making.finish()?;
            Ok(done)
        }
        Err(error) if goes_on(&error) && has_any(&making) => {
            making.leave();
            Err(failed(to, error, true))
        }
        Err(error) => Err(failed(to, error, false)),
    }
}

/// What an interrupted restore of the same stream left.
enum Found {
    Nothing,
    /// A part of the pool, and how far it had come.
    Part(Box<Restoring>, Mark),
    /// All of it.
    Whole(Whole),
}

fn left(restorer: &Restorer, options: &CreateOptions, to: &RestoredArgs) -> Result<Found, Failure> {
    if to.anew {
        return Ok(Found::Nothing);
    }
    let why = match Restoring::left(&to.pool, options)? {
        Left::Nothing => return Ok(Found::Nothing),
        Left::Other(why) => why,
        Left::Whole(whole) if whole.stream == Some(restorer.id()) => {
            return Ok(Found::Whole(whole));
        }
        Left::Whole(_) => "is of another stream",
        Left::Some(left) => match restorer.mark_in(&left.pool) {
            Ok(Some(mark)) => return Ok(Found::Part(left, mark)),
            Ok(None) if matches!(Mark::of(&left.pool), Ok(Some(_))) => "is of another stream",
            Ok(None) => "does not say how far it came",
            Err(_) => "is damaged",
        },
    };
    failure::say(format_args!(
        "holdfast: what an interrupted restore left in {} {why}: this one begins anew.",
        to.pool.display()
    ));
    Ok(Found::Nothing)
}

/// Whether a restore that failed can go on with what it made, once the reason is gone.
fn goes_on(error: &Error) -> bool {
    matches!(
        error,
        Error::Damaged { .. }
            | Error::Ends { .. }
            | Error::Stream(_)
            | Error::Data(_)
            | Error::Pool(holdfast_pool::Error::HostFull)
            | Error::OtherStream { .. }
    )
}

fn has_any(made: &Restoring) -> bool {
    matches!(Mark::of(&made.pool), Ok(Some(mark)) if mark.has_any())
}

fn go_on(restorer: Restorer, to: &RestoredArgs) -> Result<Restored, Failure> {
    if restorer.head().base.is_none() {
        let why = format!(
            "{} is a pool already, and the stream holds a whole one",
            to.pool.display()
        );
        return Err(Failure::new(why).fix("name a new directory"));
    }
    let mut opened = Restoring::open(&to.pool)?;
    let done = run(&mut opened, |target, see| restorer.go_on(target, see));
    let done = done.map_err(|error| failed(to, error, false))?;
    opened.finish()?;
    Ok(done)
}

type See<'s> = &'s mut dyn FnMut(Progress);

fn run(
    restoring: &mut Restoring,
    apply: impl FnOnce(Target<'_>, See<'_>) -> holdfast_stream::Result<Restored>,
) -> holdfast_stream::Result<Restored> {
    let mut line = Line::new("restoring", 0);
    let mut data = Data(&restoring.data);
    let target = Target {
        pool: &mut restoring.pool,
        token: &restoring.token,
        sink: &mut data,
    };
    apply(target, &mut |progress| line.at(progress.bytes))
}

struct Data<'d>(&'d DataFile);

impl Sink for Data<'_> {
    fn write(&mut self, block: BlockAddr, bytes: &[u8]) -> io::Result<()> {
        self.0.write(block, bytes)
    }

    fn zero(&mut self, block: BlockAddr, blocks: u64, is_new: bool) -> io::Result<()> {
        self.0.zero(block, blocks, is_new)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }
}

fn failed(to: &RestoredArgs, error: Error, is_left: bool) -> Failure {
    let pool = to.pool.display();
    let why = match &error {
        Error::Data(e) => format!("{pool}: writing the data: {}", failure::text(e)),
        Error::Stream(e) => format!("reading the stream: {}", failure::text(e)),
        error => format!("{pool}: {error}"),
    };
    if is_left {
        let kept = "what was restored is in restore.part there";
        return Failure::new(format!("{why}; {kept}")).fix(again(&error));
    }
    let failure = Failure::new(why);
    match error {
        Error::NotAStream => failure.fix("name a file that `holdfast save` made"),
        Error::Version { .. } => failure.fix("use the program that made it, or a newer one"),
        Error::Damaged { .. } | Error::Ends { .. } => failure.fix("fetch or save it again"),
        Error::Full => failure.fix("restore it with a larger --size"),
        Error::NoBase { .. } => failure.fix("restore the stream that has that snapshot first"),
        Error::OtherBase { .. } => failure.fix("name the pool that was restored from the same one"),
        Error::Changed { .. } => failure.fix("restore into a pool that is only restored into"),
        _ => failure,
    }
}

/// How a restore that left something is gone on with.
fn again(error: &Error) -> &'static str {
    match error {
        Error::Damaged { .. } | Error::Ends { .. } => {
            "fetch or save the stream again, and restore it: that goes on where this ended"
        }
        Error::OtherStream { .. } => "restore the same stream, or begin anew with --anew",
        Error::Stream(_) => "restore it again: that goes on where this ended",
        _ => "free some space there, and restore it again: that goes on where this ended",
    }
}

fn say(to: &RestoredArgs, done: &Restored, json: bool) -> Result<u8, Failure> {
    let mut out = io::stdout().lock();
    let progress = &done.progress;
    printed(match json {
        true => {
            let mut fields = vec![
                ("pool", Json::Text(to.pool.display().to_string())),
                ("entries", Json::Number(progress.entries)),
                ("data_bytes", Json::Number(progress.bytes)),
                ("snapshots", Json::Number(done.snapshots.into())),
                ("snapshots_there", Json::Number(done.skipped.into())),
            ];
            if done.kept.entries > 0 {
                fields.push(("kept_entries", Json::Number(done.kept.entries)));
                fields.push(("kept_bytes", Json::Number(done.kept.bytes)));
            }
            writeln!(out, "{}", Json::Object(fields).render())
        }
        false => writeln!(
            out,
            "restored {} of data, {} entries and {} snapshots{}",
            Size(progress.bytes),
            progress.entries,
            done.snapshots - done.skipped,
            kept(done)
        ),
    })?;
    Ok(failure::OK)
}

fn kept(done: &Restored) -> String {
    let Progress { entries, bytes } = done.kept;
    match entries {
        0 => String::new(),
        _ => format!(
            "; {} of the data and {entries} of the entries an interrupted restore had restored",
            Size(bytes)
        ),
    }
}
