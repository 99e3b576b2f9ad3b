//! The rows of `bench mapping`: their names and targets.
//!
//! Invariant: every row has a plan, which says what one pass of it is.

use crate::sheet::{Row, Target};

/// Whole files, from their first byte or at random places: Figures 1 and 2 of the paper.
pub const RECORDS: &str = "records";
/// The same where a fault maps one page, as on the paper's medium.
pub const SINGLE: &str = "single";
/// Many files, the popular ones more often: Figure 3.
pub const FILES: &str = "files";

pub const POOL: &str = "pool";
pub const AHEAD: &str = "ahead";
pub const ADVISED: &str = "ahead-advised";
pub const CACHE: &str = "cache";
pub const CACHE_SMALL: &str = "cache-20";
pub const DEFAULT: &str = "default";
pub const POPULATE: &str = "populate";

const fn target(
    group: &'static [&'static str],
    of: &'static str,
    others: &'static [&'static str],
    whom: &'static str,
    at_most: f64,
) -> Target {
    Target {
        of: Some(of),
        ..Target::wall(group, others, whom, at_most)
    }
}

const fn of_populate(of: &'static str, times: f64) -> Target {
    target(&[RECORDS], of, &[POPULATE], "of populate", 1.0 / times)
}

/// As fio reports it, and the paper with it: without unmapping, in which nobody can help.
const fn ahead_of_populate(of: &'static str, times: f64) -> Target {
    Target {
        figure: "use",
        ..of_populate(of, times)
    }
}

/// Random access is never worse than without us.
const fn of_default(of: &'static str) -> Target {
    target(&[RECORDS], of, &[DEFAULT], "of default", 1.0 / 0.98)
}

const fn files_cpu(others: &'static [&'static str], whom: &'static str, times: f64) -> Target {
    Target {
        figure: "cpu",
        ..target(&[FILES], CACHE, others, whom, 1.0 / times)
    }
}

pub static ROWS: &[Row] = &[
    Row::new(
        "seq-4k",
        "sequential, 4 KB",
        &[
            of_populate(POOL, 3.4),
            ahead_of_populate(AHEAD, 1.6),
            ahead_of_populate(ADVISED, 1.8),
        ],
    ),
    Row::new("seq-8k", "sequential, 8 KB", &[]),
    Row::new("seq-16k", "sequential, 16 KB", &[]),
    Row::new("seq-32k", "sequential, 32 KB", &[]),
    Row::new("seq-64k", "sequential, 64 KB", &[]),
    Row::new(
        "random-4k",
        "random, 4 KB, an eighth",
        &[
            of_populate(POOL, 5.0),
            of_default(AHEAD),
            of_default(ADVISED),
        ],
    ),
    Row::new("random-8k", "random, 8 KB, an eighth", &[of_default(AHEAD)]),
    Row::new(
        "random-16k",
        "random, 16 KB, an eighth",
        &[of_default(AHEAD)],
    ),
    Row::new(
        "random-32k",
        "random, 32 KB, an eighth",
        &[of_default(AHEAD)],
    ),
    Row::new(
        "random-64k",
        "random, 64 KB, an eighth",
        &[of_default(AHEAD)],
    ),
    Row::new(
        "zipf-1m",
        "open, map, copy 1 MB, unmap",
        &[
            files_cpu(&[POPULATE], "of populate", 1.18),
            files_cpu(&[DEFAULT], "of default", 1.15),
        ],
    ),
];

/// The groups of a row, and the command of each for a worker that goes some way.
pub fn plans(row: &Row, files: usize, way: &str) -> Vec<(&'static str, String)> {
    match row.name.split_once('-') {
        Some((order @ ("seq" | "random"), size)) => {
            let kib = size.trim_end_matches('k');
            let line = format!("records {order} {kib} {way}");
            vec![(SINGLE, format!("{line} single")), (RECORDS, line)]
        }
        _ => vec![(FILES, format!("files {} {way}", files * 2))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sheet::Against;

    #[test]
    fn every_row_has_a_plan_and_every_target_a_group_of_it() {
        for row in ROWS {
            let plans = plans(row, 10, "default");
            for (_, line) in &plans {
                let words: Vec<&str> = line.split(' ').collect();
                let numbers = words.iter().filter(|word| word.parse::<usize>().is_ok());
                assert_eq!(numbers.count(), 1, "{line}");
            }
            for target in row.targets {
                let has = |group: &&str| plans.iter().any(|(name, _)| name == group);
                assert!(target.groups.iter().all(has), "{}", row.name);
                assert!(matches!(target.against, Against::Lowest([_])));
            }
        }
    }
}
