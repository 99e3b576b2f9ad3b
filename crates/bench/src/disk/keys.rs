//! Keyspaces and other embedded stores on the same disk, each with its own way to sync.
//!
//! Invariants: the program of `bench kv` measures; all stores hold the same pairs before they are
//! measured; a store that the program lacks is skipped by name.

use super::device::word;
use super::rows::{Kind, STORES, SUBJECT};
use super::{Run, site};
use crate::error::Result;
use crate::kv;
use crate::link::Worker;
use crate::peers::quiet;
use std::path::PathBuf;
use std::process::Command;

/// Pairs that each store holds, and bytes of a value.
const KEYS: usize = 100_000;
const VALUE: usize = 100;

/// Who is measured, and by what program.
pub struct Stores {
    program: PathBuf,
    names: Vec<&'static str>,
}

impl Run<'_> {
    /// What can be measured here; nothing where no row of keys is wanted.
    pub fn stores(&mut self) -> Option<Stores> {
        if self.wanted(Kind::Keys).is_empty() {
            return None;
        }
        let known = kv::program().and_then(|program| {
            let names = quiet(Command::new(&program).arg("peers"))?;
            Ok((program, names))
        });
        let (program, known) = match known {
            Ok(known) => known,
            Err(error) => {
                let fix = error
                    .fix()
                    .map(|fix| format!("; {fix}"))
                    .unwrap_or_default();
                self.sheet
                    .skipped
                    .push(("stores".into(), format!("{error}{fix}")));
                return None;
            }
        };
        let mut names = Vec::new();
        for name in [SUBJECT].into_iter().chain(STORES) {
            if !known.lines().any(|line| line == name) {
                self.sheet
                    .skipped
                    .push((name.into(), "not built in".into()));
            } else if self.options.wants_peer(name, false) {
                names.push(name);
            }
        }
        for name in names.iter().filter(|name| **name != SUBJECT) {
            self.sheet.peers.push((*name).into());
        }
        Some(Stores { program, names })
    }

    pub fn keys(&mut self, stores: &Stores) {
        let mut workers = Vec::new();
        for name in &stores.names {
            match self.worker(stores, name) {
                Ok(worker) => workers.push((*name, worker)),
                Err(error) => self.failed("the load", name, &error),
            }
        }
        for row in self.wanted(Kind::Keys) {
            let n = workers.len().max(1);
            workers.rotate_left((1 + self.round) % n);
            for (name, worker) in &mut workers {
                let dir = self.site.base.join(format!("store-{name}"));
                self.measure(row, name, Some(&dir), worker);
            }
        }
        for (name, worker) in workers {
            if let Err(error) = worker.end() {
                self.failed("the end", name, &error);
            }
        }
    }

    fn worker(&self, stores: &Stores, name: &str) -> Result<Worker> {
        self.say("load", name);
        let quick = self.options.quick;
        let keys = if quick { KEYS / 20 } else { KEYS };
        let mut command = Command::new(&stores.program);
        command.args(["disk", name]);
        command.arg(self.site.base.join(format!("store-{name}")));
        command.args([keys.to_string(), VALUE.to_string()]);
        command.arg(if quick { "quick" } else { "full" });
        command.arg(crate::paths::holdfast()?);
        command.arg(word(&self.site.counter));
        let log = self.site.base.join(format!("store-{name}.log"));
        let mut worker = Worker::start(command, log, site::PATIENCE)?;
        worker.ask("load")?;
        Ok(worker)
    }
}
