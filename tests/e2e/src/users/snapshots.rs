//! Snapshots for users who do not own the pool.

use super::keys::{expect, refuse};
use super::{Shared, as_user};
use crate::bad_input::{Fixture, Stop, wrong};
use crate::process::Ended;

/// A script on a snapshot.
fn says(shared: &Shared<'_>, user: &str, name: &str, script: &str) -> Result<Ended, Stop> {
    let mut command = as_user(user);
    command
        .arg(&shared.fixture.holdfast)
        .args(["run", "--pool"]);
    command.arg(&shared.pool);
    command.args(["--snapshot", name, "--", "bash", "-c", script]);
    shared.fixture.end_of(command)
}

/// `holdfast snapshot` by a user.
fn snapshot(shared: &Shared<'_>, user: &str, words: &[&str]) -> Result<Ended, Stop> {
    let mut command = as_user(user);
    command.arg(&shared.fixture.holdfast).arg("snapshot");
    command.arg(&shared.pool).args(words);
    shared.fixture.end_of(command)
}

/// They show what was, with the rights of then, to whom the pool is open now; and nobody changes
/// or deletes them but the owner.
pub fn snapshots(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    let before = "chmod 1777 /hf; mkdir -m 700 /hf/private; echo secret >/hf/private/f
                  echo one >/hf/f; head -c 100000 /dev/zero >/hf/large";
    shared.expect("3001", before, "")?;
    expect(&shared, "3002", &["k", "put", "a", "one"], "")?;
    made(snapshot(&shared, "3001", &["create", "monday"])?)?;
    expect(&shared, "3002", &["k", "put", "a", "two"], "")?;
    shared.expect("3001", "echo two >/hf/f; chmod 755 /hf/private", "")?;
    let script = r#"
        cat /hf/f /hf/k/a; echo; cat /hf/private/f 2>/dev/null || echo refused
        touch /hf/new 2>/dev/null || echo refused; rm /hf/f 2>/dev/null || echo refused
        (cd /hf/k && cat a & wait); echo; bash -c 'exec cat /hf/f'
        python3 - <<'P'
import mmap, os
f = open("/hf/large", "rb")
for how in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
    print(mmap.mmap(f.fileno(), 0, how, mmap.PROT_READ)[:].count(0))
P"#;
    let expected = "one\none\nrefused\nrefused\nrefused\none\none\n100000\n100000\n";
    for user in ["3002", "3003"] {
        let ended = says(&shared, user, "monday", script)?;
        if ended.code() != Some(0) || ended.out != expected {
            return wrong(format!(
                "{user}: {} {:?} {}",
                ended.how(),
                ended.out,
                ended.err
            ));
        }
        let old = ["k", "scan", "--snapshot", "monday"];
        expect(&shared, user, &old, "a\tone\n")?;
        expect(&shared, user, &["k", "get", "a"], "two")?;
        let listed = snapshot(&shared, user, &["list"])?;
        if !listed.out.ends_with("  monday\n") || listed.out.lines().count() != 1 {
            return wrong(format!("{} {}", listed.out, listed.err));
        }
        for words in [["create", "mine"], ["delete", "monday"]] {
            let ended = snapshot(&shared, user, &words)?;
            if ended.code() != Some(1) || !ended.err.contains("only the pool's owner") {
                return wrong(format!("{words:?}: {} {}", ended.how(), ended.err));
            }
        }
        refuse(
            &shared,
            user,
            &["k", "get", "a", "--snapshot", "none"],
            "no snapshot",
        )?;
    }
    ends(&shared)?;
    // What the pool's root directory allows now is what counts.
    made(snapshot(&shared, "3001", &["create", "tuesday"])?)?;
    shared.expect("3001", "chmod 700 /hf", "")?;
    let ended = says(&shared, "3002", "tuesday", "echo ran")?;
    if ended.code() != Some(125) || !ended.err.contains("does not let you in") {
        return wrong(format!("{} {} {}", ended.how(), ended.out, ended.err));
    }
    shared.end()
}

/// A snapshot on which a program runs is not deleted, and soon after it is.
fn ends(shared: &Shared<'_>) -> Result<(), Stop> {
    let mut command = as_user("3002");
    command
        .arg(&shared.fixture.holdfast)
        .args(["run", "--pool"]);
    command
        .arg(&shared.pool)
        .args(["--snapshot", "monday", "--"]);
    command.args(["bash", "-c", "echo begun; read line; cat /hf/f"]);
    crate::process::clean(&mut command, &shared.fixture.dir);
    let pipe = std::process::Stdio::piped;
    let mut child = command.stdin(pipe()).stdout(pipe()).spawn()?;
    let mut first = [0; 6];
    let out = child.stdout.as_mut().ok_or(Stop::Wrong("no pipe".into()))?;
    std::io::Read::read_exact(out, &mut first)?;
    let ended = snapshot(shared, "3001", &["delete", "monday"])?;
    if ended.code() != Some(1) || !ended.err.contains("in use") {
        return wrong(format!("{} {}", ended.how(), ended.err));
    }
    let said = child.wait_with_output()?.stdout;
    if said != b"one\n" {
        return wrong(format!("{:?}", String::from_utf8_lossy(&said)));
    }
    for _ in 0..100 {
        if snapshot(shared, "3001", &["delete", "monday"])?.code() == Some(0) {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    wrong("the snapshot is in use still")
}

fn made(ended: Ended) -> Result<(), Stop> {
    match ended.code() {
        Some(0) => Ok(()),
        _ => wrong(format!("{} {}", ended.how(), ended.err)),
    }
}
