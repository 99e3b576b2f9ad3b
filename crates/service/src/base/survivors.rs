//! Sessions that outlived their service.
//!
//! Invariants: every process of a session holds the open file description of the journal that its
//! service locked in shared mode, so the session is dead exactly when the lock is free; a
//! survivor's session memory is found by its name, which has the identity of the pool, and is
//! checked like any other before it is used.

use crate::base::error::{Error, Result};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::read_link;
use std::path::Path;

/// The name that /proc shows for the session memory of a pool.
pub fn memory_name(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    format!("holdfast-session-{hex}")
}

/// Marks the journal as used by a session, for as long as any process has this description.
pub fn mark(journal: &OwnedFd) -> Result<()> {
    rustix::fs::flock(journal, FlockOperation::NonBlockingLockShared).map_err(Error::os("journal"))
}

/// Whether a session of an earlier service still lives. `journal` must be freshly opened.
pub fn exist(journal: &OwnedFd) -> bool {
    match rustix::fs::flock(journal, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => true,
        Ok(()) => {
            let _ = rustix::fs::flock(journal, FlockOperation::Unlock);
            false
        }
        Err(_) => false,
    }
}

/// The session memory called `name`, from any process that has it open.
pub fn find_memory(name: &str) -> Option<OwnedFd> {
    let wanted = format!("/memfd:{name} (deleted)");
    let me = std::process::id().to_string();
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let pid = process.file_name();
        let is_pid = pid.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        if !is_pid || pid.as_encoded_bytes() == me.as_bytes() {
            continue;
        }
        if let Some(fd) = memory_of(&process.path(), &wanted) {
            return Some(fd);
        }
    }
    None
}

fn memory_of(process: &Path, wanted: &str) -> Option<OwnedFd> {
    for entry in std::fs::read_dir(process.join("fd")).ok()?.flatten() {
        let path = entry.path();
        if read_link(&path).is_ok_and(|target| target.as_os_str() == wanted) {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            if let Ok(fd) = rustix::fs::open(&path, flags, Mode::empty()) {
                return Some(fd);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use std::process::{Command, Stdio};

    #[test]
    fn a_session_lives_as_long_as_any_description_does() {
        let dir = TempDir::new("survivors");
        let path = dir.path().join("journal");
        let open = || OwnedFd::from(std::fs::File::create(&path).unwrap());
        let first = open();
        assert!(!exist(&first));
        mark(&first).unwrap();
        let handed_out = first.try_clone().unwrap();
        drop(first);
        assert!(exist(&open()));
        drop(handed_out);
        assert!(!exist(&open()));
    }

    #[test]
    fn memory_is_found_in_another_process() {
        let name = memory_name(&[std::process::id() as u8; 16]);
        assert!(find_memory(&name).is_none());
        let fd = rustix::fs::memfd_create(&name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut child = Command::new("sleep")
            .arg("30")
            .stdin(Stdio::from(fd))
            .spawn()
            .unwrap();
        let found = find_memory(&name);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.is_some());
    }
}
