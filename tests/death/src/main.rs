//! A process dies at every instruction that changes what it shares with others.
//!
//! A child joins the session and works under a debugger, instruction by instruction. Right after
//! its n-th store into shared memory it is killed, for n = 1, 2, 3 until the work ends before. Each
//! time the survivor must find the files as before or as after the work, be able to go on, and
//! never wait for the dead. In some rounds the session ends right after the death instead,
//! and the next one must find the same. In the end the pool is without damage.
//!
//! Then it is stopped (SIGSTOP) there instead, and nobody debugs it any more: others go on soon,
//! and when it goes on it finishes its work.
#![forbid(unsafe_code)]

mod case;
#[path = "../../../crates/client/tests/common/mod.rs"]
mod common;
mod debugger;

use case::{CASES, Case, View};
use common::{Fixture, User};
use debugger::{Outcome, Stopped};
use holdfast_client::{attach, slots};
use holdfast_pool::format::superblock::Consistency;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// In every round of this number the session ends right after the death.
const ENDING: usize = 5;
/// The same where each session needs its tables full, which takes long.
const ENDING_FULL: usize = 20;
/// Processes that run cases at once.
const PARTS: usize = 2;
/// What a survivor may wait for a dead process, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same where all entries of the tables are looked at, which had no memory before.
const PATIENCE_FULL: Duration = Duration::from_secs(20);
const POOL: u64 = 64 << 20;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["child", dir, name] => return child(Path::new(dir), name),
        ["probe"] => return debugger::probe(),
        ["part", part] => return cases(&[], part.parse().ok()),
        [] => return parts(),
        _ => {}
    }
    cases(&words, None)
}

/// All cases, by as many processes as are worth it: they share nothing.
fn parts() -> ExitCode {
    let me = std::env::current_exe().expect("this program has a path");
    let run = |part: usize| Command::new(&me).args(["part", &part.to_string()]).spawn();
    let all: Vec<_> = (0..PARTS).map(run).collect();
    let ended = all.into_iter().map(|child| child?.wait());
    let good = ended.filter(|ended| ended.as_ref().is_ok_and(|e| e.success()));
    ExitCode::from(u8::from(good.count() != PARTS))
}

/// The cases that `words` name, or those of one part.
fn cases(words: &[&str], part: Option<usize>) -> ExitCode {
    debugger::same_addresses();
    let wanted = |name: &str| {
        let mut filters = words
            .iter()
            .filter(|word| !word.starts_with('-'))
            .peekable();
        filters.peek().is_none() || filters.any(|word| name.contains(*word))
    };
    if !debugger::is_allowed() {
        println!("no process may debug another here: all cases are skipped");
        println!(
            "\ntest result: ok. 0 passed; 0 failed; {} ignored",
            CASES.len()
        );
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed, mut count) = (0, 0, 0);
    for mode in [Consistency::Posix, Consistency::Strict] {
        for case in CASES {
            let name = format!("{}_{mode:?}", case.name).to_lowercase();
            if !wanted(&name) || !(case.in_mode)(mode) {
                continue;
            }
            count += 1;
            if part.is_some_and(|part| count % PARTS != part) {
                continue;
            }
            let began = Instant::now();
            match run_case(case, mode) {
                Ok(deaths) => {
                    passed += 1;
                    println!(
                        "test {name} ... ok ({deaths} deaths, {:.1?})",
                        began.elapsed()
                    );
                }
                Err(why) => {
                    failed += 1;
                    println!("test {name} ... FAILED\n    {why}");
                }
            }
        }
    }
    let ok = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {ok}. {passed} passed; {failed} failed; 0 ignored; 0 measured");
    ExitCode::from(u8::from(failed > 0))
}

fn child(dir: &Path, name: &str) -> ExitCode {
    let user = common::join(dir);
    if name == SUCCESSOR {
        debugger::begin();
        case::inherit(&user);
    } else if let Some(case) = CASES.iter().find(|s| s.name == name) {
        let ready = (case.ready)(&user);
        debugger::begin();
        (case.work)(&user, ready);
    }
    debugger::end();
    slots::exit(user.session(), true);
    ExitCode::SUCCESS
}

/// All deaths of one case, and for some of them all deaths of the one who comes next; how many
/// there were, or what went wrong at which.
fn run_case(case: &Case, mode: Consistency) -> Result<usize, String> {
    let mut trial = Trial::open(case, mode);
    let stores = debugger::learn(&trial.fixture.dir, case.name)?;
    trial.after = View::of(trial.user());
    let deaths = trial.deaths(1, |dir, nth| debugger::run(dir, case.name, nth, &stores))?;
    trial.stops(deaths, |dir, nth| {
        debugger::stop(dir, case.name, nth, &stores)
    })?;
    if case.name == "create" {
        trial.is_named(|dir, f| debugger::hold(dir, case.name, deaths / 2, &stores, f))?;
    }
    if !case.successors {
        return Ok(deaths);
    }
    // The first one dies while it publishes.
    let die = |dir: &Path| debugger::run(dir, case.name, deaths * 2 / 3, &stores);
    trial.prepare_again();
    die(&trial.fixture.dir)?;
    let successors = debugger::learn(&trial.fixture.dir, SUCCESSOR)?;
    let more = trial.deaths(SUCCESSORS, |dir, nth| {
        die(dir)?;
        debugger::run(dir, SUCCESSOR, nth, &successors)
    })?;
    Ok(deaths + more)
}

/// Every so many stores an successor dies.
const SUCCESSORS: usize = 5;

/// About so many stops there are in each case.
const STOPS: usize = 9;
/// What others may wait for a stopped process, also on a busy machine.
const STOPPED_MAX: Duration = Duration::from_secs(3);

/// A stopped process is through with its work after fewer looks than these.
const LOOKS_MAX: usize = 20;

/// The child that finishes what a dead one began.
const SUCCESSOR: &str = "successor";

struct Trial<'s> {
    case: &'s Case,
    fixture: Fixture,
    user: Option<User>,
    before: View,
    after: View,
    /// How often the tables were full.
    rounds: usize,
}

impl<'s> Trial<'s> {
    fn open(case: &'s Case, mode: Consistency) -> Trial<'s> {
        let fixture = Fixture::with(POOL, mode);
        let user = fixture.user();
        (case.prepare)(&user);
        let before = View::of(&user);
        Trial {
            case,
            fixture,
            user: Some(user),
            after: before.clone(),
            before,
            rounds: 0,
        }
    }

    fn user(&mut self) -> &User {
        self.user.get_or_insert_with(|| self.fixture.user())
    }

    fn prepare_again(&mut self) {
        let prepare = self.case.prepare;
        let user = self.user();
        case::clear(user);
        prepare(user);
    }

    /// A death after each store, or each `stride`th, until `run` comes to its end; how many.
    fn deaths(
        &mut self,
        stride: usize,
        run: impl Fn(&Path, usize) -> Result<Outcome, String>,
    ) -> Result<usize, String> {
        for round in 1.. {
            let nth = (round - 1) * stride + 1;
            self.prepare_again();
            let outcome = run(&self.fixture.dir, nth)?;
            let survives = !round.is_multiple_of(match self.case.full {
                true => ENDING_FULL,
                false => ENDING,
            });
            let to = match survives {
                true => "a survivor",
                false => "the next session",
            };
            let wrong = |why: String| format!("death {nth} ({outcome:x?}), to {to}: {why}");
            let ended = matches!(outcome, Outcome::Ended);
            self.judge(survives, ended && stride == 1).map_err(wrong)?;
            if ended {
                return Ok(round - 1);
            }
        }
        Ok(0)
    }

    /// Stops after some of `stores` stores.
    fn stops(
        &mut self,
        stores: usize,
        stop: impl Fn(&Path, usize) -> Result<Option<Stopped>, String>,
    ) -> Result<(), String> {
        for nth in (1..=stores).step_by(stores.div_ceil(STOPS).max(1)) {
            self.prepare_again();
            let Some(stopped) = stop(&self.fixture.dir, nth)? else {
                return Ok(());
            };
            let at = stopped.at;
            self.judge_stop(stopped)
                .map_err(|why| format!("stop {nth} (at {at:x}): {why}"))?;
        }
        Ok(())
    }

    fn judge_stop(&mut self, stopped: Stopped) -> Result<(), String> {
        let seen = self.undisturbed()?;
        if !self.case.allows(&self.before, &self.after, &seen) {
            return Err(self.different(&seen));
        }
        stopped.wake()?;
        let seen = View::of(self.user());
        if seen != self.after {
            return Err(self.different(&seen));
        }
        case::go_on(self.user());
        Ok(())
    }

    /// What others see of a stopped child's work, and soon. The service lets the child go on for
    /// as long as it holds a lock that others wait for, and it may get further meanwhile, also to
    /// the next lock: a look at one name and then another, with its work done in between, is of
    /// neither state. What counts is what two looks agree on.
    fn undisturbed(&mut self) -> Result<View, String> {
        let mut last = None;
        for _ in 0..LOOKS_MAX {
            let begun = Instant::now();
            let seen = View::of(self.user());
            match begun.elapsed() {
                waited if waited > STOPPED_MAX => {
                    return Err(format!("others waited for {waited:?}"));
                }
                _ if last.as_ref() == Some(&seen) => return Ok(seen),
                _ => last = Some(seen),
            }
        }
        Err("a stopped process goes on and on".into())
    }

    /// While a debugger holds the child amid its work, which cannot be made to go on, the service
    /// says for whom the others wait.
    fn is_named(
        &mut self,
        hold: impl FnOnce(&Path, &mut dyn FnMut()) -> Result<(), String>,
    ) -> Result<(), String> {
        self.prepare_again();
        let (user, dir) = (self.user.as_ref().expect("it was used"), &self.fixture.dir);
        let mut said = String::new();
        let seen = std::thread::scope(|scope| {
            let mut others = None;
            hold(dir, &mut || {
                let others = others.insert(scope.spawn(|| View::of(user)));
                let begun = Instant::now();
                while said.is_empty() && !others.is_finished() && begun.elapsed() < PATIENCE {
                    let answer = attach::status(dir.as_os_str().as_bytes());
                    said = answer.map_or_else(|e| e.to_string(), |a| a.text().to_string());
                    std::thread::sleep(Duration::from_millis(20));
                }
            })?;
            let others = others.ok_or("the work ended before")?;
            others.join().map_err(|_| "the others failed".to_string())
        })?;
        if !said.contains("stopped by a debugger") {
            return Err(format!("who waits for a debugger is told {said:?}"));
        }
        match seen == self.before || seen == self.after {
            true => Ok(()),
            false => Err(self.different(&seen)),
        }
    }

    fn different(&self, seen: &View) -> String {
        let views = [
            ("before", &self.before),
            ("after", &self.after),
            ("seen", seen),
        ];
        views
            .map(|(when, view)| format!("\n    {when}: {view:?}"))
            .concat()
    }

    /// `done`: the work came to its end, so nothing else than what it leads to is right.
    fn judge(&mut self, survives: bool, done: bool) -> Result<(), String> {
        let killed = Instant::now();
        if !survives {
            self.end_session();
        } else if self.case.full {
            self.rounds += 1;
            let pinned = self.rounds.is_multiple_of(2);
            case::recover_without_room(self.user(), pinned);
        }
        let seen = View::of(self.user());
        let allowed = self.case.allows(&self.before, &self.after, &seen);
        if seen != self.after && (done || !allowed) {
            return Err(self.different(&seen));
        }
        case::go_on(self.user());
        let patience = match self.case.full {
            true => PATIENCE_FULL,
            false => PATIENCE,
        };
        match killed.elapsed() {
            waited if waited > patience => Err(format!("others waited for {waited:?}")),
            _ => Ok(()),
        }
    }

    fn end_session(&mut self) {
        self.stop();
        self.fixture.check();
        self.fixture.start();
    }

    fn stop(&mut self) {
        let memory = self.user.take().map(|user| {
            slots::exit(user.session(), true);
            user.memory()
        });
        self.fixture.stop();
        // There are thousands of sessions.
        memory.into_iter().for_each(common::forget);
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}
