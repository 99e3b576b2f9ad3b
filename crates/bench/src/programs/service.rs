//! The service of a pool, as seen from outside: its CPU time, and whether it works.
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

/// A process that serves a pool.
pub struct Service(PathBuf);

impl Service {
    /// The one that serves a pool now.
    pub fn of(pool: &Path) -> Result<Service> {
        let said = quiet(holdfast()?.args(["pool", "status", "--json"]).arg(pool))?;
        let status: Option<serde_json::Value> = serde_json::from_str(&said).ok();
        let pid = status.and_then(|status| status["service"].as_u64());
        match pid {
            None | Some(0) => Err(Error::Failed("no service runs".into())),
            Some(pid) => Ok(Service(PathBuf::from(format!("/proc/{pid}/task")))),
        }
    }

    /// The CPU time of all its threads.
    pub fn cpu(&self) -> Result<Duration> {
        let threads = fs::read_dir(&self.0).map_err(Error::io(self.0.display()))?;
        let mut sum = Duration::ZERO;
        for thread in threads {
            let path = thread.map_err(Error::io(self.0.display()))?.path();
            let said = fs::read_to_string(path.join("schedstat"));
            // A thread may end in between.
            let ran = said
                .ok()
                .and_then(|said| said.split(' ').next()?.parse().ok());
            sum += Duration::from_nanos(ran.unwrap_or(0));
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
