//! `holdfast map explain`: runs a program and says what its mappings of files cost.
//!
//! Invariants: those of `run`; without `--map` nothing is done for the mappings, and the program
//! sees what it sees without; what is said is of this run.

use crate::advice::{Advice, Facts, advice};
use crate::args::{ExplainArgs, RunArgs};
use crate::failure::{self, Failure};
use crate::json::Json;
use crate::no_pool::Record;
use crate::run;
use holdfast_client::MapSettings;
use holdfast_client::map_record::{MapFile, MapRecord, Sum, WATCH, WATCH_WORK};
use holdfast_pmem::SharedMem;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::fd::AsFd;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// `map explain`.
pub fn explain(args: ExplainArgs, json: bool) -> Result<u8, Failure> {
    let failed = |failure: Failure| failure.code(failure::RUN_FAILED);
    let output = args.output.as_deref().map(|path| {
        let made = File::create(path);
        made.map_err(|e| failed(Failure::io(path.display(), &e)))
    });
    let output = output.transpose()?;
    let watch = if args.map.is_some() {
        WATCH_WORK
    } else {
        WATCH
    };
    let record = Record::create(watch).map_err(failed)?;
    let fault_ns = fault_ns().map_err(failed)?;
    let map = args.map;
    let run_args = RunArgs {
        keep_mapped: false,
        no_pool: args.pool.is_none(),
        pool: args.pool,
        at: args.at,
        consistency: None,
        snapshot: None,
        slow: None,
        map: Some(map.unwrap_or(MapSettings::DEFAULT)),
        record: Some(record.at()),
        trace: None,
        trace_filter: None,
        report: None,
        program: args.program,
    };
    let (before, begun) = (usage().map_err(failed)?, Instant::now());
    let status = run::run(&run_args)?;
    let (after, wall) = (usage().map_err(failed)?, begun.elapsed());
    let counted = record.get().map_err(failed)?;
    let facts = Facts {
        sums: counted.sums(),
        cpu_ns: cpu_ns(&after).saturating_sub(cpu_ns(&before)),
        wall_ns: wall.as_nanos() as u64,
        fault_ns,
        minor_faults: count(after.minor_page_faults(), before.minor_page_faults()),
        major_faults: count(after.major_page_faults(), before.major_page_faults()),
        map,
        files: files(counted),
    };
    let text = match json {
        true => in_json(&facts, counted).render() + "\n",
        false => in_words(&facts, counted),
    };
    let said = match output {
        Some(mut file) => file.write_all(text.as_bytes()),
        None => std::io::stderr().write_all(text.as_bytes()),
    };
    said.map_err(|e| failed(Failure::io("what mappings cost", &e)))?;
    Ok(status)
}

/// Of all programs that were started from here and have ended, with what they started.
fn usage() -> Result<Usage, Failure> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN);
    usage.map_err(|e| Failure::io("the time that programs took", &e.into()))
}

fn cpu_ns(usage: &Usage) -> u64 {
    let us = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    us.unsigned_abs() * 1000
}

fn count(after: i64, before: i64) -> u64 {
    after.saturating_sub(before).unsigned_abs()
}

/// What a fault costs here that maps a block of a file in memory, without what is read there.
fn fault_ns() -> Result<u64, Failure> {
    const LEN: usize = 8 << 20;
    const BLOCK: u64 = 64 << 10;
    let failed = |e: holdfast_pmem::Error| Failure::new(e.to_string());
    let (fd, memory) = SharedMem::create_memfd("holdfast-faults", LEN).map_err(failed)?;
    memory.prefault(0, LEN).map_err(failed)?;
    let mut best = u64::MAX;
    for _ in 0..5 {
        let mapped = SharedMem::map(fd.as_fd(), LEN).map_err(failed)?;
        let begun = Instant::now();
        let offsets = (0..LEN as u64).step_by(BLOCK as usize);
        let words = offsets.filter_map(|at| mapped.at::<AtomicU64>(at));
        let sum: u64 = words.map(|word| word.load(Relaxed)).sum();
        let ns = begun.elapsed().as_nanos() as u64 / (LEN as u64 / BLOCK);
        best = best.min(ns + sum);
    }
    Ok(best.max(1))
}

/// Files that were mapped by small pages, those with the most faults first.
fn files(record: &MapRecord) -> Vec<(String, u64)> {
    let named = |file: &MapFile| {
        let (bytes, len) = file.path()?;
        let path = String::from_utf8_lossy(&bytes[..len]).into_owned();
        let faults = file.faults.load(Relaxed);
        let still_there = path.starts_with('/') && !path.ends_with(" (deleted)");
        (faults > 0 && still_there).then_some((path, faults))
    };
    let mut files: Vec<_> = record.files.iter().filter_map(named).collect();
    files.sort_by_key(|(_, faults)| u64::MAX - faults);
    files
}

const SUMS: &[(&str, Sum)] = &[
    ("programs", Sum::Programs),
    ("maps", Sum::Maps),
    ("map_ns", Sum::MapNs),
    ("unmaps", Sum::Unmaps),
    ("unmap_ns", Sum::UnmapNs),
    ("bytes", Sum::Bytes),
    ("maps_below_64k", Sum::Class0),
    ("maps_below_2m", Sum::Class1),
    ("maps_below_64m", Sum::Class2),
    ("maps_longer", Sum::Class3),
    ("pages", Sum::Pages),
    ("pages_mapped", Sum::Mapped),
    ("faults_of_maps", Sum::Faults),
    ("huge_pages", Sum::HugePages),
    ("maps_again", Sum::Repeats),
    ("hits_expected", Sum::Hits),
    ("faults_spared_by_hits", Sum::HitFaults),
    ("hits_of_all_kept", Sum::AllHits),
    ("idle_bytes_of_all_kept", Sum::IdleBytes),
    ("idle_maps_of_all_kept", Sum::IdleMappings),
    ("read_in_order", Sum::InOrder),
    ("bytes_read_in_order", Sum::InOrderBytes),
    ("not_read_in_order", Sum::NotInOrder),
    ("advised_sequential", Sum::Sequential),
    ("advised_willneed", Sum::WillNeed),
    ("advised_random", Sum::Random),
    ("advised_dontneed", Sum::DontNeed),
    ("unfit_open_for_writing", Sum::UnfitWriter),
    ("unfit_file_system", Sum::UnfitSystem),
    ("unfit_manner", Sum::UnfitManner),
    ("unfit_too_short", Sum::UnfitShort),
    ("unfit_too_long", Sum::UnfitLong),
    ("off_by_filter", Sum::StoppedFilter),
    ("off_by_locked_memory", Sum::StoppedLocked),
    ("off_by_userfaultfd", Sum::StoppedWatched),
    ("off_by_unseen_calls", Sum::StoppedUnseen),
];

fn in_json(f: &Facts, record: &MapRecord) -> Json {
    let mut fields = vec![
        ("cpu_ns", Json::Number(f.cpu_ns)),
        ("wall_ns", Json::Number(f.wall_ns)),
        ("cost_ns", Json::Number(f.cost_ns())),
        ("fault_ns", Json::Number(f.fault_ns)),
        ("minor_faults", Json::Number(f.minor_faults)),
        ("major_faults", Json::Number(f.major_faults)),
    ];
    let sums = SUMS
        .iter()
        .map(|(name, sum)| (*name, Json::Number(f.get(*sum))));
    fields.extend(sums);
    if f.map.is_some() {
        let [hits, _, _, _, _, ahead_pages, ..] = record.mapping();
        fields.push(("hits", Json::Number(hits)));
        fields.push(("ahead_pages", Json::Number(ahead_pages)));
    }
    let file = |(path, faults): &(String, u64)| {
        Json::Object(vec![
            ("file", Json::Text(path.clone())),
            ("faults", Json::Number(*faults)),
        ])
    };
    fields.push(("files", Json::List(f.files.iter().map(file).collect())));
    let list = advice(f).iter().map(advice_in_json).collect();
    fields.push(("advice", Json::List(list)));
    Json::Object(fields)
}

fn advice_in_json(advice: &Advice) -> Json {
    Json::Object(vec![
        ("what", Json::Text(advice.what.into())),
        ("command", Json::Text(advice.command.clone())),
        ("sentence", Json::Text(advice.sentence.clone())),
        ("faults", Json::Number(advice.faults)),
        ("ns", Json::Number(advice.ns)),
    ])
}

fn in_words(f: &Facts, record: &MapRecord) -> String {
    let get = |sum| f.get(sum);
    let ms = |ns: u64| ns as f64 / 1e6;
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    line(format!(
        "holdfast: mappings of files took {:.1} ms of {:.1} ms of processor time, in {:.1} ms and \
         {} programs",
        ms(f.cost_ns()),
        ms(f.cpu_ns),
        ms(f.wall_ns),
        get(Sum::Programs)
    ));
    line(format!(
        "  {} times mmap, {:.1} ms: {} below 64K, {} below 2M, {} below 64M, {} longer; {} MB",
        get(Sum::Maps),
        ms(get(Sum::MapNs)),
        get(Sum::Class0),
        get(Sum::Class1),
        get(Sum::Class2),
        get(Sum::Class3),
        get(Sum::Bytes) / 1_000_000
    ));
    let unmaps = (get(Sum::Unmaps), ms(get(Sum::UnmapNs)));
    line(format!("  {} times munmap, {:.1} ms", unmaps.0, unmaps.1));
    line(format!(
        "  {} faults at least, {:.1} ms ({:.2} us each); {} minor and {} major ones of all",
        get(Sum::Faults),
        ms(f.faults_ns(get(Sum::Faults))),
        f.fault_ns as f64 / 1e3,
        f.minor_faults,
        f.major_faults
    ));
    line(format!(
        "  {} of {} pages were mapped when they were unmapped, {} huge pages among them",
        get(Sum::Mapped),
        get(Sum::Pages),
        get(Sum::HugePages)
    ));
    line(format!(
        "  {} times the program had mapped the same before",
        get(Sum::Repeats)
    ));
    if f.map.is_some() {
        let [hits, _, _, _, _, ahead_pages, ..] = record.mapping();
        line(format!(
            "  {hits} times a mapping was given out again, and {ahead_pages} pages were mapped \
             ahead (--map)"
        ));
    }
    for advice in advice(f) {
        let command = match advice.command.as_str() {
            "" => String::new(),
            command => format!(" ({command})"),
        };
        line(format!("  {}: {}{command}", advice.what, advice.sentence));
    }
    out
}
