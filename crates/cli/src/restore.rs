//! `holdfast restore` and `receive`: a stream as a pool.
//!
//! Invariants: a stream that is damaged, or ends too early, leaves no new pool, and of a pool that
//! is there nothing but whole states behind each other.

use crate::args::RestoredArgs;
use crate::failure::{self, Failure, printed};
use crate::json::Json;
use crate::owner;
use crate::pool_commands::medium;
use crate::progress::Line;
use crate::size::Size;
use holdfast_pool::layout::BlockAddr;
use holdfast_service::{CreateOptions, DataFile, Restoring};
use holdfast_stream::{Error, Progress, Restored, Restorer, Sink, Target};
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
    let restorer = Restorer::begin(input).map_err(|e| failed(to, e))?;
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
    let mut making = Restoring::make(&to.pool, &options, head.seed)?;
    let done = run(&mut making, to, |target, see| restorer.fill(target, see))?;
    making.finish()?;
    Ok(done)
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
    let done = run(&mut opened, to, |target, see| restorer.go_on(target, see))?;
    opened.finish()?;
    Ok(done)
}

type See<'s> = &'s mut dyn FnMut(Progress);

fn run(
    restoring: &mut Restoring,
    to: &RestoredArgs,
    apply: impl FnOnce(Target<'_>, See<'_>) -> holdfast_stream::Result<Restored>,
) -> Result<Restored, Failure> {
    let mut line = Line::new("restoring", 0);
    let mut data = Data(&restoring.data);
    let target = Target {
        pool: &mut restoring.pool,
        token: &restoring.token,
        sink: &mut data,
    };
    apply(target, &mut |progress| line.at(progress.bytes)).map_err(|e| failed(to, e))
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

fn failed(to: &RestoredArgs, error: Error) -> Failure {
    let pool = to.pool.display();
    let failure = match &error {
        Error::Data(e) => Failure::io(format!("{pool}: writing the data"), e),
        Error::Stream(e) => Failure::io("reading the stream", e),
        error => Failure::new(format!("{pool}: {error}")),
    };
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

fn say(to: &RestoredArgs, done: &Restored, json: bool) -> Result<u8, Failure> {
    let mut out = io::stdout().lock();
    let progress = &done.progress;
    printed(match json {
        true => {
            let object = Json::Object(vec![
                ("pool", Json::Text(to.pool.display().to_string())),
                ("entries", Json::Number(progress.entries)),
                ("data_bytes", Json::Number(progress.bytes)),
                ("snapshots", Json::Number(done.snapshots.into())),
                ("snapshots_there", Json::Number(done.skipped.into())),
            ]);
            writeln!(out, "{}", object.render())
        }
        false => writeln!(
            out,
            "restored {} of data, {} entries and {} snapshots",
            Size(progress.bytes),
            progress.entries,
            done.snapshots - done.skipped
        ),
    })?;
    Ok(failure::OK)
}
