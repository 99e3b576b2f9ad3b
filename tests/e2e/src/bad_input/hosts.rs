//! A host that fails beneath the pool: its file system is full, or does not take what was written,
//! or is read-only, or gone. Each program gets an error, what was acknowledged is there when the
//! host is well again, and nothing is said twice.

use super::{Case, Scene, Stop, sentence, wrong};
use crate::process::Ended;

pub const CASES: &[(&str, Case)] = &[("service that cannot start again", no_restart)];

/// What `script` says after the run's own part: each sentence of Holdfast once, and few of them.
fn said_once(ended: &Ended, most: usize) -> Result<(), Stop> {
    let ours = ended.err.lines().filter(|l| l.starts_with("holdfast: "));
    let mut ours: Vec<&str> = ours.collect();
    if ours.len() > most {
        return wrong(format!("{} sentences: {}", ours.len(), ended.err.trim()));
    }
    for line in &ours {
        sentence(line).map_err(Stop::Wrong)?;
    }
    ours.sort_unstable();
    match ours.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => wrong(format!("said twice: {}", pair[0])),
        None => Ok(()),
    }
}

fn expect(ended: &Ended, out: &str) -> Result<(), Stop> {
    match ended.out == out {
        true => Ok(()),
        false => wrong(format!(
            "{}: {:?}, not {out:?}; {}",
            ended.how(),
            ended.out,
            ended.err.trim()
        )),
    }
}

/// The service is killed and cannot start for a while: the run says why, once, and goes on.
fn no_restart(scene: &Scene) -> Result<(), Stop> {
    let pool = scene.pool("pool", "64M")?;
    let script = "cd \"$0\"; mv lock aside; mkdir lock; kill -KILL $(cat aside); sleep 3
        rmdir lock; mv aside lock; echo more >>/hf/hello; cat /hf/hello";
    let ended = scene.run(&pool, &["bash", "-c", script, &pool.to_string_lossy()])?;
    expect(&ended, "hello\nmore\n")?;
    said_once(&ended, 1)?;
    if !ended.err.contains("lock is not what belongs there") {
        return wrong(format!("it does not say why: {}", ended.err.trim()));
    }
    scene
        .done(&["pool", "check", &pool.to_string_lossy()])
        .map(drop)
}
