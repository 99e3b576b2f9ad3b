//! `kv dump` and `kv load` without a keyspace: those of all keyspaces.
//!
//! Invariants: a line has a keyspace, a key and a value, with a tab between them, or a keyspace
//! alone, which is there also if it is empty; a dump shows one moment of all keyspaces.

use super::transfer::{Loader, Progress, at_line, ended};
use super::{Target, escape, lines, open_pool, pool_to_change, usage};
use crate::args::{DumpFormat, LoadFormat};
use crate::failure::{self, Failure, printed};
use holdfast::{Keyspace, Pool, ViewKeyspace};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufWriter, Write};

/// `kv dump` of all keyspaces.
pub fn dump(args: &Target<'_>, format: DumpFormat) -> Result<u8, Failure> {
    if format != DumpFormat::Lines {
        return Err(one_only());
    }
    let pool = open_pool(args.pool, args.slow)?;
    let all = match args.snapshot {
        None => pool.read_all()?,
        Some(name) => {
            let then = pool.snapshot(name)?;
            let names = then.keyspaces()?;
            let all = names.iter().map(|name| then.keyspace(name));
            all.collect::<holdfast::Result<_>>()?
        }
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let mut progress = Progress::new("dumped");
    let mut count = 0;
    for keyspace in &all {
        match dump_one(keyspace, &mut out, &mut progress, &mut count)? {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(failure::OK),
            done => printed(done)?,
        }
    }
    progress.end();
    printed(out.flush())?;
    Ok(failure::OK)
}

fn one_only() -> Failure {
    usage("the format mdb is for one keyspace; name it, or use the format lines")
}

fn dump_one(
    keyspace: &ViewKeyspace,
    out: &mut impl Write,
    progress: &mut Progress,
    count: &mut u64,
) -> Result<io::Result<()>, Failure> {
    let mut name = Vec::new();
    let named = escape::write(&mut name, keyspace.name().as_bytes());
    name.push(b'\n');
    if let Err(e) = named.and_then(|()| out.write_all(&name)) {
        return Ok(Err(e));
    }
    name.pop();
    name.push(b'\t');
    let mut scan = keyspace.prefix(b"")?;
    while let Some(pair) = scan.next() {
        let ((key, value), expires) = (pair?, scan.expires());
        let written = out.write_all(&name);
        if let Err(e) = written.and_then(|()| lines::write(out, (&key, &value), expires.time())) {
            return Ok(Err(e));
        }
        *count += 1;
        progress.show(*count);
    }
    Ok(Ok(()))
}

/// `kv load` of all keyspaces.
pub fn load(args: &Target<'_>, format: LoadFormat, json: bool) -> Result<u8, Failure> {
    if format != LoadFormat::Lines {
        return Err(one_only());
    }
    let pool = pool_to_change(args)?;
    let mut loader = Loader::new(&pool);
    let done = load_lines(&pool, &mut loader, io::stdin().lock());
    ended(&pool, loader, done, json)
}

fn load_lines(pool: &Pool, loader: &mut Loader<'_>, input: impl BufRead) -> Result<(), Failure> {
    let mut lines = lines::Lines::new(input);
    let mut open: BTreeMap<Vec<u8>, Keyspace> = BTreeMap::new();
    loop {
        let (line, pair) = match lines.keyspace_and_pair() {
            Err(why) => return Err(at_line(lines.number(), &why)),
            Ok(None) => return Ok(()),
            Ok(Some(found)) => found,
        };
        let at = |e: &dyn std::fmt::Display| at_line(lines.number(), e);
        if !open.contains_key(&line) {
            let name = str::from_utf8(&line).map_err(|_| at(&"the keyspace's name is not text"))?;
            let keyspace = pool.keyspace_or_create(name).map_err(|e| at(&e))?;
            open.insert(line.clone(), keyspace);
        }
        if let (Some(pair), Some(keyspace)) = (pair, open.get(&line)) {
            loader.put(keyspace, pair).map_err(|e| at(&e))?;
        }
    }
}
