//! What a process need not ask: answers that its proxy keeps (`answers`), found by this side.
//!
//! Invariants:
//!  * Only the owner of this memory looks there, as whom the answers are for.
//!  * A directory is named by its number. That of a descriptor is known from the call that opened
//!    it until it is closed, that of the working directory from the last change that nobody else
//!    made at the same time.

use crate::base::error::{Error, Result};
use crate::base::types::{Base, Caller, Stat};
use crate::served::Served;
use crate::served::answers::*;
use crate::served::channel::{Ask, descriptor};
use crate::served::wire::*;
use alloc::boxed::Box;
use alloc::vec::Vec;
use pmem::atomic::{AtomicU32, AtomicU64, Ordering::*};
use pmem::{Access, SharedMem};
use pool::layout::ROOT_INO;
use pool::session::LEASES_LEN;
use rustix::fd::AsFd;

/// Descriptors whose file is remembered.
const FILES: usize = 1024;
/// Calls of a program before it asks for the answers: many make no more.
const FIRST_CALLS: u32 = 8;

/// `Known::state`: nobody asked for the answers yet.
const AWAY: u32 = 0;
/// Somebody does.
const ASKING: u32 = 1;
const THERE: u32 = 2;
/// There are none for this process.
const NEVER: u32 = 3;

/// In `Known::directory`: the working directory is not known; the rest counts its changes.
const MOVING: u64 = 1 << 63;

/// What this side has of the answers.
pub(super) struct Known {
    state: AtomicU32,
    calls: AtomicU32,
    table: AnswerTable,
    leases: SharedMem,
    /// Whose the answers are.
    uid: AtomicU32,
    gid: AtomicU32,
    /// The working directory.
    directory: AtomicU64,
    moves: AtomicU64,
    /// The file of each descriptor; 0: not known.
    files: Box<[AtomicU64; FILES]>,
}

/// A change of the working directory that is under way.
pub(super) struct Move {
    before: u64,
    mark: u64,
}

impl Known {
    pub fn new() -> Result<Known> {
        let table = SharedMem::blank(ANSWERS_LEN).map_err(Error::Memory)?;
        Ok(Known {
            state: AtomicU32::new(AWAY),
            calls: AtomicU32::new(0),
            table: AnswerTable::new(table),
            leases: SharedMem::blank(LEASES_LEN).map_err(Error::Memory)?,
            uid: AtomicU32::new(0),
            gid: AtomicU32::new(0),
            directory: AtomicU64::new(MOVING),
            moves: AtomicU64::new(0),
            files: Box::new([const { AtomicU64::new(0) }; FILES]),
        })
    }

    /// In a child of fork(2): nobody else asks for anything here.
    pub fn renew(&self) {
        let _ = self.state.compare_exchange(ASKING, AWAY, Relaxed, Relaxed);
    }

    /// The process has other rights now.
    pub fn forget(&self) {
        self.state.store(NEVER, Release);
    }

    /// The file that `fd` refers to from now on; 0: it is not known.
    pub fn note_file(&self, fd: u32, ino: u64) {
        if let Some(file) = self.files.get(fd as usize) {
            file.store(ino, Release);
        }
    }

    /// The file behind a descriptor; 0: it is not known.
    pub fn file(&self, fd: u32) -> u64 {
        let file = self.files.get(fd as usize);
        file.map_or(0, |file| file.load(Acquire))
    }

    /// The working directory is about to change.
    pub fn begin_move(&self) -> Move {
        let mark = MOVING | self.moves.fetch_add(1, AcqRel);
        let before = self.directory.swap(mark, AcqRel);
        Move { before, mark }
    }

    /// It is this one now; `None`: what it was. Unless somebody else began to change it meanwhile.
    pub fn end_move(&self, moved: &Move, now: Option<u64>) {
        let now = now.filter(|ino| *ino != 0).unwrap_or(moved.before);
        let _ = self
            .directory
            .compare_exchange(moved.mark, now, AcqRel, Relaxed);
    }

    /// Where both parts are mapped.
    pub fn places(&self) -> [(usize, usize); 2] {
        let table = self.table.memory();
        [table, &self.leases].map(|memory| (memory.addr(), memory.len()))
    }
}

impl Served {
    /// Whether there are answers for `c`.
    fn has_answers_for(&self, c: Option<&Caller<'_>>) -> bool {
        let known = &self.known;
        let is_theirs = |c: &Caller<'_>| {
            let ids = (known.uid.load(Relaxed), known.gid.load(Relaxed));
            (c.uid, c.gid) == ids && !c.privileged && c.ids.is_none()
        };
        match known.state.load(Acquire) {
            THERE => c.is_none_or(is_theirs) && self.is_own() && self.has_place(),
            AWAY => {
                if known.calls.fetch_add(1, Relaxed) >= FIRST_CALLS && self.is_own() {
                    self.ask_for_answers();
                }
                false
            }
            _ => false,
        }
    }

    #[cold]
    fn ask_for_answers(&self) {
        let state = &self.known.state;
        if state
            .compare_exchange(AWAY, ASKING, AcqRel, Relaxed)
            .is_err()
        {
            return;
        }
        let now = match self.alone(|| self.get_answers()) {
            Ok(()) => THERE,
            // What was sent before is not received yet.
            Err(Error::WouldBlock) => {
                self.known.calls.store(0, Relaxed);
                AWAY
            }
            Err(_) => NEVER,
        };
        let _ = state.compare_exchange(ASKING, now, AcqRel, Relaxed);
    }

    fn get_answers(&self) -> Result<()> {
        let known = &self.known;
        let moved = known.begin_move();
        let asked = self.ask(Op::Answers, &Ask::default());
        let words = asked.map(|answered| answered.words);
        known.end_move(&moved, words.as_ref().ok().map(|words| words[4]));
        let words = words?;
        let (_, [table, leases]) = self.get::<2>()?;
        let map = |memory: &SharedMem, file: &rustix::fd::OwnedFd| {
            memory.replace(file.as_fd(), Access::ReadOnly)
        };
        map(known.table.memory(), &table).map_err(Error::Memory)?;
        map(&known.leases, &leases).map_err(Error::Memory)?;
        known.uid.store(words[2] as u32, Relaxed);
        known.gid.store(words[3] as u32, Relaxed);
        Ok(())
    }

    fn find(&self, q: &Question<'_>) -> Option<Result<[u64; ANSWER_WORDS]>> {
        let words = self.known.table.find(self.known.leases.at(0)?, q)?;
        Some(match words[0] {
            0 => Ok(words),
            error => Err(word_error(error, Vec::new())),
        })
    }

    fn directory_of(&self, base: Base) -> Option<u64> {
        let ino = match base {
            Base::Root => ROOT_INO,
            Base::Cwd => self.known.directory.load(Acquire),
            Base::Ofd(handle) => self.known.file(descriptor(handle)?),
            Base::Node(_) => 0,
        };
        (ino != 0 && ino & MOVING == 0).then_some(ino)
    }

    /// The answer about a path, if it is known.
    fn known_of(
        &self,
        c: &Caller<'_>,
        (base, path): (Base, &[u8]),
        asked: Asked,
        arg: u32,
    ) -> Option<Result<[u64; ANSWER_WORDS]>> {
        if !self.has_answers_for(Some(c)) {
            return None;
        }
        let base = if path.first() == Some(&b'/') {
            Base::Root
        } else {
            base
        };
        let start = self.directory_of(base)?;
        let (path, name) = split(path)?;
        let dir = match path.iter().all(|byte| *byte == b'/') {
            true => start,
            false => {
                let question = Question {
                    asked: Asked::Directory,
                    arg: 0,
                    dir: start,
                    name: path,
                };
                match self.find(&question)? {
                    Ok(words) => words[1],
                    Err(e) => return Some(Err(e)),
                }
            }
        };
        let question = Question {
            asked,
            arg,
            dir,
            name,
        };
        self.find(&question)
    }

    /// As `stat`, if the answer is known.
    pub(super) fn known_stat(
        &self,
        c: &Caller<'_>,
        base: Base,
        path: &[u8],
        flags: u32,
    ) -> Option<Result<Stat>> {
        let found = self.known_of(c, (base, path), Asked::Stat, stat_arg(flags)?)?;
        Some(found.map(|words| words_stat(&words[1..])))
    }

    /// As `access`, if the answer is known.
    pub(super) fn known_access(
        &self,
        c: &Caller<'_>,
        base: Base,
        path: &[u8],
        how: (u32, u32),
    ) -> Option<Result<()>> {
        let arg = access_arg(how.0, how.1)?;
        let found = self.known_of(c, (base, path), Asked::Access, arg)?;
        Some(found.map(drop))
    }

    /// As `fstat`, if the answer is known.
    pub(super) fn known_fstat(&self, fd: u32) -> Option<Stat> {
        let dir = self.known.file(fd);
        if dir == 0 || !self.has_answers_for(None) {
            return None;
        }
        let question = Question {
            asked: Asked::Fstat,
            arg: 0,
            dir,
            name: b"",
        };
        let words = self.find(&question)?.ok()?;
        Some(words_stat(&words[1..]))
    }

    /// Whether it is known that `open` finds nothing there.
    pub fn finds_nothing(
        &self,
        c: &Caller<'_>,
        base: Base,
        path: &[u8],
        (oflags, resolve): (u32, u64),
    ) -> bool {
        asks_for_what_is_there(oflags, resolve)
            && matches!(
                self.known_stat(c, base, path, 0),
                Some(Err(Error::NotFound))
            )
    }
}
