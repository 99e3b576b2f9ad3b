//! The rows: what is done to a store between two readings of the clocks.
//!
//! Invariants: keys are made before the clocks start; the CPU time of a row that writes includes
//! what the store still does in the background after the last commit; a value that is not what
//! was written last ends the row with an error.

use crate::clock::{self, Clocks, Passed};
use crate::data::{Data, Key, Random};
use crate::store::{Done, Store, View};
use std::time::{Duration, Instant};

/// Pairs in one commit of a load.
pub const BATCH: usize = 1000;
/// Pairs that one scan reads.
pub const SCAN: usize = 100;
/// Of how many values that were read one is compared in full.
const CHECK: usize = 32;
/// Operations between two readings of the wall clock.
const CHUNK: usize = 32;
/// The longest that background work is waited for.
const SETTLE: Duration = Duration::from_secs(30);

/// What one row says: named numbers.
pub type Figures = Vec<(&'static str, f64)>;

/// One write.
struct Write {
    key: Key,
    number: usize,
    version: u32,
}

fn writes(data: &Data, order: impl Iterator<Item = usize>) -> Vec<Write> {
    let one = |number| Write {
        key: data.key(number),
        number,
        version: data.write(number),
    };
    order.map(one).collect()
}

fn per_op(passed: Passed, ops: usize) -> Figures {
    let n = ops.max(1) as f64;
    vec![
        ("wall", passed.wall / n),
        ("thread", passed.thread / n),
        ("all", passed.all / n),
    ]
}

/// Waits until the store's background work is done.
pub fn settle(helpers: &[i32]) {
    let start = Instant::now();
    let (mut quiet, mut last) = (0, clock::all_ns(helpers));
    while quiet < 4 && start.elapsed() < SETTLE {
        std::thread::sleep(Duration::from_millis(25));
        let now = clock::all_ns(helpers);
        quiet = if now - last < 1_000_000 { quiet + 1 } else { 0 };
        last = now;
    }
}

/// Commits of `BATCH` pairs: the keys of `order`, in that order.
pub fn batches(store: &dyn Store, data: &Data, order: &[usize]) -> Done<Figures> {
    let all = writes(data, order.iter().copied());
    let helpers = store.helpers();
    let mut stalls = Vec::with_capacity(all.len() / BATCH + 1);
    let start = Clocks::now(&helpers);
    for chunk in all.chunks(BATCH) {
        let before = Instant::now();
        let pair = |w: &'_ Write| (w.key, data.value(w.number, w.version));
        let pairs: Vec<_> = chunk.iter().map(pair).collect();
        store.commit(&mut pairs.iter().map(|(key, value)| (key.as_ref(), *value)))?;
        stalls.push(before.elapsed().as_nanos() as f64);
    }
    finished(start, &helpers, all.len(), stalls)
}

/// Commits of one pair each.
pub fn puts(store: &dyn Store, data: &Data, ops: usize, seed: u64) -> Done<Figures> {
    let mut random = Random::new(seed);
    let mut all = writes(data, (0..ops + ops / 4).map(|_| random.below(data.keys)));
    let singles = all.split_off(ops);
    let helpers = store.helpers();
    let put = |w: &Write| store.put(w.key.as_ref(), data.value(w.number, w.version));
    let start = Clocks::now(&helpers);
    for w in &all {
        put(w)?;
    }
    let mut passed = start.passed(&helpers);
    // Each on its own, for the percentile; the background work of both passes is shared.
    let middle = Clocks::now(&helpers);
    let mut stalls = Vec::with_capacity(singles.len());
    for w in &singles {
        let before = Instant::now();
        put(w)?;
        stalls.push(before.elapsed().as_nanos() as f64);
    }
    settle(&helpers);
    let share = all.len() as f64 / (all.len() + singles.len()) as f64;
    passed.all = (passed.all + middle.passed(&helpers).all) * share;
    let mut out = per_op(passed, all.len());
    out.push(("p99", quantile(&mut stalls, 0.99)));
    out.push(("max", quantile(&mut stalls, 1.0)));
    Ok(out)
}

fn finished(start: Clocks, helpers: &[i32], ops: usize, mut stalls: Vec<f64>) -> Done<Figures> {
    let mut passed = start.passed(helpers);
    settle(helpers);
    passed.all = start.passed(helpers).all;
    let mut out = per_op(passed, ops);
    out.push(("p99", quantile(&mut stalls, 0.99)));
    out.push(("max", quantile(&mut stalls, 1.0)));
    Ok(out)
}

/// Reads values within one transaction.
pub fn gets(store: &dyn Store, data: &Data, ops: usize) -> Done<Figures> {
    let mut out = Ok(Figures::new());
    store.view(&mut |view| {
        out = read(store, data, ops, &mut |key, value| view.get(key, value));
        Ok(())
    })?;
    out
}

/// Reads values, each in a transaction of its own.
pub fn own_gets(store: &dyn Store, data: &Data, ops: usize) -> Done<Figures> {
    read(store, data, ops, &mut |key, value| store.get(key, value))
}

type Get<'a> = dyn FnMut(&[u8], &mut Vec<u8>) -> Done<bool> + 'a;

fn read(store: &dyn Store, data: &Data, ops: usize, get: &mut Get) -> Done<Figures> {
    let mut random = Random::new(11);
    let all: Vec<(usize, Key)> = (0..ops)
        .map(|_| random.below(data.keys))
        .map(|i| (i, data.key(i)))
        .collect();
    let mut value = Vec::with_capacity(data.value_len);
    for (i, key) in all.iter().take(ops / 8) {
        if !get(key.as_ref(), &mut value)? || value != data.now(*i) {
            return Err(wrong(*i));
        }
    }
    let helpers = store.helpers();
    let mut chunks = Vec::with_capacity(ops / CHUNK + 1);
    let start = Clocks::now(&helpers);
    for chunk in all.chunks(CHUNK) {
        let before = Instant::now();
        for (i, key) in chunk {
            if !get(key.as_ref(), &mut value)? || value.len() != data.value_len {
                return Err(wrong(*i));
            }
        }
        chunks.push(before.elapsed().as_nanos() as f64 / chunk.len() as f64);
        if let Some((i, _)) = chunk.last()
            && value != data.now(*i)
        {
            return Err(wrong(*i));
        }
    }
    let mut out = per_op(start.passed(&helpers), ops);
    out.push(("median", quantile(&mut chunks, 0.5)));
    Ok(out)
}

/// Scans of `SCAN` pairs, all within one transaction.
pub fn scans(store: &dyn Store, data: &Data, ops: usize) -> Done<Figures> {
    let mut random = Random::new(12);
    let length = SCAN.min(data.keys);
    let all: Vec<(usize, Key)> = (0..ops)
        .map(|_| random.below(data.keys - length + 1))
        .map(|i| (i, data.key(i)))
        .collect();
    let helpers = store.helpers();
    let mut out = Ok(Figures::new());
    store.view(&mut |view| {
        // A first pass that does not count.
        for (i, key) in all.iter().take(ops / 8) {
            scan(view, data, *i, key, length)?;
        }
        let start = Clocks::now(&helpers);
        for (i, key) in &all {
            scan(view, data, *i, key, length)?;
        }
        out = Ok(per_op(start.passed(&helpers), ops));
        Ok(())
    })?;
    out
}

/// One scan. Each value is copied; the last pair must be the right one.
fn scan(view: &mut dyn View, data: &Data, i: usize, key: &Key, length: usize) -> Done<()> {
    let (mut seen, mut buffer, mut good) = (0, Vec::with_capacity(data.value_len), true);
    view.scan(key.as_ref(), length, &mut |key, value| {
        buffer.clear();
        buffer.extend_from_slice(value);
        seen += 1;
        if seen == length {
            let last = i + length - 1;
            good = key == data.key(last).as_ref() && buffer == data.now(last);
        }
    })?;
    if seen == length && good {
        Ok(())
    } else {
        Err(wrong(i))
    }
}

/// Two readers, each with a new transaction every hundred gets, and a writer of ten pairs per
/// commit, for a time. What the readers and what the writer did.
pub fn mix(store: &dyn Store, data: &Data, time: Duration) -> Done<(Figures, Figures)> {
    let helpers = store.helpers();
    let before: Vec<u32> = (0..data.keys).map(|i| data.version(i)).collect();
    let until = Instant::now() + time;
    let all = Clocks::now(&helpers);
    let (reads, writes) = std::thread::scope(|scope| {
        let readers = [21, 22].map(|seed| {
            let before = &before;
            scope.spawn(move || reader(store, data, before, until, seed))
        });
        let writer = writer(store, data, until);
        let mut reads = (0, 0);
        for reader in readers {
            let (ops, ns) = reader.join().map_err(|_| "a reader panicked")??;
            reads = (reads.0 + ops, reads.1 + ns);
        }
        Done::Ok((reads, writer?))
    })?;
    settle(&helpers);
    let used = all.passed(&helpers).all;
    let figures = |(ops, ns): (usize, u64)| {
        let n = ops.max(1) as f64;
        let wall = time.as_nanos() as f64;
        vec![
            ("wall", wall / n),
            ("thread", ns as f64 / n),
            ("rate", n * 1e9 / wall),
            ("busy", used / wall),
        ]
    };
    Ok((figures(reads), figures(writes)))
}

fn writer(store: &dyn Store, data: &Data, until: Instant) -> Done<(usize, u64)> {
    let mut random = Random::new(23);
    let (mut ops, start) = (0, clock::thread_ns());
    while Instant::now() < until {
        let ten: [Write; 10] = std::array::from_fn(|_| {
            let number = random.below(data.keys);
            let version = data.write(number);
            Write {
                key: data.key(number),
                number,
                version,
            }
        });
        let pair = |w: &'_ Write| (w.key, data.value(w.number, w.version));
        let pairs = ten.each_ref().map(pair);
        store.commit(&mut pairs.iter().map(|(key, value)| (key.as_ref(), *value)))?;
        ops += ten.len();
    }
    Ok((ops, clock::thread_ns() - start))
}

fn reader(
    store: &dyn Store,
    data: &Data,
    before: &[u32],
    until: Instant,
    seed: u64,
) -> Done<(usize, u64)> {
    let mut random = Random::new(seed);
    let mut value = Vec::with_capacity(data.value_len);
    let (mut ops, start) = (0, clock::thread_ns());
    while Instant::now() < until {
        store.view(&mut |view| {
            for n in 0..100 {
                let i = random.below(data.keys);
                if !view.get(data.key(i).as_ref(), &mut value)? {
                    return Err(wrong(i));
                }
                // Any version since the start may be seen, but nothing else.
                let mut versions = before[i]..=data.version(i);
                if n % CHECK == 0 && !versions.any(|v| value == data.value(i, v)) {
                    return Err(wrong(i));
                }
            }
            ops += 100;
            Ok(())
        })?;
    }
    Ok((ops, clock::thread_ns() - start))
}

/// Compares some keys with what was written last.
pub fn verify(store: &dyn Store, data: &Data, numbers: impl Iterator<Item = usize>) -> Done<()> {
    let mut value = Vec::new();
    for i in numbers {
        if !store.get(data.key(i).as_ref(), &mut value)? {
            return Err(format!("key {i} is gone").into());
        }
        if value != data.now(i) {
            let now = data.version(i);
            let had = data.which(i, &value);
            let had = had.map_or("what nobody wrote".into(), |v| format!("write {v}"));
            return Err(format!("key {i} holds {had}, not its last write, {now}").into());
        }
    }
    Ok(())
}

fn wrong(i: usize) -> crate::store::Error {
    format!("key {i} does not hold what was written").into()
}

/// The `q` quantile by nearest rank; 0 of nothing.
fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (q * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers;
    use crate::store::{Pair, Role, Site};
    use std::path::PathBuf;

    fn memory() -> Box<dyn Store> {
        let site = Site {
            dir: PathBuf::new(),
            payload: 0,
            holdfast: PathBuf::new(),
        };
        (peers::find("btreemap").unwrap().open)(&site, Role::Alone).unwrap()
    }

    #[test]
    fn rows_measure_what_was_loaded() {
        let (store, data) = (memory(), Data::new(3000, 100));
        assert!(gets(&*store, &data, 10).is_err(), "nothing is there yet");
        batches(&*store, &data, &data.shuffled(3)).unwrap();
        for figures in [
            gets(&*store, &data, 100).unwrap(),
            own_gets(&*store, &data, 100).unwrap(),
            scans(&*store, &data, 20).unwrap(),
            puts(&*store, &data, 100, 1).unwrap(),
        ] {
            assert!(
                figures
                    .iter()
                    .any(|(name, ns)| *name == "wall" && *ns > 0.0)
            );
        }
        let (reads, writes) = mix(&*store, &data, Duration::from_millis(50)).unwrap();
        assert!(reads[2].1 > 0.0 && writes[2].1 > 0.0);
        verify(&*store, &data, 0..3000).unwrap();
    }

    /// Forgets every other commit.
    struct Liar(Box<dyn Store>, std::sync::atomic::AtomicUsize);

    impl Store for Liar {
        fn commit(&self, pairs: &mut dyn Iterator<Item = Pair<'_>>) -> Done<()> {
            match self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2 {
                0 => self.0.commit(pairs),
                _ => Ok(()),
            }
        }
        fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Done<bool> {
            self.0.get(key, out)
        }
        fn view(&self, body: &mut dyn FnMut(&mut dyn View) -> Done<()>) -> Done<()> {
            self.0.view(body)
        }
    }

    #[test]
    fn a_store_that_lies_is_noticed() {
        let (store, data) = (Liar(memory(), 0.into()), Data::new(1000, 100));
        batches(&store, &data, &data.shuffled(3)).unwrap();
        verify(&store, &data, 0..1000).unwrap();
        batches(&store, &data, &data.shuffled(4)).unwrap();
        assert!(verify(&store, &data, 0..1000).is_err());
        assert!(gets(&store, &data, 100).is_err());
        assert!(own_gets(&store, &data, 100).is_err());
        assert!(scans(&store, &data, 100).is_err());
    }
}
