//! Access control lists: what acl(5) and the kernel make of them.
//!
//! Invariants:
//!  * A list is kept as an extended attribute in the kernel's form. What the mode says better, the
//!    rights of the owner, of others, and of the mask (without a mask: of the group), counts in the
//!    mode alone, so that chmod(2) changes both.
//!  * A list that says no more than a mode is not kept.

use crate::base::abi::S_IFMT;
use crate::base::error::{Error, Result};
use crate::base::types::Caller;
use crate::session::{Session, drain};
use crate::tables::inode_table::{self, Rights};
use alloc::vec::Vec;
use pmem::atomic::Ordering::Acquire;

const VERSION: u32 = 2;
const HEAD: usize = 4;
const ENTRY: usize = 8;
const NO_ID: u32 = u32::MAX;
const RIGHTS: u16 = 7;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    rights: u16,
    id: u32,
}

/// A list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

/// The list that object `ino` has as this attribute, once the trees have what the journal says of
/// it.
#[cold]
pub(crate) fn of(s: &Session, ino: u64, name: &[u8]) -> Result<Option<Acl>> {
    let inode = inode_table::get(s, ino)?;
    drain::wait_applied(s, inode.e.seq.load(Acquire))?;
    let Some(value) = s.tree().xattr(ino, name)? else {
        return Ok(None);
    };
    let what = "access control list";
    let damaged = Error::Damaged { what, index: ino };
    Acl::parse(&value).map_err(|_| damaged)
}

impl Acl {
    /// The list in an attribute's value; `None`: it has no entries.
    pub fn parse(value: &[u8]) -> Result<Option<Acl>> {
        let Some((version, rest)) = value.split_first_chunk::<HEAD>() else {
            return Err(Error::Invalid);
        };
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Error::NotSupported);
        }
        let (entries, left) = rest.as_chunks::<ENTRY>();
        if !left.is_empty() {
            return Err(Error::Invalid);
        }
        let entries: Vec<Entry> = entries.iter().map(Entry::parse).collect::<Result<_>>()?;
        Ok((!entries.is_empty()).then_some(Acl(entries)))
    }

    /// The value of an attribute with this list.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for Entry { tag, rights, id } in &self.0 {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&rights.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    }

    /// Entries are in order, none that must be there is missing, and none says what no right is.
    pub fn check(&self) -> Result<()> {
        let (mut next, mut needs_mask) = (USER_OBJ, false);
        for entry in &self.0 {
            next = match (entry.tag, next) {
                (USER_OBJ, USER_OBJ) => USER,
                (USER, USER) | (GROUP, GROUP) => {
                    needs_mask = true;
                    next
                }
                (GROUP_OBJ, USER) => GROUP,
                (MASK, GROUP) => OTHER,
                (OTHER, OTHER) => 0,
                (OTHER, GROUP) if !needs_mask => 0,
                _ => return Err(Error::Invalid),
            };
            if entry.rights & !RIGHTS != 0 {
                return Err(Error::Invalid);
            }
        }
        match next {
            0 => Ok(()),
            _ => Err(Error::Invalid),
        }
    }

    fn find(&self, tag: u16) -> Option<usize> {
        self.0.iter().position(|entry| entry.tag == tag)
    }

    fn rights_of(&self, tag: u16) -> u32 {
        self.find(tag).map_or(0, |at| u32::from(self.0[at].rights))
    }

    /// What the middle bits of the mode stand for.
    fn middle(&self) -> u16 {
        match self.find(MASK) {
            Some(_) => MASK,
            None => GROUP_OBJ,
        }
    }

    /// The rights that a mode can say.
    pub fn mode(&self) -> u32 {
        let [owner, middle, others] = [USER_OBJ, self.middle(), OTHER].map(|t| self.rights_of(t));
        owner << 6 | middle << 3 | others
    }

    /// Whether it says more than that.
    pub fn says_more(&self) -> bool {
        self.0
            .iter()
            .any(|entry| matches!(entry.tag, USER | GROUP | MASK))
    }

    /// The list of an object that has this mode.
    pub fn with_mode(mut self, mode: u32) -> Acl {
        let middle = self.middle();
        for entry in &mut self.0 {
            let rights = match entry.tag {
                USER_OBJ => mode >> 6,
                OTHER => mode,
                tag if tag == middle => mode >> 3,
                _ => continue,
            };
            entry.rights = rights as u16 & RIGHTS;
        }
        self
    }

    /// Takes away what a new object of this mode is not to have: its mode, and its list.
    pub fn for_new(self, mode: u32) -> (u32, Option<Acl>) {
        let rights = self.mode() & mode & 0o777;
        let acl = self.with_mode(rights);
        let mode = mode & !0o777 | rights;
        (mode, acl.says_more().then_some(acl))
    }

    /// Whether somebody who is not the owner may do what `want` says with an object of these rights
    /// and this list.
    pub fn permits(&self, c: &Caller, a: &Rights, want: u32) -> bool {
        let has = |rights: u32| want & !rights & 7 == 0;
        let mask = match self.find(MASK) {
            Some(_) => a.mode >> 3,
            None => u32::from(RIGHTS),
        };
        let named = self
            .0
            .iter()
            .find(|entry| entry.tag == USER && entry.id == c.uid);
        if let Some(named) = named {
            return has(u32::from(named.rights) & mask);
        }
        let mut is_member = false;
        for entry in &self.0 {
            let rights = match entry.tag {
                GROUP_OBJ if c.in_group(a.gid) && self.middle() == GROUP_OBJ => a.mode >> 3,
                GROUP_OBJ if c.in_group(a.gid) => u32::from(entry.rights),
                GROUP if c.in_group(entry.id) => u32::from(entry.rights),
                _ => continue,
            };
            is_member = true;
            // The first that gives it all; what the mask takes from it no other entry gives back.
            if has(rights) {
                return has(mask);
            }
        }
        !is_member && has(a.mode)
    }
}

impl Entry {
    fn parse(bytes: &[u8; ENTRY]) -> Result<Entry> {
        let [t0, t1, r0, r1, id @ ..] = *bytes;
        let (tag, id) = (u16::from_le_bytes([t0, t1]), u32::from_le_bytes(id));
        let id = match tag {
            USER_OBJ | GROUP_OBJ | MASK | OTHER => NO_ID,
            USER | GROUP if id != NO_ID => id,
            _ => return Err(Error::Invalid),
        };
        let rights = u16::from_le_bytes([r0, r1]);
        Ok(Entry { tag, rights, id })
    }
}

/// The permission bits of a mode, in place of those that it has.
pub(crate) fn with_bits(mode: u32, bits: u32) -> u32 {
    mode & (S_IFMT | 0o7000) | bits & 0o777
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::abi::{R_OK, W_OK, X_OK};
    use alloc::vec;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        let entry = |&(tag, rights, id)| Entry { tag, rights, id };
        Acl(entries.iter().map(entry).collect())
    }

    /// Of user 10 and group 20, with entries for user 11, group 21 and a mask.
    fn example() -> Acl {
        acl(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 6, 11),
            (GROUP_OBJ, 4, NO_ID),
            (GROUP, 7, 21),
            (MASK, 5, NO_ID),
            (OTHER, 1, NO_ID),
        ])
    }

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller<'_> {
        Caller {
            uid,
            gid,
            groups,
            umask: 0,
            privileged: false,
            ids: None,
        }
    }

    fn rights(mode: u32) -> Rights {
        Rights {
            mode,
            uid: 10,
            gid: 20,
            list_of: 1,
        }
    }

    #[test]
    fn a_value_comes_back() {
        let value = example().encode();
        assert_eq!(value.len(), HEAD + 6 * ENTRY);
        assert_eq!(Acl::parse(&value), Ok(Some(example())));
        assert_eq!(Acl::parse(&value[..HEAD]), Ok(None));
        for len in [0, 3, 5, 11, 13] {
            assert_eq!(Acl::parse(&value[..len]), Err(Error::Invalid), "{len}");
        }
        let mut other = value.clone();
        other[0] = 1;
        assert_eq!(Acl::parse(&other), Err(Error::NotSupported));
        let unknown = acl(&[(0x40, 1, 1)]).encode();
        assert_eq!(Acl::parse(&unknown), Err(Error::Invalid));
        let nobody = acl(&[(USER, 1, NO_ID)]).encode();
        assert_eq!(Acl::parse(&nobody), Err(Error::Invalid));
    }

    #[test]
    fn entries_are_in_order_and_complete() {
        assert_eq!(example().check(), Ok(()));
        let whole = example().0;
        for missing in [0, 2, 4, 5] {
            let mut part = whole.clone();
            part.remove(missing);
            assert_eq!(Acl(part).check(), Err(Error::Invalid), "{missing}");
        }
        for at in 0..5 {
            let mut swapped = whole.clone();
            swapped.swap(at, at + 1);
            assert_eq!(Acl(swapped).check(), Err(Error::Invalid), "{at}");
        }
        let mut twice = whole.clone();
        twice.push(whole[5]);
        assert_eq!(Acl(twice).check(), Err(Error::Invalid));
        let mut odd = whole;
        odd[1].rights = 8;
        assert_eq!(Acl(odd).check(), Err(Error::Invalid));
        let least = [
            (USER_OBJ, 7, NO_ID),
            (GROUP_OBJ, 5, NO_ID),
            (OTHER, 0, NO_ID),
        ];
        assert_eq!(acl(&least).check(), Ok(()));
    }

    #[test]
    fn the_mode_has_the_mask_in_its_middle() {
        assert_eq!(example().mode(), 0o751);
        assert!(example().says_more());
        let least = acl(&[
            (USER_OBJ, 7, NO_ID),
            (GROUP_OBJ, 5, NO_ID),
            (OTHER, 0, NO_ID),
        ]);
        assert_eq!((least.mode(), least.says_more()), (0o750, false));
        assert_eq!(least.clone().with_mode(0o100_604).mode(), 0o604);
        let changed = example().with_mode(0o100_620);
        assert_eq!(changed.mode(), 0o620);
        assert_eq!(changed.0[2], example().0[2], "the group keeps what it has");
        let (mode, list) = example().for_new(0o100_666);
        assert_eq!(
            (mode, list.map(|list| list.mode())),
            (0o100_640, Some(0o640))
        );
        assert_eq!(least.for_new(0o107_777), (0o107_750, None));
        assert_eq!(with_bits(0o104_777, 0o751), 0o104_751);
    }

    #[test]
    fn the_entry_of_a_user_comes_before_those_of_groups() {
        let list = example();
        let may = |uid, groups: &[u32], want| {
            list.permits(&caller(uid, 99, groups), &rights(0o751), want)
        };
        // Its own entry, with the mask, although a group of it could do more.
        assert!(may(11, &[21], R_OK) && !may(11, &[21], W_OK) && !may(11, &[21], X_OK));
        // Groups: the one that gives all that is wanted, with the mask.
        assert!(may(12, &[20], R_OK) && !may(12, &[20], X_OK));
        assert!(may(12, &[20, 21], R_OK | X_OK) && !may(12, &[21], W_OK));
        // A member of some is not one of the others.
        assert!(!may(12, &[20], X_OK) && may(12, &[], X_OK) && !may(12, &[], R_OK));
    }

    #[test]
    fn without_a_mask_the_mode_says_what_the_group_may() {
        let list = acl(&[
            (USER_OBJ, 7, NO_ID),
            (GROUP_OBJ, 7, NO_ID),
            (OTHER, 0, NO_ID),
        ]);
        let member = caller(12, 20, &[]);
        assert!(!list.permits(&member, &rights(0o740), W_OK));
        assert!(list.permits(&member, &rights(0o760), W_OK));
        assert!(!list.permits(&caller(12, 9, &[]), &rights(0o760), R_OK));
        assert_eq!(vec![list.mode()], vec![0o770]);
    }
}
