//! The `holdfast` command.
//!
//! Invariants: standard output carries data only (and nothing at all for `run`); an error is one
//! sentence on standard error, with a line `Fix: ...` where there is a remedy; the exit status says
//! what happened, as docs and scripts expect.
#![forbid(unsafe_code)]

mod advice;
mod bench;
mod beside;
mod complete;
mod config;
mod confine;
mod cp;
mod default_pool;
mod du;
mod environment;
mod explain;
mod export;
mod exports;
mod failure;
mod images;
mod inherit;
mod json;
mod keeper;
mod kv;
mod leaving;
mod limited;
mod log;
mod lsof;
mod map_commands;
mod metrics;
mod mount;
mod nested;
mod new_volume;
mod no_pool;
mod owner;
mod paths;
mod point;
mod poke;
mod pool_commands;
mod pool_list;
mod program;
mod progress;
mod proxy;
mod quota_commands;
mod report;
mod restart;
mod restore;
mod run;
mod save;
mod saved;
mod serve;
mod served;
mod session;
mod signals;
mod slow;
mod snapshot_commands;
mod snapshot_diff;
mod start;
mod state;
mod states;
mod thinning;
mod top;
mod trace;
mod volume_commands;
mod warm;
mod writeback;

use args::{Cli, Command, MapCommand, PoolCommand};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use failure::Failure;
use holdfast_cli::{args, size};
use state::State;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(status) = program::hidden(&words) {
        return ExitCode::from(status);
    }
    complete::answer();
    signals::survive_limits();
    holdfast_pmem::fault::install_with(LOST);
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match dispatch(cli) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            failure::say(&failure);
            ExitCode::from(failure.status())
        }
    }
}

/// Said where a fault in pool memory cannot be made an error.
const LOST: &str = "holdfast: the pool's file system is full, or has lost a part of the pool.\n\
    Fix: free some space there, then holdfast pool check POOL\n";

fn dispatch(mut cli: Cli) -> Result<u8, Failure> {
    default_pool::put_into(&mut cli.command)?;
    if let Some(pool) = works_on_files(&cli.command) {
        owner::become_owner(pool)?;
    }
    match cli.command {
        Command::Pool(PoolCommand::Create(args)) => pool_commands::create(&args, cli.json),
        Command::Pool(PoolCommand::Status { pool, unless_idle }) => {
            let state = match unless_idle {
                true => State::unless_idle(&pool),
                false => State::of(&pool),
            };
            pool_commands::status(state?, cli.json)
        }
        Command::Pool(PoolCommand::List) => pool_list::list(cli.json),
        Command::Pool(PoolCommand::Check { pool, accept_loss }) => {
            pool_commands::check(&pool, accept_loss, cli.json)
        }
        Command::Pool(PoolCommand::Block { pool, number }) => {
            pool_commands::block(&pool, number, cli.json)
        }
        Command::Pool(PoolCommand::Destroy { pool }) => pool_commands::destroy(&pool),
        Command::Pool(PoolCommand::Resize { pool, size }) => {
            pool_commands::resize(&pool, size, cli.json)
        }
        Command::Top(args) => top::top(&args, cli.json),
        Command::Lsof(args) => lsof::lsof(&args, cli.json),
        Command::Du(args) => du::du(&args, cli.json),
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve::serve(&args),
        Command::WriteBack { pool, expired } => writeback::write_back(&pool, expired),
        Command::Keeper(args) => keeper::keep(&args),
        Command::Proxy { pool, user } => proxy::proxy(&pool, user),
        Command::Kv(args) => kv::kv(&args, cli.json),
        Command::Snapshot(args) => snapshot_commands::snapshot(&args, cli.json),
        Command::Quota(args) => quota_commands::quota(&args, cli.json),
        Command::Cp(args) => cp::cp(&args, cli.json),
        Command::Save(args) => save::save(&args.what, &args.file, args.anew, cli.json),
        Command::Send(args) => save::save(&args.what, Path::new("-"), true, cli.json),
        Command::Restore(args) => restore::restore(&args.file, &args.to, cli.json),
        Command::Receive(args) => restore::restore(Path::new("-"), &args.to, cli.json),
        Command::Map(MapCommand::Drop { pool }) => map_commands::drop_kept(&pool),
        Command::Map(MapCommand::Explain(args)) => explain::explain(args, cli.json),
        Command::Volume(args) => volume_commands::volume(&args, cli.json),
        Command::Export(args) => export::export(&args),
        Command::Mount(args) => mount::mount(args),
        Command::Umount(args) => mount::umount(&args),
        Command::Warm(args) => warm::warm(&args, cli.json),
        Command::Bench(args) => bench::bench(&args, cli.json),
    }
}

/// The pool whose files a command works on by itself.
fn works_on_files(command: &Command) -> Option<&Path> {
    match command {
        Command::Pool(PoolCommand::Create(_) | PoolCommand::Block { .. } | PoolCommand::List) => {
            None
        }
        Command::Pool(
            PoolCommand::Status { pool, .. }
            | PoolCommand::Check { pool, .. }
            | PoolCommand::Destroy { pool }
            | PoolCommand::Resize { pool, .. },
        ) => Some(pool),
        Command::Top(args) => Some(&args.pool),
        _ => None,
    }
}

/// Help and version are no errors; the check has exit statuses of its own.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::from(failure::OK);
    }
    let named = named_command();
    let failure = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            let fix = format!("{named} --help lists the commands");
            Failure::new("no command was given").fix(fix)
        }
        _ => {
            let fix = format!("see {named} --help");
            Failure::new(first_paragraph(&error.to_string())).fix(fix)
        }
    };
    let check = named == "holdfast pool check";
    failure::say(&failure);
    ExitCode::from(if check {
        failure::CHECK_USAGE
    } else {
        failure::USAGE
    })
}

/// The command line up to the last word that names a command.
fn named_command() -> String {
    let words = std::env::args_os().skip(1).filter(|word| word != "--json");
    let words: Vec<_> = words.map(|w| w.to_string_lossy().into_owned()).collect();
    let (mut named, mut command) = (0, Cli::command());
    for (n, word) in words.iter().enumerate() {
        if let Some(below) = command.find_subcommand(word).cloned() {
            (named, command) = (n + 1, below);
        }
    }
    let named = std::iter::once("holdfast").chain(words[..named].iter().map(String::as_str));
    named.collect::<Vec<_>>().join(" ")
}

/// What clap says before usage and hints, in one line.
fn first_paragraph(text: &str) -> String {
    let lines = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.is_empty());
    let joined = lines.collect::<Vec<_>>().join(" ");
    joined.trim_start_matches("error: ").into()
}
