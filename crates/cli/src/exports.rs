//! The running exports of a pool, as `pool status`, `top` and metrics show them.
//!
//! Invariant: what an export says of itself reaches a terminal, JSON and metrics escaped.

use crate::json::Json;
use crate::kv::escape;
use crate::metrics::{self, Kind};
use holdfast_status::{Exports, Report, Requests};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An earlier look, and how long that is ago.
pub type Before<'a> = Option<(&'a Exports, Duration)>;

/// Requests of one kind over some time.
struct Work {
    /// How many of what is counted here came in a second, where that is known.
    per_second: Option<[f64; 2]>,
    /// Since `Before`, if there is one, else since the export began.
    new: Requests,
    all: Requests,
}

impl Work {
    fn of(all: &Requests, before: Option<&Requests>, time: Option<Duration>) -> Work {
        let none = Requests::default();
        let then = before.unwrap_or(&none);
        let latency = all.latency().since(&then.latency());
        let longest = match then.requests {
            0 => all.max_ns,
            _ => latency.max_ns,
        };
        let new = Requests {
            requests: all.requests.saturating_sub(then.requests),
            bytes: all.bytes.saturating_sub(then.bytes),
            failed: all.failed.saturating_sub(then.failed),
            total_ns: latency.total_ns,
            max_ns: longest,
            spread: latency.spread,
        };
        let rate = |count: u64, time: Duration| count as f64 / time.as_secs_f64();
        Work {
            per_second: time.map(|time| [rate(new.requests, time), rate(new.bytes, time)]),
            new,
            all: all.clone(),
        }
    }

    fn json(&self) -> Json {
        let latency = self.new.latency();
        let mut fields = vec![
            ("requests", self.all.requests),
            ("bytes", self.all.bytes),
            ("failed", self.all.failed),
            ("mean_ns", latency.mean_ns()),
            ("p50_ns", latency.quantile_ns(0.5)),
            ("p99_ns", latency.quantile_ns(0.99)),
            ("max_ns", latency.max_ns),
        ];
        if let Some([requests, bytes]) = self.per_second {
            fields.push(("requests_per_second", requests as u64));
            fields.push(("bytes_per_second", bytes as u64));
        }
        let fields = fields.into_iter();
        Json::Object(fields.map(|(name, n)| (name, Json::Number(n))).collect())
    }

    /// Nothing where there is nothing to say.
    fn text(&self) -> Option<String> {
        if self.all.requests == 0 && self.all.failed == 0 {
            return None;
        }
        let has_bytes = self.all.bytes > 0;
        let mut text = match self.per_second {
            Some([requests, bytes]) if has_bytes => {
                format!("{requests:.0}/s, {:.1} MB/s", bytes / 1e6)
            }
            Some([requests, _]) => format!("{requests:.0}/s"),
            None if has_bytes => {
                format!(
                    "{}, {:.1} MB",
                    self.all.requests,
                    self.all.bytes as f64 / 1e6
                )
            }
            None => self.all.requests.to_string(),
        };
        if self.new.requests > 0 {
            let latency = self.new.latency();
            let times = [
                ("mean", latency.mean_ns()),
                ("p50", latency.quantile_ns(0.5)),
                ("p99", latency.quantile_ns(0.99)),
                ("max", latency.max_ns),
            ];
            for (name, ns) in times {
                let _ = write!(text, ", {name} {}", time(ns));
            }
        }
        if self.all.failed > 0 {
            let _ = write!(text, ", {} failed", self.all.failed);
        }
        Some(text)
    }
}

/// The kinds of requests with what was done.
fn work(
    (name, report): &(String, Report),
    before: Before<'_>,
) -> impl Iterator<Item = (&'static str, Work)> {
    let then = before.map(|(exports, _)| {
        let same = exports.reports.iter().find(|(other, _)| other == name);
        same.map(|(_, report)| report.clone()).unwrap_or_default()
    });
    let time = before.map(|(_, time)| time);
    let kinds = report.kinds().map(|(kind, all)| (kind, all.clone()));
    kinds.into_iter().map(move |(kind, all)| {
        let kinds = then.as_ref().map(Report::kinds);
        let before = kinds.and_then(|kinds| kinds.into_iter().find(|(other, _)| *other == kind));
        let work = Work::of(&all, before.map(|(_, requests)| requests), time);
        (kind, work)
    })
}

/// For a JSON object.
pub fn fields(exports: &Exports, before: Before<'_>) -> [(&'static str, Json); 2] {
    let each = exports.reports.iter().map(|named| {
        let report = &named.1;
        let text = |text: &str| Json::Text(text.into());
        let mut fields = vec![("volume", text(&report.volume))];
        fields.extend(
            report
                .snapshot
                .as_deref()
                .map(|name| ("snapshot", text(name))),
        );
        fields.extend([
            ("face", text(&report.face)),
            ("address", text(&report.address)),
        ]);
        let protection = report.protection.as_deref();
        fields.extend(protection.map(|mode| ("protection", text(mode))));
        fields.extend([
            ("read_only", Json::Bool(report.read_only)),
            ("process", Json::Number(report.process.into())),
            ("since", Json::Number(report.since)),
            ("clients", Json::Number(report.clients)),
        ]);
        fields.extend(work(named, before).map(|(kind, work)| (kind, work.json())));
        Json::Object(fields)
    });
    [
        ("exports", Json::List(each.collect())),
        ("silent_exports", Json::Number(exports.silent)),
    ]
}

/// For people: names and what is said of them, a line each.
pub fn rows(exports: &Exports, before: Before<'_>) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    for named in &exports.reports {
        let report = &named.1;
        rows.push(("export".into(), heading(report)));
        let kinds = work(named, before);
        let said = kinds.filter_map(|(kind, work)| Some((format!("  {kind}"), work.text()?)));
        rows.extend(said);
    }
    if exports.silent > 0 {
        let text = format!("{}, which are stopped or busy", exports.silent);
        rows.push(("silent exports".into(), text));
    }
    rows
}

fn heading(report: &Report) -> String {
    let mut text = plain(&report.volume);
    if let Some(snapshot) = &report.snapshot {
        let _ = write!(text, " of snapshot {}", plain(snapshot));
    }
    let _ = write!(
        text,
        ": {} at {}",
        plain(&report.face),
        plain(&report.address)
    );
    let _ = match report.clients {
        1 => write!(text, ", 1 client"),
        n => write!(text, ", {n} clients"),
    };
    if report.read_only {
        text += ", read-only";
    }
    let _ = match &report.protection {
        Some(mode) => write!(text, ", protection {}", plain(mode)),
        None => write!(text, ", served by a proxy"),
    };
    let began = UNIX_EPOCH.checked_add(Duration::from_secs(report.since));
    let age = began.and_then(|began| SystemTime::now().duration_since(began).ok());
    let _ = write!(
        text,
        ", for {}",
        duration(age.unwrap_or_default().as_secs())
    );
    text
}

/// Without anything that a terminal takes for a command.
fn plain(text: &str) -> String {
    let mut out = Vec::new();
    // A vector takes everything.
    let _ = escape::write(&mut out, text.as_bytes());
    String::from_utf8_lossy(&out).into_owned()
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

fn time(ns: u64) -> String {
    match ns {
        0..=9_999 => format!("{:.1} us", ns as f64 / 1e3),
        10_000..=9_999_999 => format!("{} us", ns / 1000),
        _ => format!("{} ms", ns / 1_000_000),
    }
}

/// The bounds of buckets in metrics, as powers of two of nanoseconds: 1 us to 17 s.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=34;

/// In Prometheus' text format.
pub fn metrics(pool: &str, exports: &Exports) -> String {
    let mut known = BTreeSet::new();
    let labelled = exports.reports.iter().map(|(_, report)| {
        let process = report.process.to_string();
        let labels = metrics::labels(&[
            ("pool", pool),
            ("volume", &report.volume),
            ("snapshot", report.snapshot.as_deref().unwrap_or_default()),
            ("face", &report.face),
            ("address", &report.address),
            ("process", &process),
        ]);
        (labels, report)
    });
    // No two may be alike, whatever they say.
    let all: Vec<_> = labelled
        .filter(|(labels, _)| known.insert(labels.clone()))
        .collect();
    let mut text = String::new();
    let help = "Clients that are connected to an export.";
    metrics::head(&mut text, Kind::Gauge, "export_clients", help);
    for (labels, report) in &all {
        metrics::value(&mut text, "export_clients", labels, report.clients);
    }
    let help = "When an export began, in seconds since 1970.";
    metrics::head(&mut text, Kind::Gauge, "export_start_time_seconds", help);
    for (labels, report) in &all {
        metrics::value(&mut text, "export_start_time_seconds", labels, report.since);
    }
    type Number = fn(&Requests) -> u64;
    let counters: [(&str, &str, Number); 3] = [
        ("export_requests_total", "Requests that were done.", |r| {
            r.requests
        }),
        (
            "export_bytes_total",
            "Bytes of requests that were done.",
            |r| r.bytes,
        ),
        ("export_failed_total", "Requests that failed.", |r| r.failed),
    ];
    for (name, help, number) in counters {
        metrics::head(&mut text, Kind::Counter, name, help);
        for (labels, report) in &all {
            for (kind, requests) in report.kinds() {
                let labels = format!("{labels},kind=\"{kind}\"");
                metrics::value(&mut text, name, &labels, number(requests));
            }
        }
    }
    let name = "export_request_seconds";
    let help = "How long requests took that were done.";
    metrics::head(&mut text, Kind::Histogram, name, help);
    for (labels, report) in &all {
        for (kind, requests) in report.kinds() {
            histogram(
                &mut text,
                name,
                &format!("{labels},kind=\"{kind}\""),
                requests,
            );
        }
    }
    text
}

fn histogram(text: &mut String, name: &str, labels: &str, requests: &Requests) {
    let bucket = format!("{name}_bucket");
    let upto = |limit: u64| {
        let within = requests.spread.iter().filter(|(bound, _)| *bound < limit);
        within.fold(0, |sum: u64, (_, number)| sum.saturating_add(*number))
    };
    for bits in BOUNDS.step_by(2) {
        let limit = 1_u64 << bits;
        let labels = format!("{labels},le=\"{}\"", limit as f64 / 1e9);
        metrics::value(text, &bucket, &labels, upto(limit));
    }
    let all = requests.latency().requests();
    metrics::value(text, &bucket, &format!("{labels},le=\"+Inf\""), all);
    let seconds = requests.total_ns as f64 / 1e9;
    metrics::value(text, &format!("{name}_sum"), labels, seconds);
    metrics::value(text, &format!("{name}_count"), labels, all);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exports(requests: u64) -> Exports {
        let report = Report {
            volume: "di\u{1b}[2Jsk".into(),
            face: "nbd".into(),
            address: "unix:\"/s\n".into(),
            clients: 2,
            reads: Requests {
                requests,
                bytes: requests * 4096,
                failed: 1,
                total_ns: requests * 2000,
                max_ns: 2047,
                spread: vec![(2047, requests)],
            },
            ..Report::default()
        };
        Exports {
            reports: vec![("export-1.sock".into(), report)],
            silent: 0,
        }
    }

    #[test]
    fn totals_and_rates_are_told() {
        let (then, now) = (exports(1000), exports(3000));
        let rows_of = |before| rows(&now, before);
        let all = rows_of(None);
        assert_eq!(all.len(), 2);
        assert!(
            all[0]
                .1
                .starts_with("di\\x1b[2Jsk: nbd at unix:\"/s\\n, 2 clients, ")
        );
        let said = "3000, 12.3 MB, mean 2.0 us, p50 2.0 us, p99 2.0 us, max 2.0 us, 1 failed";
        assert_eq!(all[1], ("  reads".into(), said.into()));
        let new = rows_of(Some((&then, Duration::from_secs(2))));
        assert!(new[1].1.starts_with("1000/s, 4.1 MB/s, mean 2.0 us, "));
        let [(_, json), _] = fields(&now, Some((&then, Duration::from_secs(2))));
        let json = json.render();
        assert!(json.contains("\"requests\":3000,"), "{json}");
        assert!(json.contains("\"requests_per_second\":1000,\"bytes_per_second\":4096000"));
    }

    #[test]
    fn metrics_have_cumulative_buckets() {
        let text = metrics("/p", &exports(3));
        let labels = "pool=\"/p\",volume=\"di\u{1b}[2Jsk\",snapshot=\"\",face=\"nbd\",\
                      address=\"unix:\\\"/s\\n\",process=\"0\",kind=\"reads\"";
        for line in [
            format!("holdfast_export_requests_total{{{labels}}} 3"),
            format!("holdfast_export_request_seconds_bucket{{{labels},le=\"0.000001024\"}} 0"),
            format!("holdfast_export_request_seconds_bucket{{{labels},le=\"0.000004096\"}} 3"),
            format!("holdfast_export_request_seconds_bucket{{{labels},le=\"+Inf\"}} 3"),
            format!("holdfast_export_request_seconds_sum{{{labels}}} 0.000006"),
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }
}
