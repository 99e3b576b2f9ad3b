//! Access control lists: they count for every process, before and after the trees have them, in
//! later sessions, and in snapshots.

mod common;

use common::{Fixture, ROOT, User, pool_of, read};
use holdfast_client::{Base, Caller, Client, Error, Target, abi::*};
use holdfast_pmem::{ConstBuf, MutBuf};

const POOL: u64 = 64 << 20;
const ACCESS: &[u8] = XATTR_NAME_POSIX_ACL_ACCESS;
const DEFAULT: &[u8] = XATTR_NAME_POSIX_ACL_DEFAULT;

/// Only the owner, and user 11, who may read and search.
fn list() -> Vec<u8> {
    let none = u32::MAX;
    let entries = [
        (1, 7, none),
        (2, 5, 11),
        (4, 0, none),
        (16, 5, none),
        (32, 0, none),
    ];
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        value.extend_from_slice(&(tag as u16).to_le_bytes());
        value.extend_from_slice(&(rights as u16).to_le_bytes());
        value.extend_from_slice(&(id as u32).to_le_bytes());
    }
    value
}

fn target(path: &str) -> Target<'_> {
    Target::Path {
        base: Base::Root,
        path: path.as_bytes(),
        nofollow: false,
    }
}

fn set(user: &User, path: &str, name: &[u8]) {
    let value = list();
    let value = ConstBuf::from(&value[..]);
    user.setxattr(&ROOT, target(path), name, value, 0).unwrap();
}

/// User 11 may read both files, 12 neither; nobody but the owner writes.
fn expect_rights(c: &Client) {
    let other = |uid| Caller {
        uid,
        gid: 99,
        privileged: false,
        ..ROOT
    };
    let access = |uid, path: &str, want| {
        let (who, path) = (other(uid), path.as_bytes());
        c.access(&who, Base::Root, path, want, 0)
    };
    for path in ["listed", "d/inherited"] {
        assert_eq!(access(11, path, R_OK), Ok(()), "{path}");
        assert_eq!(access(11, path, W_OK), Err(Error::Denied), "{path}");
        assert_eq!(access(12, path, R_OK), Err(Error::Denied), "{path}");
        let mut out = [0; 64];
        let to = MutBuf::from(&mut out[..]);
        let len = c.getxattr(&ROOT, target(path), ACCESS, to).unwrap();
        assert_eq!(len, list().len(), "{path}");
    }
    assert_eq!(access(11, "d", X_OK), Ok(()));
    assert_eq!(access(12, "d", X_OK), Err(Error::Denied));
}

#[test]
fn a_list_counts_for_all_processes_and_in_later_sessions() {
    let mut fixture = Fixture::new(POOL);
    {
        let (user, neighbour) = (fixture.user(), fixture.user());
        user.put("listed", b"text");
        user.mkdir(&ROOT, Base::Root, b"d", 0o777).unwrap();
        set(&user, "listed", ACCESS);
        set(&user, "d", ACCESS);
        set(&user, "d", DEFAULT);
        user.put("d/inherited", b"text");
        expect_rights(&user);
        expect_rights(&neighbour);
        user.snapshot_create(pool_of(&fixture), b"then").unwrap();
        expect_rights(&read(&fixture, "then").client);
    }
    // Nothing is cached any more: what the trees say counts.
    for _ in 0..2 {
        fixture.stop();
        fixture.start();
        expect_rights(&fixture.user());
    }
    let user = fixture.user();
    user.removexattr(&ROOT, target("d"), DEFAULT).unwrap();
    user.put("d/plain", b"text");
    let plain = user.stat(&ROOT, Base::Root, b"d/plain", 0).unwrap();
    assert_eq!(plain.mode, S_IFREG | 0o644);
    drop(user);
    fixture.stop();
    fixture.check();
}
