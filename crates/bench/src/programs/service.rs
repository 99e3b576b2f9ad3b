//! The service of a pool, with the proxies of other users, as seen from outside: its CPU time, and
//! whether it works.
//!
//! Invariant: a service that ends or begins while it is watched is an error of the row, never a
//! figure.

use crate::error::{Error, Result};
use crate::peers::{holdfast, quiet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often it is looked at, and how little it does in between when it is idle.
const STEP: Duration = Duration::from_millis(50);
const IDLE: Duration = Duration::from_micros(500);
/// A service that never rests is measured while it works.
const PATIENCE: Duration = Duration::from_secs(3);

/// A process that serves a pool, and those that it started.
pub struct Service(u64);

impl Service {
    /// The one that serves a pool now.
    pub fn of(pool: &Path) -> Result<Service> {
        let said = quiet(holdfast()?.args(["pool", "status", "--json"]).arg(pool))?;
        let status: Option<serde_json::Value> = serde_json::from_str(&said).ok();
        let pid = status.and_then(|status| status["service"].as_u64());
        match pid {
            None | Some(0) => Err(Error::Failed("no service runs".into())),
            Some(pid) => Ok(Service(pid)),
        }
    }

    /// The CPU time of all its threads, and of its children's.
    pub fn cpu(&self) -> Result<Duration> {
        let mut sum = Duration::ZERO;
        for thread in threads(self.0)? {
            sum += ran(&thread);
            let children = fs::read_to_string(thread.join("children")).unwrap_or_default();
            for child in children
                .split_whitespace()
                .filter_map(|pid| pid.parse().ok())
            {
                // It may end in between.
                let threads = threads(child).unwrap_or_default();
                sum += threads.iter().map(|thread| ran(thread)).sum();
            }
        }
        Ok(sum)
    }

    /// Waits until it rests; its CPU time then.
    pub fn rest(&self) -> Result<Duration> {
        let start = Instant::now();
        let mut last = self.cpu()?;
        loop {
            std::thread::sleep(STEP);
            let now = self.cpu()?;
            if now.saturating_sub(last) < IDLE || start.elapsed() > PATIENCE {
                return Ok(now);
            }
            last = now;
        }
    }
}

fn threads(process: u64) -> Result<Vec<PathBuf>> {
    let tasks = PathBuf::from(format!("/proc/{process}/task"));
    let list = fs::read_dir(&tasks).map_err(Error::io(tasks.display()))?;
    list.map(|thread| Ok(thread.map_err(Error::io(tasks.display()))?.path()))
        .collect()
}

/// A thread may end in between.
fn ran(thread: &Path) -> Duration {
    let said = fs::read_to_string(thread.join("schedstat")).ok();
    let ran = said.and_then(|said| said.split(' ').next()?.parse().ok());
    Duration::from_nanos(ran.unwrap_or(0))
}
