//! How a process reaches a pool, and its place there.
//!
//! Invariants: the process holds one place in the session until the last handle is dropped; a child
//! of fork(2) takes its own place with its first call.

use crate::caller::Ids;
use crate::error::{Error, Result};
use crate::link::{Link, process};
use crate::memory::{self, SessionMemory};
use crate::served::ServedPool;
use holdfast_client::attach::{AttachError, Attachment};
use holdfast_client::{Client, Segments, recover, slots};
use holdfast_pmem::{ForkMark, Slow, Writing};
use rustix::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// What all handles share.
pub(crate) struct Inner {
    way: Way,
    /// How much slower than it is the pool is to this process.
    slow: Slow,
    /// Which process this is; see `reach`.
    mark: ForkMark,
    joining: Mutex<()>,
    /// Why nothing can be changed; empty if the pool can be changed.
    damage: String,
}

enum Way {
    /// The pool's owner and root have it mapped.
    Mapped {
        client: Client,
        link: Arc<Link>,
        ids: Ids,
    },
    /// A proxy makes the calls of others.
    Served(ServedPool),
}

/// The pool, as this process reaches it.
#[derive(Clone, Copy)]
pub(crate) enum Reach<'a> {
    Mapped(&'a Client),
    Served(&'a ServedPool),
}

impl Inner {
    /// A session that goes on with the next service when this one dies.
    pub fn mapped(
        path: PathBuf,
        attachment: Attachment,
        known: Option<SessionMemory>,
        how: (Writing, Slow),
    ) -> Result<Inner> {
        let inner = Inner::assemble(path, attachment, known, how)?;
        if let Way::Mapped { link, .. } = &inner.way {
            link.start_watching()?;
        }
        Ok(inner)
    }

    /// A session on a snapshot, which needs no service.
    pub fn on_snapshot(path: PathBuf, attachment: Attachment, slow: Slow) -> Result<Inner> {
        Inner::assemble(path, attachment, None, (Writing::default(), slow))
    }

    /// On the pool of another user, or a snapshot of it, with what came with the proxy's answer.
    pub fn served(
        what: (PathBuf, Option<String>),
        connection: OwnedFd,
        channel: OwnedFd,
    ) -> Result<Inner> {
        let mark = ForkMark::new().map_err(holdfast_client::Error::Memory)?;
        let served = ServedPool::enter(what, connection, &channel)?;
        mark.set(process());
        Ok(Inner {
            way: Way::Served(served),
            slow: Slow::NONE,
            mark,
            joining: Mutex::new(()),
            damage: String::new(),
        })
    }

    fn assemble(
        path: PathBuf,
        mut attachment: Attachment,
        known: Option<SessionMemory>,
        (writing, slow): (Writing, Slow),
    ) -> Result<Inner> {
        // Memory that the host has none for is an error of the operation, not the program's end.
        holdfast_pmem::fault::install();
        let received = attachment.session.take();
        let received = received.and_then(|fd| memory::received(&path, fd));
        let gone = Error::Attach(AttachError::Protocol);
        let memory = received.or(known).ok_or(gone)?;
        let answer = &attachment.answer;
        let segments = Segments {
            session: memory.as_fd(),
            meta: (attachment.meta.as_fd(), answer.meta_len),
            journal: (attachment.journal.as_fd(), answer.journal_len),
            data: (attachment.data.as_fd(), answer.data_room),
            medium: answer.medium,
            cpu: 0,
        };
        let damage = answer.text().to_string();
        if writing != Writing::default() {
            holdfast_pmem::fault::report_strays();
        }
        let client = Client::attach_with(&segments, b"", writing, slow)?;
        let mark = ForkMark::new().map_err(holdfast_client::Error::Memory)?;
        let link = Link::new(path, attachment, memory);
        let ids = Ids::of_this_process();
        let inner = Inner {
            way: Way::Mapped { client, link, ids },
            slow,
            mark,
            joining: Mutex::new(()),
            damage,
        };
        inner.join()?;
        Ok(inner)
    }

    /// The pool, as this process reaches it.
    #[inline]
    pub fn reach(&self) -> Result<Reach<'_>> {
        if self.mark.get() == 0 {
            self.join()?;
        }
        Ok(match &self.way {
            Way::Mapped { client, .. } => Reach::Mapped(client),
            Way::Served(served) => Reach::Served(served),
        })
    }

    /// Whether a proxy makes the calls.
    pub fn is_served(&self) -> bool {
        matches!(self.way, Way::Served(_))
    }

    /// What only processes that have the pool mapped can do is done with this.
    #[inline]
    pub fn client(&self) -> Result<&Client> {
        match self.reach()? {
            Reach::Mapped(client) => Ok(client),
            Reach::Served(_) => Err(Error::NotForOthers),
        }
    }

    /// Takes a place in the session for this process.
    #[cold]
    fn join(&self) -> Result<()> {
        let _one = self.joining.lock();
        if self.mark.get() != 0 {
            return Ok(());
        }
        match &self.way {
            Way::Mapped { client, link, .. } => {
                let session = client.session();
                slots::register(session, process() as u32, None)?;
                // What cannot be finished now stays locked.
                let _ = recover::lanes(session);
                self.mark.set(process());
                link.joined();
            }
            Way::Served(served) => {
                served.enter_again()?;
                self.mark.set(process());
            }
        }
        Ok(())
    }

    /// How much slower than it is the pool is to this process.
    pub fn slow(&self) -> Slow {
        self.slow
    }

    /// Who this process is to the pool.
    pub fn ids(&self) -> &Ids {
        match &self.way {
            Way::Mapped { ids, .. } => ids,
            Way::Served(served) => served.ids(),
        }
    }

    /// The pool's directory.
    pub fn path(&self) -> &Path {
        match &self.way {
            Way::Mapped { link, .. } => link.path(),
            Way::Served(served) => served.path(),
        }
    }

    /// The number of this process; each child has another one.
    pub fn process(&self) -> u64 {
        self.mark.get()
    }

    /// Why nothing can be changed; empty if the pool can be changed.
    pub fn damage(&self) -> &str {
        &self.damage
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let has_place = self.mark.get() != 0;
        match &self.way {
            Way::Mapped { client, link, .. } => {
                if has_place {
                    client.exit(true);
                }
                link.close(has_place && client.is_in_session_again());
            }
            Way::Served(served) if has_place => served.exit(),
            Way::Served(_) => {}
        }
    }
}
