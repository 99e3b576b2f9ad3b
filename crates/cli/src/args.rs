//! The command line as clap sees it.
//!
//! Invariant: the work of a command is in its own module; nothing here has an effect.

use crate::after::After;
use crate::keep::Keep;
use crate::size::Size;
use crate::whole::mount::Mount;
use clap::{Args, Parser, Subcommand, ValueEnum};
use holdfast::{Protection, Scheme, Slow};
use holdfast_client::map_record::RecordAt;
use holdfast_client::{MapSettings, TraceFilter};
use std::convert::Infallible;
use std::ffi::OsString;
use std::path::PathBuf;

/// Names the pool of the user who runs programs without naming one.
pub const OWN: &str = "@";

/// A file system and key-value store in user space, at the speed of memory.
#[derive(Debug, Parser)]
#[command(
    name = "holdfast",
    version,
    about = "A file system and key-value store in user space, at the speed of memory",
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
    /// Create, inspect, check, resize and destroy pools.
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Show what happens on a pool, again and again.
    Top(TopArgs),
    /// Show who has which files of a pool open, mapped and locked, and who waits for whom.
    Lsof(LsofArgs),
    /// Show what takes the space of a pool, by directory, keyspace and volume.
    Du(DuArgs),
    /// Run a program with the pool's files under a directory.
    Run(RunArgs),
    /// Run the pool's service in the foreground.
    Serve(ServeArgs),
    /// Journal the dirty state of open files; the service starts this.
    #[command(hide = true)]
    WriteBack {
        /// Remove what has expired instead.
        #[arg(long)]
        expired: bool,
        pool: PathBuf,
    },
    /// Make the calls of another user; the service starts this.
    #[command(hide = true)]
    Proxy {
        /// Whose calls it makes, for those who look at processes.
        #[arg(long)]
        user: u32,
        pool: PathBuf,
    },
    /// Save the pool of a service now and then; the service starts this.
    #[command(hide = true)]
    Keeper(KeeperArgs),
    /// Read and change keys and values of a keyspace.
    Kv(KvArgs),
    /// Create, list and delete snapshots of a whole pool.
    Snapshot(SnapshotArgs),
    /// Limit what users and directories take of a pool.
    Quota(QuotaArgs),
    /// Copy files, directories and keyspaces between pools and the host.
    #[command(override_usage = "holdfast cp [OPTIONS] <SOURCE>... <DESTINATION>")]
    Cp(CpArgs),
    /// Save a pool, or what changed in it, as one stream.
    Save(SaveArgs),
    /// Make a pool from a stream, or continue one with what changed.
    Restore(RestoreArgs),
    /// Save to standard output: `holdfast send A | holdfast receive B`.
    Send(SendArgs),
    /// Restore from standard input.
    Receive(ReceiveArgs),
    /// Create, list, resize, copy and delete volumes, which are block devices.
    Volume(VolumeArgs),
    /// Mappings that programs of `run --map` keep.
    #[command(subcommand)]
    Map(MapCommand),
    /// Export a volume as a block device: NBD, vhost-user, FUSE.
    Export(ExportArgs),
    /// Mount the files of a pool, by FUSE, for programs that `holdfast run` cannot start.
    Mount(Mount),
    /// Unmount the files of a pool.
    Umount(UmountArgs),
    /// Put huge pages under files of the host, so that mapping them costs less.
    Warm(WarmArgs),
    /// Run a benchmark side by side with its peers; without a name, list the benchmarks.
    Bench(BenchArgs),
}

#[derive(Debug, Subcommand)]
pub enum MapCommand {
    /// Have all programs on a pool give up what they keep, each at its next call.
    Drop {
        /// The pool's directory; @ is the user's own pool.
        #[arg(default_value = OWN)]
        pool: PathBuf,
    },
    /// Run a program, and say at its end what its mappings of files cost and what would help.
    Explain(ExplainArgs),
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Run it on this pool [default: without one].
    #[arg(long)]
    pub pool: Option<PathBuf>,
    /// The directory at which the pool's files appear.
    #[arg(long, default_value = "/hf", value_name = "DIR", requires = "pool")]
    pub at: OsString,
    /// Speed its mappings up meanwhile, as `holdfast run --map` does, and say what that did.
    #[arg(
        long,
        value_name = "SETTINGS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    pub map: Option<MapSettings>,
    /// Where it is said [default: standard error].
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Create a pool in a new or empty directory.
    Create(CreateArgs),
    /// Show the state of a pool: its medium, what that promises, space, snapshots, sessions.
    Status {
        /// The pool's directory; @ is the user's own pool.
        #[arg(default_value = OWN)]
        pool: PathBuf,
        /// Do not connect where no service runs, which might have systemd start one.
        #[arg(long, hide = true)]
        unless_idle: bool,
    },
    /// List the user's own pool and all pools on this machine for which somebody listens.
    List,
    /// Check that a pool is consistent; the exit status has the bits of fsck(8).
    Check {
        /// The pool's directory; @ is the user's own pool.
        #[arg(default_value = OWN)]
        pool: PathBuf,
        /// Give up journaled changes that cannot be read, and apply all others.
        #[arg(long)]
        accept_loss: bool,
    },
    /// Tell which volume or file has a block of the pool's data, and where in it.
    Block {
        /// The pool's directory; @ is the user's own pool.
        pool: PathBuf,
        /// As a report of a stray store names it.
        number: u64,
    },
    /// Remove a pool and everything in it.
    Destroy {
        /// The pool's directory; @ is the user's own pool.
        pool: PathBuf,
    },
    /// Make a pool larger, also while it is in use, or smaller while nobody uses it; what is in the
    /// way of that is moved, but for what snapshots have.
    Resize {
        /// The pool's directory; @ is the user's own pool.
        pool: PathBuf,
        /// Bytes of file data, with K, M, G or T.
        size: Size,
    },
}

#[derive(Debug, Args)]
pub struct WarmArgs {
    /// Files on tmpfs, or on a file system of a disk that keeps large folios (ext4, XFS).
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// The pool's directory; @ is the user's own pool.
    #[arg(default_value = OWN)]
    pub pool: PathBuf,
    /// Seconds between two looks.
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub interval: f64,
    /// End after so many looks [default: never].
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Print metrics for Prometheus once, in its text format.
    #[arg(long, conflicts_with = "count")]
    pub metrics: bool,
}

#[derive(Debug, Args)]
pub struct LsofArgs {
    /// The pool's directory; @ is the user's own pool.
    #[arg(default_value = OWN)]
    pub pool: PathBuf,
    /// Only files with these paths, from the pool's root, or below them; the exit status is 1 if
    /// nobody has any of them.
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub struct DuArgs {
    /// A pool's directory, or a path below it that is in the pool; @ is the user's own pool.
    #[arg(default_value = OWN, value_name = "POOL[/PATH]")]
    pub pool: Vec<PathBuf>,
    /// Only the sum for each pool or path that is named.
    #[arg(short, long, conflicts_with_all = ["max_depth", "all"])]
    pub summarize: bool,
    /// Only what is at most so many directories below what is named.
    #[arg(short = 'd', long, value_name = "N")]
    pub max_depth: Option<usize>,
    /// Also files that are no volumes.
    #[arg(short, long)]
    pub all: bool,
    /// How long files and values are, holes and all, instead of what they take.
    #[arg(long)]
    pub apparent_size: bool,
    /// As a snapshot has it; what its files share with others counts as well.
    #[arg(long, value_name = "NAME")]
    pub snapshot: Option<String>,
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The pool's directory; @ is the user's own pool.
    pub pool: PathBuf,
    /// Bytes of file data, with K, M, G or T [default: half of the free space].
    #[arg(long)]
    pub size: Option<Size>,
    /// A device DAX for the segments. Not supported yet: refused.
    #[arg(long, value_name = "DAX", hide = true)]
    pub device: Option<PathBuf>,
    /// The kind of medium to require.
    #[arg(long, value_enum, default_value = "auto")]
    pub medium: MediumArg,
    /// When changes are durable and what is atomic.
    #[arg(long, value_enum, default_value = "posix")]
    pub consistency: ConsistencyArg,
    /// Root is nobody in the pool (user 65534), unless it becomes the owner.
    #[arg(long)]
    pub root_squash: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MediumArg {
    /// Whatever the directory is on.
    Auto,
    /// A DAX file system.
    Dax,
    /// Any file system; what is promised still depends on the detected medium.
    File,
    /// tmpfs or hugetlbfs.
    Memory,
    /// tmpfs or hugetlbfs, used as DAX is, to try that without such hardware.
    DaxTest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConsistencyArg {
    /// Metadata operations are atomic and ordered; durable at fsync.
    Posix,
    /// Durable when a call returns.
    Sync,
    /// As sync, and each write is atomic.
    Strict,
}

/// In place of a file: standard error.
pub const STANDARD_ERROR: &str = "-";

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The pool [default: the user's own, created on first use].
    #[arg(long)]
    pub pool: Option<PathBuf>,
    /// The directory at which the pool's files appear; it need not exist.
    #[arg(long, default_value = "/hf", value_name = "DIR")]
    pub at: OsString,
    /// When changes of this session are durable, and what is atomic [default: the pool's].
    #[arg(long, value_enum)]
    pub consistency: Option<ConsistencyArg>,
    /// Show a snapshot instead of the present.
    #[arg(long, value_name = "NAME")]
    pub snapshot: Option<String>,
    /// As if the pool lay on slower memory: pcm, memristor, stt-ram, nand, aerie, or settings such
    /// as rdsx=2,wrsx=8 [default: what HOLDFAST_SLOW says, or none].
    #[arg(long, value_name = "MEDIUM")]
    pub slow: Option<Slow>,
    /// Speed up mappings of files, above all outside the pool, with settings such as
    /// cache=400M,entries=1000,idle=30s or without.
    #[arg(
        long,
        value_name = "SETTINGS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    pub map: Option<MapSettings>,
    /// Without a pool: only mappings of files are sped up, and nothing is left behind.
    #[arg(
        long,
        requires = "map",
        conflicts_with_all = ["pool", "at", "consistency", "snapshot", "slow"]
    )]
    pub no_pool: bool,
    /// Where what mappings cost is counted, for `map explain`.
    #[arg(skip)]
    pub record: Option<RecordAt>,
    /// Programs that give up root without executing another one keep the pool mapped: as fast as
    /// root's, and held to file permissions only by themselves.
    #[arg(long, conflicts_with = "no_pool")]
    pub keep_mapped: bool,
    /// Write down the calls that Holdfast serves and refuses, as strace -f -ttt -T does, in FILE
    /// or, without one, on standard error.
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = STANDARD_ERROR,
        conflicts_with = "no_pool"
    )]
    pub trace: Option<PathBuf>,
    /// Only such calls: names, %file and %desc, or with ! before them all others; failed, refused;
    /// and with passed also those that are left to the kernel.
    #[arg(long, value_name = "WORDS", requires = "trace")]
    pub trace_filter: Option<TraceFilter>,
    /// Write to FILE how many calls were served, passed and refused, as JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The pool's directory; @ is the user's own pool.
    #[arg(required_unless_present = "config")]
    pub pool: Option<PathBuf>,
    #[command(flatten)]
    pub kept: KeptArgs,
    /// Read from this file which pool, whose it is, where it is kept, and how it is made if it is
    /// not there; holdfast.toml(5) says more.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pool", "keep", "every", "ending"])]
    pub config: Option<PathBuf>,
    /// Exit when the last client leaves, and report readiness on standard output.
    #[arg(long, hide = true)]
    pub ending: bool,
    /// Run the service in a process that is not a child of the caller.
    #[arg(long, hide = true, requires = "ending")]
    pub apart: bool,
}

/// A pool that outlives its memory.
#[derive(Debug, Args)]
pub struct KeptArgs {
    /// Save the pool in this file when the service ends, and restore it from there when there is no
    /// pool at its start.
    #[arg(long, value_name = "FILE", conflicts_with = "ending")]
    pub keep: Option<PathBuf>,
    /// Save it also while it runs, each time after so long, such as `10m` or `1h`.
    #[arg(long, value_name = "TIME", requires = "keep")]
    pub every: Option<humantime::Duration>,
}

#[derive(Debug, Args)]
pub struct KeeperArgs {
    /// Seconds; 0 is never.
    #[arg(long)]
    pub every: u64,
    pub pool: PathBuf,
    pub file: PathBuf,
}

#[derive(Debug, Args)]
pub struct KvArgs {
    /// The pool's directory; @ is the user's own pool.
    pub pool: PathBuf,
    /// The keyspace, which put and load create if needed; without one, list all keyspaces. Write
    /// `/NAME` for a keyspace whose name is that of a command.
    #[arg(value_parser = keyspace)]
    pub keyspace: Option<String>,
    /// Read from a snapshot (get, scan, count, dump).
    #[arg(long, value_name = "NAME", global = true)]
    pub snapshot: Option<String>,
    /// As if the pool lay on slower memory; see `holdfast run --help`.
    #[arg(long, value_name = "MEDIUM", global = true)]
    pub slow: Option<Slow>,
    #[command(subcommand)]
    pub command: Option<KvCommand>,
}

fn keyspace(word: &str) -> Result<String, Infallible> {
    Ok(word.strip_prefix('/').unwrap_or(word).into())
}

/// A condition on the expiry of a key.
#[derive(Clone, Copy, Debug, Args)]
pub struct IfExpires {
    /// Only if the key expires, or expires at this time in nanoseconds since 1970, as `expire`
    /// prints it; with exit status 1 if it does not.
    #[arg(
        long = "if-expires",
        value_name = "NANOSECONDS",
        num_args = 0..=1,
        require_equals = true,
        value_parser = clap::value_parser!(i64).range(1..),
    )]
    at: Option<Option<i64>>,
}

impl IfExpires {
    /// `None`: there is no condition; `Some(None)`: the key is to expire at some time.
    pub fn at(self) -> Option<Option<i64>> {
        self.at
    }
}

#[derive(Debug, Subcommand)]
pub enum KvCommand {
    /// Write a value to standard output, unchanged.
    #[command(override_usage = "holdfast kv <POOL> <KEYSPACE> get [OPTIONS] <KEY>")]
    Get {
        key: OsString,
        #[command(flatten)]
        words: Words,
    },
    /// Set a key to a value, durably.
    #[command(override_usage = "holdfast kv <POOL> <KEYSPACE> put [OPTIONS] <KEY> [VALUE]")]
    Put {
        key: OsString,
        /// The value; `-` or no value reads it from standard input.
        #[arg(allow_negative_numbers = true)]
        value: Option<OsString>,
        /// Only if the key has this value now; with exit status 1 if it has not.
        #[arg(long = "if", value_name = "VALUE", conflicts_with_all = ["if_absent", "at"])]
        expected: Option<OsString>,
        /// Only if the key has no value now; with exit status 1 if it has one.
        #[arg(long, conflicts_with = "at")]
        if_absent: bool,
        #[command(flatten)]
        only: IfExpires,
        /// Let the key expire so long after now: a number and ms, s, m, h or d.
        #[arg(long, value_name = "TIME")]
        expires: Option<After>,
        #[command(flatten)]
        words: Words,
    },
    /// Say anew when a key expires, durably; without a time, print when it does, in nanoseconds
    /// since 1970.
    #[command(override_usage = "holdfast kv <POOL> <KEYSPACE> expire [OPTIONS] <KEY> [TIME]")]
    Expire {
        key: OsString,
        /// A number and ms, s, m, h or d, from now on; or never.
        #[arg(value_name = "TIME")]
        after: Option<After>,
        #[command(flatten)]
        only: IfExpires,
        #[command(flatten)]
        words: Words,
    },
    /// Remove a key, durably; a missing key is not an error.
    #[command(override_usage = "holdfast kv <POOL> <KEYSPACE> erase [OPTIONS] <KEY>")]
    Erase {
        key: OsString,
        /// Only if the key has this value now; with exit status 1 if it has not.
        #[arg(long = "if", value_name = "VALUE", conflicts_with = "at")]
        expected: Option<OsString>,
        #[command(flatten)]
        only: IfExpires,
        #[command(flatten)]
        words: Words,
    },
    /// List keys and values in order, as lines or JSON.
    #[command(override_usage = "holdfast kv <POOL> <KEYSPACE> scan [OPTIONS]")]
    Scan(ScanArgs),
    /// Print how many keys there are, exactly; looks at each of them.
    #[command(override_usage = "holdfast kv <POOL> <KEYSPACE> count [OPTIONS]")]
    Count,
    /// Remove the keyspace with all its keys at once, durably.
    #[command(override_usage = "holdfast kv <POOL> <KEYSPACE> drop [OPTIONS]")]
    Drop,
    /// Give the keyspace another name, durably.
    #[command(override_usage = "holdfast kv <POOL> <KEYSPACE> rename [OPTIONS] <NEW>")]
    Rename {
        new: String,
        /// Drop the keyspace that has that name, at the same moment.
        #[arg(long)]
        replace: bool,
    },
    /// Put all pairs from standard input; without a keyspace, of all keyspaces, as `dump` without
    /// one writes them.
    #[command(override_usage = "holdfast kv <POOL> [KEYSPACE] load [OPTIONS]")]
    Load {
        #[arg(long, value_enum, default_value = "lines")]
        format: LoadFormat,
    },
    /// Write all pairs to standard output; without a keyspace, those of all of them, at one moment.
    #[command(override_usage = "holdfast kv <POOL> [KEYSPACE] dump [OPTIONS]")]
    Dump {
        #[arg(long, value_enum, default_value = "lines")]
        format: DumpFormat,
    },
}

#[derive(Clone, Copy, Debug, Args)]
pub struct Words {
    /// Keys and values on the command line are escaped, as `scan` prints them.
    #[arg(short, long)]
    pub escaped: bool,
}

#[derive(Debug, Args)]
pub struct ScanArgs {
    /// Only keys with this prefix.
    #[arg(long, value_name = "P", conflicts_with_all = ["from", "to"])]
    pub prefix: Option<OsString>,
    /// Only keys from this one on.
    #[arg(long, value_name = "K")]
    pub from: Option<OsString>,
    /// Only keys before this one.
    #[arg(long, value_name = "K")]
    pub to: Option<OsString>,
    /// At most this many pairs.
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
    /// The pool's directory; @ is the user's own pool.
    pub pool: PathBuf,
    #[command(subcommand)]
    pub command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Keep the present state of the pool under a name.
    Create { name: String },
    /// List the snapshots, oldest first.
    List,
    /// Delete a snapshot and free its space.
    Delete { name: String },
    /// Call a snapshot something else.
    Rename { name: String, to: String },
    /// Make the pool again what a snapshot has; nobody may use the pool meanwhile.
    Rollback {
        name: String,
        /// Delete the snapshots that are newer, which are in the way.
        #[arg(long)]
        delete_newer: bool,
    },
    /// Names and keys that differ between a snapshot and a later one, or the present.
    Diff { from: String, to: Option<String> },
    /// Delete all snapshots but the newest of each stretch of time.
    Thin {
        /// Which to keep, such as `24h,7d,4w`: the newest of each of the last 24 hours, 7 days and
        /// 4 weeks. The newest of all is always kept.
        #[arg(long)]
        keep: Keep,
        /// Only these: their names begin so.
        #[arg(long, default_value = "")]
        prefix: String,
        /// Say what would be deleted.
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Args)]
pub struct QuotaArgs {
    /// The pool's directory; @ is the user's own pool.
    pub pool: PathBuf,
    #[command(subcommand)]
    pub command: QuotaCommand,
}

#[derive(Debug, Subcommand)]
pub enum QuotaCommand {
    /// Limit a user, a directory or a keyspace, in place of an earlier quota.
    Set {
        #[command(flatten)]
        of: QuotaOfArgs,
        /// Bytes that may be taken, with K, M, G or T.
        #[arg(required_unless_present = "files")]
        size: Option<Size>,
        /// How many files, directories, keys and other objects there may be.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        files: Option<u64>,
    },
    /// List the quotas, and how much of them is taken.
    List,
    /// Take a quota away.
    Remove {
        #[command(flatten)]
        of: QuotaOfArgs,
    },
}

/// Whom a quota limits.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct QuotaOfArgs {
    /// A user, by name or number: all that the user owns in the pool.
    #[arg(long, value_name = "NAME|UID")]
    pub user: Option<String>,
    /// A directory of the pool, by its path from the pool's root: all that is below it.
    #[arg(long, value_name = "PATH")]
    pub directory: Option<OsString>,
    /// A keyspace, by its name: its keys and values.
    #[arg(long, value_name = "NAME")]
    pub keyspace: Option<OsString>,
}

#[derive(Debug, Args)]
pub struct CpArgs {
    /// What to copy, and where to: POOL:PATH is a path from the root of a pool, @:PATH one in the
    /// user's own pool, - is standard input or output, and all else is a path of the host; write
    /// ./a:b for one with a colon.
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    pub paths: Vec<OsString>,
    /// Copy directories with all in them, and links and special files as what they are.
    #[arg(short, long)]
    pub recursive: bool,
    /// As --recursive, and keep owners, modes, times, attributes, access control lists and hard
    /// links.
    #[arg(short, long)]
    pub archive: bool,
    /// Leave files and keys alone that are there already.
    #[arg(short, long)]
    pub no_clobber: bool,
    /// Make the directory that is made in a pool's root a keyspace: files in it become values.
    #[arg(short, long)]
    pub keyspace: bool,
    /// Copy from pools what a snapshot has.
    #[arg(long, value_name = "NAME")]
    pub snapshot: Option<String>,
}

impl CpArgs {
    pub fn is_recursive(&self) -> bool {
        self.recursive || self.archive
    }
}

#[derive(Debug, Args)]
pub struct SaveArgs {
    #[command(flatten)]
    pub what: SavedArgs,
    /// The file, which is replaced once everything is in it; `-` is standard output.
    pub file: PathBuf,
    /// Begin anew, and not where a save to the same file was interrupted.
    #[arg(long)]
    pub anew: bool,
}

#[derive(Debug, Args)]
pub struct SendArgs {
    #[command(flatten)]
    pub what: SavedArgs,
}

/// What is saved.
#[derive(Debug, Args)]
pub struct SavedArgs {
    /// The pool's directory; @ is the user's own pool.
    pub pool: PathBuf,
    /// This snapshot alone, instead of all snapshots and the present.
    #[arg(long, value_name = "NAME")]
    pub snapshot: Option<String>,
    /// Only what changed since this snapshot, with all snapshots since.
    #[arg(long, value_name = "NAME")]
    pub since: Option<String>,
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The file; `-` is standard input.
    pub file: PathBuf,
    #[command(flatten)]
    pub to: RestoredArgs,
}

#[derive(Debug, Args)]
pub struct ReceiveArgs {
    #[command(flatten)]
    pub to: RestoredArgs,
}

/// Where it goes.
#[derive(Debug, Args)]
pub struct RestoredArgs {
    /// A new or empty directory, or, for a stream of `save --since`, a pool that nobody uses; @ is
    /// the user's own pool.
    pub pool: PathBuf,
    /// Room for data in a new pool [default: that of the pool that was saved].
    #[arg(long)]
    pub size: Option<Size>,
    /// What the directory of a new pool must lie on.
    #[arg(long, value_enum, default_value = "auto")]
    pub medium: MediumArg,
    /// Make a new pool anew, and do not go on where a restore into the same directory was
    /// interrupted.
    #[arg(long)]
    pub anew: bool,
}

#[derive(Debug, Args)]
pub struct VolumeArgs {
    /// The pool's directory; @ is the user's own pool.
    pub pool: PathBuf,
    /// As if the pool lay on slower memory; see `holdfast run --help`.
    #[arg(long, value_name = "MEDIUM", global = true)]
    pub slow: Option<Slow>,
    #[command(subcommand)]
    pub command: VolumeCommand,
}

#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Create a volume, which takes no space (or, with --atomic, 1 MiB) until something is written
    /// to it.
    Create {
        /// A path below the pool's root.
        name: String,
        /// Bytes, with K, M, G or T.
        #[arg(long)]
        size: Size,
        #[command(flatten)]
        like: ShapeArgs,
    },
    /// Change what a volume keeps for those who export it from now on.
    Set {
        name: String,
        #[command(flatten)]
        writing: WritingArgs,
    },
    /// List the volumes.
    List,
    /// Give a volume that is not in use another size.
    Resize {
        name: String,
        /// Bytes, with K, M, G or T.
        #[arg(long)]
        size: Size,
        /// Lose what a smaller volume has no room for.
        #[arg(long)]
        shrink: bool,
    },
    /// Give a volume that is not in use another name.
    Rename { from: String, to: String },
    /// Create a volume with the content of another one.
    Copy {
        from: String,
        to: String,
        /// Its content in a snapshot.
        #[arg(long, value_name = "NAME")]
        snapshot: Option<String>,
    },
    /// Create a volume with the content of a disk image, by qemu-img.
    Import {
        name: String,
        /// A file of any format that qemu-img knows.
        image: PathBuf,
        /// Its format [default: what qemu-img takes it for].
        #[arg(long)]
        format: Option<String>,
        #[command(flatten)]
        like: ShapeArgs,
    },
    /// Write the content of a volume that is not in use to a disk image, by qemu-img.
    Image {
        name: String,
        /// The file, which is replaced.
        image: PathBuf,
        #[arg(long, default_value = "qcow2")]
        format: String,
    },
    /// Look at what makes the sectors of a volume that is not in use atomic.
    Check { name: String },
    /// Delete a volume that is not in use, and free its space.
    Delete { name: String },
    /// Make a stray store into a volume that is not in use, and see whether it is stopped.
    Poke {
        name: String,
        /// What is to stop it [default: what the volume keeps, else auto].
        #[arg(long, value_name = "MODE", value_parser = protection)]
        protect: Option<Protection>,
        /// In this process, which that may end.
        #[arg(long, hide = true)]
        here: bool,
    },
}

/// How a volume is written to by those who export it.
#[derive(Clone, Copy, Debug, Args)]
pub struct WritingArgs {
    /// What keeps stray stores from it: none, pt, pt-batch, pmap, pmap-cache, fd, pkey, or auto,
    /// the best that the machine has.
    #[arg(long, value_name = "MODE", value_parser = protection)]
    pub protect: Option<Protection>,
    /// How bytes are written: nt, clwb, clflushopt, clflush, wb, fd, or auto, as the medium needs.
    #[arg(long, value_name = "SCHEME", value_parser = scheme)]
    pub persist: Option<Scheme>,
}

fn scheme(word: &str) -> Result<Scheme, String> {
    let names = || Scheme::ALL.map(Scheme::name).join(", ");
    Scheme::named(word).ok_or_else(|| format!("it is one of {}", names()))
}

/// By its name.
fn protection(word: &str) -> Result<Protection, String> {
    let names = || Protection::ALL.map(Protection::name).join(", ");
    Protection::named(word).ok_or_else(|| format!("it is one of {}", names()))
}

/// What a new volume is like.
#[derive(Clone, Copy, Debug, Args)]
pub struct ShapeArgs {
    /// Bytes of a sector, the unit of requests.
    #[arg(long, value_enum, default_value = "512")]
    pub sector: SectorArg,
    /// Write each sector as a whole or not at all, whatever interrupts it, by a block translation
    /// table; a write is durable when it is done.
    #[arg(long)]
    pub atomic: bool,
    /// Keep a checksum of each sector, too, so that other bytes than were written are an error; its
    /// sectors are atomic.
    #[arg(long)]
    pub checksum: bool,
    #[command(flatten)]
    pub writing: WritingArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SectorArg {
    /// For all programs.
    #[value(name = "512")]
    Small,
    /// For those that know large sectors.
    #[value(name = "4096")]
    Large,
}

#[derive(Debug, Args)]
pub struct UmountArgs {
    /// The directory at which the files are mounted.
    pub dir: PathBuf,
    /// Take them away from there even if they are in use; they are unmounted when nobody uses them
    /// any more.
    #[arg(long)]
    pub lazy: bool,
}

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct ExportArgs {
    /// What to export, and how; `holdfast export --help` says more.
    #[arg(
        value_name = "POOL",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub words: Vec<OsString>,
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
