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
    /// As a network block device: unix:PATH or HOST:PORT.
    #[arg(long, value_name = "ADDRESS")]
    pub nbd: Option<String>,
}
