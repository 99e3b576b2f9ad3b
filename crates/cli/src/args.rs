//! The command line as clap sees it.
//!
//! Invariant: what a command does is in its own module; nothing here has an effect.

use crate::size::Size;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::convert::Infallible;
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
    /// Journal what session memory alone has of open files: the service starts it.
    #[command(hide = true)]
    WriteBack { pool: PathBuf },
    /// Read and change keys and values of a keyspace.
    Kv(KvArgs),
    /// Make, list and delete snapshots of a whole pool.
    Snapshot(SnapshotArgs),
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
    Check {
        pool: PathBuf,
        /// Give up changes in the journal that cannot be read, and apply all others.
        #[arg(long)]
        accept_loss: bool,
    },
    /// Remove a pool and all that is in it.
    Destroy { pool: PathBuf },
    /// Make a pool that nobody uses larger or smaller.
    Resize {
        pool: PathBuf,
        /// Bytes of file data, with K, M, G or T.
        size: Size,
    },
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    pub pool: PathBuf,
    /// Bytes of file data, with K, M, G or T; half of what is free unless given.
    #[arg(long)]
    pub size: Option<Size>,
    /// A device DAX to keep the segments on. Not there yet: refused.
    #[arg(long, value_name = "DAX", hide = true)]
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
    /// Any file system; what is found at the directory counts.
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
    /// Speed up mappings of files that are not in the pool. Not there yet: refused.
    #[arg(long, hide = true)]
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
pub struct KvArgs {
    pub pool: PathBuf,
    /// The keyspace, which put and load make when it is not there; without one, list them all. One
    /// that is called like a command is written `/NAME`, as it is found in the pool.
    #[arg(value_parser = keyspace)]
    pub keyspace: Option<String>,
    /// Read what a snapshot holds (get, scan, dump).
    #[arg(long, value_name = "NAME", global = true)]
    pub snapshot: Option<String>,
    #[command(subcommand)]
    pub command: Option<KvCommand>,
}

fn keyspace(word: &str) -> Result<String, Infallible> {
    Ok(word.strip_prefix('/').unwrap_or(word).into())
}

#[derive(Debug, Subcommand)]
pub enum KvCommand {
    /// Write a value to standard output, byte by byte as it is.
    Get {
        key: OsString,
        #[command(flatten)]
        words: Words,
    },
    /// Give a key its value, durably.
    Put {
        key: OsString,
        /// The value; `-` or nothing: what is on standard input.
        #[arg(allow_negative_numbers = true)]
        value: Option<OsString>,
        #[command(flatten)]
        words: Words,
    },
    /// Take a key away, durably; it need not be there.
    Erase {
        key: OsString,
        #[command(flatten)]
        words: Words,
    },
    /// List keys and values in order, as lines or JSON.
    Scan(ScanArgs),
    /// Put all pairs that stand on standard input.
    Load {
        #[arg(long, value_enum, default_value = "lines")]
        format: LoadFormat,
    },
    /// Write all pairs to standard output.
    Dump {
        #[arg(long, value_enum, default_value = "lines")]
        format: DumpFormat,
    },
}

#[derive(Clone, Copy, Debug, Args)]
pub struct Words {
    /// Keys and values on the command line are escaped, as scan prints them.
    #[arg(short, long)]
    pub escaped: bool,
}

#[derive(Debug, Args)]
pub struct ScanArgs {
    /// Only keys that begin so.
    #[arg(long, value_name = "P", conflicts_with_all = ["from", "to"])]
    pub prefix: Option<OsString>,
    /// Only keys from this one on.
    #[arg(long, value_name = "K")]
    pub from: Option<OsString>,
    /// Only keys before this one.
    #[arg(long, value_name = "K")]
    pub to: Option<OsString>,
    /// No more pairs than so many.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// From the last key to the first.
    #[arg(long)]
    pub reverse: bool,
    #[command(flatten)]
    pub words: Words,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoadFormat {
    /// A pair per line: key, tab, value, with escapes.
    Lines,
    /// What mdb_dump writes, with or without -p.
    Mdb,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DumpFormat {
    /// A pair per line: key, tab, value, with escapes.
    Lines,
    /// For mdb_load: as mdb_dump writes it.
    Mdb,
    /// For mdb_load: as mdb_dump -p writes it.
    MdbPrint,
}

#[derive(Debug, Args)]
pub struct SnapshotArgs {
    pub pool: PathBuf,
    #[command(subcommand)]
    pub command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Keep the pool as it is now under a name.
    Create { name: String },
    /// List the snapshots, oldest first.
    List,
    /// Forget a snapshot and give its space back.
    Delete { name: String },
}

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct BenchArgs {
    /// What to measure, and how; `holdfast bench --help` says more.
    #[arg(
        value_name = "NAME",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub words: Vec<OsString>,
}
