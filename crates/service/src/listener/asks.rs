//! Passing requests from the listener to the thread that writes the pool, and its replies back.
//!
//! Invariants: the listener never waits for that thread. It answers by itself a client that joins
//! an existing session or asks for it, and gets other replies later. `Front` has a session exactly
//! while it can be joined.

use crate::base::error::{Error, Result};
use crate::listener::admission::{Answered, Handler, Users, ending};
use crate::listener::connection::Reply;
use crate::session::handout::Handout;
use crate::session::heartbeat::Place;
use holdfast_pool::protocol::{Answer, Request};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The session that can be joined.
#[derive(Clone, Default)]
pub struct Front {
    session: Arc<Mutex<Option<Arc<Handout>>>>,
    /// The same for those who need its memory only.
    pub memory: Place,
    /// Stray stores that were stopped in sessions that are over.
    strays: Arc<AtomicU64>,
}

impl Front {
    fn session(&self) -> MutexGuard<'_, Option<Arc<Handout>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session is over in which so many stray stores were stopped.
    pub fn add_strays(&self, strays: u64) {
        self.strays.fetch_add(strays, Relaxed);
    }

    /// An answer about the session, which says the strays of earlier ones as well.
    pub fn with_strays(&self, answer: Answer) -> Answer {
        let strays = answer.strays.saturating_add(self.strays.load(Relaxed));
        Answer { strays, ..answer }
    }

    /// The session can be joined from now on.
    pub fn open(&self, handout: &Arc<Handout>) {
        *self.session() = Some(handout.clone());
        let mut place = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(handout.memory().clone());
    }

    /// Nobody can join the session any more; false: somebody did.
    pub fn close(&self, users: &Users) -> bool {
        let mut session = self.session();
        // Who joins is counted before it looks at the session.
        if users.attached.load(SeqCst) > 0 {
            return false;
        }
        *session = None;
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = None;
        true
    }
}

/// A request for the thread that writes.
pub struct Ask {
    pub request: Request,
    pub adopt: Option<OwnedFd>,
    reply: SyncSender<Reply>,
    bell: Arc<OwnedFd>,
}

impl Ask {
    /// Sends the reply on its way.
    pub fn answer(self, reply: Reply) {
        // Who asked may have gone.
        if self.reply.send(reply).is_ok() {
            ring(&self.bell);
        }
    }
}

fn ring(bell: &OwnedFd) {
    let rung = rustix::io::write(bell, &1u64.to_ne_bytes());
    // It has rung often enough already.
    assert!(matches!(rung, Ok(8) | Err(rustix::io::Errno::AGAIN)));
}

/// The listener's end.
pub struct Messenger {
    asks: Sender<Ask>,
    front: Front,
    users: Arc<Users>,
    bell: Arc<OwnedFd>,
}

impl Messenger {
    /// With what it sends.
    pub fn new(front: Front, users: Arc<Users>) -> Result<(Messenger, Receiver<Ask>)> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags).map_err(Error::os("eventfd"))?);
        let (asks, inbox) = channel();
        let messenger = Messenger {
            asks,
            front,
            users,
            bell,
        };
        Ok((messenger, inbox))
    }

    /// Wakes the thread that writes.
    fn wake(&self) {
        let memory = self.front.memory.lock();
        if let Some(memory) = memory.unwrap_or_else(PoisonError::into_inner).as_ref() {
            memory.ring();
        }
    }

    /// What the session itself can say.
    fn of_session(&self, request: &Request, adopt: Option<&OwnedFd>) -> Option<Reply> {
        let session = self.front.session();
        let session = session.as_ref()?;
        let attached = || self.users.attached.load(Acquire);
        let fds = match request {
            Request::Status => {
                let answer = Answer {
                    others: self.users.others.load(Acquire),
                    ..session.describe_troubles(attached())
                };
                return Some((self.front.with_strays(answer), Vec::new()));
            }
            Request::Attach { known, .. } => session.descriptors(adopt, *known)?,
            _ => return None,
        };
        Some(match fds {
            Ok(fds) => (session.describe(attached()), fds),
            Err(e) => (Answer::refusal(e.errno(), &e.to_string()), Vec::new()),
        })
    }
}

impl Handler for Messenger {
    fn answer(&mut self, request: Request, adopt: Option<OwnedFd>) -> Answered {
        if let Some(reply) = self.of_session(&request, adopt.as_ref()) {
            return Answered::Now(Box::new(reply));
        }
        let (reply, later) = sync_channel(1);
        let ask = Ask {
            request,
            adopt,
            reply,
            bell: self.bell.clone(),
        };
        if self.asks.send(ask).is_err() {
            return Answered::Now(Box::new(ending()));
        }
        self.wake();
        Answered::Later(later)
    }

    fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    fn users_changed(&mut self) {
        self.wake();
    }
}
