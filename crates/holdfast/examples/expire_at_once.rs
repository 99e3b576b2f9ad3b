//! What others notice of very many keys that expire at one moment:
//! `cargo run --release -p holdfast --example expire_at_once -- POOL [KEYS] [PAUSE US]`.
//!
//! Invariant: a thread of this process and another process put and get keys that do not expire,
//! with a pause after each two calls, before the moment and from then on. What is left of the keys
//! is asked of `holdfast pool status`, which is the program that `HOLDFAST` names.

use holdfast::{Durability::Ordered, Expires, Keyspace, Pool};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

type Failure = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Failure>;

const BATCH: usize = 1000;
const OTHERS: u64 = 10_000;
/// Of the values.
const LEN: usize = 100;
/// Between two looks at how many keys are left.
const LOOK: Duration = Duration::from_millis(500);
/// How long the calls are measured before the moment.
const BEFORE: Duration = Duration::from_secs(5);

fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_nanos() as i64
}

/// How long calls took.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn tell(mut self, who: &str, what: &str) {
        self.0.sort_unstable();
        let n = self.0.len();
        let us = |at: usize| self.0.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6);
        let (p50, p99, p999) = (us(n / 2), us(n * 99 / 100), us(n * 999 / 1000));
        let max = us(n.saturating_sub(1));
        println!(
            "{who:8} {what:10} {n:7} calls  p50 {p50:.1}  p99 {p99:.1}  p99.9 {p999:.0}  \
             max {max:.0} us"
        );
    }
}

/// Puts and gets until `done`, and tells how long the calls took.
fn others(
    keyspace: &Keyspace,
    pause: Duration,
    (who, phase): (&str, &str),
    done: &dyn Fn() -> bool,
) -> Result<()> {
    let (mut puts, mut gets) = (Times::default(), Times::default());
    let mut i = 0_u64;
    while !done() {
        let key = (i.wrapping_mul(7919) % OTHERS).to_be_bytes();
        i += 1;
        let began = Instant::now();
        keyspace.put(&key, &[7; LEN], Ordered)?;
        puts.0.push(began.elapsed());
        let began = Instant::now();
        keyspace.get(&key)?;
        gets.0.push(began.elapsed());
        if !pause.is_zero() {
            sleep(pause);
        }
    }
    puts.tell(who, &format!("put {phase}"));
    gets.tell(who, &format!("get {phase}"));
    Ok(())
}

/// The other process: until `at`, and from then on until its standard input ends.
fn other(pool: &str, at: i64, pause: Duration) -> Result<()> {
    let pool = Pool::open(pool)?;
    let keyspace = pool.keyspace_or_create("other process")?;
    others(&keyspace, pause, ("process", "before"), &|| now_ns() >= at)?;
    let ended = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            let read = std::io::stdin().read_line(&mut String::new());
            ended.store(true, Relaxed);
            read
        });
        others(&keyspace, pause, ("process", "after"), &|| {
            ended.load(Relaxed)
        })
    })
}

/// The first number behind `name` in what `holdfast pool status --json` says.
fn values(pool: &str) -> Result<u64> {
    let program = std::env::var("HOLDFAST").unwrap_or("holdfast".into());
    let args = ["pool", "status", pool, "--json"];
    let out = Command::new(program).args(args).output()?;
    let text = String::from_utf8(out.stdout)?;
    let rest = text.split("\"values\":").nth(1).ok_or("no values")?;
    let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit());
    Ok(digits.into_iter().next().unwrap_or_default().parse()?)
}

fn load(pool: &Pool, keys: u64, at: i64) -> Result<()> {
    let keyspace = pool.keyspace_or_create("expiring")?;
    let mut batch = pool.batch();
    for i in 0..keys {
        // Not in the order of the keys.
        let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        batch.put_until(&keyspace, &key, &[1; LEN], Expires::At(at))?;
        if batch.len() == BATCH || i + 1 == keys {
            batch.commit(Ordered)?;
            batch = pool.batch();
        }
    }
    Ok(pool.sync()?)
}

fn spawn(pool: &str, at: i64, pause: Duration) -> Result<Child> {
    let (at, pause) = (at.to_string(), pause.as_micros().to_string());
    let mut command = Command::new(std::env::current_exe()?);
    Ok(command
        .args([pool, "other", &at, &pause])
        .stdin(Stdio::piped())
        .spawn()?)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let pool_name = args.first().ok_or("which pool?")?;
    let pause = |at: usize| args.get(at).map_or(Ok(200), |word| word.parse());
    if args.get(1).is_some_and(|word| word == "other") {
        let at = args.get(2).ok_or("when?")?.parse()?;
        return other(pool_name, at, Duration::from_micros(pause(3)?));
    }
    let keys = args.get(1).map_or(Ok(1_000_000), |word| word.parse())?;
    let pause = Duration::from_micros(pause(2)?);
    let pool = Pool::open_or_create(pool_name)?;
    let keyspace = pool.keyspace_or_create("other thread")?;
    // So that all are put before, and some seconds are left.
    let load_ns = i64::try_from(keys)? * 5_000;
    let at = now_ns() + load_ns + 2 * BEFORE.as_nanos() as i64;
    load(&pool, keys, at)?;
    let left = at - BEFORE.as_nanos() as i64 - now_ns();
    sleep(Duration::from_nanos(left.max(0) as u64));
    let mut process = spawn(pool_name, at, pause)?;
    let removed = AtomicBool::new(false);
    scope(|scope| {
        let calls = scope.spawn(|| {
            let measured = |phase: &str, done: &dyn Fn() -> bool| {
                others(&keyspace, pause, ("thread", phase), done).map_err(|e| e.to_string())
            };
            measured("before", &|| now_ns() >= at)?;
            measured("after", &|| removed.load(Relaxed))
        });
        let rate = wait(pool_name, at, 2 * OTHERS);
        removed.store(true, Relaxed);
        drop(process.stdin.take());
        calls.join().map_err(|_| "a panic")??;
        process.wait()?;
        rate
    })
}

/// Until no more than `most` values are left; tells how fast they went.
fn wait(pool: &str, at: i64, most: u64) -> Result<()> {
    while now_ns() < at {
        sleep(Duration::from_millis(1));
    }
    let (began, all) = (Instant::now(), values(pool)?);
    let mut first = None;
    loop {
        let left = values(pool)?;
        if left < all {
            first.get_or_insert(began.elapsed());
        }
        if left <= most {
            let (first, time) = (first.unwrap_or_default(), began.elapsed());
            let rate = (all - left) as f64 / (time - first).as_secs_f64();
            println!(
                "{} went in {time:.1?}, the first after {first:.1?}: {rate:.0} per second",
                all - left
            );
            return Ok(());
        }
        sleep(LOOK);
    }
}
