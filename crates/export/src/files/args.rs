//! The command line of `holdfast mount` as clap sees it.
//!
//! Invariant: `holdfast` parses it, and hands the same on to the program that mounts.

use clap::Parser;
use std::path::PathBuf;

/// The first word for the program, which also exports volumes.
pub const MARK: &str = "--mount";
/// What the program says when the files are there.
pub const MOUNTED: &str = "mounted";
/// An attribute of the root directory of the files: the number of the program's process.
pub const PROCESS: &str = "holdfast.process";

#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(allow_missing_positional = true)]
pub struct Mount {
    /// The pool's directory; @ is the user's own pool, and so is none.
    pub pool: Option<PathBuf>,
    /// The directory at which the files appear.
    pub dir: PathBuf,
    /// Let all users in, each with the rights that the files give. Who is not root may say so if
    /// /etc/fuse.conf has a line user_allow_other.
    #[arg(long)]
    pub allow_other: bool,
    /// Nothing can be changed.
    #[arg(long)]
    pub read_only: bool,
    /// The files as they are in a snapshot; implies --read-only.
    #[arg(long, value_name = "NAME")]
    pub snapshot: Option<String>,
    /// Stay in the foreground, until a signal ends it or somebody unmounts it.
    #[arg(long)]
    pub foreground: bool,
}
