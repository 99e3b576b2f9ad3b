//! Kills at random moments: of the exporter, of the pool's service, of both.
//!
//! Invariants: what a client was told to be durable is there when the volume is exported again; the
//! judge knows only what the client said.

use super::{Exporter, MIB, client, export, needs, noise, pool_with_volume, service, wait_until};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use crate::process;
use rustix::process::{Signal, kill_process};
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub const CASES: &[(&str, Case)] = &[
    ("nbd forced writes and kills", forced),
    ("nbd flushes and kills", flushed),
    (
        "nbd flushes of other connections and kills",
        flushed_by_others,
    ),
    ("nbd writes of atomic sectors and kills", atomic),
    ("nbd goes on when the service dies", service_dies),
];

const BLOCK: usize = 4096;
const WORDS: usize = BLOCK / 8;
const SLOTS: u64 = 1000;
const ROUNDS: u64 = 8;
/// So many writes follow each other before a flush.
const UNFLUSHED_MAX: u64 = 3;

/// Writes number after number, each into its slot, and says which of them are durable. After an
/// even number of them it begins with an empty volume: new blocks are what is lost most easily.
const WRITER: &str = "
import struct
other = nbd.NBD()
other.connect_uri(h.get_uri())
n = FIRST
if n % 2 == 0:
    h.trim(16 << 20, 0)
    h.flush()
while True:
    n += 1
    KIND
";
const FORCED: &str = "h.pwrite(struct.pack('<Q', n) * 512, n * 7919 % 1000 * 4096,
        nbd.CMD_FLAG_FUA); print(n, flush=True)";
const FLUSHED: &str = "h.pwrite(struct.pack('<Q', n) * 512, n * 7919 % 1000 * 4096)
    if n % 3 == 0: h.flush(); print(n, flush=True)";
const FLUSHED_BY_OTHERS: &str = "h.pwrite(struct.pack('<Q', n) * 512, n * 7919 % 1000 * 4096)
    if n % 3 == 0: other.flush(); print(n, flush=True)";

const WRITTEN: &str = "h.pwrite(struct.pack('<Q', n) * 512, n * 7919 % 1000 * 4096)
    print(n, flush=True)";

fn forced(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh", "nbdcopy"])?;
    rounds(
        fixture,
        &pool_with_volume(fixture, "64M", "16M")?,
        FORCED,
        false,
    )
}

fn flushed(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh", "nbdcopy"])?;
    rounds(
        fixture,
        &pool_with_volume(fixture, "64M", "16M")?,
        FLUSHED,
        false,
    )
}

fn flushed_by_others(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh", "nbdcopy"])?;
    let pool = pool_with_volume(fixture, "64M", "16M")?;
    rounds(fixture, &pool, FLUSHED_BY_OTHERS, false)
}

/// Each write is durable when it is done, and is there as a whole or not at all.
fn atomic(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh", "nbdcopy"])?;
    let pool = fixture.path("pool").to_string_lossy().into_owned();
    fixture.done(&["pool", "create", &pool, "--size", "64M"])?;
    let create = ["volume", &pool, "create", "disk", "--size", "16M"];
    fixture.done(&[&create[..], &["--sector", "4096", "--atomic"]].concat())?;
    rounds(fixture, &pool, WRITTEN, true)?;
    fixture.done(&["volume", &pool, "check", "disk"]).map(drop)
}

fn rounds(fixture: &Fixture, pool: &str, kind: &str, whole: bool) -> Result<(), Stop> {
    // The words of each slot, as far as they are known to be durable.
    let mut model = vec![vec![0; WORDS]; SLOTS as usize];
    let mut last = 0;
    let moments = noise(ROUNDS as usize * 2, u64::from(std::process::id()));
    for (round, moment) in moments.chunks_exact(2).enumerate() {
        let mut exporter = export(fixture, pool, "disk", "s", &[])?;
        let script = WRITER
            .replace("FIRST", &last.to_string())
            .replace("KIND", kind);
        let acknowledged = fixture.path("acknowledged");
        let mut writer = start(fixture, &exporter, &script, &acknowledged)?;
        let begun = wait_until("something is durable", || {
            fs::metadata(&acknowledged).is_ok_and(|found| found.len() > 0)
        });
        std::thread::sleep(Duration::from_millis(u64::from(moment[0])));
        let service_too = moment[1] % 4 != 0;
        kill_all(&mut exporter, service_too.then_some(pool))?;
        process::wait(&mut writer, super::PATIENCE)?;
        process::kill_group(&writer);
        writer.wait()?;
        begun?;
        let durable = last_line(&acknowledged)?;
        if last % 2 == 0 {
            model.iter_mut().for_each(|words| words.fill(0));
        }
        (last + 1..=durable).for_each(|n| model[slot(n)].fill(n));
        let attempted = durable + UNFLUSHED_MAX;
        judge(fixture, pool, &mut model, (durable, attempted), whole)
            .map_err(|stop| of_round(stop, round, (durable, service_too)))?;
        // Odd and even, so that the next round begins with an empty volume or does not.
        last = attempted + (attempted + round as u64) % 2;
    }
    fixture.done(&["pool", "check", pool]).map(drop)
}

fn slot(n: u64) -> usize {
    (n * 7919 % SLOTS) as usize
}

fn of_round(stop: Stop, round: usize, what: (u64, bool)) -> Stop {
    match stop {
        Stop::Wrong(why) => Stop::Wrong(format!("round {round} {what:?}: {why}")),
        stop => stop,
    }
}

fn start(
    fixture: &Fixture,
    exporter: &Exporter,
    script: &str,
    out: &std::path::Path,
) -> Result<Child, Stop> {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new("nbdsh");
    command.args(["--uri", &exporter.uri, "-c", script]);
    process::clean(&mut command, &fixture.dir);
    let out = File::create(out)?;
    command.stdout(out).stderr(Stdio::null()).process_group(0);
    Ok(command.spawn()?)
}

/// The exporter, and the pool's service where it is named.
fn kill_all(exporter: &mut Exporter, pool: Option<&str>) -> Result<(), Stop> {
    let service = pool.map_or(Vec::new(), |pool| service(pool));
    if pool.is_some() && service.is_empty() {
        return wrong("the pool has no service to be killed");
    }
    // First the service: it would save what the others leave.
    let server = exporter.server()?;
    for pid in service.iter().chain([&server]) {
        // What works for the service may have ended by itself.
        let _ = kill_process(*pid, Signal::KILL);
    }
    exporter.signal(Signal::KILL)?;
    exporter.wait().map(drop)
}

/// The last whole line.
fn last_line(file: &std::path::Path) -> Result<u64, Stop> {
    let text = fs::read_to_string(file)?;
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let last = whole.lines().last().and_then(|line| line.parse().ok());
    last.ok_or_else(|| Stop::Wrong(format!("the writer said {text:?}")))
}

/// Every word of a slot is what was durable there, or of a write that was never acknowledged.
fn judge(
    fixture: &Fixture,
    pool: &str,
    model: &mut [Vec<u64>],
    (durable, attempted): (u64, u64),
    whole: bool,
) -> Result<(), Stop> {
    let exporter = export(fixture, pool, "disk", "s", &["--read-only"])?;
    let image = fixture.path("image");
    client(
        fixture,
        "nbdcopy",
        &[&exporter.uri, &image.to_string_lossy()],
    )?;
    exporter.end()?;
    let bytes = fs::read(&image)?;
    for (number, (words, block)) in model.iter_mut().zip(bytes.chunks_exact(BLOCK)).enumerate() {
        for (known, word) in words.iter_mut().zip(block.chunks_exact(8)) {
            let found = u64::from_le_bytes(word.try_into().unwrap_or_default());
            let newer = (durable + 1..=attempted).contains(&found) && slot(found) == number;
            if found != *known && !newer {
                return wrong(format!(
                    "slot {number} has {found}, not {known}; {durable} were durable"
                ));
            }
            // A write that nobody was told of may be there, also in part; then it stays.
            *known = found;
        }
        if whole && words.iter().any(|word| *word != words[0]) {
            return wrong(format!("slot {number} is torn: {words:?}"));
        }
    }
    match bytes[SLOTS as usize * BLOCK..]
        .iter()
        .all(|byte| *byte == 0)
    {
        true => Ok(()),
        false => wrong("there is something behind the slots"),
    }
}

/// Clients do not notice: the next service takes the session over.
fn service_dies(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdcopy"])?;
    let pool = pool_with_volume(fixture, "128M", "64M")?;
    let exporter = export(fixture, &pool, "disk", "s", &[])?;
    let (image, back) = (fixture.path("image"), fixture.path("back"));
    let mut amid = 0;
    for round in 0..3 {
        fs::write(&image, noise(64 * MIB, 20 + round))?;
        let mut command = Command::new("nbdcopy");
        command.arg("--flush").arg(&image).arg(&exporter.uri);
        process::clean(&mut command, &fixture.dir);
        let mut copy = command.spawn()?;
        std::thread::sleep(Duration::from_millis(10 + 15 * round));
        amid += usize::from(copy.try_wait()?.is_none());
        for pid in service(&pool) {
            let _ = kill_process(pid, Signal::KILL);
        }
        match process::wait(&mut copy, super::PATIENCE)? {
            Some(status) if status.success() => {}
            ended => {
                let _ = copy.kill();
                copy.wait()?;
                return wrong(format!("nbdcopy: {ended:?}: {}", exporter.said()));
            }
        }
        client(
            fixture,
            "nbdcopy",
            &[&exporter.uri, &back.to_string_lossy()],
        )?;
        super::same("over the death of the service", &back, &image)?;
    }
    exporter.end()?;
    if amid == 0 {
        return wrong("no service died amid a copy");
    }
    fixture.done(&["pool", "check", &pool]).map(drop)
}
