//! Limits hold against the users that they are for, and against nobody else.

use super::{Shared, as_user};
use crate::bad_input::{Fixture, Stop, wrong};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Child;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// Writes until it is refused, and says why.
const FILL: &str = "dd if=/dev/zero of=/hf/NAME bs=64K count=1000 status=none 2>&1 |
    grep -o 'Disk quota exceeded'; stat -c %s /hf/NAME";

/// The `quota` command as `user`; what it printed.
fn quota(shared: &Shared<'_>, user: &str, words: &[&str]) -> Result<String, Stop> {
    let fixture = shared.fixture;
    let mut command = as_user(user);
    command.arg(&fixture.holdfast).arg("quota");
    command.arg(&shared.pool).args(words);
    let ended = fixture.end_of(command)?;
    match ended.code() {
        Some(0) => Ok(ended.out),
        _ => wrong(format!("quota {words:?}: {}", ended.err.trim())),
    }
}

/// A served user is stopped at the limit, by every kind of call that adds something; others are
/// not, and room that is made is there at once.
pub fn of_users(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 1777 /hf", "")?;
    quota(
        &shared,
        "3001",
        &["set", "--user", "3002", "4M", "--files", "20"],
    )?;
    let fill = FILL.replace("NAME", "big");
    shared.expect("3002", &fill, "Disk quota exceeded\n4194304\n")?;
    let all = "{ echo x >/hf/small; cp /bin/ls /hf/ls; } 2>&1 | grep -c 'quota exceeded'
        dd if=/dev/zero of=/hf/big bs=1M count=4 conv=notrunc status=none && echo again
        mkdir /hf/dir && ln -s big /hf/link && echo made; rm -f /hf/small /hf/ls";
    shared.expect("3002", all, "2\nagain\nmade\n")?;
    // Everybody else has room.
    for user in ["3001", "3003", "0"] {
        let own = format!("head -c 8M /dev/zero >/hf/of{user} && rm /hf/of{user} && echo done");
        shared.expect(user, &own, "done\n")?;
    }
    shared.expect(
        "3002",
        "rm /hf/big; echo x >/hf/small && cat /hf/small",
        "x\n",
    )?;
    let many = "for i in $(seq 30); do touch /hf/dir/$i 2>/dev/null || break; done
        ls /hf/dir | wc -l; mkdir /hf/more 2>&1 | grep -c 'quota exceeded'; rm /hf/dir/*";
    shared.expect("3002", many, "17\n1\n")?;
    let listed = quota(&shared, "3001", &["list"])?;
    if listed != "user 3002  4K of 4M (0%), 3 of 20 files (15%)\n" {
        return wrong(format!("the list is {listed:?}"));
    }
    // What root gives to the user counts, and what root takes does not.
    shared.expect(
        "0",
        "head -c 6M /dev/zero >/hf/given; chown 3002 /hf/given",
        "",
    )?;
    shared.expect("3002", "echo x >/hf/dir/x || echo full", "full\n")?;
    shared.expect("0", "chown 3003 /hf/given", "")?;
    shared.expect("3002", "echo x >/hf/dir/x && echo room", "room\n")?;
    // A larger one is used at once, and who is served neither sees nor changes it.
    quota(&shared, "3001", &["set", "--user", "3002", "5M"])?;
    for words in [&["list"][..], &["set", "--user", "3002", "1G"]] {
        if quota(&shared, "3002", words).is_ok() {
            return wrong(format!("user 3002 may {words:?}"));
        }
    }
    let fill = FILL.replace("NAME", "again");
    shared.expect("3002", &fill, "Disk quota exceeded\n5234688\n")?;
    shared.expect(
        "3002",
        "cp /hf/again /hf/keyspace 2>/dev/null || echo full",
        "full\n",
    )?;
    keys_beside_files(&shared)?;
    quota(&shared, "3001", &["remove", "--user", "3002"])?;
    shared.expect(
        "3002",
        "head -c 9M /dev/zero >/hf/free && echo free",
        "free\n",
    )?;
    shared.end()
}

/// Values are the owner's of the keyspace, whoever puts them, and count with files.
fn keys_beside_files(shared: &Shared<'_>) -> Result<(), Stop> {
    let (holdfast, pool) = (shared.fixture.holdfast.display(), shared.pool.display());
    let kv = format!("{holdfast} kv {pool} mine");
    let keys =
        format!("rm /hf/again; {kv} put key value && {kv} put large - </bin/ls && {kv} get key");
    shared.expect("3002", &keys, "value")?;
    shared.expect("3002", "chmod 777 /hf/mine", "")?;
    let full = format!(
        "for i in $(seq 200); do {kv} put $i - </bin/ls 2>&1 || break; done | head -1
        {{ {kv} put key value2 && {kv} put large small && {kv} get key; echo; }} 2>&1
        {kv} get 1 | cmp - /bin/ls 2>&1"
    );
    let ended = shared.says("3003", &full)?;
    let says = "the quota of the directory or keyspace, or of the user who owns it, is used up";
    if !ended.out.contains(says) || !ended.out.ends_with("value2\n") {
        return wrong(format!("a keyspace: {}", ended.out));
    }
    let fill = FILL.replace("NAME", "again");
    let ended = shared.says("3002", &fill)?;
    if !ended.out.starts_with("Disk quota exceeded\n") || ended.out.len() > 27 {
        return wrong(format!("beside a keyspace: {}", ended.out));
    }
    shared.expect("3002", &format!("{kv} drop"), "")?;
    shared.expect(
        "3002",
        "head -c 4M /dev/zero >/hf/again && rm /hf/again && echo room",
        "room\n",
    )?;
    Ok(())
}

/// In a directory with a quota all users are stopped together, and outside nobody is.
pub fn of_directories(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    let make = "mkdir /hf/dir /hf/dir/sub /hf/out; chmod -R 777 /hf";
    shared.expect("3001", make, "")?;
    shared.expect("3003", "head -c 1M /dev/zero >/hf/dir/sub/before", "")?;
    quota(&shared, "3001", &["set", "--directory", "/dir", "3M"])?;
    shared.expect(
        "3002",
        "head -c 1M /dev/zero >/hf/dir/sub/two; echo $?",
        "0\n",
    )?;
    let fill = FILL.replace("NAME", "dir/three");
    shared.expect("3003", &fill, "Disk quota exceeded\n1048576\n")?;
    for user in ["3001", "3002", "0"] {
        let add = "echo x 2>/dev/null >/hf/dir/x || echo full; rm -f /hf/dir/x
            head -c 4M /dev/zero >/hf/out/x && rm /hf/out/x && echo out";
        shared.expect(user, add, "full\nout\n")?;
    }
    // mv copies what crosses the border.
    let moved = "mv /hf/dir/sub/two /hf/out/two && stat -c %s /hf/out/two; ls /hf/dir/sub
        head -c 1M /dev/zero >/hf/dir/sub/fits && echo fits";
    shared.expect("3002", moved, "1048576\nbefore\nfits\n")?;
    let back = "mv /hf/out/two /hf/dir/sub/two 2>&1 | grep -c 'quota exceeded'; ls /hf/out
        rm -f /hf/dir/sub/two";
    shared.expect("3002", back, "1\ntwo\n")?;
    let listed = quota(&shared, "3001", &["list"])?;
    if listed != "/dir  3M of 3M (100%), 5 files\n" {
        return wrong(format!("the list is {listed:?}"));
    }
    shared.end()
}

/// What is below a directory with a quota looks like a file system of that size to everybody;
/// outside, and for a user with a quota, it is the pool.
pub fn seen_by_programs(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    let make =
        "mkdir -p /hf/dir/sub /hf/out; chmod -R 777 /hf; stat -f -c '%b %d' /hf/out >/hf/pool";
    shared.expect("3001", make, "")?;
    quota(
        &shared,
        "3001",
        &["set", "--directory", "/dir", "3M", "--files", "10"],
    )?;
    quota(
        &shared,
        "3001",
        &["set", "--user", "3002", "1M", "--files", "5"],
    )?;
    shared.expect("3003", "head -c 1M /dev/zero >/hf/dir/sub/file", "")?;
    let shown = "cd /hf/dir/sub; stat -f -c '%b %f %a %S %c %d' . file /hf/dir /hf/dir/sub
        python3 -c 'import os, shutil
f = open(\"file\"); s = os.fstatvfs(f.fileno())
print(s.f_blocks, s.f_bfree, s.f_bavail, s.f_frsize, s.f_files, s.f_favail)
print(shutil.disk_usage(\"/hf/dir\"))'";
    let line = "768 512 512 4096 10 7\n";
    let wanted = line.repeat(5) + "usage(total=3145728, used=1048576, free=2097152)\n";
    let out = "stat -f -c '%b %d' /hf/out | cmp - /hf/pool && echo pool";
    for user in ["3001", "3002", "3003", "0"] {
        shared.expect(user, shown, &wanted)?;
        shared.expect(user, out, "pool\n")?;
    }
    // A file whose name is gone still has its room, and a limit below what is taken leaves none.
    let gone = "cd /hf/dir/sub; exec 3<>file; rm file; stat -f -c %f . /proc/self/fd/3
        exec 3>&-; stat -f -c %f .";
    shared.expect("3003", gone, "512\n512\n768\n")?;
    shared.expect("3003", "head -c 1M /dev/zero >/hf/dir/sub/file", "")?;
    quota(&shared, "3001", &["set", "--directory", "/dir", "8K"])?;
    shared.expect("3002", "stat -f -c '%b %f %a' /hf/dir", "2 0 0\n")?;
    // A limit beyond the pool shows the pool.
    quota(&shared, "3001", &["set", "--directory", "/dir", "1T"])?;
    let all = "stat -f -c '%b %d' /hf/dir | cmp - /hf/pool && echo pool";
    shared.expect("3002", all, "pool\n")?;
    shared.end()
}

/// The words of each line that `holdfast` prints.
fn said(shared: &Shared<'_>, user: &str, words: &[&str]) -> Result<String, Stop> {
    let mut command = as_user(user);
    command.arg(&shared.fixture.holdfast).args(words);
    let ended = shared.fixture.end_of(command)?;
    if ended.code() != Some(0) {
        return wrong(format!("{words:?} as {user}: {}", ended.err.trim()));
    }
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(ended.out.lines().map(|line| words(line) + "\n").collect())
}

/// Soon it says all of this.
fn says(shared: &Shared<'_>, user: &str, words: &[&str], parts: &[&str]) -> Result<(), Stop> {
    let begun = Instant::now();
    loop {
        let said = said(shared, user, words)?;
        let Some(part) = parts.iter().find(|part| !said.contains(**part)) else {
            return Ok(());
        };
        if begun.elapsed() > PATIENCE {
            return wrong(format!("{words:?} as {user}: no {part:?} in {said}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The pool's status, `top` and metrics have quotas for its owner and root: with what is taken
/// while programs use the pool.
pub fn in_the_state(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    let pool = shared.pool.display().to_string();
    let (status, json) = (
        ["pool", "status", &pool],
        ["pool", "status", &pool, "--json"],
    );
    says(&shared, "3001", &status, &["quotas none\n"])?;
    let make = "mkdir -p /hf/a/dir; chmod 777 /hf /hf/a/dir";
    shared.expect("3001", make, "")?;
    let limit = ["set", "--directory", "/a/dir", "4M", "--files", "50"];
    quota(&shared, "3001", &limit)?;
    quota(&shared, "3001", &["set", "--user", "3002", "1G"])?;
    shared.expect("3002", "head -c 3900K /dev/zero >/hf/a/dir/file", "")?;
    let program = Running::start(&shared, "3003", "sleep 60")?;
    let nearly = "quota /a/dir: 3.8M of 4M (95%), 2 of 50 files (4%)\n";
    let counted = ["quotas 2, 1 nearly full\n", nearly];
    let objects = [
        "{\"directory\":\"/a/dir\",\"bytes_taken\":3993600,\"bytes\":4194304,\"files_taken\":2,\
         \"files\":50,\"complete\":true}",
        "{\"uid\":3002,\"bytes_taken\":3993600,\"bytes\":1073741824,\"files_taken\":1,\
         \"complete\":true}",
    ];
    for user in ["3001", "0"] {
        says(&shared, user, &status, &counted)?;
        let top = ["top", &pool, "--count", "1", "--interval", "0.1"];
        says(&shared, user, &top, &counted)?;
        says(&shared, user, &json, &objects)?;
        says_as_metrics(&shared, user, &pool)?;
    }
    // Others see no state of the pool at all.
    if let Ok(said) = said(&shared, "3002", &status) {
        return wrong(format!("user 3002 sees {said}"));
    }
    drop(program);
    // While nobody uses the pool, there are the limits.
    let idle = "quotas 2; what is taken is counted while programs use the pool\n";
    says(&shared, "3001", &status, &[idle])?;
    shared.expect("3001", "mv /hf/a /hf/b", "")?;
    says(&shared, "3001", &json, &["{\"directory\":\"/b/dir\","])?;
    shared.expect("3001", "rm -r /hf/b", "")?;
    says(&shared, "3001", &status, &["quotas 1; what"])?;
    quota(&shared, "3001", &["remove", "--user", "3002"])?;
    says(&shared, "3001", &status, &["quotas none\n"])?;
    shared.end()
}

fn says_as_metrics(shared: &Shared<'_>, user: &str, pool: &str) -> Result<(), Stop> {
    let of_directory = "kind=\"directory\",name=\"/a/dir\"";
    let of_user = "kind=\"user\",name=\"3002\"";
    let metrics = [
        ("limit_bytes", of_directory, 4 << 20),
        ("limit_bytes", of_user, 1 << 30),
        ("limit_files", of_directory, 50),
        ("taken_bytes", of_directory, 3_993_600),
        ("taken_files", of_directory, 2),
        ("taken_files", of_user, 1),
    ];
    let lines = metrics.map(|(name, labels, value)| {
        format!("holdfast_quota_{name}{{pool=\"{pool}\",{labels}}} {value}\n")
    });
    let lines = lines.each_ref().map(String::as_str);
    says(shared, user, &["top", "--metrics", pool], &lines)
}

/// A program that ends with the case.
struct Running(Child);

impl Running {
    fn start(shared: &Shared<'_>, user: &str, script: &str) -> Result<Running, Stop> {
        let mut command = as_user(user);
        command
            .arg(&shared.fixture.holdfast)
            .args(["run", "--pool"]);
        command.arg(&shared.pool).args(["--", "bash", "-c", script]);
        let child = command.spawn();
        Ok(Running(child.map_err(|e| Stop::Wrong(e.to_string()))?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Stores a byte into each page of a new file's mapping of so many megabytes, with the number of
/// megabytes that were reached.
const STORE: &str = "exec 2>/dev/null; python3 -c '
import mmap, os, sys
f = os.open(\"/hf/NAME\", os.O_RDWR | os.O_CREAT)
os.ftruncate(f, SIZE << 20)
try:
    m = mmap.mmap(f, SIZE << 20)
except OSError as e:
    sys.exit(e.strerror)
for i in range(SIZE << 8):
    m[i << 12] = 1
    if i % 256 == 255: os.write(1, b\"%d \" % (i // 256 + 1))
' 2>&1; echo $?; stat -c %b /hf/NAME";

/// Bytes that are not zero, once everything is written back.
const COUNT: &str = "for file in served last; do tr -d '\\0' </hf/$file | wc -c; done";

/// What the owner's mapping stores to is taken as the rules say: a short mapping must fit as a
/// whole, and in a long one the program gets SIGBUS where it stores beyond the quota. Of a served
/// user each one must fit, and nothing that was stored is lost.
pub fn of_mappings(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    quota(&shared, "3001", &["set", "--user", "3001", "4M"])?;
    let store =
        |name: &str, megabytes: &str| STORE.replace("NAME", name).replace("SIZE", megabytes);
    let is_taken = |bytes: &str| -> Result<bool, Stop> {
        let listed = quota(&shared, "3001", &["list"])?;
        Ok(listed.contains(&format!("user 3001  {bytes} of 4M")))
    };
    shared.expect("3001", &store("long", "16"), "1 2 3 4 135\n8192\n")?;
    let refused = "Disk quota exceeded\n1\n0\n";
    shared.expect("3001", &store("short", "1"), refused)?;
    shared.expect("3001", "rm /hf/long", "")?;
    // The blocks that a dead process had mapped are free once somebody has looked after it.
    let begun = Instant::now();
    while !is_taken("0")? {
        if begun.elapsed() > PATIENCE {
            return wrong("what a dead process had mapped stays taken");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    for name in ["one", "two"] {
        shared.expect("3001", &store(name, "2"), "1 2 0\n4096\n")?;
    }
    // What is there already may be mapped and stored to again.
    shared.expect("3001", &store("two", "2"), "1 2 0\n4096\n")?;
    if !is_taken("4M")? {
        return wrong("two files of 2M are not 4M");
    }
    quota(&shared, "3001", &["set", "--user", "3002", "4M"])?;
    shared.expect("3001", "chmod 777 /hf", "")?;
    shared.expect("3002", &store("served", "3"), "1 2 3 0\n6144\n")?;
    let refused = "Disk quota exceeded\n1\n0\n";
    shared.expect("3002", &store("more", "2"), refused)?;
    shared.expect("3002", &store("last", "1"), "1 0\n2048\n")?;
    shared.expect("3002", "tr -d '\\0' </hf/served | wc -c", "768\n")?;
    shared.expect("3001", &format!("sleep 4; {COUNT}"), "768\n256\n")?;
    // A limit of files alone leaves holes as they are.
    quota(&shared, "3001", &["set", "--user", "3002", "--files", "50"])?;
    let sparse = "python3 -c 'import mmap, os
f = os.open(\"/hf/sparse\", os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 1 << 40)
m = mmap.mmap(f, 1 << 20, offset=1 << 30)
m[5] = 1'; sleep 4; stat -c %b /hf/sparse";
    shared.expect("3002", sparse, "8\n")?;
    shared.end()
}
