//! `holdfast run --no-pool`: a program whose mappings are sped up, without a pool.
//!
//! Invariants: those of `run`; no directory is made or looked at and no service started, and
//! nothing is left when the program has ended. What is counted is in memory that goes with this
//! process.

use crate::args::RunArgs;
use crate::environment;
use crate::failure::Failure;
use crate::program::{self, Seen};
use crate::report::{Counts, ReportFile};
use crate::run::{code_of, wait_for};
use crate::signals::Signals;
use holdfast_client::env::SessionEnv;
use holdfast_client::map_record::{COUNT, MAGIC, MapRecord, NAME, RecordAt};
use holdfast_pmem::SharedMem;
use rustix::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;

/// `run --no-pool`.
pub fn run(args: &RunArgs) -> Result<u8, Failure> {
    let Some(map) = args.map else {
        return Err(
            Failure::new("without a pool and without --map there is nothing to do")
                .fix("add --map, or leave out --no-pool"),
        );
    };
    let library = environment::library()?;
    let report = args.report.as_deref().map(ReportFile::create).transpose()?;
    let record = Record::create(COUNT)?;
    let signals = Signals::to_hand_on()?;
    let at = args.record.unwrap_or(record.at());
    let env = SessionEnv::of_no_pool(map, at);
    let mut command = program::named(&args.program, Command::new)?;
    program::warn_if_uninstrumented(&args.program[0], Seen::Mappings);
    environment::instrument(&mut command, &library, &env)?;
    let mut child = crate::signals::open_for_a_child(|| command.spawn())
        .map_err(|e| program::not_started(&args.program[0], &e))?;
    let status = wait_for(&mut child, signals)?;
    if let Some(report) = report {
        let counts = Counts::of_mappings(record.get()?.mapping());
        report.write(&counts, args.program[0].as_os_str())?;
    }
    Ok(code_of(status))
}

/// What the programs of a run count in.
pub struct Record {
    fd: OwnedFd,
    memory: SharedMem,
}

impl Record {
    /// With all sums 0; `watch` says what is counted.
    pub fn create(watch: u64) -> Result<Record, Failure> {
        let made = SharedMem::create_memfd(NAME, size_of::<MapRecord>());
        let (fd, memory) = made.map_err(|e| Failure::new(e.to_string()))?;
        let record = Record { fd, memory };
        record.get()?.watch.store(watch, Relaxed);
        record.get()?.magic.store(MAGIC, Relaxed);
        Ok(record)
    }

    /// Where the programs find it while this process lives.
    pub fn at(&self) -> RecordAt {
        RecordAt {
            pid: std::process::id(),
            fd: self.fd.as_raw_fd().unsigned_abs(),
        }
    }

    /// The sums.
    pub fn get(&self) -> Result<&MapRecord, Failure> {
        let record = self.memory.at(0);
        record.ok_or_else(|| Failure::new("the record of mappings is too short"))
    }
}
