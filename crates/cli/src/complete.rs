//! Answers to shells that complete a word of the command line.
//!
//! Invariants: a shell asks by the variable `HOLDFAST_COMPLETE`, which the installed scripts set;
//! an answer reads names of files and directories, and changes nothing.

use crate::default_pool;
use clap::Command;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::CompleteEnv;
use holdfast_cli::whole::whole;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// How shells ask.
const VARIABLE: &str = "HOLDFAST_COMPLETE";

/// Answers and ends, if a shell asks.
pub fn answer() {
    CompleteEnv::with_factory(|| known(whole()))
        .var(VARIABLE)
        .bin("holdfast")
        .completer("holdfast")
        .complete();
}

/// The command and all below it, with what their words can be.
fn known(command: Command) -> Command {
    command
        .mut_args(|arg| match arg.get_id().as_str() {
            "pool" => arg.add(ArgValueCompleter::new(pools)),
            "program" => arg.add(ArgValueCompleter::new(Program)),
            _ => arg,
        })
        .mut_subcommands(known)
}

/// The pool of the user who names none, and directories.
fn pools(word: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = PathCompleter::dir().complete(word);
    let default = default_pool::path().ok().filter(|pool| pool.exists());
    if let Some(pool) = default {
        let begins = pool.as_os_str().as_encoded_bytes();
        if begins.starts_with(word.as_encoded_bytes()) {
            // With a slash behind it, it is a directory among others.
            found.retain(|one| Path::new(one.get_value()) != pool);
            let pool = CompletionCandidate::new(pool);
            found.insert(0, pool.help(Some("your own pool".into())));
        }
    }
    found
}

/// A program and its arguments. The first argument has index 0 as well, so files are offered there,
/// too.
struct Program;

impl ValueCompleter for Program {
    fn complete(&self, word: &OsStr) -> Vec<CompletionCandidate> {
        let bytes = word.as_encoded_bytes();
        let mut found = match bytes.is_empty() || bytes.contains(&b'/') {
            true => Vec::new(),
            false => programs(word),
        };
        found.extend(PathCompleter::any().complete(word));
        found
    }

    fn complete_at(&self, index: usize, word: &OsStr) -> Vec<CompletionCandidate> {
        match index {
            0 => self.complete(word),
            _ => PathCompleter::any().complete(word),
        }
    }
}

/// What can be executed by a name that begins so.
fn programs(word: &OsStr) -> Vec<CompletionCandidate> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let entries = std::env::split_paths(&path)
        .filter_map(|dir| std::fs::read_dir(dir).ok())
        .flat_map(|entries| entries.flatten());
    let mut names: Vec<_> = entries
        .filter(|entry| {
            let name = entry.file_name();
            name.as_encoded_bytes().starts_with(word.as_encoded_bytes())
        })
        .filter(|entry| {
            let found = std::fs::metadata(entry.path());
            found.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        })
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    names.dedup();
    names.into_iter().map(CompletionCandidate::new).collect()
}
