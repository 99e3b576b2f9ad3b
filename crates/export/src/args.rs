//! The command line as clap sees it.
//!
//! Invariant: it needs nothing else of this program, so that the manual is made from it as well.

use clap::{Args, Parser};
use holdfast::{Barrier, Protection, Scheme, Slow};
use std::path::PathBuf;

/// A thread's queues are a word of bits.
pub const QUEUES_MAX: u16 = 64;

/// Export a volume as a block device, in the foreground, until a signal ends it.
#[derive(Debug, Parser)]
#[command(name = "holdfast export", bin_name = "holdfast export", version)]
pub struct Export {
    /// The pool's directory; @ is the user's own pool.
    pub pool: PathBuf,
    pub volume: String,
    #[command(flatten)]
    pub face: Face,
    /// The most queues of a virtual machine [default: one for each processor here, at least 4].
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUES_MAX)))]
    pub queues: Option<u16>,
    /// What keeps stray stores of the export from the volume: none, pt, pt-batch, pmap, pmap-cache,
    /// fd, pkey, or auto, the best that this machine has [default: what the volume keeps, else
    /// auto].
    #[arg(long, value_name = "MODE", value_parser = protection)]
    pub protect: Option<Protection>,
    /// How bytes are written: nt, clwb, clflushopt, clflush, wb, fd, or auto, as the medium needs
    /// [default: what the volume keeps, else auto].
    #[arg(long, value_name = "SCHEME", value_parser = scheme)]
    pub persist: Option<Scheme>,
    /// What a flush does to writes at the same time: plain, nothing; strict, it waits for them, and
    /// they for it.
    #[arg(long, value_name = "MODE", default_value = "plain", value_parser = barrier)]
    pub barrier: Barrier,
    /// Read each write back, and fail those that are not there as they were written.
    #[arg(long)]
    pub verify: bool,
    /// Write only the lines of 64 bytes that change.
    #[arg(long)]
    pub sub_block: bool,
    /// As if the pool lay on slower memory: pcm, memristor, stt-ram, nand, aerie, or settings such
    /// as rdsx=2,wrsx=8 [default: what HOLDFAST_SLOW says, or none].
    #[arg(long, value_name = "MEDIUM")]
    pub slow: Option<Slow>,
    /// Clients cannot write; others may have the volume open for writing.
    #[arg(long)]
    pub read_only: bool,
    /// Export the volume as it is in a snapshot; implies --read-only.
    #[arg(long, value_name = "NAME")]
    pub snapshot: Option<String>,
}

fn protection(word: &str) -> Result<Protection, String> {
    let names = || Protection::ALL.map(Protection::name).join(", ");
    Protection::named(word).ok_or_else(|| format!("it is one of {}", names()))
}

fn scheme(word: &str) -> Result<Scheme, String> {
    let names = || Scheme::ALL.map(Scheme::name).join(", ");
    Scheme::named(word).ok_or_else(|| format!("it is one of {}", names()))
}

fn barrier(word: &str) -> Result<Barrier, String> {
    let names = || Barrier::ALL.map(Barrier::name).join(", ");
    Barrier::named(word).ok_or_else(|| format!("it is one of {}", names()))
}

/// How clients reach it.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Face {
    /// As a network block device: unix:PATH or HOST:PORT.
    #[arg(long, value_name = "ADDRESS")]
    pub nbd: Option<String>,
    /// Show it as FILE, by FUSE: for a loop device, or for programs.
    #[arg(long, value_name = "FILE")]
    pub fuse: Option<PathBuf>,
    /// Serve it to a virtual machine at the socket PATH, as vhost-user-blk.
    #[arg(long, value_name = "PATH")]
    pub vhost_user: Option<PathBuf>,
}
