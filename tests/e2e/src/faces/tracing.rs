//! `holdfast run --trace`: what it writes down is what strace shows of the same program on tmpfs.

use super::{expect, new_pool, repository, script};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use std::fs;
use std::process::Command;

pub const CASES: &[(&str, Case)] = &[
    ("trace as strace", as_strace),
    ("trace of several programs", several),
    ("trace filters", filters),
    ("trace without a reader", without_reader),
    ("trace refusals", refusals),
];

/// Walks of `calls.c`: `FIRST COUNT CALLS`.
const WALKS: &str = "1 40 300";

/// The same walk twice: below strace on the host's memory, and on the pool.
const WALK: &str = r#"
gcc -O1 -w -o walks "$calls"
mkdir host
(cd host && strace -f -ttt -T -o ../theirs ../walks $walks >../said)
"$hf" run --pool "$pool" --trace="$PWD/ours" --report counts -- \
    bash -c 'mkdir /hf/host; cd /hf/host; exec "$0" '"$walks" "$PWD/walks" >said.pool
cmp said said.pool
chmod -R u+rwX host; rm -rf host; pwd
"#;

fn as_strace(fixture: &Fixture) -> Result<(), Stop> {
    for program in ["strace", "gcc"] {
        if Command::new(program).arg("--version").output().is_err() {
            return Err(Stop::Skip(format!("{program} is not installed")));
        }
    }
    let pool = new_pool(fixture, "pool")?;
    let calls = repository("tests/programs/calls.c")?;
    let text = format!("calls={}\nwalks='{WALKS}'\n{WALK}", calls.display());
    let at = script(fixture, &pool, &text)?;
    let read = |name| {
        let bytes = fs::read(fixture.path(name)).map_err(|e| Stop::Wrong(e.to_string()))?;
        Ok::<_, Stop>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (theirs, ours) = (read("theirs")?, read("ours")?);
    let theirs = lines_of_walk(&theirs, at.trim());
    let ours = lines_of_walk(&ours, "/hf");
    if ours.len() < 10_000 {
        return wrong(format!("only {} calls were written down", ours.len()));
    }
    // Of calls on what the pool does not have, strace alone knows.
    let (mut from, mut missing) = (0, Vec::new());
    for line in &ours {
        // One that a signal ended has its result in another line of strace.
        let is_it = |theirs: &String| match theirs.contains(") = ") {
            true => theirs == line,
            false => line.starts_with(theirs),
        };
        match theirs[from..].iter().take(NEAR).position(is_it) {
            Some(at) => from += at + 1,
            None => missing.push(line.as_str()),
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => wrong(format!(
            "{} lines are not strace's: {}",
            missing.len(),
            missing[..missing.len().min(5)].join("\n")
        )),
    }
}

/// So many calls of a walk may concern no pool, one after the other.
const NEAR: usize = 2000;

/// What strace shows in another way: names of requests and of file systems, structures of another
/// size; what it knows since later versions, and what the two file systems answer differently.
const NOT_COMPARED: [&str; 6] = [
    "ioctl(",
    "statfs(",
    "fstatfs(",
    "fchmodat2(",
    "syscall_0x",
    "getcwd(",
];

/// The calls from the walk's beginning on, without what no two runs have in common.
fn lines_of_walk(text: &str, at: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        // Thread and time.
        let Some(call) = line.split_whitespace().nth(2) else {
            continue;
        };
        let from = line.find(call).unwrap_or(0);
        if call.starts_with("execve(") {
            lines.clear();
        } else if NOT_COMPARED.iter().all(|name| !call.starts_with(name)) && is_compared(line) {
            lines.push(without_accidents(&line[from..], at));
        }
    }
    lines
}

fn is_compared(line: &str) -> bool {
    let has_arguments = !line.contains(" resumed>") && !line.contains(" --- ");
    // Of more buffers than there are, what happens to lie behind them.
    let is_long = line.matches("iov_base").count() > 3;
    let of_other_size = line.contains(" openat2(") && !line.contains("}, 24)");
    // strace reads no value that is too long.
    let is_too_long = line.contains("setxattr(") && line.contains(" E2BIG ");
    has_arguments && !is_long && !is_too_long && !of_other_size && !line.contains("_SEALS")
}

fn without_accidents(call: &str, at: &str) -> String {
    let call = call.replace(&format!("\"{at}/"), "\"AT/");
    let mut out = String::new();
    let mut rest = call.as_str();
    // Addresses; sizes of directories; what was filled of statx; dates that strace adds.
    while let Some(first) = rest.chars().next() {
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_hexdigit).count();
        let is_date = |text: &str| {
            text.as_bytes()
                .get(3..8)
                .is_some_and(|d| d[0].is_ascii_digit() && d[4] == b'-')
        };
        if let Some(hex) = rest.strip_prefix("0x").filter(|hex| digits(hex) > 4) {
            out.push_str("ADDRESS");
            rest = &hex[digits(hex)..];
        } else if let Some(mask) = rest.strip_prefix("stx_mask=") {
            rest = &mask[mask.find(',').unwrap_or(0)..];
        } else if rest.starts_with(" /* ") && is_date(&rest[1..]) {
            rest = &rest[rest.find("*/").map_or(rest.len(), |end| end + 2)..];
        } else if let Some(size) = rest
            .strip_prefix("_size=")
            .filter(|_| out.contains("S_IFDIR|"))
        {
            rest = &size[digits(size)..];
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    // How long it took, and how far results are to the right.
    let end = out.rfind(" <").unwrap_or(out.len());
    out.truncate(end);
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn several(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#"
"$hf" run --pool "$pool" --trace=one -- \
    sh -c 'cat </dev/null >/hf/a; (cat /hf/a; cp /bin/true /hf/t; /hf/t; exit 3)' || echo $?
# Every line is whole, and has been there once.
grep -vcE '^[0-9]+ +[0-9]+\.[0-9]{6} [a-z0-9_]+\(.*\) += .*' one || true
grep -c 'execve("/hf/t", \["/hf/t"\]' one
grep -o 'openat(AT_FDCWD, "/hf/a", [A-Z_|]*' one | sort
# The lines of many programs do not mix, and what is there is overwritten.
"$hf" run --pool "$pool" --trace=one --trace-filter mkdir,rmdir -- bash -c '
    for n in 1 2 3 4; do
        (for m in $(seq 50); do mkdir /hf/$n$m; rmdir /hf/$n$m; done) &
    done; wait'
grep -cE '^[0-9]+ +[0-9.]+ (mkdir\("/hf/[0-9]+", 0777\)|rmdir\("/hf/[0-9]+"\)) += 0 <[0-9.]+>$' one
wc -l <one
# Standard error, and the program's own lines there.
"$hf" run --pool "$pool" --trace --trace-filter unlinkat -- \
    sh -c 'rm /hf/t; echo said >&2' 2>&1 | sed -E 's/^[0-9]+ +[0-9.]+ //; s/ <.*//; s/ +=/ =/'
"#;
    let out = script(fixture, &pool, text)?;
    let wanted = "3\n0\n1\nopenat(AT_FDCWD, \"/hf/a\", O_RDONLY\n\
        openat(AT_FDCWD, \"/hf/a\", O_WRONLY|O_CREAT|O_TRUNC\n400\n400\n\
        unlinkat(AT_FDCWD, \"/hf/t\", 0) = 0\nsaid\n";
    expect("traces of several programs", &out, wanted)
}

fn filters(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#"
traced() { "$hf" run --pool "$pool" --trace=t --trace-filter "$1" -- python3 -c '
import fcntl, os
fd = os.open("/hf/f", os.O_CREAT | os.O_RDWR)
os.write(fd, b"bytes"); os.lseek(fd, 0, 0)
try: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
except OSError as e: print(e.errno)
try: os.open("/hf/none", os.O_RDONLY)
except OSError as e: print(e.errno)
os.close(fd); os.open("/dev/null", os.O_RDONLY); os.rename("/hf/f", "/hf/g")
' >/dev/null; sed -E 's/^[0-9]+ +[0-9.]+ //; s/ <[0-9.]+>$//; s/ +=/ =/' t; echo; }
traced openat,write,rename
traced '%file,failed'
traced refused
traced '!%desc,execve,exit_group,stat,lstat,readlink,mmap,munmap'
traced openat,passed | grep -E 'none|null'
"#;
    let out = script(fixture, &pool, text)?;
    let none = "openat(AT_FDCWD, \"/hf/none\", O_RDONLY|O_CLOEXEC) = \
        -1 ENOENT (No such file or directory)\n";
    let rename = "rename(\"/hf/f\", \"/hf/g\") = 0\n";
    let wanted = format!(
        "openat(AT_FDCWD, \"/hf/f\", O_RDWR|O_CREAT|O_CLOEXEC, 0777) = 3\n\
        write(3, \"bytes\", 5) = 5\n{none}{rename}\n\
        {none}\n\
        fcntl(3, F_SETLEASE, F_WRLCK) = -1 EINVAL (Invalid argument) (leases and directory \
        notification are not supported on pool files)\n\n\
        {rename}\n\
        {none}openat(AT_FDCWD, \"/dev/null\", O_RDONLY|O_CLOEXEC) = ? (left to the kernel)\n"
    );
    expect("filtered traces", &out, &wanted)
}

/// A program goes on, and still gets a SIGPIPE of its own, when nobody reads its trace any more.
fn without_reader(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let text = r#"
mkfifo lines
head -n 1 <lines >first & reader=$!
"$hf" run --pool "$pool" --trace=lines -- bash -c '
    for n in $(seq 300); do echo $n >>/hf/f; done; wc -l </hf/f
    { sleep 0.1; /bin/echo gone; echo ${PIPESTATUS[0]} >/hf/status; } | true
    cat /hf/status'
wait $reader; wc -l <first
"$hf" run --pool "$pool" --trace=/dev/full -- sh -c 'echo kept >/hf/f; cat /hf/f'
"#;
    let out = script(fixture, &pool, text)?;
    expect("traces without a reader", &out, "300\n141\n1\nkept\n")
}

fn refusals(fixture: &Fixture) -> Result<(), Stop> {
    let pool = new_pool(fixture, "pool")?;
    let run = |args: &[&str]| {
        let mut all = vec!["run", "--pool", &pool];
        all.extend(args);
        all.extend(["--", "true"]);
        all.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>()
    };
    fixture.refused(&run(&["--trace=/none/file"]), &[125])?;
    fixture.refused(&run(&["--trace", "--trace-filter", "opne"]), &[2])?;
    fixture.refused(&run(&["--trace-filter", "open"]), &[2])?;
    fixture.refused(
        &["run", "--no-pool", "--map", "--trace", "--", "true"],
        &[2],
    )?;
    let holdfast = fixture.holdfast.to_string_lossy();
    let inner = [&holdfast, "run", "--pool", &pool, "--trace"];
    let mut args = vec!["run", "--pool", &pool, "--"];
    args.extend(inner.iter().map(|arg| &**arg));
    args.extend(["--", "true"]);
    fixture.refused(&args, &[125])
}
