//! The thread that owns the pool and the session: serves requests, drains, idles.
//!
//! Invariant: it waits for nobody; while a step takes long, the heartbeat and the listener answer
//! for it.

use crate::base::cuts;
use crate::base::error::{Error, Result};
use crate::base::survivors;
use crate::journal::engine::Engine;
use crate::listener::admission::Users;
use crate::listener::asks::{Ask, Front};
use crate::listener::connection::Reply;
use crate::listener::proxies::Launcher;
use crate::recovery::recover::{self, Recovered};
use crate::session::Session;
use crate::session::expiry::Expiry;
use crate::session::handout::{self, Sent};
use crate::session::heartbeat::Heartbeat;
use crate::session::snapshots;
use crate::session::writeback::{Helper, Writeback};
use holdfast_pmem::env::{self, Instant};
use holdfast_pmem::futex;
use holdfast_pool::protocol::{Answer, Request};
use holdfast_pool::session::LOST_BLOCKS;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// How long a service that ends with its last user waits for the first one. Whoever started it
/// asks at once, or was killed meanwhile; one that comes later starts another service.
const FIRST_USER: Duration = Duration::from_secs(1);
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
    /// What writes back dirty inodes, and removes what has expired.
    pub writeback: Option<Helper>,
    /// What serves users who do not own the pool.
    pub proxy: Option<Launcher>,
}

/// What a service has, beside the lock and the socket.
pub struct State {
    pub engine: Engine,
    pub session: Option<Session>,
    pub options: Options,
    pub stop: Arc<AtomicBool>,
    pub recovered: Recovered,
    /// Processes of an earlier session live, whose memory was not found.
    pub awaiting_survivors: bool,
    /// Why the pool can be read and not changed.
    pub damage: Option<Error>,
}

impl State {
    /// Frees a part of what was removed, and of the memory behind it, where no session does;
    /// whether there is more.
    fn free_some(&mut self) -> Result<bool> {
        let not_ours = self.awaiting_survivors || self.damage.is_some();
        Ok(!not_ours && (self.engine.store.reclaim_some()? || self.engine.store.trim()))
    }

    /// The same of what has expired.
    fn remove_expired(&mut self, expiry: &mut Expiry) -> Result<bool> {
        let not_ours = self.awaiting_survivors || self.damage.is_some();
        Ok(!not_ours && expiry.remove_alone(&mut self.engine.store)?)
    }
}

/// What the thread has.
pub struct Writer<'a> {
    service: &'a mut State,
    users: &'a Users,
    front: Front,
    heart: Heartbeat,
    writeback: Writeback,
    expiry: Expiry,
    /// Requests that were not answered yet.
    asks: VecDeque<Ask>,
    /// Stray stores of this session that the log knows of, and blocks that were lost.
    strays: u64,
    lost: [u64; LOST_BLOCKS],
}

impl<'a> Writer<'a> {
    /// Serves until `Writer::serve` ends.
    pub fn new(service: &'a mut State, users: &'a Users, front: Front) -> Writer<'a> {
        Writer {
            heart: Heartbeat::start(front.memory.clone()),
            writeback: Writeback::new(service.options.writeback, users.helper.clone()),
            expiry: Expiry::new(),
            service,
            users,
            front,
            asks: VecDeque::new(),
            strays: 0,
            lost: [0; LOST_BLOCKS],
        }
    }
}

impl Writer<'_> {
    /// Serves until told to stop, or until the last user has gone if that was wished.
    pub fn serve(&mut self, inbox: &Receiver<Ask>) -> Result<()> {
        let begun = Instant::now();
        let mut looked = Instant::now();
        let mut nap = NAP_MIN;
        let mut attached = 0;
        loop {
            self.heart.begin();
            self.asks.extend(inbox.try_iter());
            self.answer_all();
            if self.service.stop.load(Acquire) {
                tracing::info!("the service ends: it was told to");
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
            if let Some(session) = &self.service.session {
                let store = &mut self.service.engine.store;
                let expired =
                    !self.writeback.is_running() && self.expiry.look(store, &session.memory)?;
                let directory = &self.service.engine.store.files.directory;
                self.writeback.tend(directory, &session.memory, expired);
                nap = self.drain(nap, round);
                continue;
            }
            if self.service.free_some()? || self.service.remove_expired(&mut self.expiry)? {
                continue;
            }
            match self.next_ask(inbox) {
                Ok(ask) => self.asks.push_back(ask),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// Answers what can be answered now.
    fn answer_all(&mut self) {
        for _ in 0..self.asks.len() {
            let Some(mut ask) = self.asks.pop_front() else {
                return;
            };
            if self.service.engine.is_dividing() && is_change(&ask.request) {
                self.asks.push_back(ask);
                continue;
            }
            let adopt = ask.adopt.take();
            let reply = self.answer(&ask.request, adopt);
            ask.answer(reply);
        }
    }

    fn next_ask(&self, inbox: &Receiver<Ask>) -> std::result::Result<Ask, RecvTimeoutError> {
        self.heart.end();
        let ask = inbox.recv_timeout(ROUND);
        self.heart.begin();
        ask
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
            self.heart.end();
            env::sleep(Duration::from_micros(50));
            return NAP_MIN;
        }
        let nap = match turn.applied {
            0 => (nap * 2).min(NAP_MAX).min(round),
            _ => NAP_MIN,
        };
        let mut wait = nap;
        if self.service.engine.store.checkpoints.is_busy() {
            wait = wait.min(NAP_REST);
        }
        if turn.applied == 0 {
            // What is taken from under free blocks now costs those who write again much more.
            let long = nap >= 2 * NAP_IDLE;
            if nap >= NAP_IDLE && session.rest(&mut self.service.engine, long) {
                wait = NAP_REST;
            }
        }
        self.heart.end();
        header.service_sleeps.store(1, SeqCst);
        if header.doorbell.load(SeqCst) == bell {
            futex::wait(&header.doorbell, bell, Some(wait));
        }
        header.service_sleeps.store(0, SeqCst);
        nap
    }

    /// Ends the session when nobody is in it; true when the service is to end, too.
    fn look_around(&mut self, begun: Instant) -> Result<bool> {
        cuts::mend_open(&self.service.engine.store.files);
        self.log_strays();
        self.log_lost();
        let deserted = |service: &mut State| match service.session.as_mut() {
            Some(session) => session.is_deserted(&service.engine),
            None => Ok(true),
        };
        let in_use = self.users.attached.load(Acquire) > 0;
        if in_use {
            self.writeback.is_in_use();
        }
        if in_use || self.writeback.is_running() || !deserted(self.service)? {
            return Ok(false);
        }
        if let Some(session) = &self.service.session
            && !self
                .writeback
                .finish(&self.service.engine.store.files.directory, &session.memory)
        {
            return Ok(false);
        }
        // Whoever comes while a lot is flushed does not have to wait for that.
        let service = &mut *self.service;
        if let Some(session) = &mut service.session
            && !session.is_settled(&mut service.engine)
        {
            return Ok(false);
        }
        if !self.front.close(self.users) {
            return Ok(false);
        }
        let ever = self.users.ever.load(Acquire);
        if self.service.options.ending && (ever || begun.elapsed() > FIRST_USER) {
            let why = match ever {
                true => "its last user has gone",
                false => "nobody came",
            };
            tracing::info!("the service ends: {why}");
            return Ok(true);
        }
        if let Some(session) = self.service.session.take() {
            self.front.add_strays(session.memory.strays());
            self.strays = 0;
            self.lost = [0; LOST_BLOCKS];
            session.end(&mut self.service.engine)?;
            self.service.engine.store.begin()?;
            self.expiry.session_ended();
        }
        Ok(false)
    }

    /// Says that stray stores were stopped, of which the programs have said more.
    fn log_strays(&mut self) {
        let session = self.service.session.as_ref();
        let strays = session.map_or(0, |session| session.memory.strays());
        if strays > self.strays {
            let new = strays - self.strays;
            tracing::warn!("stray stores into the pool's data that were stopped: {new}");
        }
        self.strays = strays;
    }

    /// Names blocks that the medium has lost: those that were not among the last ones.
    fn log_lost(&mut self) {
        let Some(session) = &self.service.session else {
            return;
        };
        let lost = session.memory.lost_blocks();
        let is_new = |block: &&u64| **block != 0 && !self.lost.contains(block);
        for block in lost.iter().filter(is_new).map(|block| block - 1) {
            tracing::error!(
                "the medium has lost block {block} of the pool's data; \
                 holdfast pool block tells whose it is"
            );
        }
        self.lost = lost;
    }

    fn answer(&mut self, request: &Request, adopt: Option<OwnedFd>) -> Reply {
        if let Request::Status = request {
            return (self.describe(), Vec::new());
        }
        let damage = self.service.damage.as_ref();
        let done = match request {
            Request::Attach { .. } if damage.is_some() => return self.attach_to_read(),
            request
                if is_change(request)
                    && let Some(e) = damage =>
            {
                return (Answer::refusal(e.errno(), &e.to_string()), Vec::new());
            }
            Request::SnapshotCreate { name, owner } => {
                self.snapshot_create(name.as_bytes(), *owner)
            }
            Request::SnapshotDelete { name } => self.snapshot_delete(name.as_bytes()),
            Request::SnapshotRename { name, to } => {
                self.snapshot_rename(name.as_bytes(), to.as_bytes())
            }
            Request::Grow { size } => self.grow(*size),
            Request::SnapshotAttach { name } => {
                return self.to_read(snapshots::begin(&self.service.engine, name.as_bytes()));
            }
            Request::Attach { known, .. } => self.attach(adopt, *known),
            Request::Status => Ok(Vec::new()),
        };
        match done {
            Ok(fds) => (self.describe(), fds),
            Err(e) => (Answer::refusal(e.errno(), &e.to_string()), Vec::new()),
        }
    }

    /// A session in which nothing can be changed.
    fn to_read(&self, begun: Result<Vec<Sent>>) -> Reply {
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

    fn snapshot_create(&mut self, name: &[u8], owner: u32) -> Result<Vec<Sent>> {
        let service = &mut *self.service;
        match &mut service.session {
            Some(session) => session.snapshot_create(&mut service.engine, name, owner)?,
            None => return Err(Error::NotStopped),
        }
        Ok(Vec::new())
    }

    fn snapshot_delete(&mut self, name: &[u8]) -> Result<Vec<Sent>> {
        let service = &mut *self.service;
        snapshots::check_unused(&service.engine, name)?;
        match &mut service.session {
            Some(session) => session.snapshot_delete(&mut service.engine, name)?,
            // Programs run on without us, and we do not know their session yet.
            None if service.awaiting_survivors => return Err(Error::Awaiting),
            None => service.engine.snapshot_delete(name)?,
        }
        Ok(Vec::new())
    }

    fn grow(&mut self, size: u64) -> Result<Vec<Sent>> {
        let service = &mut *self.service;
        match &mut service.session {
            Some(session) => session.grow(&mut service.engine, size)?,
            None if service.awaiting_survivors => return Err(Error::Awaiting),
            None => drop(service.engine.grow(size)?),
        }
        Ok(Vec::new())
    }

    fn snapshot_rename(&mut self, name: &[u8], to: &[u8]) -> Result<Vec<Sent>> {
        let service = &mut *self.service;
        // Who begins to use a snapshot finds it by its name.
        snapshots::check_unused(&service.engine, name)?;
        match &mut service.session {
            Some(session) => session.snapshot_rename(&mut service.engine, name, to)?,
            None if service.awaiting_survivors => return Err(Error::Awaiting),
            None => service.engine.snapshot_rename(name, to)?,
        }
        Ok(Vec::new())
    }

    fn attach(&mut self, adopt: Option<OwnedFd>, known: u64) -> Result<Vec<Sent>> {
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
            self.front.open(&session.handout);
            self.service.session = Some(session);
        }
        let session = self.service.session.as_ref().ok_or(Error::NotASession)?;
        session.descriptors(known)
    }

    /// Programs that nobody can take over stop a new session for as long as they live.
    fn give_up_survivors(&mut self) -> Result<()> {
        let service = &mut *self.service;
        let files = &service.engine.store.files;
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
        let (engine, attached) = (&self.service.engine, self.users.attached.load(Acquire));
        self.front.with_strays(match &self.service.session {
            Some(session) => session.handout.describe(attached),
            None => Answer {
                users: attached,
                applied_seq: engine.journal.applied_seq(),
                ..handout::describe(engine.store.pool.superblock(), &engine.store.files)
            },
        })
    }
}

/// Whether a request changes the trees.
fn is_change(request: &Request) -> bool {
    matches!(
        request,
        Request::SnapshotCreate { .. }
            | Request::SnapshotDelete { .. }
            | Request::SnapshotRename { .. }
            | Request::Grow { .. }
    )
}
