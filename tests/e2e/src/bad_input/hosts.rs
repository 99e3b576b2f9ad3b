//! A host that fails beneath the pool: its file system is full, or does not take what was written,
//! or is read-only, or gone. Each program gets an error, what was acknowledged is there when the
//! host is well again, and nothing is said twice.

use super::surroundings::in_private_mounts;
use super::{Case, Fixture, Stop, sentence, wrong};
use crate::process::Ended;

pub const CASES: &[(&str, Case)] = &[
    ("service that cannot start again", no_restart),
    ("memory that fills beneath a pool", full_memory),
    ("memory that is full before a run", full_before),
    ("memory of which others take all that is freed", always_full),
    ("disk that fills beneath a pool", full_disk),
    ("disk that fails beneath a pool", failing_disk),
    ("disk that is taken away", gone_disk),
    ("disk without barriers", no_barriers),
    ("copy of a pool in use", copied_in_use),
];

/// A file system `host` of so many megabytes on a loop device; `where` its image lies.
fn on_loop(place: &str, size: u32, options: &str) -> String {
    format!(
        "mkdir -p host; truncate -s {size}M {place}/image || exit 99
        mkfs.ext4 -qF {place}/image || exit 99
        mount -o loop{options} {place}/image host || exit 99
        "
    )
}

const MEMORY: &str = "mkdir -p host; mount -t tmpfs -o size=120m none host || exit 99\n";
/// A pool with files, and as much beside it as there is room for; `$FILL` is for use in a run.
const POOL: &str = "$HOLDFAST pool create host/pool --size 64M >/dev/null 2>&1 || exit 98
    run() { $HOLDFAST run --pool host/pool -- bash -c \"$1\" \"$PWD\"; }
    export FILL='dd if=/dev/zero of=$0/host/hog bs=4k 2>/dev/null'
    export FILES='cd /hf; for i in $(seq 1 200); do echo $i >f$i; done
        head -c 8M /dev/urandom >big; md5sum big >sum; sync big sum f1'
    ";

/// Each sentence of Holdfast once, and few of them.
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
fn no_restart(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let script = "cd \"$0\"; mv lock aside; mkdir lock; kill -KILL $(cat aside); sleep 3
        rmdir lock; mv aside lock; echo more >>/hf/hello; cat /hf/hello";
    let ended = fixture.run(&pool, &["bash", "-c", script, &pool.to_string_lossy()])?;
    expect(&ended, "hello\nmore\n")?;
    said_once(&ended, 1)?;
    if !ended.err.contains("lock is not what belongs there") {
        return wrong(format!("it does not say why: {}", ended.err.trim()));
    }
    fixture
        .done(&["pool", "check", &pool.to_string_lossy()])
        .map(drop)
}

/// While a run has the pool: additions are refused, reading and removing go on.
const WHILE_FULL: &str = "run '
    eval \"$FILES\"; eval \"$FILL\"
    for i in $(seq 1 6000); do echo $i >more-$i || break; done 2>$0/refused
    grep -c \"No space left on device\" $0/refused; md5sum -c sum
    rm more-* f1* big && echo removed; sleep 1; ls | wc -l
    rm $0/host/hog; head -c 4M /dev/urandom >again; sync again && stat -c %s again'
    $HOLDFAST pool check host/pool >/dev/null; echo check $?; run 'ls /hf | wc -l'; umount host";

fn full_memory(fixture: &Fixture) -> Result<(), Stop> {
    let ended = in_private_mounts(fixture, &format!("{MEMORY}{POOL}{WHILE_FULL}"))?;
    said_once(&ended, 0)?;
    expect(&ended, "1\nbig: OK\nremoved\n90\n4194304\ncheck 0\n91\n")
}

fn full_disk(fixture: &Fixture) -> Result<(), Stop> {
    fixture.need_root()?;
    let host = on_loop(".", 110, "");
    let ended = in_private_mounts(fixture, &format!("{host}{POOL}{WHILE_FULL}"))?;
    said_once(&ended, 0)?;
    expect(&ended, "1\nbig: OK\nremoved\n90\n4194304\ncheck 0\n91\n")
}

/// A service starts where there is no room at all, so that something can be removed.
fn full_before(fixture: &Fixture) -> Result<(), Stop> {
    let script = "run 'eval \"$FILES\"'; (eval \"${FILL/\\$0/$PWD}\")
        run 'cd /hf; md5sum -c sum; rm f1* big && echo removed; ls | wc -l'
        $HOLDFAST kv host/pool words put a 1 && $HOLDFAST kv host/pool words get a; echo
        $HOLDFAST pool check host/pool >/dev/null; echo check $?; umount host";
    let ended = in_private_mounts(fixture, &format!("{MEMORY}{POOL}{script}"))?;
    said_once(&ended, 0)?;
    expect(&ended, "big: OK\nremoved\n90\n1\ncheck 0\n")
}

/// Removing needs no memory that was not there before, however long the pool was at rest.
fn always_full(fixture: &Fixture) -> Result<(), Stop> {
    let script = "run 'eval \"$FILES\"; for d in $(seq 1 20); do mkdir d$d
            for i in $(seq 1 300); do echo $i >d$d/a-name-that-is-long-enough-$i; done; done
            sync .; sleep 1'
        while sleep 0.002; do cat /dev/zero >>host/hog; done 2>/dev/null & hog=$!
        while [ $(stat -fc %f host) -gt 0 ]; do sleep 0.1; done
        $HOLDFAST pool check host/pool >/dev/null; echo check $?
        run 'cd /hf; md5sum -c sum; rm -r d* f1* big && echo removed; ls | wc -l'
        $HOLDFAST pool check host/pool >/dev/null; echo check $?
        kill $hog; wait $hog; umount -l host";
    let ended = in_private_mounts(fixture, &format!("{MEMORY}{POOL}{script}"))?;
    said_once(&ended, 0)?;
    expect(&ended, "check 0\nbig: OK\nremoved\n90\ncheck 0\n")
}

/// What was synced before the disk failed is there; what is synced after fails.
fn failing_disk(fixture: &Fixture) -> Result<(), Stop> {
    fixture.need_root()?;
    let beneath = "mkdir beneath; mount -t tmpfs -o size=60m none beneath || exit 99\n";
    let host = on_loop("beneath", 200, "");
    let script = "run 'eval \"$FILES\"; dd if=/dev/zero of=$0/beneath/hog bs=4k 2>/dev/null
            head -c 20M /dev/urandom >more; sync more && echo acknowledged; true' 2>err
        rm beneath/hog; umount -l host
        for i in $(seq 1 50); do mount -o loop beneath/image again 2>/dev/null && break
            mkdir -p again; sleep 0.1; done
        $HOLDFAST pool check again/pool >/dev/null; echo check $?
        $HOLDFAST run --pool again/pool -- bash -c 'cd /hf; md5sum -c sum; cat f1; ls f* | wc -l'
        umount again beneath; grep -c panicked err";
    let ended = in_private_mounts(fixture, &format!("{beneath}{host}{POOL}{script}"))?;
    expect(&ended, "check 0\nbig: OK\n1\n200\n0\n")
}

/// The mount is gone; whoever has the pool open goes on, and what was synced is there.
fn gone_disk(fixture: &Fixture) -> Result<(), Stop> {
    fixture.need_root()?;
    let host = on_loop(".", 110, "");
    let script = "run 'eval \"$FILES\"; umount -l $0/host; echo late >late; sync late; cat late f2'
        $HOLDFAST pool status host/pool; echo status $?
        for i in $(seq 1 50); do losetup -j image | grep -q . || break; sleep 0.1; done
        mount -o loop image host && $HOLDFAST pool check host/pool >/dev/null; echo check $?
        run 'cd /hf; md5sum -c sum; cat late'; umount host";
    let ended = in_private_mounts(fixture, &format!("{host}{POOL}{script}"))?;
    said_once(&ended, 1)?;
    expect(&ended, "late\n2\nstatus 1\ncheck 0\nbig: OK\nlate\n")
}

fn no_barriers(fixture: &Fixture) -> Result<(), Stop> {
    fixture.need_root()?;
    let host = on_loop(".", 110, ",nobarrier");
    let script = "$HOLDFAST pool create host/pool --size 64M
        $HOLDFAST pool status host/pool | grep -c nobarrier; umount host";
    let ended = in_private_mounts(fixture, &format!("{host}{script}"))?;
    said_once(&ended, 1)?;
    if !ended.err.contains("nobarrier") {
        return wrong(format!("no warning: {}", ended.err.trim()));
    }
    let promise = "file: survives the death of processes, the loss of power perhaps not\n";
    expect(&ended, &format!("{promise}1\n"))
}

/// A copy that is not one moment is opened or refused in one sentence, and the pool is as it was.
fn copied_in_use(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let script = "cd /hf; (for i in $(seq 1 3000); do echo $i >n$i; mv n$i m$i; done) &
        for n in 1 2 3 4; do cp -a --sparse=always $0 $0-$n 2>/dev/null; done; wait; ls | wc -l";
    let ended = fixture.run(&pool, &["bash", "-c", script, &pool.to_string_lossy()])?;
    expect(&ended, "3003\n")?;
    for n in 1..5 {
        let copy = fixture.path(&format!("pool-{n}"));
        let ended = fixture.run(&copy, &["cat", "/hf/hello"])?;
        let opened = ended.code() == Some(0) && ended.out == "hello\n" || ended.out.is_empty();
        if !opened || ended.status.is_none_or(|status| status.code().is_none()) {
            return wrong(format!("copy {n}: {} {}", ended.how(), ended.err.trim()));
        }
        said_once(&ended, 2)?;
    }
    fixture.intact(&pool)
}
