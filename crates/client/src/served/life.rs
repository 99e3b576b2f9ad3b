//! The life of a process that is served: how it begins, its children, and its end.
//!
//! Invariants: a child has its connection before it is born, and its parent keeps none of it; what
//! a program finds after execve(2) is what its connection is.

use crate::base::error::{Error, Result};
use crate::base::types::OfdLink;
use crate::ops::slots::{Share, SlotId};
use crate::served::channel::{Ask, DESCRIPTORS, descriptor, handle_of};
use crate::served::wire::*;
use crate::served::{Report, Served};
use crate::session::run::MapCount;
use alloc::vec;
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use pmem::atomic::Ordering::*;
use pmem::process::{may_put_at, own_pid, put_at, take};
use pmem::record_locks::kept_open;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::io::IoSliceMut;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

/// Bits of a child's name for each of its two descriptors.
const FD_BITS: u32 = 20;
const MEMBER_BITS: u32 = 64 - 2 * FD_BITS;

/// A child that is not born yet: its connection, its channel if it will have a memory of its own,
/// and how the proxy names it.
#[derive(Clone, Copy)]
struct Unborn {
    connection: i32,
    channel: Option<i32>,
    member: u32,
}

/// In the place of a channel's number: there is none.
const NO_CHANNEL: u64 = (1 << FD_BITS) - 1;

impl Unborn {
    fn slot(self) -> Result<SlotId> {
        let channel = self.channel.map_or(NO_CHANNEL, |fd| fd as u64);
        let fits = |fd: i32| (0..NO_CHANNEL as i32).contains(&fd);
        let all_fit = fits(self.connection) && self.channel.is_none_or(fits);
        if !all_fit || self.member >> MEMBER_BITS != 0 {
            return Err(Error::TooManyFiles);
        }
        let fds = self.connection as u64 | channel << FD_BITS;
        let bits = fds | u64::from(self.member) << (2 * FD_BITS);
        SlotId::from_bits(bits).ok_or(Error::Invalid)
    }

    fn of(slot: SlotId) -> Unborn {
        let bits = slot.to_bits();
        let fd = |shift| bits >> shift & NO_CHANNEL;
        let channel = fd(FD_BITS);
        Unborn {
            connection: fd(0) as i32,
            channel: (channel != NO_CHANNEL).then_some(channel as i32),
            member: (bits >> (2 * FD_BITS)) as u32,
        }
    }

    /// Our copies of its descriptors go.
    fn close(self) {
        drop((take(self.connection), self.channel.map(take)));
    }
}

/// A run as `holdfast run` begins it: no program runs yet.
impl Served {
    /// The first process of a run on the pool, which appears at `at`; `channel` is what came with
    /// the answer on `connection`, which stays open for as long as this is used.
    pub fn enter(channel: BorrowedFd<'_>, connection: BorrowedFd<'_>, at: &[u8]) -> Result<Served> {
        let served = Served::new(channel, connection.as_raw_fd())?;
        let ask = Ask {
            texts: [at, &[]],
            ..Ask::default()
        };
        let member = served.number(Op::Enter, &ask)?;
        served.me.store(member as u32, Relaxed);
        Ok(served)
    }

    /// As `enter` in a child of fork(2) that had no connection made before: this one takes the
    /// place of its parent's.
    pub fn enter_again(
        &self,
        channel: BorrowedFd<'_>,
        connection: BorrowedFd<'_>,
        at: &[u8],
    ) -> Result<()> {
        self.renew(channel, 0)?;
        put_at(connection, self.connection).map_err(|_| self.give_up())?;
        let ask = Ask {
            texts: [at, &[]],
            ..Ask::default()
        };
        let member = self.number(Op::Enter, &ask)?;
        self.me.store(member as u32, Relaxed);
        Ok(())
    }

    /// As `enter` for a process that had the pool mapped: `place` is the slot that it offers, and
    /// the secret.
    pub fn adopt(
        (channel, connection): (BorrowedFd<'_>, BorrowedFd<'_>),
        at: &[u8],
        place: (u64, u64),
    ) -> Result<()> {
        let served = Served::new(channel, connection.as_raw_fd())?;
        let ask = Ask {
            texts: [at, &[]],
            ..args(&[place.0, place.1])
        };
        served.tell(Op::Adopt, &ask)
    }

    /// The connection for a program that is about to be started.
    pub fn connection_for_program(&self) -> Result<OwnedFd> {
        // The program gets a channel of its own.
        let unborn = self.alone(|| self.unborn(true))?;
        take(unborn.connection).map_err(|e| Error::Kernel {
            call: "recvmsg",
            errno: e.raw_os_error(),
        })
    }

    /// What the run has counted.
    pub fn report(&self) -> Result<Report> {
        let answered = self.ask(Op::Report, &Ask::default())?;
        let mut bytes = vec![0; answered.len()];
        answered.take(0, pmem::MutBuf::from(&mut bytes[..]))?;
        Report::decode(&bytes).ok_or(Error::Invalid)
    }
}

/// A program of a run.
impl Served {
    /// Takes over what the connection with this number has, before the program's first instruction;
    /// `is_open` tells which descriptors execve(2) left open.
    pub fn resume(connection: i32, is_open: &dyn Fn(u32) -> bool) -> Result<Served> {
        let gone = || Error::ProxyGone;
        let socket = kept_open(connection).ok_or_else(gone)?;
        let sent = rustix::net::send(
            socket,
            &Note::Renew(own_pid()).encode(),
            rustix::net::SendFlags::NOSIGNAL,
        );
        sent.map_err(|_| gone())?;
        let (Note::Channel, fds) = receive(socket)? else {
            return Err(gone());
        };
        let [channel] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| gone())?;
        let served = Served::new(channel.as_fd(), connection)?;
        let answered = match served.given() {
            Some(answered) => answered,
            None => served.ask(Op::Resume, &Ask::default())?,
        };
        let [_, _, member, inside, limited, locks, mask, ..] = answered.words;
        let mut fds = vec![0; answered.len()];
        answered.take(0, pmem::MutBuf::from(&mut fds[..]))?;
        drop(answered);
        served.me.store(member as u32, Relaxed);
        served.inside.store(inside != 0, Relaxed);
        served.limited.store(limited != 0, Relaxed);
        served.locks.store(locks != 0, Relaxed);
        served.mask.store(mask as u32, Relaxed);
        let (fds, _) = fds.as_chunks();
        for fd in fds.iter().map(|bytes| u32::from_le_bytes(*bytes)) {
            let (fd, is_pipe) = (fd & !PIPE, fd & PIPE != 0);
            if fd as usize >= DESCRIPTORS {
                return Err(gone());
            }
            served.note_bound(fd, true);
            served.pipes.set(fd, is_pipe);
            if !is_open(fd) {
                served.unbind(fd)?;
            }
        }
        Ok(served)
    }

    fn asked_descriptor(&self, from: u32) -> Result<Option<u32>> {
        let found = self.number(Op::NextDescriptor, &args(&[from.into()]))?;
        Ok(u32::try_from(found).ok())
    }

    /// Calls `each` with every descriptor that is a pool file.
    pub fn each_descriptor(&self, each: &mut dyn FnMut(u32)) {
        let mut from = 0;
        while let Some(fd) = self.next_descriptor(from) {
            each(fd);
            from = fd + 1;
        }
    }

    /// The lowest descriptor that is not below `from` and is a pool file.
    pub fn next_descriptor(&self, from: u32) -> Option<u32> {
        if !self.is_own() {
            return self.asked_descriptor(from).ok().flatten();
        }
        self.fds.next(from)
    }

    /// The owner of this memory has a descriptor of a pool file, or has it no more.
    pub(super) fn note_bound(&self, fd: u32, bound: bool) {
        self.quiet.set(fd, false);
        self.pipes.set(fd, false);
        self.known.forget_file(fd);
        self.fds.set(fd, bound);
    }

    /// The description behind a descriptor of this process.
    #[inline]
    pub fn lookup(&self, fd: u32) -> Option<OfdLink> {
        if fd as usize >= DESCRIPTORS {
            return None;
        }
        let bound = match self.member()? {
            (_, true) => self.fds.has(fd),
            (_, false) => {
                let bound = self.number(Op::Lookup, &args(&[fd.into()]));
                bound.is_ok_and(|bound| bound != 0)
            }
        };
        bound.then(|| handle_of(fd)).flatten()
    }

    pub(super) fn is_own(&self) -> bool {
        self.member().is_some_and(|(_, own)| own)
    }

    /// Descriptor `fd` takes over one reference to the description behind `handle`.
    pub fn bind(&self, fd: u32, handle: OfdLink) -> Result<()> {
        if fd as usize >= DESCRIPTORS {
            return Err(Error::TooManyFiles);
        }
        match descriptor(handle) {
            Some(old) => return self.dup(old, fd),
            None => self.tell(Op::Bind, &args(&[fd.into(), handle.raw().into()]))?,
        }
        if self.is_own() {
            self.note_bound(fd, true);
        }
        Ok(())
    }

    /// `new` becomes a duplicate of the pool descriptor `old`.
    pub fn dup(&self, old: u32, new: u32) -> Result<()> {
        if new as usize >= DESCRIPTORS {
            return Err(Error::TooManyFiles);
        }
        let (is_quiet, is_pipe) = (self.quiet.has(old), self.pipes.has(old));
        self.tell(Op::Dup, &args(&[old.into(), new.into()]))?;
        if self.is_own() {
            self.note_bound(new, true);
            self.known.duplicate(old, new);
            self.quiet.set(new, is_quiet);
            self.pipes.set(new, is_pipe);
        }
        Ok(())
    }

    /// Descriptor `fd` was closed: true if it was a pool file.
    pub fn unbind(&self, fd: u32) -> Result<bool> {
        if self.lookup(fd).is_none() {
            return Ok(false);
        }
        if self.is_own() {
            let is_quiet = self.quiet.has(fd) && !self.locks.load(Relaxed);
            self.note_bound(fd, false);
            if is_quiet && self.has_place() && self.close_later(fd) {
                return Ok(true);
            }
        }
        self.number(Op::Unbind, &args(&[fd.into()]))
            .map(|was| was != 0)
    }

    /// Drops a reference that was never bound.
    pub fn release(&self, handle: OfdLink) -> Result<()> {
        match descriptor(handle) {
            Some(_) => Ok(()),
            None => self.tell(Op::Release, &args(&[handle.raw().into()])),
        }
    }

    /// One more reference; a descriptor's own is as good.
    pub fn retain(&self, handle: OfdLink) -> Result<()> {
        match descriptor(handle) {
            Some(_) => Ok(()),
            // Nobody asks for more than the one that the call which opened it has.
            None => Err(Error::BadDescriptor),
        }
    }
}

/// Children, and the end.
impl Served {
    /// Before a child is made. `TableFull`: it cannot be had, as it would share descriptors or the
    /// working directory with a process that has a connection of its own, or as its connection
    /// could not have our number. `NoPlace`: the proxy is gone, and the child goes on without one.
    pub fn child_prepare(&self, share: Share) -> Result<SlotId> {
        if !self.has_place() {
            return Err(Error::NoPlace);
        }
        if share.files || share.directory || !may_put_at(self.connection) {
            return Err(Error::TableFull);
        }
        // What is closed here may be open there.
        self.quiet.clear();
        self.known.share_files();
        let unborn = self.alone(|| self.unborn(share.memory));
        // What was opened in between the child may have as well.
        self.quiet.clear();
        self.known.share_files();
        let slot = match unborn {
            Err(_) if !self.has_place() => return Err(Error::NoPlace),
            unborn => unborn?.slot()?,
        };
        if share.memory {
            self.sharing.fetch_add(1, AcqRel);
        }
        Ok(slot)
    }

    /// Nobody else gets anything on the connection meanwhile.
    pub(super) fn alone<T>(&self, f: impl FnOnce() -> T) -> T {
        while self.births.swap(true, Acquire) {
            rustix::thread::sched_yield();
        }
        let got = f();
        self.births.store(false, Release);
        got
    }

    /// What was asked for by a call that succeeded, on the connection.
    pub(super) fn get<const N: usize>(&self) -> Result<(Note, [OwnedFd; N])> {
        let (note, fds) = receive(self.socket()?)?;
        let fds = fds.try_into().map_err(|_| Error::TooManyFiles)?;
        Ok((note, fds))
    }

    /// A child, which will run in this memory or one of its own.
    fn unborn(&self, shares_memory: bool) -> Result<Unborn> {
        self.tell(Op::ChildPrepare, &args(&[shares_memory.into()]))?;
        let (Note::Child(member), fds) = receive(self.socket()?)? else {
            return Err(self.give_up());
        };
        let mut fds = fds.into_iter().map(IntoRawFd::into_raw_fd);
        let (Some(connection), channel) = (fds.next(), fds.next()) else {
            return Err(Error::TooManyFiles);
        };
        let unborn = Unborn {
            connection,
            channel,
            member,
        };
        if channel.is_none() != shares_memory {
            unborn.close();
            return Err(Error::TooManyFiles);
        }
        Ok(unborn)
    }

    /// In the parent, with the answer of the call.
    pub fn child_made(&self, slot: SlotId, _result: isize) {
        Unborn::of(slot).close();
    }

    /// In a child with a memory of its own.
    pub fn fork_child(&self, slot: Option<SlotId>) -> Result<()> {
        let unborn = Unborn::of(slot.ok_or_else(|| self.give_up())?);
        let channel = unborn.channel.and_then(kept_open);
        let channel = channel.ok_or_else(|| self.give_up())?;
        let renewed = self.renew(channel, unborn.member);
        let connection = kept_open(unborn.connection).ok_or_else(|| self.give_up())?;
        let put = put_at(connection, self.connection);
        unborn.close();
        match (renewed, put) {
            (Ok(()), Ok(())) => self.say(Note::Born(own_pid())),
            _ => Err(self.give_up()),
        }
    }

    /// In a child that runs in its parent's memory: the connection is its own from here on, also
    /// for the program that it may execute.
    pub fn shared_child(&self, slot: Option<SlotId>) -> Result<()> {
        let unborn = Unborn::of(slot.ok_or(Error::NoPlace)?);
        let pid = own_pid();
        if pid == self.pid.load(Relaxed) {
            return Err(Error::Exists);
        }
        let connection = kept_open(unborn.connection).ok_or(Error::NoPlace)?;
        put_at(connection, self.connection).map_err(|_| Error::NoPlace)?;
        let entry = u64::from(pid) << 32 | u64::from(unborn.member);
        let old = |kin: u64| (kin >> 32) as u32 == pid;
        self.kin
            .iter()
            .find(|kin| {
                let now = kin.load(Acquire);
                (now == 0 || old(now)) && kin.compare_exchange(now, entry, AcqRel, Relaxed).is_ok()
            })
            .map(|_| ())
            .ok_or(Error::NoPlace)
    }

    /// A child that shares this memory and has no place is about to be born.
    pub fn expect_shared_child(&self) -> Result<()> {
        self.sharing.fetch_add(1, AcqRel);
        Ok(())
    }

    /// Such a child runs in this memory no more.
    pub fn placeless_child_gone(&self, _pid: u32) {
        self.sharing.fetch_sub(1, AcqRel);
    }

    /// In the parent: the child was not born, or runs in this memory no more.
    pub fn shared_child_gone(&self, slot: SlotId) {
        let unborn = Unborn::of(slot);
        for kin in &self.kin {
            let now = kin.load(Acquire);
            if now != 0 && now as u32 == unborn.member {
                let _ = kin.compare_exchange(now, 0, AcqRel, Relaxed);
            }
        }
        self.sharing.fetch_sub(1, AcqRel);
        unborn.close();
    }

    /// Before exec.
    pub fn exec_prepare(&self) -> Result<Option<SlotId>> {
        Ok(None)
    }

    /// exec failed.
    pub fn exec_failed(&self, _next: Option<SlotId>) {}

    /// Nothing is shared that could be left.
    pub fn part_prepare(&self, _files: bool, _directory: bool) -> Result<Option<SlotId>> {
        Ok(None)
    }

    /// See `part_prepare`.
    pub fn parted(&self, _next: SlotId, _result: isize) -> Result<()> {
        Ok(())
    }

    /// The process ends.
    pub fn exit(&self, alone: bool) {
        if self.has_place() && !(alone && self.has_nothing()) {
            let _ = self.tell(Op::Exit, &args(&[alone.into()]));
        }
    }

    /// Whether the process has nothing whose end anybody could wait for: that its connection ends
    /// says all.
    fn has_nothing(&self) -> bool {
        let is_empty = self.fds.next(0).is_none() && !self.has_untold();
        self.is_own() && is_empty && !self.locks.load(Relaxed)
    }

    /// The proxy knows the mask.
    pub fn creation_mask(&self) -> u32 {
        0
    }

    /// umask(2).
    pub fn set_creation_mask(&self, mask: u32) {
        if self.mask.swap(u32::MAX, Relaxed) == mask {
            return;
        }
        let _ = self.tell(Op::Umask, &args(&[mask.into()]));
    }

    /// Nobody remembers it for the process.
    pub fn has_ids_of_pool(&self) -> bool {
        false
    }

    /// See `has_ids_of_pool`.
    pub fn note_ids_of_pool(&self) {}

    /// See `has_ids_of_pool`.
    pub fn note_ids_of_namespace(&self) {}

    /// Counts a call that the pool served.
    #[inline]
    pub fn count_served(&self) {
        if let Some(counts) = self.counts() {
            counts.served.fetch_add(1, Relaxed);
        }
    }

    /// Counts a call that was left to the kernel.
    #[inline]
    pub fn count_passed(&self) {
        if let Some(counts) = self.counts() {
            counts.passed.fetch_add(1, Relaxed);
        }
    }

    /// The proxy keeps no counts of mapping caches.
    pub fn count_mapping(&self, _: MapCount, _: u64) {}

    /// Counts a refusal.
    pub fn refuse(&self, call: u32, why: u32) {
        let _ = self.tell(Op::Refuse, &args(&[call.into(), why.into()]));
    }

    /// Names a program that the library could not enter.
    pub fn note_uninstrumented(&self, path: &[u8]) {
        let texts = [path, &[][..]];
        let _ = self.tell(
            Op::Uninstrumented,
            &Ask {
                texts,
                ..Ask::default()
            },
        );
    }

    /// The process gave up rights: real, effective and saved user, the same of the group, and
    /// whether it keeps any privilege; its supplementary groups.
    pub fn narrow(&self, users: [u32; 3], groups: [u32; 3], others: &[u32], privileged: bool) {
        if self.is_own() {
            self.known.forget();
        }
        let pair = |ids: [u32; 3], at: usize| u64::from(ids[at]) | u64::from(ids[at + 1]) << 32;
        let list: Vec<u8> = others.iter().flat_map(|id| id.to_le_bytes()).collect();
        let words = [
            pair(users, 0),
            users[2].into(),
            pair(groups, 0),
            groups[2].into(),
            privileged.into(),
        ];
        let texts = [&list[..], &[][..]];
        let ask = Ask {
            texts,
            ..args(&words)
        };
        // A process whose proxy does not know it would keep rights that it gave up.
        if self.tell(Op::Narrow, &ask).is_err() {
            self.give_up();
        }
    }
}

/// A request with these arguments and nothing else.
pub(super) fn args<'a>(words: &[u64]) -> Ask<'a> {
    let mut ask = Ask::default();
    for (to, word) in ask.args.iter_mut().zip(words) {
        *to = *word;
    }
    ask
}

/// The next note on a connection, with the descriptors beside it.
fn receive(socket: BorrowedFd<'_>) -> Result<(Note, Vec<OwnedFd>)> {
    let mut bytes = [0; NOTE_LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let len = loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket, &mut parts, &mut control, flags) {
            Ok(message) => break message.bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err(Error::ProxyGone),
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let note = bytes.get(..len).and_then(Note::decode);
    note.map(|note| (note, fds)).ok_or(Error::ProxyGone)
}
