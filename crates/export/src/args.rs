//! The command line as clap sees it.

use clap::{Args, Parser};
use std::path::PathBuf;

/// Export a volume as a block device, in the foreground, until a signal ends it.
#[derive(Debug, Parser)]
#[command(name = "holdfast export", bin_name = "holdfast export", version)]
pub struct Export {
    pub pool: PathBuf,
    pub volume: String,
    #[command(flatten)]
    pub face: Face,
    /// Clients cannot write; others may have the volume open for writing.
    #[arg(long)]
    pub read_only: bool,
    /// Export the volume as it is in a snapshot; implies --read-only.
    #[arg(long, value_name = "NAME")]
    pub snapshot: Option<String>,
}

/// How clients reach it.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Face {
    /// Show it as FILE, by FUSE: for a loop device, or for programs.
    #[arg(long, value_name = "FILE")]
    pub fuse: Option<PathBuf>,
}
