//! What the processes of a user work on: the pool as it is, or a snapshot of it.
//!
//! Invariants: what is mapped, and its descriptors, stay as long as somebody works there; each
//! process has a place of its own in that session. A snapshot is mapped once for all of the user.

use crate::answers::AllAnswers;
use holdfast_client::attach::{AttachError, Attachment, attach_snapshot};
use holdfast_client::{Client, Error, Segments};
use rustix::fd::AsFd;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Snapshots that one user may use at a time: each is a session.
const SNAPSHOTS_MAX: usize = 16;

/// A session.
pub struct Base {
    pool: Client,
    /// Descriptors that the session uses.
    _attachment: Attachment,
}

impl Base {
    /// What came with the service's answer.
    pub fn of(attachment: Attachment) -> Result<Base, Error> {
        let a = &attachment;
        let segments = Segments {
            session: a.memory().map_err(|_| Error::ServiceGone)?,
            meta: (a.meta.as_fd(), a.answer.meta_len),
            journal: (a.journal.as_fd(), a.answer.journal_len),
            data: (a.data.as_fd(), a.answer.data_room),
            medium: a.answer.medium,
            cpu: 0,
        };
        Ok(Base {
            pool: Client::attach(&segments, b"")?,
            _attachment: attachment,
        })
    }

    /// A client without a place in the session, to which the pool appears at `at`.
    pub fn client(&self, at: &[u8]) -> Client {
        self.pool.another(at)
    }

    /// The process ends without a service.
    pub fn leave(&self) {
        self.pool.leave();
    }

    /// Whether leases are good for one more term.
    pub fn gives_leases(&self) -> bool {
        self.pool.gives_leases()
    }

    /// None yet.
    pub fn all_answers(&self) -> AllAnswers {
        AllAnswers::begin(&self.pool)
    }

    /// Others than the pool's owner come; see `Client::expect_others`.
    pub fn expect_others(&self, random: u64) {
        self.pool.expect_others(random);
    }
}

/// Snapshots of the pool that somebody works on.
pub struct Snapshots {
    pool: PathBuf,
    used: Mutex<HashMap<Vec<u8>, Weak<Base>>>,
}

impl Snapshots {
    /// Those of the pool in `pool`.
    pub fn of(pool: &Path) -> Snapshots {
        Snapshots {
            pool: pool.into(),
            used: Mutex::default(),
        }
    }

    /// The snapshot of this name; or why not, as an errno and a sentence.
    pub fn get(&self, name: &[u8]) -> Result<Arc<Base>, (i32, String)> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(base) = used.get(name).and_then(Weak::upgrade) {
            return Ok(base);
        }
        used.retain(|_, base| base.strong_count() > 0);
        if used.len() >= SNAPSHOTS_MAX {
            let most = format!("you use {SNAPSHOTS_MAX} snapshots of the pool already");
            return Err((Error::TooManyViews.errno(), most));
        }
        let attached = attach_snapshot(self.pool.as_os_str().as_bytes(), name);
        let attached = attached.map_err(|e| match e {
            // There will be one: whoever asks asks again.
            AttachError::NoService => (Error::WouldBlock.errno(), e.to_string()),
            e => (e.errno(), e.to_string()),
        })?;
        let base = Base::of(attached).map_err(|e| (e.errno(), e.to_string()))?;
        let base = Arc::new(base);
        used.insert(name.into(), Arc::downgrade(&base));
        Ok(base)
    }
}
