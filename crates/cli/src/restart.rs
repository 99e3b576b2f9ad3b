//! When a service that died is started again, and what is said about it.
//!
//! Invariants: the first attempt is made at once, further ones after pauses that double up to
//! `PAUSE_MAX`, as long as the program runs, because the cause may go away. The same sentence is
//! printed once.

use crate::failure::{self, Failure};
use crate::start;
use std::path::Path;
use std::time::{Duration, Instant};

const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// With pauses as long as this there is something wrong with the pool, and not with one service.
const PAUSE_TELLING: Duration = Duration::from_millis(400);
/// A service that lived for so long did its work.
const LONG: Duration = Duration::from_secs(1);

/// What happened to the services of one run.
#[derive(Debug)]
pub struct Restarts {
    pause: Duration,
    since: Instant,
    due: Option<Instant>,
    said: String,
}

impl Restarts {
    /// There is a service.
    pub fn new() -> Restarts {
        Restarts {
            pause: Duration::ZERO,
            since: Instant::now(),
            due: None,
            said: String::new(),
        }
    }

    /// How long until the next attempt; `None`: a service is there.
    pub fn wait(&self) -> Option<Duration> {
        Some(self.due?.saturating_duration_since(Instant::now()))
    }

    /// The service of the pool is gone.
    pub fn lost(&mut self, pool: &Path) {
        if self.since.elapsed() > LONG {
            (self.pause, self.said) = (Duration::ZERO, String::new());
        } else if self.pause >= PAUSE_TELLING {
            self.say(start::ended_again(pool));
        }
        self.put_off();
    }

    /// A new one is there.
    pub fn found(&mut self) {
        (self.since, self.due) = (Instant::now(), None);
    }

    /// There is none, because of this.
    pub fn failed(&mut self, why: Failure) {
        self.say(why);
        self.put_off();
    }

    fn put_off(&mut self) {
        self.due = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
    }

    fn say(&mut self, why: Failure) {
        let why = why.to_string();
        if why != self.said {
            failure::say(&why);
            self.said = why;
        }
    }
}
