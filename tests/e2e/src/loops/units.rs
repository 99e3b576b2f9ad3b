//! The units under this machine's systemd, in a virtual machine that starts, stops, and starts
//! again.
//!
//! Invariant: what a guest knows is in its initial memory disk and on its disk, and nothing of this
//! machine runs under its systemd.

use super::guest::{Guest, kernel};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use crate::process;
use std::fs::File;
use std::process::Command;

pub const CASES: &[(&str, Case)] = &[("units of systemd", units)];

const ROOT: &str = include_str!("units_root.sh");
const INIT: &str = include_str!("units_init.sh");
const JOB: &str = include_str!("units_job.sh");
const MEMORY: &str = "memory-backend-ram,id=memory,size=1G";
const DISK: [&str; 2] = ["-drive", "file=disk,if=virtio,format=raw"];
/// What is done in the first life, one after the other.
const STEPS: [&str; 5] = ["pool", "kept", "wrong", "socket", "last"];
const FIRST: [&str; 15] = [
    "state started active",
    "step pool",
    "state again 1",
    "found value",
    "state stopped inactive",
    "kept value",
    "step kept",
    "state wrong failed",
    "state wrong 0",
    "step wrong",
    "state listening inactive",
    "state connected active",
    "owner ada",
    "found two",
    "no socket",
];
/// The sum is that of what seq(1) prints up to 1000.
const SECOND: [&str; 8] = [
    "state started active",
    "53d025127ae99ab79e8502aae2d9bea6  -",
    "mode 600 ada",
    "found last",
    "found value",
    "of the user: active",
    "kept by the user",
    "kept own",
];

fn units(fixture: &Fixture) -> Result<(), Stop> {
    fixture.need_root()?;
    let kernel = kernel()?;
    let tools = [
        "qemu-system-x86_64",
        "busybox",
        "mke2fs",
        "ldd",
        "dpkg-query",
        "systemctl",
    ];
    if let Some(tool) = tools.iter().find(|tool| !process::on_path(tool)) {
        return Err(Stop::Skip(format!("needs {tool}")));
    }
    let installed = fixture.holdfast.ancestors().nth(2);
    let units = installed.filter(|prefix| prefix.join("lib/systemd/system").is_dir());
    let prefix = units.ok_or(Stop::Skip("needs units that are installed".into()))?;
    for (name, text) in [("units_root.sh", ROOT), ("init", INIT), ("job", JOB)] {
        std::fs::write(fixture.path(name), text)?;
    }
    let mut command = Command::new("bash");
    process::clean(&mut command, &fixture.dir);
    command.current_dir(&fixture.dir).arg("units_root.sh");
    command.arg(kernel).arg(prefix);
    let made = fixture.end_of(command)?;
    if made.code() != Some(0) {
        return wrong(format!("no disk for a guest: {}", made.err));
    }
    File::create(fixture.path("disk"))?.set_len(256 << 20)?;
    let mut guest = start(fixture, "first")?;
    for n in 1..=STEPS.len() {
        guest.await_lines("step", n)?;
    }
    says(&guest.to_its_end()?, &FIRST)?;
    says(&start(fixture, "second")?.to_its_end()?, &SECOND)
}

fn start(fixture: &Fixture, job: &str) -> Result<Guest, Stop> {
    Guest::start(fixture, (job, "rdinit=/init"), ("1G", MEMORY), &DISK)
}

/// A guest says these lines, in this order, among others.
fn says(said: &[String], wanted: &[&str]) -> Result<(), Stop> {
    let mut lines = said.iter();
    for line in wanted {
        if !lines.any(|said| said == line) {
            return wrong(format!(
                "the guest does not say {line:?} in its place: {said:?}"
            ));
        }
    }
    Ok(())
}
