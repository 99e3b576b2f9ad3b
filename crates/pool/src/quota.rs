//! Quotas: how much users and directories may take, and how much they do.
//!
//! Invariants:
//!  * The limits are kept in attributes of the root directory that no program can reach
//!    (`docs/spec/objects.md`, Quotas); place `n` of a table is the project `n + 1`.
//!  * Usage is what the inodes and values say: the sum of the blocks of files, with one for inline
//!    content, of keys, and of values, in bytes or blocks as they are kept; and their number.
//!    Nothing else is counted, so a scan always finds the same.
//!  * Who owns a keyspace's directory, and the directory's own quota, pay for its values.

use crate::journal::{Change, Op};
use crate::layout::fields::{Reading, Writing};
use crate::layout::inode::{INLINE, InodeRecord};
use crate::layout::value::{self, InBlocks, KEYSPACE_LEN};
use crate::layout::{BLOCK, BadValue, bad};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Quotas of one pool.
pub const QUOTAS: usize = 1024;
/// How many of them one attribute has.
pub const QUOTAS_PER_PAGE: usize = 64;
/// Attributes that have them.
pub const QUOTA_PAGES: usize = QUOTAS / QUOTAS_PER_PAGE;
/// What the names of these attributes begin with; a number of two digits follows.
pub const QUOTA_PREFIX: &[u8] = b"holdfast.quota.";
/// Bytes of one quota in such an attribute.
const ENTRY: usize = 32;

const USER: u32 = 1;
const DIRECTORY: u32 = 2;
const PARTIAL: u32 = 1;

/// Whom a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// All objects that this user owns.
    User(u32),
    /// The directory with this inode number, and all below.
    Directory(u64),
}

/// One quota. A limit of 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub subject: Subject,
    /// A directory not all of whose content counts, as whoever sets it has not finished.
    pub partial: bool,
    /// Bytes.
    pub bytes: u64,
    /// Objects of all kinds.
    pub files: u64,
}

/// The quotas of one attribute.
pub type Page = [Option<Quota>; QUOTAS_PER_PAGE];

/// The name of the attribute with quotas `page * QUOTAS_PER_PAGE` and up.
pub fn page_name(page: usize) -> [u8; QUOTA_PREFIX.len() + 2] {
    let mut name = [b'0'; QUOTA_PREFIX.len() + 2];
    name[..QUOTA_PREFIX.len()].copy_from_slice(QUOTA_PREFIX);
    name[QUOTA_PREFIX.len()] += (page / 10 % 10) as u8;
    name[QUOTA_PREFIX.len() + 1] += (page % 10) as u8;
    name
}

/// The value of such an attribute.
pub fn encode_page(page: &Page) -> [u8; QUOTAS_PER_PAGE * ENTRY] {
    let mut out = [0; QUOTAS_PER_PAGE * ENTRY];
    for (quota, bytes) in page.iter().zip(out.chunks_exact_mut(ENTRY)) {
        let Some(quota) = quota else { continue };
        let (kind, id) = match quota.subject {
            Subject::User(uid) => (USER, u64::from(uid)),
            Subject::Directory(ino) => (DIRECTORY, ino),
        };
        let mut w = Writing::new(bytes);
        let flags = if quota.partial { PARTIAL } else { 0 };
        for word in [kind, flags] {
            let _ = w.u32(word);
        }
        for word in [id, quota.bytes, quota.files] {
            let _ = w.u64(word);
        }
    }
    out
}

/// The quotas that such a value has.
pub fn decode_page(bytes: &[u8]) -> Result<Page, BadValue> {
    let mut page = [None; QUOTAS_PER_PAGE];
    if bytes.len() != QUOTAS_PER_PAGE * ENTRY {
        return bad("a table of quotas has another length than all of them");
    }
    for (quota, bytes) in page.iter_mut().zip(bytes.chunks_exact(ENTRY)) {
        let mut r = Reading(bytes);
        let (kind, flags, id) = (r.u32()?, r.u32()?, r.u64()?);
        let (bytes, files) = (r.u64()?, r.u64()?);
        let subject = match (kind, u32::try_from(id)) {
            (0, _) => continue,
            (USER, Ok(uid)) => Subject::User(uid),
            (DIRECTORY, _) if id != 0 => Subject::Directory(id),
            _ => return bad("a quota is of an unknown kind"),
        };
        let partial = flags & PARTIAL != 0;
        *quota = Some(Quota {
            subject,
            partial,
            bytes,
            files,
        });
    }
    Ok(page)
}

/// The project of the directory that has quota `place`.
pub fn project_of(place: usize) -> u16 {
    (place + 1) as u16
}

/// Who pays for an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Payers {
    pub uid: u32,
    /// 0: it is in no directory with a quota.
    pub project: u16,
}

/// The limit that one of so many bytes is.
pub fn byte_limit(bytes: u64) -> u64 {
    match bytes {
        0 => 0,
        // Less than a block is not without limit.
        bytes => bytes.max(BLOCK),
    }
}

/// What is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub bytes: u64,
    pub files: u64,
}

impl Taken {
    /// By a value: its key, and its blocks or, if it has none, its bytes; `entry` is what the tree
    /// has of it.
    #[inline]
    pub fn by_value(key_len: usize, entry: &[u8], blocks: Option<&InBlocks>) -> Taken {
        Taken::by_parts(key_len, value::body(entry).len() as u64, blocks)
    }

    /// By a value of this length.
    #[inline]
    pub fn by_parts(key_len: usize, len: u64, blocks: Option<&InBlocks>) -> Taken {
        Taken::one(key_len as u64 + blocks.map_or(len, bytes_of))
    }

    /// By an entry of the tree of values.
    pub fn by_entry(tree_key: &[u8], entry: &[u8]) -> Result<Taken, BadValue> {
        let key_len = tree_key.len().saturating_sub(KEYSPACE_LEN);
        let blocks = value::blocks_of(entry)?;
        Ok(Taken::by_value(key_len, entry, blocks.as_ref()))
    }

    /// By the value that a change puts.
    pub fn by_change(op: &Op<'_>) -> Taken {
        let content = match op.change {
            Change::Put(value) | Change::PutUntil(_, value) => value.len() as u64,
            Change::PutBlocks(runs) | Change::PutBlocksUntil(_, runs) => {
                InBlocks::decode(runs).as_ref().map_or(0, bytes_of)
            }
            _ => return Taken::default(),
        };
        Taken::one(op.key.len() as u64 + content)
    }

    fn one(bytes: u64) -> Taken {
        Taken { bytes, files: 1 }
    }

    /// Together with others.
    pub fn and(self, other: Taken) -> Taken {
        Taken {
            bytes: self.bytes.saturating_add(other.bytes),
            files: self.files.saturating_add(other.files),
        }
    }

    fn change(&mut self, by: Difference) {
        self.bytes = self.bytes.saturating_add_signed(by.bytes);
        self.files = self.files.saturating_add_signed(by.files);
    }
}

fn bytes_of(blocks: &InBlocks) -> u64 {
    let runs = blocks.runs().iter();
    BLOCK * runs.map(|run| u64::from(run.len)).sum::<u64>()
}

/// How much more is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub bytes: i64,
    pub files: i64,
}

impl Difference {
    fn between(old: Taken, new: Taken) -> Difference {
        Difference {
            bytes: (new.bytes as i64).wrapping_sub(old.bytes as i64),
            files: (new.files as i64).wrapping_sub(old.files as i64),
        }
    }

    fn add(&mut self, more: Difference) {
        self.bytes = self.bytes.wrapping_add(more.bytes);
        self.files = self.files.wrapping_add(more.files);
    }
}

/// What one object counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub payers: Payers,
    pub taken: Taken,
}

impl Share {
    /// Of an object that exists.
    pub fn of(inode: &InodeRecord<'_>) -> Share {
        let inline = u64::from(inode.is_file() && inode.flags & INLINE != 0);
        Share {
            payers: payers_of(inode),
            taken: Taken::one(inode.blocks.max(inline).saturating_mul(BLOCK)),
        }
    }
}

/// Who pays for an object, and for the values of a keyspace.
pub fn payers_of(inode: &InodeRecord<'_>) -> Payers {
    let (uid, project) = (inode.uid, inode.project);
    Payers { uid, project }
}

/// What is known of the values of a keyspace.
#[derive(Clone, Copy, Debug)]
struct Values {
    payers: Payers,
    /// `None`: nobody has looked yet.
    taken: Option<Taken>,
}

/// What users and directories with a quota take, as the trees have it.
///
/// Whoever writes counts objects in session memory as they change, and values as they come; what
/// else differs there is `owed`.
#[derive(Clone, Default)]
pub struct Usage {
    /// With the places of their quotas.
    users: BTreeMap<u32, (usize, Taken)>,
    /// By project.
    directories: BTreeMap<u16, Taken>,
    /// By the keyspace's number, of those for whose values somebody pays.
    values: BTreeMap<u64, Values>,
    /// What session memory is to be changed by, for each place.
    owed: BTreeMap<usize, Difference>,
    /// The limits changed since this was last taken back.
    pub changed: bool,
}

impl Usage {
    /// Of these quotas, with their places, of which nothing is known yet.
    pub fn new(quotas: &[(usize, Quota)]) -> Usage {
        let mut usage = Usage::default();
        for (place, quota) in quotas {
            match quota.subject {
                Subject::User(uid) => {
                    usage.users.insert(uid, (*place, Taken::default()));
                }
                Subject::Directory(_) => {
                    let project = project_of(*place);
                    usage.directories.insert(project, Taken::default());
                }
            }
        }
        usage
    }

    /// Whether anything is to be counted.
    #[inline]
    pub fn is_on(&self) -> bool {
        !self.users.is_empty() || !self.directories.is_empty()
    }

    fn is_limited(&self, payers: Payers) -> bool {
        self.users.contains_key(&payers.uid) || self.directories.contains_key(&payers.project)
    }

    fn add(&mut self, payers: Payers, by: Difference) {
        if let Some((_, taken)) = self.users.get_mut(&payers.uid) {
            taken.change(by);
        }
        if let Some(taken) = self.directories.get_mut(&payers.project) {
            taken.change(by);
        }
    }

    fn owe(&mut self, payers: Payers, by: Difference) {
        let user = self.users.get(&payers.uid).map(|(place, _)| *place);
        let directory = self.directories.contains_key(&payers.project);
        let directory = directory.then(|| usize::from(payers.project) - 1);
        for place in user.into_iter().chain(directory) {
            self.owed.entry(place).or_default().add(by);
        }
    }

    /// An object that counted for `old` counts for `new`.
    pub fn change(&mut self, old: Option<Share>, new: Option<Share>) {
        if old == new {
            return;
        }
        let nothing = Taken::default();
        if let Some(old) = old {
            self.add(old.payers, Difference::between(old.taken, nothing));
        }
        if let Some(new) = new {
            self.add(new.payers, Difference::between(nothing, new.taken));
        }
    }

    /// The values of a keyspace are paid for by these from now on (`None`: it is gone). One that is
    /// `new` has none yet.
    pub fn keyspace(&mut self, ino: u64, payers: Option<Payers>, new: bool) {
        let payers = payers.filter(|payers| self.is_limited(*payers));
        let old = self.values.get(&ino).copied();
        if old.map(|old| old.payers) == payers {
            return;
        }
        let taken = match old {
            Some(old) => old.taken,
            None => new.then(Taken::default),
        };
        if let Some(old) = old {
            self.charge(old.payers, taken.unwrap_or_default(), Taken::default());
        }
        match payers {
            Some(payers) => {
                self.values.insert(ino, Values { payers, taken });
                self.charge(payers, Taken::default(), taken.unwrap_or_default());
            }
            None => drop(self.values.remove(&ino)),
        }
    }

    /// What nobody but us knows to have changed.
    fn charge(&mut self, payers: Payers, old: Taken, new: Taken) {
        let by = Difference::between(old, new);
        self.add(payers, by);
        self.owe(payers, by);
    }

    /// A keyspace has a value that takes `new`, which who put it has counted, in place of one that
    /// took `old`.
    pub fn value(&mut self, ino: u64, old: Taken, new: Taken) {
        let nothing = Taken::default();
        let Some(values) = self.values.get_mut(&ino) else {
            return;
        };
        let payers = values.payers;
        let Some(taken) = &mut values.taken else {
            // It will be found.
            return self.owe(payers, Difference::between(new, nothing));
        };
        taken.change(Difference::between(old, new));
        self.add(payers, Difference::between(old, new));
        self.owe(payers, Difference::between(old, nothing));
    }

    /// A value that was counted by who put it was replaced before the trees had it.
    pub fn passed_over(&mut self, ino: u64, value: Taken) {
        if let Some(values) = self.values.get(&ino) {
            self.owe(values.payers, Difference::between(value, Taken::default()));
        }
    }

    /// Whether the values of this keyspace are counted one by one.
    pub fn counts_values(&self, ino: u64) -> bool {
        self.values.get(&ino).is_some_and(|v| v.taken.is_some())
    }

    /// A keyspace has values no more, as far as the trees say; or it has these, which nobody had
    /// looked for.
    pub fn has_values(&mut self, ino: u64, new: Taken) {
        let Some(values) = self.values.get_mut(&ino) else {
            return;
        };
        let (payers, old) = (values.payers, values.taken.replace(new));
        self.charge(payers, old.unwrap_or_default(), new);
    }

    /// Keyspaces whose values nobody has looked for.
    pub fn unknown(&self) -> Vec<u64> {
        let all = self.values.iter();
        let unknown = all.filter(|(_, values)| values.taken.is_none());
        unknown.map(|(ino, _)| *ino).collect()
    }

    /// Takes back what session memory is to be changed by, with the places.
    pub fn take_owed(&mut self) -> BTreeMap<usize, Difference> {
        core::mem::take(&mut self.owed)
    }

    /// What the subject of the quota at `place` takes.
    pub fn of(&self, place: usize, subject: Subject) -> Taken {
        let found = match subject {
            Subject::User(uid) => self.users.get(&uid).map(|(_, taken)| taken),
            Subject::Directory(_) => self.directories.get(&project_of(place)),
        };
        found.copied().unwrap_or_default()
    }
}

/// The quotas that the attributes of the root have, with their places; `get` finds the attribute
/// of a name.
pub fn read_all<E: From<BadValue>>(
    mut get: impl FnMut(&[u8]) -> Result<Option<Vec<u8>>, E>,
) -> Result<Vec<(usize, Quota)>, E> {
    let mut all = Vec::new();
    for page in 0..QUOTA_PAGES {
        let Some(bytes) = get(&page_name(page))? else {
            continue;
        };
        let quotas = decode_page(&bytes)?;
        let places = page * QUOTAS_PER_PAGE..;
        let with_places = places.zip(quotas);
        all.extend(with_places.filter_map(|(place, quota)| Some((place, quota?))));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::inode::{TYPE_DIR, TYPE_FILE};

    fn quota(subject: Subject) -> Quota {
        Quota {
            subject,
            partial: matches!(subject, Subject::Directory(_)),
            bytes: 1 << 40,
            files: 7,
        }
    }

    #[test]
    fn tables_are_read_as_they_were_written() {
        let mut page = [None; QUOTAS_PER_PAGE];
        page[0] = Some(quota(Subject::User(0)));
        page[3] = Some(quota(Subject::User(u32::MAX)));
        page[63] = Some(quota(Subject::Directory(1 << 50)));
        let bytes = encode_page(&page);
        assert_eq!(decode_page(&bytes), Ok(page));
        assert!(decode_page(&bytes[1..]).is_err());
        let mut wrong = bytes;
        wrong[0] = 3;
        assert!(decode_page(&wrong).is_err(), "an unknown kind");
        assert_eq!(&page_name(15), b"holdfast.quota.15");
        assert_eq!(&page_name(0), b"holdfast.quota.00");
    }

    #[test]
    fn places_count_over_all_tables() {
        let mut page = [None; QUOTAS_PER_PAGE];
        page[2] = Some(quota(Subject::User(5)));
        let bytes = encode_page(&page).to_vec();
        let get = |name: &[u8]| -> Result<_, BadValue> {
            Ok((name == page_name(1)).then(|| bytes.clone()))
        };
        let all = read_all(get).unwrap();
        assert_eq!(all, [(66, quota(Subject::User(5)))]);
        assert_eq!(project_of(66), 67);
    }

    #[test]
    fn usage_follows_owner_directory_and_size() {
        let quotas = [
            (0, quota(Subject::User(5))),
            (4, quota(Subject::Directory(9))),
        ];
        let mut usage = Usage::new(&quotas);
        assert!(usage.is_on() && !Usage::new(&[]).is_on());
        let file = InodeRecord {
            mode: TYPE_FILE | 0o644,
            uid: 5,
            flags: INLINE,
            ..InodeRecord::default()
        };
        let of = |inode: &InodeRecord<'_>| Some(Share::of(inode));
        usage.change(None, of(&file));
        let one = Taken::one(BLOCK);
        assert_eq!(
            usage.of(0, Subject::User(5)),
            one,
            "inline content is a block"
        );
        let large = InodeRecord {
            project: 5,
            blocks: 10,
            ..file
        };
        usage.change(of(&file), of(&large));
        let ten = Taken::one(10 * BLOCK);
        assert_eq!(usage.of(0, Subject::User(5)), ten);
        assert_eq!(usage.of(4, Subject::Directory(9)), ten);
        let given = InodeRecord { uid: 6, ..large };
        usage.change(of(&large), of(&given));
        assert_eq!(usage.of(0, Subject::User(5)), Taken::default());
        assert_eq!(usage.of(4, Subject::Directory(9)), ten);
        usage.change(of(&given), None);
        assert_eq!(usage.of(4, Subject::Directory(9)), Taken::default());
        let dir = InodeRecord {
            mode: TYPE_DIR | 0o755,
            ..given
        };
        let empty = InodeRecord { blocks: 0, ..dir };
        assert_eq!(Share::of(&empty).taken.bytes, 0);
        assert_eq!(
            (byte_limit(0), byte_limit(1), byte_limit(8200)),
            (0, BLOCK, 8200)
        );
    }

    fn taken(bytes: u64, files: u64) -> Taken {
        Taken { bytes, files }
    }

    fn owed(usage: &mut Usage) -> Vec<(usize, i64, i64)> {
        let all = usage.take_owed().into_iter();
        let all = all.filter(|(_, by)| *by != Difference::default());
        all.map(|(place, by)| (place, by.bytes, by.files)).collect()
    }

    #[test]
    fn values_are_paid_for_by_owner_and_directory() {
        let quotas = [
            (0, quota(Subject::User(5))),
            (4, quota(Subject::Directory(9))),
        ];
        let mut usage = Usage::new(&quotas);
        let payers = |uid, project| Some(Payers { uid, project });
        usage.keyspace(9, payers(5, 5), true);
        usage.keyspace(8, payers(6, 0), true);
        assert!(usage.counts_values(9) && !usage.counts_values(8), "unpaid");
        // Who puts a value counts it; that another one is gone is ours to say.
        usage.value(9, Taken::default(), taken(30, 1));
        assert_eq!(owed(&mut usage), []);
        usage.value(9, taken(30, 1), taken(50, 1));
        usage.passed_over(9, taken(7, 1));
        assert_eq!(owed(&mut usage), [(0, -37, -2), (4, -37, -2)]);
        assert_eq!(usage.of(0, Subject::User(5)), taken(50, 1));
        // Another owner, who has none.
        usage.keyspace(9, payers(6, 5), false);
        assert_eq!(owed(&mut usage), [(0, -50, -1)]);
        assert_eq!(usage.of(0, Subject::User(5)), Taken::default());
        assert_eq!(usage.of(4, Subject::Directory(9)), taken(50, 1));
        usage.has_values(9, Taken::default());
        assert_eq!(owed(&mut usage), [(4, -50, -1)]);
        usage.value(9, Taken::default(), taken(1, 1));
        usage.keyspace(9, None, false);
        assert_eq!(owed(&mut usage), [(4, -1, -1)]);
        assert_eq!(usage.of(4, Subject::Directory(9)), Taken::default());
    }

    #[test]
    fn values_that_nobody_looked_for_are_counted_once() {
        let mut usage = Usage::new(&[(3, quota(Subject::User(5)))]);
        let (uid, project) = (5, 0);
        usage.keyspace(9, Some(Payers { uid, project }), false);
        assert_eq!(usage.unknown(), [9]);
        // Counted by who put it, and found afterwards.
        usage.value(9, taken(100, 1), taken(20, 1));
        usage.has_values(9, taken(520, 6));
        assert_eq!(owed(&mut usage), [(3, 500, 5)]);
        assert_eq!(usage.of(3, Subject::User(5)), taken(520, 6));
        assert!(usage.unknown().is_empty());
    }
}
