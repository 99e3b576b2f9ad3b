//! How far long work is, on a terminal.
//!
//! Invariant: one line on standard error, only if that is a terminal, which is gone at the end.

use crate::size::Size;
use rustix::stdio::stderr;
use std::io::Write;
use std::time::{Duration, Instant};

/// The line is written again after so long.
const PERIOD: Duration = Duration::from_millis(200);

/// A line that is written again and again.
pub struct Line {
    what: &'static str,
    /// Bytes in all, about, if that is known.
    all: u64,
    begun: Instant,
    last: Option<Instant>,
    is_terminal: bool,
}

impl Line {
    /// Nothing is written yet.
    pub fn new(what: &'static str, all: u64) -> Line {
        Line {
            what,
            all,
            begun: Instant::now(),
            last: None,
            is_terminal: rustix::termios::isatty(stderr()),
        }
    }

    /// So many bytes are done.
    pub fn at(&mut self, bytes: u64) {
        let due = self.last.unwrap_or(self.begun).elapsed() >= PERIOD;
        if !self.is_terminal || !due {
            return;
        }
        self.last = Some(Instant::now());
        let rate = bytes as f64 / self.begun.elapsed().as_secs_f64();
        let part = match self.all {
            0 => String::new(),
            all => format!(" of about {}", Size(all)),
        };
        let (done, rate) = (Size(bytes), Size(rate as u64));
        let _ = write!(
            std::io::stderr(),
            "\r{}: {done}{part}, {rate}/s\x1b[K",
            self.what
        );
    }
}

impl Line {
    /// Something else is written next.
    pub fn clear(&mut self) {
        if self.last.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.clear();
    }
}
