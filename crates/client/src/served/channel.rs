//! The caller's side of a channel: lines, and the calls on them.
//!
//! Invariants:
//!  * A thread has a line for one call; nobody else touches it then but the proxy.
//!  * Once the proxy is known to be gone every call fails, and nothing is asked any more.
//!  * No lock is held while a signal handler of the program may run.

use crate::base::error::{Error, Result};
use crate::base::types::{Caller, OfdLink};
use crate::served::known::Known;
use crate::served::wire::*;
use alloc::boxed::Box;
use alloc::vec;
use core::sync::atomic::AtomicBool;
use core::time::Duration;
use pmem::atomic::{AtomicU32, AtomicU64, Ordering::*};
use pmem::futex::{self, WaitResult};
use pmem::process::{own_cpu, own_pid};
use pmem::record_locks::kept_open;
use pmem::{Access, ConstBuf, MutBuf, SharedMem};
use rustix::fd::BorrowedFd;
use rustix::net::{RecvFlags, SendFlags};

/// How often a caller that waits looks whether there still is a proxy.
const LOOK: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_millis(1);
/// Children at a time that share this memory.
const KIN: usize = 64;
/// Descriptors that pool files can have here.
pub(super) const DESCRIPTORS: usize = 1 << 16;

/// A pool as it is reached through its proxy.
pub struct Served {
    channel: SharedMem,
    /// The number of our connection, in this process and in all that share its memory.
    pub(super) connection: i32,
    /// The process that this memory belongs to: as the proxy names it, and its number.
    pub(super) me: AtomicU32,
    pub(super) pid: AtomicU32,
    /// Children that may run in this memory.
    pub(super) sharing: AtomicU32,
    /// Those who do: process number << 32 | as the proxy names it; 0: free.
    pub(super) kin: [AtomicU64; KIN],
    /// Lines in use, and lines that the proxy looks after, one bit for each.
    taken: AtomicU32,
    started: AtomicU32,
    /// Of which descriptor, plus 1, the buffer of each line has the content still, as the call
    /// answered that opened it; 0: of none.
    left: [AtomicU32; LINES],
    /// Held by whoever gets descriptors on the connection.
    pub(super) births: AtomicBool,
    /// The descriptors of the owner of this memory that are pool files.
    pub(super) fds: Set,
    /// Those whose closing nobody waits for: opened since the last child was made.
    pub(super) quiet: Set,
    /// Those that are pipes with a name, whose data the kernel carries.
    pub(super) pipes: Set,
    /// Somebody puts something off.
    puts_off: AtomicBool,
    /// Whether this process ever asked for a lock, which may end when it closes a file.
    pub(super) locks: AtomicBool,
    /// Whether its working directory is in the pool.
    pub(super) inside: AtomicBool,
    gone: AtomicBool,
    patience: Patience,
    pub(super) known: Known,
    /// Whether the proxy was told of a limit of file sizes.
    pub(super) limited: AtomicBool,
    /// The mask with which the program began, until it is told or known to be what the proxy has;
    /// u32::MAX: the next one is told.
    pub(super) mask: AtomicU32,
}

/// A set of descriptors.
pub(super) struct Set(Box<[AtomicU64]>);

impl Set {
    fn new() -> Set {
        let words = vec![0u64; DESCRIPTORS / 64];
        Set(words.into_iter().map(AtomicU64::new).collect())
    }

    pub fn has(&self, fd: u32) -> bool {
        let word = self.0.get(fd as usize / 64);
        word.is_some_and(|word| word.load(Acquire) & 1 << (fd % 64) != 0)
    }

    pub fn set(&self, fd: u32, is_in: bool) {
        let (word, bit) = (&self.0[fd as usize / 64], 1 << (fd % 64));
        match is_in {
            true => word.fetch_or(bit, AcqRel),
            false => word.fetch_and(!bit, AcqRel),
        };
    }

    pub fn clear(&self) {
        let words = self.0.iter().filter(|word| word.load(Relaxed) != 0);
        words.for_each(|word| word.store(0, Relaxed));
    }

    /// The lowest that is not below `from`.
    pub fn next(&self, from: u32) -> Option<u32> {
        let first = from as usize / 64;
        for (index, word) in self.0.iter().enumerate().skip(first) {
            let mut bits = word.load(Relaxed);
            if index == first {
                bits &= u64::MAX << (from % 64);
            }
            if bits != 0 {
                return Some(index as u32 * 64 + bits.trailing_zeros());
            }
        }
        None
    }
}

/// What is asked in one call.
#[derive(Clone, Copy, Default)]
pub(super) struct Ask<'a> {
    pub caller: Option<&'a Caller<'a>>,
    pub args: [u64; 6],
    pub texts: [&'a [u8]; 2],
    pub data: &'a [ConstBuf<'a>],
    /// A signal may end the call.
    pub waits: bool,
}

/// A line, until it is dropped.
pub(super) struct Held<'a> {
    served: &'a Served,
    index: usize,
}

/// An answer, on its line.
pub(super) struct Answered<'a> {
    held: Held<'a>,
    pub words: [u64; WORDS],
}

impl Served {
    /// A process whose channel is `memory` and whose connection has number `connection`.
    pub(super) fn new(memory: BorrowedFd<'_>, connection: i32) -> Result<Served> {
        Ok(Served {
            channel: SharedMem::map(memory, CHANNEL_LEN).map_err(Error::Memory)?,
            connection,
            me: AtomicU32::new(0),
            pid: AtomicU32::new(own_pid()),
            sharing: AtomicU32::new(0),
            kin: [const { AtomicU64::new(0) }; KIN],
            taken: AtomicU32::new(0),
            started: AtomicU32::new(1),
            left: [const { AtomicU32::new(0) }; LINES],
            births: AtomicBool::new(false),
            fds: Set::new(),
            quiet: Set::new(),
            pipes: Set::new(),
            puts_off: AtomicBool::new(false),
            locks: AtomicBool::new(false),
            inside: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            patience: Patience::default(),
            known: Known::new()?,
            limited: AtomicBool::new(false),
            mask: AtomicU32::new(u32::MAX),
        })
    }

    /// The same in a child of fork(2), whose channel is `memory`: it has one thread.
    pub(super) fn renew(&self, memory: BorrowedFd<'_>, member: u32) -> Result<()> {
        self.channel
            .replace(memory, Access::ReadWrite)
            .map_err(Error::Memory)?;
        self.me.store(member, Relaxed);
        self.pid.store(own_pid(), Relaxed);
        self.sharing.store(0, Relaxed);
        self.kin.iter().for_each(|kin| kin.store(0, Relaxed));
        self.taken.store(0, Relaxed);
        self.left.iter().for_each(|left| left.store(0, Relaxed));
        self.puts_off.store(false, Relaxed);
        // Many children execute a program without a call before.
        self.started.store(0, Relaxed);
        self.births.store(false, Relaxed);
        self.known.renew();
        Ok(())
    }

    /// What is counted in this memory.
    #[inline]
    pub(super) fn counts(&self) -> Option<&Counts> {
        self.channel.at(COUNTS_AT)
    }

    /// Has the proxy close `fd` soon; false: it cannot be put off.
    pub(super) fn close_later(&self, fd: u32) -> bool {
        let is_put = self.put_off(fd, Done::Closed);
        if is_put {
            self.knock();
        }
        is_put
    }

    /// Sees to it that the proxy does not sleep over what is untold: somebody may wait for the
    /// room that a file had. Whoever uses the first line meanwhile has its attention anyway.
    fn knock(&self) {
        let Some(line) = self.channel.at::<Line>(line_at(0)) else {
            return;
        };
        if line.proxy_sleeps.load(SeqCst) == 0 {
            return;
        }
        if let Some(_held) = self.hold_free(0)
            && line
                .turn
                .compare_exchange(IDLE, KNOCKED, SeqCst, Relaxed)
                .is_ok()
        {
            futex::wake(&line.turn, 1);
        }
    }

    /// Has the proxy do what was done to `fd` before the next call, in the place of what was done
    /// to it before; false: it cannot be put off.
    pub(super) fn put_off(&self, fd: u32, what: Done) -> bool {
        let item = Item { fd, what };
        let (Some(word), Some(untold)) = (item.encode(), self.channel.at::<Untold>(UNTOLD_AT))
        else {
            return false;
        };
        if self.puts_off.swap(true, Acquire) {
            return false;
        }
        let is_put = put(untold, item, word);
        self.puts_off.store(false, Release);
        is_put
    }

    /// The caller, as the proxy names it, and whether this memory is its own. `None`: it came to
    /// run here without our knowledge.
    #[inline]
    pub(super) fn member(&self) -> Option<(u32, bool)> {
        if self.sharing.load(Relaxed) == 0 {
            return Some((self.me.load(Relaxed), true));
        }
        let pid = own_pid();
        if pid == self.pid.load(Relaxed) {
            return Some((self.me.load(Relaxed), true));
        }
        let entries = self.kin.iter().map(|kin| kin.load(Acquire));
        let mut found = entries.filter(|entry| (entry >> 32) as u32 == pid);
        found.next().map(|entry| (entry as u32, false))
    }

    /// How the proxy names the owner of this memory.
    pub fn id(&self) -> u32 {
        self.me.load(Relaxed)
    }

    /// Whether the process can ask for anything.
    #[inline]
    pub fn has_place(&self) -> bool {
        !self.gone.load(Relaxed) && self.member().is_some()
    }

    /// Nothing is asked any more.
    pub(super) fn give_up(&self) -> Error {
        self.gone.store(true, Relaxed);
        Error::ProxyGone
    }

    /// Our connection.
    pub(super) fn socket(&self) -> Result<BorrowedFd<'static>> {
        kept_open(self.connection).ok_or_else(|| self.give_up())
    }

    pub(super) fn say(&self, note: Note) -> Result<()> {
        let sent = rustix::net::send(self.socket()?, &note.encode(), SendFlags::NOSIGNAL);
        sent.map(|_| ()).map_err(|_| self.give_up())
    }

    /// The answer that came with the channel, if one did.
    pub(super) fn given(&self) -> Option<Answered<'_>> {
        let held = self.hold_free(0)?;
        if held.line().ok()?.turn.load(Acquire) != ANSWERED {
            return None;
        }
        let words = held.answer().ok()?;
        (words[0] == 0).then_some(Answered { held, words })
    }

    /// Whether something is left that the proxy was not told.
    pub(super) fn has_untold(&self) -> bool {
        let untold = self.channel.at::<Untold>(UNTOLD_AT);
        untold.is_none_or(|untold| untold.count.load(SeqCst) != 0)
    }

    /// Asks, and waits for the answer.
    pub(super) fn ask(&self, op: Op, ask: &Ask<'_>) -> Result<Answered<'_>> {
        loop {
            let answered = self.ask_once(op, ask)?;
            if answered.words[0] != WAITS {
                return Ok(answered);
            }
        }
    }

    fn ask_once(&self, op: Op, ask: &Ask<'_>) -> Result<Answered<'_>> {
        let (member, _) = self.member().ok_or(Error::NoPlace)?;
        if self.gone.load(Relaxed) {
            return Err(Error::ProxyGone);
        }
        let held = self.hold()?;
        let lens = held.put(ask)?;
        let head = Head {
            op: op as u32,
            member,
            uid: ask.caller.map_or(u32::MAX, |c| c.uid),
            gid: ask.caller.map_or(u32::MAX, |c| c.gid),
            privileged: ask.caller.is_some_and(Caller::is_root),
            lens,
        };
        held.request(&head, &ask.args)?;
        held.wait(ask.waits)?;
        let words = held.answer()?;
        let answered = Answered { held, words };
        match answered.words[0] {
            0 | WAITS => Ok(answered),
            error => {
                let mut path = vec![0; answered.len()];
                answered.take(0, MutBuf::from(&mut path[..]))?;
                Err(word_error(error, path))
            }
        }
    }

    /// As `ask`, where nothing but success is to be known.
    pub(super) fn tell(&self, op: Op, ask: &Ask<'_>) -> Result<()> {
        self.ask(op, ask).map(drop)
    }

    /// As `ask`, for one number.
    pub(super) fn number(&self, op: Op, ask: &Ask<'_>) -> Result<u64> {
        self.ask(op, ask).map(|answered| answered.words[2])
    }

    fn hold(&self) -> Result<Held<'_>> {
        loop {
            let taken = self.taken.load(Relaxed);
            let index = taken.trailing_ones() as usize;
            if index >= LINES {
                futex::wait(&self.taken, taken, Some(NAP));
                continue;
            }
            let more = taken | 1 << index;
            if self
                .taken
                .compare_exchange_weak(taken, more, Acquire, Relaxed)
                .is_err()
            {
                continue;
            }
            let held = Held {
                served: self,
                index,
            };
            self.left[index].store(0, Relaxed);
            if self.started.load(Relaxed) & 1 << index == 0 {
                self.say(Note::Line(index as u32))?;
                self.started.fetch_or(1 << index, Relaxed);
            }
            return Ok(held);
        }
    }

    /// The line whose buffer has the content of the file that `fd` was opened for; `None`: none
    /// has, or somebody uses it.
    pub(super) fn content_of(&self, fd: u32) -> Option<Held<'_>> {
        let is_its = |left: &AtomicU32| left.load(Relaxed) == fd + 1;
        let index = self.left.iter().position(is_its)?;
        let held = self.hold_free(index)?;
        // Somebody may have used it before we had it.
        is_its(&self.left[index]).then_some(held)
    }

    /// This line, unless somebody uses it.
    fn hold_free(&self, index: usize) -> Option<Held<'_>> {
        let taken = self.taken.fetch_or(1 << index, Acquire);
        // One that somebody else has must not be dropped.
        (taken & 1 << index == 0).then(|| Held {
            served: self,
            index,
        })
    }

    /// Whether the other end of our connection is closed.
    fn has_hung_up(&self) -> bool {
        let Ok(socket) = self.socket() else {
            return true;
        };
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(socket, &mut [0u8; 1], flags) {
            Ok((_, 0)) => true,
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => false,
            Err(_) => true,
        }
    }

    /// What is mapped of the channel, and of what is known.
    pub fn own_memory(&self) -> [(usize, usize); 5] {
        let mut all = [(0, 0); 5];
        all[0] = (self.channel.addr(), self.channel.len());
        all[1..3].copy_from_slice(&self.known.places());
        all
    }
}

impl Held<'_> {
    fn line(&self) -> Result<&Line> {
        let line = self.served.channel.at(line_at(self.index));
        line.ok_or(Error::Invalid)
    }

    /// Puts what the call carries into the buffer; the lengths.
    fn put(&self, ask: &Ask<'_>) -> Result<[u32; 3]> {
        let texts = ask.texts.iter().map(|text| ConstBuf::from(*text));
        let (mut at, mut lens) = (0, [0u32; 3]);
        for (part, bytes) in texts.chain(ask.data.iter().copied()).enumerate() {
            if at + bytes.len() > BUFFER {
                return Err(Error::TooBig);
            }
            let to = self
                .served
                .channel
                .target(buffer_at(self.index) + at as u64, bytes.len());
            to.ok_or(Error::Invalid)?
                .copy_from(bytes)
                .map_err(Error::Fault)?;
            at += bytes.len();
            lens[part.min(2)] += bytes.len() as u32;
        }
        Ok(lens)
    }

    fn request(&self, head: &Head, args: &[u64; 6]) -> Result<()> {
        let line = self.line()?;
        let words = head.encode().into_iter().chain(*args);
        for (to, word) in line.request.iter().zip(words) {
            to.store(word, Relaxed);
        }
        line.cancel.store(0, Relaxed);
        line.turn.store(ASKED, SeqCst);
        if line.proxy_sleeps.load(SeqCst) != 0 {
            futex::wake(&line.turn, 1);
        }
        Ok(())
    }

    fn wait(&self, waits: bool) -> Result<()> {
        let line = self.line()?;
        let is_answered = || line.turn.load(Acquire) == ANSWERED;
        if self.served.patience.look(is_answered) {
            return Ok(());
        }
        let mut may_end = waits;
        line.caller_cpu.store(own_cpu(), Relaxed);
        line.caller_sleeps.store(1, SeqCst);
        while line.turn.load(SeqCst) != ANSWERED {
            let ended = match may_end {
                true => futex::wait_interruptible(&line.turn, ASKED, Some(LOOK)),
                false => futex::wait(&line.turn, ASKED, Some(LOOK)),
            };
            match ended {
                WaitResult::Interrupted if may_end => {
                    line.cancel.store(1, SeqCst);
                    may_end = false;
                }
                WaitResult::TimedOut if self.served.has_hung_up() => {
                    return Err(self.served.give_up());
                }
                _ => {}
            }
        }
        line.caller_sleeps.store(0, Relaxed);
        Ok(())
    }

    fn answer(&self) -> Result<[u64; WORDS]> {
        let line = self.line()?;
        let words = line.answer.each_ref().map(|word| word.load(Relaxed));
        line.turn.store(IDLE, Release);
        Ok(words)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // The line of a proxy that is gone stays as it is: nobody asks any more.
        let before = self.served.taken.fetch_and(!(1 << self.index), Release);
        if before.trailing_ones() as usize >= LINES {
            futex::wake(&self.served.taken, u32::MAX);
        }
    }
}

impl Held<'_> {
    /// Copies bytes of the buffer, from `skip` on.
    pub fn take(&self, skip: usize, mut out: MutBuf<'_>) -> Result<usize> {
        let at = buffer_at(self.index) + skip as u64;
        let from = self.served.channel.source(at, out.len());
        out.copy_from(from.ok_or(Error::Invalid)?)
            .map_err(Error::Fault)
    }
}

impl Answered<'_> {
    /// What is in the buffer stays there until somebody else uses the line: the content of the
    /// file that `fd` was opened for.
    pub fn leave(&self, fd: u32) {
        let all = &self.held.served.left;
        // What there was of an earlier file of this number is not this one's.
        for left in all {
            let _ = left.compare_exchange(fd + 1, 0, Relaxed, Relaxed);
        }
        all[self.held.index].store(fd + 1, Relaxed);
    }

    /// Bytes in the buffer.
    pub fn len(&self) -> usize {
        (self.words[1] as usize).min(BUFFER)
    }

    /// Copies bytes of the buffer, from `skip` on.
    pub fn take(&self, skip: usize, mut out: MutBuf<'_>) -> Result<usize> {
        let len = self.len().saturating_sub(skip).min(out.len());
        self.held.take(skip, out.take(len))
    }
}

/// Nobody else puts anything there meanwhile.
fn put(untold: &Untold, item: Item, word: u64) -> bool {
    let replace =
        |entry: &AtomicU64, old: u64| entry.compare_exchange(old, word, SeqCst, Relaxed).is_ok();
    for entry in &untold.entries {
        let old = entry.load(SeqCst);
        match Item::decode(old) {
            Some(earlier) if earlier.fd != item.fd => {}
            // The descriptor is no more.
            Some(earlier) if earlier.what == Done::Closed => return false,
            Some(_) if replace(entry, old) => return true,
            _ => {}
        }
    }
    // No entry is there without being counted.
    untold.count.fetch_add(1, SeqCst);
    let is_put = untold.entries.iter().any(|entry| replace(entry, 0));
    if !is_put {
        untold.count.fetch_sub(1, SeqCst);
    }
    is_put
}

/// The handle of a descriptor.
pub(super) fn handle_of(fd: u32) -> Option<OfdLink> {
    OfdLink::from_raw(fd.checked_add(1).filter(|handle| handle & UNBOUND == 0)?)
}

/// The descriptor behind a handle; `None`: none refers to that description yet.
pub(super) fn descriptor(handle: OfdLink) -> Option<u32> {
    (handle.raw() & UNBOUND == 0).then(|| handle.raw() - 1)
}
