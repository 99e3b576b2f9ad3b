//! Keys and values for users who do not own the pool.

use super::{Shared, as_user};
use crate::bad_input::{Fixture, Stop, wrong};
use crate::faces::interface;
use crate::process::{self, Ended};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Who makes the keyspace, in group 4001; who is in that group; and who is not.
const OWNER: &str = "3002";
const KIN: &str = "3005";
const STRANGER: &str = "3003";

fn user(user: &str) -> Command {
    match user {
        KIN => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=3005", "--regid=3005", "--groups=4001"]);
            command
        }
        user => as_user(user),
    }
}

/// `holdfast kv` on the pool.
pub fn kv(shared: &Shared<'_>, who: &str, words: &[&str]) -> Result<Ended, Stop> {
    let mut command = user(who);
    command.arg(&shared.fixture.holdfast).arg("kv");
    command.arg(&shared.pool).args(words);
    shared.fixture.end_of(command)
}

pub fn expect(shared: &Shared<'_>, who: &str, words: &[&str], out: &str) -> Result<(), Stop> {
    let ended = kv(shared, who, words)?;
    match ended.code() == Some(0) && ended.out == out {
        true => Ok(()),
        false => wrong(format!(
            "user {who}, {words:?}: {} {:?} {:?}, not {out:?}",
            ended.how(),
            ended.out,
            ended.err.trim()
        )),
    }
}

/// Failure is one sentence that has this in it.
pub fn refuse(shared: &Shared<'_>, who: &str, words: &[&str], why: &str) -> Result<(), Stop> {
    let ended = kv(shared, who, words)?;
    let is_told = ended.err.contains(why) && ended.err.starts_with("holdfast: ");
    match ended.code() == Some(1) && ended.out.is_empty() && is_told {
        true => Ok(()),
        false => wrong(format!(
            "user {who}, {words:?}: {} {:?} {:?}, not {why:?}",
            ended.how(),
            ended.out,
            ended.err.trim()
        )),
    }
}

/// What is done with a key, and the same with a file of that name in a directory.
const SAME: &[(&[&str], &str)] = &[
    (&["get", "a"], "cat a"),
    (&["scan"], "ls . && cat a"),
    (&["put", "a", "new"], "mv -f $TMP/new a"),
    (&["erase", "a"], "rm -f a; test ! -e a"),
];

/// In a directory of each mode everybody may do with keys what the kernel lets them do with files.
pub fn rights(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 1777 /hf", "")?;
    let plain = format!("/dev/shm/hf-keys-{}", std::process::id());
    let compared = [
        0o000, 0o100, 0o300, 0o500, 0o700, 0o711, 0o733, 0o744, 0o750, 0o755, 0o770, 0o775, 0o777,
        0o1777, 0o1770, 0o070, 0o007,
    ]
    .into_iter()
    .try_for_each(|mode| of_mode(&shared, Path::new(&plain), mode));
    let _ = fs::remove_dir_all(&plain);
    compared?;
    of_names(&shared)?;
    shared.end()
}

fn of_mode(shared: &Shared<'_>, plain: &Path, mode: u32) -> Result<(), Stop> {
    let name = format!("m{mode:o}");
    expect(shared, OWNER, &[&name, "put", "a", "value"], "")?;
    let give = format!("chgrp 4001 /hf/{name} && chmod {mode:o} /hf/{name}");
    for who in [OWNER, KIN, STRANGER] {
        for (words, same) in SAME {
            // Both as they were.
            shared.expect(OWNER, &format!("chmod 700 /hf/{name}"), "")?;
            expect(shared, OWNER, &[&name, "put", "a", "value"], "")?;
            shared.expect(OWNER, &give, "")?;
            let is_let = by_kernel(shared, plain, (who, mode), same)?;
            let ended = kv(shared, who, &[&[name.as_str()], *words].concat())?;
            let done = ended.code() == Some(0);
            if done != is_let {
                let said = (ended.how(), ended.out, ended.err);
                return wrong(format!(
                    "{mode:o}, {who}, {words:?}: {said:?}, not {is_let}"
                ));
            }
        }
    }
    Ok(())
}

/// Whether the user can do that with file `a` in a directory of this mode.
fn by_kernel(
    shared: &Shared<'_>,
    plain: &Path,
    (who, mode): (&str, u32),
    script: &str,
) -> Result<bool, Stop> {
    let _ = fs::remove_dir_all(plain);
    fs::create_dir(plain)?;
    fs::set_permissions(plain, fs::Permissions::from_mode(0o777))?;
    let owner = OWNER.parse().ok();
    let (dir, tmp) = (plain.join("d"), plain.join("tmp"));
    for dir in [&dir, &tmp] {
        fs::create_dir(dir)?;
    }
    fs::set_permissions(&tmp, fs::Permissions::from_mode(0o777))?;
    for (file, who) in [(dir.join("a"), owner), (tmp.join("new"), who.parse().ok())] {
        fs::write(&file, "value")?;
        chown(&file, who, who)?;
    }
    chown(&dir, owner, Some(4001))?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(mode))?;
    let mut command = user(who);
    let script = format!(
        "TMP={}; cd {} && {{ {script}; }}",
        tmp.display(),
        dir.display()
    );
    command.args(["sh", "-c", &script]);
    Ok(shared.fixture.end_of(command)?.code() == Some(0))
}

/// Keyspaces are made where directories may be, and a key that is a file has rights of its own.
fn of_names(shared: &Shared<'_>) -> Result<(), Stop> {
    expect(shared, OWNER, &["k", "put", "b", "value"], "")?;
    shared.expect(
        OWNER,
        "umask 077; echo secret >/hf/k/a; echo open >/hf/k/c",
        "",
    )?;
    shared.expect(
        OWNER,
        "chmod 644 /hf/k/c; stat -c '%a %u' /hf/k",
        "755 3002\n",
    )?;
    refuse(shared, STRANGER, &["k", "get", "a"], "permission denied")?;
    expect(shared, STRANGER, &["k", "get", "b"], "value")?;
    expect(shared, STRANGER, &["k", "get", "c"], "open\n")?;
    expect(
        shared,
        STRANGER,
        &["k", "scan", "--from", "b"],
        "b\tvalue\nc\topen\\n\n",
    )?;
    refuse(shared, STRANGER, &["k", "scan"], "permission denied")?;
    expect(shared, OWNER, &["k", "get", "a"], "secret\n")?;
    expect(shared, "3001", &["k", "get", "a"], "secret\n")?;
    refuse(
        shared,
        STRANGER,
        &["k", "put", "d", "x"],
        "permission denied",
    )?;
    refuse(shared, STRANGER, &["none", "get", "a"], "no keyspace")?;
    shared.expect("3001", "chmod 755 /hf", "")?;
    refuse(
        shared,
        STRANGER,
        &["new", "put", "a", "x"],
        "permission denied",
    )?;
    expect(shared, OWNER, &["k", "put", "a", "x"], "")?;
    expect(shared, STRANGER, &["k", "get", "a"], "x")?;
    shared.expect("3001", "chmod 711 /hf", "")?;
    let ended = kv(shared, STRANGER, &[])?;
    if ended.code() != Some(1) || !ended.err.contains("permission denied") {
        return wrong(format!("{} {} {}", ended.how(), ended.out, ended.err));
    }
    expect(shared, STRANGER, &["k", "get", "a"], "x")?;
    shared.expect("3001", "chmod 700 /hf", "")?;
    refuse(shared, STRANGER, &["k", "get", "a"], "does not let you in")
}

/// What one user's call returned the next user's call sees, as a value and as a file.
pub fn coherence(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 1777 /hf", "")?;
    expect(&shared, OWNER, &["k", "put", "a", "0"], "")?;
    shared.expect(OWNER, "chmod 777 /hf/k", "")?;
    for (number, who) in [OWNER, "3001", STRANGER, "0", KIN, OWNER]
        .iter()
        .enumerate()
    {
        let (key, value) = (format!("key{number}"), format!("value {number}"));
        expect(&shared, who, &["k", "put", &key, &value], "")?;
        expect(&shared, who, &["k", "put", "a", &value], "")?;
        for reader in ["3001", OWNER, STRANGER, "0"] {
            expect(&shared, reader, &["k", "get", "a"], &value)?;
            let file = format!("cat /hf/k/{key}; stat -c ' %u %a' /hf/k/{key}");
            shared.expect(reader, &file, &format!("{value} 3002 644\n"))?;
        }
        let names: String = (0..=number)
            .map(|n| format!("key{n}\tvalue {n}\n"))
            .collect();
        expect(&shared, STRANGER, &["k", "scan", "--prefix", "key"], &names)?;
    }
    shared.expect(STRANGER, "echo file >/hf/k/file", "")?;
    expect(&shared, "3001", &["k", "get", "file"], "file\n")?;
    expect(&shared, OWNER, &["k", "erase", "file"], "")?;
    shared.expect(STRANGER, "test -e /hf/k/file || echo gone", "gone\n")?;
    large(&shared)?;
    shared.end()
}

/// Values and batches that take many calls.
fn large(shared: &Shared<'_>) -> Result<(), Stop> {
    let (pool, holdfast) = (shared.pool.display(), shared.fixture.holdfast.display());
    let script = format!(
        "set -e; kv() {{ {holdfast} kv {pool} \"$@\"; }}
         head -c 70000000 /dev/urandom | tee >(sha256sum >sum) | kv k put huge
         head -c 3000000 /dev/urandom >large; kv k put -e 'not/a\\x00name' - <large
         sleep 0.2; kv k get huge | sha256sum | cmp - sum
         kv k get -e 'not/a\\x00name' | cmp - large
         seq 300000 | sed 's/.*/&\\tvalue &/' >lines; kv many load <lines
         kv many dump | sort -n | cmp - lines; kv many scan --limit 1
         kv k scan --prefix not | wc -c | awk '{{ print ($1 > 3000000) }}'"
    );
    let home = shared.fixture.path("home");
    fs::create_dir(&home)?;
    let number = STRANGER.parse().ok();
    chown(&home, number, number)?;
    let mut command = user(STRANGER);
    let script = format!("cd {}; {script}", home.display());
    command.args(["bash", "-c", &script]);
    let ended = shared.fixture.end_of(command)?;
    match ended.code() == Some(0) && ended.out == "1\tvalue 1\n1\n" {
        true => Ok(()),
        false => wrong(format!("{}: {} {}", ended.how(), ended.out, ended.err)),
    }
}

/// Programs that use every call say the same as in a process that has the pool mapped.
pub fn programs(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 1777 /hf", "")?;
    let threads = ["-D_POSIX_C_SOURCE=200809L", "-pthread"];
    let programs = [
        ("interface.c", &[][..]),
        ("threads.c", &threads),
        ("volumes.c", &threads),
    ];
    for (name, more) in programs {
        let program = interface::build(fixture, name, more)?;
        let mut command = user(STRANGER);
        command.arg(&program).arg(&shared.pool);
        let ended = fixture.end_of(command)?;
        if ended.code() != Some(0) || ended.out != "all as it should be\n" {
            return wrong(format!(
                "{name}: {} {} {}",
                ended.how(),
                ended.out,
                ended.err
            ));
        }
        // Another user's turn: the keyspaces are in the way.
        shared.expect(STRANGER, "rm -rf /hf/*", "")?;
    }
    shared.end()
}

/// What was durable is there whoever is killed, nothing is there in part, and the next program is
/// served.
pub fn kills(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 1777 /hf", "")?;
    let pool = shared.pool.display();
    // Who has the pool in use sees to it that there is a service.
    let mut user = as_user("3001");
    user.arg(&fixture.holdfast).args(["run", "--pool"]);
    user.arg(&shared.pool).args(["--", "sleep", "300"]);
    process::clean(&mut user, &fixture.dir);
    let mut user = user.spawn()?;
    let killed = kill_all(&shared, pool.to_string());
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&user),
        rustix::process::Signal::TERM,
    )
    .map_err(std::io::Error::from)?;
    user.wait()?;
    killed
}

fn kill_all(shared: &Shared<'_>, pool: String) -> Result<(), Stop> {
    let fixture = shared.fixture;
    let kills = [
        "pkill -9 -u 3003 -f 'holdfast kv'".to_string(),
        "pkill -9 -u 3001 -x holdfast-proxy".to_string(),
        format!("pkill -9 -u 3001 -f 'serve .*{pool}'"),
    ];
    let holdfast = fixture.holdfast.display();
    let done = fixture.path("done");
    fs::write(&done, "")?;
    let number = STRANGER.parse().ok();
    chown(&done, number, number)?;
    for (round, kill) in kills.iter().cycle().take(9).enumerate() {
        let script = format!(
            "kv() {{ {holdfast} kv {pool} k \"$@\"; }}; n=0
             while kv put r{round}-$n value$n 2>/dev/null; do echo r{round}-$n value$n
             n=$((n + 1)); done >>{}; head -c 5000000 /dev/zero | kv put big 2>/dev/null",
            done.display()
        );
        let mut command = user(STRANGER);
        command.args(["bash", "-c", &script]);
        process::clean(&mut command, &fixture.dir);
        let mut child = command.stderr(std::process::Stdio::null()).spawn()?;
        std::thread::sleep(Duration::from_millis(300 + 37 * round as u64));
        for _ in 0..50 {
            let mut killing = Command::new("bash");
            killing.args(["-c", kill]);
            fixture.end_of(killing)?;
            if child.try_wait()?.is_some() || kill.contains("serve") {
                break;
            }
            std::thread::sleep(Duration::from_millis(3));
        }
        let mut ending = Command::new("bash");
        ending.args(["-c", "pkill -9 -u 3003 -x bash"]);
        fixture.end_of(ending)?;
        child.wait()?;
    }
    let told = fs::read_to_string(&done)?;
    let ended = kv(shared, "3001", &["k", "dump"])?;
    let there: std::collections::HashSet<&str> = ended.out.lines().collect();
    if told.lines().count() < 20 {
        return wrong(format!("only {} values were put", told.lines().count()));
    }
    for line in told.lines() {
        if !there.contains(&*line.replace(' ', "\t")) {
            return wrong(format!("{line} was durable and is gone"));
        }
    }
    expect(shared, STRANGER, &["k", "put", "last", "one"], "")?;
    expect(shared, "3001", &["k", "get", "last"], "one")
}
