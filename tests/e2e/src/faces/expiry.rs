//! Keys that expire, as programs and other commands see them.

use super::{expect, new_pool, script};
use crate::bad_input::{Case, Fixture, Stop, wrong};

pub const CASES: &[(&str, Case)] = &[
    ("kv keys expire", keys_expire),
    ("kv keys expire while the service is away", service_is_away),
    ("kv expired keys make room", make_room),
    ("kv expiry goes along", goes_along),
    ("kv expiry of many under load", under_load),
    ("kv changes if a key expires", if_it_expires),
    ("kv values that expire are counted", counted),
];

/// `gone FILE...` waits until these are gone; nothing waits for longer than ten seconds.
const WORDS: &str = "kv() { \"$hf\" kv \"$pool\" \"$@\"; }
    run() { \"$hf\" run --pool \"$pool\" -- \"$@\"; }
    check() { \"$hf\" pool check \"$pool\" >/dev/null; }
    wait_for() { for _ in $(seq 500); do if eval \"$1\"; then return; fi; sleep 0.02; done
        echo \"never: $1\"; }
    is_served() { \"$hf\" pool status \"$pool\" | grep \"process $service$\" >/dev/null; }
    number() { \"$hf\" --json pool status \"$pool\" | grep -o \"\\\"$1\\\": *[0-9]*\" |
        grep -o '[0-9]*$'; }
";

/// By the command, as files of unmodified programs that run meanwhile, and for changes.
fn keys_expire(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = format!(
        "{WORDS} kv k put stays 1; kv k put long 2 --expires 1h; kv k put short 3 --expires 2s
        head -c 9000 /dev/zero | kv k put large --expires 2s; kv k put 'a/b' 4 --expires 2s
        kv k count; kv k scan | sed 's/@[0-9]*$/@T/; s/^large.*\\\\@/large \\\\@/'
        run bash -c 'cd /hf/k; exec 3<large; echo *; cat short; test \"$(stat -c %s large)\" = 9000
            until ! [ -e short ]; do sleep 0.05; done; echo; sleep 0.05; echo *
            ls | tr \"\\n\" \" \"
            cat short 2>&1 || true; find . -type f | sort | tr \"\\n\" \" \"; wc -c <&3
            stat -c %h -L /dev/fd/3; python3 -c \"import os; print(sorted(os.listdir()))\"
            printf made >short; cat short large 2>&1 || true'
        kv k get large 2>&1 || true; kv k expire large 2>&1 || true; kv k count
        kv k put large 5 --if-absent; kv k put short 6 --if made --expires 100ms
        wait_for '! kv k get short >/dev/null 2>&1'; kv k put short 7 --if-absent --json
        kv k expire long never; kv k expire long; kv k expire long 50ms
        wait_for '! kv k get long >/dev/null 2>&1'; kv k put stays 8 --expires 0s; kv k scan
        kv k put x 1 --expires 5w 2>&1 | head -1 || true
        run rmdir /hf/k 2>&1 | grep -o 'not empty' || true
        kv e put a 1 --expires 1ms; wait_for '! kv e get a >/dev/null 2>&1'; run rmdir /hf/e
        kv; check"
    );
    let said = script(fixture, &pool, &text)?;
    expect(
        "the commands",
        &said,
        "5\na/b\t4\\@T\nlarge \\@T\nlong\t2\\@T\nshort\t3\\@T\nstays\t1\n\
         large long short stays\n3\n\
         long stays\nlong stays cat: short: No such file or directory\n\
         ./long ./stays 9000\n0\n['long', 'stays']\n\
         madecat: large: No such file or directory\n\
         holdfast: there is no key large in keyspace k.\n\
         holdfast: there is no key large in keyspace k.\n3\n\
         {\"done\":true,\"value\":\"7\"}\nnever\n\
         large\t5\nshort\t7\n\
         holdfast: invalid value '5w' for '--expires <TIME>': \
         write a number and ms, s, m, h or d, or never.\n\
         not empty\nk\n",
    )
}

/// What has expired is gone whoever looks first, and what has not keeps its time, after the
/// service ended, was killed, or lost all memory.
fn service_is_away(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = format!(
        "{WORDS} kv k put a 1 --expires 1h; kv k put b 2 --expires 300ms; at=$(kv k expire a)
        sleep 0.4; kv k scan | sed 's/@.*/@T/'; test \"$(kv k expire a)\" = \"$at\"
        \"$hf\" serve \"$pool\" 2>/dev/null & service=$!
        wait_for is_served
        kv k put c 3 --expires 1h; kv k put d 4 --expires 500ms
        run bash -c 'echo e >/hf/k/e'
        \"$hf\" run --pool \"$pool\" -- sleep 60 & keep=$!; sleep 0.2
        kill -KILL $service; kill $keep; wait || true; sleep 0.4; wait_for 'check 2>/dev/null'
        kv k scan | sed 's/@.*/@T/'; test \"$(kv k expire a)\" = \"$at\"
        \"$hf\" serve \"$pool\" 2>/dev/null & service=$!
        wait_for is_served
        kv k put f 5 --expires 20ms
        # Two keys that expire: the service has removed the others.
        wait_for '[ $(number values) = 2 ]'; kill $service; wait || true
        wait_for 'check 2>/dev/null'
        kv k count"
    );
    let said = script(fixture, &pool, &text)?;
    expect(
        "the commands",
        &said,
        "a\t1\\@T\na\t1\\@T\nc\t3\\@T\ne\te\\n\n3\n",
    )
}

/// Ten times what the pool has room for, each for a moment; and what expired is freed by itself.
fn make_room(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = format!(
        "{WORDS} head -c 4000000 /dev/urandom >value
        \"$hf\" run --pool \"$pool\" -- sleep 100 & keep=$!
        for i in $(seq 50); do kv k put $i --expires 1ms <value; done; kv k count
        kv k put last 1 --expires 1h; kv k count
        wait_for '[ $(number used) -lt 2000000 ]'
        for i in $(seq 8); do kv k put $i --expires 1h <value; done; kv k count
        kv k put more - --expires 1h <<<x; for i in $(seq 12); do
            if ! kv k put more-$i --expires 1h <value 2>err; then cat err; break; fi; done
        kill $keep; wait $keep || true; check; kv k drop; kv"
    );
    let said = script(fixture, &pool, &text)?;
    let lines: Vec<&str> = said.lines().collect();
    expect("the counts", &lines[..3].join(" "), "0 1 9")?;
    match said.contains("\nholdfast: the pool is full.\n") {
        true => Ok(()),
        false => wrong(format!("a full pool said {said:?}")),
    }
}

/// Snapshots, streams, dumps, copies and resizing keep values and times.
fn goes_along(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = format!(
        "{WORDS} other=$pool-2; head -c 20000 /dev/zero | tr '\\0' z >large
        kv k put a 1 --expires 1h; kv k put large --expires 1h <large; kv k put b 2
        kv k put brief 3 --expires 1500ms; a=$(kv k expire a); l=$(kv k expire large)
        \"$hf\" snapshot \"$pool\" create s; kv k dump >dump
        \"$hf\" save \"$pool\" stream >/dev/null
        wait_for '! kv k get brief >/dev/null 2>&1'; sleep 1.5; kv k put c 4; kv k erase a
        kv k get brief --snapshot s; echo; kv k count --snapshot s; kv k count
        same() {{ test \"$(\"$hf\" kv \"$1\" \"$2\" expire a)\" = $a
            test \"$(\"$hf\" kv \"$1\" \"$2\" expire large)\" = $l
            \"$hf\" kv \"$1\" \"$2\" get large | cmp - large; \"$hf\" kv \"$1\" \"$2\" count
            \"$hf\" pool check \"$1\" >/dev/null; }}
        \"$hf\" restore stream \"$other\" >/dev/null; same \"$other\" k
        \"$hf\" save \"$pool\" --snapshot s stream-s >/dev/null
        \"$hf\" save \"$pool\" --since s stream-p >/dev/null
        rm -r \"$other\"; \"$hf\" restore stream-s \"$other\" >/dev/null; same \"$other\" k
        \"$hf\" restore stream-p \"$other\" >/dev/null; \"$hf\" kv \"$other\" k scan | cut -c 1-3
        kv l load <dump; same \"$pool\" l
        \"$hf\" cp -r \"$pool:l\" \"$pool:m\"; same \"$pool\" m
        \"$hf\" snapshot \"$pool\" delete s; kv k drop; kv m drop
        \"$hf\" pool resize \"$pool\" 48M >/dev/null; same \"$pool\" l
        kv l dump | sed 's/@.*/@T/' | cut -c 1-9 | tail -3; kv l dump --format mdb 2>&1 >/dev/null"
    );
    let said = script(fixture, &pool, &text)?;
    expect(
        "the commands",
        &said,
        "3\n4\n3\n3\n3\nb\t2\nc\t4\nlar\n3\n3\n3\na\t1\\@T\nb\t2\nlarge\tzzz\n\
         holdfast: 2 of the values expire, which the format mdb does not say.\n",
    )
}

/// Many keys come and go while others are put: each is there until its time, and none is later;
/// one that was put again stays.
fn under_load(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = format!(
        "{WORDS} now=$(date +%s%N); for round in 1 2 3; do
            seq 20000 | sed \"s/.*/key-&\\tvalue &\\\\\\\\@$((now + round * 400000000))/\" |
                kv k load
        done
        seq 5000 | sed 's/.*/key-&\\tagain &/' | kv k load
        \"$hf\" run --pool \"$pool\" -- sleep 8 & keep=$!
        wait_for '[ $(kv k count) = 5000 ]'; sleep 2.5; kv k count
        kv k scan --prefix key-499 | head -1; kill $keep; wait $keep || true; check
        number values"
    );
    let said = script(fixture, &pool, &text)?;
    expect("the keys", &said, "5000\nkey-499\tagain 499\n5000\n")
}

/// The condition that a key expires, or still at the same time.
fn if_it_expires(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = format!(
        "{WORDS} shown() {{ {{ \"$@\" 2>&1 && echo 0 || echo $?; }} |
            sed 's/[0-9]\\{{19\\}}/T/g'; }}
        kv k put a 1 --expires 1h; kv k put b 1; at=$(kv k expire a)
        kv k expire a 2h --if-expires=$at; test $(kv k expire a) -gt $at
        shown kv k expire a 3h --if-expires=$at
        shown kv k put a 2 --if-expires=$at; kv k get a; echo
        shown kv k put a 2 --if-expires --expires 1h --json
        echo from input | kv k put a --if-expires; kv k expire a
        shown kv k erase a --if-expires; shown kv k erase b --if-expires --json
        shown kv k put c 1 --if-expires; shown kv k expire c 1h --if-expires --json
        kv k expire a 1h; kv k erase a --if-expires=$(kv k expire a) --json
        shown kv k expire b --if-expires; shown kv none put a 1 --if-expires | tail -1; kv
        kv k put b 2 --if-expires --if-absent 2>&1 | head -1 || true
        kv k put b 2 --if-expires=x 2>&1 | head -1 || true; kv k scan"
    );
    let said = script(fixture, &pool, &text)?;
    expect(
        "the commands",
        &said,
        "holdfast: a expires at T.\n1\nholdfast: a expires at T.\n1\n1\n\
         {\"done\":true,\"expires_ns\":T}\n0\nnever\nholdfast: a does not expire.\n1\n\
         {\"done\":false}\n1\nholdfast: there is no key c in keyspace k.\n1\n\
         {\"done\":false}\n1\n{\"done\":true}\n\
         holdfast: --if-expires needs a TIME to set.\nFix: see holdfast kv --help\n2\n1\nk\n\
         holdfast: the argument '--if-expires[=<NANOSECONDS>]' cannot be used with \
         '--if-absent'.\n\
         holdfast: invalid value 'x' for '--if-expires[=<NANOSECONDS>]': \
         invalid digit found in string.\nb\t1\n",
    )
}

/// `values` in `pool status` has each once, whatever becomes of it.
fn counted(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = format!(
        "{WORDS} is() {{ wait_for \"[ \\$(number values) = $1 ]\"; }}
        \"$hf\" run --pool \"$pool\" -- sleep 60 & keep=$!
        objects=$(number objects)
        seq 3000 | sed \"s/.*/key-&\\tvalue &\\\\\\@$(($(date +%s%N) + 3600000000000))/\" |
            kv k load
        kv k put short 1 --expires 300ms; kv k put stays 1; is 3002
        \"$hf\" snapshot \"$pool\" create s; is 3002; sleep 0.3
        kv k put key-1 2; kv k erase key-2; kv k expire key-3 2h; is 3000
        kv k rename l; is 3000; kv l drop; is 0; kv m put a 1 --expires 1h; is 1
        \"$hf\" save \"$pool\" stream >/dev/null
        \"$hf\" restore stream \"$pool-2\" >/dev/null
        \"$hf\" pool check \"$pool-2\" >/dev/null; \"$hf\" --json pool status \"$pool-2\" |
            grep -o '\"values\": *[0-9]*'
        kill $keep; wait $keep || true; check
        \"$hf\" snapshot \"$pool\" rollback s >/dev/null; is 3002; check
        echo $(($(number objects) - objects))"
    );
    let said = script(fixture, &pool, &text)?;
    expect("the counts", &said.replace(": ", ":"), "\"values\":1\n1\n")
}
