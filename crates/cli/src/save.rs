//! `holdfast save` and `send`: a pool as a stream.
//!
//! Invariants:
//!  * What is saved are snapshots: the present is one, too, which is there only meanwhile. Each is
//!    kept from being deleted while it is read.
//!  * The file has its name only when everything is in it, durably.
//!  * What a killed save left of the file, and its snapshot, are gone on with if both are there: of
//!    the file only what holds the same as would be written.

use crate::args::SavedArgs;
use crate::failure::{self, Failure, printed};
use crate::json::Json;
use crate::kv::open_pool;
use crate::owner;
use crate::progress::Line;
use crate::size::Size;
use crate::states::{Present, Segments, TEMPORARY, find, name_for, remove_left_over};
use holdfast::{Pool, View};
use holdfast_pool::Reader;
use holdfast_pool::layout::name_seed;
use holdfast_pool::snapshot::{self, Snapshot};
use holdfast_stream::{Begun, ChunkWriter, Error, Head, Progress, Source, State, Stored};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

/// Permissions of a new file, less the umask.
const MODE: u32 = 0o666;

/// A file that a pool is saved in.
pub struct Destination<'f> {
    pub file: &'f Path,
    /// Permissions, less the umask.
    pub mode: u32,
    /// What is in it already, as `Segments::mark` tells: that is not written again.
    pub known: Option<u64>,
    /// Go on where a save was interrupted.
    pub goes_on: bool,
}

/// How a stream is written.
#[derive(Default)]
struct Manner {
    known: Option<u64>,
    /// What the snapshot of the present is called meanwhile.
    name: Option<String>,
    /// There is something with which it may go on.
    goes_on: bool,
}

/// What came of a save.
pub enum Outcome {
    /// So many bytes were written, of the state that the mark tells, if one does.
    Written {
        progress: Progress,
        bytes: u64,
        mark: Option<u64>,
        /// Bytes that an interrupted save had written, and of when the present is that it saved.
        kept: u64,
        then: Option<i64>,
    },
    /// The same by the owner, who alone knows more.
    ByOwner { bytes: u64 },
    /// The file has all that is in the pool.
    Unchanged,
}

/// `save` and `send`.
pub fn save(args: &SavedArgs, file: &Path, anew: bool, json: bool) -> Result<u8, Failure> {
    if file == Path::new("-") {
        owner::become_owner(&args.pool)?;
        if rustix::termios::isatty(rustix::stdio::stdout()) {
            let why = "a stream is not for a terminal";
            return Err(Failure::new(why)
                .fix("name a file, or let a program read it")
                .code(2));
        }
        let out = rustix::io::dup(rustix::stdio::stdout()).map_err(std::io::Error::from);
        let out = out.map_err(|e| Failure::io("standard output", &e))?;
        write_stream(args, File::from(out), &Manner::default())?;
        return Ok(failure::OK);
    }
    // A device or a pipe is written to, and not replaced.
    if std::fs::metadata(file).is_ok_and(|found| !found.is_file()) {
        let out = File::create(file).map_err(|e| Failure::io(file.display(), &e))?;
        write_as_owner(args, out, &Manner::default())?;
        return Ok(failure::OK);
    }
    let to = Destination {
        file,
        mode: MODE,
        known: None,
        goes_on: !anew,
    };
    say(args, &save_in(args, &to)?, json)
}

/// Saves in a file, which is replaced.
pub fn save_in(args: &SavedArgs, to: &Destination<'_>) -> Result<Outcome, Failure> {
    let part = part_of(to.file);
    let out = own_part(&part, to)?;
    let io = |e| Failure::io(part.display(), &e);
    let manner = Manner {
        known: to.known,
        name: Some(name_for(to.file)),
        goes_on: out.metadata().map_err(io)?.len() > 0,
    };
    let written = out.try_clone().map_err(io);
    let done = written.and_then(|written| write_as_owner(args, written, &manner));
    // The lock is held until the file has its name.
    let done = done.and_then(|mut outcome| {
        if let Outcome::Written { bytes, .. } | Outcome::ByOwner { bytes } = &mut outcome {
            *bytes = keep(&out, &part, to.file)?;
        }
        Ok(outcome)
    });
    if !matches!(done, Ok(Outcome::Written { .. } | Outcome::ByOwner { .. })) {
        let _ = std::fs::remove_file(&part);
    }
    done
}

/// Looks whether a save in the file could begin, and leaves nothing.
pub fn try_destination(to: &Destination<'_>) -> Result<(), Failure> {
    match std::fs::metadata(to.file) {
        Ok(found) if found.is_dir() => {
            let why = format!("{} is a directory", to.file.display());
            return Err(Failure::new(why).fix("name a file in it"));
        }
        Ok(found) if !found.is_file() => return Ok(()),
        _ => {}
    }
    let part = part_of(to.file);
    let out = own_part(&part, to)?;
    let room = rustix::fs::fstatvfs(&out);
    let _ = std::fs::remove_file(&part);
    match room {
        Ok(room) if room.f_blocks > 0 && room.f_bavail == 0 => {
            let e = std::io::Error::from(Errno::NOSPC);
            Err(Failure::io(to.file.display(), &e).fix("free some space there"))
        }
        _ => Ok(()),
    }
}

/// Opens what becomes the file, for nobody else meanwhile.
fn own_part(part: &Path, to: &Destination<'_>) -> Result<File, Failure> {
    let io = |e: std::io::Error| cannot_be_made(to.file, &e);
    loop {
        let mut options = File::options();
        let out = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(to.mode)
            .open(part)
            .map_err(io)?;
        match flock(&out, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let why = format!("another process is saving to {}", to.file.display());
                return Err(Failure::new(why).fix("wait for it, or name another file"));
            }
            Err(e) => return Err(io(e.into())),
        }
        // Whoever had it may just have given it its name.
        let ours = out.metadata().map_err(io)?;
        if std::fs::metadata(part).is_ok_and(|there| there.ino() == ours.ino()) {
            if !to.goes_on {
                out.set_len(0).map_err(io)?;
            }
            return Ok(out);
        }
    }
}

/// Why the part of a file cannot be opened, and what helps.
fn cannot_be_made(file: &Path, error: &std::io::Error) -> Failure {
    let failure = Failure::io(format!("{} cannot be written", file.display()), error);
    let directory = file.parent().unwrap_or(Path::new("/")).display();
    let user = rustix::process::geteuid().as_raw();
    match error.kind() {
        ErrorKind::NotFound => failure.fix(format!("make the directory {directory}")),
        ErrorKind::PermissionDenied => failure.fix(format!(
            "let user {user} write to {directory}, or name another file"
        )),
        ErrorKind::ReadOnlyFilesystem => failure.fix("name a file on another file system"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => failure.fix("free some space there"),
        _ => failure,
    }
}

fn write_as_owner(args: &SavedArgs, out: File, manner: &Manner) -> Result<Outcome, Failure> {
    if !owner::is_foreign(&args.pool) {
        return write_stream(args, out, manner);
    }
    if manner.goes_on {
        out.set_len(0).map_err(|e| Failure::io("the file", &e))?;
    }
    as_owner(args, out)
}

fn part_of(file: &Path) -> PathBuf {
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    part.into()
}

/// Gives the file its name; how long it is.
fn keep(written: &File, part: &Path, file: &Path) -> Result<u64, Failure> {
    let io = |e| Failure::io(file.display(), &e);
    written.sync_all().map_err(io)?;
    let bytes = written.metadata().map_err(io)?.len();
    std::fs::rename(part, file).map_err(io)?;
    let directory = file.parent().filter(|d| !d.as_os_str().is_empty());
    let directory = File::open(directory.unwrap_or(Path::new("."))).map_err(io)?;
    // Directories of some file systems cannot be synced.
    let _ = directory.sync_all();
    Ok(bytes)
}

fn say(args: &SavedArgs, outcome: &Outcome, json: bool) -> Result<u8, Failure> {
    let mut out = std::io::stdout().lock();
    printed(match json {
        true => {
            let mut fields = vec![("pool", Json::Text(args.pool.display().to_string()))];
            if let Outcome::Written { progress, .. } = outcome {
                fields.push(("entries", Json::Number(progress.entries)));
                fields.push(("data_bytes", Json::Number(progress.bytes)));
            }
            if let Outcome::Written {
                kept: kept @ 1.., ..
            } = outcome
            {
                fields.push(("kept_bytes", Json::Number(*kept)));
            }
            if let Outcome::Written { bytes, .. } | Outcome::ByOwner { bytes } = outcome {
                fields.push(("stream_bytes", Json::Number(*bytes)));
            }
            writeln!(out, "{}", Json::Object(fields).render())
        }
        false => writeln!(out, "{outcome}"),
    })?;
    Ok(failure::OK)
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Written {
                progress,
                bytes,
                kept,
                then,
                ..
            } => {
                let (data, entries) = (Size(progress.bytes), progress.entries);
                let bytes = Size(*bytes);
                write!(f, "saved {data} of data and {entries} entries in {bytes}")?;
                if *kept > 0 {
                    let kept = Size(*kept);
                    write!(f, ", {kept} of which an interrupted save had written")?;
                }
                match then.and_then(|then| u64::try_from(then).ok()) {
                    Some(then) => {
                        let then = SystemTime::UNIX_EPOCH + Duration::from_nanos(then);
                        let then = humantime::format_rfc3339_seconds(then);
                        write!(
                            f,
                            "; it is the pool as an interrupted save found it at {then}"
                        )
                    }
                    None => Ok(()),
                }
            }
            Outcome::ByOwner { bytes } => write!(f, "saved in {}", Size(*bytes)),
            Outcome::Unchanged => write!(f, "nothing changed"),
        }
    }
}

/// Root saves the pool of somebody else: who reads it is its owner, and the file is root's.
fn as_owner(args: &SavedArgs, out: File) -> Result<Outcome, Failure> {
    let program = std::env::current_exe().map_err(|e| Failure::io("holdfast", &e))?;
    let mut command = Command::new(program);
    command
        .arg("send")
        .arg(&args.pool)
        .stdout(out)
        .stdin(Stdio::null());
    for (word, name) in [("--snapshot", &args.snapshot), ("--since", &args.since)] {
        command.args(name.iter().flat_map(|name| [word, name]));
    }
    let status = command
        .status()
        .map_err(|e| Failure::io("holdfast send", &e))?;
    match status.success() {
        true => Ok(Outcome::ByOwner { bytes: 0 }),
        false => Err(Failure::new("the pool's owner could not save it")),
    }
}

/// The bytes of the outcome are for whoever opened the file to count.
fn write_stream(args: &SavedArgs, out: File, manner: &Manner) -> Result<Outcome, Failure> {
    if let Ok(program) = std::env::current_exe() {
        holdfast::use_program(program);
    }
    let pool = open_pool(&args.pool, None)?;
    let name = manner.name.as_deref();
    let left = name.filter(|_| manner.goes_on && args.snapshot.is_none());
    remove_left_over(&pool, left);
    let present = match args.snapshot {
        None => Some(match left.and_then(|name| Present::left(&pool, name)) {
            Some(present) => present,
            None => Present::keep(&pool, name)?,
        }),
        Some(_) => None,
    };
    let segments = Segments::open(&args.pool)?;
    let mark = match &present {
        Some(present) => segments.mark(&segments.snapshots(&args.pool)?, &present.name)?,
        None => None,
    };
    if mark.is_some() && mark == manner.known {
        return Ok(Outcome::Unchanged);
    }
    let chosen = segments.choose(args, present.as_ref())?;
    let base = match (&args.since, &chosen.base) {
        (Some(name), Some((_, base))) => Some(hold(&pool, &segments, name, base)?),
        _ => None,
    };
    let mut source = segments.source(args, &chosen);
    let is_left = present.as_ref().is_none_or(|present| present.is_left);
    let writer = writer(out, manner.goes_on, is_left, &mut source)?;
    let all = chosen
        .states
        .last()
        .map_or(0, |s| s.snapshot.used_data_blocks * 4096);
    let mut line = Line::new("saving", if base.is_some() { 0 } else { all });
    let mut keep_state = |state: &State| {
        let name = match &state.name[..] {
            [] => present.as_ref().map_or("", |present| &present.name),
            name => std::str::from_utf8(name).unwrap_or_default(),
        };
        let held = hold(&pool, &segments, name, &state.snapshot);
        held.map_err(|_| Error::Gone { name: name.into() })
    };
    let mut see = |progress: Progress| line.at(progress.bytes);
    let saved = holdfast_stream::save_after(&source, writer, &mut keep_state, &mut see);
    let failed = |e| match e {
        Error::Stream(e) => Failure::io("writing the stream", &e),
        e => Failure::new(format!("{}: {e}", args.pool.display())),
    };
    let (_, saved) = saved.map_err(failed)?;
    let is_then = present.is_some() && is_left;
    let then = chosen.states.last().filter(|_| is_then);
    Ok(Outcome::Written {
        progress: saved.progress,
        bytes: 0,
        mark,
        kept: saved.kept,
        then: then.map(|state| state.snapshot.time),
    })
}

/// Whoever writes the chunks goes on behind those that are in the file, if they are of this stream.
fn writer(
    out: File,
    goes_on: bool,
    is_left: bool,
    source: &mut Source<'_>,
) -> Result<ChunkWriter<File>, Failure> {
    let io = |e| Failure::io("the file", &e);
    let cut = |out: &mut File, len| {
        out.set_len(len)?;
        out.seek(SeekFrom::Start(len)).map(drop)
    };
    if goes_on && is_left {
        let file = out.try_clone().map_err(io)?;
        let begun = Begun::open(FromStart { file, at: 0 }, cut);
        if let Some(begun) = begun.filter(|begun| source.go_on(begun)) {
            return Ok(ChunkWriter::after(begun, out));
        }
    }
    if goes_on {
        out.set_len(0).map_err(io)?;
    }
    ChunkWriter::new(out).map_err(|e| Failure::new(e.to_string()))
}

/// Reads a file from its start, wherever others who have it open are.
struct FromStart {
    file: File,
    at: u64,
}

impl Read for FromStart {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = self.file.read_at(out, self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

/// Keeps a snapshot from being deleted, if it is still the one that was chosen.
fn hold(pool: &Pool, from: &Segments, name: &str, chosen: &Snapshot) -> Result<View, Failure> {
    let view = pool.snapshot(name)?;
    match from.has(name, chosen) {
        true => Ok(view),
        false => Err(Failure::new(format!(
            "snapshot {name} was deleted meanwhile"
        ))),
    }
}

/// What is saved.
struct Chosen {
    base: Option<(Vec<u8>, Snapshot)>,
    states: Vec<State>,
    /// Files that may have been stored to in blocks of the base; `None`: any.
    stored: Option<Vec<u64>>,
}

impl Segments {
    fn choose(&self, args: &SavedArgs, present: Option<&Present<'_>>) -> Result<Chosen, Failure> {
        let all = self.snapshots(&args.pool)?;
        let find = |wanted: &str| find(&all, wanted, &args.pool);
        let base = args.since.as_deref().map(find).transpose()?;
        let end = match (&args.snapshot, present) {
            (Some(name), _) => find(name)?,
            (None, Some(present)) => find(&present.name)?,
            (None, None) => return Err(Failure::new("there is nothing to save")),
        };
        let last = end.1.epoch;
        let first = match &base {
            Some((_, base)) => base.epoch + 1,
            None if args.snapshot.is_some() => last,
            None => 0,
        };
        if first > last {
            let (end, since) = (args.snapshot.as_deref(), args.since.as_deref());
            let (end, since) = (end.unwrap_or_default(), since.unwrap_or_default());
            let why = format!("snapshot {end} is not younger than snapshot {since}");
            return Err(Failure::new(why));
        }
        let stored = self.stored(&all, base.as_ref().map_or(last, |(_, b)| b.epoch), last)?;
        let is_ours = |name: &[u8]| name.starts_with(TEMPORARY.as_bytes());
        let between = all
            .into_iter()
            .filter(|(name, snapshot)| (first..last).contains(&snapshot.epoch) && !is_ours(name));
        let mut states: Vec<_> = between
            .map(|(name, snapshot)| State { name, snapshot })
            .collect();
        let (name, snapshot) = end;
        let name = if is_ours(&name) { Vec::new() } else { name };
        states.push(State { name, snapshot });
        Ok(Chosen {
            base,
            states,
            stored,
        })
    }

    /// Files that may have been stored to, between two epochs, in blocks that snapshots have.
    fn stored(
        &self,
        all: &[(Vec<u8>, Snapshot)],
        base: u32,
        last: u32,
    ) -> Result<Option<Vec<u64>>, Failure> {
        let mut files = Vec::new();
        for (name, snapshot) in all {
            if snapshot.epoch > base && snapshot.epoch <= last && snapshot.in_place {
                return Ok(None);
            }
            if (base..last).contains(&snapshot.epoch) {
                let found = snapshot::find_entry(&Reader::new(&self.meta), name);
                let found = found.map_err(|e| Failure::new(e.to_string()))?;
                files.extend(found.into_iter().flat_map(|(_, mapped)| mapped));
            }
        }
        files.sort_unstable();
        files.dedup();
        Ok(Some(files))
    }

    fn source<'s>(&'s self, args: &SavedArgs, chosen: &'s Chosen) -> Source<'s> {
        let sb = &self.files.superblock;
        let base = chosen.base.as_ref().filter(|_| args.since.is_some());
        Source {
            meta: &self.meta,
            data: &self.data,
            head: Head {
                seed: name_seed(sb.uuid),
                consistency: sb.consistency,
                size: sb.data_len,
                next_ino: sb.next_ino,
                time: holdfast_pmem::env::now(),
                base: base.map(|(name, snapshot)| Head::base_of(name, snapshot)),
            },
            base: base.map(|(_, snapshot)| *snapshot),
            stored: chosen.stored.as_deref().map_or(Stored::Any, Stored::Files),
            states: &chosen.states,
        }
    }
}
