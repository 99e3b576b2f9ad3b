//! `holdfast-manual DIR`: writes manual pages and the completion of shells below DIR, as they are
//! installed below PREFIX.
//!
//! Invariants: what clap knows comes from the definitions that the commands themselves parse with;
//! only what it cannot know is in `sections`. The same source gives the same bytes. It is a program
//! of its own, so that who builds for another machine can run it on this one.
#![forbid(unsafe_code)]

mod pages;

use clap_complete::env::{EnvCompleter, Fish, Zsh};
use holdfast_cli::bash::Joining;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let (Some(dir), None) = (words.next(), words.next()) else {
        eprintln!("usage: holdfast-manual DIR");
        return ExitCode::from(2);
    };
    let dir = PathBuf::from(dir);
    match write_pages(&dir).and_then(|()| completions(&dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("holdfast-manual: {}: {e}", dir.display());
            ExitCode::FAILURE
        }
    }
}

fn write_pages(dir: &Path) -> io::Result<()> {
    pages::write_all(&dir.join("share/man/man1"))?;
    pages::write_formats(&dir.join("share/man/man5"))
}

/// What the command takes for the question of a shell; its `complete.rs` has the same name.
const VARIABLE: &str = "HOLDFAST_COMPLETE";

/// The scripts by which shells ask the command, each where its shell looks for it.
fn completions(dir: &Path) -> io::Result<()> {
    let shells: [(&dyn EnvCompleter, &str); 3] = [
        (&Joining, "share/bash-completion/completions/holdfast"),
        (&Zsh, "share/zsh/site-functions/_holdfast"),
        (&Fish, "share/fish/vendor_completions.d/holdfast.fish"),
    ];
    for (shell, path) in shells {
        let mut script = Vec::new();
        shell.write_registration(VARIABLE, "holdfast", "holdfast", "holdfast", &mut script)?;
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap_or(dir))?;
        fs::write(path, script)?;
    }
    Ok(())
}
