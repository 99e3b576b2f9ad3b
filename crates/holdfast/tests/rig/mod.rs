//! A pool in memory, with its service in a thread of the test.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use holdfast::Pool;
use holdfast_pool::format::superblock::Consistency;
use holdfast_service::{CreateOptions, Options, Service, Stopper};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A pool directory that is checked and removed in the end.
pub struct Rig {
    pub dir: PathBuf,
    service: Option<(Stopper, JoinHandle<holdfast_service::Result<()>>)>,
}

impl Rig {
    pub fn new(size: u64) -> Rig {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = PathBuf::from(format!("/dev/shm/hf-kv-{}-{n}", std::process::id()));
        let options = CreateOptions {
            size: Some(size),
            medium: None,
            consistency: Consistency::Posix,
        };
        holdfast_service::create(&dir, &options).unwrap();
        let mut rig = Rig { dir, service: None };
        rig.start();
        rig
    }

    pub fn start(&mut self) {
        let service = Service::open(&self.dir, Options::default()).unwrap();
        let stopper = service.stopper();
        self.service = Some((stopper, std::thread::spawn(move || service.run())));
    }

    pub fn stop(&mut self) {
        if let Some((stopper, thread)) = self.service.take() {
            stopper.stop();
            thread.join().unwrap().unwrap();
        }
    }

    pub fn open(&self) -> Pool {
        Pool::open(&self.dir).unwrap()
    }

    /// The pool, which no service has open, is without damage.
    pub fn check(&self) {
        let meta = std::fs::read(self.dir.join("meta.seg")).unwrap();
        let data = std::fs::metadata(self.dir.join("data-0.seg")).unwrap();
        let report = holdfast_pool::check::check(&&meta[..], data.len(), None);
        let damage: Vec<_> = report.damage().collect();
        assert!(damage.is_empty(), "{damage:?}");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
            self.check();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A reproducible source of numbers.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % sides
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.roll(256) as u8).collect()
    }
}
