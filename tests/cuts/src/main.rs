//! Power cuts at the device, under pools on ext4 and XFS.
//!
//! The model: a loop device stands on a file that this process serves through FUSE, so every write
//! and every flush that reaches the "disk" is logged, in order. ext4 or XFS lies on it, with a
//! pool, and ordinary programs change files and keys there through the installed `holdfast`. Each
//! of their acknowledgements is noted with the position of the log at which it came. A power cut
//! at position `c` leaves what was written before the last flush before `c`, and any part of what
//! was written between that flush and `c`, torn between sectors (`disk.rs`). So each run gives as
//! many cuts as one likes, at any moment, without being stopped.
//!
//! After a cut the image is mounted (the file system replays its journal), the pool is opened under
//! another boot id, checked, and read by an ordinary program, and the oracle (`oracle.rs`) compares
//! that with the history (`history.rs`): nothing acknowledged is lost, there are no foreign bytes,
//! no torn writes where writes are atomic, keyspaces are those after some number of commits. It
//! knows the promises and shares no code with what it judges.
//!
//! `errors.rs` has the disk refuse writes for a while instead.
//!
//! The kernel's own write-back is off; in some runs `writeback.rs` takes its place, which writes
//! back any page at any time. `--baseline` runs the same on the file system itself, without a pool,
//! to show that the model asks for nothing that ext4 and XFS do not keep.
//!
//! What a run does follows from its seed, which failures name; threads run differently each time,
//! so the same loss may come at another position of the log. HF_KEEP keeps images of failed cuts.
//!
//! Everything that is started runs in a mount and a process namespace of its own and ends with it.
#![forbid(unsafe_code)]

mod campaign;
mod device;
mod disk;
mod driver;
mod dump;
mod errors;
mod export;
mod guard;
mod history;
mod holder;
mod keys;
mod oracle;
#[cfg(test)]
mod oracle_tests;
mod pattern;
mod random;
mod restores;
mod subject;
mod workload;
mod writeback;
mod writer;

use campaign::{Place, Plan};
use device::Kind;
use restores::Saved;
use std::process::ExitCode;
use subject::Programs;

const USAGE: &str = "usage: hf-cuts COMMAND
  run [--baseline] [ext4|xfs] [FROM]   cuts of runs from number FROM on (default 0)
  restores [ext4|xfs]                  cuts while a pool is restored
  errors                               devices that refuse writes for a while
  writer DIR                           works on files as it is told
  holder DIR                           keeps files open and says what calls on them give
  keys POOL                            changes keys as it is told
  dump DIR EXCEPT                      reads a tree
  writeback POOL SEED                  writes pages of a pool back until it is killed
  guard                                holds the kernel's write-back while its input is open
environment: HOLDFAST (the command), HF_CUTS (how many), HF_RESTORES (of
  restores on each file system), HF_CUTS_RUN (of each run),
  HF_CUTS_SEED, HF_CUTS_PASSAGE (the only part of the workload to play), HF_WORK (scratch),
  HF_KEEP (a directory for images of failed cuts)";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["run" | "restores", ..] | ["errors"] => guard::inside(&args),
        ["inside", what @ ("run" | "restores" | "errors"), args @ ..] => match campaign(what, args)
        {
            Ok(status) => status,
            Err(e) => {
                println!("FAILED cuts: {e}\n0 passed, 1 failed, 0 skipped");
                ExitCode::FAILURE
            }
        },
        ["writer", dir] => writer::main(dir),
        ["holder", dir] => holder::main(dir),
        ["keys", pool] => keys::main(pool),
        ["dump", dir, except] => dump::main(dir, except),
        ["writeback", pool, seed] => writeback::main(pool, seed),
        ["guard"] => guard::main(),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn from_env(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Kinds of file systems that can be made, and how many cannot.
fn kinds(args: &[&str]) -> (Vec<Kind>, usize) {
    let mut kinds = vec![Kind::Ext4, Kind::Xfs];
    kinds.retain(|kind| {
        let others = [Kind::Ext4, Kind::Xfs].map(Kind::name);
        let named = args.iter().any(|arg| others.contains(arg));
        !named || args.contains(&kind.name())
    });
    let wanted = kinds.len();
    kinds.retain(|kind| {
        let there = guard::has(kind.maker());
        if !there {
            println!("skipped cuts on {} (needs {})", kind.name(), kind.maker());
        }
        there
    });
    (kinds.clone(), wanted - kinds.len())
}

/// In the namespaces that `guard` made.
fn campaign(what: &str, args: &[&str]) -> Result<ExitCode, String> {
    let (kinds, missing) = kinds(args);
    let baseline = args.contains(&"--baseline");
    let place = Place::new(programs(baseline)?, &kinds)?;
    let (passed, failed) = match what {
        "errors" => errors(&place, &kinds),
        "restores" => restores(&place, &kinds)?,
        _ => cuts(&place, &kinds, args, baseline),
    };
    let scratch = place.programs.scratch.clone();
    drop(place);
    let _ = std::fs::remove_dir_all(scratch);
    println!("{passed} passed, {failed} failed, {missing} skipped");
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// All cases of devices that refuse writes, those of one file system at the same time.
fn errors(place: &Place, kinds: &[Kind]) -> (usize, usize) {
    let (mut passed, mut failed) = (0, 0);
    for kind in kinds {
        let ended: Vec<bool> = std::thread::scope(|scope| {
            let cases = errors::Case::all(*kind).into_iter().enumerate();
            let judge = |(number, case): (usize, errors::Case)| {
                scope.spawn(move || case.judge(place, number).is_empty())
            };
            let threads: Vec<_> = cases.map(judge).collect();
            let ends = threads.into_iter().map(|thread| thread.join());
            ends.map(|end| end.unwrap_or(false)).collect()
        });
        passed += ended.iter().filter(|ok| **ok).count();
        failed += ended.iter().filter(|ok| !**ok).count();
    }
    (passed, failed)
}

/// Cuts of restores on each file system.
fn restores(place: &Place, kinds: &[Kind]) -> Result<(usize, usize), String> {
    let seed = from_env("HF_CUTS_SEED", guard::outer_pid().parse().unwrap_or(1));
    let each = from_env("HF_RESTORES", 3) as usize;
    println!("cuts of restores: {each} on each, HF_CUTS_SEED={seed}");
    let saved = Saved::new(place)?;
    let counts = kinds
        .iter()
        .map(|kind| saved.cuts(place, *kind, each, seed));
    Ok(counts.fold((0, 0), |(passed, failed), (well, badly)| {
        (passed + well, failed + badly)
    }))
}

/// Runs and cuts of them.
fn cuts(place: &Place, kinds: &[Kind], args: &[&str], baseline: bool) -> (usize, usize) {
    let seed = from_env("HF_CUTS_SEED", guard::outer_pid().parse().unwrap_or(1));
    let wanted = from_env("HF_CUTS", 150) as usize;
    let each = from_env("HF_CUTS_RUN", 12).max(1) as usize;
    println!("cuts: {wanted}, HF_CUTS_SEED={seed}");
    let (mut passed, mut failed) = (0, 0);
    let mut number = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(0);
    while !kinds.is_empty() && passed + failed < wanted {
        for kind in kinds {
            let left = wanted.saturating_sub(passed + failed);
            if left == 0 {
                break;
            }
            let plan = Plan::new(seed, number, *kind, baseline);
            let tally = place.campaign(&plan, each.min(left));
            passed += tally.passed;
            failed += tally.failed;
            tally.lines.iter().for_each(|line| println!("{line}"));
        }
        number += 1;
    }
    (passed, failed)
}

fn programs(baseline: bool) -> Result<Programs, String> {
    let holdfast = match std::env::var_os("HOLDFAST") {
        _ if baseline => None,
        Some(path) => Some(std::path::absolute(path).map_err(|e| e.to_string())?),
        None => return Err("HOLDFAST does not name the command to test".into()),
    };
    let scratch = guard::scratch();
    std::fs::create_dir_all(&scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
    Ok(Programs {
        holdfast,
        own: std::env::current_exe().map_err(|e| e.to_string())?,
        scratch,
    })
}
