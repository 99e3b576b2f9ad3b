//! Answers to shells that complete a word of the command line.
//!
//! Invariants: a shell asks by the variable `HOLDFAST_COMPLETE`, which the installed scripts set;
//! an answer reads names of files and directories, and changes nothing. It says nothing of what
//! goes wrong.

mod names;

use crate::default_pool;
use clap::Command;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::{CompleteEnv, Elvish, Fish, Powershell, Shells, Zsh};
use holdfast_cli::bash::Joining;
use holdfast_cli::whole::whole;
use holdfast_pool::segment::META;
use names::{Names, Wanted};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// How shells ask.
const VARIABLE: &str = "HOLDFAST_COMPLETE";

/// Answers and ends, if a shell asks.
pub fn answer() {
    let shells = Shells(&[&Joining, &Elvish, &Fish, &Powershell, &Zsh]);
    CompleteEnv::with_factory(|| known(whole()))
        .shells(shells)
        .var(VARIABLE)
        .bin("holdfast")
        .completer("holdfast")
        .complete();
}

/// Answers with what a word can be.
type Complete = fn(&OsStr) -> Vec<CompletionCandidate>;

/// The command and all below it, with what their words can be.
fn known(command: Command) -> Command {
    let of: Option<Complete> = match command.get_name() {
        "snapshot" => Some(snapshots),
        "volume" => Some(volumes),
        _ => None,
    };
    command
        .mut_args(|arg| match arg.get_id().as_str() {
            "pool" => arg.add(ArgValueCompleter::new(pools)),
            "program" => arg.add(ArgValueCompleter::new(Program)),
            "paths" => arg.add(ArgValueCompleter::new(paths)),
            "keyspace" => arg.add(ArgValueCompleter::new(keyspaces)),
            "snapshot" | "since" => arg.add(ArgValueCompleter::new(snapshots)),
            "volume" => arg.add(ArgValueCompleter::new(volumes)),
            _ => arg,
        })
        .mut_subcommands(|below| match of {
            Some(complete) => known(existing(below, complete)),
            None => known(below),
        })
}

/// A command on what there is already, but for names that it gives.
fn existing(command: Command, complete: Complete) -> Command {
    let (makes, renames) = match command.get_name() {
        "create" | "import" => (true, true),
        "rename" | "copy" => (false, true),
        _ => (false, false),
    };
    command.mut_args(|arg| match arg.get_id().as_str() {
        "name" | "from" if !makes => arg.add(ArgValueCompleter::new(complete)),
        "to" if !renames => arg.add(ArgValueCompleter::new(complete)),
        _ => arg,
    })
}

/// The pool that the command line names before any other, or the user's own.
fn pool() -> Option<Names> {
    let words = std::env::args_os().skip_while(|word| word != "--").skip(3);
    let mut named = words.filter_map(|word| {
        // A path of `cp` goes on behind a colon.
        let word = word.as_bytes();
        let end = word.iter().position(|byte| *byte == b':');
        directory(&word[..end.unwrap_or(word.len())])
    });
    Names::open(&named.next().or_else(|| default_pool::own().ok())?)
}

/// The pool in a directory, as a shell writes it.
fn directory(word: &[u8]) -> Option<PathBuf> {
    let path = match (word, word.strip_prefix(b"~/")) {
        (b"@", _) => default_pool::own().ok()?,
        (_, Some(below)) => Path::new(&std::env::var_os("HOME")?).join(OsStr::from_bytes(below)),
        _ => OsStr::from_bytes(word).into(),
    };
    path.join(META).exists().then_some(path)
}

/// Those of names that begin like a word.
fn beginning(word: &OsStr, names: Vec<Vec<u8>>) -> Vec<CompletionCandidate> {
    let fits = |name: &Vec<u8>| {
        name.starts_with(word.as_bytes()) && !name.iter().any(u8::is_ascii_control)
    };
    let mut names: Vec<_> = names.into_iter().filter(fits).collect();
    names.sort();
    let names = names.into_iter().map(OsString::from_vec);
    names.map(CompletionCandidate::new).collect()
}

fn keyspaces(word: &OsStr) -> Vec<CompletionCandidate> {
    beginning(word, pool().map_or(Vec::new(), |pool| pool.keyspaces()))
}

fn snapshots(word: &OsStr) -> Vec<CompletionCandidate> {
    beginning(word, pool().map_or(Vec::new(), |pool| pool.snapshots()))
}

fn volumes(word: &OsStr) -> Vec<CompletionCandidate> {
    let paths = |pool: Names| pool.paths(word.as_bytes(), Wanted::Volumes);
    beginning(word, pool().map_or(Vec::new(), paths))
}

/// Paths of `cp`: behind a colon those of a pool, before it those of the host, and pools.
fn paths(word: &OsStr) -> Vec<CompletionCandidate> {
    let bytes = word.as_bytes();
    let Some(colon) = bytes.iter().position(|byte| *byte == b':') else {
        let mut found = PathCompleter::any().complete(word);
        if directory(bytes).is_some() {
            let pool = [bytes, b":"].concat();
            found.insert(0, CompletionCandidate::new(OsString::from_vec(pool)));
        }
        return found;
    };
    let (pool, path) = (&bytes[..colon], &bytes[colon + 1..]);
    let names = directory(pool).and_then(|pool| Names::open(&pool));
    let found = names.map_or(Vec::new(), |names| names.paths(path, Wanted::All));
    let whole = found.iter().map(|path| [pool, b":", path].concat());
    beginning(word, whole.collect())
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
