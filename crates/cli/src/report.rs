//! `run --report`: what was served, passed and refused.
//!
//! Invariant: the file is valid JSON with the fields of the contract, whatever session memory
//! says.

use crate::failure::Failure;
use crate::json::Json;
use crate::program;
use crate::session::{RunRecord, Totals};
use holdfast_client::calls::kind;
use holdfast_client::refusal::sentence;
use holdfast_client::served::Report;
use holdfast_pool::session::{ExeName, MAP_COUNTS, Refusal};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::*;

/// The file of a report, opened before the program starts.
pub struct ReportFile {
    path: PathBuf,
    file: File,
}

impl ReportFile {
    /// Opens or makes the file.
    pub fn create(path: &Path) -> Result<ReportFile, Failure> {
        let file = File::create(path).map_err(|e| Failure::io(path.display(), &e))?;
        Ok(ReportFile {
            path: path.into(),
            file,
        })
    }

    /// Writes the report.
    pub fn write(mut self, counts: &Counts, program: &OsStr) -> Result<(), Failure> {
        let text = render(counts, program) + "\n";
        let done = self.file.write_all(text.as_bytes());
        done.map_err(|e| Failure::io(self.path.display(), &e))
    }
}

/// What a run has counted until now.
pub struct Counts {
    totals: Totals,
    /// Call (plus one), reason, and how often.
    refusals: Vec<(u32, u32, u64)>,
    exes: Vec<(Vec<u8>, u64)>,
    /// What mapping caches did; `None`: that is not counted.
    mapping: Option<[u64; MAP_COUNTS]>,
}

/// What is counted of mappings, by `MapCount`.
const MAPPING: [&str; MAP_COUNTS] = [
    "hits",
    "misses",
    "kept",
    "evicted",
    "bytes",
    "ahead_pages",
    "ahead_windows",
    "ahead_reached",
    "ahead_ended",
    "ahead_rests",
    "promotions",
];

impl Counts {
    /// As of now.
    pub fn of(record: &RunRecord) -> Result<Counts, Failure> {
        let run = record.run()?;
        Ok(Counts {
            totals: record.totals()?,
            refusals: run.refusals.iter().filter_map(refusal).collect(),
            exes: run.uninstrumented.iter().filter_map(exe).collect(),
            mapping: Some(record.mapping()?),
        })
    }

    /// Of a run without a pool, which looks at no other calls.
    pub fn of_mappings(mapping: [u64; MAP_COUNTS]) -> Counts {
        Counts {
            totals: Totals::default(),
            refusals: Vec::new(),
            exes: Vec::new(),
            mapping: Some(mapping),
        }
    }

    /// As a proxy tells it.
    pub fn told(report: Report) -> Counts {
        let refusals = report.refusals.into_iter();
        Counts {
            totals: Totals {
                served: report.served,
                passed: report.passed,
                refused: report.refused,
            },
            // Here a call is its number plus one.
            refusals: refusals
                .map(|(call, why, count)| (call.saturating_add(1), why, count))
                .collect(),
            exes: report
                .uninstrumented
                .into_iter()
                .map(|path| (path, 1))
                .collect(),
            mapping: None,
        }
    }

    /// What was added since `before`, which the same run had counted.
    pub fn since(mut self, before: &Counts) -> Counts {
        let (now, then) = (&mut self.totals, &before.totals);
        now.served = now.served.saturating_sub(then.served);
        now.passed = now.passed.saturating_sub(then.passed);
        now.refused = now.refused.saturating_sub(then.refused);
        for (call, why, count) in &mut self.refusals {
            let same = |r: &&(u32, u32, u64)| (r.0, r.1) == (*call, *why);
            let then = before.refusals.iter().find(same).map_or(0, |r| r.2);
            *count = count.saturating_sub(then);
        }
        if let (Some(now), Some(then)) = (&mut self.mapping, &before.mapping) {
            for (now, then) in now.iter_mut().zip(then) {
                *now = now.saturating_sub(*then);
            }
        }
        self.refusals.retain(|(_, _, count)| *count > 0);
        self.exes.retain(|exe| !before.exes.contains(exe));
        self
    }
}

fn render(counts: &Counts, program: &OsStr) -> String {
    let totals = &counts.totals;
    let refusals = counts.refusals.iter().map(refusal_json).collect();
    let exes = counts.exes.iter();
    let mut exes: Vec<Json> = exes
        .map(|(path, _)| Json::Text(String::from_utf8_lossy(path).into_owned()))
        .collect();
    if program::why_uninstrumented(program).is_some() {
        exes.push(Json::Text(program.to_string_lossy().into_owned()));
    }
    let mut fields = vec![
        ("served", Json::Number(totals.served)),
        ("passed", Json::Number(totals.passed)),
        ("refused", Json::Number(totals.refused)),
        ("refusals", Json::List(refusals)),
        ("uninstrumented", Json::List(exes)),
    ];
    if let Some(counts) = &counts.mapping {
        let numbers = counts.iter().map(|n| Json::Number(*n));
        let fields_of_mapping = MAPPING.into_iter().zip(numbers).collect();
        fields.push(("mapping", Json::Object(fields_of_mapping)));
    }
    Json::Object(fields).render()
}

fn refusal(refusal: &Refusal) -> Option<(u32, u32, u64)> {
    let call = refusal.call.load(Acquire);
    let count = refusal.count.load(Relaxed);
    (call != 0).then(|| (call, refusal.why.load(Relaxed), count))
}

fn refusal_json((call, why, count): &(u32, u32, u64)) -> Json {
    let call = call - 1;
    let name = kind(call as usize).map(|kind| kind.name.into());
    let name = name.unwrap_or_else(|| format!("system call {call}"));
    Json::Object(vec![
        ("call", Json::Text(name)),
        ("why", Json::Text(sentence(*why).into())),
        ("count", Json::Number(*count)),
    ])
}

fn exe(exe: &ExeName) -> Option<(Vec<u8>, u64)> {
    let len = (exe.len.load(Acquire) as usize).min(exe.path.len());
    let path: Vec<u8> = exe.path[..len].iter().map(|b| b.load(Relaxed)).collect();
    (len > 0).then(|| (path, exe.count.load(Relaxed).into()))
}
