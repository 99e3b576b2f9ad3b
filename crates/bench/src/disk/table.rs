//! The sheet of `bench disk` as text: one line for a row, with everything that is judged.
//!
//! Invariant: a missing figure shows as `-`, never as a number.

use super::GROUP;
use super::rows::{FS, Kind, STORES, SUBJECT, kind};
use crate::sheet::{Row, Sheet};
use crate::sheet_table::head;
use crate::stats::Spread;
use std::fmt::Write;

const TITLE: usize = 30;
const COLUMN: usize = 11;

/// The whole sheet.
pub fn text(sheet: &Sheet) -> String {
    let mut out = head(
        sheet,
        "mean time per operation, median of the rounds; ratios within a round\n(below 1: faster \
         than fs, or than the best other store; in brackets the lowest and the highest round)",
    );
    for peer in sheet
        .peers
        .iter()
        .filter(|p| *p != FS && !STORES.contains(&p.as_str()))
    {
        compared(sheet, peer, false, &mut out);
    }
    compared(sheet, SUBJECT, true, &mut out);
    stores(sheet, &mut out);
    singles(sheet, &mut out);
    for failure in &sheet.failures {
        let _ = writeln!(out, "failed: {failure}");
    }
    let _ = writeln!(out, "\n{} s", sheet.seconds);
    out
}

fn rows(sheet: &Sheet, keys: bool) -> Vec<&'static Row> {
    let mut rows = sheet.rows_with(GROUP, "wall");
    rows.retain(|row| (kind(row.name) == Kind::Keys) == keys);
    rows
}

/// A peer beside those it is compared with.
fn compared(sheet: &Sheet, peer: &str, keys: bool, out: &mut String) {
    let others: &[&str] = if keys { &STORES } else { &[FS] };
    let rows = rows(sheet, keys);
    if rows.is_empty() || !sheet.peers.iter().any(|p| p == peer) {
        return;
    }
    let other = if keys { "best other" } else { FS };
    let _ = writeln!(
        out,
        "\n{:<TITLE$}{other:>COLUMN$}{peer:>w$}{:>8} {:<15}{:>9}{:>8}  to reach",
        "",
        "ratio",
        "",
        if keys { "fl. other" } else { "fl. fs" },
        "pool",
        w = COLUMN.max(peer.len() + 2),
    );
    for row in rows {
        let base = best(sheet, row, others);
        let figure = |who: Option<&str>, figure: &str| {
            let who = who?;
            sheet.spread(GROUP, row.name, who, figure).map(|s| s.median)
        };
        let ratio = sheet.ratio((GROUP, row.name, "wall"), peer, others);
        let flushes = |who| figure(who, "flushes").map_or("-".into(), count);
        let time = |who| figure(who, "wall").map_or("-".into(), time);
        let line = format!(
            "{:<TITLE$}{:>COLUMN$}{:>w$}{:>8} {:<15}{:>9}{:>8}  {}",
            row.title,
            time(base),
            time(Some(peer)),
            ratio.map_or("-".into(), |r| number(r.median)),
            ratio.map_or(String::new(), |r| {
                format!("({}..{})", number(r.min), number(r.max))
            }),
            flushes(base),
            flushes(Some(peer)),
            if peer == SUBJECT {
                verdict(row, ratio)
            } else {
                String::new()
            },
            w = COLUMN.max(peer.len() + 2),
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// The one with the lowest time.
fn best<'a>(sheet: &Sheet, row: &Row, others: &[&'a str]) -> Option<&'a str> {
    let time = |who: &&str| sheet.spread(GROUP, row.name, who, "wall").map(|s| s.median);
    let known = others.iter().filter_map(|who| Some((*who, time(who)?)));
    known
        .min_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(who, _)| who)
}

fn verdict(row: &Row, ratio: Option<Spread>) -> String {
    let (Some(target), Some(ratio)) = (row.targets.first(), ratio) else {
        return String::new();
    };
    let most = target.at_most;
    match ratio.median <= most {
        true => format!("<= {most}: reached"),
        // What is missed by little is still not "by 0 %".
        false => format!(
            "<= {most}: missed by {:.0} %",
            ((ratio.median / most - 1.0) * 100.0).max(1.0)
        ),
    }
}

/// Every store with its own time.
fn stores(sheet: &Sheet, out: &mut String) {
    let rows = rows(sheet, true);
    if rows.is_empty() {
        return;
    }
    let known = |who: &&&str| sheet.peers.iter().any(|peer| peer == **who);
    let all = || [SUBJECT].iter().chain(&STORES).filter(known);
    for (what, shown) in [("wall", time as fn(f64) -> String), ("flushes", count)] {
        let title = if what == "wall" {
            "stores: time"
        } else {
            "stores: flushes"
        };
        let _ = write!(out, "\n{title:<TITLE$}");
        all().for_each(|peer| {
            let _ = write!(out, "{peer:>15}");
        });
        out.push('\n');
        for row in &rows {
            let _ = write!(out, "{:<TITLE$}", row.title);
            for peer in all() {
                let value = sheet.spread(GROUP, row.name, peer, what);
                let _ = write!(out, "{:>15}", value.map_or("-".into(), |s| shown(s.median)));
            }
            out.push('\n');
        }
    }
}

/// Flushes: two digits after the point as long as they count.
fn count(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v => format!("{v:.2}"),
    }
}

/// Medians and high percentiles of single operations.
fn singles(sheet: &Sheet, out: &mut String) {
    let mut rows = rows(sheet, false);
    rows.retain(|row| {
        ![
            "bulk",
            "cold-read",
            "pgbench-1",
            "pgbench-8",
            "postgres-stop",
        ]
        .contains(&row.name)
    });
    if rows.is_empty() {
        return;
    }
    let peers = || sheet.peers.iter().filter(|p| !STORES.contains(&p.as_str()));
    let _ = write!(out, "\n{:<TITLE$}", "median and 99th percentile");
    peers().for_each(|peer| {
        let _ = write!(out, "{peer:>22}");
    });
    out.push('\n');
    for row in rows {
        let _ = write!(out, "{:<TITLE$}", row.title);
        for peer in peers() {
            let value = |what| {
                sheet
                    .spread(GROUP, row.name, peer, what)
                    .map(|s| time(s.median))
            };
            let text = value("median").zip(value("p99"));
            let text = text.map_or("-".into(), |(median, p99)| format!("{median}, {p99}"));
            let _ = write!(out, "{text:>22}");
        }
        out.push('\n');
    }
}

/// Nanoseconds, as people say them.
fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{} us", number(ns / 1e3)),
        ns if ns < 1e9 => format!("{} ms", number(ns / 1e6)),
        ns => format!("{} s", number(ns / 1e9)),
    }
}

/// Three digits that count.
fn number(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::ROWS;
    use super::*;
    use crate::sheet::{Cell, Group};

    fn sheet() -> Sheet {
        let cell = |row, peer: &str, round, wall| Cell {
            group: GROUP,
            row,
            peer: peer.into(),
            round,
            figures: vec![
                ("wall".into(), wall),
                ("median".into(), wall),
                ("p99".into(), wall * 2.0),
                ("flushes".into(), wall / 1e5),
            ],
        };
        let mut cells = Vec::new();
        for (round, noise) in [(0, 1.0), (1, 2.0)] {
            cells.push(cell("overwrite-4k", FS, round, 1e5 * noise));
            cells.push(cell("overwrite-4k", SUBJECT, round, 2.2e5 * noise));
            cells.push(cell("put-1", SUBJECT, round, 1e5 * noise));
            cells.push(cell("put-1", "redb", round, 2e5 * noise));
            cells.push(cell("put-1", "lmdb", round, 3e5 * noise));
        }
        Sheet {
            benchmark: "disk",
            subject: SUBJECT,
            base: &[FS],
            about: vec!["said".into()],
            sections: super::super::SECTIONS,
            rounds: 2,
            quick: false,
            machine: "m".into(),
            rows: ROWS,
            groups: vec![Group {
                name: GROUP,
                title: "t".into(),
            }],
            peers: [FS, SUBJECT, "lmdb", "redb"].map(String::from).to_vec(),
            skipped: vec![("SQLite".into(), "why not".into())],
            cells,
            failures: vec!["gone".into()],
            seconds: 1,
        }
    }

    #[test]
    fn a_row_shows_both_times_and_what_is_to_be_reached() {
        let text = text(&sheet());
        for part in [
            "said",
            "skipped: SQLite: why not",
            "failed: gone",
            "150 us     330 us    2.20 (2.20..2.20)        1.50    3.30  <= 1.1: missed by 100 %",
            "300 us     150 us    0.50 (0.50..0.50)        3.00    1.50  <= 0.8: reached",
            "150 us, 300 us",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn a_near_miss_is_a_miss() {
        let at = |median| Spread {
            median,
            min: median,
            max: median,
        };
        let said = |ratio| verdict(&ROWS[0], Some(at(ratio)));
        assert_eq!(said(1.1), "<= 1.1: reached");
        assert_eq!(said(1.101), "<= 1.1: missed by 1 %");
        assert_eq!(said(1.65), "<= 1.1: missed by 50 %");
        assert_eq!(verdict(&ROWS[0], None), "");
    }

    #[test]
    fn times_have_units() {
        let all = [12.0, 1500.0, 2e6, 3e9].map(time);
        assert_eq!(all, ["12 ns", "1.50 us", "2.00 ms", "3.00 s"]);
    }
}
