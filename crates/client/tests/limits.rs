//! Limits of the format: what the service would not take is refused before it is journaled, so
//! the session lives on.

mod common;

use common::{ROOT, Rig};
use holdfast_client::{Base, Error, Target};
use holdfast_pmem::ConstBuf;
use holdfast_pool::layout::XATTRS_MAX;

#[test]
fn an_attribute_too_many_is_refused_and_nothing_else() {
    let rig = Rig::new(64 << 20);
    let user = rig.user();
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
