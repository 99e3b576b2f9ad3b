//! Writeback: what session memory alone has about files that stay open is journaled every few
//! seconds, so that a loss of power, or the death of all processes at once, loses the last seconds
//! only.
//!
//! Only a client may journal it, under the locks of the inodes. So a helper is started for it: an
//! ordinary client in a separate process, which ends when it has finished. Another one removes what
//! has expired.
//!
//! Invariants:
//!  * A helper is started `AFTER` an inode became dirty, and when values have expired, and none
//!    while one is running.
//!  * One is started before a session ends whose last users died with files that are stored to
//!    through mappings.
//!  * A helper is not a user: neither its connection nor its place in the session counts, and no
//!    session ends while it runs. A helper that takes longer than `PATIENCE` is killed, and so is
//!    one that runs when the service ends.

use crate::session::memory::Memory;
use holdfast_pmem::env::Instant;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

/// How long what is dirty stays in session memory alone.
const AFTER: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(10);
/// The share of the time that helpers may run for: one in so many parts.
const SHARE: u32 = 50;
/// The same of those that remove what has expired, which programs may wait for: beyond a third of
/// the time others do not go on as they like.
const EXPIRED_SHARE: u32 = 2;

/// What a helper is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Write back what is dirty.
    WriteBack,
    /// Remove what has expired.
    RemoveExpired,
}

/// The command that does it in the session on the pool in a directory.
pub type Helper = fn(&Path, Job) -> Command;

/// Writeback of a session.
pub struct Writeback {
    helper: Option<Helper>,
    after: Duration,
    patience: Duration,
    /// The helper's process number; 0: none runs.
    pub process: Arc<AtomicU32>,
    running: Option<(Child, Instant, Job)>,
    /// Since when an inode is dirty, as far as we know.
    dirty_since: Option<Instant>,
    /// None is started before.
    rest_until: Instant,
    /// The same of those that remove what has expired.
    expired_until: Instant,
    /// One of those failed, and that was logged.
    expired_failed: bool,
    /// The last one could not be started, or failed: there may be dirty inodes that nobody asks
    /// for.
    failed: bool,
    /// One was started since the last user went.
    finishes: bool,
}

impl Writeback {
    /// None is done without a helper. `process` is told which process that is.
    pub fn new(helper: Option<Helper>, process: Arc<AtomicU32>) -> Writeback {
        Writeback {
            helper,
            after: AFTER,
            patience: PATIENCE,
            process,
            running: None,
            dirty_since: None,
            rest_until: Instant::now(),
            expired_until: Instant::now(),
            expired_failed: false,
            failed: false,
            finishes: false,
        }
    }

    /// Whether a helper runs now.
    pub fn is_running(&mut self) -> bool {
        self.look_after();
        self.running.is_some()
    }

    /// Looks after the helper, and starts one on the pool in `directory` when it is time, or when
    /// something has `expired`.
    pub fn tend(&mut self, directory: &Path, memory: &Memory, expired: bool) {
        let wanted = &memory.header().writeback_wanted;
        if self.is_running() || memory.is_poisoned() {
            return;
        }
        if expired && Instant::now() >= self.expired_until {
            self.start(directory, Job::RemoveExpired);
            return;
        }
        if wanted.load(Acquire) == 0 && !self.failed {
            return;
        }
        let since = *self.dirty_since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.after || Instant::now() < self.rest_until {
            return;
        }
        self.dirty_since = None;
        self.start(directory, Job::WriteBack);
    }

    /// Somebody uses the session.
    pub fn is_in_use(&mut self) {
        self.finishes = false;
    }

    /// Nobody uses the session any more. What the last ones stored through mappings, and had no
    /// time to write back, only a client can bring into blocks. Whether that was done, as far as it
    /// can be.
    pub fn finish(&mut self, directory: &Path, memory: &Memory) -> bool {
        if self.finishes || memory.is_poisoned() || !memory.has_stored_to() {
            return true;
        }
        self.finishes = true;
        self.start(directory, Job::WriteBack);
        self.running.is_none()
    }

    fn start(&mut self, directory: &Path, job: Job) {
        let Some(helper) = self.helper else { return };
        let mut command = helper(directory, job);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        match command.spawn() {
            Ok(child) => {
                self.process.store(child.id(), SeqCst);
                self.running = Some((child, Instant::now(), job));
            }
            Err(e) => self.fail(job, &format!("cannot be started: {e}")),
        }
    }

    /// Sees whether the helper has ended, or has to.
    fn look_after(&mut self) {
        let Some((child, begun, job)) = &mut self.running else {
            return;
        };
        let job = *job;
        let took = begun.elapsed();
        let said = match child.try_wait() {
            Ok(None) if took < self.patience => return,
            Ok(Some(status)) if status.success() => None,
            Ok(Some(status)) => Some(format!("ended with {status}")),
            Ok(None) => Some(format!("was at work for {} s", took.as_secs())),
            Err(e) => Some(format!("cannot be waited for: {e}")),
        };
        self.end();
        match job {
            Job::WriteBack => self.rest_until = Instant::now() + took * SHARE,
            Job::RemoveExpired => self.expired_until = Instant::now() + took * EXPIRED_SHARE,
        }
        match (said, job) {
            (Some(why), job) => self.fail(job, &why),
            (None, Job::WriteBack) => self.failed = false,
            (None, Job::RemoveExpired) => self.expired_failed = false,
        }
    }

    fn fail(&mut self, job: Job, why: &str) {
        if job == Job::RemoveExpired {
            self.expired_until = Instant::now() + PATIENCE;
            if !std::mem::replace(&mut self.expired_failed, true) {
                tracing::warn!("what has expired takes room still: the helper {why}");
            }
            return;
        }
        if !std::mem::replace(&mut self.failed, true) {
            tracing::warn!("unsynced changes of open files wait: the helper {why}");
        }
    }

    /// Ends the helper, in whatever it is doing.
    pub fn end(&mut self) {
        if let Some((mut child, ..)) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.process.store(0, SeqCst);
    }
}

impl Drop for Writeback {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Session;
    use crate::testing::TempDir;
    use crate::tests::{opened, pool};

    fn ends_well(_: &Path, _: Job) -> Command {
        Command::new("true")
    }

    fn fails(_: &Path, _: Job) -> Command {
        Command::new("false")
    }

    fn is_missing(_: &Path, _: Job) -> Command {
        Command::new("/no/such/program")
    }

    fn hangs(_: &Path, _: Job) -> Command {
        let mut command = Command::new("sleep");
        command.arg("1000");
        command
    }

    struct Fixture {
        writeback: Writeback,
        memory: Arc<Memory>,
        dir: TempDir,
    }

    impl Fixture {
        fn new(helper: Helper) -> Fixture {
            let dir = TempDir::new("writeback");
            let mut engine = opened(&pool(&dir));
            let memory = Session::create(&mut engine).unwrap().memory;
            Fixture {
                writeback: Writeback::new(Some(helper), Arc::default()),
                memory,
                dir,
            }
        }

        fn tend(&mut self) {
            self.writeback.tend(self.dir.path(), &self.memory, false);
        }

        fn wanted(&self) -> &AtomicU32 {
            &self.memory.header().writeback_wanted
        }

        /// An inode has been dirty for as long as one may be.
        fn be_late(&mut self) {
            self.wanted().store(1, SeqCst);
            self.tend();
            assert!(!self.writeback.is_running(), "too early");
            self.writeback.after = Duration::ZERO;
            self.tend();
        }

        fn wait(&mut self) {
            while self.writeback.is_running() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn a_helper_is_started_once_an_inode_was_dirty_for_long() {
        let mut fixture = Fixture::new(ends_well);
        fixture.tend();
        assert!(fixture.writeback.dirty_since.is_none());
        fixture.be_late();
        fixture.wait();
        assert!(fixture.writeback.dirty_since.is_none() && !fixture.writeback.failed);
        // As the helper does.
        fixture.wanted().store(0, SeqCst);
        fixture.tend();
        assert!(!fixture.writeback.is_running() && fixture.writeback.dirty_since.is_none());
        assert!(fixture.writeback.rest_until > Instant::now());
    }

    #[test]
    fn what_a_helper_did_not_do_is_tried_again() {
        for helper in [fails as Helper, is_missing] {
            let mut fixture = Fixture::new(helper);
            fixture.be_late();
            fixture.wait();
            fixture.writeback.after = AFTER;
            fixture.wanted().store(0, SeqCst);
            fixture.tend();
            assert!(fixture.writeback.dirty_since.is_some());
        }
    }

    #[test]
    fn what_has_expired_is_removed_at_once_and_not_all_the_time() {
        let mut fixture = Fixture::new(ends_well);
        let expired = |fixture: &mut Fixture| {
            let (dir, memory) = (fixture.dir.path().to_path_buf(), fixture.memory.clone());
            fixture.writeback.tend(&dir, &memory, true);
            fixture.writeback.running.as_ref().map(|(.., job)| *job)
        };
        assert_eq!(expired(&mut fixture), Some(Job::RemoveExpired));
        fixture.wait();
        assert!(fixture.writeback.expired_until > Instant::now());
        fixture.writeback.expired_until = Instant::now();
        assert_eq!(expired(&mut fixture), Some(Job::RemoveExpired));
        fixture.wait();
        let mut fixture = Fixture::new(fails);
        assert_eq!(expired(&mut fixture), Some(Job::RemoveExpired));
        fixture.wait();
        assert!(fixture.writeback.expired_failed && !fixture.writeback.failed);
        assert_eq!(expired(&mut fixture), None);
    }

    #[test]
    fn a_helper_that_hangs_is_killed() {
        let mut fixture = Fixture::new(hangs);
        fixture.be_late();
        assert!(fixture.writeback.is_running());
        let pid = fixture.writeback.process.load(SeqCst);
        let lives = || Path::new(&format!("/proc/{pid}")).exists();
        assert!(lives());
        fixture.writeback.patience = Duration::ZERO;
        fixture.tend();
        assert!(!fixture.writeback.is_running() && !lives());
        assert_eq!(fixture.writeback.process.load(SeqCst), 0);
    }

    #[test]
    fn no_helper_outlives_the_service() {
        let mut fixture = Fixture::new(hangs);
        fixture.be_late();
        let pid = fixture.writeback.process.load(SeqCst);
        drop(fixture);
        assert!(pid != 0 && !Path::new(&format!("/proc/{pid}")).exists());
    }
}
