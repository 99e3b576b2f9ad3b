//! A sheet as text.
//!
//! Invariant: a missing figure shows as `-`, never as a number.

use crate::sheet::{Group, Row, Sheet, Target};
use crate::stats::Spread;
use std::fmt::Write;

const TITLE: usize = 34;
const COLUMN: usize = 15;

/// What stands above the figures: the machine, what was measured, and `how`.
pub(crate) fn head(sheet: &Sheet, how: &str) -> String {
    let mut out = format!("{}\n", sheet.machine);
    for line in &sheet.about {
        let _ = writeln!(out, "{line}");
    }
    let _ = writeln!(out, "{} rounds, peers in turn; {how}", sheet.rounds);
    if sheet.quick {
        out.push_str("QUICK: a smoke test; too short for figures to be quoted\n");
    }
    for (peer, why) in &sheet.skipped {
        let _ = writeln!(out, "skipped: {peer}: {why}");
    }
    out
}

/// The whole sheet.
pub fn text(sheet: &Sheet) -> String {
    let mut out = head(sheet, "figures are medians of the rounds");
    for group in &sheet.groups {
        for (figure, title) in sheet.sections {
            section(sheet, group, figure, title, &mut out);
        }
        spreads(sheet, group, &mut out);
    }
    targets(sheet, &mut out);
    for failure in &sheet.failures {
        let _ = writeln!(out, "failed: {failure}");
    }
    let _ = writeln!(out, "\n{} s", sheet.seconds);
    out
}

fn header(sheet: &Sheet, title: &str, out: &mut String) {
    let _ = write!(out, "\n{title}\n{:<TITLE$}", "");
    for peer in &sheet.peers {
        let _ = write!(out, "{peer:>COLUMN$}");
    }
    out.push('\n');
}

fn section(sheet: &Sheet, group: &Group, figure: &str, title: &str, out: &mut String) {
    let rows = sheet.rows_with(group.name, figure);
    if rows.is_empty() {
        return;
    }
    header(sheet, &format!("{}: {title}", group.title), out);
    for row in rows {
        let _ = write!(out, "{:<TITLE$}", row.title);
        for peer in &sheet.peers {
            let value = sheet.spread(group.name, row.name, peer, figure);
            let text = value.map_or("-".into(), |s| number(s.median / row.unit));
            let _ = write!(out, "{text:>COLUMN$}");
        }
        out.push('\n');
    }
}

/// Lowest and highest of the rounds, in percent of the median.
fn spreads(sheet: &Sheet, group: &Group, out: &mut String) {
    let Some((figure, _)) = sheet.sections.first() else {
        return;
    };
    let rows = sheet.rows_with(group.name, figure);
    if sheet.rounds < 2 || rows.is_empty() {
        return;
    }
    let title = format!("{}: lowest..highest round, % of the median", group.title);
    header(sheet, &title, out);
    for row in rows {
        let _ = write!(out, "{:<TITLE$}", row.title);
        for peer in &sheet.peers {
            let percent = |s: Spread| {
                let part = |v: f64| (v / s.median * 100.0).round();
                format!("{}..{}", part(s.min), part(s.max))
            };
            let spread = sheet.spread(group.name, row.name, peer, figure);
            let text = spread
                .filter(|s| s.median > 0.0)
                .map_or("-".into(), percent);
            let _ = write!(out, "{text:>COLUMN$}");
        }
        out.push('\n');
    }
}

pub(crate) fn targets(sheet: &Sheet, out: &mut String) {
    let mut title = Some(format!(
        "\ntargets of {}: median (lowest..highest round)\n",
        sheet.subject
    ));
    for group in &sheet.groups {
        for row in sheet.rows {
            for target in row.targets {
                if let Some(got) = sheet.got(group.name, row, target) {
                    out.push_str(&title.take().unwrap_or_default());
                    out.push_str(&verdict(sheet, group, row, target, got));
                }
            }
        }
    }
}

fn verdict(sheet: &Sheet, group: &Group, row: &Row, target: &Target, got: Spread) -> String {
    let what = sheet.sections.iter().find(|(f, _)| *f == target.figure);
    let what = match what {
        Some((_, title))
            if sheet
                .sections
                .first()
                .is_none_or(|(_, first)| first != title) =>
        {
            format!(", {title}")
        }
        _ => String::new(),
    };
    let judged = match got.median <= target.at_most {
        true => "reached".into(),
        false => format!(
            "missed by {:.0} %",
            (got.median / target.at_most - 1.0) * 100.0
        ),
    };
    let peer = target
        .of
        .map_or(String::new(), |peer| format!(" of {peer}"));
    let name = format!("{} {}{peer}{what}", group.name, row.title);
    let wanted = format!("<= {} {}", number(target.at_most), target.whom);
    let had = format!(
        "{} ({}..{})",
        number(got.median),
        number(got.min),
        number(got.max)
    );
    format!("{name:<58}{had:>24}  {wanted:<32}{judged}\n")
}

/// Three digits that count.
pub(crate) fn number(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v if v >= 0.0995 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sheet::tests::sheet;

    #[test]
    fn tables_show_what_is_there_and_what_is_not() {
        let text = text(&sheet());
        for part in [
            "said",
            "skipped: c: why not",
            "values: time",
            "0.70 (0.50..0.90)  <= 0.80 best of a and b",
            "reached",
            "67..133",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let get = text.lines().find(|line| line.starts_with("get ")).unwrap();
        let words: Vec<&str> = get.split_ascii_whitespace().collect();
        assert_eq!(words, ["get", "150", "225", "102", "-"]);
        assert!(!text.contains("CPU time"), "a table of nothing:\n{text}");
    }
}
