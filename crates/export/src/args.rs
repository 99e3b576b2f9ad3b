//! The command line as clap sees it.

use crate::vhost::QUEUES_MAX;
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
    /// The most queues of a virtual machine [default: one for each processor here, at least 4].
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUES_MAX)))]
    pub queues: Option<u16>,
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
    /// Serve it to a virtual machine at the socket PATH, as vhost-user-blk.
    #[arg(long, value_name = "PATH")]
    pub vhost_user: Option<PathBuf>,
}
