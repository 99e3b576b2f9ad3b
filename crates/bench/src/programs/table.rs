//! What `bench programs` prints.
//!
//! Invariant: as for every sheet; a ratio is that of one round, and the median over the rounds is
//! shown with the lowest and the highest.

use crate::peers::BASE;
use crate::sheet::{Group, Sheet};
use crate::sheet_table::{head, number, targets};
use crate::stats::Spread;
use std::fmt::Write;

const TITLE: usize = 32;
const COLUMN: usize = 22;

/// Everything.
pub fn text(sheet: &Sheet) -> String {
    let mut out = head(sheet, "medians of the rounds (lowest..highest)");
    for group in &sheet.groups {
        shares(sheet, group, "wall", "wall time", &mut out);
        shares(sheet, group, "cpu", "CPU time", &mut out);
        counts(sheet, group, &mut out);
    }
    targets(sheet, &mut out);
    for failure in &sheet.failures {
        let _ = writeln!(out, "failed: {failure}");
    }
    let _ = writeln!(out, "\n{} s", sheet.seconds);
    out
}

/// Milliseconds on tmpfs, and every other peer's as a share of them.
fn shares(sheet: &Sheet, group: &Group, figure: &str, title: &str, out: &mut String) {
    let rows = sheet.rows_with(group.name, figure);
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}: {title}, as a share of {BASE}", group.title);
    let _ = write!(out, "{:<TITLE$}{:>10}", "", format!("{BASE} ms"));
    let others: Vec<&String> = sheet.peers.iter().filter(|peer| *peer != BASE).collect();
    for peer in &others {
        let _ = write!(out, "{peer:>COLUMN$}");
    }
    out.push('\n');
    for row in rows {
        let base = sheet.spread(group.name, row.name, BASE, figure);
        let base = base.map_or("-".into(), |s| number(s.median));
        let _ = write!(out, "{:<TITLE$}{base:>10}", row.title);
        for peer in &others {
            let share = sheet.ratio((group.name, row.name, figure), peer, &[BASE]);
            let _ = write!(out, "{:>COLUMN$}", share.map_or("-".into(), with_range));
        }
        out.push('\n');
    }
}

fn with_range(s: Spread) -> String {
    format!("{:.2} ({:.2}..{:.2})", s.median, s.min, s.max)
}

/// What explains the times: programs started, page faults, waits, and the service's part.
fn counts(sheet: &Sheet, group: &Group, out: &mut String) {
    let rows = sheet.rows_with(group.name, "faults");
    if rows.is_empty() {
        return;
    }
    let subject = sheet.subject;
    let columns = [
        ("programs", BASE, "execs"),
        ("faults: tmpfs", BASE, "faults"),
        ("holdfast", subject, "faults"),
        ("waits: tmpfs", BASE, "waits"),
        ("holdfast", subject, "waits"),
        ("service ms", subject, "service"),
    ];
    let _ = write!(out, "\n{}: numbers\n{:<TITLE$}", group.title, "");
    for (title, ..) in columns {
        let _ = write!(out, "{title:>15}");
    }
    out.push('\n');
    for row in rows {
        let _ = write!(out, "{:<TITLE$}", row.title);
        for (_, peer, figure) in columns {
            let value = sheet.spread(group.name, row.name, peer, figure);
            let value = value.map_or("-".into(), |s| number(s.median));
            let _ = write!(out, "{value:>15}");
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sheet::Cell;
    use crate::sheet::tests::sheet;

    #[test]
    fn shares_are_of_tmpfs_and_missing_figures_are_no_numbers() {
        let mut sheet = sheet();
        sheet.peers = [BASE, "me", "none"].map(String::from).to_vec();
        let cell = |peer: &str, wall| Cell {
            group: "g",
            row: "get",
            peer: peer.into(),
            round: 0,
            figures: vec![("wall".into(), wall), ("faults".into(), 7.0)],
        };
        sheet.cells = vec![cell(BASE, 100.0), cell("me", 50.0)];
        let text = text(&sheet);
        let get: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("get "))
            .collect();
        let words = |line: &str| {
            line.split_whitespace()
                .map(String::from)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(get[0]), ["get", "100", "0.50", "(0.50..0.50)", "-"]);
        assert_eq!(words(get[1]), ["get", "-", "7.00", "7.00", "-", "-", "-"]);
    }
}
