//! `kv load` and `kv dump`: all pairs at once.
//!
//! Invariants: pairs are put in the order in which they are read, so the last value of a repeated
//! key stays; when a load fails, all pairs before the fault are in the keyspace, and the failure
//! says how many; a dump shows one moment.

use super::lines::{self, Lines, Pair};
use super::{Source, Target, mdb, open_pool};
use crate::args::{DumpFormat, LoadFormat};
use crate::failure::{self, Failure, printed};
use crate::json::Json;
use holdfast::{Durability, Expires, Keyspace, Pool};
use std::io::{self, BufRead, BufWriter, IsTerminal, Write};
use std::ops::Bound;
use std::time::{Duration, Instant};

/// A batch is committed when it has so many bytes.
const BATCH_BYTES: usize = 64 << 10;

/// `kv load`.
pub fn load(
    (pool, keyspace): &(Pool, Keyspace),
    format: LoadFormat,
    json: bool,
) -> Result<u8, Failure> {
    let mut loader = Loader::new(pool);
    let input = io::stdin().lock();
    let done = match format {
        LoadFormat::Lines => load_lines(&mut loader, keyspace, input),
        LoadFormat::Mdb => load_mdb(&mut loader, keyspace, input),
    };
    ended(pool, loader, done, json)
}

/// After a load, which may have failed: commits what was read before that, and says how much it is.
pub fn ended(
    pool: &Pool,
    mut loader: Loader<'_>,
    done: Result<(), Failure>,
    json: bool,
) -> Result<u8, Failure> {
    let ended = loader.commit();
    loader.progress.end();
    pool.sync()?;
    let loaded = loader.loaded;
    done.and(ended).map_err(|failure| match loaded {
        0 => failure,
        n => failure.fix(format!(
            "correct the line and load everything behind the first {n} pairs"
        )),
    })?;
    if json {
        let said = Json::Object(vec![("loaded", Json::Number(loaded))]);
        printed(writeln!(io::stdout(), "{}", said.render()))?;
    }
    Ok(failure::OK)
}

fn load_lines(
    loader: &mut Loader<'_>,
    keyspace: &Keyspace,
    input: impl BufRead,
) -> Result<(), Failure> {
    let mut lines = Lines::new(input);
    loop {
        let pair = lines.pair();
        match pair.map_err(|why| at_line(lines.number(), &why))? {
            Some(pair) => {
                let put = loader.put(keyspace, pair);
                put.map_err(|e| at_line(lines.number(), &e))?;
            }
            None => return Ok(()),
        }
    }
}

fn load_mdb(
    loader: &mut Loader<'_>,
    keyspace: &Keyspace,
    input: impl BufRead,
) -> Result<(), Failure> {
    let mut reader = mdb::Reader::new(input).map_err(Failure::new)?;
    loop {
        let pair = reader.pair();
        match pair.map_err(|why| at_line(reader.number(), &why))? {
            Some((key, value)) => {
                let put = loader.put(keyspace, (key, value, None));
                put.map_err(|e| at_line(reader.number(), &e))?;
            }
            None => return Ok(()),
        }
    }
}

pub fn at_line(number: u64, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("line {number}: {why}"))
}

/// Puts pairs in batches.
pub struct Loader<'a> {
    pool: &'a Pool,
    batch: holdfast::Batch,
    bytes: usize,
    waiting: u64,
    /// Pairs that are in the keyspace.
    loaded: u64,
    progress: Progress,
}

impl Loader<'_> {
    /// Nothing is loaded yet.
    pub fn new(pool: &Pool) -> Loader<'_> {
        Loader {
            pool,
            batch: pool.batch(),
            bytes: 0,
            waiting: 0,
            loaded: 0,
            progress: Progress::new("loaded"),
        }
    }

    /// The next pair.
    pub fn put(
        &mut self,
        keyspace: &Keyspace,
        (key, value, expires): Pair,
    ) -> holdfast::Result<()> {
        let (bytes, expires) = (key.len() + value.len(), Expires::from(expires));
        if bytes >= BATCH_BYTES {
            self.flush()?;
            keyspace.put_until(&key, &value, expires, Durability::Ordered)?;
            self.loaded += 1;
        } else {
            self.batch.put_until(keyspace, &key, &value, expires)?;
            self.waiting += 1;
            self.bytes += bytes;
        }
        self.progress.show(self.loaded);
        match self.bytes >= BATCH_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> holdfast::Result<()> {
        let batch = std::mem::replace(&mut self.batch, self.pool.batch());
        let waiting = std::mem::take(&mut self.waiting);
        self.bytes = 0;
        batch.commit(Durability::Ordered)?;
        self.loaded += waiting;
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Failure> {
        Ok(self.flush()?)
    }
}

/// `kv dump`.
pub fn dump(args: &Target<'_>, format: DumpFormat) -> Result<u8, Failure> {
    let pool = open_pool(args.pool, args.slow)?;
    let source = Source::View(match args.snapshot {
        None => pool.keyspace(args.keyspace)?.read()?,
        Some(name) => pool.snapshot(name)?.keyspace(args.keyspace)?,
    });
    let out = BufWriter::new(io::stdout().lock());
    let mut progress = Progress::new("dumped");
    let done = match format {
        DumpFormat::Lines => dump_lines(&source, out, &mut progress),
        DumpFormat::Mdb => dump_mdb(&source, out, false, &mut progress),
        DumpFormat::MdbPrint => dump_mdb(&source, out, true, &mut progress),
    };
    progress.end();
    done?;
    Ok(failure::OK)
}

/// Gives each pair to `put`, until that has nobody to write for.
fn each(
    source: &Source,
    progress: &mut Progress,
    mut put: impl FnMut((&[u8], &[u8]), Expires) -> io::Result<()>,
) -> Result<(), Failure> {
    let mut count = 0;
    let mut scan = source.scan(Bound::Unbounded, Bound::Unbounded)?;
    while let Some(pair) = scan.next() {
        let (key, value) = pair?;
        match put((&key, &value), scan.expires()) {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            done => printed(done)?,
        }
        count += 1;
        progress.show(count);
    }
    Ok(())
}

fn dump_lines(
    source: &Source,
    mut out: impl Write,
    progress: &mut Progress,
) -> Result<(), Failure> {
    each(source, progress, |pair, expires| {
        lines::write(&mut out, pair, expires.time())
    })?;
    printed(out.flush())
}

/// Twice through: mdb_load makes a database as large as the header says.
fn dump_mdb(
    source: &Source,
    out: impl Write,
    print: bool,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let (mut room, mut long, mut expiring) = (mdb::Room::default(), 0, 0u64);
    let mut measured = Progress::new("measured");
    each(source, &mut measured, |(key, value), expires| {
        room.add(key, value);
        long = long.max(key.len());
        expiring += u64::from(expires != Expires::Never);
        Ok(())
    })?;
    if expiring > 0 {
        eprintln!("holdfast: {expiring} of the values expire, which the format mdb does not say.");
    }
    if long > mdb::KEY_MAX {
        let most = mdb::KEY_MAX;
        eprintln!(
            "holdfast: keys have up to {long} bytes; LMDB accepts {most} unless built for more."
        );
    }
    let mut writer = match mdb::Writer::new(out, print, room) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
        writer => writer.map_err(|e| Failure::io("standard output", &e))?,
    };
    each(source, progress, |(key, value), _| writer.pair(key, value))?;
    printed(writer.finish())
}

/// How far it is, on a terminal.
pub struct Progress {
    what: &'static str,
    terminal: bool,
    shown: Instant,
    any: bool,
}

impl Progress {
    /// Nothing is done yet.
    pub fn new(what: &'static str) -> Progress {
        Progress {
            what,
            terminal: io::stderr().is_terminal(),
            shown: Instant::now(),
            any: false,
        }
    }

    /// So much is done.
    pub fn show(&mut self, count: u64) {
        if !self.terminal || self.shown.elapsed() < Duration::from_millis(250) {
            return;
        }
        self.shown = Instant::now();
        self.any = true;
        eprint!("\r{count} pairs {}", self.what);
    }

    /// It is over.
    pub fn end(&mut self) {
        if self.any {
            eprintln!();
        }
    }
}
