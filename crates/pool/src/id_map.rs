//! The ids of a user namespace.
//!
//! Invariant: the pool has the ids of the surrounding namespace; a caller's ids are translated into
//! those before anything is checked or stored, and translated back when they are shown.

use alloc::vec::Vec;

/// What the kernel shows for an id that has no name in a namespace.
pub const OVERFLOW: u32 = 65_534;

/// One line of uid_map(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    inside: u32,
    outside: u32,
    count: u32,
}

/// Ids of users, or of groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap {
    extents: Vec<Extent>,
}

/// The ids of a namespace that is not the one the pool's ids are of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMaps {
    pub users: IdMap,
    pub groups: IdMap,
}

impl IdMap {
    /// What uid_map(5) says; lines that it cannot have mean nothing.
    pub fn parse(text: &[u8]) -> IdMap {
        let lines = text.split(|b| *b == b'\n');
        let extents = lines.filter_map(extent).collect();
        IdMap { extents }
    }

    /// Whether each id is itself.
    pub fn is_identity(&self) -> bool {
        let all = Extent {
            inside: 0,
            outside: 0,
            count: u32::MAX,
        };
        self.extents == [all]
    }

    /// Whether no map was written yet.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// The pool's id for one of the caller's.
    pub fn outside(&self, id: u32) -> Option<u32> {
        let find = |e: &Extent| Some(e.outside + within(id, e.inside, e.count)?);
        self.extents.iter().find_map(find)
    }

    /// The caller's id for one of the pool's.
    pub fn inside(&self, id: u32) -> Option<u32> {
        let find = |e: &Extent| Some(e.inside + within(id, e.outside, e.count)?);
        self.extents.iter().find_map(find)
    }

    /// What the caller sees of one of the pool's ids.
    pub fn shown(&self, id: u32) -> u32 {
        self.inside(id).unwrap_or(OVERFLOW)
    }
}

fn within(id: u32, first: u32, count: u32) -> Option<u32> {
    let at = id.checked_sub(first)?;
    (at < count).then_some(at)
}

fn extent(line: &[u8]) -> Option<Extent> {
    let mut words = line.split(|b| b.is_ascii_whitespace());
    let mut number = || -> Option<u32> {
        let word = words.find(|word| !word.is_empty())?;
        core::str::from_utf8(word).ok()?.parse().ok()
    };
    let (inside, outside, count) = (number()?, number()?, number()?);
    // Sums of what is within an extent are ids.
    inside.checked_add(count)?;
    outside.checked_add(count)?;
    Some(Extent {
        inside,
        outside,
        count,
    })
}

impl IdMaps {
    /// `None`: the ids are the pool's.
    pub fn parse(users: &[u8], groups: &[u8]) -> Option<IdMaps> {
        let (users, groups) = (IdMap::parse(users), IdMap::parse(groups));
        let same = users.is_identity() && groups.is_identity();
        (!same).then_some(IdMaps { users, groups })
    }

    /// Whether an object with these ids has an owner and a group in the namespace: only of such
    /// objects the capabilities of a caller count.
    pub fn have(&self, uid: u32, gid: u32) -> bool {
        self.users.inside(uid).is_some() && self.groups.inside(gid).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_go_both_ways() {
        let map =
            IdMap::parse(b"         0       1001          1\n         1     100000      65535\n");
        assert_eq!(
            (map.outside(0), map.outside(5)),
            (Some(1001), Some(100_004))
        );
        assert_eq!(
            (map.outside(65_535), map.outside(65_536)),
            (Some(165_534), None)
        );
        assert_eq!((map.inside(1001), map.inside(0)), (Some(0), None));
        assert_eq!((map.shown(100_000), map.shown(0)), (1, OVERFLOW));
        assert!(!map.is_identity() && !map.is_empty());
    }

    #[test]
    fn the_first_namespace_changes_nothing() {
        let all = b"         0          0 4294967295\n";
        assert_eq!(IdMaps::parse(all, all), None);
        let maps = IdMaps::parse(all, b"0 5 1").unwrap();
        assert!(maps.have(77, 5) && !maps.have(77, 6));
    }

    #[test]
    fn nonsense_means_nothing() {
        for text in [
            &b""[..],
            b"x",
            b"1 2",
            b"-1 0 1",
            b"4294967295 0 9",
            b"0 4294967290 9\n\n",
        ] {
            assert!(IdMap::parse(text).is_empty(), "{text:?}");
        }
        assert_eq!(IdMap::parse(b"").outside(0), None);
    }
}
