//! The report as text.
//!
//! Invariant: a missing figure shows as `-`, never as a number.

use crate::peers::BASE;
use crate::report::{Extra, Figure, Report, Verdict};
use crate::rows::{Jobs, Row};
use crate::stats::Spread;
use std::fmt::Write;

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}", report.machine);
    let _ = writeln!(
        out,
        "{} rounds, peers in turn; figures are ratios of time to plain tmpfs in the same round, \
         the median of the rounds\n(below 1: faster than tmpfs; tmpfs itself in nanoseconds)",
        report.rounds
    );
    if report.quick {
        out.push_str("QUICK: a smoke test; too short for figures to be quoted\n");
    }
    for (peer, why) in &report.skipped {
        let _ = writeln!(out, "skipped: {peer}: {why}");
    }
    for (jobs, figure) in sections() {
        section(report, jobs, figure, &mut out);
    }
    spreads(report, &mut out);
    others(&report.extras(), &mut out);
    for failure in &report.failures {
        let _ = writeln!(out, "failed: {failure}");
    }
    let _ = writeln!(out, "\n{} s", report.seconds);
    out
}

fn sections() -> impl Iterator<Item = (Jobs, Figure)> {
    let alone = Figure::ALL.into_iter().map(|figure| (Jobs::One, figure));
    alone.chain([
        (Jobs::Threads, Figure::Median),
        (Jobs::Processes, Figure::Median),
    ])
}

fn section(report: &Report, jobs: Jobs, figure: Figure, out: &mut String) {
    let judged = jobs == Jobs::One;
    let mut rows = report.rows(jobs).peekable();
    if rows.peek().is_none() {
        return;
    }
    let _ = writeln!(out, "\n{}: {}", jobs.title(), figure.name());
    let _ = write!(out, "{:<28}{:>11}", "", "tmpfs ns");
    let others = || report.peers.iter().filter(|peer| **peer != BASE);
    for peer in others() {
        let short = peer.trim_start_matches("holdfast-");
        let _ = write!(out, "{short:>12}");
    }
    out.push('\n');
    for row in rows {
        let base = report.ns(row.name, jobs, BASE, figure);
        let base = base.map_or("-".into(), |s| format!("{:.0}", s.median));
        let _ = write!(out, "{:<28}{base:>11}", row.title);
        for peer in others() {
            let ratio = report.ratio((row.name, jobs), peer, BASE, figure);
            let _ = write!(
                out,
                "{:>12}",
                ratio.map_or("-".into(), |s| ratio_text(s.median))
            );
        }
        if judged {
            let mine = report
                .verdicts(row)
                .into_iter()
                .filter(|v| v.what == figure);
            out.push_str(&mine.map(|v| verdict(&v)).collect::<String>());
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
}

fn verdict(v: &Verdict) -> String {
    let mode = v.peer.trim_start_matches("holdfast-");
    let judged = match v.reached() {
        true => "reached".into(),
        false => format!("missed by {:.0} %", (v.got / v.target - 1.0) * 100.0),
    };
    format!("  {mode} <= {:.2} {judged};", v.target)
}

fn ratio_text(ratio: f64) -> String {
    match ratio {
        r if r < 0.095 => format!("{r:.3}"),
        r if r < 10.0 => format!("{r:.2}"),
        r => format!("{r:.1}"),
    }
}

/// Lowest and highest ratio of each peer over the rounds.
fn spreads(report: &Report, out: &mut String) {
    let rows: Vec<&Row> = report.rows(Jobs::One).collect();
    if report.rounds < 2 || rows.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\none thread: median, lowest..highest ratio of the rounds"
    );
    let others = || report.peers.iter().filter(|peer| **peer != BASE);
    let _ = write!(out, "{:<28}", "");
    for peer in others() {
        let _ = write!(out, "{:>14}", peer.trim_start_matches("holdfast-"));
    }
    out.push('\n');
    for row in rows {
        let _ = write!(out, "{:<28}", row.title);
        for peer in others() {
            let ratio = report.ratio((row.name, Jobs::One), peer, BASE, Figure::Median);
            let text = |s: Spread| format!("{}..{}", ratio_text(s.min), ratio_text(s.max));
            let _ = write!(out, "{:>14}", ratio.map_or("-".into(), text));
        }
        out.push('\n');
    }
}

fn others(extras: &[Extra], out: &mut String) {
    if extras.is_empty() {
        return;
    }
    out.push_str("\nother targets\n");
    for extra in extras {
        let judged = match extra.reached {
            true => "reached".to_owned(),
            false => {
                let far = (extra.value / extra.target - 1.0).abs() * 100.0;
                format!("missed by {far:.0} %")
            }
        };
        let (value, target) = (extra.value, extra.target);
        let shown = match extra.unit {
            "bytes" => format!("{value:.0} of {target:.0} bytes"),
            unit => format!("{value:.2} (target {target:.0}) {unit}"),
        };
        let _ = writeln!(out, "{:<50}{shown:>32}  {judged}", extra.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Cell;
    use crate::stats::Timing;

    fn cell(row: &'static str, peer: &'static str, round: usize, median: f64) -> Cell {
        let timing = Some(Timing {
            median,
            mean: median * 2.0,
            p99: median * 3.0,
        });
        Cell {
            row,
            jobs: Jobs::One,
            peer,
            round,
            timing,
        }
    }

    fn report() -> Report {
        let peers = vec!["tmpfs", "holdfast-posix", "ext4-zram"];
        let mut cells = Vec::new();
        for (round, noise) in [(0, 1.0), (1, 3.0)] {
            for row in ["pread-512", "append-4k", "pwrite-fsync-4k", "start"] {
                cells.push(cell(row, "tmpfs", round, 1000.0 * noise));
                cells.push(cell(row, "holdfast-posix", round, 380.0 * noise));
            }
            cells.push(cell("pwrite-fsync-4k", "ext4-zram", round, 4560.0 * noise));
        }
        Report {
            rounds: 2,
            quick: false,
            machine: "m".into(),
            peers,
            skipped: vec![("xfs-zram", "only root may mount".into())],
            cells,
            extras: vec![Extra::at_most("memory", "bytes", 10.0, 9.0)],
            failures: vec![],
            seconds: 1,
        }
    }

    #[test]
    fn ratios_stay_within_a_round_and_meet_their_targets() {
        let text = text(&report());
        for part in [
            "skipped: xfs-zram: only root may mount",
            "posix <= 0.40 reached",
            "posix <= 0.35 missed by 9 %",
            "0.38..0.38",
            "12.00 (target 10) times  reached",
            "10 of 9 bytes  missed by 11 %",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn json_has_every_cell() {
        let value: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        let rows = value["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 4 * 3);
        assert_eq!(rows[1]["median_ratio"]["median"], 0.38);
        assert_eq!(rows[1]["targets"][0]["reached"], true);
        assert!(rows[2]["median_ns"].is_null());
        assert_eq!(value["other"].as_array().unwrap().len(), 3);
    }
}
