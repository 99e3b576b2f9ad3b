//! One operation after the other against a real service: what is written is found again.

mod common;

use common::{Fixture, ROOT, User};
use holdfast_client::{Base, Error, OfdLink, abi::*};

const POOL: u64 = 64 << 20;

#[test]
fn files_come_back_with_their_bytes() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    user.put("small", b"hello");
    let big: Vec<u8> = (0..100_000u32).map(|i| (i * 7 % 251) as u8).collect();
    user.put("big", &big);
    assert_eq!(user.get("small"), b"hello");
    assert_eq!(user.get("big"), big);
    assert_eq!(
        user.names("/"),
        [".", "..", "small", "big"].map(String::from).sorted(&user)
    );
}

trait Sorted {
    fn sorted(self, user: &common::User) -> Vec<String>;
}

impl<const N: usize> Sorted for [String; N] {
    /// In the order of the directory, which is that of hashes.
    fn sorted(self, user: &common::User) -> Vec<String> {
        let order = user.names("/");
        let mut names = self.to_vec();
        names.sort_by_key(|n| order.iter().position(|o| o == n));
        names
    }
}

#[test]
fn everything_is_there_after_the_service_restarted() {
    let mut fixture = Fixture::new(POOL);
    let big: Vec<u8> = (0..3_000_000u32).map(|i| (i * 31 % 241) as u8).collect();
    {
        let user = fixture.user();
        user.mkdir(&ROOT, Base::Root, b"dir", 0o755).unwrap();
        user.put("dir/inline", b"0123456789");
        user.put("dir/big", &big);
        user.symlink(&ROOT, b"dir/inline", Base::Root, b"link")
            .unwrap();
        assert_eq!(user.get("link"), b"0123456789");
        holdfast_client::slots::exit(user.session(), true);
    }
    fixture.stop();
    fixture.start();
    let user = fixture.user();
    assert_eq!(user.get("dir/big"), big);
    assert_eq!(user.get("link"), b"0123456789");
    let stat = user.stat(&ROOT, Base::Root, b"dir", 0).unwrap();
    assert_eq!((stat.mode, stat.nlink), (S_IFDIR | 0o755, 2));
    user.unlink(&ROOT, Base::Root, b"dir/big").unwrap();
    assert_eq!(user.open("dir/big", O_RDONLY), Err(Error::NotFound));
}

#[test]
fn a_file_without_a_name_lives_until_its_last_close() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let ofd = user.create("gone");
    user.pwrite_all(ofd, b"still here", 0);
    user.unlink(&ROOT, Base::Root, b"gone").unwrap();
    assert_eq!(user.open("gone", O_RDONLY), Err(Error::NotFound));
    assert_eq!(user.pread_vec(ofd, 20, 0), b"still here");
    assert_eq!(user.fstat(ofd).unwrap().nlink, 0);
    user.release(ofd).unwrap();
    let tmp = user
        .open("/", O_TMPFILE_BIT | O_DIRECTORY | O_RDWR)
        .unwrap();
    user.pwrite_all(tmp, b"named later", 0);
    user.link(
        &ROOT,
        (Base::Ofd(tmp), b""),
        (Base::Root, b"now"),
        AT_EMPTY_PATH,
    )
    .unwrap();
    assert_eq!(user.get("now"), b"named later");
    // Once it had a name it is like every other file.
    user.unlink(&ROOT, Base::Root, b"now").unwrap();
    assert_eq!(rename_back(&user, tmp), Err(Error::NotFound));
    user.release(tmp).unwrap();
}

/// linkat(fd, "", AT_EMPTY_PATH)
fn rename_back(user: &User, ofd: OfdLink) -> Result<(), Error> {
    let (old, new) = (Base::Ofd(ofd), Base::Root);
    user.link(&ROOT, (old, b""), (new, b"back"), AT_EMPTY_PATH)
}

#[test]
fn a_file_that_lost_its_name_gets_no_other() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let gone = user.create("gone");
    user.unlink(&ROOT, Base::Root, b"gone").unwrap();
    assert_eq!(rename_back(&user, gone), Err(Error::NotFound));
    let how = O_TMPFILE_BIT | O_DIRECTORY | O_RDWR | O_EXCL;
    let private = user.open("/", how).unwrap();
    assert_eq!(rename_back(&user, private), Err(Error::NotFound));
    // With two names it may lose one and get another.
    let kept = user.create("kept");
    let root = Base::Root;
    user.link(&ROOT, (root, b"kept"), (root, b"second"), 0)
        .unwrap();
    user.unlink(&ROOT, root, b"kept").unwrap();
    assert_eq!(rename_back(&user, kept), Ok(()));
}
