//! Limits of the format: what the service would not take is refused before it is journaled, so
//! the session lives on.

mod common;

use common::{Fixture, ROOT};
use holdfast_client::{Base, Error, Target};
use holdfast_pmem::ConstBuf;
use holdfast_pool::layout::XATTRS_MAX;

#[test]
fn an_attribute_too_many_is_refused_and_nothing_else() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    user.put("file", b"x");
    let set = |n: usize, value: &[u8]| {
        let target = Target::Path {
            base: Base::Root,
            path: b"file",
            nofollow: false,
        };
        user.setxattr(
            &ROOT,
            target,
            format!("user.{n}").as_bytes(),
            ConstBuf::from(value),
            0,
        )
    };
    for n in 0..XATTRS_MAX {
        set(n, b"1").unwrap();
    }
    assert!(matches!(set(XATTRS_MAX, b"1"), Err(Error::NoSpace)));
    set(3, b"replaced").unwrap();
    user.put("other", b"still at work");
    assert_eq!(user.get("other"), b"still at work");
}

/// Objects without blocks fill the trees: creating stops with ENOSPC while what is journaled
/// still fits, and removing makes room again.
#[test]
fn full_trees_refuse_new_objects_and_can_be_emptied() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    let target = [b't'; 4000];
    let name = |n: usize| format!("link-{n}").into_bytes();
    let link = |n: usize| user.symlink(&ROOT, &target, Base::Root, &name(n));
    let made = (0..40_000)
        .find(|n| link(*n) == Err(Error::NoSpace))
        .unwrap();
    assert!(made > 4000, "{made} links");
    user.sync().unwrap();
    for n in 0..made {
        user.unlink(&ROOT, Base::Root, &name(n)).unwrap();
    }
    user.sync().unwrap();
    link(0).unwrap();
}
