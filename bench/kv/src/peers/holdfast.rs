//! Holdfast: one keyspace of a pool, in memory or on a disk as its directory is; every put and
//! every batch is `Durable`.
//!
//! Invariant: the pool's service is a process of its own, and its CPU time counts.

use crate::process;
use crate::store::{Done, Pair, Peer, Role, Site, Store, View};
use holdfast::{Durability, Keyspace, Pool, ViewKeyspace};
use std::ops::Bound;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

pub const PEER: Peer = Peer {
    name: "holdfast",
    lasting: true,
    shared: true,
    open,
    make,
    unmake,
};

const NAME: &str = "kv";

struct Holdfast {
    pool: Pool,
    keyspace: Keyspace,
    dir: PathBuf,
}

fn open(site: &Site, _: Role) -> Done<Box<dyn Store>> {
    holdfast::use_program(&site.holdfast);
    let pool = Pool::open(pool(site))?;
    let keyspace = pool.keyspace_or_create(NAME)?;
    let dir = site.dir.clone();
    Ok(Box::new(Holdfast {
        pool,
        keyspace,
        dir,
    }))
}

fn pool(site: &Site) -> PathBuf {
    site.dir.join("pool")
}

fn make(site: &Site) -> Done<()> {
    let size = site.room().to_string();
    let words = ["pool", "create", "--size", &size];
    run(Command::new(&site.holdfast).args(words).arg(pool(site)))
}

/// The service needs a moment to end.
fn unmake(site: &Site) -> Done<()> {
    let start = Instant::now();
    loop {
        let done = run(Command::new(&site.holdfast)
            .args(["pool", "destroy"])
            .arg(pool(site)));
        if done.is_ok() || start.elapsed() > Duration::from_secs(20) {
            return done;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn run(command: &mut Command) -> Done<()> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().into()),
    }
}

impl Store for Holdfast {
    fn put(&self, key: &[u8], value: &[u8]) -> Done<()> {
        Ok(self.keyspace.put(key, value, Durability::Durable)?)
    }

    fn commit(&self, pairs: &mut dyn Iterator<Item = Pair<'_>>) -> Done<()> {
        let mut batch = self.pool.batch();
        for (key, value) in pairs {
            batch.put(&self.keyspace, key, value)?;
        }
        Ok(batch.commit(Durability::Durable)?)
    }

    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        read(out, |out| self.keyspace.get_into(key, out))
    }

    fn view(&self, body: &mut dyn FnMut(&mut dyn View) -> Done<()>) -> Done<()> {
        body(&mut Held(self.pool.read()?.keyspace(NAME)?))
    }

    fn helpers(&self) -> Vec<i32> {
        process::users(&self.dir)
    }
}

struct Held(ViewKeyspace);

impl View for Held {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
        read(out, |out| self.0.get_into(key, out))
    }

    fn scan(&mut self, from: &[u8], n: usize, each: &mut dyn FnMut(&[u8], &[u8])) -> Done<()> {
        let mut scan = self.0.scan(Bound::Included(from), Bound::Unbounded)?;
        for _ in 0..n {
            let Some((key, value)) = scan.next_ref()? else {
                break;
            };
            each(key, value);
        }
        Ok(())
    }
}

/// Reads into what `out` has room for, and again where that was too little.
fn read(
    out: &mut Vec<u8>,
    mut get: impl FnMut(&mut [u8]) -> holdfast::Result<Option<u64>>,
) -> Done<bool> {
    loop {
        let Some(len) = get(out)? else {
            return Ok(false);
        };
        let (len, room) = (len as usize, out.len());
        out.resize(len, 0);
        if len <= room {
            return Ok(true);
        }
    }
}
