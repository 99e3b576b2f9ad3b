//! The service of one pool: recovers it, admits clients, drains their session.
//!
//! Invariants: it holds the pool's lock as long as it lives; one thread writes the pool and owns
//! the session, another one listens; neither waits for a client.

use crate::base::error::{Error, Result};
use crate::base::files::{self, Files};
use crate::base::lock::PoolLock;
use crate::base::survivors;
use crate::journal::engine::Engine;
use crate::listener::admission::{Listener, Users};
use crate::listener::asks::{Front, Messenger};
use crate::listener::proxies::Proxies;
use crate::recovery::recover::{self, Recovered};
use crate::session::Session;
use crate::writer::{Options, State, Writer};
use holdfast_pmem::env::{self, Instant};
use holdfast_pool::directory::ROOT_SQUASH;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;

/// How long a service looks for the memory of a session whose processes may be just ending.
const ADOPTION: Duration = Duration::from_secs(2);
/// What is in the journals when the service is told to end is applied for so long.
const LAST_TURNS: Duration = Duration::from_secs(1);
/// Ends a service from another thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
}

impl Stopper {
    /// The service ends soon, also when there are users.
    pub fn stop(&self) {
        self.stop.store(true, Release);
    }
}

/// A service that is ready to serve.
pub struct Service {
    state: State,
    listener: Option<Listener>,
    /// The socket is ours, and not that of whoever started us.
    removes_socket: bool,
    // Last: let go only when everything else is closed.
    lock: PoolLock,
}

impl Service {
    /// Takes the pool in `directory`, brings it up to date and listens.
    pub fn open(directory: &Path, options: Options) -> Result<Service> {
        Service::open_at(directory, options, None)
    }

    /// As `open`, on a `socket` that listens already, if one is given.
    pub fn open_at(directory: &Path, options: Options, socket: Option<OwnedFd>) -> Result<Service> {
        Files::open(directory)?.check_owner()?;
        let lock = match options.ending {
            // Whoever started us finds the service that has it, or tries again.
            true => PoolLock::take(directory)?,
            false => PoolLock::take_patiently(directory)?,
        };
        // What was read before the lock was ours may be old.
        let files = Files::open(directory)?;
        let owner = files.owner;
        let mut engine = Engine::open(files)?;
        let mut session = None;
        let mut recovered = Recovered::default();
        let mut damage = None;
        let (alive, memory) = look_for_survivors(&engine)?;
        match memory {
            Some(fd) => session = Some(Session::adopt(&mut engine, fd)?),
            None if !alive => {
                files::forget_special(directory);
                match recover::recover(&mut engine) {
                    Ok(done) => recovered = done,
                    Err(error @ Error::Journal { .. }) => damage = Some(error),
                    Err(error) => return Err(error),
                }
            }
            None => {}
        }
        let awaiting_survivors = alive && session.is_none();
        let removes_socket = socket.is_none();
        let mut listener = match socket {
            Some(socket) => Listener::given(directory, owner, socket)?,
            None => Listener::open(directory, owner)?,
        };
        listener.proxies = Proxies::new(options.proxy, directory);
        listener.root_enters = !directory.join(ROOT_SQUASH).exists();
        let listener = Some(listener);
        let stop = Arc::new(AtomicBool::new(false));
        let state = State {
            engine,
            session,
            options,
            stop,
            recovered,
            awaiting_survivors,
            damage,
        };
        Ok(Service {
            state,
            listener,
            removes_socket,
            lock,
        })
    }

    /// What had to be done to bring the pool up to date.
    pub fn recovered(&self) -> &Recovered {
        &self.state.recovered
    }

    /// Why the pool can only be read, if that is so.
    pub fn damage(&self) -> Option<&Error> {
        self.state.damage.as_ref()
    }

    /// A way to end the service.
    pub fn stopper(&self) -> Stopper {
        Stopper {
            stop: self.state.stop.clone(),
        }
    }

    /// Serves until told to stop, or until the last user has gone if that was wished.
    pub fn run(mut self) -> Result<()> {
        let Some(listener) = self.listener.take() else {
            return Ok(());
        };
        let users = Arc::new(Users::default());
        users.ending.store(self.state.options.ending, Release);
        let front = Front::default();
        if let Some(session) = &self.state.session {
            front.open(&session.handout);
        }
        let (messenger, inbox) = Messenger::new(front.clone(), users.clone())?;
        let connected = users.clone();
        let closer = listener.closer()?;
        let listening = std::thread::spawn(move || listener.serve(connected, messenger));
        let mut writer = Writer::new(&mut self.state, &users, front);
        let done = writer.serve(&inbox);
        drop(writer);
        users.closing.store(true, Release);
        drop(inbox);
        closer.close();
        if listening.join().is_err() {
            tracing::error!("the listener ended by a mistake of its own");
        }
        let directory = &self.state.engine.store.files.directory;
        if self.removes_socket && self.lock.is_of(directory) {
            let _ = std::fs::remove_file(directory.join(holdfast_pool::segment::SOCKET));
        }
        let done = done.and(self.close());
        if let Err(e) = &done {
            tracing::error!("the service ends: {e}");
        }
        done
    }

    /// Leaves the pool as the next service wants to find it: closed, or with a session in it that
    /// goes on by itself until then.
    fn close(&mut self) -> Result<()> {
        let Some(mut session) = self.state.session.take() else {
            return match self.state.awaiting_survivors || self.state.damage.is_some() {
                true => Ok(()),
                false => self.state.engine.close(),
            };
        };
        let begun = Instant::now();
        if session.is_deserted(&self.state.engine)? {
            session.end(&mut self.state.engine)?;
            let rest = self.state.engine.store.makes_room();
            while begun.elapsed() < LAST_TURNS && self.state.engine.store.reclaim_some()? {}
            // Files without names that were open to the last are free only now.
            while begun.elapsed() < LAST_TURNS && self.state.engine.store.trim() {}
            // What is left over the next service frees.
            return if rest {
                self.state.engine.close()
            } else {
                Ok(())
            };
        }
        while session.turn(&mut self.state.engine).more && begun.elapsed() < LAST_TURNS {}
        Ok(())
    }
}

/// Whether processes of an earlier session live, and their session memory. Those that are just
/// ending are waited for, and so are those of a session that has ended: its memory is nobody's.
fn look_for_survivors(engine: &Engine) -> Result<(bool, Option<OwnedFd>)> {
    let superblock = engine.store.pool.superblock();
    let (name, ended) = (survivors::memory_name(&superblock.uuid), superblock.clean);
    let journal = engine
        .store
        .files
        .reopen(&engine.store.files.journal_name(), OFlags::RDWR)?;
    let begun = Instant::now();
    while survivors::exist(&journal) {
        let found = match ended {
            true => None,
            false => survivors::find_memory(&name),
        };
        if found.is_some() || begun.elapsed() > ADOPTION {
            return Ok((true, found));
        }
        env::sleep(Duration::from_millis(5));
    }
    Ok((false, None))
}
