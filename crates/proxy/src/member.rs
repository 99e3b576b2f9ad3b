//! One process that is served: its rights, its place in the session, and what it has open.
//!
//! Invariants:
//!  * Calls use the place while they hold `place` for reading; it is given back while it is held
//!    for writing, so no call is amid anything then. A call holds it once: who asked a second time
//!    would wait for whoever waits for the call to end.
//!  * A description that no descriptor refers to is in `unbound`, and is released with the process.

use crate::answers::Answers;
use crate::base::Base;
use crate::keys::Keys;
use crate::listed::Listed;
use crate::maps::Maps;
use crate::proxy::Shared;
use crate::rights::Rights;
use crate::run::Run;
use holdfast_client::abi::SEEK_SET;
use holdfast_client::served::wire::{COUNTS_AT, Counts, UNBOUND};
use holdfast_client::{Client, Error, OfdLink, Result};
use holdfast_pmem::SharedMem;
use rustix::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

/// Descriptions of one process that no descriptor refers to yet: one for each call that opens.
const UNBOUND_MAX: usize = 256;
/// Descriptors of one process.
const DESCRIPTORS_MAX: u32 = 1 << 16;

/// What was opened and has no descriptor yet.
struct Unbound {
    ofd: OfdLink,
    /// The kernel's pipe, if it is one with a name, and open.
    pipe: Option<OwnedFd>,
}

/// A process.
pub struct Member {
    pub id: u32,
    /// Our end of its connection.
    pub socket: OwnedFd,
    pub shared: Arc<Shared>,
    pub run: Arc<Run>,
    /// What it works on, from its first request on.
    base: OnceLock<Arc<Base>>,
    /// Where the pool appears to it.
    pub at: OnceLock<Box<[u8]>>,
    rights: RwLock<Rights>,
    place: RwLock<Option<Client>>,
    unbound: Mutex<Vec<Option<Unbound>>>,
    /// Descriptors that are pool files.
    bound: AtomicU32,
    leaves: AtomicBool,
    /// Whether it ever asked for a lock.
    pub locks: AtomicBool,
    ended: AtomicBool,
    /// What it looks for answers in.
    answers: OnceLock<Arc<Answers>>,
    /// What it listed last.
    pub listed: Listed,
    /// It has what others with its rights may not have.
    knows_more: AtomicBool,
    /// The memory that it runs in: what is mapped there, and its channel.
    memory: Mutex<Option<(Arc<Maps>, Arc<SharedMem>)>>,
    /// Keyspaces, and what it reads and changes there.
    pub keys: Keys,
    /// Held by whoever sends to it.
    sends: Mutex<()>,
}

impl Member {
    /// One that has no place in the session yet.
    pub fn new(
        shared: &Arc<Shared>,
        socket: OwnedFd,
        rights: Rights,
        run: Arc<Run>,
    ) -> Arc<Member> {
        shared.members.fetch_add(1, AcqRel);
        let member = Arc::new(Member {
            id: shared.next_id(),
            socket,
            shared: shared.clone(),
            run,
            base: OnceLock::new(),
            at: OnceLock::new(),
            rights: RwLock::new(rights),
            place: RwLock::new(None),
            unbound: Mutex::new(Vec::new()),
            bound: AtomicU32::new(0),
            leaves: AtomicBool::new(false),
            locks: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            answers: OnceLock::new(),
            listed: Listed::default(),
            knows_more: AtomicBool::new(false),
            memory: Mutex::default(),
            keys: Keys::default(),
            sends: Mutex::default(),
        });
        shared.add(&member);
        member
    }

    /// Nobody else sends to it while the value lives.
    pub fn sends(&self) -> MutexGuard<'_, ()> {
        self.sends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It works there, now and later.
    pub fn work_on(&self, base: Arc<Base>) {
        let _ = self.base.set(base);
    }

    /// What it works on.
    pub fn base(&self) -> &Arc<Base> {
        self.base.get().unwrap_or(&self.shared.pool)
    }

    /// It has this place from now on; `Invalid`: it has one already, or has ended.
    pub fn settle(&self, client: Client) -> Result<()> {
        client.session().serve_another();
        let mut place = self.place.write().unwrap_or_else(PoisonError::into_inner);
        if place.is_some() || self.has_ended() {
            client.exit(true);
            return Err(Error::Invalid);
        }
        *place = Some(client);
        Ok(())
    }

    /// Whether the process has ended. Unlike a look at its place this waits for nobody.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Acquire)
    }

    /// Its place, if it has one.
    pub fn place(&self) -> RwLockReadGuard<'_, Option<Client>> {
        self.place.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its rights as they are now.
    pub fn rights(&self) -> RwLockReadGuard<'_, Rights> {
        self.rights.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// It says that this is its number: others are told that if the process is one of its user.
    pub fn is_process(&self, pid: u32) {
        let is_its = std::fs::metadata(format!("/proc/{pid}"))
            .is_ok_and(|process| self.rights().has_user(process.uid()));
        if let (true, Some(client)) = (is_its, self.place().as_ref()) {
            client.session().show_as(pid);
            client.reap_before(pid);
        }
    }

    /// It gets something that its rights alone would not give it: what it is answered from here on
    /// is not for others.
    pub fn knows_more(&self) {
        self.knows_more.store(true, SeqCst);
    }

    /// User, group and other groups, if these are all that it has and it can have no others.
    pub fn lasting_rights(&self) -> Option<(u32, u32, Vec<u32>)> {
        let is_the_pool = Arc::ptr_eq(self.base(), &self.shared.pool);
        let knows_more = self.knows_more.load(SeqCst);
        let rights = self.rights();
        (is_the_pool && !knows_more).then(|| rights.lasting())?
    }

    /// It looks for answers there.
    pub fn keep(&self, answers: Arc<Answers>) {
        let _ = self.answers.set(answers);
    }

    /// What is answered to it is kept there.
    pub fn answers(&self) -> Option<&Arc<Answers>> {
        let answers = self.answers.get()?;
        (!self.knows_more.load(SeqCst)).then_some(answers)
    }

    /// Changes its rights; false if that is not among them.
    pub fn narrow(
        &self,
        users: [u32; 3],
        groups: [u32; 3],
        others: Vec<u32>,
        privileged: bool,
    ) -> bool {
        self.knows_more();
        let mut rights = self.rights.write().unwrap_or_else(PoisonError::into_inner);
        rights.narrow(users, groups, others, privileged)
    }

    fn memory(&self) -> MutexGuard<'_, Option<(Arc<Maps>, Arc<SharedMem>)>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It runs in the memory that has this channel, and where this is mapped.
    pub fn enter(&self, maps: &Arc<Maps>, channel: &Arc<SharedMem>) {
        maps.enter();
        *self.memory() = Some((maps.clone(), channel.clone()));
    }

    /// It ends, or has another memory now.
    pub fn leave_memory(&self, client: &Client) {
        self.count(client);
        let memory = self.memory().take();
        if let Some((maps, _)) = memory {
            maps.leave(client);
        }
    }

    /// What was counted in its memory since the last time is the run's.
    pub fn count(&self, client: &Client) {
        let memory = self.memory();
        let channel = memory.as_ref().map(|(_, channel)| channel);
        if let Some(counts) = channel.and_then(|channel| channel.at::<Counts>(COUNTS_AT)) {
            let [served, passed] = [&counts.served, &counts.passed].map(|n| n.swap(0, Relaxed));
            self.run.count(client, served, passed);
        }
    }

    fn unbound(&self) -> MutexGuard<'_, Vec<Option<Unbound>>> {
        self.unbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle for a description that was just opened. `TableFull`: there are too many.
    pub fn hold(&self, client: &Client, ofd: OfdLink) -> Result<u32> {
        let mut unbound = self.unbound();
        let free = unbound.iter().position(Option::is_none);
        let index = match free {
            Some(index) => index,
            None if unbound.len() < UNBOUND_MAX => {
                unbound.push(None);
                unbound.len() - 1
            }
            None => {
                drop(unbound);
                client.release(ofd)?;
                return Err(Error::TableFull);
            }
        };
        unbound[index] = Some(Unbound { ofd, pipe: None });
        Ok(UNBOUND | index as u32)
    }

    /// The description that `handle` was given for is the caller's.
    pub fn take(&self, handle: u32) -> Result<OfdLink> {
        let mut unbound = self.unbound();
        let held = unbound.get_mut(index_of(handle)?);
        let taken = held.and_then(Option::take).ok_or(Error::BadDescriptor)?;
        Ok(taken.ofd)
    }

    /// The kernel's pipe of what `handle` names is open.
    pub fn keep_pipe(&self, handle: u32, pipe: OwnedFd) -> Result<()> {
        let mut unbound = self.unbound();
        let held = unbound.get_mut(index_of(handle)?);
        let held = held.and_then(Option::as_mut).ok_or(Error::BadDescriptor)?;
        held.pipe = Some(pipe);
        Ok(())
    }

    /// As `take`, with the pipe, which is open.
    pub fn take_pipe(&self, handle: u32) -> Result<(OfdLink, OwnedFd)> {
        let mut unbound = self.unbound();
        let held = unbound.get_mut(index_of(handle)?);
        let held = held.ok_or(Error::BadDescriptor)?;
        match held.take() {
            Some(Unbound {
                ofd,
                pipe: Some(pipe),
            }) => Ok((ofd, pipe)),
            other => {
                *held = other;
                Err(Error::BadDescriptor)
            }
        }
    }

    /// The description that a handle names.
    pub fn description(&self, client: &Client, handle: u32) -> Result<OfdLink> {
        let found = match handle & UNBOUND {
            0 => handle.checked_sub(1).and_then(|fd| client.lookup(fd)),
            _ => {
                let unbound = self.unbound();
                let held = unbound.get((handle & !UNBOUND) as usize);
                held.and_then(Option::as_ref).map(|held| held.ofd)
            }
        };
        found.ok_or(Error::BadDescriptor)
    }

    /// Makes descriptor `fd` one of a pool file, by `bind`.
    pub fn bind(&self, client: &Client, fd: u32, bind: impl FnOnce() -> Result<()>) -> Result<()> {
        if fd >= DESCRIPTORS_MAX {
            return Err(Error::TooManyFiles);
        }
        if self.leaves.load(Acquire) {
            return Err(Error::NoPlace);
        }
        let is_new = client.lookup(fd).is_none();
        if is_new {
            self.shared.files.take(1)?;
            self.bound.fetch_add(1, AcqRel);
        }
        bind().inspect_err(|_| {
            if is_new {
                self.unbound_one();
            }
        })
    }

    /// Closes a descriptor; whether it was one of a pool file.
    pub fn unbind(&self, client: &Client, fd: u32) -> Result<bool> {
        let was = client.unbind(fd)?;
        if was {
            self.unbound_one();
        }
        Ok(was)
    }

    /// The process has moved the offset of descriptor `fd`.
    pub fn seek(&self, client: &Client, fd: u32, offset: u64) -> Result<()> {
        let ofd = client.lookup(fd).ok_or(Error::BadDescriptor)?;
        client.lseek(ofd, offset as i64, SEEK_SET).map(drop)
    }

    /// A descriptor is none of a pool file any more.
    fn unbound_one(&self) {
        let less = |bound: u32| bound.checked_sub(1);
        if self.bound.fetch_update(AcqRel, Acquire, less).is_ok() {
            self.shared.files.give_back(1);
        }
    }

    /// The process closes everything and binds nothing any more.
    pub fn leave(&self, client: &Client) {
        self.leaves.store(true, Release);
        client.exit(false);
        self.closed_all();
    }

    /// A child has as many descriptors, and looks for answers in the same memory.
    pub fn inherit(&self, parent: &Member) -> Result<()> {
        if parent.knows_more.load(SeqCst) {
            self.knows_more();
        }
        if let Some(answers) = parent.answers.get() {
            self.keep(answers.clone());
        }
        self.found(parent.bound.load(Acquire))
    }

    /// It begins with so many descriptors.
    pub fn found(&self, count: u32) -> Result<()> {
        self.shared.files.take(count)?;
        self.bound.store(count, Release);
        Ok(())
    }

    /// Its descriptors are gone.
    fn closed_all(&self) {
        self.shared.files.give_back(self.bound.swap(0, AcqRel));
    }

    /// The process has ended: what it had goes, when no call for it is under way any more.
    pub fn end(&self) {
        self.ended.store(true, Release);
        let place = self.place.write();
        self.leave_place(place.unwrap_or_else(PoisonError::into_inner));
    }

    /// As `end`, if no call is under way; whether it has ended wholly. Waits for nobody: a call
    /// that waited for the end of another might be waited for itself.
    pub fn try_end(&self) -> bool {
        match self.place.try_write() {
            Ok(place) => {
                self.ended.store(true, Release);
                self.leave_place(place);
                true
            }
            Err(_) => false,
        }
    }

    fn leave_place(&self, mut place: RwLockWriteGuard<'_, Option<Client>>) {
        let Some(client) = place.take() else { return };
        for held in self.unbound().drain(..).flatten() {
            // Its errors are those of a close that nobody asked for.
            let _ = client.release(held.ofd);
        }
        self.keys.clear(&self.shared, &client);
        self.leave_memory(&client);
        client.exit(true);
        self.closed_all();
    }
}

/// Where in the list a handle is.
fn index_of(handle: u32) -> Result<usize> {
    match handle & UNBOUND {
        0 => Err(Error::BadDescriptor),
        _ => Ok((handle & !UNBOUND) as usize),
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end();
        self.closed_all();
        self.shared.members.fetch_sub(1, AcqRel);
    }
}
