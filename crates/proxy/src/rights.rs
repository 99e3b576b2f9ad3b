//! What a process that is served may do: as whom, and in which groups.
//!
//! Invariant: rights only become fewer, by the rules of setuid(2), setgid(2) and setgroups(2): an
//! id becomes another one that the process has already, unless it is privileged.

use holdfast_client::served::wire::Head;
use holdfast_pmem::peer;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// The user and the group that root is where it is squashed.
pub const NOBODY: u32 = 65534;

/// The rights of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Real, effective and saved.
    users: [u32; 3],
    groups: [u32; 3],
    /// Supplementary groups.
    others: Vec<u32>,
    /// It may act as anybody.
    privileged: bool,
    /// Root is nobody here.
    squashed: bool,
}

/// As whom one call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor<'a> {
    pub uid: u32,
    pub gid: u32,
    pub groups: &'a [u32],
    pub privileged: bool,
}

impl Rights {
    /// Of the process that connected. `squash`: root is to be nobody.
    pub fn of_peer(socket: BorrowedFd<'_>, squash: bool) -> Result<Rights, Errno> {
        let (user, group) = (peer::user(socket)?, peer::group(socket)?);
        if user == 0 && squash {
            return Ok(Rights {
                users: [NOBODY; 3],
                groups: [NOBODY; 3],
                others: Vec::new(),
                privileged: false,
                squashed: true,
            });
        }
        Ok(Rights {
            users: [user; 3],
            groups: [group; 3],
            others: peer::groups(socket)?,
            privileged: user == 0,
            squashed: false,
        })
    }

    /// Whether a user is one that it is or can become.
    pub fn has_user(&self, user: u32) -> bool {
        self.privileged || self.users.contains(&user)
    }

    /// Its effective user and group.
    pub fn own(&self) -> (u32, u32) {
        (self.users[1], self.groups[1])
    }

    /// User, group and other groups, if it can never act as anybody else.
    pub fn lasting(&self) -> Option<(u32, u32, Vec<u32>)> {
        let (users, groups) = (self.users, self.groups);
        let is_one = |ids: [u32; 3]| ids == [ids[0]; 3];
        let lasts = is_one(users) && is_one(groups) && !self.privileged && !self.squashed;
        lasts.then(|| (users[0], groups[0], self.others.clone()))
    }

    /// Whether it may act as anybody.
    pub fn is_privileged(&self) -> bool {
        self.privileged
    }

    /// As whom the call is made that claims to be made as `head` says; `None`: the process is not.
    pub fn actor(&self, head: &Head) -> Option<Actor<'_>> {
        let groups = &self.others[..];
        if self.squashed {
            let (uid, gid, privileged) = (NOBODY, NOBODY, false);
            return Some(Actor {
                uid,
                gid,
                groups,
                privileged,
            });
        }
        let (uid, gid, privileged) = match self.privileged {
            true => (head.uid, head.gid, head.privileged),
            false if head.privileged => return None,
            false => (
                own(&self.users, head.uid)?,
                own(&self.groups, head.gid)?,
                false,
            ),
        };
        Some(Actor {
            uid,
            gid,
            groups,
            privileged,
        })
    }

    /// The process has these ids from now on; false, and nothing changes, if it cannot.
    pub fn narrow(
        &mut self,
        users: [u32; 3],
        groups: [u32; 3],
        others: Vec<u32>,
        privileged: bool,
    ) -> bool {
        if self.squashed {
            return true;
        }
        let is_in = |new: &[u32; 3], old: &[u32; 3]| new.iter().all(|id| old.contains(id));
        let known = |id: &u32| self.others.contains(id) || self.groups.contains(id);
        let narrows = is_in(&users, &self.users)
            && is_in(&groups, &self.groups)
            && others.iter().all(known)
            && !privileged;
        if !self.privileged && !narrows {
            return false;
        }
        *self = Rights {
            users,
            groups,
            others,
            privileged,
            squashed: false,
        };
        true
    }
}

/// The one of a process's ids that it claims. In a user namespace the kernel may show it none of
/// them: then it says nobody's, and is whom the kernel told us.
fn own(ids: &[u32; 3], claimed: u32) -> Option<u32> {
    match ids.contains(&claimed) {
        true => Some(claimed),
        false => (claimed == NOBODY).then_some(ids[1]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> Rights {
        Rights {
            users: [10; 3],
            groups: [20; 3],
            others: vec![30, 31],
            privileged: false,
            squashed: false,
        }
    }

    fn root() -> Rights {
        Rights {
            users: [0; 3],
            groups: [0; 3],
            others: vec![],
            privileged: true,
            squashed: false,
        }
    }

    fn claim(uid: u32, gid: u32, privileged: bool) -> Head {
        Head {
            uid,
            gid,
            privileged,
            ..Head::default()
        }
    }

    #[test]
    fn nobody_acts_as_another() {
        let user = user();
        let actor = user.actor(&claim(10, 20, false)).unwrap();
        assert_eq!((actor.uid, actor.gid), (10, 20));
        assert_eq!(actor.groups, [30, 31]);
        assert!(!actor.privileged);
        let hidden = user.actor(&claim(NOBODY, NOBODY, false)).unwrap();
        assert_eq!((hidden.uid, hidden.gid), (10, 20));
        for claim in [
            claim(NOBODY, NOBODY, true),
            claim(11, 20, false),
            claim(0, 20, false),
            claim(10, 0, false),
            claim(10, 30, false),
            claim(10, 20, true),
            claim(u32::MAX, u32::MAX, false),
        ] {
            assert_eq!(user.actor(&claim), None);
        }
    }

    #[test]
    fn root_acts_as_anybody_until_it_gives_that_up() {
        let mut root = root();
        assert!(root.actor(&claim(0, 0, true)).unwrap().privileged);
        assert!(!root.actor(&claim(10, 20, false)).unwrap().privileged);
        // seteuid(2) can be taken back.
        assert!(root.narrow([0, 10, 0], [0, 20, 0], vec![30], true));
        assert!(root.actor(&claim(0, 0, true)).is_some());
        // setresuid(2) cannot.
        assert!(root.narrow([10; 3], [20; 3], vec![30], false));
        assert_eq!(root.actor(&claim(0, 0, true)), None);
        assert_eq!(root.actor(&claim(0, 0, false)), None);
        assert_eq!(root.actor(&claim(11, 20, false)), None);
        assert!(root.actor(&claim(10, 20, false)).is_some());
    }

    #[test]
    fn rights_never_grow() {
        for (users, groups, others, privileged) in [
            ([10, 11, 10], [20; 3], vec![30], false),
            ([0; 3], [20; 3], vec![], false),
            ([10; 3], [20, 21, 20], vec![], false),
            ([10; 3], [20; 3], vec![30, 31, 32], false),
            ([10; 3], [20; 3], vec![30], true),
        ] {
            let mut rights = user();
            assert!(!rights.narrow(users, groups, others, privileged));
            assert_eq!(rights, user());
        }
        let mut rights = user();
        assert!(rights.narrow([10; 3], [20; 3], vec![20, 31], false));
        assert!(!rights.narrow([10; 3], [20; 3], vec![30], false));
    }

    #[test]
    fn squashed_root_is_nobody_whatever_it_says() {
        let mut squashed = Rights {
            users: [NOBODY; 3],
            groups: [NOBODY; 3],
            squashed: true,
            ..user()
        };
        for claim in [claim(0, 0, true), claim(10, 20, false)] {
            let actor = squashed.actor(&claim).unwrap();
            assert_eq!((actor.uid, actor.gid), (NOBODY, NOBODY));
            assert!(!actor.privileged);
        }
        squashed.narrow([0; 3], [0; 3], vec![], true);
        assert_eq!(squashed.actor(&claim(0, 0, true)).unwrap().uid, NOBODY);
    }
}
