//! `holdfast-export`: what `holdfast export` runs.
//!
//! Invariants: it has no rights of its own: the volume is opened as any program could; an error is
//! one sentence, with a line `Fix: ...` where there is a remedy.
#![forbid(unsafe_code)]

mod args;
mod bytes;
mod ending;
mod failure;
mod fuse;
mod vhost;

use args::{Export, Face};
use clap::Parser;
use ending::Ending;
use failure::Failure;
use holdfast::{Pool, Volume};
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let done = match Export::try_parse() {
        Ok(args) => export(&args),
        // Help and version are no errors.
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            Ok(())
        }
        Err(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            Err(Failure::usage(first.trim_start_matches("error: ")))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.say().into(),
    }
}

fn export(args: &Export) -> Result<(), Failure> {
    let ending = Ending::new()?;
    if let Some(program) = std::env::var_os("HOLDFAST_PROGRAM") {
        holdfast::use_program(PathBuf::from(program));
    }
    if args.queues.is_some() && args.face.vhost_user.is_none() {
        return Err(Failure::usage("--queues is for --vhost-user alone"));
    }
    let volume = open(args)?;
    let Face { fuse, vhost_user } = &args.face;
    match (fuse, vhost_user) {
        (Some(file), _) => fuse::serve(volume, file, ending),
        (_, Some(socket)) => vhost::serve(volume, socket, args.queues, ending),
        (None, None) => Ok(()),
    }
}

/// The volume as the command line wants it.
fn open(args: &Export) -> Result<Volume, Failure> {
    let pool = Pool::open(&args.pool)?;
    Ok(match &args.snapshot {
        Some(snapshot) => pool.snapshot(snapshot)?.volume_to_read(&args.volume)?,
        None if args.read_only => pool.volume_to_read(&args.volume)?,
        None => pool.volume(&args.volume)?,
    })
}
