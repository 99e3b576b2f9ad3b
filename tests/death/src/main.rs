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

#[path = "../../../crates/client/tests/common/mod.rs"]
mod common;
mod debugger;
mod scene;

use common::{Rig, User};
use debugger::{Outcome, Stopped};
use holdfast_client::{attach, slots};
use holdfast_pool::format::superblock::Consistency;
use scene::{SCENES, Scene, View};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// In every round of this number the session ends right after the death.
const ENDING: usize = 5;
/// The same where each session needs its tables full, which takes long.
const ENDING_FULL: usize = 20;
/// Processes that play scenes at once.
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
        ["part", part] => return scenes(&[], part.parse().ok()),
        [] => return parts(),
        _ => {}
    }
    scenes(&words, None)
}

/// All scenes, by as many processes as are worth it: they share nothing.
fn parts() -> ExitCode {
    let me = std::env::current_exe().expect("this program has a path");
    let run = |part: usize| Command::new(&me).args(["part", &part.to_string()]).spawn();
    let all: Vec<_> = (0..PARTS).map(run).collect();
    let ended = all.into_iter().map(|child| child?.wait());
    let good = ended.filter(|ended| ended.as_ref().is_ok_and(|e| e.success()));
    ExitCode::from(u8::from(good.count() != PARTS))
}

/// The scenes that `words` name, or those of one part.
fn scenes(words: &[&str], part: Option<usize>) -> ExitCode {
    debugger::same_addresses();
    let wanted = |name: &str| {
        let mut filters = words
            .iter()
            .filter(|word| !word.starts_with('-'))
            .peekable();
        filters.peek().is_none() || filters.any(|word| name.contains(*word))
    };
    if !debugger::is_allowed() {
        println!("no process may debug another here: all scenes are skipped");
        println!(
            "\ntest result: ok. 0 passed; 0 failed; {} ignored",
            SCENES.len()
        );
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed, mut count) = (0, 0, 0);
    for mode in [Consistency::Posix, Consistency::Strict] {
        for scene in SCENES {
            let name = format!("{}_{mode:?}", scene.name).to_lowercase();
            if !wanted(&name) || !(scene.in_mode)(mode) {
                continue;
            }
            count += 1;
            if part.is_some_and(|part| count % PARTS != part) {
                continue;
            }
            let began = Instant::now();
            match play(scene, mode) {
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
    if name == HEIR {
        debugger::begin();
        scene::inherit(&user);
    } else if let Some(scene) = SCENES.iter().find(|s| s.name == name) {
        let ready = (scene.ready)(&user);
        debugger::begin();
        (scene.work)(&user, ready);
    }
    debugger::end();
    slots::exit(user.session(), true);
    ExitCode::SUCCESS
}

/// All deaths of one scene, and for some of them all deaths of the one who comes next; how many
/// there were, or what went wrong at which.
fn play(scene: &Scene, mode: Consistency) -> Result<usize, String> {
    let mut theatre = Theatre::open(scene, mode);
    let stores = debugger::learn(&theatre.rig.dir, scene.name)?;
    theatre.after = View::of(theatre.user());
    let deaths = theatre.deaths(1, |dir, nth| debugger::run(dir, scene.name, nth, &stores))?;
    theatre.stops(deaths, |dir, nth| {
        debugger::stop(dir, scene.name, nth, &stores)
    })?;
    if scene.name == "create" {
        theatre.is_named(|dir, f| debugger::hold(dir, scene.name, deaths / 2, &stores, f))?;
    }
    if !scene.heirs {
        return Ok(deaths);
    }
    // The first one dies while it publishes.
    let die = |dir: &Path| debugger::run(dir, scene.name, deaths * 2 / 3, &stores);
    theatre.restage();
    die(&theatre.rig.dir)?;
    let heirs = debugger::learn(&theatre.rig.dir, HEIR)?;
    let more = theatre.deaths(HEIRS, |dir, nth| {
        die(dir)?;
        debugger::run(dir, HEIR, nth, &heirs)
    })?;
    Ok(deaths + more)
}

/// Every so many stores an heir dies.
const HEIRS: usize = 3;

/// About so many stops there are in each scene.
const STOPS: usize = 9;
/// What others may wait for a stopped process, also on a busy machine.
const STOPPED_MAX: Duration = Duration::from_secs(3);

/// The child that finishes what a dead one began.
const HEIR: &str = "heir";

struct Theatre<'s> {
    scene: &'s Scene,
    rig: Rig,
    user: Option<User>,
    before: View,
    after: View,
    /// How often the tables were full.
    rounds: usize,
}

impl<'s> Theatre<'s> {
    fn open(scene: &'s Scene, mode: Consistency) -> Theatre<'s> {
        let rig = Rig::with(POOL, mode);
        let user = rig.user();
        (scene.stage)(&user);
        let before = View::of(&user);
        Theatre {
            scene,
            rig,
            user: Some(user),
            after: before.clone(),
            before,
            rounds: 0,
        }
    }

    fn user(&mut self) -> &User {
        self.user.get_or_insert_with(|| self.rig.user())
    }

    fn restage(&mut self) {
        let stage = self.scene.stage;
        let user = self.user();
        scene::clear(user);
        stage(user);
    }

    /// A death after each store, or each `stride`th, until `run` comes to its end; how many.
    fn deaths(
        &mut self,
        stride: usize,
        run: impl Fn(&Path, usize) -> Result<Outcome, String>,
    ) -> Result<usize, String> {
        for round in 1.. {
            let nth = (round - 1) * stride + 1;
            self.restage();
            let outcome = run(&self.rig.dir, nth)?;
            let survives = !round.is_multiple_of(match self.scene.full {
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
            self.restage();
            let Some(stopped) = stop(&self.rig.dir, nth)? else {
                return Ok(());
            };
            let at = stopped.at;
            self.judge_stop(stopped)
                .map_err(|why| format!("stop {nth} (at {at:x}): {why}"))?;
        }
        Ok(())
    }

    fn judge_stop(&mut self, stopped: Stopped) -> Result<(), String> {
        let begun = Instant::now();
        let seen = View::of(self.user());
        let waited = begun.elapsed();
        if !self.scene.allows(&self.before, &self.after, &seen) {
            return Err(self.different(&seen));
        }
        if waited > STOPPED_MAX {
            return Err(format!("others waited for {waited:?}"));
        }
        stopped.wake()?;
        let seen = View::of(self.user());
        if seen != self.after {
            return Err(self.different(&seen));
        }
        scene::go_on(self.user());
        Ok(())
    }

    /// While a debugger holds the child amid its work, which cannot be made to go on, the service
    /// says for whom the others wait.
    fn is_named(
        &mut self,
        hold: impl FnOnce(&Path, &mut dyn FnMut()) -> Result<(), String>,
    ) -> Result<(), String> {
        self.restage();
        let (user, dir) = (self.user.as_ref().expect("it was used"), &self.rig.dir);
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
        } else if self.scene.full {
            self.rounds += 1;
            let pinned = self.rounds.is_multiple_of(2);
            scene::recover_without_room(self.user(), pinned);
        }
        let seen = View::of(self.user());
        let allowed = self.scene.allows(&self.before, &self.after, &seen);
        if seen != self.after && (done || !allowed) {
            return Err(self.different(&seen));
        }
        scene::go_on(self.user());
        let patience = match self.scene.full {
            true => PATIENCE_FULL,
            false => PATIENCE,
        };
        match killed.elapsed() {
            waited if waited > patience => Err(format!("others waited for {waited:?}")),
            _ => Ok(()),
        }
    }

    fn end_session(&mut self) {
        if let Some(user) = self.user.take() {
            slots::exit(user.session(), true);
        }
        self.rig.stop();
        self.rig.check();
        self.rig.start();
    }
}
