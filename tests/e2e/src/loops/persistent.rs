//! Pools on persistent memory, which a guest of QEMU has: a part of its memory, in a file of ours,
//! is a device on which the kernel makes ext4 with DAX. Its processor has protection keys.
//!
//! Invariant: what a guest said is durable is judged by a guest that boots after it was killed.

use super::guest::{ENOUGH, Guest, kernel};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use crate::process::on_path;
use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

pub const CASES: &[(&str, Case)] = &[
    ("a pool on persistent memory", pool),
    ("mappings of persistent memory", mappings),
];

const INIT: &str = include_str!("persistent.sh");
/// What of the memory is persistent: so much of it, from there on.
const PERSISTENT: &str = "memmap=256M!512M";
const MEMORY: &str = "memory-backend-file,id=memory,size=1G,mem-path=memory,share=on";

fn boot(fixture: &Fixture, job: &str) -> Result<Guest, Stop> {
    Guest::start(fixture, (job, PERSISTENT), ("1G", MEMORY), &[])
}

/// The initial memory disk: what is installed, some programs that see pools, and what `more` adds.
fn prepare(fixture: &Fixture, more: &str) -> Result<(), Stop> {
    let kernel = kernel()?;
    let tools = ["qemu-system-x86_64", "busybox", "mke2fs", "ldd", "dash"];
    if let Some(tool) = tools.into_iter().find(|tool| !on_path(tool)) {
        return Err(Stop::Skip(format!("needs {tool}")));
    }
    if !kernel.join("nd_e820.ko").exists() {
        return Err(Stop::Skip(
            "the kernel for guests has no persistent memory".into(),
        ));
    }
    let root = fixture.path("root");
    std::fs::create_dir_all(&root)?;
    std::fs::write(root.join("init"), INIT)?;
    std::fs::set_permissions(root.join("init"), PermissionsExt::from_mode(0o755))?;
    let script = format!(
        r#"cd root; mkdir bin proc sys dev mnt modules tools
        cp {kernel}/*.ko modules; cp $(command -v busybox) bin/busybox
        cp {holdfast} $(dirname {holdfast})/../lib/libholdfast_preload.so tools
        for program in mke2fs dash dd seq md5sum mkdir; do cp $(command -v $program) tools; done
        {more}
        libraries=$(ldd tools/* | awk '/=> [/]/ {{ print $3 }} /^[ \t]*[/].*[(]/ {{ print $1 }}')
        for library in $libraries; do
            mkdir -p .$(dirname $library); cp $library .$library
        done
        find . | busybox cpio -o -H newc >../initrd 2>/dev/null"#,
        kernel = kernel.display(),
        holdfast = fixture.holdfast.display(),
    );
    bash(fixture, &script).map(drop)
}

/// A script in the case's directory, where the first failure ends it; what it said.
fn bash(fixture: &Fixture, script: &str) -> Result<String, Stop> {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]);
    let ended = fixture.end_of(command)?;
    match ended.code() {
        Some(0) => Ok(ended.out),
        _ => wrong(format!("{}: {}", ended.how(), ended.tail().join("; "))),
    }
}

/// Random calls on mappings of files of a DAX file system say the same with the mapping cache and
/// map-ahead as without them, and on files of a pool there as on the file system itself.
fn mappings(fixture: &Fixture) -> Result<(), Stop> {
    if !on_path("gcc") {
        return Err(Stop::Skip("gcc is not installed".into()));
    }
    let source = crate::faces::repository("tests/programs/mapping-ops.c")?;
    prepare(
        fixture,
        &format!("gcc -O1 -w -o tools/mapping-ops {}", source.display()),
    )?;
    let said = boot(fixture, "map")?.to_its_end()?;
    for line in ["mapped same", "pool same"] {
        if !said.iter().any(|found| found == line) {
            return wrong(format!("the guest does not say {line:?}: {said:?}"));
        }
    }
    let hits = said.iter().find_map(|line| line.strip_prefix("hits "));
    match hits.and_then(|hits| hits.parse::<u64>().ok()) {
        Some(50..) => Ok(()),
        _ => wrong(format!("mappings were not handed out again: {said:?}")),
    }
}

fn pool(fixture: &Fixture) -> Result<(), Stop> {
    prepare(fixture, "")?;
    let mut guest = boot(fixture, "fill")?;
    guest.await_lines("durable", ENOUGH)?;
    guest.kill()?;
    let durable = guest.await_lines("durable", ENOUGH)?;
    let pokes = guest.await_lines("poke", 8)?;
    let wanted = [
        "none 1",
        "pt 0 pt",
        "pt-batch 0 pt-batch",
        "pmap 0 pmap",
        "pmap-cache 0 pmap-cache",
        "fd 0 fd",
        "pkey 0 pkey",
        "auto 0 pkey",
    ];
    if pokes != wanted {
        return wrong(format!("stray stores: {pokes:?}"));
    }
    let said = boot(fixture, "check")?.to_its_end()?;
    let found: HashSet<String> = said.iter().map(|line| line.replace('\t', " ")).collect();
    for line in ["medium       dax", "check 0"] {
        if !found.contains(line) {
            return wrong(format!("the next guest does not say {line:?}: {said:?}"));
        }
    }
    for number in &durable {
        let sum = bash(
            fixture,
            &format!("seq {number} $(({number} + 3000)) | md5sum"),
        )?;
        let pair = format!("pair {number} value {number}");
        if !found.contains(&format!("file {number} {}", sum.trim())) || !found.contains(&pair) {
            return wrong(format!(
                "the next guest does not find what is called {number}"
            ));
        }
    }
    Ok(())
}
