//! Record locks (fcntl(2)) of programs on the mounted files, which count for programs in the pool
//! as well.
//!
//! Invariants: what one owner locks in one file are locks of one description that nobody else has,
//! so they are gone with it: when the owner closes the file, or the kernel says so.

use super::tree::Tree;
use super::who;
use fuser::{Errno, ReplyEmpty};
use holdfast::Error;
use holdfast_client::abi::{F_OFD_GETLK, F_OFD_SETLK, F_UNLCK, O_RDONLY, O_RDWR, SEEK_SET};
use holdfast_client::{Flock, OfdLink};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How often who waits looks again, at first and at last.
const PAUSE: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(10);
const EAGAIN: i32 = 11;

/// The descriptions that locks are of, by file and owner.
#[derive(Default)]
pub struct Locks(Mutex<HashMap<(u64, u64), OfdLink>>);

/// A part of a file, as the kernel tells it: with its last byte.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub start: u64,
    pub last: u64,
    pub kind: i16,
}

impl Part {
    fn lock(self) -> Flock {
        let end = i64::MAX as u64;
        Flock {
            kind: self.kind,
            whence: SEEK_SET as i16,
            start: self.start as i64,
            len: match self.last {
                last if last >= end => 0,
                last => (last - self.start + 1) as i64,
            },
            pid: 0,
        }
    }

    /// The same back.
    pub fn of(lock: &Flock) -> Part {
        let start = lock.start as u64;
        Part {
            start,
            last: match lock.len {
                0 => i64::MAX as u64,
                len => start + len as u64 - 1,
            },
            kind: lock.kind,
        }
    }
}

impl Locks {
    fn all(&self) -> MutexGuard<'_, HashMap<(u64, u64), OfdLink>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock that somebody wants on a part of an open file.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    pub open: OfdLink,
    /// The kernel's name for the process, or its like.
    pub owner: u64,
    pub user: u32,
    pub part: Part,
}

impl Tree {
    /// The description for the locks of one owner in one file, which is made if it is `wanted`.
    fn lock_description(&self, wish: &Wish, wanted: bool) -> Option<OfdLink> {
        let mut all = self.locks.all();
        let ino = self.inside(|client, _| client.ino_of(wish.open)).ok()?;
        if let Some(known) = all.get(&(ino, wish.owner)) {
            return Some(*known);
        }
        if !wanted {
            return None;
        }
        let named = self.nodes.named(ino);
        let named = named.as_ref().map_or((ino, &b""[..]), |n| (n.dir, &n.name));
        let with = |flags| {
            let open = || self.inside(|client, who| client.open_node(who, ino, named, flags));
            self.shares.take(wish.user, open)
        };
        let made = with(O_RDWR).or_else(|_| with(O_RDONLY)).ok()?;
        all.insert((ino, wish.owner), made);
        Some(made)
    }

    /// Whether somebody else's lock is in the way of this one; if not, it is `F_UNLCK`.
    pub fn look_at_lock(&self, wish: &Wish) -> Result<Flock, Error> {
        let mut lock = wish.part.lock();
        let own = self.lock_description(wish, true).unwrap_or(wish.open);
        self.inside(|client, _| client.fcntl_lock(own, F_OFD_GETLK, &mut lock))?;
        Ok(lock)
    }

    /// Locks a part, or unlocks it, if nobody else's lock is in the way.
    fn lock(&self, wish: &Wish) -> Result<(), Errno> {
        let unlocks = wish.part.kind == F_UNLCK;
        let own = match self.lock_description(wish, !unlocks) {
            Some(own) => own,
            None if unlocks => return Ok(()),
            None => return Err(Errno::ENOLCK),
        };
        let mut lock = wish.part.lock();
        let done = self.inside(|client, _| client.fcntl_lock(own, F_OFD_SETLK, &mut lock));
        done.map_err(|e| Errno::from_i32(e.errno()))
    }

    /// The same, and answers. Where a thread waits it is answered when the lock is there, or a
    /// signal is.
    pub fn answer_lock(self: &Arc<Self>, wish: Wish, waiting: Option<u32>, reply: ReplyEmpty) {
        match (self.lock(&wish), waiting) {
            (Ok(()), _) => reply.ok(),
            (Err(e), Some(thread)) if e.code() == EAGAIN => {
                let tree = Arc::clone(self);
                let wait = move || match tree.wait(&wish, thread) {
                    Ok(()) => reply.ok(),
                    Err(e) => reply.error(e),
                };
                // Where there is no thread, the answer is EIO.
                let _ = thread::Builder::new().spawn(wait);
            }
            (Err(e), _) => reply.error(e),
        }
    }

    fn wait(&self, wish: &Wish, thread: u32) -> Result<(), Errno> {
        let mut pause = PAUSE;
        loop {
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
            match self.lock(wish) {
                Err(e) if e.code() == EAGAIN => {}
                done => return done,
            }
            if who::is_wanted_elsewhere(thread) {
                return Err(Errno::EINTR);
            }
        }
    }

    /// The owner closed the file: its locks go.
    pub fn drop_locks(&self, open: OfdLink, owner: u64) {
        let mut all = self.locks.all();
        if all.is_empty() {
            return;
        }
        let Ok(ino) = self.inside(|client, _| client.ino_of(open)) else {
            return;
        };
        if let Some(own) = all.remove(&(ino, owner)) {
            self.close(own);
        }
    }
}
