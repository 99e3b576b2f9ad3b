//! Which snapshots are kept: the newest of each stretch of time.
//!
//! Invariant: the newest of all is kept, whatever is asked for.

use holdfast::SnapshotInfo;
use std::collections::BTreeSet;
use std::str::FromStr;

const SECOND: i64 = 1_000_000_000;

/// Which snapshots are kept: of each rule, the newest of so many stretches of so many seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep(Vec<(i64, i64)>);

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Keep, String> {
        let bad = || format!("'{text}' is not a list such as 24h,7d,4w,12m,3y");
        let rule = |word: &str| {
            let (number, unit) = word.split_at_checked(word.len().checked_sub(1)?)?;
            let seconds = match unit {
                "h" => 3600,
                "d" => 86_400,
                "w" => 7 * 86_400,
                "m" => 30 * 86_400,
                "y" => 365 * 86_400,
                _ => return None,
            };
            let number: u32 = number.parse().ok()?;
            (number > 0).then_some((number.into(), seconds))
        };
        let rules: Option<Vec<_>> = text.split(',').map(rule).collect();
        Ok(Keep(rules.ok_or_else(bad)?))
    }
}

impl Keep {
    /// Those of `all`, which are oldest first, that go at time `now` in nanoseconds since 1970.
    /// Clocks stand still for a while: of the same time, the later one is the newer.
    pub fn goes<'s>(&self, all: &'s [SnapshotInfo], now: i64) -> Vec<&'s SnapshotInfo> {
        let mut newest_first: Vec<_> = all.iter().rev().collect();
        newest_first.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.time_ns));
        let mut kept: BTreeSet<&str> = newest_first.iter().take(1).map(|s| &s.name[..]).collect();
        for (count, seconds) in &self.0 {
            let mut stretches = BTreeSet::new();
            for snapshot in &newest_first {
                let age = now.saturating_sub(snapshot.time_ns).max(0);
                let stretch = age / (seconds * SECOND);
                if stretch < *count && stretches.insert(stretch) {
                    kept.insert(&snapshot.name);
                }
            }
        }
        newest_first.retain(|snapshot| !kept.contains(&snapshot.name[..]));
        newest_first.reverse();
        newest_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600 * SECOND;

    fn named(ages: &[i64]) -> Vec<SnapshotInfo> {
        let one = |age: &i64| SnapshotInfo {
            name: format!("{age}"),
            objects: 0,
            time_ns: 1000 * 24 * HOUR - age * HOUR,
        };
        ages.iter().map(one).collect()
    }

    #[test]
    fn the_newest_of_each_stretch_is_kept() {
        let all = named(&[0, 1, 2, 3, 5, 23, 25, 30, 47, 50, 100, 200, 500]);
        let goes = |keep: &str| -> Vec<String> {
            let keep: Keep = keep.parse().unwrap();
            let goes = keep.goes(&all, 1000 * 24 * HOUR);
            goes.iter().map(|s| s.name.clone()).collect()
        };
        assert_eq!(
            goes("3h,3d"),
            ["500", "200", "100", "47", "30", "23", "5", "3"]
        );
        assert_eq!(goes("1y").len(), all.len() - 1);
        assert_eq!(goes("9000h"), [""; 0]);
        // What is older than all that is asked for, but for the newest of all.
        let old = named(&[700, 800]);
        let keep: Keep = "2h".parse().unwrap();
        let goes = keep.goes(&old, 1000 * 24 * HOUR);
        assert_eq!(goes.len(), 1);
        assert_eq!(goes[0].name, "800");
        let mut same = named(&[5, 5, 5]);
        for (n, snapshot) in same.iter_mut().enumerate() {
            snapshot.name = format!("{n}");
        }
        let goes = keep.goes(&same, 1000 * 24 * HOUR);
        assert_eq!(
            goes.iter().map(|s| &s.name[..]).collect::<Vec<_>>(),
            ["0", "1"]
        );
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in [
            "", "h", "24", "24x", "0d", "-1d", "1d,", "1d,,2w", "1\u{e4}",
        ] {
            assert!(text.parse::<Keep>().is_err(), "{text}");
        }
        assert_eq!("24h,7d".parse(), Ok(Keep(vec![(24, 3600), (7, 86_400)])));
    }
}
