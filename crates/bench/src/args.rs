//! The command line as clap sees it.
//!
//! Invariant: it needs nothing but `Size`, so that the manual is made from it as well.

use crate::size::Size;
use clap::Parser;
use std::path::PathBuf;

/// Run a benchmark side by side with its peers; without a name, list the benchmarks.
#[derive(Debug, Parser)]
#[command(name = "holdfast bench", bin_name = "holdfast bench", version)]
pub struct Args {
    /// Print data as JSON.
    #[arg(long)]
    pub json: bool,
    pub name: Option<String>,
    /// The directory in which `disk` measures, on an ordinary file system.
    pub dir: Option<PathBuf>,
    /// How often each peer is measured; 0 means as often as the benchmark does by default.
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
    /// `block`: programs on file systems over a volume, in place of requests.
    #[arg(long = "macro")]
    pub programs: bool,
    /// Bytes of the largest file of `disk`, with K, M, G or T.
    #[arg(long, value_name = "SIZE", default_value = "10G")]
    pub large: Size,
    /// The largest file of `disk` has no holes.
    #[arg(long)]
    pub dense: bool,
}
