//! Limits hold against the users that they are for, and against nobody else.

use super::{Shared, as_user};
use crate::bad_input::{Fixture, Stop, wrong};
use std::time::{Duration, Instant};

/// Nothing takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

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
    let (holdfast, pool) = (fixture.holdfast.display(), shared.pool.display());
    let keys = format!("{holdfast} kv {pool} mine put key value 2>&1 | head -1");
    let says = "values count for no quota, so who has one cannot have a keyspace";
    let ended = shared.says("3002", &keys)?;
    if !ended.out.contains(says) {
        return wrong(format!("a keyspace: {}", ended.out));
    }
    quota(&shared, "3001", &["remove", "--user", "3002"])?;
    shared.expect(
        "3002",
        "head -c 9M /dev/zero >/hf/free && echo free",
        "free\n",
    )?;
    shared.end()
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

/// What the owner's mapping stores to is taken as the rules say: a short mapping must fit as a
/// whole, and in a long one the program gets SIGBUS where it stores beyond the quota.
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
    match is_taken("4M")? {
        true => shared.end(),
        false => wrong("two files of 2M are not 4M"),
    }
}
