//! Runs and cuts: one run of a workload on a logged disk, then many cuts of it, each judged.

use crate::device::{self, Kind, Mount};
use crate::disk::{Cut, Disk, Image, Log, Position, Rest};
use crate::driver::Driver;
use crate::dump::{self, Seen};
use crate::export::{Export, SharedDisk, lock};
use crate::history::History;
use crate::oracle::{self, Promise, Rules};
use crate::random::Random;
use crate::subject::{Programs, Subject, run};
use crate::workload::{self, Size};
use crate::writeback::Writeback;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What one run is, all of it decided by the seed of the campaign and the run's number.
#[derive(Clone, Debug)]
pub struct Plan {
    pub number: u64,
    pub seed: u64,
    /// The seed of the campaign.
    campaign: u64,
    pub kind: Kind,
    pub promise: Promise,
    options: &'static str,
    write_back: bool,
    size: Size,
}

impl Plan {
    pub fn new(seed: u64, number: u64, kind: Kind, baseline: bool) -> Plan {
        let mut random = Random::of(seed, number * 2 + u64::from(kind == Kind::Xfs));
        let promise = match number % 5 {
            3 if !baseline => Promise::Strict,
            4 if number % 10 == 4 && !baseline => Promise::Sync,
            _ => Promise::Posix,
        };
        let options = match kind {
            Kind::Ext4 => [
                "noinit_itable",
                "noinit_itable,commit=300",
                "noinit_itable,commit=1",
            ],
            Kind::Xfs => ["nouuid"; 3],
        };
        Plan {
            number,
            seed: random.next(),
            campaign: seed,
            kind,
            promise,
            options: options[random.below(3) as usize],
            write_back: promise == Promise::Strict || random.chance(35),
            size: Size {
                passages: 14,
                crowd: !baseline && number % 6 == 1,
                snapshot: !baseline && random.chance(40),
            },
        }
    }

    /// How to play it again. Threads run differently then, so positions in the log may differ.
    fn again(&self) -> String {
        format!(
            "  again: HF_CUTS_SEED={} HF_CUTS=12 hf-cuts run {} {}",
            self.campaign,
            self.kind.name(),
            self.number
        )
    }

    /// The run in one line, for people.
    pub fn title(&self) -> String {
        format!(
            "{} run {} ({:?}{}{}{}{})",
            self.kind.name(),
            self.number,
            self.promise,
            if self.write_back { ", write-back" } else { "" },
            if self.size.snapshot { ", snapshot" } else { "" },
            if self.size.crowd { ", crowd" } else { "" },
            if self.options.contains("commit") {
                &self.options[13..]
            } else {
                ""
            },
        )
    }
}

/// Where cuts are made.
pub struct Place {
    pub export: Export,
    pub programs: Programs,
    /// Two other boot ids.
    pub boot: PathBuf,
    pub empty: Vec<(Kind, Image)>,
}

/// What a run left for its cuts.
struct Played {
    plan: Plan,
    log: Log,
    history: History,
    marks: Vec<Position>,
    end: Position,
}

/// What came of a run's cuts.
#[derive(Default)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    pub lines: Vec<String>,
}

impl Place {
    pub fn new(programs: Programs, kinds: &[Kind]) -> Result<Place, String> {
        let export = Export::mount(&programs.scratch.join("disks"))?;
        let boot = programs.scratch.join("boot_id");
        std::fs::write(&boot, "3c1a3b6e-0cf5-4c5e-9f43-2f6d6c0d8b11\n")
            .map_err(|e| e.to_string())?;
        let mut empty = Vec::new();
        for &kind in kinds {
            empty.push((kind, device::fresh(&export, kind)?));
        }
        Ok(Place {
            export,
            programs,
            boot,
            empty,
        })
    }

    fn rules(&self, plan: &Plan) -> Rules {
        Rules {
            promise: plan.promise,
            // Without a pool, what ext4 does (auto_da_alloc); XFS promises no such thing.
            whole: self.programs.holdfast.is_some() || plan.kind == Kind::Ext4,
        }
    }

    fn subject(&self, plan: &Plan, mount: &Path) -> Subject {
        Subject {
            programs: self.programs.clone(),
            promise: plan.promise,
            kind: plan.kind,
            dir: mount.join("pool"),
        }
    }

    /// Plays the run of this plan and judges `count` cuts of it.
    pub fn campaign(&self, plan: &Plan, count: usize) -> Tally {
        let played = match self.play(plan) {
            Ok(played) => played,
            Err(e) => {
                // None of its cuts can be made.
                return Tally {
                    failed: count,
                    lines: vec![format!("FAILED {}: {e}", plan.title()), plan.again()],
                    ..Tally::default()
                };
            }
        };
        let cuts = choose(&played, count);
        let (next, tally) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
        std::thread::scope(|scope| {
            for lane in 0..2 {
                let (played, cuts, next, tally) = (&played, &cuts, &next, &tally);
                scope.spawn(move || {
                    while let Some(cut) = cuts.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let mut wrong = self.judge(played, *cut, lane);
                        if !wrong.is_empty()
                            && let Err(e) = keep(played, *cut, &wrong)
                        {
                            wrong.push(format!("it could not be kept: {e}"));
                        }
                        let mut tally = tally.lock().expect("no thread panics with it");
                        tally.add(plan, *cut, wrong);
                    }
                });
            }
        });
        reap_orphans();
        let mut tally = tally.into_inner().expect("no thread panicked");
        let history = &played.history;
        tally.lines.push(format!(
            "{} {}: {} cuts, {} failed; {} entries of the device, {} files, {} changes of names, \
             {} commits",
            if tally.failed == 0 { "ok" } else { "FAILED" },
            plan.title(),
            tally.passed + tally.failed,
            tally.failed,
            played.end,
            history.files.len(),
            history.events.len(),
            history.commits.len(),
        ));
        if tally.failed > 0 {
            tally.lines.push(plan.again());
        }
        tally
    }

    fn play(&self, plan: &Plan) -> Result<Played, String> {
        let empty = self.empty.iter().find(|(kind, _)| *kind == plan.kind);
        let (_, empty) = empty.ok_or("no empty file system of this kind")?;
        let disk: SharedDisk = Arc::new(Mutex::new(Disk::new(empty.clone(), true)));
        let dir = self.programs.scratch.join("work");
        let mount = Mount::new(&self.export, disk.clone(), plan.kind, plan.options, &dir)?;
        let subject = self.subject(plan, &mount.dir);
        match subject.holdfast(&["pool", "create", "--size", "64M"]) {
            Some(mut command) => {
                run(command.arg(&subject.dir), &self.programs.scratch)?;
            }
            None => device::tool(Command::new("mkdir").arg(&subject.dir)).map(drop)?,
        }
        let mut random = Random(plan.seed);
        let write_back = match plan.write_back {
            true => {
                let own = &self.programs.own;
                Some(Writeback::start(own, &subject.dir, Random(random.next()))?)
            }
            false => None,
        };
        let mut driver = Driver::new(subject, disk.clone(), random);
        let done = workload::play(&mut driver, plan.size);
        let (end, log) = {
            let mut disk = lock(&disk);
            (disk.position(), disk.take_log())
        };
        drop(write_back);
        let ended = driver.end_session();
        done.and(ended)?;
        Ok(Played {
            plan: plan.clone(),
            log,
            history: driver.history,
            marks: driver.marks,
            end,
        })
    }

    /// What is wrong after this cut.
    fn judge(&self, played: &Played, cut: Cut, lane: usize) -> Vec<String> {
        let read = self.read(played, cut, lane);
        let rules = self.rules(&played.plan);
        match read {
            Err(e) => vec![e],
            Ok((seen, snapshots)) => {
                let mut wrong = oracle::judge(&played.history, cut.at, rules, &seen);
                for (snapshot, seen) in played.history.snapshots.iter().zip(snapshots) {
                    let Some(seen) = seen else { continue };
                    wrong.extend(oracle::judge_snapshot(
                        &played.history,
                        snapshot,
                        rules,
                        &seen,
                    ));
                }
                wrong
            }
        }
    }

    /// Everything that is there after the cut: files and values, and those of each snapshot.
    fn read(
        &self,
        played: &Played,
        cut: Cut,
        lane: usize,
    ) -> Result<(Seen, Vec<Option<Seen>>), String> {
        let image = played.log.image(cut);
        let disk: SharedDisk = Arc::new(Mutex::new(Disk::new(image, false)));
        let dir = self.programs.scratch.join(format!("cut{lane}"));
        // Several images of one file system are mounted at the same time.
        let options = match played.plan.kind {
            Kind::Ext4 => "",
            Kind::Xfs => "nouuid",
        };
        let mount = Mount::new(&self.export, disk, played.plan.kind, options, &dir)
            .map_err(|e| format!("MOUNT {e}"))?;
        let subject = self.subject(&played.plan, &mount.dir);
        self.check(&subject, "before recovery")?;
        let seen = self.dump(&subject, &[])?;
        let mut snapshots = Vec::new();
        for snapshot in &played.history.snapshots {
            let there = snapshot.span.done_by(cut.at);
            let seen = there.then(|| self.dump(&subject, &["--snapshot", &snapshot.name]));
            snapshots.push(seen.transpose()?);
        }
        self.check(&subject, "after recovery")?;
        Ok((seen, snapshots))
    }

    pub fn check(&self, subject: &Subject, when: &str) -> Result<(), String> {
        let Some(mut command) = subject.holdfast(&["pool", "check"]) else {
            return Ok(());
        };
        command.arg(&subject.dir);
        run(&mut self.later(command), &self.programs.scratch)
            .map(drop)
            .map_err(|e| format!("CHECK {when}: {e}"))
    }

    pub fn dump(&self, subject: &Subject, more: &[&str]) -> Result<Seen, String> {
        let own = self.programs.own.display().to_string();
        let files = subject.files().display().to_string();
        let command = subject.program(more, &[&own, "dump", &files, "crowd"]);
        let bytes = run(&mut self.later(command), &self.programs.scratch)
            .map_err(|e| format!("READ {more:?}: {e}"))?;
        dump::parse(&bytes).map_err(|e| format!("READ {more:?}: {e}"))
    }

    /// The same command after the machine was started again: with another boot id.
    pub fn later(&self, command: Command) -> Command {
        let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
        let mut later = Command::new("unshare");
        later.args(["--mount", "sh", "-c", script]).arg(&self.boot);
        later.arg(command.get_program()).args(command.get_args());
        later.env_clear();
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                later.env(name, value);
            }
        }
        later
    }
}

impl Tally {
    fn add(&mut self, plan: &Plan, cut: Cut, wrong: Vec<String>) {
        if wrong.is_empty() {
            self.passed += 1;
            return;
        }
        self.failed += 1;
        for line in wrong {
            self.lines.push(format!(
                "  {} {} at {} {:?} {:#x}: {line}",
                plan.kind.name(),
                plan.number,
                cut.at,
                cut.rest,
                cut.seed
            ));
        }
    }
}

/// This process is the first of its namespace: services that were left to themselves are its
/// children when they end. Those of its own are all waited for by now.
fn reap_orphans() {
    use rustix::process::{WaitOptions, wait};
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Saves the image of a cut and the history of its run in the directory HF_KEEP.
fn keep(played: &Played, cut: Cut, wrong: &[String]) -> std::io::Result<()> {
    let Some(dir) = std::env::var_os("HF_KEEP").map(PathBuf::from) else {
        return Ok(());
    };
    let plan = &played.plan;
    let name = format!(
        "{}-{}-{}-{:x}",
        plan.kind.name(),
        plan.number,
        cut.at,
        cut.seed
    );
    let text = format!("{plan:?}\n{cut:?}\n{wrong:#?}\n{:#?}\n", played.history);
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join(format!("{name}.txt")), text)?;
    played.log.image(cut).save(&dir.join(format!("{name}.img")))
}

/// A position within a call that changed a file's content.
fn within_call(played: &Played, random: &mut Random) -> Option<Position> {
    let files = played.history.files.values();
    let spans = files.flat_map(|file| file.ops.iter().map(|op| op.span));
    let spans: Vec<(Position, Position)> = spans
        .filter_map(|span| Some((span.begun, span.done?)))
        .filter(|(begun, done)| begun < done)
        .collect();
    let (begun, done) = *random.pick(&spans)?;
    Some(begun + 1 + random.below((done - begun) as u64) as usize)
}

/// Where to cut: after acknowledgements, around flushes, and anywhere.
fn choose(played: &Played, count: usize) -> Vec<Cut> {
    let mut random = Random::of(played.plan.seed, 1);
    let first = played.marks.first().copied().unwrap_or(0);
    let flushes = played.log.flush_boundaries(first);
    let mut cuts = Vec::new();
    for _ in 0..count {
        // What is durable at return is at risk within calls, the rest after them.
        let within = played.plan.promise != Promise::Posix && random.chance(70);
        let at = match random.below(10) {
            _ if within => within_call(played, &mut random),
            0..=4 => random.pick(&played.marks).copied(),
            5..=7 => random.pick(&flushes).copied(),
            _ => None,
        };
        let span = (played.end - first) as u64 + 1;
        let at = at.unwrap_or_else(|| first + random.below(span) as usize);
        let rest = match random.below(20) {
            0..=4 => Rest::None,
            5..=8 => Rest::All,
            9..=11 => Rest::Prefix,
            12..=15 => Rest::Subset,
            _ => Rest::Torn,
        };
        cuts.push(Cut {
            at,
            rest,
            seed: random.next(),
        });
    }
    cuts
}
