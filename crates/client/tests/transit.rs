//! Descriptions on their way to another process: what keeps them, and what lets them go.

mod common;

use common::{Fixture, User};
use holdfast_client::{Error, OfdLink, abandoned, abi::*};
use holdfast_pmem::{RecordLocks, record_locks};
use holdfast_pool::session::TRANSITS;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::*;

const POOL: u64 = 256 << 20;

/// What the kernel carries, and the offset that it has.
struct Token {
    _fd: OwnedFd,
    key: u64,
}

struct Placeholder {
    fd: OwnedFd,
    locks: RecordLocks,
}

impl Placeholder {
    fn new() -> Placeholder {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let fd = rustix::fs::memfd_create("placeholder", flags).unwrap();
        let locks = RecordLocks::new(fd.as_fd()).unwrap();
        Placeholder { fd, locks }
    }

    fn send(&self, user: &User, ofd: OfdLink, random: u64) -> Result<Token, Error> {
        user.send(ofd, &self.locks, random, |key, byte| {
            let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
            let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
            let fd = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap();
            record_locks::hold_by_description(fd.as_fd(), byte).unwrap();
            Ok(Token { _fd: fd, key })
        })
    }
}

fn references(user: &User, ofd: OfdLink) -> u32 {
    user.session().ofd(ofd.raw()).unwrap().refs.load(SeqCst)
}

#[test]
fn a_token_keeps_its_description_until_it_is_gone() {
    let fixture = Fixture::new(POOL);
    let (user, placeholder) = (fixture.user(), Placeholder::new());
    let ofd = user.open("f", O_RDWR | O_CREAT).unwrap();
    let token = placeholder.send(&user, ofd, 0x1234_5678_9abc_def0).unwrap();
    assert_eq!(references(&user, ofd), 2);
    // Counted like descriptors, and what is no key gives nothing.
    user.bind(40, ofd).unwrap();
    abandoned::sweep(user.session()).unwrap();
    assert_eq!(references(&user, ofd), 2);
    for other in [
        0,
        token.key + 1,
        token.key ^ 1 << 20,
        token.key % TRANSITS as u64,
    ] {
        assert_eq!(user.receive(other), None, "{other:x}");
    }
    let received = user.receive(token.key).unwrap();
    assert_eq!((received, references(&user, ofd)), (ofd, 3));
    user.release(received).unwrap();
    // It is there as long as the token is.
    user.settle(token.key, &placeholder.locks).unwrap();
    assert_eq!(references(&user, ofd), 2);
    let key = token.key;
    drop(token);
    user.settle(key, &placeholder.locks).unwrap();
    assert_eq!((references(&user, ofd), user.receive(key)), (1, None));
    user.unbind(40).unwrap();
}

#[test]
fn tokens_that_nobody_received_are_found() {
    let fixture = Fixture::new(POOL);
    let (user, placeholder) = (fixture.user(), Placeholder::new());
    let ofd = user.open("f", O_RDWR | O_CREAT).unwrap();
    for random in 0..10_000 {
        drop(placeholder.send(&user, ofd, random << 32).unwrap());
        assert!(references(&user, ofd) <= 3, "{random}");
    }
    // All that there is room for, and as soon as one is gone, one more.
    let mut tokens: Vec<_> = (0..TRANSITS as u64)
        .map(|random| placeholder.send(&user, ofd, random << 32).unwrap())
        .collect();
    let full = placeholder.send(&user, ofd, 7).err();
    assert_eq!(full, Some(Error::TableFull));
    tokens.swap_remove(700);
    tokens.push(placeholder.send(&user, ofd, 7).unwrap());
    // Those of another run are left alone.
    drop(tokens);
    let other = Placeholder::new();
    assert_eq!(other.send(&user, ofd, 9).err(), Some(Error::TableFull));
    let token = placeholder.send(&user, ofd, 9).unwrap();
    assert!(other.send(&user, ofd, 9).is_ok());
    assert_eq!(user.receive(token.key), Some(ofd));
}
