//! Objects that are found by their numbers, as the kernel asks for what it found by name before.

mod common;

use common::{Fixture, ROOT, User};
use holdfast_client::{Base, Caller, Error, SetTime, Target, abi::*};
use holdfast_pmem::{ConstBuf, MutBuf};

const OTHER: Caller<'static> = Caller {
    uid: 3001,
    gid: 3001,
    groups: &[],
    umask: 0o022,
    privileged: false,
    ids: None,
};

fn number(user: &User, path: &str) -> u64 {
    let flags = AT_SYMLINK_NOFOLLOW;
    let found = user.stat(&ROOT, Base::Root, path.as_bytes(), flags);
    found.unwrap().ino
}

#[test]
fn a_number_leads_to_its_object_whatever_becomes_of_its_name() {
    let fixture = Fixture::new(16 << 20);
    let user = fixture.user();
    user.mkdir(&ROOT, Base::Root, b"d", 0o755).unwrap();
    user.put("d/f", b"content");
    let (dir, file) = (Base::Node(number(&user, "d")), number(&user, "d/f"));
    let node = Base::Node(file);
    let (old, new) = ((Base::Root, &b"d"[..]), (Base::Root, &b"e"[..]));
    user.rename(&ROOT, old, new, 0).unwrap();
    assert_eq!(user.stat(&ROOT, dir, b"f", 0).unwrap().ino, file);
    let (old, new) = ((dir, &b"f"[..]), (Base::Root, &b"g"[..]));
    user.rename(&ROOT, old, new, 0).unwrap();
    user.chmod(&ROOT, node, b"", 0o640, AT_EMPTY_PATH).unwrap();
    user.utimens(
        &ROOT,
        node,
        b"",
        [SetTime::At(5), SetTime::At(6)],
        AT_EMPTY_PATH,
    )
    .unwrap();
    user.truncate(&ROOT, node, b"", 4).unwrap();
    let target = Target::Path {
        base: node,
        path: b"",
        nofollow: true,
    };
    let value = ConstBuf::from(&b"v"[..]);
    user.setxattr(&ROOT, target, b"user.a", value, 0).unwrap();
    let stat = user.stat(&ROOT, Base::Root, b"g", 0).unwrap();
    assert_eq!((stat.mode & 0o7777, stat.size, stat.atime), (0o640, 4, 5));
    let mut room = [0; 8];
    let found = user.getxattr(&ROOT, target, b"user.a", MutBuf::from(&mut room[..]));
    assert_eq!(found.unwrap(), 1);
    user.link(&ROOT, (node, b""), (dir, b"h"), AT_EMPTY_PATH)
        .unwrap();
    assert_eq!(user.get("e/h"), b"cont");
}

#[test]
fn who_has_a_file_open_opens_it_again_without_a_name() {
    let fixture = Fixture::new(16 << 20);
    let user = fixture.user();
    user.put("f", b"content");
    let ino = number(&user, "f");
    let open = |flags| user.open_node(&ROOT, ino, (1, b"f"), flags);
    let first = open(O_RDONLY).unwrap();
    user.unlink(&ROOT, Base::Root, b"f").unwrap();
    let second = open(O_RDWR | O_APPEND).unwrap();
    user.write(second, ConstBuf::from(&b"!"[..])).unwrap();
    assert_eq!(user.pread_vec(first, 9, 0), b"content!");
    assert_eq!(user.fstat(first).unwrap().nlink, 0);
    user.release(first).unwrap();
    user.release(second).unwrap();
    assert!(matches!(open(O_RDONLY), Err(Error::NotFound)));
}

#[test]
fn rights_are_looked_at_and_paths_below_files_lead_nowhere() {
    let fixture = Fixture::new(16 << 20);
    let user = fixture.user();
    user.put("f", b"content");
    user.chmod(&ROOT, Base::Root, b"f", 0o604, 0).unwrap();
    let ino = number(&user, "f");
    let open = |who, flags| user.open_node(who, ino, (1, b"f"), flags);
    user.release(open(&OTHER, O_RDONLY).unwrap()).unwrap();
    for flags in [O_RDWR, O_WRONLY, O_RDONLY | O_TRUNC] {
        assert!(
            matches!(open(&OTHER, flags), Err(Error::Denied)),
            "{flags:o}"
        );
    }
    let refused = user.chmod(&OTHER, Base::Node(ino), b"", 0o777, AT_EMPTY_PATH);
    assert!(matches!(refused, Err(Error::NotPermitted)));
    assert!(matches!(open(&ROOT, O_CREAT | O_RDWR), Err(Error::Invalid)));
    let below = user.stat(&ROOT, Base::Node(ino), b"x", 0);
    assert!(matches!(below, Err(Error::NotDirectory)));
    assert_eq!(user.get("f"), b"content");
}

#[test]
fn numbers_that_nothing_has_and_those_of_values_lead_nowhere() {
    let fixture = Fixture::new(16 << 20);
    let user = fixture.user();
    for ino in [0, 999_999, u64::MAX, 1 << 56] {
        let stat = user.stat(&ROOT, Base::Node(ino), b"", AT_EMPTY_PATH);
        assert!(matches!(stat, Err(Error::NotFound)), "{ino}: {stat:?}");
        let opened = user.open_node(&ROOT, ino, (1, b""), O_RDONLY);
        assert!(matches!(opened, Err(Error::NotFound)), "{ino}");
    }
    assert_eq!(
        user.stat(&ROOT, Base::Node(1), b"", AT_EMPTY_PATH)
            .unwrap()
            .ino,
        1
    );
}
