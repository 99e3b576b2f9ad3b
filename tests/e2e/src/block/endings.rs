//! How exports end.
//!
//! Invariant: afterwards the volume is free, whatever clients do, and nothing of the export runs.

use super::{Exporter, client, export, needs, pool_with_volume, raw, wait_until};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use crate::process;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

pub const CASES: &[(&str, Case)] = &[
    ("nbd ends by signals", signals),
    ("nbd ends with its exporter", killed),
    ("nbd says that its server has died", server_dies),
    ("nbd says that nbdkit is missing", no_nbdkit),
];

fn is_gone(pid: Pid) -> bool {
    test_kill_process(pid).is_err()
}

/// Also with clients: one that asks for nothing, and one that is half-way through a request.
fn signals(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdinfo"])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut exporter = export(fixture, &pool, "disk", "s", &[])?;
        let server = exporter.server()?;
        let idle = raw::Client::connect(&exporter.socket)?;
        let mut amid = raw::Client::connect(&exporter.socket)?;
        amid.send_part_of_a_write()?;
        exporter.signal(signal)?;
        let status = exporter.wait()?;
        if status.code() != Some(0) || exporter.socket.exists() || !is_gone(server) {
            return wrong(format!("{signal:?}: {status}: {}", exporter.said()));
        }
        drop((idle, amid));
        // Who has two signals to send sends them fast.
        let exporter = export(fixture, &pool, "disk", "s", &[])?;
        exporter.signal(signal)?;
        exporter.end()?;
    }
    Ok(())
}

fn killed(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdinfo"])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    for _ in 0..5 {
        let mut exporter = export(fixture, &pool, "disk", "s", &[])?;
        let server = exporter.server()?;
        let _idle = raw::Client::connect(&exporter.socket)?;
        exporter.kill()?;
        wait_until("the server ends", || is_gone(server))?;
        // The socket is still there, and nobody listens on it.
        if !exporter.socket.exists() {
            return wrong("who has removed the socket?");
        }
        let exporter = export(fixture, &pool, "disk", "s", &[])?;
        client(fixture, "nbdinfo", &[&exporter.uri])?;
        exporter.end()?;
    }
    Ok(())
}

fn server_dies(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &[])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let mut exporter = export(fixture, &pool, "disk", "s", &[])?;
    kill_process(exporter.server()?, Signal::KILL).map_err(std::io::Error::from)?;
    let status = exporter.wait()?;
    let said = exporter.said();
    let sentence = said.starts_with("holdfast: nbdkit has ended") && said.lines().count() == 1;
    if status.code() != Some(1) || !sentence || exporter.socket.exists() {
        return wrong(format!("{status}: {said}"));
    }
    export(fixture, &pool, "disk", "s", &[])?.end()
}

/// Without it on the PATH, which the test cannot take from /usr/sbin.
fn no_nbdkit(fixture: &Fixture) -> Result<(), Stop> {
    if std::path::Path::new("/usr/sbin/nbdkit").exists() {
        return Err(Stop::Skip("nbdkit is in /usr/sbin".into()));
    }
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let address = format!("unix:{}", fixture.path("s").display());
    let mut command = std::process::Command::new("env");
    command.arg("PATH=/nowhere").arg(&fixture.holdfast);
    command.args(["export", &pool, "disk", "--nbd", &address]);
    let ended: process::Ended = fixture.end_of(command)?;
    crate::bad_input::refusal(&ended, &[1]).map_err(Stop::Wrong)?;
    match ended.err.ends_with("\nFix: apt-get install nbdkit\n") {
        true => Ok(()),
        false => wrong(ended.err),
    }
}

impl Exporter {
    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}
