//! Quotas: how much users and directories may take, and how much they do.
//!
//! Invariants:
//!  * The limits are kept in attributes of the root directory that no program can reach
//!    (`docs/spec/objects.md`, Quotas); place `n` of a table is the project `n + 1`.
//!  * Usage is what the inodes say: the sum of their blocks, with one for inline content, and their
//!    number. Nothing else is counted, so a scan always finds the same.

use crate::layout::fields::{Reading, Writing};
use crate::layout::inode::{INLINE, InodeRecord};
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

/// The blocks that a limit of so many bytes has room for.
pub fn limit_blocks(bytes: u64) -> u64 {
    match bytes {
        0 => 0,
        // Less than a block is not without limit.
        bytes => (bytes / BLOCK).max(1),
    }
}

/// What one object counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub uid: u32,
    /// 0: it is in no directory with a quota.
    pub project: u16,
    pub blocks: u64,
}

impl Share {
    /// Of an object that exists.
    pub fn of(inode: &InodeRecord<'_>) -> Share {
        let inline = u64::from(inode.is_file() && inode.flags & INLINE != 0);
        Share {
            uid: inode.uid,
            project: inode.project,
            blocks: inode.blocks.max(inline),
        }
    }
}

/// What is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub blocks: u64,
    pub files: u64,
}

impl Taken {
    fn change(&mut self, blocks: i64, files: i64) {
        self.blocks = self.blocks.saturating_add_signed(blocks);
        self.files = self.files.saturating_add_signed(files);
    }
}

/// What users and directories with a quota take, as the trees have it.
#[derive(Default)]
pub struct Usage {
    users: BTreeMap<u32, Taken>,
    /// By project.
    directories: BTreeMap<u16, Taken>,
    /// The limits changed since this was last taken back.
    pub changed: bool,
}

impl Usage {
    /// Of these quotas, with their places, of which nothing is known yet.
    pub fn new(quotas: &[(usize, Quota)]) -> Usage {
        let mut usage = Usage::default();
        for (place, quota) in quotas {
            match quota.subject {
                Subject::User(uid) => drop(usage.users.insert(uid, Taken::default())),
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

    /// An object that counted for `old` counts for `new`.
    pub fn change(&mut self, old: Option<Share>, new: Option<Share>) {
        if old == new {
            return;
        }
        for (share, sign) in [(old, -1), (new, 1)] {
            let Some(share) = share else { continue };
            let blocks = (share.blocks as i64).wrapping_mul(sign);
            let user = self.users.get_mut(&share.uid);
            let directory = self.directories.get_mut(&share.project);
            for taken in [user, directory].into_iter().flatten() {
                taken.change(blocks, sign);
            }
        }
    }

    /// What the subject of the quota at `place` takes.
    pub fn of(&self, place: usize, subject: Subject) -> Taken {
        let found = match subject {
            Subject::User(uid) => self.users.get(&uid),
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
        let one = Taken {
            blocks: 1,
            files: 1,
        };
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
        let ten = Taken {
            blocks: 10,
            files: 1,
        };
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
        assert_eq!(Share::of(&InodeRecord { blocks: 0, ..dir }).blocks, 0);
        assert_eq!(
            (limit_blocks(0), limit_blocks(1), limit_blocks(8200)),
            (0, 1, 2)
        );
    }
}
