//! Who has what open, and what takes space, where some users are served by a proxy.

use super::{Shared, as_user};
use crate::bad_input::{Fixture, Stop, wrong};
use crate::process;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

/// A program of `user` that has a file open and locks it, or waits for that, until it is killed.
fn holding(shared: &Shared<'_>, user: &str, waits: bool) -> Result<Child, Stop> {
    let mut command = as_user(user);
    command
        .arg(&shared.fixture.holdfast)
        .args(["run", "--pool"]);
    command.arg(&shared.pool).args(["--", "bash", "-c"]);
    let end = if waits { "flock 9" } else { "flock 9; echo" };
    // It ends with the one that it was started by.
    let watch = "(while kill -0 $PPID; do sleep 0.1; done; kill -9 $$) 9>&- 2>/dev/null >&2 &";
    command.arg(format!("exec 9>>/hf/l; {watch} echo; {end}; exec sleep 60"));
    process::clean(&mut command, &shared.fixture.dir);
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let out = child.stdout.take().map(BufReader::new);
    let mut lines = out.into_iter().flat_map(BufRead::lines);
    let said = if waits { 1 } else { 2 };
    match lines.by_ref().take(said).count() == said {
        true => Ok(child),
        false => wrong(format!("the program of user {user} did not start")),
    }
}

/// The owner and root see the programs of all users; others are told that they may not.
pub fn look(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "touch /hf/l; chmod 666 /hf/l", "")?;
    let mut children = vec![holding(&shared, "3002", false)?];
    for user in ["3001", "3003"] {
        children.push(holding(&shared, user, true)?);
    }
    let looked = as_everybody(&shared);
    for mut child in children {
        child.kill()?;
        child.wait()?;
    }
    looked?;
    shared.end()
}

fn as_everybody(shared: &Shared<'_>) -> Result<(), Stop> {
    let pool = shared.pool.to_string_lossy().into_owned();
    let script = r#"for n in $(seq 200); do
            [ "$("$hf" lsof "$pool" | grep -c 'waits for')" = 2 ] && break; sleep 0.05; done
        "$hf" lsof "$pool" /l | awk '{ $2 = $2 + 0 ? "PID" : $2; $0 = $0; print $3, $4, $8, $9 }' |
            grep / | sort -u"#;
    let said = "3001 9w /l \n3001 flock /l (waits\n3002 9w /l \n3002 flock /l \n\
        3003 9w /l \n3003 flock /l (waits\n";
    for user in ["0", "3001"] {
        let mut command = as_user(user);
        command.args(["env", &format!("pool={pool}")]);
        command.arg(format!("hf={}", shared.fixture.holdfast.display()));
        command.args(["bash", "-c", script]);
        let ended = shared.fixture.end_of(command)?;
        if ended.out != said {
            return wrong(format!("user {user} saw {:?} {:?}", ended.out, ended.err));
        }
    }
    lists(shared, &pool)?;
    let mut command = as_user("3002");
    command.arg(&shared.fixture.holdfast).args(["lsof", &pool]);
    let ended = shared.fixture.end_of(command)?;
    match ended.err == "holdfast: only the pool's owner and root can do this.\n" {
        true => Ok(()),
        false => wrong(format!("user 3002 was told {:?}", ended.err)),
    }
}

/// All see that the pool is there; its owner and root see what is in it.
fn lists(shared: &Shared<'_>, pool: &str) -> Result<(), Stop> {
    for (user, wanted) in [("0", true), ("3001", true), ("3002", false)] {
        let mut command = as_user(user);
        command.arg(&shared.fixture.holdfast).args(["pool", "list"]);
        let said = shared.fixture.end_of(command)?.out;
        let line = said.lines().find(|line| line.ends_with(pool));
        let words = line.unwrap_or_default().split_whitespace().take(5);
        match words.collect::<Vec<_>>()[..] {
            ["256M", _, _, "runs", processes] if wanted && processes != "0" => {}
            ["-", "-", "-", "runs", "-"] if !wanted => {}
            _ => return wrong(format!("user {user} was listed {line:?}")),
        }
    }
    Ok(())
}

/// The trace of a program that a proxy serves, from its beginning or since it became another user.
pub fn traces(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 1777 /hf", "")?;
    let becomes = "mkdir /hf/theirs; setpriv --reuid 3003 --regid 3003 --clear-groups \
        sh -c 'mkdir /hf/mine; rmdir /hf/theirs || mkdir /none/x || true'";
    let by = |directory: &str, call: &str| format!("{call}(\"/hf/{directory}\"");
    let refused = format!(
        "{}) = -1 EPERM (Operation not permitted)\n",
        by("theirs", "rmdir")
    );
    let made = |directory: &str| format!("{}, 0777) = 0\n", by(directory, "mkdir"));
    let wanted = [
        ("3002", "mkdir /hf/served", made("served")),
        ("0", becomes, made("theirs") + &made("mine") + &refused),
    ];
    for (user, program, lines) in wanted {
        let mut command = as_user(user);
        command.arg(&fixture.holdfast).args(["run", "--pool"]);
        command
            .arg(&shared.pool)
            .args(["--trace", "--trace-filter"]);
        command.args(["mkdir,rmdir", "--", "sh", "-c", program]);
        let said = fixture.end_of(command)?.err;
        let said: String = said
            .lines()
            .filter_map(|line| Some(line.rsplit_once(" <")?.0.split_whitespace()))
            // Behind the thread, which is padded, and the time.
            .map(|words| words.skip(2).collect::<Vec<_>>().join(" ") + "\n")
            .collect();
        if said != lines {
            return wrong(format!("user {user}: {said:?}, not {lines:?}"));
        }
    }
    shared.end()
}

/// What is closed to a user is not counted, and that is said.
pub fn usage(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    let fill = "cd /hf; mkdir open closed; head -c 8192 /dev/zero | tee open/f >closed/f
        chmod 700 closed";
    shared.expect("3001", fill, "")?;
    let pool = shared.pool.to_string_lossy().into_owned();
    for user in ["3001", "3002"] {
        let mut command = as_user(user);
        command.arg(&fixture.holdfast).args(["du", &pool]);
        let ended = fixture.end_of(command)?;
        let (out, err) = match user {
            "3001" => ("8K      P/closed\n8K      P/open\n16K     P\n", ""),
            _ => (
                "8K      P/open\n8K      P\n",
                "holdfast: P: 1 file or directory may not be seen.\n",
            ),
        };
        let said = [ended.out, ended.err].map(|text| text.replace(&pool, "P"));
        if said != [out, err] || ended.status.is_none_or(|s| s.success() != err.is_empty()) {
            return wrong(format!("user {user} saw {said:?}"));
        }
    }
    shared.end()
}
