//! What a process need not ask: answers that its proxy keeps (`answers`), found by this side.
//!
//! Invariants:
//!  * Only the owner of this memory looks there, as whom the answers are for.
//!  * A directory is named by its number. That of a descriptor is known from the call that opened
//!    it until it is closed, that of the working directory from the last change that nobody else
//!    made at the same time.
//!  * A file whose content came with the answer that opened it is read and sought here as long as
//!    the lease lasts and the content is where the answer left it; the proxy hears of the offset
//!    before the next call.
//!  * That a descriptor is at its end is known from the call that found the end, as long as no call
//!    that may move its offset was under way at the same time or since, and nobody else has its
//!    description: it has not been duplicated, and no child was made.

use crate::base::abi::{AT_SYMLINK_NOFOLLOW, S_IFLNK, S_IFMT, SEEK_CUR, SEEK_END, SEEK_SET};
use crate::base::error::{Error, Result};
use crate::base::types::{Base, Caller, Stat, Target};
use crate::served::Served;
use crate::served::answers::*;
use crate::served::channel::{Answered, Ask, descriptor};
use crate::served::wire::*;
use alloc::boxed::Box;
use alloc::vec::Vec;
use pmem::atomic::{AtomicU32, AtomicU64, Ordering::*};
use pmem::{Access, MutBuf, SharedMem};
use pool::layout::{FILE_SIZE_MAX, ROOT_INO};
use pool::session::{LEASES_LEN, LeaseWords};
use rustix::fd::AsFd;

/// Descriptors whose file is remembered.
const FILES: usize = 1024;
/// Calls of a program before it asks for the answers: many make no more.
const FIRST_CALLS: u32 = 8;

/// How coarse clocks are, in milliseconds.
const CLOCK_MS: u64 = 20;

/// `Known::state`: nobody asked for the answers yet.
const AWAY: u32 = 0;
/// Somebody does.
const ASKING: u32 = 1;
const THERE: u32 = 2;
/// There are none for this process.
const NEVER: u32 = 3;

/// In `Known::directory` and `Known::ends`: it is not known; the rest tells changes apart.
const MOVING: u64 = 1 << 63;
/// In `Known::ends`: what follows is a lease, with which the descriptor is at its end.
const AT_END: u64 = 1 << 62;
/// Somebody moves the offset without the proxy. Whoever comes to move it otherwise, to share the
/// descriptor or to close it waits for that: it is short, and no signal is handled meanwhile.
const LOCAL: u64 = MOVING | AT_END;
/// It is the end of a listing, not of a file's bytes.
const IS_LIST: u64 = 1 << 61;
/// In `Known::ends`, without `AT_END`: a lease follows under which the content is what the call
/// left that opened the file, and the offset what `Known::offsets` says.
const HAS_CONTENT: u64 = 1 << 61;
/// Bits of the value of that lease, above its index.
const VALUE_BITS: u64 = (1 << 45) - 1;
/// In `Known::files`: no other descriptor has this description.
const ALONE: u64 = 1 << 63;

/// In `Known::flags`.
const FLAGS_KNOWN: u32 = 1 << 31;

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
    /// What is known of the offset of each; 0: nothing.
    ends: Box<[AtomicU64; FILES]>,
    /// Where there is content: its length << 32 | the file offset.
    offsets: Box<[AtomicU64; FILES]>,
    /// The flags of each, with `FLAGS_KNOWN`, as long as no other process has its description.
    flags: Box<[AtomicU32; FILES]>,
    /// How often a child was about to be made, or flags were changed.
    births: AtomicU32,
}

/// At the end of what a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Bytes,
    List,
}

/// The word that says that a descriptor is at its end, under the lease that an answer names.
fn end_word(end: End, words: &[u64]) -> Option<u64> {
    let (index, value) = (words[3].checked_sub(1)?, words[4]);
    let kind = if end == End::List { IS_LIST } else { 0 };
    Some(AT_END | kind | (value & VALUE_BITS) << 16 | index & 0xffff)
}

/// The lease in such a word.
fn lease_of(word: u64) -> (u32, u64) {
    (word as u32 & 0xffff, word >> 16 & VALUE_BITS)
}

/// Makes a word of `ends` another one, when nobody moves that offset without the proxy.
fn take(end: &AtomicU64, to: u64) {
    loop {
        let now = settled(end);
        if end.compare_exchange(now, to, SeqCst, Relaxed).is_ok() {
            return;
        }
    }
}

/// Such a word, when nobody does.
fn settled(end: &AtomicU64) -> u64 {
    loop {
        let now = end.load(SeqCst);
        if now & LOCAL != LOCAL {
            return now;
        }
        rustix::thread::sched_yield();
    }
}

/// What may move the offset of a descriptor, and is under way.
pub(super) struct Moving<'a> {
    end: Option<&'a AtomicU64>,
    mark: u64,
}

impl Moving<'_> {
    /// It is over, and the offset may be anywhere.
    pub fn leave(self) {
        if let Some(end) = self.end {
            end.store(0, SeqCst);
        }
    }

    /// It is over, with an answer that may say that the offset is at the end.
    pub fn reach(self, at: End, words: &[u64]) {
        if let (Some(end), Some(word)) = (self.end, end_word(at, words)) {
            // Unless another one has begun or ended meanwhile.
            let _ = end.compare_exchange(self.mark, word, SeqCst, Relaxed);
        }
    }
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
            ends: Box::new([const { AtomicU64::new(0) }; FILES]),
            offsets: Box::new([const { AtomicU64::new(0) }; FILES]),
            flags: Box::new([const { AtomicU32::new(0) }; FILES]),
            births: AtomicU32::new(0),
        })
    }

    /// In a child of fork(2): nobody else asks for anything here.
    pub fn renew(&self) {
        let local = self
            .ends
            .iter()
            .filter(|end| end.load(Relaxed) & LOCAL == LOCAL);
        local.for_each(|end| end.store(0, Relaxed));
        let _ = self.state.compare_exchange(ASKING, AWAY, Relaxed, Relaxed);
    }

    /// The process has other rights now.
    pub fn forget(&self) {
        self.state.store(NEVER, Release);
    }

    /// Nothing is known of `fd`.
    pub fn forget_file(&self, fd: u32) {
        let at = fd as usize;
        if at < FILES {
            take(&self.ends[at], 0);
            self.files[at].store(0, Release);
            self.flags[at].store(0, Release);
        }
    }

    /// Those of some descriptor, and its duplicates, may be others from now on.
    pub fn forget_flags(&self) {
        self.births.fetch_add(1, SeqCst);
        let known = self.flags.iter().filter(|flags| flags.load(SeqCst) != 0);
        known.for_each(|flags| flags.store(0, SeqCst));
    }

    /// The flags that `fd` was opened with. `births`: what it was before that.
    pub fn note_flags(&self, fd: u32, now: u32, births: u32) {
        let Some(flags) = self.flags.get(fd as usize) else {
            return;
        };
        flags.store(now | FLAGS_KNOWN, SeqCst);
        // As in `note_file`.
        if births != self.births() {
            flags.store(0, SeqCst);
        }
    }

    fn flags(&self, fd: u32) -> Option<u32> {
        let flags = self.flags.get(fd as usize)?.load(SeqCst);
        (flags & FLAGS_KNOWN != 0).then_some(flags & !FLAGS_KNOWN)
    }

    fn is_alone(&self, fd: u32) -> bool {
        let file = self.files.get(fd as usize);
        file.is_some_and(|file| file.load(SeqCst) & ALONE != 0)
    }

    /// The file that `fd` refers to from now on. `births`: what it was before the call that opened
    /// it; `None`: there may be others who move its offset.
    pub fn note_file(&self, fd: u32, ino: u64, births: Option<u32>) {
        let Some(file) = self.files.get(fd as usize) else {
            return;
        };
        let alone = if births.is_some() { ALONE } else { 0 };
        file.store(ino | alone, SeqCst);
        // A child that was made meanwhile may have it. Of two, one sees the other.
        if births.is_some_and(|births| births != self.births()) {
            file.store(ino, SeqCst);
        }
    }

    /// `new` is a duplicate of `old`.
    pub fn duplicate(&self, old: u32, new: u32) {
        let (ino, births) = (self.file(old), self.births());
        for fd in [old, new] {
            self.note_file(fd, ino, None);
        }
        if let Some(flags) = self.flags(old) {
            self.note_flags(new, flags, births);
        }
    }

    /// For `note_file`.
    pub fn births(&self) -> u32 {
        self.births.load(SeqCst)
    }

    /// A child, or somebody else, is about to get descriptors of this process.
    pub fn share_files(&self) {
        self.births.fetch_add(1, SeqCst);
        for file in self
            .files
            .iter()
            .filter(|file| file.load(SeqCst) & ALONE != 0)
        {
            file.fetch_and(!ALONE, SeqCst);
        }
        self.forget_flags();
        // Of this and somebody who moves an offset alone, one sees the other.
        self.ends.iter().for_each(|end| {
            settled(end);
        });
    }

    /// The file behind a descriptor; 0: it is not known.
    pub fn file(&self, fd: u32) -> u64 {
        let file = self.files.get(fd as usize);
        file.map_or(0, |file| file.load(Acquire) & !ALONE)
    }

    /// Something begins that may move the offset of `fd`.
    pub fn begin_moving(&self, fd: Option<u32>) -> Moving<'_> {
        let end = fd.and_then(|fd| self.ends.get(fd as usize));
        let mark = MOVING | self.moves.fetch_add(1, AcqRel);
        if let Some(end) = end {
            take(end, mark);
        }
        Moving { end, mark }
    }

    /// The working directory is about to change.
    pub fn begin_move(&self) -> Move {
        let mark = MOVING | self.moves.fetch_add(1, AcqRel);
        let before = self.directory.swap(mark, AcqRel);
        Move { before, mark }
    }

    /// It is this one now; `None`: what it was. If somebody else began to change it meanwhile, it
    /// is not known which of the two came last.
    pub fn end_move(&self, moved: &Move, now: Option<u64>) {
        let now = now.filter(|ino| *ino != 0).unwrap_or(moved.before);
        let ended = self
            .directory
            .compare_exchange(moved.mark, now, AcqRel, Relaxed);
        if ended.is_err() {
            self.begin_move();
        }
    }

    /// Whether the lease in a word of `ends` lasts.
    fn lasts(&self, word: u64) -> bool {
        let (index, value) = lease_of(word);
        let leases: Option<&LeaseWords> = self.leases.at(0);
        leases.is_some_and(|leases| leases.now(index) & VALUE_BITS == value)
            && self.table.is_in_term()
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
        // In another time namespace the end of a term would be another moment.
        if pmem::env::monotonic_ms() + CLOCK_MS < words[5] {
            return Err(Error::NotSupported);
        }
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

    /// Something begins that may move the offset of `fd`. In a child that runs in this memory it
    /// is another descriptor.
    pub(super) fn begin_moving(&self, fd: Option<u32>) -> Moving<'_> {
        self.known.begin_moving(fd.filter(|_| self.is_own()))
    }

    /// As `stat`, if the answer is known.
    pub(super) fn known_stat(
        &self,
        c: &Caller<'_>,
        base: Base,
        path: &[u8],
        flags: u32,
    ) -> Option<Result<Stat>> {
        let found = self.known_attributes(c, (base, path), stat_arg(flags)?)?;
        Some(found.map(|words| words_stat(&words[1..])))
    }

    /// The answer about stat(2) with these flags: also what lstat(2) says of what is no symbolic
    /// link.
    fn known_attributes(
        &self,
        c: &Caller<'_>,
        at: (Base, &[u8]),
        flags: u32,
    ) -> Option<Result<[u64; ANSWER_WORDS]>> {
        let of = |flags| self.known_of(c, at, Asked::Stat, flags);
        let is_link = |words: &[u64]| words_stat(&words[1..]).mode & S_IFMT == S_IFLNK;
        of(flags).or_else(|| match flags {
            0 => of(AT_SYMLINK_NOFOLLOW)
                .filter(|found| !found.as_ref().is_ok_and(|words| is_link(words))),
            _ => None,
        })
    }

    /// Whether it is known that the object has no extended attribute of this name.
    pub(super) fn known_to_lack(&self, c: &Caller<'_>, target: Target<'_>, name: &[u8]) -> bool {
        let Target::Path {
            base,
            path,
            nofollow,
        } = target
        else {
            return false;
        };
        let arg = if nofollow { AT_SYMLINK_NOFOLLOW } else { 0 };
        let found = self.known_attributes(c, (base, path), arg);
        let Some(Ok([_, words @ ..])) = found else {
            return false;
        };
        let is_link = words_stat(&words).mode & S_IFMT == S_IFLNK;
        words[PLAIN_WORD] & PLAIN != 0 && is_asked_for(name, is_link)
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

    /// The flags of `fd`, if they are known.
    pub(super) fn known_flags(&self, fd: u32) -> Option<u32> {
        let flags = self.known.flags(fd)?;
        (self.is_own() && self.has_place()).then_some(flags & !REGULAR)
    }

    /// Whether it is known that there is nothing to read at the offset of `fd`.
    pub(super) fn is_at_end(&self, fd: u32, of: End) -> bool {
        let known = &self.known;
        let Some(end) = known.ends.get(fd as usize) else {
            return false;
        };
        let end = end.load(SeqCst);
        let is_list = end & IS_LIST != 0;
        if end & (MOVING | AT_END) != AT_END
            || is_list != (of == End::List)
            || !known.is_alone(fd)
            || !self.has_answers_for(None)
        {
            return false;
        }
        known.lasts(end)
    }

    /// `fd` was opened by a call whose answer has the content of the file, and a lease.
    pub(super) fn note_content(&self, fd: u32, answered: &Answered<'_>) {
        let words = [0, 0, 0, answered.words[5], answered.words[6]];
        let Some(end) = self.known.ends.get(fd as usize) else {
            return;
        };
        let Some(word) = end_word(End::Bytes, &words) else {
            return;
        };
        answered.leave(fd);
        self.known.offsets[fd as usize].store((answered.len() as u64) << 32, SeqCst);
        end.store(word ^ AT_END | HAS_CONTENT, SeqCst);
    }

    /// Reads on in a file whose content is here. The proxy hears of it before the next call.
    pub(super) fn read_content(&self, fd: u32, mut out: MutBuf<'_>) -> Option<usize> {
        self.with_content(fd, |len, at| {
            let n = len.saturating_sub(at).min(out.len() as u64) as usize;
            if n > 0 {
                let held = self.content_of(fd)?;
                (held.take(at as usize, out.take(n)).ok()? == n).then_some(())?;
            }
            Some((n, at + n as u64))
        })
    }

    /// As `lseek`, if that needs nobody else.
    pub(super) fn seek(&self, fd: u32, offset: i64, whence: u32) -> Option<u64> {
        let sought = self.with_content(fd, |len, at| {
            let to = match whence {
                SEEK_SET => Some(offset),
                SEEK_CUR => offset.checked_add_unsigned(at),
                SEEK_END => offset.checked_add_unsigned(len),
                _ => None,
            };
            let to = to.and_then(|to| u64::try_from(to).ok())?;
            (to <= FILE_SIZE_MAX).then_some((to, to))
        });
        sought.or_else(|| self.seek_anywhere(fd, offset, whence))
    }

    fn seek_anywhere(&self, fd: u32, offset: i64, whence: u32) -> Option<u64> {
        let known = &self.known;
        let end = known.ends.get(fd as usize)?;
        let to = u64::try_from(offset).ok()?;
        let is_regular = |fd| known.flags(fd).is_some_and(|flags| flags & REGULAR != 0);
        if whence != SEEK_SET || to > FILE_SIZE_MAX || !is_regular(fd) || !self.is_own() {
            return None;
        }
        take(end, LOCAL);
        let told = known.is_alone(fd) && self.put_off(fd, Done::At(to));
        end.store(0, SeqCst);
        told.then_some(to)
    }

    /// Moves the offset in a file whose content is here: `f` gets the length and the offset, and
    /// answers with a result and the new offset.
    fn with_content<T>(&self, fd: u32, f: impl FnOnce(u64, u64) -> Option<(T, u64)>) -> Option<T> {
        let end = self.known.ends.get(fd as usize)?;
        let word = end.load(SeqCst);
        let has_content = word & (MOVING | AT_END | HAS_CONTENT) == HAS_CONTENT;
        if !has_content || !self.has_answers_for(None) {
            return None;
        }
        let taken = end.compare_exchange(word, LOCAL, SeqCst, Relaxed);
        taken.ok()?;
        let result = self.move_in_content(fd, word, f);
        // Whoever asks the proxy instead moves the offset there.
        end.store(if result.is_some() { word } else { 0 }, SeqCst);
        result
    }

    /// As `with_content` while `LOCAL` keeps others away.
    fn move_in_content<T>(
        &self,
        fd: u32,
        word: u64,
        f: impl FnOnce(u64, u64) -> Option<(T, u64)>,
    ) -> Option<T> {
        let known = &self.known;
        if !known.is_alone(fd) {
            return None;
        }
        let offset = &known.offsets[fd as usize];
        let (len, at) = (offset.load(SeqCst) >> 32, offset.load(SeqCst) as u32);
        let (result, to) = f(len, at.into())?;
        let now = u32::try_from(to).ok()?;
        if !known.lasts(word) || now != at && !self.put_off(fd, Done::At(to)) {
            return None;
        }
        offset.store(len << 32 | u64::from(now), SeqCst);
        Some(result)
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
