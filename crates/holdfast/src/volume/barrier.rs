//! What a flush does to writes that others make at the same time.
//!
//! Invariant: reads wait for nobody.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What a flush does to writes that are being made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Barrier {
    /// `plain`: nothing. It covers those that were complete when it began.
    #[default]
    Plain,
    /// `strict`: it waits for all that were begun, covers them, and those that come wait for it, as
    /// PMBD's barrier does.
    Strict,
}

impl Barrier {
    /// Both.
    pub const ALL: [Barrier; 2] = [Barrier::Plain, Barrier::Strict];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Barrier::Plain => "plain",
            Barrier::Strict => "strict",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Barrier> {
        Barrier::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// Of a volume.
#[derive(Default)]
pub(super) struct Gate {
    strict: AtomicBool,
    lock: RwLock<()>,
}

impl Gate {
    pub fn set(&self, barrier: Barrier) {
        self.strict.store(barrier == Barrier::Strict, Relaxed);
    }

    /// For a change of the volume, as long as it is held.
    #[inline]
    pub fn change(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let shared = || self.lock.read().unwrap_or_else(|e| e.into_inner());
        self.strict.load(Relaxed).then(shared)
    }

    /// For a flush.
    pub fn flush(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        let alone = || self.lock.write().unwrap_or_else(|e| e.into_inner());
        self.strict.load(Relaxed).then(alone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Whether `take` gets what it wants while the gate is as it is.
    fn comes(take: impl FnOnce() + Send, then: impl FnOnce()) -> bool {
        let (done, wait) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                take();
                let _ = done.send(());
            });
            let came = wait.recv_timeout(Duration::from_millis(100)).is_ok();
            then();
            came
        })
    }

    #[test]
    fn a_strict_flush_and_changes_wait_for_each_other() {
        for barrier in Barrier::ALL {
            let gate = Gate::default();
            gate.set(barrier);
            let plain = barrier == Barrier::Plain;
            let change = gate.change();
            assert!(comes(|| drop(gate.change()), || ()));
            assert_eq!(comes(|| drop(gate.flush()), || drop(change)), plain);
            let flush = gate.flush();
            assert_eq!(comes(|| drop(gate.change()), || drop(flush)), plain);
        }
    }
}
