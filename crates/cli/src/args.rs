//! The command line as clap sees it.
//!
//! Invariant: what a command does is in its own module; nothing here has an effect.

use crate::size::Size;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Storage at the speed of memory, in user space.
#[derive(Debug, Parser)]
#[command(
    name = "holdfast",
    version,
    about = "Storage at the speed of memory, in user space",
    disable_help_subcommand = true
)]
pub struct Cli {
    /// Print data as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make, inspect, check and destroy pools.
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Run a program with the pool's files under a directory.
    Run(RunArgs),
    /// Run the pool's service in the foreground.
    Serve(ServeArgs),
    /// Measure, side by side with peers; without a name, list what there is.
    Bench(BenchArgs),
}

#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Make a pool in a new or empty directory.
    Create(CreateArgs),
    /// Say how a pool is doing.
    Status { pool: PathBuf },
    /// Re-derive every invariant; exits with the bits of fsck(8).
    Check { pool: PathBuf },
    /// Remove a pool and all that is in it.
    Destroy { pool: PathBuf },
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    pub pool: PathBuf,
    /// Bytes of file data, with K, M, G or T; half of what is free unless given.
    #[arg(long)]
    pub size: Option<Size>,
    /// A device DAX to keep the segments on.
    #[arg(long, value_name = "DAX")]
    pub device: Option<PathBuf>,
    /// What the pool is kept on.
    #[arg(long, value_enum, default_value = "auto")]
    pub medium: MediumArg,
    /// When changes are durable and what is atomic.
    #[arg(long, value_enum, default_value = "posix")]
    pub consistency: ConsistencyArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MediumArg {
    /// What is found at the directory.
    Auto,
    /// A DAX file system.
    Dax,
    /// An ordinary file system.
    File,
    /// tmpfs or hugetlbfs.
    Memory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConsistencyArg {
    /// Metadata operations are atomic and ordered; durable at fsync.
    Posix,
    /// Durable when a call returns.
    Sync,
    /// And each write is atomic.
    Strict,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The pool; without it, the user's own, made on first use.
    #[arg(long)]
    pub pool: Option<PathBuf>,
    /// Where the pool's files appear; need not exist.
    #[arg(long, default_value = "/hf", value_name = "DIR")]
    pub at: OsString,
    /// When changes of this session are durable.
    #[arg(long, value_enum)]
    pub consistency: Option<ConsistencyArg>,
    /// Show a snapshot instead of the present.
    #[arg(long, value_name = "NAME")]
    pub snapshot: Option<String>,
    /// Speed up mappings of files that are not in the pool.
    #[arg(long)]
    pub map: bool,
    /// Write how many calls were served, passed and refused, as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    pub pool: PathBuf,
    /// Go to the background's ways: end with the last user, report readiness on stdout.
    #[arg(long, hide = true)]
    pub ending: bool,
    /// Leave the service to a process that is no child of whoever called.
    #[arg(long, hide = true, requires = "ending")]
    pub apart: bool,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    pub name: Option<String>,
    /// How often each peer is measured; 0: as often as the benchmark thinks right.
    #[arg(long, default_value_t = 0)]
    pub rounds: usize,
    /// A smoke test: small files, few operations.
    #[arg(long)]
    pub quick: bool,
    /// Only rows with one of these in their names.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub rows: Vec<String>,
    /// Only peers with one of these in their names, and plain tmpfs.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub peers: Vec<String>,
    /// Write plots to this directory.
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
}
