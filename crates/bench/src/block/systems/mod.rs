//! `bench block --macro`: programs on ext4 over a volume, side by side with tmpfs, and with ext4
//! over a loop device on a file of tmpfs.
//!
//! Invariants: a program finds nothing of its file system in memory, but on tmpfs, and its time
//! ends when all that it wrote is on the device; what it made is compared on every file system; the
//! peers take turns row by row, in a different order each round.

mod rows;
mod site;

use super::SUBJECT;
use crate::error::{Error, Result};
use crate::janitor::Janitor;
use crate::link::progress;
use crate::options::Options;
use crate::peers::{memory_directory, quiet};
use crate::report::machine;
use crate::sheet::{Cell, Group, Row, Sheet};
use rows::{ROWS, missing, part};
use site::{NAMES, Place, SIZE, TMPFS};
use std::path::{Path, PathBuf};
use std::time::Instant;

const ALL: &str = "programs";

/// Where a row is measured, and by what.
struct Turn<'a> {
    row: &'static Row,
    place: &'a Place,
    sources: &'a Path,
    quick: bool,
}

/// Runs everything that the options ask for.
pub fn run(options: &Options) -> Result<String> {
    let started = Instant::now();
    options.check_rows(ROWS.iter().map(|row| (row.name, row.title)))?;
    holdfast::use_program(crate::paths::holdfast()?);
    // Dropped last: the janitor has them end.
    let mut exports = Vec::new();
    let mut janitor = Janitor::start()?;
    let base = memory_directory(&mut janitor, 4 * SIZE)?;
    let mut sheet = sheet(options);
    let sources = sources(&base, options)?;
    let mut places = Vec::new();
    for name in NAMES.iter().copied() {
        if !options.wants_peer(name, false) && name != TMPFS {
            continue;
        }
        match site::make(name, &base, &mut janitor, &mut exports) {
            Ok(place) => places.push(place),
            Err(error) => sheet.skipped.push((name.into(), error.to_string())),
        }
    }
    sheet.peers = places.iter().map(|place| place.name.to_owned()).collect();
    let wanted = ROWS
        .iter()
        .filter(|row| options.wants_titled(row.name, row.title));
    for (at, row) in wanted.enumerate() {
        if let Some(command) = missing(row.name) {
            let why = format!("{command} is not installed");
            sheet.skipped.push((row.name.into(), why));
            continue;
        }
        measure(options, &mut sheet, (at, row), (&places, &sources));
    }
    progress("");
    drop(janitor);
    sheet.seconds = started.elapsed().as_secs();
    sheet.finish(options)
}

/// What the programs start from, on a tmpfs that nobody measures.
fn sources(base: &Path, options: &Options) -> Result<PathBuf> {
    let sources = base.join("sources");
    std::fs::create_dir(&sources).map_err(Error::io(sources.display()))?;
    quiet(&mut part("sources", &sources, "", &sources, options.quick))?;
    Ok(sources)
}

/// All rounds of a row.
fn measure(
    options: &Options,
    sheet: &mut Sheet,
    (at, row): (usize, &'static Row),
    (places, sources): (&[Place], &Path),
) {
    let mut expected: Option<String> = None;
    for round in 0..sheet.rounds {
        let mut order: Vec<&Place> = places.iter().collect();
        order.rotate_left((round + at) % places.len().max(1));
        for place in order {
            let (now, name) = (round + 1, place.name);
            progress(&format!(
                "round {now} of {}: {}, {name}",
                sheet.rounds, row.name
            ));
            let turn = Turn {
                row,
                place,
                sources,
                quick: options.quick,
            };
            let wall = turn.run().and_then(|(wall, said)| {
                match *expected.get_or_insert_with(|| said.clone()) == said {
                    true => Ok(wall),
                    false => Err(Error::Failed("other content than elsewhere".into())),
                }
            });
            match wall {
                Ok(wall) => sheet.cells.push(Cell {
                    group: ALL,
                    row: row.name,
                    peer: name.into(),
                    round,
                    figures: vec![("wall".into(), wall)],
                }),
                Err(error) => {
                    let failure = format!("{} of {name}: {error}", row.name);
                    sheet.failures.push(failure);
                }
            }
        }
    }
}

impl Turn<'_> {
    /// The time in ns, and what the program printed.
    fn run(&self) -> Result<(f64, String)> {
        self.part("before")?;
        self.place.forget()?;
        let begun = Instant::now();
        let mut said = self.part("work")?;
        self.place.sync()?;
        let wall = begun.elapsed().as_nanos() as f64;
        self.place.forget()?;
        said.push_str(&self.part("after")?);
        Ok((wall, said))
    }

    fn part(&self, name: &str) -> Result<String> {
        let Turn {
            row,
            place,
            sources,
            quick,
        } = *self;
        quiet(&mut part(name, &place.dir, row.name, sources, quick))
    }
}

fn sheet(options: &Options) -> Sheet {
    Sheet {
        benchmark: "block",
        subject: SUBJECT,
        base: &[TMPFS],
        about: vec![
            "ext4-loop: ext4 on a loop device over a file of tmpfs; holdfast: ext4 on one over a \
             volume that `holdfast export --fuse` shows as a file; both with direct I/O"
                .into(),
            "ext4 is mounted again before each program, and all is on its device at the end".into(),
        ],
        sections: &[("wall", "wall-clock time, ms")],
        rounds: options.rounds(),
        quick: options.quick,
        machine: machine(),
        rows: ROWS,
        groups: vec![Group {
            name: ALL,
            title: "programs on file systems".into(),
        }],
        peers: Vec::new(),
        skipped: Vec::new(),
        cells: Vec::new(),
        failures: Vec::new(),
        seconds: 0,
    }
}
