//! Processes that write and read the same keyspaces are killed and stopped at any moment, and so
//! is the service. What was acknowledged must be there, batches must be whole, nobody may fail or
//! wait for good.
//!
//! This program is also the processes of the kills, and their `holdfast` command.

mod fixture;

use fixture::Rng;
use holdfast::{Durability::*, Expires, Keyspace, Pool};
use holdfast_client::attach::attach;
use holdfast_client::{Client, Segments, recover, slots};
use holdfast_pmem::Medium;
use holdfast_pool::format::superblock::{Consistency, SUPERBLOCK_LEN, Superblock};
use holdfast_pool::layout::VALUES;
use holdfast_service::{CreateOptions, Job, Options, Service};
use rustix::fd::AsFd;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const WRITERS: u64 = 3;
const READERS: u64 = 2;
const TIME: Duration = Duration::from_secs(12);
/// Nothing takes so long, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Keys that a writer puts one by one.
const SINGLES: u64 = 40;
/// Keys that it puts with a time.
const BRIEF: u64 = 16;
const ESTALE: i32 = 116;

type Done = Result<(), Box<dyn std::error::Error>>;
type Test = (&'static str, fn() -> Done);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let id = |text: &str| text.parse::<u64>().unwrap_or(0);
    if let Ok(me) = std::env::current_exe() {
        holdfast::use_program(me);
    }
    let done = match words.as_slice() {
        ["serve", "--ending", "--apart", "--", dir] => serve_apart(dir),
        ["serve", "--ending", "--", dir] => serve(Path::new(dir)),
        ["writer", dir, n] => writer(Path::new(dir), id(n)),
        ["write-back", "--", dir] => help(Path::new(dir), false),
        ["write-back", "--expired", "--", dir] => help(Path::new(dir), true),
        ["reader", dir, n] => reader(Path::new(dir), id(n)),
        ["viewer", dir] => viewer(Path::new(dir)),
        _ => return play(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{words:?}: {e}");
            ExitCode::FAILURE
        }
    }
}

fn play() -> ExitCode {
    let (mut passed, mut failed) = (0, 0);
    let tests: [Test; 4] = [
        ("a_stopped_view_is_ousted", stopped_view),
        ("many_expire_at_once", || many_expire(Medium::Memory)),
        ("many_expire_at_once_on_a_disk", || {
            many_expire(Medium::File)
        }),
        ("nothing_acknowledged_is_lost", kills),
    ];
    let chosen = std::env::args().nth(1).unwrap_or_default();
    for (name, test) in tests.into_iter().filter(|(name, _)| name.contains(&chosen)) {
        match test() {
            Ok(()) => (passed, _) = (passed + 1, println!("test {name} ... ok")),
            Err(e) => (failed, _) = (failed + 1, println!("test {name} ... FAILED\n    {e}")),
        }
    }
    let ok = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {ok}. {passed} passed; {failed} failed; 0 ignored; 0 measured");
    ExitCode::from(u8::from(failed > 0))
}

fn serve_apart(dir: &str) -> Done {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["serve", "--ending", "--", dir]).spawn()?;
    Ok(())
}

fn serve(dir: &Path) -> Done {
    let opened = Service::open(
        dir,
        Options {
            ending: true,
            writeback: Some(helper),
            ..Options::default()
        },
    );
    let mut out = std::io::stdout();
    match opened {
        Ok(service) => {
            if let Some((seq, why)) = &service.recovered().rejected {
                std::fs::write(dir.join("rejected"), format!("{seq}: {why}"))?;
            }
            writeln!(out, "ready")?;
            Ok(service.run()?)
        }
        Err(e) => Ok(writeln!(out, "holdfast: {e}")?),
    }
}

/// The command that does a job for the service.
fn helper(dir: &Path, job: Job) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("write-back");
    command.args((job == Job::RemoveExpired).then_some("--expired"));
    command.arg("--").arg(dir);
    command
}

/// Does such a job, as the real command does.
fn help(dir: &Path, expired: bool) -> Done {
    let attachment = attach(dir.as_os_str().as_encoded_bytes(), None)?;
    let answer = &attachment.answer;
    let segments = Segments {
        session: attachment.memory()?,
        meta: (attachment.meta.as_fd(), answer.meta_len),
        journal: (attachment.journal.as_fd(), answer.journal_len),
        data: (attachment.data.as_fd(), answer.data_room),
        medium: answer.medium,
        cpu: 0,
    };
    let client = Client::attach(&segments, b"")?;
    slots::register_helper(client.session(), std::process::id())?;
    recover::lanes(client.session())?;
    let done = match expired {
        true => client.kv_remove_expired(2000),
        false => client.write_back().map(drop),
    };
    client.exit(true);
    Ok(done?)
}

/// A pool directory of our own, and beside it what its processes tell.
struct Fixture {
    dir: PathBuf,
}

impl Fixture {
    fn new(name: &str, size: u64) -> Result<Fixture, Box<dyn std::error::Error>> {
        Fixture::on(name, size, Medium::Memory)
    }

    fn on(name: &str, size: u64, medium: Medium) -> Result<Fixture, Box<dyn std::error::Error>> {
        let parent = match medium {
            // Where the build is, is mostly no memory.
            Medium::File => env!("CARGO_TARGET_TMPDIR"),
            _ => "/dev/shm",
        };
        let dir = PathBuf::from(format!("{parent}/hf-kills-{name}-{}", std::process::id()));
        let options = CreateOptions {
            size: Some(size),
            medium: Some(medium),
            consistency: Consistency::Posix,
        };
        holdfast_service::create(&dir, &options)?;
        Ok(Fixture { dir })
    }

    fn start(&self, role: &str, id: u64) -> std::io::Result<Child> {
        Command::new(std::env::current_exe()?)
            .arg(role)
            .arg(&self.dir)
            .arg(id.to_string())
            .stdin(Stdio::null())
            .spawn()
    }

    /// The processes that serve this pool.
    fn services(&self) -> Vec<Pid> {
        let is_ours = |pid: &str| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|b| *b == 0);
            let dir = self.dir.as_os_str().as_encoded_bytes();
            words.any(|w| w == b"serve") && words.any(|w| w == dir)
        };
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.bytes().all(|b| b.is_ascii_digit()) && is_ours(name))
            .filter_map(|name| Pid::from_raw(name.parse().ok()?))
            .collect()
    }

    /// Waits until the last service has ended, and looks for damage.
    fn close(&self) -> Done {
        let begun = Instant::now();
        while !self.services().is_empty() {
            if begun.elapsed() > PATIENCE {
                return Err("the service does not end with its last user".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // Whatever a killed one left.
        drop(Pool::open(&self.dir)?);
        while !self.services().is_empty() && begun.elapsed() < 2 * PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        if let Ok(why) = std::fs::read_to_string(self.dir.join("rejected")) {
            return Err(format!("recovery refused record {why}").into());
        }
        let meta = std::fs::read(self.dir.join("meta.seg"))?;
        let data = std::fs::metadata(self.dir.join("data-0.seg"))?.len();
        let report = holdfast_pool::check::check(&&meta[..], data, None);
        let damage: Vec<String> = report.damage().map(|d| d.to_string()).collect();
        match damage.is_empty() {
            true => Ok(()),
            false => Err(format!("{damage:?}").into()),
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for pid in self.services() {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// What a writer says of itself: the number that it is about to write, the last that it has
/// written, and when the key expires that it puts with the former. A file, so that it outlives the
/// writer.
struct Diary(File);

impl Diary {
    fn of(dir: &Path, id: u64) -> std::io::Result<Diary> {
        let path = dir.join(format!("diary-{id}"));
        let file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)?;
        if file.metadata()?.len() == 0 {
            file.write_all_at(&[0; 24], 0)?;
        }
        Ok(Diary(file))
    }

    fn get(&self, place: u64) -> std::io::Result<u64> {
        let mut word = [0; 8];
        self.0.read_exact_at(&mut word, 8 * place)?;
        Ok(u64::from_le_bytes(word))
    }

    fn begun(&self) -> std::io::Result<u64> {
        self.get(0)
    }

    fn told(&self) -> std::io::Result<u64> {
        self.get(1)
    }

    fn set(&self, place: u64, number: u64) -> std::io::Result<()> {
        self.0.write_all_at(&number.to_le_bytes(), 8 * place)
    }
}

fn both(pool: &Pool) -> holdfast::Result<[Keyspace; 2]> {
    Ok([
        pool.keyspace_or_create("one")?,
        pool.keyspace_or_create("two")?,
    ])
}

fn pair(id: u64) -> Vec<u8> {
    format!("pair-{id}").into_bytes()
}

fn single(id: u64, number: u64) -> Vec<u8> {
    format!("single-{id}-{:03}", number % SINGLES).into_bytes()
}

/// A key that is there for moments only.
fn brief(id: u64, number: u64) -> Vec<u8> {
    format!("brief-{id}-{}", number % BRIEF).into_bytes()
}

/// One that nobody puts again.
fn once(id: u64, number: u64) -> Vec<u8> {
    format!("once-{id}-{number}").into_bytes()
}

/// Its value, which ends with the time.
fn brief_value(number: u64, until: u64) -> Vec<u8> {
    [value(number), until.to_le_bytes().to_vec()].concat()
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

fn value(number: u64) -> Vec<u8> {
    let len = [8, 60, 1500, 4096, 20_000][(number.wrapping_mul(7919) >> 3) as usize % 5];
    let mut value = vec![number as u8; len];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

/// The number in a value, which is whole.
fn number(value: Option<Vec<u8>>) -> Result<u64, String> {
    let Some(bytes) = value else { return Ok(0) };
    let first = bytes.first_chunk().ok_or("a short value")?;
    let number = u64::from_le_bytes(*first);
    match bytes == self::value(number) {
        true => Ok(number),
        false => Err(format!("the value of {number} is torn")),
    }
}

/// Writes numbers until it is killed.
fn writer(dir: &Path, id: u64) -> Done {
    let pool = Pool::open(dir)?;
    let [one, two] = both(&pool)?;
    let diary = Diary::of(dir, id)?;
    for n in diary.begun()? + 1.. {
        diary.set(0, n)?;
        let mut batch = pool.batch();
        batch.put(&one, &pair(id), &value(n))?;
        batch.put(&two, &pair(id), &value(n))?;
        if n.is_multiple_of(50) {
            // Waits for the trees.
            batch.erase_range(&one, b"x", None)?;
        }
        batch.commit(Durable)?;
        one.put(&single(id, n), &value(n), Durable)?;
        two.erase(&single(id, n + 1), Ordered)?;
        let until = now() + [0, 100_000, 300_000, 3_000_000][n as usize % 4];
        diary.set(2, until)?;
        let expires = Expires::At(until as i64);
        two.put_until(&brief(id, n), &brief_value(n, until), expires, Durable)?;
        if n.is_multiple_of(10) {
            two.put_until(&once(id, n), &value(n), expires, Ordered)?;
        }
        diary.set(1, n)?;
    }
    Ok(())
}

/// A key is there until its time has come, and not any more from then on.
fn look_at_brief(two: &Keyspace, diary: &Diary, id: u64, back: u64) -> Done {
    let (told, until, before) = (diary.told()?, diary.get(2)?, now());
    let Some(mut bytes) = two.get(&brief(id, told + BRIEF - back))? else {
        // Nothing new has begun: this is the time of what was told.
        let is_lost = back == 0 && now() < until && told > 0 && diary.begun()? == told;
        return match is_lost {
            true => Err(format!("{id}: {told} expires at {until} and is gone").into()),
            false => Ok(()),
        };
    };
    let end = bytes.split_off(bytes.len().saturating_sub(8));
    let expires = u64::from_le_bytes(*end.first_chunk().ok_or("a short value")?);
    let found = number(Some(bytes))?;
    let least = told.saturating_sub(back);
    match expires > before && least <= found && found <= diary.begun()? {
        true => Ok(()),
        false => Err(format!("{id}: {found} at {before} until {expires}, told {told}").into()),
    }
}

/// What all writers have told must be there.
fn look(pool: &Pool, dir: &Path, rng: &mut Rng) -> Done {
    let [one, two] = both(pool)?;
    for id in 0..WRITERS {
        let diary = Diary::of(dir, id)?;
        let told = diary.told()?;
        let a = number(one.get(&pair(id))?)?;
        let b = number(two.get(&pair(id))?)?;
        let last = number(one.get(&single(id, told))?)?;
        let begun = diary.begun()?;
        if !(told <= a && a <= b && b <= begun && told <= last && last <= begun) {
            return Err(format!("{id}: told {told}, found {a} {b} {last}, begun {begun}").into());
        }
        look_at_brief(&two, &diary, id, 0)?;
        look_at_brief(&two, &diary, id, rng.roll(BRIEF))?;
        if rng.roll(20) == 0 {
            let told = diary.told()?;
            let [a, b] = match in_view(pool, id) {
                Ok(found) => found,
                // With its service, a view's root is gone.
                Err(e) if e.errno() == ESTALE => continue,
                Err(e) => return Err(e.into()),
            };
            let (a, b) = (number(a)?, number(b)?);
            if a != b || a < told {
                return Err(format!("{id}: a view shows {a} and {b}, told {told}").into());
            }
        }
    }
    Ok(())
}

fn in_view(pool: &Pool, id: u64) -> holdfast::Result<[Option<Vec<u8>>; 2]> {
    let view = pool.read()?;
    let get = |name| view.keyspace(name)?.get(&pair(id));
    Ok([get("one")?, get("two")?])
}

/// Looks until it is killed.
fn reader(dir: &Path, id: u64) -> Done {
    let pool = Pool::open(dir)?;
    let mut rng = Rng(id + 77);
    loop {
        look(&pool, dir, &mut rng)?;
    }
}

fn kills() -> Done {
    let fixture = Fixture::new("kill", 64 << 20)?;
    let keeper = Pool::open(&fixture.dir)?;
    let mut rng = Rng(u64::from(std::process::id()));
    let role = |place: u64| match place < WRITERS {
        true => ("writer", place),
        false => ("reader", place),
    };
    let mut children = Vec::new();
    for place in 0..WRITERS + READERS {
        let (role, id) = role(place);
        children.push(fixture.start(role, id)?);
    }
    let (begun, mut kills, mut services) = (Instant::now(), 0, 0);
    while begun.elapsed() < TIME {
        std::thread::sleep(Duration::from_micros(rng.roll(150_000)));
        let place = rng.roll(WRITERS + READERS);
        let child = &mut children[place as usize];
        let pid = Pid::from_child(child);
        if let Some(status) = child.try_wait()? {
            let (role, id) = role(place);
            children.iter_mut().for_each(|child| drop(child.kill()));
            return Err(format!("{role} {id} ended by itself: {status}").into());
        }
        match rng.roll(8) {
            0 => {
                // Sometimes longer than others wait for a number.
                kill_process(pid, Signal::STOP)?;
                let most = [20, 300, 1500][rng.roll(3) as usize];
                std::thread::sleep(Duration::from_millis(rng.roll(most)));
                kill_process(pid, Signal::CONT)?;
            }
            1 => {
                for pid in fixture.services() {
                    services += usize::from(kill_process(pid, Signal::KILL).is_ok());
                }
            }
            _ => {
                child.kill()?;
                child.wait()?;
                kills += 1;
                look(&keeper, &fixture.dir, &mut rng)?;
                let (role, id) = role(place);
                children[place as usize] = fixture.start(role, id)?;
            }
        }
    }
    for child in &mut children {
        child.kill()?;
        child.wait()?;
    }
    look(&keeper, &fixture.dir, &mut rng)?;
    // What was put once has expired, and what is left expires within moments.
    std::thread::sleep(Duration::from_millis(5));
    let left = both(&keeper)?[1].prefix(b"once")?.count();
    if left > 0 {
        return Err(format!("{left} expired keys are there").into());
    }
    let steps: u64 = (0..WRITERS)
        .map(|id| Diary::of(&fixture.dir, id)?.told())
        .sum::<Result<_, _>>()?;
    drop(keeper);
    println!("{kills} kills, {services} services, {steps} steps");
    if steps < 100 || kills < 10 {
        return Err(format!("only {steps} steps and {kills} kills").into());
    }
    fixture.close()
}

/// Begins a view, says so, and reads it when it is told to.
fn viewer(dir: &Path) -> Done {
    let pool = Pool::open(dir)?;
    let view = pool.read()?;
    let old = view.keyspace("k")?;
    println!("ready");
    std::io::stdin().lock().read_line(&mut String::new())?;
    let mut evicted = 0;
    for i in 0..100u64 {
        match old.get(&i.to_le_bytes()) {
            Ok(found) => {
                if found != Some(vec![1; 4096]) {
                    return Err(format!("value {i} is another one").into());
                }
            }
            Err(e) if e.errno() == ESTALE && e.fix().is_some() => evicted += 1,
            Err(e) => return Err(e.into()),
        }
    }
    println!("{evicted}");
    // Its process goes on with a new one.
    let now = pool.read()?.keyspace("k")?.get(&0u64.to_le_bytes())?;
    match now == Some(vec![2; 4096]) {
        true => Ok(()),
        false => Err("a new view does not show the present".into()),
    }
}

fn stopped_view() -> Done {
    let fixture = Fixture::new("view", 32 << 20)?;
    let pool = Pool::open(&fixture.dir)?;
    let keyspace = pool.keyspace_or_create("k")?;
    for i in 0..100u64 {
        keyspace.put(&i.to_le_bytes(), &[1; 4096], Ordered)?;
    }
    let mut child = Command::new(std::env::current_exe()?)
        .arg("viewer")
        .arg(&fixture.dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut out = BufReader::new(child.stdout.take().ok_or("no output")?);
    let mut line = String::new();
    out.read_line(&mut line)?;
    kill_process(Pid::from_child(&child), Signal::STOP)?;
    // Several times what the pool has room for.
    let begun = Instant::now();
    for round in 0..40_000u64 {
        keyspace.put(&(round % 100).to_le_bytes(), &[2; 4096], Ordered)?;
    }
    let took = begun.elapsed();
    kill_process(Pid::from_child(&child), Signal::CONT)?;
    writeln!(child.stdin.take().ok_or("no input")?, "go")?;
    line.clear();
    out.read_line(&mut line)?;
    let status = child.wait()?;
    let evicted: u64 = line.trim().parse().unwrap_or(0);
    if !status.success() || evicted != 100 || took > PATIENCE {
        return Err(format!("{status}, {evicted} of 100 evicted, {took:?}").into());
    }
    drop((keyspace, pool));
    fixture.close()
}

/// Keys that the test below has expire in one moment; `HF_EXPIRING=1000000` for a real number.
fn expiring() -> Result<u64, std::num::ParseIntError> {
    std::env::var("HF_EXPIRING").map_or(Ok(60_000), |n| n.parse())
}

/// How long the calls of a program took.
#[derive(Default)]
struct Calls {
    longest: Duration,
    /// Beyond 1, 10, 100 ms.
    long: [u64; 3],
    all: u64,
}

impl Calls {
    fn note(&mut self, took: Duration) {
        self.longest = self.longest.max(took);
        self.all += 1;
        for (count, limit) in self.long.iter_mut().zip([1, 10, 100]) {
            *count += u64::from(took > Duration::from_millis(limit));
        }
    }
}

impl std::fmt::Display for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Calls { longest, long, all } = self;
        write!(
            f,
            "{all} calls, longest {longest:?}, {long:?} above 1, 10, 100 ms"
        )
    }
}

/// Gets and puts lasting keys until something has come true.
fn use_until(keyspace: &Keyspace, is_done: &dyn Fn() -> bool) -> Result<Calls, String> {
    let (mut calls, mut n) = (Calls::default(), 0u64);
    while !n.is_multiple_of(256) || !is_done() {
        let key = format!("lasting-{}", n.wrapping_mul(7919) % 1000);
        let begun = Instant::now();
        let done = match n % 2 {
            0 => keyspace.put(key.as_bytes(), &n.to_le_bytes(), Ordered),
            _ => keyspace.get(key.as_bytes()).map(drop),
        };
        done.map_err(|e| format!("{key}: {e}"))?;
        calls.note(begun.elapsed());
        n += 1;
    }
    Ok(calls)
}

impl Fixture {
    /// Entries of the tree of values, as the medium has them.
    fn values(&self) -> u64 {
        let meta = File::open(self.dir.join("meta.seg")).ok();
        let mut bytes = [0; 8192];
        let read = meta.and_then(|meta| meta.read_exact_at(&mut bytes, 0).ok());
        let both = bytes.chunks_exact(4096).filter_map(|page| {
            let bytes = page.first_chunk::<SUPERBLOCK_LEN>()?;
            Superblock::decode(bytes).ok()
        });
        let last = both.max_by_key(|superblock| superblock.seq);
        match (read, last) {
            (Some(()), Some(superblock)) => superblock.roots[usize::from(VALUES)].keys,
            _ => u64::MAX,
        }
    }

    /// The most memory that the services had at any time, as the kernel says it.
    fn service_memory(&self) -> String {
        let peak = |pid: &Pid| {
            let path = format!("/proc/{}/status", pid.as_raw_nonzero());
            let status = std::fs::read_to_string(path).unwrap_or_default();
            let line = status.lines().find(|line| line.starts_with("RssAnon"));
            line.map(|line| {
                line.split_whitespace()
                    .skip(1)
                    .collect::<Vec<_>>()
                    .join(" ")
            })
        };
        let all: Vec<String> = self.services().iter().filter_map(peak).collect();
        all.join(", ")
    }
}

/// Puts so many keys that all expire at once; when that is.
fn put_many(pool: &Pool, keyspace: &Keyspace, n: u64) -> Result<u64, Box<dyn std::error::Error>> {
    let until = now() + 1_500_000_000 + n * 8_000;
    for first in (0..n).step_by(1000) {
        let mut batch = pool.batch();
        for i in first..n.min(first + 1000) {
            let value = if i % 50 == 0 {
                vec![7; 9000]
            } else {
                vec![7; 100]
            };
            batch.put_until(keyspace, &once(0, i), &value, Expires::At(until as i64))?;
        }
        batch.commit(Ordered)?;
    }
    Ok(until)
}

/// Many keys expire at once, twice what the pool has room for. Whoever uses it meanwhile waits for
/// nothing long, and all is gone in the end; so it is if nobody was there when they expired.
fn many_expire(medium: Medium) -> Done {
    let n = expiring()?;
    let fixture = Fixture::on("many", (48 << 20) + n * 900, medium)?;
    let pool = Pool::open(&fixture.dir)?;
    let keyspace = pool.keyspace_or_create("k")?;
    for i in 0..1000 {
        keyspace.put(format!("lasting-{i}").as_bytes(), &[1; 8], Ordered)?;
    }
    for round in 0..2 {
        let begun = Instant::now();
        let until = put_many(&pool, &keyspace, n)?;
        let loaded = begun.elapsed();
        let before = use_until(&keyspace, &|| now() >= until)?;
        let begun = Instant::now();
        let is_gone = || fixture.values() <= 1000;
        let late = || begun.elapsed() > 3 * PATIENCE + Duration::from_micros(n * 60);
        let during = use_until(&keyspace, &|| is_gone() || late())?;
        println!("{n} keys, {medium:?}, round {round}: loaded in {loaded:?}");
        println!("  before: {before}\n  during: {during}");
        let memory = fixture.service_memory();
        println!("  removed in {:?}, service has {memory}", begun.elapsed());
        if !is_gone() {
            return Err(format!("{} entries are left", fixture.values()).into());
        }
        if during.longest > Duration::from_secs(2) {
            return Err(format!("a call took {:?}", during.longest).into());
        }
    }
    let until = put_many(&pool, &keyspace, n)?;
    drop((keyspace, pool));
    let away = Instant::now();
    while now() < until || !fixture.services().is_empty() {
        if away.elapsed() > PATIENCE + Duration::from_micros(n * 60) {
            return Err("the service does not end".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let begun = Instant::now();
    let pool = Pool::open(&fixture.dir)?;
    let keyspace = pool.keyspace("k")?;
    let count = keyspace.count()?;
    println!(
        "  a service that starts then: {:?}, {} entries",
        begun.elapsed(),
        fixture.values()
    );
    if count != 1000 {
        return Err(format!("{count} keys are there").into());
    }
    drop((keyspace, pool));
    fixture.close()
}
