//! What a benchmark of several stores measured: groups of rows, each with figures for each peer.
//!
//! Invariants: a ratio compares peers within one round, never across rounds; every measured figure
//! is in the JSON; a missing figure is never a number.

use crate::error::{Error, Result};
use crate::options::Options;
use crate::stats::Spread;
use serde_json::{Value, json};

/// With whom a target compares.
#[derive(Clone, Copy, Debug)]
pub enum Against {
    /// The lowest of these peers in the same round.
    Lowest(&'static [&'static str]),
    /// Nobody: the target is the figure itself.
    Itself,
}

/// What a figure of one peer is to reach.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Only in groups with one of these names; empty: in all.
    pub groups: &'static [&'static str],
    /// The peer that it is for, if that is not the sheet's subject.
    pub of: Option<&'static str>,
    pub figure: &'static str,
    pub against: Against,
    /// How it is said in a table.
    pub whom: &'static str,
    pub at_most: f64,
}

/// One row: all figures of it are times, or all are multiples.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub name: &'static str,
    pub title: &'static str,
    /// What the figures are divided by to be shown.
    pub unit: f64,
    pub targets: &'static [Target],
}

impl Row {
    /// One whose figures are shown as they are.
    pub const fn new(name: &'static str, title: &'static str, targets: &'static [Target]) -> Row {
        Row {
            name,
            title,
            unit: 1.0,
            targets,
        }
    }
}

impl Target {
    /// For the wall-clock time in these groups, against the lowest of `others`.
    pub const fn wall(
        groups: &'static [&'static str],
        others: &'static [&'static str],
        whom: &'static str,
        at_most: f64,
    ) -> Target {
        Target {
            groups,
            of: None,
            figure: "wall",
            against: Against::Lowest(others),
            whom,
            at_most,
        }
    }
}

/// One measurement.
#[derive(Clone, Debug)]
pub struct Cell {
    pub group: &'static str,
    pub row: &'static str,
    pub peer: String,
    pub round: usize,
    pub figures: Vec<(String, f64)>,
}

/// What a worker said: `name=1.5 other=2`.
pub fn figures(said: &str) -> Vec<(String, f64)> {
    let one = |word: &str| {
        let (name, value) = word.split_once('=')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    said.split(' ').filter_map(one).collect()
}

/// Rows that are shown together.
#[derive(Clone, Debug)]
pub struct Group {
    pub name: &'static str,
    pub title: String,
}

/// Everything that was measured.
pub struct Sheet {
    pub benchmark: &'static str,
    /// The peer that the targets are for.
    pub subject: &'static str,
    /// The peers that pictures compare with; the lowest of a round counts.
    pub base: &'static [&'static str],
    /// What a reader has to know, a line each.
    pub about: Vec<String>,
    /// Figures that have a table of their own, and what it is called.
    pub sections: &'static [(&'static str, &'static str)],
    pub rounds: usize,
    pub quick: bool,
    pub machine: String,
    pub rows: &'static [Row],
    pub groups: Vec<Group>,
    pub peers: Vec<String>,
    pub skipped: Vec<(String, String)>,
    pub cells: Vec<Cell>,
    pub failures: Vec<String>,
    pub seconds: u64,
}

impl Sheet {
    fn values(&self, group: &str, row: &str, peer: &str, figure: &str) -> Vec<(usize, f64)> {
        self.cells
            .iter()
            .filter(|c| c.group == group && c.row == row && c.peer == peer)
            .filter_map(|c| {
                let (_, value) = c.figures.iter().find(|(name, _)| name == figure)?;
                Some((c.round, *value))
            })
            .collect()
    }

    /// A figure over the rounds.
    pub fn spread(&self, group: &str, row: &str, peer: &str, figure: &str) -> Option<Spread> {
        let all = self.values(group, row, peer, figure);
        Spread::of(&all.iter().map(|(_, value)| *value).collect::<Vec<_>>())
    }

    /// The figure of `peer`, divided by the lowest of `others` in the same round.
    pub fn ratio(
        &self,
        (group, row, figure): (&str, &str, &str),
        peer: &str,
        others: &[&str],
    ) -> Option<Spread> {
        let mut ratios = Vec::new();
        for (round, mine) in self.values(group, row, peer, figure) {
            let theirs = others.iter().filter_map(|other| {
                let all = self.values(group, row, other, figure);
                all.iter().find(|(r, _)| *r == round).map(|(_, v)| *v)
            });
            if let Some(lowest) = theirs.reduce(f64::min)
                && lowest > 0.0
            {
                ratios.push(mine / lowest);
            }
        }
        Spread::of(&ratios)
    }

    /// What the subject reached of a target, where that can be said.
    pub fn got(&self, group: &str, row: &Row, target: &Target) -> Option<Spread> {
        if !target.groups.is_empty() && !target.groups.contains(&group) {
            return None;
        }
        let at = (group, row.name, target.figure);
        let subject = target.of.unwrap_or(self.subject);
        match target.against {
            Against::Lowest(others) => self.ratio(at, subject, others),
            Against::Itself => {
                let all = self.spread(group, row.name, subject, target.figure)?;
                Some(Spread {
                    median: all.median / row.unit,
                    min: all.min / row.unit,
                    max: all.max / row.unit,
                })
            }
        }
    }

    /// Rows of a group that have the figure.
    pub fn rows_with(&self, group: &str, figure: &str) -> Vec<&'static Row> {
        let has = |row: &&Row| {
            let mut mine = self.cells.iter();
            mine.any(|c| {
                c.group == group
                    && c.row == row.name
                    && c.figures.iter().any(|(name, _)| name == figure)
            })
        };
        self.rows.iter().filter(has).collect()
    }

    /// How many calls reached pools, where a pool was measured.
    pub fn note_served(&mut self, served: u64) {
        if self.peers.iter().any(|peer| peer == self.subject) {
            let line = format!("{served} calls were served by pools");
            self.about.push(line);
        }
    }

    /// What there is to print, as the options want it.
    pub fn finish(self, options: &Options) -> Result<String> {
        self.finish_as(options, crate::sheet_table::text)
    }

    /// The same with a table of the benchmark's own.
    pub fn finish_as(self, options: &Options, table: fn(&Sheet) -> String) -> Result<String> {
        #[cfg(feature = "plot")]
        if let Some(dir) = &options.plot {
            crate::plot::write_sheet(&self, dir)?;
        }
        #[cfg(not(feature = "plot"))]
        if options.plot.is_some() {
            return Err(Error::Usage("this program was built without plots".into()));
        }
        let text = if options.json {
            self.json()
        } else {
            table(&self)
        };
        match self.failures.is_empty() {
            true => Ok(text),
            false => Err(Error::Incomplete(text, self.failures)),
        }
    }

    /// Everything, for programs.
    pub fn json(&self) -> String {
        let skipped: Vec<Value> = self
            .skipped
            .iter()
            .map(|(peer, why)| json!({"peer": peer, "why": why}))
            .collect();
        let groups: Vec<Value> = self
            .groups
            .iter()
            .map(|g| json!({"name": g.name, "title": g.title}))
            .collect();
        let value = json!({
            "benchmark": self.benchmark,
            "machine": self.machine,
            "about": self.about,
            "rounds": self.rounds,
            "quick": self.quick,
            "seconds": self.seconds,
            "peers": self.peers,
            "skipped": skipped,
            "groups": groups,
            "rows": self.json_rows(),
            "targets": self.json_targets(),
            "failures": self.failures,
        });
        format!("{value}\n")
    }

    fn json_rows(&self) -> Vec<Value> {
        let mut out = Vec::new();
        for group in &self.groups {
            for row in self.rows {
                for peer in &self.peers {
                    let figures = self.json_figures(group.name, row.name, peer);
                    if figures.as_object().is_some_and(|all| !all.is_empty()) {
                        out.push(json!({"group": group.name, "row": row.name, "peer": peer,
                            "figures": figures}));
                    }
                }
            }
        }
        out
    }

    fn json_figures(&self, group: &str, row: &str, peer: &str) -> Value {
        let mut out = json!({});
        let mine = |c: &&Cell| c.group == group && c.row == row && c.peer == peer;
        for cell in self.cells.iter().filter(mine) {
            for (name, _) in &cell.figures {
                out[name] = json_spread(self.spread(group, row, peer, name));
            }
        }
        out
    }

    fn json_targets(&self) -> Vec<Value> {
        let mut out = Vec::new();
        for group in &self.groups {
            for row in self.rows {
                for target in row.targets {
                    let Some(got) = self.got(group.name, row, target) else {
                        continue;
                    };
                    let peer = target.of.unwrap_or(self.subject);
                    out.push(json!({"group": group.name, "row": row.name, "peer": peer,
                        "figure": target.figure, "against": target.whom,
                        "at_most": target.at_most, "got": json_spread(Some(got)),
                        "reached": got.median <= target.at_most}));
                }
            }
        }
        out
    }
}

fn json_spread(spread: Option<Spread>) -> Value {
    match spread {
        Some(s) => json!({"median": s.median, "min": s.min, "max": s.max}),
        None => Value::Null,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    const ROWS: &[Row] = &[Row {
        name: "get",
        title: "get",
        unit: 1.0,
        targets: &[
            Target {
                groups: &[],
                of: None,
                figure: "wall",
                against: Against::Lowest(&["a", "b"]),
                whom: "best of a and b",
                at_most: 0.8,
            },
            Target {
                groups: &["other"],
                of: None,
                figure: "wall",
                against: Against::Itself,
                whom: "",
                at_most: 1.0,
            },
        ],
    }];

    pub fn sheet() -> Sheet {
        let cell = |peer: &str, round, ns| Cell {
            group: "g",
            row: "get",
            peer: peer.into(),
            round,
            figures: vec![("wall".into(), ns)],
        };
        Sheet {
            benchmark: "kv",
            subject: "me",
            base: &["a"],
            about: vec!["said".into()],
            sections: &[("wall", "time"), ("all", "CPU time")],
            rounds: 2,
            quick: false,
            machine: "m".into(),
            rows: ROWS,
            groups: vec![Group {
                name: "g",
                title: "values".into(),
            }],
            peers: ["a", "b", "me", "none"].map(String::from).to_vec(),
            skipped: vec![("c".into(), "why not".into())],
            cells: vec![
                cell("a", 0, 100.0),
                cell("b", 0, 50.0),
                cell("me", 0, 25.0),
                cell("a", 1, 200.0),
                cell("b", 1, 400.0),
                cell("me", 1, 180.0),
            ],
            failures: vec![],
            seconds: 1,
        }
    }

    #[test]
    fn answers_become_figures() {
        let all = figures("wall=1.5 flushes=2 odd x=y");
        assert_eq!(all, [("wall".into(), 1.5), ("flushes".into(), 2.0)]);
        assert!(figures("").is_empty());
    }

    #[test]
    fn the_best_peer_is_the_best_of_the_round() {
        let sheet = sheet();
        let got = sheet.got("g", &ROWS[0], &ROWS[0].targets[0]).unwrap();
        assert_eq!((got.min, got.max), (0.5, 0.9));
        assert!((got.median - 0.7).abs() < 1e-9);
        assert!(sheet.got("g", &ROWS[0], &ROWS[0].targets[1]).is_none());
        assert!(sheet.ratio(("g", "get", "wall"), "none", &["a"]).is_none());
    }

    #[test]
    fn json_has_every_figure_and_every_target() {
        let value: Value = serde_json::from_str(&sheet().json()).unwrap();
        assert_eq!(value["rows"].as_array().unwrap().len(), 3);
        assert_eq!(value["rows"][2]["figures"]["wall"]["max"], 180.0);
        assert_eq!(value["targets"].as_array().unwrap().len(), 1);
        assert_eq!(value["targets"][0]["reached"], true);
    }
}
