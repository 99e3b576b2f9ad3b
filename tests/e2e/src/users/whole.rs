//! Keyspaces as a whole, and changes that depend on a value, by users who do not own the pool.

use super::keys::{expect, kv, refuse};
use super::{Shared, as_user};
use crate::bad_input::{Fixture, Stop, wrong};
use std::time::Duration;

/// Who makes the keyspaces, and somebody else.
const OWNER: &str = "3002";
const STRANGER: &str = "3003";

/// What the directory lets them do, as `rm -r` and `mv` would.
pub fn rights(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 1777 /hf", "")?;
    expect(&shared, OWNER, &["k", "put", "a", "1", "--if-absent"], "")?;
    expect(&shared, OWNER, &["k", "put", "a", "2", "--if", "1"], "")?;
    refuse(
        &shared,
        OWNER,
        &["k", "put", "a", "3", "--if", "1"],
        "another value: 2",
    )?;
    expect(&shared, STRANGER, &["k", "count"], "1\n")?;
    let denied = "permission denied";
    refuse(
        &shared,
        STRANGER,
        &["k", "put", "a", "3", "--if", "2"],
        denied,
    )?;
    refuse(
        &shared,
        STRANGER,
        &["k", "put", "b", "3", "--if-absent"],
        denied,
    )?;
    refuse(&shared, STRANGER, &["k", "erase", "a", "--if", "2"], denied)?;
    refuse(&shared, STRANGER, &["k", "drop"], denied)?;
    expect(&shared, STRANGER, &["mine", "put", "x", "1"], "")?;
    refuse(
        &shared,
        STRANGER,
        &["mine", "rename", "k", "--replace"],
        denied,
    )?;
    refuse(
        &shared,
        STRANGER,
        &["k", "rename", "theirs"],
        "only the owner",
    )?;
    // Whoever may change the keys may still not take the name away from a sticky root, nor guess
    // what is in a file that is not theirs to read.
    shared.expect(
        OWNER,
        "umask 077; echo secret >/hf/k/s; chmod 777 /hf/k",
        "",
    )?;
    refuse(&shared, STRANGER, &["k", "drop"], "only the owner")?;
    refuse(
        &shared,
        STRANGER,
        &["k", "erase", "s", "--if", "guess"],
        denied,
    )?;
    refuse(
        &shared,
        STRANGER,
        &["k", "put", "s", "x", "--if-absent"],
        denied,
    )?;
    expect(&shared, STRANGER, &["k", "put", "a", "3", "--if", "2"], "")?;
    expect(&shared, OWNER, &["k", "dump"], "a\t3\ns\tsecret\\n\n")?;
    shared.expect(OWNER, "chmod 300 /hf/k", "")?;
    refuse(&shared, STRANGER, &["k", "count"], denied)?;
    expect(&shared, OWNER, &["k", "rename", "l"], "")?;
    refuse(&shared, OWNER, &["l", "rename", "mine"], "already")?;
    expect(&shared, OWNER, &["l", "drop"], "")?;
    expect(&shared, "3001", &[], "mine\n")?;
    shared.end()
}

/// The owner's process and those of two others count one number up.
pub fn counter(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 777 /hf", "")?;
    expect(&shared, OWNER, &["k", "put", "n", "0"], "")?;
    shared.expect(OWNER, "chmod 777 /hf/k", "")?;
    let (holdfast, pool) = (shared.fixture.holdfast.display(), shared.pool.display());
    let script = format!(
        "kv() {{ {holdfast} kv {pool} \"$@\"; }}; for i in $(seq 20); do
             until n=$(kv k get n) && kv k put n $((n + 1)) --if \"$n\" 2>/dev/null; do :; done
         done"
    );
    let ended = std::thread::scope(|threads| {
        let up = |who: &'static str| {
            let mut command = as_user(who);
            command.args(["sh", "-c", &script]);
            let fixture = shared.fixture;
            threads.spawn(move || fixture.end_of(command))
        };
        let all = ["3001", OWNER, STRANGER, STRANGER].map(up);
        all.map(|thread| thread.join().ok())
    });
    for ended in ended {
        match ended {
            Some(Ok(ended)) if ended.code() == Some(0) => {}
            Some(Ok(ended)) => return wrong(format!("{} {:?}", ended.how(), ended.tail())),
            _ => return wrong("a process could not be started"),
        }
    }
    let ended = kv(&shared, OWNER, &["k", "get", "n"])?;
    match ended.out == "80" {
        true => shared.end(),
        false => wrong(format!("{:?}, not 80", ended.out)),
    }
}

/// What expires does so for everybody, whoever put it, and the service removes it.
pub fn expiry(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 1777 /hf", "")?;
    let (owner, stranger) = ("3002", "3003");
    let is = |who, words: &[&str], out| expect(&shared, who, words, out);
    is(owner, &["k", "put", "a", "1", "--expires", "1h"], "")?;
    is(owner, &["k", "put", "b", "2", "--expires", "2s"], "")?;
    is(stranger, &["k", "get", "b"], "2")?;
    is(stranger, &["k", "count"], "2\n")?;
    let dump = kv(&shared, stranger, &["dump"])?.out;
    let marked = |line: &str| line.contains("\\@1");
    if dump.lines().filter(|line| marked(line)).count() != 2 {
        return wrong(format!("the dump does not say what expires: {dump}"));
    }
    std::thread::sleep(Duration::from_millis(2100));
    let gone = "there is no key b in keyspace k";
    for who in [owner, stranger, "3001"] {
        refuse(&shared, who, &["k", "get", "b"], gone)?;
        refuse(&shared, who, &["k", "expire", "b"], gone)?;
        is(who, &["k", "count"], "1\n")?;
        shared.expect(who, "ls /hf/k; test ! -e /hf/k/b && cat /hf/k/a", "a\n1")?;
    }
    refuse(&shared, stranger, &["k", "expire", "a", "1h"], "ermission")?;
    is(
        owner,
        &["k", "put", "b", "3", "--if-absent", "--expires", "1h"],
        "",
    )?;
    is(owner, &["k", "expire", "a", "never"], "")?;
    is(stranger, &["k", "expire", "a"], "never\n")?;
    if_it_expires(&shared, owner, stranger)?;
    is(owner, &["k", "expire", "b", "0s"], "")?;
    is("3001", &["k", "scan"], "a\t1\n")?;
    shared.end()
}

/// Changes by a proxy that depend on the expiry of `b`, while `a` does not expire.
fn if_it_expires(shared: &Shared<'_>, owner: &str, stranger: &str) -> Result<(), Stop> {
    let is = |words: &[&str], out| expect(shared, owner, words, out);
    let only = "--if-expires";
    refuse(
        shared,
        owner,
        &["k", "erase", "a", only],
        "a does not expire",
    )?;
    refuse(
        shared,
        owner,
        &["k", "put", "c", "1", only],
        "there is no key c",
    )?;
    refuse(shared, stranger, &["k", "put", "b", "5", only], "ermission")?;
    refuse(
        shared,
        owner,
        &["k", "expire", "b", "2h", "--if-expires=7"],
        "b expires at 1",
    )?;
    is(&["k", "expire", "b", "2h", only], "")?;
    is(&["k", "put", "b", "4", only, "--expires", "1h"], "")?;
    is(&["k", "get", "b"], "4")?;
    let at = kv(shared, owner, &["k", "expire", "b"])?.out;
    let then = format!("{only}={}", at.trim());
    is(&["k", "erase", "b", &then, "--json"], "{\"done\":true}\n")?;
    is(&["k", "put", "b", "3", "--expires", "1h"], "")
}
