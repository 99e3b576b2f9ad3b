//! The service of one pool: recovers it, lets clients in, drains their session.
//!
//! Invariants: it holds the pool's lock for as long as it lives; one thread writes the pool and
//! owns the session, another keeps the door; neither waits for a client.

use crate::admission::{Desk, Door, Reply, Users};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::files::Files;
use crate::lock::PoolLock;
use crate::memory::Memory;
use crate::recover::{self, Recovered};
use crate::session::{self, Session};
use crate::{snapshots, survivors};
use holdfast_pmem::futex;
use holdfast_pool::protocol::{Answer, Request};
use holdfast_pool::session::session_len;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a service that ends with its last user waits for the first one.
const FIRST_USER: Duration = Duration::from_secs(20);
/// How long a service looks for the memory of a session whose processes may be just ending.
const ADOPTION: Duration = Duration::from_secs(2);
/// What is in the journals when the service is told to end is applied for so long.
const LAST_TURNS: Duration = Duration::from_secs(1);
/// Looks at who is still there.
const ROUND: Duration = Duration::from_millis(250);
/// The same when there is nobody but perhaps processes that are about to join or to end.
const ROUND_ALONE: Duration = Duration::from_millis(10);
const NAP_MIN: Duration = Duration::from_millis(20);
const NAP_MAX: Duration = Duration::from_millis(200);
/// The nap of a service that has had nothing to do for some time: naps double.
const NAP_IDLE: Duration = Duration::from_millis(80);
/// A nap amid what is done only while there is nothing to do.
const NAP_REST: Duration = Duration::from_millis(10);

/// How a service is to behave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// End when the last user has gone.
    pub ending: bool,
}

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
    engine: Engine,
    session: Option<Session>,
    options: Options,
    stop: Arc<AtomicBool>,
    recovered: Recovered,
    door: Option<Door>,
    awaiting_survivors: bool,
    /// Why the pool can be read and not changed.
    damage: Option<Error>,
    // Last: let go only when everything else is closed.
    _lock: PoolLock,
}

struct Ask {
    request: Request,
    adopt: Option<OwnedFd>,
    reply: SyncSender<Reply>,
}

/// The door's way to the thread that owns the session.
struct Messenger {
    asks: Sender<Ask>,
    memory: Arc<Mutex<Option<Arc<Memory>>>>,
}

impl Messenger {
    fn ring(&self) {
        if let Ok(memory) = self.memory.lock()
            && let Some(memory) = memory.as_ref()
        {
            memory.ring();
        }
    }
}

impl Desk for Messenger {
    fn answer(&mut self, request: Request, adopt: Option<OwnedFd>) -> Reply {
        let (reply, answer) = sync_channel(1);
        // Whoever asks again finds the next service, or starts it.
        let again = Errno::AGAIN.raw_os_error();
        let gone = || (Answer::refusal(again, "the service is ending"), Vec::new());
        if self
            .asks
            .send(Ask {
                request,
                adopt,
                reply,
            })
            .is_err()
        {
            return gone();
        }
        self.ring();
        answer.recv().unwrap_or_else(|_| gone())
    }

    fn users_changed(&mut self) {
        self.ring();
    }
}

impl Service {
    /// Takes the pool in `directory`, brings it up to date and opens the door.
    pub fn open(directory: &Path, options: Options) -> Result<Service> {
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
            None if !alive => match recover::recover(&mut engine) {
                Ok(done) => recovered = done,
                Err(error @ Error::Journal { .. }) => damage = Some(error),
                Err(error) => return Err(error),
            },
            None => {}
        }
        let awaiting_survivors = alive && session.is_none();
        let door = Some(Door::open(directory, owner)?);
        let stop = Arc::new(AtomicBool::new(false));
        let _lock = lock;
        Ok(Service {
            engine,
            session,
            options,
            stop,
            recovered,
            door,
            awaiting_survivors,
            damage,
            _lock,
        })
    }

    /// What had to be done to bring the pool up to date.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// Why the pool can only be read, if that is so.
    pub fn damage(&self) -> Option<&Error> {
        self.damage.as_ref()
    }

    /// A way to end the service.
    pub fn stopper(&self) -> Stopper {
        Stopper {
            stop: self.stop.clone(),
        }
    }

    /// Serves until told to stop, or until the last user has gone if that was wished.
    pub fn run(mut self) -> Result<()> {
        let Some(door) = self.door.take() else {
            return Ok(());
        };
        let users = Arc::new(Users::default());
        users.ending.store(self.options.ending, Release);
        let memory = Arc::new(Mutex::new(self.session.as_ref().map(|s| s.memory.clone())));
        let (asks, inbox) = channel();
        let messenger = Messenger {
            asks,
            memory: memory.clone(),
        };
        let at_door = users.clone();
        let closer = door.closer()?;
        let doorman = std::thread::spawn(move || door.serve(at_door, messenger));
        let mut desk = Backroom {
            service: &mut self,
            users: &users,
            memory,
        };
        let done = desk.serve(&inbox);
        users.closing.store(true, Release);
        drop(inbox);
        closer.close();
        let _ = doorman.join();
        let socket = self
            .engine
            .files
            .directory
            .join(holdfast_pool::segment::SOCKET);
        let _ = std::fs::remove_file(socket);
        done.and(self.close())
    }

    /// Leaves the pool as the next service wants to find it: closed, or with a session in it that
    /// goes on by itself until then.
    fn close(&mut self) -> Result<()> {
        let Some(mut session) = self.session.take() else {
            return match self.awaiting_survivors || self.damage.is_some() {
                true => Ok(()),
                false => self.engine.close(),
            };
        };
        if session.is_deserted(&self.engine)? {
            return session.end(&mut self.engine);
        }
        let begun = Instant::now();
        while session.turn(&mut self.engine).more && begun.elapsed() < LAST_TURNS {}
        Ok(())
    }
}

/// Whether processes of an earlier session live, and their session memory. Those that are just
/// ending are waited for.
fn look_for_survivors(engine: &Engine) -> Result<(bool, Option<OwnedFd>)> {
    let name = survivors::memory_name(&engine.pool.superblock().uuid);
    let journal = engine
        .files
        .reopen(&engine.files.journal_name(), OFlags::RDWR)?;
    let begun = Instant::now();
    while survivors::exist(&journal) {
        let found = survivors::find_memory(&name);
        if found.is_some() || begun.elapsed() > ADOPTION {
            return Ok((true, found));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok((false, None))
}

/// The thread that owns the pool and the session.
struct Backroom<'a> {
    service: &'a mut Service,
    users: &'a Users,
    memory: Arc<Mutex<Option<Arc<Memory>>>>,
}

impl Backroom<'_> {
    fn serve(&mut self, inbox: &Receiver<Ask>) -> Result<()> {
        let begun = Instant::now();
        let mut looked = Instant::now();
        let mut nap = NAP_MIN;
        let mut attached = 0;
        loop {
            while let Ok(ask) = inbox.try_recv() {
                let reply = self.answer(&ask.request, ask.adopt);
                let _ = ask.reply.send(reply);
            }
            if self.service.stop.load(Acquire) {
                return Ok(());
            }
            let now_attached = self.users.attached.load(Acquire);
            let alone = now_attached == 0 && self.service.session.is_some();
            let round = if alone { ROUND_ALONE } else { ROUND };
            if looked.elapsed() > round || now_attached < attached {
                looked = Instant::now();
                if self.look_around(begun)? {
                    return Ok(());
                }
            }
            attached = now_attached;
            match self.service.session.as_mut() {
                Some(_) => nap = self.drain(nap, round),
                None => match inbox.recv_timeout(ROUND) {
                    Ok(ask) => {
                        let reply = self.answer(&ask.request, ask.adopt);
                        let _ = ask.reply.send(reply);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                },
            }
        }
    }

    /// One turn of the session, and a nap if there is nothing to do. Returns the next nap.
    fn drain(&mut self, nap: Duration, round: Duration) -> Duration {
        let Some(session) = self.service.session.as_mut() else {
            return nap;
        };
        let memory = session.memory.clone();
        let header = memory.header();
        let bell = header.doorbell.load(Acquire);
        let turn = session.turn(&mut self.service.engine);
        if turn.more {
            return NAP_MIN;
        }
        if turn.waiting {
            std::thread::sleep(Duration::from_micros(50));
            return NAP_MIN;
        }
        let nap = match turn.applied {
            0 => (nap * 2).min(NAP_MAX).min(round),
            _ => NAP_MIN,
        };
        let mut wait = nap;
        if self.service.engine.checkpoints.is_busy() {
            wait = wait.min(NAP_REST);
        }
        if turn.applied == 0 {
            // What is taken from under free blocks now costs those who write again much more.
            let long = nap >= 2 * NAP_IDLE;
            if nap >= NAP_IDLE && session.rest(&mut self.service.engine, long) {
                wait = NAP_REST;
            }
        }
        header.service_sleeps.store(1, SeqCst);
        if header.doorbell.load(SeqCst) == bell {
            futex::wait(&header.doorbell, bell, Some(wait));
        }
        header.service_sleeps.store(0, SeqCst);
        nap
    }

    /// Ends the session when nobody is in it; true when the service is to end, too.
    fn look_around(&mut self, begun: Instant) -> Result<bool> {
        let deserted = |service: &mut Service| match service.session.as_mut() {
            Some(session) => session.is_deserted(&service.engine),
            None => Ok(true),
        };
        if self.users.attached.load(Acquire) > 0 || !deserted(self.service)? {
            return Ok(false);
        }
        // Whoever comes while a lot is flushed does not have to wait for that.
        let service = &mut *self.service;
        if let Some(session) = &mut service.session
            && !session.is_settled(&mut service.engine)
        {
            return Ok(false);
        }
        let ever = self.users.ever.load(Acquire);
        if self.service.options.ending && (ever || begun.elapsed() > FIRST_USER) {
            return Ok(true);
        }
        if let Some(session) = self.service.session.take() {
            self.set_memory(None);
            session.end(&mut self.service.engine)?;
            self.service.engine.begin()?;
        }
        Ok(false)
    }

    fn set_memory(&self, memory: Option<Arc<Memory>>) {
        if let Ok(mut place) = self.memory.lock() {
            *place = memory;
        }
    }

    fn answer(&mut self, request: &Request, adopt: Option<OwnedFd>) -> Reply {
        if let Request::Status = request {
            return (self.describe(), Vec::new());
        }
        let damage = self.service.damage.as_ref();
        let done = match request {
            Request::Attach { .. } if damage.is_some() => return self.attach_to_read(),
            Request::SnapshotCreate { .. } | Request::SnapshotDelete { .. }
                if let Some(e) = damage =>
            {
                return (Answer::refusal(e.errno(), &e.to_string()), Vec::new());
            }
            Request::SnapshotCreate { name, owner } => {
                self.snapshot_create(name.as_bytes(), *owner)
            }
            Request::SnapshotDelete { name } => self.snapshot_delete(name.as_bytes()),
            Request::SnapshotAttach { name } => {
                return self.to_read(snapshots::begin(&self.service.engine, name.as_bytes()));
            }
            Request::Attach { .. } | Request::Status => self.attach(adopt),
        };
        match done {
            Ok(fds) => (self.describe(), fds),
            Err(e) => (Answer::refusal(e.errno(), &e.to_string()), Vec::new()),
        }
    }

    /// A session in which nothing can be changed.
    fn to_read(&self, begun: Result<Vec<OwnedFd>>) -> Reply {
        match begun {
            Ok(fds) => {
                let answer = Answer {
                    journal_len: snapshots::JOURNAL_LEN,
                    ..self.describe()
                };
                (answer, fds)
            }
            Err(e) => (Answer::refusal(e.errno(), &e.to_string()), Vec::new()),
        }
    }

    /// What the trees have of a pool whose journal is damaged.
    fn attach_to_read(&self) -> Reply {
        let (answer, fds) = self.to_read(snapshots::begin_on_present(&self.service.engine));
        let said = self.service.damage.as_ref().map(Error::to_string);
        match answer.errno {
            0 => (answer.with_text(&said.unwrap_or_default()), fds),
            _ => (answer, fds),
        }
    }

    fn snapshot_create(&mut self, name: &[u8], owner: u32) -> Result<Vec<OwnedFd>> {
        let service = &mut *self.service;
        match &mut service.session {
            Some(session) => session.snapshot_create(&mut service.engine, name, owner)?,
            None => return Err(Error::NotStopped),
        }
        Ok(Vec::new())
    }

    fn snapshot_delete(&mut self, name: &[u8]) -> Result<Vec<OwnedFd>> {
        let service = &mut *self.service;
        snapshots::check_unused(&service.engine, name)?;
        match &mut service.session {
            Some(session) => session.snapshot_delete(&mut service.engine, name)?,
            // Programs run on without us, and we do not know their session yet.
            None if service.awaiting_survivors => return Err(Error::NotASession),
            None => service.engine.snapshot_delete(name)?,
        }
        Ok(Vec::new())
    }

    fn attach(&mut self, adopt: Option<OwnedFd>) -> Result<Vec<OwnedFd>> {
        let service = &mut *self.service;
        if let (Some(session), Some(fd)) = (&service.session, &adopt)
            && !session.memory.is_same(fd)
        {
            return Err(Error::NotASession);
        }
        if service.session.is_none() {
            let session = match adopt {
                Some(fd) if service.awaiting_survivors => Session::adopt(&mut service.engine, fd)?,
                Some(_) => return Err(Error::NotASession),
                None if service.awaiting_survivors => {
                    self.give_up_survivors()?;
                    Session::create(&mut self.service.engine)?
                }
                None => Session::create(&mut service.engine)?,
            };
            self.service.awaiting_survivors = false;
            self.set_memory(Some(session.memory.clone()));
            self.service.session = Some(session);
        }
        let session = self.service.session.as_ref().ok_or(Error::NotASession)?;
        session.descriptors().map_err(Error::io("descriptors"))
    }

    /// Programs that nobody can take over stop a new session for as long as they live.
    fn give_up_survivors(&mut self) -> Result<()> {
        let service = &mut *self.service;
        let files = &service.engine.files;
        let journal = files.reopen(&files.journal_name(), OFlags::RDWR)?;
        if survivors::exist(&journal) {
            return Err(Error::Orphaned {
                path: files.directory.clone(),
            });
        }
        drop(journal);
        service.recovered = recover::recover(&mut service.engine)?;
        service.awaiting_survivors = false;
        Ok(())
    }

    fn describe(&self) -> Answer {
        let service = &*self.service;
        let (engine, constants) = (&service.engine, session::constants(&service.engine));
        let superblock = engine.pool.superblock();
        let memory = service.session.as_ref().map(|s| &s.memory);
        let processes = memory.map_or(0, |m| m.live_processes());
        Answer {
            service_pid: std::process::id(),
            generation: memory.map_or(0, |m| m.header().service_generation.load(Relaxed)),
            consistency: constants.consistency,
            medium: constants.medium,
            sessions: memory.is_some().into(),
            processes,
            users: processes + self.users.attached.load(Acquire),
            session_len: session_len(constants.medium, constants.data_len),
            meta_len: superblock.meta_len,
            journal_len: engine.journal.len() as u64,
            data_len: superblock.data_len,
            applied_seq: engine.applied_seq(),
            ..Answer::default()
        }
    }
}
