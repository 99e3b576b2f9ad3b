//! What `holdfast pool status`, `top` and the metrics say of exports that run.
//!
//! Invariant: what they count is what a client has done, neither more nor less.

use super::{Exporter, export, nbdsh, needs, pool_with_volume, wait_until};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

pub const CASES: &[(&str, Case)] = &[
    ("nbd statistics", counted),
    ("nbd statistics of several exports", several),
    ("nbd statistics of an export that is stopped", stopped),
    ("nbd statistics of an export that is killed", killed),
    ("nbd by what the volume keeps", kept),
];

/// Seven reads, five writes, three flushes, two trims, and zeroes.
const WORK: &str = "
for n in range(7): h.pread(4096, n * 4096)
for n in range(5): h.pwrite(bytes([n + 1]) * 8192, n * 8192)
for n in range(3): h.flush()
for n in range(2): h.trim(4096, n * 4096)
h.zero(16384, 65536)";

fn json(fixture: &Fixture, words: &[&str]) -> Result<Value, Stop> {
    let said = fixture.done(words)?.out;
    let parsed = serde_json::from_str(&said);
    parsed.map_err(|e| Stop::Wrong(format!("{words:?} say {said:?}: {e}")))
}

fn status(fixture: &Fixture, pool: &str) -> Result<Value, Stop> {
    json(fixture, &["pool", "status", pool, "--json"])
}

fn exports(status: &Value) -> &[Value] {
    status["exports"].as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value, path: &str) -> u64 {
    let found = value.pointer(path).and_then(Value::as_u64);
    found.unwrap_or(u64::MAX)
}

fn counted(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh"])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    if !exports(&status(fixture, &pool)?).is_empty() {
        return wrong("a pool without exports has some");
    }
    let exporter = export(fixture, &pool, "disk", "s", &["--protect", "pt"])?;
    nbdsh(fixture, &exporter.uri, WORK)?;
    let said = status(fixture, &pool)?;
    let [one] = exports(&said) else {
        return wrong(format!("one export is not one: {said}"));
    };
    for (path, expected) in [
        ("/reads/requests", 7),
        ("/reads/bytes", 7 * 4096),
        ("/writes/requests", 5),
        ("/writes/bytes", 5 * 8192),
        ("/flushes/requests", 3),
        ("/trims/requests", 2),
        ("/trims/bytes", 2 * 4096),
        ("/zeroes/bytes", 16384),
        ("/writes/failed", 0),
        ("/clients", 0),
    ] {
        if number(one, path) != expected {
            return wrong(format!("{path} is not {expected}: {one}"));
        }
    }
    let times = ["p50_ns", "p99_ns", "max_ns"];
    let times = times.map(|name| number(one, &format!("/writes/{name}")));
    let within = |ns: u64| (1..10_000_000_000).contains(&ns);
    if !times.is_sorted() || !times.into_iter().all(within) {
        return wrong(format!("times of writes: {one}"));
    }
    let words = [
        &one["volume"],
        &one["face"],
        &one["protection"],
        &one["address"],
    ];
    let expected = ["disk", "nbd", "pt", &exporter.uri];
    if words != expected || one["read_only"] != false {
        return wrong(format!("the export is not what it is: {one}"));
    }
    metrics(fixture, &pool, &exporter)?;
    exporter.end()?;
    match exports(&status(fixture, &pool)?) {
        [] => fixture.done(&["pool", "destroy", &pool])?,
        left => return wrong(format!("an export that has ended is shown: {left:?}")),
    };
    match std::path::Path::new(&pool).exists() {
        true => wrong("something of an export is left of the pool"),
        false => Ok(()),
    }
}

/// The same as metrics: each line is a value, each name has a type, and no two are alike.
fn metrics(fixture: &Fixture, pool: &str, exporter: &Exporter) -> Result<(), Stop> {
    let text = fixture.done(&["top", pool, "--metrics"])?.out;
    let start = format!("pool=\"{pool}\",volume=\"disk\",snapshot=\"\",face=\"nbd\"");
    let address = format!("address=\"{}\"", exporter.uri);
    for (name, kind, value) in [
        ("export_requests_total", "reads", "7"),
        ("export_bytes_total", "writes", "40960"),
        ("export_failed_total", "writes", "0"),
        ("export_request_seconds_count", "flushes", "3"),
    ] {
        let line = text.lines().find(|line| {
            line.starts_with(&format!("holdfast_{name}{{{start}"))
                && line.contains(&address)
                && line.contains(&format!("kind=\"{kind}\"}} {value}"))
        });
        if line.is_none() {
            return wrong(format!("no {name} of {kind} is {value} in\n{text}"));
        }
    }
    let mut seen = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let parsed = line.rsplit_once(' ');
        let Some((name, Ok(_))) = parsed.map(|(name, n)| (name, n.parse::<f64>())) else {
            return wrong(format!("no metric: {line}"));
        };
        if seen.contains(&name) {
            return wrong(format!("there are two of {name}"));
        }
        seen.push(name);
    }
    Ok(())
}

/// Those that write and those that read, with clients that stay; and what comes in a second.
fn several(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh"])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let writer = export(fixture, &pool, "disk", "s", &[])?;
    fixture.done(&["snapshot", &pool, "create", "then"])?;
    let reader = export(fixture, &pool, "disk", "t", &["--snapshot", "then"])?;
    let look = format!(
        "
import json, os, subprocess
other = nbd.NBD()
other.connect_uri({:?})
top = [{:?}, 'top', {pool:?}, '--json', '--interval', '0.5', '--count', '40']
top = subprocess.Popen(top, stdout=subprocess.PIPE)
os.set_blocking(top.stdout.fileno(), False)
said = b''
second = None
# Until there is a line about an interval in which both were asked for something, and answered.
while second is None:
    for n in range(20): h.pwrite(bytes(4096), n * 4096); other.pread(4096, 0)
    said += top.stdout.read() or b''
    if top.poll() is not None: raise Exception(said)
    lines = [json.loads(line) for line in said.split(b'\\n')[1:-1]]
    busy = lambda line, kind: any(
        export[kind].get('requests_per_second') for export in line['exports'])
    whole = [line for line in lines if len(line['exports']) == 2 and busy(line, 'writes') and
        busy(line, 'reads')]
    if whole: second = whole[0]
top.kill()
one, two = second['exports']
if one['read_only']: one, two = two, one
if two.get('snapshot') != 'then' or 'snapshot' in one: raise Exception(second)
if one['clients'] != 1 or two['clients'] != 1: raise Exception(second)
rates = one['writes'], two['reads']
for rate in rates:
    per_second = rate['requests_per_second']
    if not 0 < per_second < rate['requests'] * 3: raise Exception(rate)
    if not 0.99 < rate['bytes_per_second'] / 4096 / per_second < 1.1: raise Exception(rate)
if one['reads']['requests_per_second'] + two['writes']['requests']: raise Exception(second)",
        reader.uri,
        fixture.holdfast.display(),
    );
    nbdsh(fixture, &writer.uri, &look)?;
    let said = fixture
        .done(&["top", &pool, "--interval", "0.1", "--count", "1"])?
        .out;
    let shown = [
        "\nexport       disk: nbd at nbd+unix:",
        " disk of snapshot then: ",
    ];
    if let Some(missing) = shown.iter().find(|text| !said.contains(**text)) {
        return wrong(format!("{missing:?} is not in {said}"));
    }
    writer.end()?;
    reader.end()
}

/// It is counted and hides nobody, and nobody waits for it.
fn stopped(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh"])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let writer = export(fixture, &pool, "disk", "s", &[])?;
    let reader = export(fixture, &pool, "disk", "t", &["--read-only"])?;
    let signal = |signal| kill_process(writer.server()?, signal).map_err(errno);
    signal(Signal::STOP)?;
    for _ in 0..40 {
        let said = status(fixture, &pool)?;
        if number(&said, "/silent_exports") != 1 || exports(&said).len() != 1 {
            return wrong(format!("of a stopped export and another one: {said}"));
        }
    }
    signal(Signal::CONT)?;
    wait_until("both are shown", || {
        status(fixture, &pool).is_ok_and(|said| exports(&said).len() == 2)
    })?;
    writer.end()?;
    reader.end()
}

fn errno(e: rustix::io::Errno) -> Stop {
    std::io::Error::from(e).into()
}

/// It is not shown, nor do others than itself lose anything.
fn killed(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh"])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let mut exporter = export(fixture, &pool, "disk", "s", &[])?;
    exporter.kill()?;
    wait_until("the export is gone", || {
        status(fixture, &pool)
            .is_ok_and(|said| exports(&said).is_empty() && number(&said, "/silent_exports") == 0)
    })?;
    let again = export(fixture, &pool, "disk", "s", &[])?;
    let said = status(fixture, &pool)?;
    if exports(&said).len() != 1 {
        return wrong(format!("after one that was killed: {said}"));
    }
    again.end()?;
    fixture.done(&["pool", "destroy", &pool])?;
    match std::path::Path::new(&pool).exists() {
        true => wrong("something of a killed export is left of the pool"),
        false => Ok(()),
    }
}

/// Without words on the command line; those that are there count more.
fn kept(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh"])?;
    let pool = pool_with_volume(fixture, "64M", "1M")?;
    let protection = |name: &str, options: &[&str]| -> Result<Option<String>, Stop> {
        let exporter = export(fixture, &pool, "disk", name, options)?;
        nbdsh(fixture, &exporter.uri, "h.pread(512, 0)")?;
        let said = status(fixture, &pool)?;
        exporter.end()?;
        Ok(said.pointer("/exports/0/protection").map(Value::to_string))
    };
    let set = |words: &[&str]| {
        let words = [&["volume", &pool, "set", "disk"], words].concat();
        fixture.done(&words).map(drop)
    };
    let quoted = |mode: &str| Some(format!("{mode:?}"));
    set(&["--protect", "pmap-cache"])?;
    let found = [
        protection("a", &[])?,
        protection("b", &["--protect", "pt"])?,
        protection("c", &["--persist", "nt"])?,
        protection("d", &["--read-only"])?,
    ];
    let kept = quoted("pmap-cache");
    if found != [kept.clone(), quoted("pt"), kept.clone(), kept] {
        return wrong(format!("exports are protected by {found:?}"));
    }
    // It is refused where it cannot be, with words that say why.
    set(&["--protect", "pt"])?;
    let address = format!("unix:{}", fixture.path("e").display());
    let words = [
        "export",
        &pool,
        "disk",
        "--nbd",
        &address,
        "--persist",
        "fd",
    ];
    fixture.refused(&words, &[1])?;
    set(&["--protect", "none"])?;
    match protection("f", &[])? {
        found if found == quoted("none") => Ok(()),
        found => wrong(format!("without protection it is protected by {found:?}")),
    }
}
