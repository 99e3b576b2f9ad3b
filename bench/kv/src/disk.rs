//! The worker of `bench disk`: durable commits on a disk, by one and by eight threads.
//!
//! Invariants: all pairs are there before the first row; threads write keys of their own, so that
//! what a key holds in the end is known; every acknowledged pair is compared after the clock
//! stopped; a row ends after its commits or its time, whichever comes first.

use crate::bench::{BATCH, batches, verify};
use crate::counter::Counter;
use crate::data::{Data, Random};
use crate::store::{Done, Role, Site, Store};
use crate::worker::{Plan, clear, site};
use std::ffi::OsStr;
use std::io::{BufRead, Write};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// The least that a thread does, however long it takes.
const COMMITS_MIN: usize = 4;

/// Answers `load` and `row put-1`, `put-8`, `batch-1` and `batch-8`.
pub fn serve(plan: &Plan, counter: &OsStr) -> Done<()> {
    let counter = Counter::parse(counter).ok_or("no such counter of flushes")?;
    let data = Data::new(plan.keys, plan.value);
    let site = site(plan, &data);
    let mut store: Option<Box<dyn Store>> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let answer = match (line.as_str(), store.as_deref()) {
            ("load", None) => load(plan, &data, &site).map(|made| {
                store = Some(made);
                String::new()
            }),
            (line, Some(store)) => row(plan, &data, store, &counter, line),
            _ => Err(format!("no such command: {line}").into()),
        };
        let answer = match answer {
            Ok(text) => format!("ok {text}"),
            Err(error) => format!("error {}", error.to_string().replace('\n', " ")),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    drop(store);
    clear(plan, &site)
}

fn load(plan: &Plan, data: &Data, site: &Site) -> Done<Box<dyn Store>> {
    clear(plan, site)?;
    std::fs::create_dir_all(&site.dir)?;
    (plan.peer.make)(site)?;
    let store = (plan.peer.open)(site, Role::Alone)?;
    batches(&*store, data, &data.shuffled(3))?;
    Ok(store)
}

fn row(plan: &Plan, data: &Data, store: &dyn Store, counter: &Counter, line: &str) -> Done<String> {
    let (threads, pairs, commits) = match line {
        "row put-1" => (1, 1, 1000),
        "row put-8" => (8, 1, 4000),
        "row batch-1" => (1, BATCH, 60),
        "row batch-8" => (8, BATCH, 120),
        _ => return Err(format!("no such command: {line}").into()),
    };
    let commits = if plan.quick { commits / 10 } else { commits } / threads;
    let limit = Duration::from_millis(if plan.quick { 500 } else { 4000 });
    let work = Work {
        data,
        store,
        pairs,
        threads,
        commits: commits.max(COMMITS_MIN),
        limit,
    };
    work.measure(counter)
}

/// What all threads of a row do.
struct Work<'a> {
    data: &'a Data,
    store: &'a dyn Store,
    /// In each commit.
    pairs: usize,
    threads: usize,
    /// Of each thread.
    commits: usize,
    limit: Duration,
}

impl Work<'_> {
    fn measure(&self, counter: &Counter) -> Done<String> {
        // One more than the threads: whoever reads the counter starts them.
        let together = Barrier::new(self.threads + 1);
        let (before, all) = std::thread::scope(|scope| {
            let together = &together;
            let run = |thread| scope.spawn(move || self.thread(thread, together));
            let threads: Vec<_> = (0..self.threads).map(run).collect();
            let before = counter.read();
            together.wait();
            let join = |t: std::thread::ScopedJoinHandle<Done<Vec<f64>>>| {
                t.join().unwrap_or_else(|_| Err("a thread panicked".into()))
            };
            let all: Vec<_> = threads.into_iter().map(join).collect();
            (before, all)
        });
        let after = counter.read();
        let mut ns = Vec::new();
        for times in all {
            ns.extend(times?);
        }
        verify(self.store, self.data, 0..self.data.keys)?;
        let n = ns.len().max(1) as f64;
        let wall = ns.iter().sum::<f64>() / n;
        ns.sort_by(f64::total_cmp);
        let at = |q: f64| ns[((q * n).ceil() as usize).clamp(1, ns.len()) - 1];
        let mut text = format!("wall={wall} median={} p99={} ops={n}", at(0.5), at(0.99));
        if let Some((before, after)) = before.zip(after) {
            text.push_str(&format!(
                " flushes={}",
                after.saturating_sub(before) as f64 / n
            ));
        }
        Ok(text)
    }

    /// Commits until the number or the time is reached; nanoseconds of each.
    fn thread(&self, thread: usize, together: &Barrier) -> Done<Vec<f64>> {
        let mut random = Random::new(thread as u64 + 50);
        let part = self.data.keys / self.threads;
        let mut ns = Vec::with_capacity(self.commits);
        together.wait();
        let start = Instant::now();
        while ns.len() < self.commits && (ns.len() < COMMITS_MIN || start.elapsed() < self.limit) {
            let numbers: Vec<usize> = (0..self.pairs)
                .map(|_| thread * part + random.below(part))
                .collect();
            let pairs: Vec<_> = numbers
                .iter()
                .map(|&i| (self.data.key(i), self.data.value(i, self.data.write(i))))
                .collect();
            let one = Instant::now();
            match &pairs[..] {
                [(key, value)] => self.store.put(key.as_ref(), value)?,
                _ => {
                    let mut all = pairs.iter().map(|(key, value)| (key.as_ref(), *value));
                    self.store.commit(&mut all)?;
                }
            }
            ns.push(one.elapsed().as_nanos() as f64);
        }
        Ok(ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers;
    use std::path::PathBuf;

    #[test]
    fn every_peer_without_a_service_makes_all_rows() {
        let base = std::env::temp_dir().join(format!("holdfast-kv-disk.{}", std::process::id()));
        for peer in peers::ALL
            .iter()
            .filter(|p| p.lasting && p.name != "holdfast")
        {
            let plan = Plan {
                peer,
                dir: base.join(peer.name),
                keys: 3000,
                value: 100,
                quick: true,
                holdfast: PathBuf::new(),
            };
            let data = Data::new(plan.keys, plan.value);
            let site = site(&plan, &data);
            let store = load(&plan, &data, &site).unwrap();
            for name in ["put-1", "put-8", "batch-1", "batch-8"] {
                let got = row(
                    &plan,
                    &data,
                    &*store,
                    &Counter::Nothing,
                    &format!("row {name}"),
                );
                let got = got.unwrap_or_else(|e| panic!("{name} of {}: {e}", peer.name));
                assert!(got.starts_with("wall="), "{got}");
            }
            assert!(row(&plan, &data, &*store, &Counter::Nothing, "row get").is_err());
            drop(store);
            clear(&plan, &site).unwrap();
        }
        let _ = std::fs::remove_dir(&base);
    }
}
