//! `holdfast kv`: keys and values from the command line.
//!
//! Invariants: a value is written byte by byte as it is, and so is a dump once its escapes are
//! undone; a put or an erase is durable when the command ends; only put and load create a keyspace.

mod all;
pub mod escape;
pub mod expiry;
mod lines;
mod mdb;
mod transfer;
mod whole;

use crate::args::{KvArgs, KvCommand, ScanArgs, Words};
use crate::failure::{self, Failure, printed};
use crate::json::Json;
use holdfast::{Durability, Expires, Keyspace, Pool, Scan, Slow, ValueReader, ViewKeyspace};
use std::ffi::OsStr;
use std::io::{BufWriter, Read, Write};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Values from here on are not held in memory on their way in.
const WHOLE_MAX: u64 = 1 << 20;

/// `kv`.
pub fn kv(args: &KvArgs, json: bool) -> Result<u8, Failure> {
    if let Ok(program) = std::env::current_exe() {
        holdfast::use_program(program);
    }
    let target = Target {
        pool: &args.pool,
        keyspace: args.keyspace.as_deref().unwrap_or_default(),
        snapshot: args.snapshot.as_deref(),
        slow: args.slow,
    };
    match (&args.keyspace, &args.command) {
        (None, None) => keyspaces(&target, json),
        (Some(_), Some(command)) => command_on(&target, command, json),
        (None, Some(KvCommand::Load { format })) => all::load(&target, *format, json),
        (None, Some(KvCommand::Dump { format })) => all::dump(&target, *format),
        (None, Some(_)) => Err(usage("the keyspace is missing")),
        (Some(_), None) => Err(usage(
            "the command is missing: get, put, erase, scan, count, drop, rename, load or dump",
        )),
    }
}

fn usage(what: &str) -> Failure {
    let failure = Failure::new(what).fix("see holdfast kv --help");
    failure.code(failure::USAGE)
}

/// Opens a pool, and says so if it can only be read.
pub fn open_pool(path: &Path, slow: Option<Slow>) -> Result<Pool, Failure> {
    let pool = Pool::options().slow(slow).open(path)?;
    failure::warn_of_damage(path, pool.damage().unwrap_or_default());
    Ok(pool)
}

/// What the command line names.
pub struct Target<'a> {
    pool: &'a Path,
    keyspace: &'a str,
    snapshot: Option<&'a str>,
    slow: Option<Slow>,
}

fn keyspaces(target: &Target<'_>, json: bool) -> Result<u8, Failure> {
    let pool = open_pool(target.pool, target.slow)?;
    let names = match target.snapshot {
        None => pool.keyspaces()?,
        Some(name) => pool.snapshot(name)?.keyspaces()?,
    };
    let mut out = std::io::stdout().lock();
    printed(match json {
        true => {
            let names = names.into_iter().map(Json::Text).collect();
            writeln!(out, "{}", Json::List(names).render())
        }
        false => names.iter().try_for_each(|name| writeln!(out, "{name}")),
    })?;
    Ok(failure::OK)
}

fn command_on(args: &Target<'_>, command: &KvCommand, json: bool) -> Result<u8, Failure> {
    match command {
        KvCommand::Get { key, words } => get(args, &bytes(key, *words)?, json),
        KvCommand::Put { .. } => put_any(args, command, json),
        KvCommand::Erase {
            key,
            expected,
            only,
            words,
        } => {
            let key = bytes(key, *words)?;
            match (expected, only.at()) {
                (Some(expected), _) => whole::erase_if(args, &key, &bytes(expected, *words)?, json),
                (None, Some(at)) => expiry::erase_if(args, &key, at, json),
                (None, None) => erase(args, &key, json),
            }
        }
        KvCommand::Expire {
            key,
            after,
            only,
            words,
        } => {
            let key = bytes(key, *words)?;
            match (after, only.at()) {
                (None, Some(_)) => Err(usage("--if-expires needs a TIME to set")),
                (Some(after), Some(at)) => expiry::expire_if(args, &key, at, *after, json),
                (_, None) => expiry::expire(args, &key, *after, json),
            }
        }
        KvCommand::Scan(scan) => list(args, scan, json),
        KvCommand::Count => whole::count(args, json),
        KvCommand::Drop => whole::remove(args),
        KvCommand::Rename { new, replace } => whole::rename(args, new, *replace),
        KvCommand::Load { format } => transfer::load(&to_change(args, true)?, *format, json),
        KvCommand::Dump { format } => transfer::dump(args, *format),
    }
}

/// `put`, in each of its forms.
fn put_any(args: &Target<'_>, command: &KvCommand, json: bool) -> Result<u8, Failure> {
    let KvCommand::Put {
        key,
        value,
        expected,
        if_absent,
        only,
        expires,
        words,
    } = command
    else {
        unreachable!("{command:?} puts nothing");
    };
    let key = bytes(key, *words)?;
    let value = value.as_deref().filter(|value| *value != "-");
    let value = value.map(|value| bytes(value, *words)).transpose()?;
    let expected = expected.as_deref().map(|value| bytes(value, *words));
    let expires = expires.map_or(Expires::Never, |after| after.expires());
    let expected = expected.transpose()?;
    if expected.is_none() && !if_absent && only.at().is_none() {
        return match value {
            Some(value) => put(args, &key, &value, expires),
            None => put_input(args, &key, expires),
        };
    }
    let value = value.map_or_else(whole::input, Ok)?;
    let pair = (&key[..], &value[..]);
    match only.at() {
        Some(at) => expiry::put_if(args, pair, at, (expires, json)),
        None => whole::put_if(args, pair, expected.as_deref(), (expires, json)),
    }
}

/// A word of the command line as bytes.
fn bytes(word: &OsStr, words: Words) -> Result<Vec<u8>, Failure> {
    if !words.escaped {
        return Ok(word.as_bytes().into());
    }
    escape::undo(word.as_bytes()).map_err(|why| {
        let what = format!("'{}': {why}", word.to_string_lossy());
        Failure::new(what).code(failure::USAGE)
    })
}

/// What can be read from: a keyspace, or what it was.
pub enum Source {
    Present(Keyspace),
    View(ViewKeyspace),
}

impl Source {
    fn open(args: &Target<'_>) -> Result<Source, Failure> {
        let pool = open_pool(args.pool, args.slow)?;
        Ok(match args.snapshot {
            None => Source::Present(pool.keyspace(args.keyspace)?),
            Some(name) => Source::View(pool.snapshot(name)?.keyspace(args.keyspace)?),
        })
    }

    fn count(&self) -> Result<u64, Failure> {
        Ok(match self {
            Source::Present(keyspace) => keyspace.count()?,
            Source::View(keyspace) => keyspace.count()?,
        })
    }

    fn expires(&self, key: &[u8]) -> Result<Option<Expires>, Failure> {
        Ok(match self {
            Source::Present(keyspace) => keyspace.expires(key)?,
            Source::View(keyspace) => keyspace.expires(key)?,
        })
    }

    fn reader(&self, key: &[u8]) -> Result<Option<ValueReader>, Failure> {
        Ok(match self {
            Source::Present(keyspace) => keyspace.reader(key)?,
            Source::View(keyspace) => keyspace.reader(key)?,
        })
    }

    fn scan(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<Scan, Failure> {
        Ok(match self {
            Source::Present(keyspace) => keyspace.scan(from, to)?,
            Source::View(keyspace) => keyspace.scan(from, to)?,
        })
    }

    fn prefix(&self, prefix: &[u8]) -> Result<Scan, Failure> {
        Ok(match self {
            Source::Present(keyspace) => keyspace.prefix(prefix)?,
            Source::View(keyspace) => keyspace.prefix(prefix)?,
        })
    }
}

/// The pool itself; a snapshot cannot be changed.
fn pool_to_change(args: &Target<'_>) -> Result<Pool, Failure> {
    match args.snapshot {
        None => open_pool(args.pool, args.slow),
        Some(_) => Err(Failure::new("a snapshot cannot be changed")
            .fix("leave out --snapshot")
            .code(failure::USAGE)),
    }
}

/// The pool and the keyspace itself; a snapshot cannot be changed.
fn to_change(args: &Target<'_>, create: bool) -> Result<(Pool, Keyspace), Failure> {
    let pool = pool_to_change(args)?;
    let keyspace = match create {
        true => pool.keyspace_or_create(args.keyspace)?,
        false => pool.keyspace(args.keyspace)?,
    };
    Ok((pool, keyspace))
}

fn get(args: &Target<'_>, key: &[u8], json: bool) -> Result<u8, Failure> {
    let source = Source::open(args)?;
    let expires = if json { source.expires(key)? } else { None };
    let mut reader = source.reader(key)?.ok_or_else(|| {
        let key = escape::short(key);
        Failure::new(format!(
            "there is no key {key} in keyspace {}",
            args.keyspace
        ))
    })?;
    let mut out = std::io::stdout().lock();
    if json {
        let mut value = Vec::new();
        reader
            .read_to_end(&mut value)
            .map_err(|e| Failure::io("the value", &e))?;
        let shown = pair(key, &value, expires.unwrap_or(Expires::Never));
        printed(writeln!(out, "{}", shown.render()))?;
    } else {
        copy(&mut reader, |part| out.write_all(part))?;
    }
    printed(out.flush())?;
    Ok(failure::OK)
}

/// Copies a value to its end; tells a value that cannot be read from a reader that has enough.
fn copy(
    from: &mut impl Read,
    mut put: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<(), Failure> {
    let mut buffer = vec![0; WHOLE_MAX as usize];
    loop {
        let n = match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Failure::io("the value", &e)),
        };
        match put(&buffer[..n]) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            done => printed(done)?,
        }
    }
}

fn put(args: &Target<'_>, key: &[u8], value: &[u8], expires: Expires) -> Result<u8, Failure> {
    to_change(args, true)?
        .1
        .put_until(key, value, expires, Durability::Durable)?;
    Ok(failure::OK)
}

/// Why a part of a value was not taken.
fn of_value(error: std::io::Error) -> Failure {
    match error.downcast::<holdfast::Error>() {
        Ok(error) => error.into(),
        Err(error) => Failure::io("the value", &error),
    }
}

/// What is on standard input, however much it is, becomes the value as a whole.
fn put_input(args: &Target<'_>, key: &[u8], expires: Expires) -> Result<u8, Failure> {
    let input = std::io::stdin().lock();
    let failed = |e| Failure::io("standard input", &e);
    let mut start = Vec::new();
    let mut head = input.take(WHOLE_MAX);
    head.read_to_end(&mut start).map_err(failed)?;
    if (start.len() as u64) < WHOLE_MAX {
        return put(args, key, &start, expires);
    }
    let (_pool, keyspace) = to_change(args, true)?;
    let mut writer = keyspace.writer_until(key, expires)?;
    let mut input = head.into_inner();
    loop {
        writer.write_all(&start).map_err(of_value)?;
        start.clear();
        let mut next = input.take(WHOLE_MAX);
        if next.read_to_end(&mut start).map_err(failed)? == 0 {
            break;
        }
        input = next.into_inner();
    }
    writer.finish(Durability::Durable)?;
    Ok(failure::OK)
}

fn erase(args: &Target<'_>, key: &[u8], json: bool) -> Result<u8, Failure> {
    let (_pool, keyspace) = to_change(args, false)?;
    let was_there = keyspace.remove(key, Durability::Durable)?;
    if json {
        let said = Json::Object(vec![("erased", Json::Bool(was_there))]);
        printed(writeln!(std::io::stdout(), "{}", said.render()))?;
    }
    Ok(failure::OK)
}

fn list(args: &Target<'_>, wanted: &ScanArgs, json: bool) -> Result<u8, Failure> {
    let word = |word: &Option<_>| -> Result<Option<Vec<u8>>, Failure> {
        let word: Option<&OsStr> = word.as_ref().map(|w: &std::ffi::OsString| w.as_os_str());
        word.map(|word| bytes(word, wanted.words)).transpose()
    };
    let (prefix, from, to) = (
        word(&wanted.prefix)?,
        word(&wanted.from)?,
        word(&wanted.to)?,
    );
    let source = Source::open(args)?;
    let scan = match &prefix {
        Some(prefix) => source.prefix(prefix)?,
        None => source.scan(
            from.as_deref().map_or(Bound::Unbounded, Bound::Included),
            to.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
        )?,
    };
    let limit = wanted.limit.unwrap_or(u64::MAX);
    match wanted.reverse {
        false => show(scan, limit, json),
        true => show(scan.backward(), limit, json),
    }
}

fn show(mut scan: Scan, limit: u64, json: bool) -> Result<u8, Failure> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut first = true;
    for _ in 0..limit {
        let Some(found) = scan.next() else { break };
        let ((key, value), expires) = (found?, scan.expires());
        let done = match json {
            true => {
                let before = if first { "[" } else { ",\n" };
                write!(out, "{before}{}", pair(&key, &value, expires).render())
            }
            false => lines::write(&mut out, (&key, &value), expires.time()),
        };
        first = false;
        match done {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(failure::OK),
            done => printed(done)?,
        }
    }
    if json {
        let end = if first { "[]\n" } else { "]\n" };
        printed(out.write_all(end.as_bytes()))?;
    }
    printed(out.flush())?;
    Ok(failure::OK)
}

/// As JSON: text where it is text, hexadecimal digits where it is not.
fn pair(key: &[u8], value: &[u8], expires: Expires) -> Json {
    let mut fields = vec![field(key, "key", "key_hex"), value_field(value)];
    fields.extend(expiry::field(expires));
    Json::Object(fields)
}

fn value_field(value: &[u8]) -> (&'static str, Json) {
    field(value, "value", "value_hex")
}

fn field(bytes: &[u8], text: &'static str, hex: &'static str) -> (&'static str, Json) {
    match str::from_utf8(bytes) {
        Ok(it) => (text, Json::Text(it.into())),
        Err(_) => (hex, Json::Text(escape::hex(bytes))),
    }
}
