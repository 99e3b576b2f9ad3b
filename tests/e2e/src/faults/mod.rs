//! Faults: programs and the service are killed with SIGKILL at random moments, again and again,
//! or programs are stopped, and after each round another process judges what is left.
//!
//! Held in every round: each acknowledged step is there, nothing is half-applied, `pool check` is
//! clean, survivors go on (or, when the service died, get EIO), and nobody hangs.

mod actors;
mod model;
mod shared;
pub mod verify;
pub mod writer;

use crate::outcome::{Outcomes, Verdict};
use crate::process;
use actors::{Fixture, Service, Writer};
use model::Random;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long anything may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(20);
/// After this many bad rounds a scenario ends.
const BAD_ROUNDS_MAX: usize = 3;

/// What others may wait for a program that is stopped, also on a busy machine.
const STOPPED_MAX: Duration = Duration::from_secs(3);

/// What is killed or stopped in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scenario {
    /// Lone programs, one after the other.
    Program,
    /// One of several programs; the others go on.
    OneOfSeveral,
    /// One of several programs is stopped for a while; the others go on.
    Stopped,
    /// The service under several programs, then the next service while it recovers.
    Service,
}

/// What a scenario has seen.
#[derive(Default)]
struct Tally {
    rounds: usize,
    kills: usize,
    steps: u64,
    /// The longest time from a kill or stop to the next step of a survivor.
    pause_max: Duration,
}

/// `hf-e2e faults`
pub fn main(args: &[&str]) -> ExitCode {
    let baseline = args.contains(&"--baseline");
    let medium = args.iter().find_map(|arg| arg.strip_prefix("--medium="));
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let seconds = number("HF_FAULT_SECONDS").unwrap_or(150);
    let seed = number("HF_FAULT_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let holdfast = if baseline {
        Ok(None)
    } else {
        process::holdfast().map(Some)
    };
    let prepared = holdfast.and_then(|holdfast| {
        let work = process::scratch("faults").map_err(|e| e.to_string())?;
        Ok((holdfast, work))
    });
    let (holdfast, work) = match prepared {
        Ok(prepared) => prepared,
        Err(why) => {
            eprintln!("faults: {why}");
            return ExitCode::from(2);
        }
    };
    println!("faults: {seconds} seconds, HF_FAULT_SEED={seed}");
    let mut scenarios = scenarios(baseline);
    let words: Vec<&str> = args
        .iter()
        .copied()
        .filter(|a| !a.starts_with("--"))
        .collect();
    scenarios.retain(|scenario| words.iter().all(|w| title(*scenario).contains(w)));
    if scenarios.is_empty() {
        eprintln!("faults: no scenario has {words:?} in its name");
        return ExitCode::from(2);
    }
    let slice = Duration::from_secs(seconds) / scenarios.len() as u32;
    let outcomes = Outcomes::default();
    let mut kills = 0;
    for (index, (scenario, mode)) in scenarios.iter().enumerate() {
        let name = title((*scenario, mode));
        let dir = work.join(format!("{scenario:?}-{mode}"));
        let seed = seed.wrapping_mul(1000) + index as u64;
        let mut tally = Tally::default();
        let verdict = match fixture_on(&dir, mode, holdfast.as_deref(), medium) {
            Ok(fixture) => run_scenario(&fixture, *scenario, slice, Random(seed), &mut tally),
            Err(e) => Verdict::Failed(vec![e]),
        };
        println!(
            "{name}: {} rounds, {} kills, {} steps, longest pause of a survivor {:.1} ms",
            tally.rounds,
            tally.kills,
            tally.steps,
            tally.pause_max.as_secs_f64() * 1e3
        );
        kills += tally.kills;
        let failed = matches!(verdict, Verdict::Failed(_));
        if !failed || std::env::var_os("HF_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&dir);
        }
        outcomes.add(&name, verdict);
    }
    println!("faults: {kills} kills");
    let _ = std::fs::remove_dir(&work);
    outcomes.finish()
}

/// A pool, on this medium if one is named.
fn fixture_on(
    dir: &Path,
    mode: &str,
    holdfast: Option<&Path>,
    medium: Option<&str>,
) -> Result<Fixture, String> {
    let fixture = Fixture::new(dir, mode, holdfast)?;
    medium.map_or(Ok(()), |medium| fixture.must_be_on(medium))?;
    Ok(fixture)
}

fn title((scenario, mode): (Scenario, &str)) -> String {
    match scenario {
        Scenario::Stopped => format!("one of several stopped ({mode})"),
        _ => format!("{scenario:?} killed ({mode})"),
    }
}

fn scenarios(baseline: bool) -> Vec<(Scenario, &'static str)> {
    if baseline {
        return vec![
            (Scenario::Program, "posix"),
            (Scenario::OneOfSeveral, "posix"),
            (Scenario::Stopped, "posix"),
        ];
    }
    let modes = ["posix", "sync", "strict"];
    use Scenario::{OneOfSeveral, Program, Service, Stopped};
    [Program, OneOfSeveral, Stopped, Service]
        .iter()
        .flat_map(|kind| modes.map(|mode| (*kind, mode)))
        .collect()
}

fn run_scenario(
    fixture: &Fixture,
    scenario: Scenario,
    slice: Duration,
    mut random: Random,
    tally: &mut Tally,
) -> Verdict {
    let end = Instant::now() + slice;
    let mut why = Vec::new();
    let mut bad = 0;
    while bad < BAD_ROUNDS_MAX && (Instant::now() < end || tally.rounds == 0) {
        tally.rounds += 1;
        let started = Instant::now();
        let judged = round(fixture, scenario, &mut random, tally);
        if std::env::var_os("HF_VERBOSE").is_some() {
            println!("round {}: {:?}", tally.rounds, started.elapsed());
        }
        if let Err(lines) = judged {
            bad += 1;
            why.push(format!("round {}:", tally.rounds));
            why.extend(lines.into_iter().map(|line| format!("  {line}")));
            if let Err(e) = fixture.renew() {
                why.push(e);
                break;
            }
        }
    }
    if why.is_empty() {
        Verdict::Passed
    } else {
        Verdict::Failed(why)
    }
}

/// One round: a fresh directory, some kills, and the judgement.
fn round(
    fixture: &Fixture,
    scenario: Scenario,
    random: &mut Random,
    tally: &mut Tally,
) -> Result<(), Vec<String>> {
    let dir = format!("r{}", tally.rounds);
    // A service of our own, or one that the first program starts: both ways occur.
    let own = scenario == Scenario::Service || random.below(2) == 0;
    let mut service = if own { fixture.serve()? } else { None };
    let mut writers = Vec::new();
    let mut wrong = match scenario {
        Scenario::Program => lone_programs(fixture, &dir, random, tally, &mut writers),
        Scenario::OneOfSeveral => one_of_several(fixture, &dir, random, tally, &mut writers),
        Scenario::Stopped => stopped(fixture, &dir, random, tally, &mut writers),
        Scenario::Service => the_service(fixture, &dir, random, tally, &mut writers, &mut service),
    };
    for writer in &mut writers {
        wrong.extend(writer.end(scenario == Scenario::Service));
        tally.steps += writer.acked();
    }
    if scenario == Scenario::Service && random.below(2) == 0 {
        wrong.extend(kill_recovery(fixture, random, tally));
    }
    wrong.extend(fixture.judge(&dir, &writers));
    if let Some(service) = service {
        wrong.extend(service.stop());
    }
    wrong.extend(fixture.check());
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// From no time at all to some tens of milliseconds, short times more often.
fn moment(random: &mut Random) -> Duration {
    let bound = 1 << (6 + random.below(10));
    Duration::from_micros(random.below(bound))
}

fn lone_programs(
    fixture: &Fixture,
    dir: &str,
    random: &mut Random,
    tally: &mut Tally,
    writers: &mut Vec<Writer>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for id in 1..=8 {
        match fixture.writer(dir, id, random.next()) {
            Ok(mut writer) => {
                // Sometimes before it has done anything.
                if random.below(8) != 0 {
                    wrong.extend(writer.wait_for_steps(1));
                }
                std::thread::sleep(moment(random));
                tally.kills += usize::from(writer.kill());
                writers.push(writer);
            }
            Err(e) => wrong.push(e),
        }
    }
    wrong
}

/// Starts writers, numbered from 1, and waits until each has done something.
fn at_work(
    writers: &mut Vec<Writer>,
    count: u64,
    start: impl FnMut(u64) -> Result<Writer, String>,
) -> Vec<String> {
    match (1..=count).map(start).collect::<Result<Vec<_>, _>>() {
        Ok(started) => writers.extend(started),
        Err(e) => return vec![e],
    }
    let first_steps = writers.iter_mut().map(|writer| writer.wait_for_steps(1));
    first_steps.flatten().collect()
}

fn one_of_several(
    fixture: &Fixture,
    dir: &str,
    random: &mut Random,
    tally: &mut Tally,
    writers: &mut Vec<Writer>,
) -> Vec<String> {
    let start = |id| fixture.writer(dir, id, random.next());
    let mut wrong = at_work(writers, 3, start);
    for victim in 0..2 {
        std::thread::sleep(moment(random));
        tally.kills += usize::from(writers[victim].kill());
        let killed = Instant::now();
        for survivor in &mut writers[victim + 1..] {
            let more = survivor.acked() + 2;
            wrong.extend(survivor.wait_for_steps(more));
            tally.pause_max = tally.pause_max.max(survivor.pause_after(killed));
        }
    }
    wrong
}

fn stopped(
    fixture: &Fixture,
    dir: &str,
    random: &mut Random,
    tally: &mut Tally,
    writers: &mut Vec<Writer>,
) -> Vec<String> {
    let start = |id| fixture.writer_apart(dir, id, random.next());
    let mut wrong = at_work(writers, 3, start);
    for turn in 0..9 {
        let (front, back) = writers.split_at_mut(turn % 3);
        let Some((victim, rest)) = back.split_first_mut() else {
            break;
        };
        std::thread::sleep(moment(random));
        victim.stop();
        let stopped = Instant::now();
        for other in front.iter_mut().chain(rest) {
            let more = other.acked() + 2;
            wrong.extend(other.wait_for_steps(more));
            let pause = other.pause_after(stopped);
            tally.pause_max = tally.pause_max.max(pause);
            if pause > STOPPED_MAX {
                wrong.push(format!("writer {} waited for {pause:?}", other.id));
            }
        }
        wrong.extend(victim.go_on());
    }
    wrong
}

fn the_service(
    fixture: &Fixture,
    dir: &str,
    random: &mut Random,
    tally: &mut Tally,
    writers: &mut Vec<Writer>,
    service: &mut Option<Service>,
) -> Vec<String> {
    let start = |id| fixture.writer(dir, id, random.next());
    let wrong = at_work(writers, 2, start);
    std::thread::sleep(moment(random));
    if let Some(service) = service.take() {
        service.kill();
        tally.kills += 1;
    }
    std::thread::sleep(moment(random));
    wrong
}

/// Starts services that recover the pool and kills them while they do.
fn kill_recovery(fixture: &Fixture, random: &mut Random, tally: &mut Tally) -> Vec<String> {
    for _ in 0..=random.below(3) {
        match fixture.serve_unready() {
            Ok(service) => {
                std::thread::sleep(moment(random) / 4);
                service.kill();
                tally.kills += 1;
            }
            Err(e) => return vec![e],
        }
    }
    Vec::new()
}
