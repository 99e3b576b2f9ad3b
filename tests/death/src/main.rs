//! A process dies at every instruction that changes what it shares with others.
//!
//! A child joins the session and works under a debugger, instruction by instruction. Right after
//! its n-th store into shared memory it is killed, for n = 1, 2, 3 until the work ends before. Each
//! time the survivor must find the files as before or as after the work, be able to go on, and
//! never wait for the dead. In some rounds the session ends right after the death instead,
//! and the next one must find the same. In the end the pool is without damage.
#![forbid(unsafe_code)]

#[path = "../../../crates/client/tests/common/mod.rs"]
mod common;
mod debugger;
mod scene;

use common::Rig;
use debugger::Outcome;
use holdfast_client::slots;
use holdfast_pool::format::superblock::Consistency;
use scene::{SCENES, Scene, View};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// In every round of this number the session ends right after the death.
const ENDING: usize = 5;
/// What a survivor may wait for a dead process, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);
const POOL: u64 = 64 << 20;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["child", dir, name] => return child(Path::new(dir), name),
        ["probe"] => return debugger::probe(),
        _ => {}
    }
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
    let (mut passed, mut failed) = (0, 0);
    for mode in [Consistency::Posix, Consistency::Strict] {
        for scene in SCENES {
            let name = format!("{}_{mode:?}", scene.name).to_lowercase();
            if !wanted(&name) || !(scene.in_mode)(mode) {
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
    let Some(scene) = SCENES.iter().find(|s| s.name == name) else {
        return ExitCode::FAILURE;
    };
    let user = common::join(dir);
    let ready = (scene.ready)(&user);
    debugger::begin();
    (scene.work)(&user, ready);
    debugger::end();
    slots::exit(user.session());
    ExitCode::SUCCESS
}

/// All deaths of one scene; how many there were, or what went wrong at which.
fn play(scene: &Scene, mode: Consistency) -> Result<usize, String> {
    let mut rig = Rig::with(POOL, mode);
    let mut user = rig.user();
    (scene.stage)(&user);
    let before = View::of(&user);
    let stores = debugger::learn(&rig.dir, scene.name)?;
    let after = View::of(&user);
    for nth in 1.. {
        scene::clear(&user);
        (scene.stage)(&user);
        let outcome = debugger::run(&rig.dir, scene.name, nth, &stores)?;
        let killed = Instant::now();
        let survives = !nth.is_multiple_of(ENDING);
        if !survives {
            slots::exit(user.session());
            drop(user);
            rig.stop();
            rig.check();
            rig.start();
            user = rig.user();
        }
        let seen = View::of(&user);
        let ended = matches!(outcome, Outcome::Ended);
        if seen != after && (ended || !scene.allows(&before, &after, &seen)) {
            let to = if survives {
                "a survivor"
            } else {
                "the next session"
            };
            let views = [("before", &before), ("after", &after), ("seen", &seen)];
            let views = views.map(|(when, view)| format!("\n    {when}: {view:?}"));
            let what = format!("death {nth} ({outcome:x?}), to {to}:");
            return Err(what + &views.concat());
        }
        scene::go_on(&user);
        let waited = killed.elapsed();
        if waited > PATIENCE {
            return Err(format!(
                "death {nth} ({outcome:x?}): others waited for {waited:?}"
            ));
        }
        if ended {
            return Ok(nth - 1);
        }
    }
    Ok(0)
}
