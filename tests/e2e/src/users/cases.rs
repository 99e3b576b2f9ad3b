//! What is promised to users of one pool, beside the permissions of files.

use super::Shared;
use crate::bad_input::{Case, Fixture, Stop};

pub const CASES: &[(&str, Case)] = &[("everyday programs", everyday)];

/// Children of every kind, pipes, scripts and programs in the pool, and a database.
fn everyday(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect(
        "3001",
        "mkdir -m 1777 /hf/tmp; umask 077; echo s >/hf/secret",
        "",
    )?;
    let script = r#"
        cat /hf/secret 2>/dev/null || echo refused
        cd /hf/tmp && mkdir d && cd d && pwd
        printf '#!/bin/sh\necho script $1\n' >s && chmod +x s && ./s one
        cp /bin/echo . && ./echo copied
        seq 100000 | sort -R | sort -n | tail -1
        (sleep 0.05; echo late >late) & wait; cat late
        python3 - <<'P'
import os, subprocess, sqlite3, mmap
print(subprocess.run(["cat", "late"], capture_output=True).stdout)
subprocess.run("echo err >&2", shell=True, stderr=open("o", "w"))
print(open("o").read(), end="")
if os.fork() == 0:
    open("forked", "w").write("child")
    os._exit(3)
print(os.wait()[1] >> 8, open("forked").read())
c = sqlite3.connect("db")
c.execute("create table t(a)")
c.executemany("insert into t values(?)", [(i,) for i in range(1000)])
c.commit()
print(c.execute("select sum(a) from t").fetchone()[0])
f = open("forked", "rb")
print(mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)[:])
P
        stat -c '%U %G' db"#;
    let expected = "refused\n/hf/tmp/d\nscript one\ncopied\n100000\nlate\nb'late\\n'\nerr\n\
                    3 child\n499500\nb'child'\nUNKNOWN UNKNOWN\n";
    shared.expect("3002", script, expected)?;
    shared.expect(
        "3001",
        "cat /hf/tmp/d/late; ls /hf/tmp/d | wc -l",
        "late\n6\n",
    )?;
    shared.end()
}
