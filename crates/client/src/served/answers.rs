//! Kept answers: what a proxy has answered, where all processes of the same rights find it again
//! without asking.
//!
//! The proxy writes, its processes have the memory mapped for reading, and the words of the leases
//! (`pool::session::leases`) beside it. An answer counts as long as each lease that it was made
//! under lasts and the term of all of them has not ended: then it is what the proxy would answer
//! now.
//!
//! Invariants:
//!  * Each place of a set has room for one answer, which it gets when it is used first: so few
//!    answers are in few pages.
//!  * An answer is copied, and then looked at once more: whoever replaces it changes `version`
//!    first and last.
//!  * Paths are kept in two parts, the directory and the name in it, which are looked for one after
//!    the other, as a walk does.

use crate::base::abi::*;
use crate::session::leases::LEASES_MAX;
use pmem::SharedMem;
use pmem::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};
use pool::session::{LEASE_TERM_MS, LeaseWords};

/// Answers that hash to the same place.
const WAYS: usize = 4;
const SETS: usize = 1 << 14;
const SETS_AT: usize = 4096;
const ROOMS: usize = SETS * WAYS;
const ANSWERS_AT: usize = SETS_AT + SETS * size_of::<Set>();
/// Bytes of the memory.
pub const ANSWERS_LEN: usize = ANSWERS_AT + ROOMS * size_of::<Answer>();
/// Bytes of a name, or of the path of a directory.
pub const NAME_MAX: usize = 8 * NAME_WORDS;
const NAME_WORDS: usize = 16;
/// An error, and what is answered without one.
pub const ANSWER_WORDS: usize = 12;

/// In an answer about stat(2), beside the size of blocks: the object has no extended attributes.
pub const PLAIN: u64 = 1 << 32;
/// The word of the attributes where that is.
pub const PLAIN_WORD: usize = 5;

/// Extended attributes that everybody may ask for, and that no object lacks another errno for:
/// those that `ls -l` and `cp -a` ask for.
pub fn is_asked_for(name: &[u8], is_link: bool) -> bool {
    match name {
        b"security.selinux" | b"security.capability" => true,
        b"system.posix_acl_access" | b"system.posix_acl_default" => !is_link,
        _ => false,
    }
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Asked {
    /// To which directory a path leads.
    Directory = 1,
    /// stat(2); the argument are its flags.
    Stat = 2,
    /// access(2): the mode, and flags << 8.
    Access = 3,
    /// fstat(2): the name is empty, and in the place of the directory is the file.
    Fstat = 4,
}

/// A question.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    pub asked: Asked,
    pub arg: u32,
    pub dir: u64,
    pub name: &'a [u8],
}

/// The leases of an answer: index and value of each word, and how many.
pub type Held = ([(u32, u64); LEASES_MAX], usize);

pmem::shared! {
    /// At the beginning.
    struct Term {
        /// When all leases end, in milliseconds of `monotonic_ms`.
        end: AtomicU64,
        /// Rooms that are in use.
        used: AtomicU64,
    }

    /// Where the answers of a set are: `Place::encode` of each; 0: no answer was there yet.
    #[repr(align(32))]
    struct Set {
        places: [AtomicU64; WAYS],
    }

    /// An answer.
    #[repr(align(64))]
    struct Answer {
        /// Odd while it is written.
        version: AtomicU64,
        /// `Key::head`.
        head: AtomicU64,
        dir: AtomicU64,
        leases: AtomicU64,
        indices: [AtomicU32; LEASES_MAX],
        values: [AtomicU64; LEASES_MAX],
        words: [AtomicU64; ANSWER_WORDS],
        name: [AtomicU64; NAME_WORDS],
    }
}

/// What tells the answers of a set apart, at a glance, and the room of one.
#[derive(Clone, Copy)]
struct Place {
    tag: u32,
    room: u32,
}

impl Place {
    fn encode(self) -> u64 {
        u64::from(self.tag) << 32 | u64::from(self.room)
    }

    /// `None`: there is none.
    fn decode(word: u64) -> Option<Place> {
        let (tag, room) = ((word >> 32) as u32, word as u32);
        (tag != 0 && (room as usize) < ROOMS).then_some(Place { tag, room })
    }
}

/// A question as it is compared.
struct Key {
    /// What was asked, the length of the name and the argument.
    head: u64,
    dir: u64,
    name: [u64; NAME_WORDS],
    /// Words of the name that count.
    len: usize,
    hash: u64,
}

impl Key {
    /// `None`: it is too long to be kept.
    fn new(q: &Question<'_>) -> Option<Key> {
        if q.name.len() > NAME_MAX {
            return None;
        }
        let mut name = [0; NAME_WORDS];
        for (to, part) in name.iter_mut().zip(q.name.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            *to = u64::from_le_bytes(bytes);
        }
        let head = q.asked as u64 | (q.name.len() as u64) << 8 | u64::from(q.arg) << 32;
        let len = q.name.len().div_ceil(8);
        let mix = |hash: u64, word: &u64| {
            (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        let hash = [head, q.dir].iter().chain(&name[..len]).fold(0, mix);
        Some(Key {
            head,
            dir: q.dir,
            name,
            len,
            hash: hash ^ hash >> 29,
        })
    }

    fn set(&self) -> usize {
        self.hash as usize % SETS
    }

    /// Never 0.
    fn tag(&self) -> u32 {
        (self.hash >> 32) as u32 | 1
    }
}

/// Kept answers as one side has them mapped.
pub struct AnswerTable {
    memory: SharedMem,
}

impl AnswerTable {
    /// What is in memory of `ANSWERS_LEN` bytes.
    pub fn new(memory: SharedMem) -> AnswerTable {
        AnswerTable { memory }
    }

    /// Where it is mapped.
    pub fn memory(&self) -> &SharedMem {
        &self.memory
    }

    fn term(&self) -> Option<&AtomicU64> {
        self.memory.at::<Term>(0).map(|term| &term.end)
    }

    fn places(&self, set: usize) -> Option<&[AtomicU64; WAYS]> {
        let at = SETS_AT + set * size_of::<Set>();
        self.memory.at::<Set>(at as u64).map(|set| &set.places)
    }

    fn answer(&self, place: Place) -> Option<&Answer> {
        let at = ANSWERS_AT + place.room as usize * size_of::<Answer>();
        self.memory.at(at as u64)
    }

    /// Whether leases have not ended by themselves.
    pub fn is_in_term(&self) -> bool {
        let now = pmem::env::monotonic_ms();
        self.term().is_some_and(|end| end.load(SeqCst) > now)
    }

    /// What is kept as the answer, if it counts.
    pub fn find(&self, leases: &LeaseWords, q: &Question<'_>) -> Option<[u64; ANSWER_WORDS]> {
        let key = Key::new(q)?;
        let places = self.places(key.set())?.iter();
        let places = places.filter_map(|place| Place::decode(place.load(Relaxed)));
        let same = places.filter(|place| place.tag == key.tag());
        for answer in same.filter_map(|place| self.answer(place)) {
            if let Some(words) = answer.get(&key, leases)
                && self.is_in_term()
            {
                return Some(words);
            }
        }
        None
    }
}

impl Answer {
    fn has(&self, key: &Key) -> bool {
        let name = self.name.iter().zip(&key.name[..key.len]);
        self.head.load(Relaxed) == key.head
            && self.dir.load(Relaxed) == key.dir
            && name.into_iter().all(|(a, b)| a.load(Relaxed) == *b)
    }

    fn get(&self, key: &Key, leases: &LeaseWords) -> Option<[u64; ANSWER_WORDS]> {
        let version = self.version.load(Acquire);
        if version & 1 != 0 || !self.has(key) {
            return None;
        }
        let words = self.words.each_ref().map(|word| word.load(Relaxed));
        let held = self.held();
        fence(Acquire);
        let is_whole = self.version.load(Relaxed) == version;
        (is_whole && last(&held, leases)).then_some(words)
    }

    fn held(&self) -> Held {
        let mut held = ([(0, 0); LEASES_MAX], 0);
        held.1 = (self.leases.load(Relaxed) as usize).min(LEASES_MAX);
        for (at, lease) in held.0[..held.1].iter_mut().enumerate() {
            *lease = (
                self.indices[at].load(Relaxed),
                self.values[at].load(Relaxed),
            );
        }
        held
    }
}

/// Whether all of these leases last.
fn last((list, len): &Held, words: &LeaseWords) -> bool {
    *len > 0
        && list[..*len]
            .iter()
            .all(|(index, value)| words.now(*index) == *value)
}

/// The proxy's side.
impl AnswerTable {
    /// Answers count for one more term. The caller asks `gives` afterwards whether there are
    /// leases still: what it read of the clock is older than that.
    pub fn renew(&self, gives: impl FnOnce() -> bool) {
        let now = pmem::env::monotonic_ms();
        let Some(end) = self.term() else { return };
        if end.load(Relaxed) < now + LEASE_TERM_MS / 2 && gives() {
            end.store(now + LEASE_TERM_MS, SeqCst);
        }
    }

    /// Keeps an answer in the place of one that does not count any more, or of any.
    pub fn keep(&self, leases: &LeaseWords, q: &Question<'_>, held: &Held, words: &[u64]) {
        let Some(key) = Key::new(q) else { return };
        let Some((at, place)) = self.place_for(&key, leases) else {
            return;
        };
        let Some(answer) = self.answer(place) else {
            return;
        };
        let version = answer.version.load(Relaxed);
        let changing = version | 1;
        // Another thread keeps something there.
        if version & 1 != 0
            || answer
                .version
                .compare_exchange(version, changing, Acquire, Relaxed)
                .is_err()
        {
            return;
        }
        fence(Release);
        answer.put(&key, held, words);
        let tag = key.tag();
        at.store(Place { tag, ..place }.encode(), Relaxed);
        answer.version.store(version + 2, Release);
    }

    /// Where an answer is kept: the place of the same one, a new one, that of one that does not
    /// count any more, or any.
    fn place_for(&self, key: &Key, leases: &LeaseWords) -> Option<(&AtomicU64, Place)> {
        let places = self.places(key.set())?;
        let in_use = || {
            let decoded = |at: &'_ AtomicU64| Place::decode(at.load(Relaxed));
            places.iter().filter_map(move |at| Some((at, decoded(at)?)))
        };
        let has = |place: Place| self.answer(place).is_some_and(|answer| answer.has(key));
        let is_stale = |place: Place| {
            let answer = self.answer(place);
            answer.is_some_and(|answer| !last(&answer.held(), leases))
        };
        let same = in_use().find(|(_, place)| place.tag == key.tag() && has(*place));
        same.or_else(|| self.new_place(places, key))
            .or_else(|| in_use().find(|(_, place)| is_stale(*place)))
            .or_else(|| in_use().nth((key.hash >> 20) as usize % WAYS))
    }

    /// A place that was not used yet gets its room.
    fn new_place<'a>(
        &self,
        places: &'a [AtomicU64; WAYS],
        key: &Key,
    ) -> Option<(&'a AtomicU64, Place)> {
        let at = places.iter().find(|at| at.load(Relaxed) == 0)?;
        let used = &self.memory.at::<Term>(0)?.used;
        let room = used.fetch_add(1, Relaxed);
        let tag = key.tag();
        let room = u32::try_from(room)
            .ok()
            .filter(|room| (*room as usize) < ROOMS)?;
        let place = Place { tag, room };
        // Another thread may have been faster; the room is lost then.
        let taken = at.compare_exchange(0, place.encode(), Relaxed, Relaxed);
        taken.is_ok().then_some((at, place))
    }
}

impl Answer {
    fn put(&self, key: &Key, (list, len): &Held, words: &[u64]) {
        self.head.store(key.head, Relaxed);
        self.dir.store(key.dir, Relaxed);
        for (to, word) in self.name.iter().zip(&key.name[..key.len]) {
            to.store(*word, Relaxed);
        }
        self.leases.store(*len as u64, Relaxed);
        for (at, (index, value)) in list[..*len].iter().enumerate() {
            self.indices[at].store(*index, Relaxed);
            self.values[at].store(*value, Relaxed);
        }
        let words = words.iter().copied().chain(core::iter::repeat(0));
        for (to, word) in self.words.iter().zip(words) {
            to.store(word, Relaxed);
        }
    }
}

/// The argument of a question, for stat(2) with these flags; `None`: it is not kept.
pub fn stat_arg(flags: u32) -> Option<u32> {
    (flags & !AT_SYMLINK_NOFOLLOW == 0).then_some(flags)
}

/// The same for access(2).
pub fn access_arg(mode: u32, flags: u32) -> Option<u32> {
    let is_kept =
        mode & !(R_OK | W_OK | X_OK) == 0 && flags & !(AT_SYMLINK_NOFOLLOW | AT_EACCESS) == 0;
    is_kept.then_some(mode | flags << 8)
}

/// Whether open(2) with these flags finds nothing if stat(2) does.
pub fn asks_for_what_is_there(oflags: u32, resolve: u64) -> bool {
    oflags & (O_CREAT | O_TMPFILE_BIT | O_NOFOLLOW) == 0 && resolve == 0
}

/// The directory's path and the name in it; `None`: no name ends the path, or not one that is kept.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = path.iter().rposition(|byte| *byte == b'/');
    let (dir, name) = match at {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[][..], path),
    };
    let is_kept = !matches!(name, b"" | b"." | b"..") && name.len() <= NAME_MAX;
    (is_kept && dir.len() <= NAME_MAX).then_some((dir, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmem::Shared;
    use std::string::ToString;
    use std::vec::Vec;

    fn question(name: &[u8]) -> Question<'_> {
        Question {
            asked: Asked::Stat,
            arg: 0,
            dir: 7,
            name,
        }
    }

    fn kept() -> AnswerTable {
        let kept = AnswerTable::new(SharedMem::in_memory(ANSWERS_LEN).unwrap());
        kept.renew(|| true);
        kept
    }

    fn lease(words: &LeaseWords, index: u32) -> Held {
        let mut held = ([(0, 0); LEASES_MAX], 1);
        held.0[0] = (index, words.hold(index));
        held
    }

    #[test]
    fn answers_count_while_all_their_leases_last() {
        let (kept, words) = (kept(), LeaseWords::boxed_zeroed());
        let mut held = lease(&words, 1);
        held.0[1] = (2, words.hold(2));
        held.1 = 2;
        assert_eq!(kept.find(&words, &question(b"a")), None);
        kept.keep(&words, &question(b"a"), &held, &[5, 6]);
        let found = kept.find(&words, &question(b"a")).unwrap();
        assert_eq!(found[..3], [5, 6, 0]);
        let others = [
            Question {
                dir: 8,
                ..question(b"a")
            },
            Question {
                arg: 1,
                ..question(b"a")
            },
            Question {
                asked: Asked::Access,
                ..question(b"a")
            },
            question(b"a\0"),
            question(b""),
        ];
        assert!(others.iter().all(|q| kept.find(&words, q).is_none()));
        words.recall(3);
        assert!(kept.find(&words, &question(b"a")).is_some());
        words.recall(2);
        assert_eq!(kept.find(&words, &question(b"a")), None);
    }

    #[test]
    fn none_count_when_the_term_has_ended() {
        let (kept, words) = (kept(), LeaseWords::boxed_zeroed());
        kept.keep(&words, &question(b"a"), &lease(&words, 1), &[]);
        assert!(kept.find(&words, &question(b"a")).is_some());
        std::thread::sleep(std::time::Duration::from_millis(LEASE_TERM_MS + 20));
        assert_eq!(kept.find(&words, &question(b"a")), None);
        kept.renew(|| false);
        assert_eq!(kept.find(&words, &question(b"a")), None);
        kept.renew(|| true);
        assert!(kept.find(&words, &question(b"a")).is_some());
    }

    #[test]
    fn what_is_kept_never_is_another_answer() {
        let (kept, words) = (kept(), LeaseWords::boxed_zeroed());
        let names: Vec<Vec<u8>> = (0..200_000u64)
            .map(|n| n.to_string().into_bytes())
            .collect();
        for (n, name) in names.iter().enumerate() {
            kept.keep(
                &words,
                &question(name),
                &lease(&words, n as u32),
                &[n as u64],
            );
        }
        let mut found = 0;
        for (n, name) in names.iter().enumerate() {
            kept.renew(|| true);
            if let Some(answer) = kept.find(&words, &question(name)) {
                assert_eq!(answer[0], n as u64);
                found += 1;
            }
        }
        assert!(found > SETS * WAYS * 9 / 10, "{found}");
    }

    #[test]
    fn readers_beside_writers_see_whole_answers() {
        let (kept, words) = (kept(), LeaseWords::boxed_zeroed());
        let is_over = core::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for n in 0..2u64 {
                let (kept, words, is_over) = (&kept, &words, &is_over);
                scope.spawn(move || {
                    for round in 0..200_000u64 {
                        let answer = [round * 2 + n; ANSWER_WORDS];
                        kept.keep(words, &question(b"a"), &lease(words, 1), &answer);
                    }
                    is_over.store(true, Relaxed);
                });
            }
            while !is_over.load(Relaxed) {
                kept.renew(|| true);
                if let Some(answer) = kept.find(&words, &question(b"a")) {
                    assert_eq!(answer, [answer[0]; ANSWER_WORDS]);
                }
            }
        });
        kept.renew(|| true);
        assert!(kept.find(&words, &question(b"a")).is_some());
    }

    #[test]
    fn paths_fall_into_directory_and_name() {
        assert_eq!(split(b"a"), Some((&b""[..], &b"a"[..])));
        assert_eq!(split(b"a/b//c"), Some((&b"a/b/"[..], &b"c"[..])));
        for none in [&b""[..], b"a/", b"a/.", b"..", &[b'a'; NAME_MAX + 1]] {
            assert_eq!(split(none), None);
        }
    }
}
