//! Permissions: the rules of POSIX and of Linux's sticky and set-id bits.
//!
//! Invariant: decisions use copied attributes only; callers that change something decide again
//! under the object's lock.

use crate::base::abi::*;
use crate::base::error::{Error, Result};
use crate::base::types::Caller;
use crate::content::acl;
use crate::session::Session;
use crate::tables::inode_table::{Attrs, Rights};

/// The file type bits of a mode.
#[inline]
pub(crate) fn file_type(mode: u32) -> u32 {
    mode & S_IFMT
}

/// Whether the attributes are a directory's.
#[inline]
pub(crate) fn is_dir(a: &Attrs) -> bool {
    file_type(a.mode) == S_IFDIR
}

/// Whether the attributes are a regular file's.
#[inline]
pub(crate) fn is_file(a: &Attrs) -> bool {
    file_type(a.mode) == S_IFREG
}

/// Whether the caller may do what `want` (`R_OK | W_OK | X_OK`) says.
#[inline]
pub(crate) fn check(s: &Session, c: &Caller, a: &Attrs, want: u32) -> Result<()> {
    check_rights(s, c, &a.rights(), want)
}

/// As `check` for who knows no more than the rights.
#[inline]
pub(crate) fn check_rights(s: &Session, c: &Caller, a: &Rights, want: u32) -> Result<()> {
    let has_list = a.list_of != 0 && a.mode & 0o070 != 0;
    if has_list && c.uid != a.uid && !c.overrides(a.uid, a.gid) {
        return check_list(s, c, a, want);
    }
    check_mode(c, a, want)
}

/// As `check_rights` for an object with an access control list, which is not the caller's.
#[cold]
fn check_list(s: &Session, c: &Caller, a: &Rights, want: u32) -> Result<()> {
    match acl::of(s, a.list_of, XATTR_NAME_POSIX_ACL_ACCESS)? {
        Some(list) if list.permits(c, a, want) => Ok(()),
        Some(_) => Err(Error::Denied),
        // It is gone.
        None => check_mode(c, a, want),
    }
}

#[inline]
fn check_mode(c: &Caller, a: &Rights, want: u32) -> Result<()> {
    if c.overrides(a.uid, a.gid) {
        // Even root executes only what somebody may execute.
        let executable = file_type(a.mode) == S_IFDIR || a.mode & 0o111 != 0;
        return if want & X_OK == 0 || executable {
            Ok(())
        } else {
            Err(Error::Denied)
        };
    }
    let bits = if c.uid == a.uid {
        a.mode >> 6
    } else if c.in_group(a.gid) {
        a.mode >> 3
    } else {
        a.mode
    };
    if want & !bits & 7 == 0 {
        Ok(())
    } else {
        Err(Error::Denied)
    }
}

/// Whether the caller owns the object or overrides ownership.
#[inline]
pub(crate) fn owns(c: &Caller, a: &Attrs) -> bool {
    c.uid == a.uid || c.overrides(a.uid, a.gid)
}

/// `NotPermitted` unless the caller owns the object.
pub(crate) fn check_owner(c: &Caller, a: &Attrs) -> Result<()> {
    if owns(c, a) {
        Ok(())
    } else {
        Err(Error::NotPermitted)
    }
}

/// Whether names may be made in directory `dir`.
pub(crate) fn may_create(s: &Session, c: &Caller, dir: &Attrs) -> Result<()> {
    if dir.nlink == 0 {
        return Err(Error::NotFound);
    }
    check(s, c, dir, W_OK | X_OK)
}

/// Whether the name of `child` may go from directory `dir`.
pub(crate) fn may_delete(s: &Session, c: &Caller, dir: &Attrs, child: &Attrs) -> Result<()> {
    check(s, c, dir, W_OK | X_OK)?;
    check_sticky(c, dir, child)
}

/// In a sticky directory only the owners of directory and object take its name away.
fn check_sticky(c: &Caller, dir: &Attrs, child: &Attrs) -> Result<()> {
    let sticky = dir.mode & S_ISVTX != 0;
    match sticky && c.uid != dir.uid && !owns(c, child) {
        true => Err(Error::NotPermitted),
        false => Ok(()),
    }
}

/// The mode without the set-id bits that a write by someone without privilege takes away.
#[inline]
pub(crate) fn mode_after_write(mode: u32) -> u32 {
    if mode & (S_ISUID | S_ISGID) == 0 || file_type(mode) != S_IFREG {
        return mode;
    }
    let sgid = if mode & S_IXGRP != 0 { S_ISGID } else { 0 };
    mode & !(S_ISUID | sgid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller<'_> {
        Caller {
            uid,
            gid,
            groups,
            umask: 0o022,
            privileged: false,
            ids: None,
        }
    }

    fn object(mode: u32) -> Attrs {
        Attrs {
            mode,
            uid: 10,
            gid: 20,
            nlink: 1,
            ..Attrs::default()
        }
    }

    #[test]
    fn the_first_matching_class_decides() {
        let a = object(S_IFREG | 0o407);
        assert!(check_mode(&caller(10, 1, &[]), &a.rights(), R_OK).is_ok());
        assert_eq!(
            check_mode(&caller(10, 1, &[]), &a.rights(), W_OK),
            Err(Error::Denied)
        );
        assert_eq!(
            check_mode(&caller(1, 20, &[]), &a.rights(), R_OK),
            Err(Error::Denied)
        );
        assert_eq!(
            check_mode(&caller(1, 2, &[20]), &a.rights(), X_OK),
            Err(Error::Denied)
        );
        assert!(check_mode(&caller(1, 2, &[3]), &a.rights(), R_OK | W_OK | X_OK).is_ok());
    }

    #[test]
    fn root_executes_only_executables_but_searches_everything() {
        let root = Caller {
            privileged: true,
            ..caller(0, 0, &[])
        };
        assert!(check_mode(&root, &object(S_IFREG).rights(), R_OK | W_OK).is_ok());
        assert_eq!(
            check_mode(&root, &object(S_IFREG).rights(), X_OK),
            Err(Error::Denied)
        );
        assert!(check_mode(&root, &object(S_IFDIR).rights(), X_OK).is_ok());
    }

    #[test]
    fn capabilities_of_a_namespace_end_with_its_ids() {
        let ids = crate::id_map::IdMaps::parse(b"0 10 1", b"0 20 1");
        let root = Caller {
            privileged: true,
            ids: ids.as_ref(),
            ..caller(10, 20, &[])
        };
        let other = |uid, gid| Attrs {
            uid,
            gid,
            ..object(S_IFREG)
        };
        assert!(check_mode(&root, &other(10, 20).rights(), R_OK).is_ok());
        assert_eq!(
            check_mode(&root, &other(11, 20).rights(), R_OK),
            Err(Error::Denied)
        );
        assert_eq!(
            check_mode(&root, &other(10, 21).rights(), R_OK),
            Err(Error::Denied)
        );
        assert!(owns(&root, &other(10, 21)) && !owns(&root, &other(11, 20)));
        assert!(!root.is_root());
    }

    #[test]
    fn sticky_directories_protect_other_peoples_names() {
        let dir = Attrs {
            uid: 1,
            ..object(S_IFDIR | 0o1777)
        };
        let file = object(S_IFREG | 0o666);
        assert_eq!(
            check_sticky(&caller(11, 20, &[]), &dir, &file),
            Err(Error::NotPermitted)
        );
        assert!(check_sticky(&caller(10, 20, &[]), &dir, &file).is_ok());
        assert!(check_sticky(&caller(1, 20, &[]), &dir, &file).is_ok());
    }

    #[test]
    fn writing_takes_set_id_bits_away() {
        assert_eq!(mode_after_write(S_IFREG | 0o6755), S_IFREG | 0o755);
        assert_eq!(mode_after_write(S_IFREG | 0o2644), S_IFREG | 0o2644);
        assert_eq!(mode_after_write(S_IFREG | 0o4644), S_IFREG | 0o644);
    }
}
