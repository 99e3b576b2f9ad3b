//! `holdfast top`: what happens on a pool, and the same as metrics.
//!
//! Invariants: it uses no place in the session and starts no service by itself; a pool that nobody
//! serves is shown as it is.

use crate::args::TopArgs;
use crate::exports::{self, Before};
use crate::failure::{self, Failure};
use crate::json::Json;
use crate::limited;
use crate::metrics::{self, Kind};
use crate::state::State;
use std::fmt::Write as _;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Goes home and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";
const INTERVAL: std::ops::RangeInclusive<f64> = 0.1..=86400.0;

/// `top`.
pub fn top(args: &TopArgs, json: bool) -> Result<u8, Failure> {
    if args.metrics {
        let text = metrics_of(&args.pool, &State::of(&args.pool)?);
        failure::printed(std::io::stdout().write_all(text.as_bytes()))?;
        return Ok(failure::OK);
    }
    if !INTERVAL.contains(&args.interval) {
        let what = format!("--interval {} is not possible", args.interval);
        return Err(Failure::new(what).fix("choose from 0.1 to 86400 seconds"));
    }
    let clears = std::io::stdout().is_terminal() && !json;
    let mut before = Look::on(State::of(&args.pool)?);
    for n in 1.. {
        std::thread::sleep(Duration::from_secs_f64(args.interval));
        // A machine that is too busy for a while is what one looks at this for.
        let now = Look::on(State::of_any(&args.pool)?);
        let text = match json {
            true => now.json(&before),
            false => now.text(&args.pool, &before),
        };
        let start = if clears { CLEAR } else { "" };
        let mut out = std::io::stdout().lock();
        let written = write!(out, "{start}{text}").and_then(|()| out.flush());
        let gone = matches!(&written, Err(e) if e.kind() == ErrorKind::BrokenPipe);
        failure::printed(written)?;
        if gone || args.count.is_some_and(|count| n >= count) {
            break;
        }
        before = now;
    }
    Ok(failure::OK)
}

/// The state of a pool, and when that was.
struct Look {
    state: State,
    at: Instant,
}

impl Look {
    fn on(state: State) -> Look {
        let at = Instant::now();
        Look { state, at }
    }

    /// Changes that were applied, and commits, a second since `before`.
    fn rates(&self, before: &Look) -> [u64; 2] {
        let time = self.at.duration_since(before.at).as_secs_f64();
        let numbers = |look: &Look| [applied(&look.state), look.state.superblock().seq];
        let (now, then) = (numbers(self), numbers(before));
        std::array::from_fn(|n| (now[n].saturating_sub(then[n]) as f64 / time) as u64)
    }

    /// The exports then, and how long ago that was.
    fn exports<'a>(&self, before: &'a Look) -> Before<'a> {
        let time = self.at.duration_since(before.at);
        Some((&before.state.exports, time))
    }

    fn json(&self, before: &Look) -> String {
        let [changes, commits] = self.rates(before);
        let mut fields = self.state.fields(self.exports(before));
        fields.push(("changes_per_second", Json::Number(changes)));
        fields.push(("commits_per_second", Json::Number(commits)));
        Json::Object(fields).render() + "\n"
    }

    fn text(&self, pool: &Path, before: &Look) -> String {
        let [changes, commits] = self.rates(before);
        let mut text = format!("{}\n", pool.display());
        let rates = [("changes", changes), ("commits", commits)];
        let rates = rates.map(|(name, rate)| (name, format!("{rate}/s")));
        for (name, said) in self.state.lines(&rates, self.exports(before)) {
            let _ = writeln!(text, "{name:<12} {said}");
        }
        text + "\n"
    }
}

/// Number of the last change that is in the trees.
fn applied(state: &State) -> u64 {
    let live = state.live.as_ref().map(|answer| answer.applied_seq);
    live.unwrap_or(state.superblock().applied_seq)
}

/// The state in Prometheus' text format, as a collector of text files takes it.
fn metrics_of(pool: &Path, state: &State) -> String {
    let pool = pool.display().to_string();
    let labels = metrics::labels(&[("pool", &pool)]);
    let mut text = String::new();
    for (kind, (name, help, value)) in values_of(state) {
        metrics::head(&mut text, kind, name, help);
        metrics::value(&mut text, name, &labels, value);
    }
    text + &limited::metrics(&pool, &state.quotas) + &exports::metrics(&pool, &state.exports)
}

/// Name, meaning and value.
type Metric = (&'static str, &'static str, u64);

/// What there is of a pool as a whole.
fn values_of(state: &State) -> impl Iterator<Item = (Kind, Metric)> {
    let fields = state.fields(None);
    let field = |wanted: &str| {
        let found = fields.iter().find(|(name, _)| *name == wanted);
        match found {
            Some((_, Json::Number(n))) => *n,
            _ => 0,
        }
    };
    let gauges = gauges_of(state, field).map(|metric| (Kind::Gauge, metric));
    let counters = counters_of(state, field).map(|metric| (Kind::Counter, metric));
    let saved = saved_of(state).map(|metric| (Kind::Gauge, metric));
    gauges.into_iter().chain(counters).chain(saved)
}

fn gauges_of(state: &State, field: impl Fn(&str) -> u64) -> [Metric; 12] {
    [
        ("size_bytes", "Room for file data.", field("size")),
        ("used_bytes", "Room that is used.", field("used")),
        (
            "metadata_bytes",
            "What names, attributes and values take.",
            field("metadata"),
        ),
        (
            "objects",
            "Files, directories and others.",
            field("objects"),
        ),
        ("values", "Values of keys.", field("values")),
        ("snapshots", "Snapshots.", field("snapshots")),
        (
            "exports",
            "Exports of volumes that run.",
            state.exports.reports.len() as u64,
        ),
        (
            "service_up",
            "Whether a service runs.",
            state.live.is_some().into(),
        ),
        ("sessions", "Sessions that are open.", field("sessions")),
        ("processes", "Processes of sessions.", field("processes")),
        (
            "others",
            "Users beside the owner and root whose programs are served.",
            field("others"),
        ),
        (
            "waiting",
            "Whether somebody is waited for.",
            (!state.waiting().is_empty()).into(),
        ),
    ]
}

/// Of a pool that is kept in a file.
fn saved_of(state: &State) -> impl Iterator<Item = Metric> {
    let values = state.saved.as_ref().map(|saved| {
        [
            (
                "saved_timestamp_seconds",
                "When the file in which the pool is kept last had all of it; 0: never.",
                saved.time,
            ),
            (
                "save_failed",
                "Whether the last save failed.",
                saved.failed.is_some().into(),
            ),
        ]
    });
    values.into_iter().flatten()
}

fn counters_of(state: &State, field: impl Fn(&str) -> u64) -> [Metric; 7] {
    [
        (
            "changes_total",
            "Changes that were applied.",
            applied(state),
        ),
        (
            "commits_total",
            "Commits of the trees.",
            state.superblock().seq,
        ),
        (
            "stray_stores_total",
            "Stray stores that were stopped while the service lived.",
            field("strays"),
        ),
        (
            "media_errors_total",
            "Copies that found bytes of the pool's data lost, in the present session.",
            field("media_errors"),
        ),
        (
            "maps_reused_total",
            "Mappings that were handed out again, in the present session.",
            field("maps_reused"),
        ),
        (
            "pages_ahead_total",
            "Pages that were mapped ahead of programs, in the present session.",
            field("pages_ahead"),
        ),
        (
            "promotions_total",
            "Huge pages made of the host's files, in the present session.",
            field("promotions"),
        ),
    ]
}
