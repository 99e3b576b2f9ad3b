//! `holdfast-export`: what `holdfast export` and `holdfast mount` run: volumes and files of a pool,
//! for the kernel and for other programs.
//!
//! Invariants: it has no rights of its own: the pool is opened as any program could; an error is
//! one sentence, with a line `Fix: ...` where there is a remedy.
#![forbid(unsafe_code)]

mod address;
mod args;
mod bytes;
mod failure;
mod files;
mod fuse;
mod greeting;
mod nbd;
mod nbdkit;
mod publish;
mod signals;
mod vhost;

use args::{Export, Face};
use clap::Parser;
use failure::Failure;
use holdfast::{Pool, Volume};
use signals::Signals;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(program) = holdfast_program() {
        holdfast::use_program(program);
    }
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == files::args::MARK) {
        return match files::mount(words) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.say().into(),
        };
    }
    let done = match Export::try_parse() {
        Ok(args) => export(&args),
        // Help and version are no errors.
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            Ok(())
        }
        Err(error) => {
            let text = error.to_string();
            let lines = text.lines().map(str::trim);
            let first: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
            let sentence = first.join(" ");
            Err(Failure::usage(sentence.trim_start_matches("error: ")))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.say().into(),
    }
}

fn export(args: &Export) -> Result<(), Failure> {
    if args.queues.is_some() && args.face.vhost_user.is_none() {
        return Err(Failure::usage("--queues is for --vhost-user alone"));
    }
    let pool = match args.snapshot {
        None => {
            let writing = (args.protect, args.persist);
            Pool::open_to_serve(&args.pool, &args.volume, writing, args.slow)?
        }
        // What is in a snapshot is never mapped for writing.
        Some(_) => Pool::options().slow(args.slow).open(&args.pool)?,
    };
    match &args.face {
        Face {
            nbd: Some(address), ..
        } => nbd::export(args, pool, address),
        Face {
            fuse: Some(file), ..
        } => fuse::serve(args, open(&pool, args)?, file, Signals::catch()?),
        Face {
            vhost_user: Some(socket),
            ..
        } => vhost::serve(args, open(&pool, args)?, socket, Signals::catch()?),
        _ => Err(Failure::usage("no way to export the volume was given")),
    }
}

/// The `holdfast` that started this program.
fn holdfast_program() -> Option<PathBuf> {
    std::env::var_os("HOLDFAST_PROGRAM").map(PathBuf::from)
}

/// The volume as the command line wants it.
fn open(pool: &Pool, args: &Export) -> Result<Volume, Failure> {
    let volume = match &args.snapshot {
        Some(snapshot) => pool.snapshot(snapshot)?.volume_to_read(&args.volume)?,
        None if args.read_only => pool.volume_to_read(&args.volume)?,
        None => pool.volume(&args.volume)?,
    };
    volume.set_barrier(args.barrier);
    volume.set_verify(args.verify);
    volume.set_sub_block(args.sub_block);
    Ok(volume)
}
