//! Views: many reads of one moment.
//!
//! Invariants:
//!  * A view shows every change that was committed before it began, and none that came after.
//!  * The root is pinned. The service respects that as long as it does not keep too much for views;
//!    a view whose root was given up reports that and never gives a wrong answer.
//!  * A scan reads private copies of leaves.
//!  * What had expired when the view began is not there; what expires later stays.

use crate::base::error::{Error, Result};
use crate::base::tree_key::with_key;
use crate::base::types::Caller;
use crate::session::drain;
use crate::session::lock;
use crate::session::{BLOCK, Session};
use crate::tables::inode_table::InodeRef;
use crate::tables::value_index::{self, Between, Look, Out};
use crate::values::{Keyspace, files, get};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::ops::RangeInclusive;
use pmem::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};
use pool::Leaf;
use pool::format::live::LiveRoot;
use pool::format::superblock::Root;
use pool::layout::dirent::{self, COLLISIONS_MAX, Dirent};
use pool::layout::value::{self, Head, InBlocks, TreeKey};
use pool::layout::{DIRENTS, VALUES};
use pool::session::{VIEWS, VIEWS_RESERVED};

/// Roots that may pass before one is pinned.
const TRIES_MAX: usize = 1000;

/// A moment that stays as it is: every record up to `upto`.
///
/// A root that has just these does not exist when the view begins, if changes wait in the journal.
/// The service is asked to commit one when it comes there; until then the view reads a root that
/// has less and looks in the index for the rest. So it waits for the service only where the index
/// cannot tell: for scans, files, and keys that were changed again since.
#[derive(Debug)]
pub struct View {
    upto: u64,
    roots: Roots,
    pin: u32,
    /// When it began, if there was anything that may expire.
    moment: i64,
}

/// The root that a view reads now, and that of the same commit where the names of files are.
/// Threads share it: it is stored anew while others read it.
#[derive(Debug, Default)]
struct Roots {
    version: AtomicU32,
    /// Commit, the last record in it, and a link and keys << 8 | height of each root.
    words: [AtomicU64; 6],
}

impl Roots {
    fn load(&self) -> (LiveRoot, LiveRoot) {
        let words = loop {
            let words = || self.words.each_ref().map(|word| word.load(Relaxed));
            if let Some(words) = lock::read_stable(&self.version, words) {
                break words;
            }
        };
        let [seq, applied, values, of_values, names, of_names] = words;
        let live = |addr, packed: u64| LiveRoot {
            seq,
            applied,
            root: Root {
                addr,
                keys: packed >> 8,
                height: packed as u8,
            },
        };
        (live(values, of_values), live(names, of_names))
    }

    /// Unless another thread is storing one, which is as good.
    fn store(&self, words: [u64; 6]) {
        let version = self.version.load(Relaxed);
        let odd = version | 1;
        if version == odd
            || self
                .version
                .compare_exchange(version, odd, Acquire, Relaxed)
                .is_err()
        {
            return;
        }
        fence(Release);
        // Another thread may have come further: what it let go of is not pinned any more. A root
        // that was served may be the one of before: numbers that nobody used changed nothing.
        let [seq, applied, ..] = self.words.each_ref().map(|word| word.load(Relaxed));
        if (seq, applied) < (words[0], words[1]) {
            for (word, value) in self.words.iter().zip(words) {
                word.store(value, Relaxed);
            }
        }
        self.version.store(odd.wrapping_add(1), Release);
    }
}

fn pack(root: &Root) -> u64 {
    root.keys << 8 | u64::from(root.height)
}

impl View {
    pub(crate) fn begin(s: &Session) -> Result<View> {
        s.check()?;
        let pin = take_pin(s)?;
        let mut view = View {
            upto: u64::MAX,
            roots: Roots::default(),
            pin,
            moment: 0,
        };
        match view.start(s) {
            Ok(()) => {
                // Whoever put something that expires, and that the view shows, has said so before.
                if s.has_expiring() {
                    view.moment = s.moment();
                }
                Ok(view)
            }
            Err(e) => {
                drop_pin(s, pin);
                Err(e)
            }
        }
    }

    /// Chooses the moment.
    fn start(&mut self, s: &Session) -> Result<()> {
        let h = s.header();
        // Session memory may say anything: no record has a number that was not taken.
        let last = h.values_seq.load(SeqCst).min(last_taken(s));
        self.pin_current(s)?;
        let (root, _) = self.roots.load();
        if last <= root.applied {
            self.upto = root.applied;
            return Ok(());
        }
        self.upto = ask_for_root(s, self.pin)?;
        // Of changes that are not in the index, and wait for the trees, nothing is seen before.
        if h.unseen_lock.load(SeqCst) != 0 {
            return self.settled(s).map(drop);
        }
        drain::wait_lanes(s, self.upto)?;
        self.go_on(s)
    }

    /// Reads from the current root on.
    fn pin_current(&self, s: &Session) -> Result<()> {
        let (reader, pin) = (s.tree().reader(), s.view_pin(self.pin)?);
        // A root that is pinned keeps later ones, too.
        let is_first = self.roots.load().0.seq == 0;
        for _ in 0..TRIES_MAX {
            let root = reader.root(VALUES)?;
            // A later one of the same moment must not be pinned in vain: that lets go of the one
            // that was served.
            let is_late = root.applied == self.upto && pin.served.load(Acquire) == self.upto;
            if root.applied > self.upto || is_late {
                return Err(Error::ViewTooOld);
            }
            if is_first {
                pin.seq.store(root.seq, SeqCst);
                fence(SeqCst);
                // The service may not have seen that.
                if root.seq < s.header().giving_up.load(SeqCst) {
                    continue;
                }
            }
            let names = reader.root(DIRENTS)?;
            if reader.still(root.seq)? && names.seq == root.seq {
                let (v, n) = (&root.root, &names.root);
                self.roots
                    .store([root.seq, root.applied, v.addr, pack(v), n.addr, pack(n)]);
                pin.seq.fetch_max(root.seq, SeqCst);
                return Ok(());
            }
        }
        Err(Error::Pool(pool::Error::Busy.errno()))
    }

    /// Reads from a newer root on, that of the view's moment if the service has made it.
    fn go_on(&self, s: &Session) -> Result<()> {
        let pin = s.view_pin(self.pin)?;
        if pin.served.load(Acquire) != self.upto {
            match self.pin_current(s) {
                // A root that is too new: the right one was served before.
                Err(Error::ViewTooOld) if pin.served.load(Acquire) == self.upto => {}
                Err(e) => return Err(e),
                Ok(()) => {
                    if self.roots.load().0.applied >= self.upto {
                        pin.wanted.store(0, Release);
                    }
                    return Ok(());
                }
            }
        }
        let seq = pin.served_seq.load(Relaxed);
        let [v, of_v, n, of_n] = pin.served_roots.each_ref().map(|word| word.load(Relaxed));
        self.roots.store([seq, self.upto, v, of_v, n, of_n]);
        pin.seq.fetch_max(seq, SeqCst);
        pin.wanted.store(0, Release);
        Ok(())
    }

    /// The root that has what the view shows, and that of names; waits for it.
    fn settled(&self, s: &Session) -> Result<(LiveRoot, LiveRoot)> {
        let roots = self.roots.load();
        if roots.0.applied >= self.upto {
            return Ok(roots);
        }
        self.wait_for_root(s)
    }

    #[cold]
    fn wait_for_root(&self, s: &Session) -> Result<(LiveRoot, LiveRoot)> {
        let pin = s.view_pin(self.pin)?;
        // That the trees have it is not enough: numbers that nobody used are passed over without
        // a commit.
        let there = || {
            let served = pin.served.load(Acquire) == self.upto;
            served || self.roots.load().0.applied >= self.upto
        };
        drain::wait_until(s, true, there)?;
        for _ in 0..TRIES_MAX {
            let roots = self.roots.load();
            if roots.0.applied >= self.upto {
                return Ok(roots);
            }
            self.go_on(s)?;
        }
        Err(Error::ViewTooOld)
    }

    pub(crate) fn end(self, s: &Session) {
        drop_pin(s, self.pin);
    }

    pub(crate) fn get(
        &self,
        s: &Session,
        keyspace: Keyspace,
        key: &[u8],
        out: &mut Out<'_>,
        who: Option<&Caller>,
    ) -> Result<Option<u64>> {
        if key.is_empty() || key.len() > value::USER_KEY_MAX {
            return Ok(None);
        }
        let found = with_key(keyspace.ino(), key, |tree_key| {
            self.get_value(s, keyspace.ino(), key, tree_key, out)
        })?;
        if found.is_some() || !self.may_have_files(s, keyspace) {
            return Ok(found);
        }
        let mut ino = None;
        let first = dirent::first_cookie(s.hash_seed(), key);
        let cookies = first..=first | (COLLISIONS_MAX - 1);
        self.each_file(s, keyspace, cookies, &mut |name, file| {
            if name == key {
                ino = Some(file);
            }
        })?;
        match ino {
            Some(ino) => read_file(s, (keyspace, key), ino, out, who),
            None => Ok(None),
        }
    }

    #[inline]
    fn get_value(
        &self,
        s: &Session,
        keyspace: u64,
        key: &[u8],
        tree_key: &[u8],
        out: &mut Out<'_>,
    ) -> Result<Option<u64>> {
        let found = self.get_any_value(s, keyspace, key, tree_key, out)?;
        Ok(found.filter(|_| !value::is_over(out.expires, self.moment)))
    }

    #[inline]
    fn get_any_value(
        &self,
        s: &Session,
        keyspace: u64,
        key: &[u8],
        tree_key: &[u8],
        out: &mut Out<'_>,
    ) -> Result<Option<u64>> {
        let reader = s.tree().reader();
        for _ in 0..TRIES_MAX {
            let (root, _) = self.roots.load();
            if root.applied >= self.upto {
                let found = get::at_root(s, &reader, &root, tree_key, out)?;
                return found.ok_or(Error::ViewTooOld);
            }
            let between = Between {
                applied: root.applied,
                upto: self.upto,
            };
            match value_index::lookup(s, keyspace, key, between, out)? {
                Look::Value(len) => return Ok(Some(len)),
                Look::Erased => return Ok(None),
                Look::Newer => {
                    self.settled(s)?;
                }
                // What the index knew and passed over is in a newer root.
                Look::Unknown if reader.seq()? == root.seq => {
                    if let Some(found) = get::at_root(s, &reader, &root, tree_key, out)? {
                        return Ok(found);
                    }
                    self.go_on(s)?;
                }
                Look::Unknown | Look::Again => self.go_on(s)?,
            }
        }
        Err(Error::ViewTooOld)
    }

    /// False: the keyspace's directory had no names when the view began.
    fn may_have_files(&self, s: &Session, keyspace: Keyspace) -> bool {
        let applied = self.roots.load().0.applied;
        let none = |dir: InodeRef<'_>| {
            dir.e.entries.load(Acquire) == 0 && dir.e.dir_seq.load(Acquire) <= applied
        };
        !keyspace.entry(s).is_some_and(none)
    }

    /// Shows the names of regular files of the keyspace's directory at these cookies, with their
    /// numbers.
    fn each_file(
        &self,
        s: &Session,
        keyspace: Keyspace,
        cookies: RangeInclusive<u64>,
        each: &mut dyn FnMut(&[u8], u64),
    ) -> Result<()> {
        let (reader, mut leaf) = (s.tree().reader(), Box::<Leaf>::default());
        let (_, names) = self.settled(s)?;
        let (mut from, end) = (
            dirent::key(keyspace.ino(), *cookies.start()).to_vec(),
            match cookies.end().checked_add(1) {
                Some(end) => dirent::key(keyspace.ino(), end),
                None => dirent::key(keyspace.ino().saturating_add(1), 0),
            },
        );
        loop {
            let loaded = reader.leaf_from(DIRENTS, &names, &from, &mut leaf);
            if !reader.still(names.seq)? {
                return Err(Error::ViewTooOld);
            }
            loaded?;
            for at in leaf.find(&from)?..leaf.find(&end)? {
                let entry = Dirent::decode(leaf.entry(at)?.1).map_err(pool::Error::from)?;
                if entry.kind == files::KIND_FILE {
                    each(entry.name, entry.ino);
                }
            }
            match leaf.beyond() {
                Some(next) if next < &end[..] => from = next.to_vec(),
                _ => return Ok(()),
            }
        }
    }
}

/// The content of what was a file when a view began, as it is now; if it is gone, the key's value.
fn read_file(
    s: &Session,
    (keyspace, key): (Keyspace, &[u8]),
    ino: u64,
    out: &mut Out<'_>,
    who: Option<&Caller>,
) -> Result<Option<u64>> {
    match files::read_file(s, ino, out, who)? {
        Some(len) => Ok(Some(len)),
        None => files::get_any(s, keyspace, key, out, who),
    }
}

impl View {
    /// Where the value of `key` lies, if it lies in one piece in blocks: address and length. What
    /// is read there is the value only if the view is intact afterwards.
    pub fn piece(
        &self,
        s: &Session,
        keyspace: Keyspace,
        key: &[u8],
    ) -> Result<Option<(usize, usize)>> {
        if key.is_empty() || key.len() > value::USER_KEY_MAX {
            return Ok(None);
        }
        let mut entry = [0; value::IN_BLOCKS_MAX];
        let (root, _) = self.settled(s)?;
        let found = with_key(keyspace.ino(), key, |key| {
            let reader = s.tree().reader();
            reader.get_split(VALUES, &root, key, &mut entry, &mut [])
        });
        if !self.is_intact(s)? {
            return Err(Error::ViewTooOld);
        }
        let Some(len) = found? else { return Ok(None) };
        let entry = entry.get(..len).unwrap_or(&entry);
        let head = Head::decode(entry).map_err(pool::Error::from)?;
        if head.inline || value::is_over(head.expires, self.moment) {
            return Ok(None);
        }
        let blocks = InBlocks::decode(value::body(entry)).map_err(pool::Error::from)?;
        let [run] = blocks.runs() else {
            return Ok(None);
        };
        let (at, len) = (run.block.offset(), blocks.len as usize);
        let data = s.segment(run.block)?;
        let inside = at.saturating_add(blocks.len) <= data.len() as u64;
        Ok(inside.then(|| (data.addr() + at as usize, len)))
    }

    /// Whether nothing that the view shows has been reused up to now.
    pub fn is_intact(&self, s: &Session) -> Result<bool> {
        Ok(s.tree().reader().still(self.roots.load().0.seq)?)
    }
}

/// A free pin, or one whose owner is dead.
fn take_pin(s: &Session) -> Result<u32> {
    let free = |owner: u32| owner == 0;
    let left = |owner: u32| owner != 0 && !lock::owner_lives(s, owner);
    match take_pin_if(s, free)? {
        Some(pin) => Ok(pin),
        None => take_pin_if(s, left)?.ok_or(Error::TooManyViews),
    }
}

fn take_pin_if(s: &Session, wanted: impl Fn(u32) -> bool) -> Result<Option<u32>> {
    let (h, me) = (s.header(), s.owner());
    let most = match s.is_for_another() {
        true => VIEWS - VIEWS_RESERVED,
        false => VIEWS,
    };
    for index in 0..most as u32 {
        let pin = s.view_pin(index)?;
        let owner = pin.owner.load(Relaxed);
        if wanted(owner)
            && pin
                .owner
                .compare_exchange(owner, me, AcqRel, Relaxed)
                .is_ok()
        {
            pin.seq.store(0, Relaxed);
            pin.wanted.store(0, Relaxed);
            pin.served.store(0, Relaxed);
            h.views_used.fetch_max(index + 1, AcqRel);
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// The last number of a record that was taken.
fn last_taken(s: &Session) -> u64 {
    s.header().next_seq.load(SeqCst).saturating_sub(1)
}

/// Asks for a root of this moment: with every record that has a number now. The service says how
/// far it may be before it looks for what is wanted; so what it did not see, we do.
fn ask_for_root(s: &Session, pin: u32) -> Result<u64> {
    let pin = s.view_pin(pin)?;
    for _ in 0..TRIES_MAX {
        let upto = last_taken(s);
        pin.wanted.store(upto, SeqCst);
        fence(SeqCst);
        if s.header().applying.load(SeqCst) <= upto {
            return Ok(upto);
        }
    }
    Err(Error::Pool(pool::Error::Busy.errno()))
}

fn drop_pin(s: &Session, index: u32) {
    if let Ok(pin) = s.view_pin(index) {
        pin.wanted.store(0, Relaxed);
        pin.served.store(0, Relaxed);
        pin.seq.store(0, Relaxed);
        pin.owner.store(0, Release);
    }
}

/// What a scan found.
pub enum Entry<'a> {
    /// The value.
    Inline(&'a [u8]),
    /// A value in blocks, to be copied with `Scan::copy`.
    Blocks(InBlocks),
    /// A file, to be read with `Scan::read`: it is as it is then.
    File(u64),
}

/// What kind of value a scan has come to.
pub enum Found {
    /// `Scan::value` gives it.
    Inline,
    /// To be copied with `Scan::copy`.
    Blocks(InBlocks),
    /// To be read with `Scan::read`.
    File(u64),
}

/// The keys of a range, in order or backwards.
pub struct Scan {
    space: Keyspace,
    keyspace: u64,
    /// Files of the range that are still to come, the next one last; `None`: not looked for yet.
    files: Option<Vec<(Vec<u8>, u64)>>,
    /// The name of the file that was shown last.
    name: Vec<u8>,
    /// The scan has come to that file.
    at_file: bool,
    /// Tree keys that bound what is still to come.
    from: Vec<u8>,
    to: Vec<u8>,
    backward: bool,
    leaf: Box<Leaf>,
    /// Entries of the leaf still to come.
    next: usize,
    end: usize,
    begun: bool,
    done: bool,
    /// Also what has expired and was not removed yet.
    shows_all: bool,
}

impl Scan {
    /// The keys of `keyspace` from `from` on, below `to` (`None`: to the end).
    pub fn new(keyspace: Keyspace, from: &[u8], to: Option<&[u8]>, backward: bool) -> Scan {
        let ino = keyspace.ino();
        let to = match to {
            Some(to) => TreeKey::new(ino, to),
            None => TreeKey::new(ino.saturating_add(1), &[]),
        };
        Scan {
            space: keyspace,
            keyspace: ino,
            files: None,
            name: Vec::new(),
            at_file: false,
            from: TreeKey::new(ino, from).as_slice().to_vec(),
            to: to.as_slice().to_vec(),
            backward,
            leaf: Box::default(),
            next: 0,
            end: 0,
            begun: false,
            done: false,
            shows_all: false,
        }
    }

    /// Shows also what has expired and was not removed yet.
    pub(crate) fn showing_all(self) -> Scan {
        let shows_all = true;
        Scan { shows_all, ..self }
    }

    /// The next key and its value; `None` at the end.
    pub fn next(&mut self, s: &Session, view: &View) -> Result<Option<(&[u8], Entry<'_>)>> {
        Ok(match self.advance(s, view)? {
            None => None,
            Some(Found::Inline) => Some((self.key(), Entry::Inline(self.value()))),
            Some(Found::Blocks(blocks)) => Some((self.key(), Entry::Blocks(blocks))),
            Some(Found::File(ino)) => Some((self.key(), Entry::File(ino))),
        })
    }

    /// Goes to the next key, which `key` gives; `None` at the end.
    #[inline]
    pub fn advance(&mut self, s: &Session, view: &View) -> Result<Option<Found>> {
        match &self.files {
            Some(files) if files.is_empty() => self.next_value(s, view),
            Some(_) => self.next_merged(s, view),
            None => {
                self.find_files(s, view)?;
                self.advance(s, view)
            }
        }
    }

    /// Goes on where it could not because the view was too old, with another view.
    pub(crate) fn continue_anew(&mut self) {
        assert!(!self.backward && self.files.is_none());
        (self.next, self.end) = (0, 0);
        (self.begun, self.done) = (false, false);
    }

    /// Bytes of the names of files that are still to come.
    pub fn held(&self) -> usize {
        let files = self.files.as_deref().unwrap_or_default();
        let each = |(name, _): &(Vec<u8>, u64)| name.len() + size_of::<(Vec<u8>, u64)>();
        files.iter().map(each).sum()
    }

    /// The key that the scan has come to.
    #[inline]
    pub fn key(&self) -> &[u8] {
        match self.at_file {
            true => &self.name,
            false => self.leaf.key().get(8..).unwrap_or_default(),
        }
    }

    /// The value that the scan has come to, if it is not in blocks or a file.
    #[inline]
    pub fn value(&self) -> &[u8] {
        value::body(self.leaf.value())
    }

    /// When that value expires.
    #[inline]
    pub fn expires(&self) -> i64 {
        match self.at_file {
            true => value::NEVER,
            false => value::expiry_of(self.leaf.value()),
        }
    }

    /// The inode number of the value that the scan has come to.
    pub(crate) fn number(&self) -> Result<u64> {
        let (head, bytes) = (self.leaf.value(), self.value());
        let head = Head::decode(head).map_err(pool::Error::from)?;
        if head.inline {
            return Ok(value::number(self.keyspace, self.key(), head.mtime, bytes));
        }
        let mut blocks = InBlocks::decode(bytes).map_err(pool::Error::from)?;
        blocks.be_born_in(0);
        let mut runs = [0; value::IN_BLOCKS_MAX];
        let n = blocks.encode(&mut runs);
        let (key, mtime) = (self.key(), head.mtime);
        Ok(value::number(self.keyspace, key, mtime, &runs[..n]))
    }

    /// As `advance` where there are files, too.
    fn next_merged(&mut self, s: &Session, view: &View) -> Result<Option<Found>> {
        let more = self.fill_with_living(s, view)?;
        let order = {
            let file = self.files.as_ref().and_then(|files| files.last());
            let at = if self.backward {
                self.end.wrapping_sub(1)
            } else {
                self.next
            };
            match (file, more) {
                (Some((name, _)), true) => {
                    let (key, _) = self.leaf.entry(at)?;
                    let (_, key) = value::parse_key(key).map_err(pool::Error::from)?;
                    let order = name.as_slice().cmp(key);
                    if self.backward {
                        order.reverse()
                    } else {
                        order
                    }
                }
                (Some(_), false) => Ordering::Less,
                (None, _) => Ordering::Greater,
            }
        };
        if order.is_gt() {
            return self.next_value(s, view);
        }
        let file = self.files.as_mut().and_then(Vec::pop);
        match (order, file) {
            (Ordering::Less, Some((name, ino))) => {
                (self.name, self.at_file) = (name, true);
                Ok(Some(Found::File(ino)))
            }
            // Both: the value is what counts.
            _ => self.next_value(s, view),
        }
    }

    /// Looks for files of the range.
    fn find_files(&mut self, s: &Session, view: &View) -> Result<()> {
        let mut found = Vec::new();
        if view.may_have_files(s, self.space) {
            let (from, to) = (self.from.get(8..).unwrap_or_default(), &self.to);
            let last = self.keyspace.to_be_bytes();
            view.each_file(s, self.space, 0..=u64::MAX, &mut |name, ino| {
                let below = !to.starts_with(&last) || name < &to[8..];
                if name >= from && below {
                    found.push((name.to_vec(), ino));
                }
            })?;
            found.sort_unstable();
            if !self.backward {
                found.reverse();
            }
        }
        self.files = Some(found);
        Ok(())
    }

    /// Makes the next entry that of the leaf; false at the end.
    fn fill(&mut self, s: &Session, view: &View) -> Result<bool> {
        while self.next >= self.end {
            if self.done || self.from >= self.to {
                return Ok(false);
            }
            self.load(s, view)?;
        }
        Ok(true)
    }

    /// As `fill`, and passes over what has expired.
    fn fill_with_living(&mut self, s: &Session, view: &View) -> Result<bool> {
        if view.moment == 0 {
            return self.fill(s, view);
        }
        while self.fill(s, view)? {
            let at = if self.backward {
                self.end - 1
            } else {
                self.next
            };
            let bytes = self.leaf.value_at(at).unwrap_or_default();
            if self.shows_all || !value::is_over(value::expiry_of(bytes), view.moment) {
                return Ok(true);
            }
            match self.backward {
                true => self.end -= 1,
                false => self.next += 1,
            }
        }
        Ok(false)
    }

    /// As `advance` without the files.
    pub(crate) fn next_value(&mut self, s: &Session, view: &View) -> Result<Option<Found>> {
        // Where nothing expires, no value is looked at.
        match view.moment {
            0 => self.next_any_value(s, view),
            _ => self.next_living_value(s, view),
        }
    }

    #[inline(never)]
    fn next_living_value(&mut self, s: &Session, view: &View) -> Result<Option<Found>> {
        loop {
            let found = self.next_any_value(s, view)?;
            let over = || value::is_over(self.expires(), view.moment);
            if found.is_none() || self.shows_all || !over() {
                return Ok(found);
            }
        }
    }

    /// As `next_value`, also what has expired.
    #[inline]
    fn next_any_value(&mut self, s: &Session, view: &View) -> Result<Option<Found>> {
        if self.next >= self.end && !self.fill(s, view)? {
            return Ok(None);
        }
        let at = if self.backward {
            self.end -= 1;
            self.end
        } else {
            self.next += 1;
            self.next - 1
        };
        self.at_file = false;
        let (key, bytes) = self.leaf.entry(at)?;
        let (owner, _) = value::parse_key(key).map_err(pool::Error::from)?;
        if owner != self.keyspace {
            return Err(Error::Damaged {
                what: "keyspace of a value",
                index: owner,
            });
        }
        if Head::decode(bytes).map_err(pool::Error::from)?.inline {
            return Ok(Some(Found::Inline));
        }
        let blocks = InBlocks::decode(value::body(bytes)).map_err(pool::Error::from)?;
        value_index::check_blocks(s, &blocks)?;
        self.expect_next(s);
        Ok(Some(Found::Blocks(blocks)))
    }

    /// Starts loading the blocks of the next value of the leaf, while this one is looked at.
    fn expect_next(&self, s: &Session) {
        let next = match self.backward {
            true => self.end.wrapping_sub(1),
            false => self.next,
        };
        if !(self.next..self.end).contains(&next) {
            return;
        }
        let bytes = self.leaf.value_at(next).unwrap_or_default();
        if let Ok(Some(blocks)) = value::blocks_of(bytes)
            && let Some(run) = blocks.runs().first()
        {
            let len = blocks.len.min(BLOCK) as usize;
            if let Ok(data) = s.segment(run.block) {
                data.prefetch(run.block.offset(), len);
            }
        }
    }

    /// Copies the leaf where the scan goes on.
    fn load(&mut self, s: &Session, view: &View) -> Result<()> {
        let (reader, (root, _)) = (s.tree().reader(), view.settled(s)?);
        let going_on = core::mem::replace(&mut self.begun, true);
        let loaded = if self.backward {
            if going_on && let Some(low) = self.leaf.beyond() {
                self.to = low.to_vec();
            }
            reader.leaf_before(VALUES, &root, Some(&self.to), &mut self.leaf)
        } else {
            let mut near = Ok(false);
            if going_on && let Some(next) = self.leaf.beyond() {
                self.from.clear();
                self.from.extend_from_slice(next);
                near = reader.leaf_behind(VALUES, &root, &mut self.leaf);
            }
            match near {
                Ok(false) => reader.leaf_from(VALUES, &root, &self.from, &mut self.leaf),
                near => near.map(drop),
            }
        };
        if !reader.still(root.seq)? {
            return Err(Error::ViewTooOld);
        }
        loaded?;
        self.next = self.leaf.find(&self.from)?;
        self.end = match self.leaf.beyond() {
            Some(next) if !self.backward && next <= self.to.as_slice() => self.leaf.count(),
            _ => self.leaf.find(&self.to)?,
        };
        self.done = match (self.leaf.beyond(), self.backward) {
            (None, _) => true,
            (Some(low), true) => low <= self.from.as_slice(),
            (Some(next), false) => next >= self.to.as_slice(),
        };
        Ok(())
    }

    /// Copies the content of a file that the scan showed, as much as there is room for; `None`: the
    /// key is gone. `who` must be permitted to read the file (`None`: may read all).
    pub fn read(
        &self,
        s: &Session,
        (key, ino): (&[u8], u64),
        out: &mut [u8],
        who: Option<&Caller>,
    ) -> Result<Option<u64>> {
        read_file(s, (self.space, key), ino, &mut Out::copy(out), who)
    }

    /// Copies a value of this scan's view to the start of `out`, as much as there is room for.
    pub fn copy(s: &Session, view: &View, blocks: &InBlocks, out: &mut [u8]) -> Result<u64> {
        let copied = value_index::copy_blocks(s, blocks, out);
        match view.is_intact(s)? {
            true => copied,
            false => Err(Error::ViewTooOld),
        }
    }
}
