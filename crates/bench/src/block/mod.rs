//! `bench block`: a volume under each protection and each write scheme of PMBD, and on memory that
//! is slowed as PMBD slows it, side by side with memory that nothing protects, with tmpfs, and with
//! the block servers of today.
//!
//! Invariants: every peer has the same bytes on the same tmpfs, all of them written before; what is
//! read is in the end compared with what was written; the peers take turns row by row, in a
//! different order each round; a request of several threads is timed for all of them together.

mod nbd;
mod peers;
mod rows;
pub mod systems;

use crate::error::{Error, Result};
use crate::janitor::Janitor;
use crate::link::progress;
use crate::options::Options;
use crate::peers::memory_directory;
use crate::report::machine;
use crate::sheet::{Cell, Group, Sheet};
use peers::{Disk, Peer};
use rows::{GROUPS, PLANS, Plan, ROWS};
use std::path::Path;
use std::time::Instant;

/// Bytes of each disk: many times the caches of a processor.
pub const SIZE: u64 = 256 << 20;
/// The peer that the targets are for: what `auto` finds.
pub const SUBJECT: &str = "holdfast";
const SECTIONS: &[(&str, &str)] = &[("wall", "time per request, ns")];

/// Runs everything that the options ask for.
pub fn run(options: &Options) -> Result<String> {
    let started = Instant::now();
    options.check_rows(ROWS.iter().map(|row| (row.name, row.title)))?;
    holdfast::use_program(crate::paths::holdfast()?);
    let mut janitor = Janitor::start()?;
    let base = memory_directory(&mut janitor, 32 * SIZE)?;
    let mut sheet = sheet(options);
    let peers = start(options, &mut janitor, &base, &mut sheet)?;
    sheet.peers = peers.iter().map(|peer| peer.name.to_owned()).collect();
    for round in 0..sheet.rounds {
        for (at, plan) in PLANS.iter().enumerate() {
            let mut order: Vec<&Peer> = peers.iter().collect();
            order.rotate_left((round + at) % peers.len().max(1));
            for peer in order {
                measure(options, &mut sheet, round, (peer, plan));
            }
        }
    }
    progress("");
    for peer in &peers {
        if let Err(error) = peer.disk.check() {
            sheet.failures.push(format!("{}: {error}", peer.name));
        }
    }
    drop(peers);
    drop(janitor);
    sheet.seconds = started.elapsed().as_secs();
    sheet.finish(options)
}

/// The peers that can be measured here.
fn start(
    options: &Options,
    janitor: &mut Janitor,
    base: &Path,
    sheet: &mut Sheet,
) -> Result<Vec<Peer>> {
    let mut all = Vec::new();
    for name in peers::NAMES.iter().chain(nbd::NAMES) {
        if !options.wants_peer(name, false) {
            continue;
        }
        let started = match nbd::NAMES.contains(name) {
            true => nbd::start(name, base).map(|disk| Box::new(disk) as Box<dyn Disk>),
            false => peers::start(name, janitor, base),
        };
        match started {
            Ok(disk) => all.push(Peer { name, disk }),
            Err(error) => sheet.skipped.push(((*name).into(), error.to_string())),
        }
    }
    match sheet.skipped.first() {
        _ if !all.is_empty() => Ok(all),
        Some((name, why)) => Err(Error::Failed(format!("{name} was skipped: {why}"))),
        None => Err(Error::Usage("no peer has such a name".into())),
    }
}

fn measure(options: &Options, sheet: &mut Sheet, round: usize, (peer, plan): (&Peer, &Plan)) {
    let too_many = plan.depth > 1 && peers::is_slowed(peer.name);
    if too_many || !options.wants_titled(plan.row, plan.title()) {
        return;
    }
    let rounds = sheet.rounds;
    progress(&format!(
        "round {} of {rounds}: {}, {}",
        round + 1,
        plan.row,
        peer.name
    ));
    match peer.disk.time(plan, options.quick) {
        Ok(wall) => sheet.cells.push(Cell {
            group: plan.group,
            row: plan.row,
            peer: peer.name.into(),
            round,
            figures: vec![("wall".into(), wall)],
        }),
        Err(error) => sheet
            .failures
            .push(format!("{} of {}: {error}", plan.row, peer.name)),
    }
}

fn sheet(options: &Options) -> Sheet {
    Sheet {
        benchmark: "block",
        subject: SUBJECT,
        base: &["memcpy", "memcpy-nt"],
        about: vec![
            format!("disks of {} MiB on one tmpfs, all of it in use", SIZE >> 20),
            "memcpy: a mapping that nothing protects, by plain stores, which are not durable on \
             persistent memory; memcpy-nt: by stores around the cache and a fence, which are"
                .into(),
            "holdfast: protection and scheme as `auto` finds them; none, pt, pt-batch, pmap, \
             pmap-cache, fd, pkey: that protection; nt, clwb, clflushopt, clflush: that scheme, \
             unprotected"
                .into(),
            "strict: unprotected, with PMBD's barrier; atomic: unprotected, with atomic sectors, \
             whose writes are durable when they are done; checksum: these, with checksums"
                .into(),
            "loop: a loop device over a file of tmpfs, past both caches of pages (O_DIRECT)".into(),
            "x2 to x16: unprotected, each copy takes so many times as long (PMBD's rdsx and wrsx); \
             of one thread alone"
                .into(),
            "32 at a time: by 32 threads, the time of all divided by all requests".into(),
        ],
        sections: SECTIONS,
        rounds: options.rounds(),
        quick: options.quick,
        machine: machine(),
        rows: ROWS,
        groups: GROUPS
            .iter()
            .map(|(name, title)| Group {
                name,
                title: (*title).into(),
            })
            .collect(),
        peers: Vec::new(),
        skipped: Vec::new(),
        cells: Vec::new(),
        failures: Vec::new(),
        seconds: 0,
    }
}
