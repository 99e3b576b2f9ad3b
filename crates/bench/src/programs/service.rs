//! The service of a pool, with the proxies of other users, as seen from outside: its CPU time, and
//! whether it works.
//!
//! Invariant: a service that ends or begins while it is watched is an error of the row, never a
//! figure.

use crate::error::{Error, Result};
use crate::peers::{holdfast, quiet};
use nix::time::ClockId;
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often it is looked at, and how little it does in between when it is idle.
const STEP: Duration = Duration::from_millis(50);
const IDLE: Duration = Duration::from_micros(500);
/// A service that never rests is measured while it works.
const PATIENCE: Duration = Duration::from_secs(3);

/// A process that serves a pool, and those that it started.
pub struct Service(i32);

impl Service {
    /// The one that serves a pool now.
    pub fn of(pool: &Path) -> Result<Service> {
        let said = quiet(holdfast()?.args(["pool", "status", "--json"]).arg(pool))?;
        let status: Option<serde_json::Value> = serde_json::from_str(&said).ok();
        let pid = status.and_then(|status| status["service"].as_i64()?.try_into().ok());
        match pid {
            None | Some(0) => Err(Error::Failed("no service runs".into())),
            Some(pid) => Ok(Service(pid)),
        }
    }

    /// The CPU time of it and of its children, with that of threads that have ended.
    pub fn cpu(&self) -> Result<Duration> {
        let own = ran(self.0).map_err(Error::io("the service's clock"))?;
        let children = children(self.0)?;
        // One may end in between.
        let theirs = children.into_iter().filter_map(|child| ran(child).ok());
        Ok(own + theirs.sum::<Duration>())
    }

    /// Waits until it rests; its CPU time then.
    pub fn rest(&self) -> Result<Duration> {
        let start = Instant::now();
        let mut last = self.cpu()?;
        loop {
            std::thread::sleep(STEP);
            let now = self.cpu()?;
            // A child that ended takes its time with it.
            let rests = now.checked_sub(last).is_some_and(|ran| ran < IDLE);
            if rests || start.elapsed() > PATIENCE {
                return Ok(now);
            }
            last = now;
        }
    }
}

fn children(process: i32) -> Result<Vec<i32>> {
    let tasks = PathBuf::from(format!("/proc/{process}/task"));
    let list = fs::read_dir(&tasks).map_err(Error::io(tasks.display()))?;
    let mut all = Vec::new();
    for thread in list {
        let thread = thread.map_err(Error::io(tasks.display()))?.path();
        let children = fs::read_to_string(thread.join("children")).unwrap_or_default();
        all.extend(
            children
                .split_whitespace()
                .filter_map(|pid| pid.parse::<i32>().ok()),
        );
    }
    Ok(all)
}

fn ran(process: i32) -> std::io::Result<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(process))?;
    Ok(clock.now()?.into())
}
