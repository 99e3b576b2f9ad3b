//! Byte-range and whole-file locks. Two clients of the test count as two processes.

mod common;

use common::{Fixture, User};
use holdfast_client::{Error, Flock, OfdLink, abi::*};
use holdfast_pool::session::{LOCKS, LOCKS_RESERVED};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

fn lock(user: &User, ofd: OfdLink, cmd: u32, kind: i16, start: i64, len: i64) -> Result<(), Error> {
    let mut l = Flock {
        kind,
        whence: 0,
        start,
        len,
        pid: 0,
    };
    user.fcntl_lock(ofd, cmd, &mut l)
}

fn who(user: &User, ofd: OfdLink, kind: i16, start: i64, len: i64) -> Flock {
    let mut l = Flock {
        kind,
        whence: 0,
        start,
        len,
        pid: 0,
    };
    user.fcntl_lock(ofd, F_GETLK, &mut l).unwrap();
    l
}

fn setup() -> (Fixture, [(User, OfdLink); 2]) {
    let fixture = Fixture::new(64 << 20);
    let users = [fixture.user(), fixture.user()].map(|user| {
        let ofd = user.create("locked");
        (user, ofd)
    });
    (fixture, users)
}

#[test]
fn ranges_conflict_split_and_join() {
    let (_rig, [(a, fa), (b, fb)]) = setup();
    lock(&a, fa, F_SETLK, F_WRLCK, 0, 100).unwrap();
    assert_eq!(
        lock(&b, fb, F_SETLK, F_RDLCK, 50, 10),
        Err(Error::WouldBlock)
    );
    let found = who(&b, fb, F_RDLCK, 50, 10);
    let me = std::process::id() as i32;
    assert_eq!(
        (found.kind, found.start, found.len, found.pid),
        (F_WRLCK, 0, 100, me)
    );
    lock(&a, fa, F_SETLK, F_UNLCK, 40, 20).unwrap();
    lock(&b, fb, F_SETLK, F_WRLCK, 40, 20).unwrap();
    assert_eq!(
        lock(&b, fb, F_SETLK, F_WRLCK, 39, 1),
        Err(Error::WouldBlock)
    );
    assert_eq!(
        lock(&b, fb, F_SETLK, F_WRLCK, 60, 1),
        Err(Error::WouldBlock)
    );
    lock(&b, fb, F_SETLK, F_UNLCK, 0, 0).unwrap();
    lock(&a, fa, F_SETLK, F_WRLCK, 40, 20).unwrap();
    let found = who(&b, fb, F_WRLCK, 0, 0);
    assert_eq!((found.start, found.len), (0, 100));
    // Shared locks go together, and a part can be made shared.
    lock(&a, fa, F_SETLK, F_RDLCK, 10, 10).unwrap();
    lock(&b, fb, F_SETLK, F_RDLCK, 12, 4).unwrap();
    assert_eq!(
        lock(&b, fb, F_SETLK, F_WRLCK, 12, 4),
        Err(Error::WouldBlock)
    );
}

#[test]
fn closing_any_descriptor_drops_the_process_locks() {
    let (_rig, [(a, fa), (b, fb)]) = setup();
    a.bind(700, fa).unwrap();
    let second = a.create("locked");
    a.bind(701, second).unwrap();
    lock(&a, fa, F_SETLK, F_WRLCK, 0, 0).unwrap();
    assert_eq!(lock(&b, fb, F_SETLK, F_WRLCK, 5, 1), Err(Error::WouldBlock));
    assert!(a.unbind(701).unwrap());
    lock(&b, fb, F_SETLK, F_WRLCK, 5, 1).unwrap();
}

#[test]
fn description_locks_belong_to_descriptions() {
    let (_rig, [(a, fa), (b, fb)]) = setup();
    let again = a.create("locked");
    lock(&a, fa, F_OFD_SETLK, F_WRLCK, 0, 10).unwrap();
    assert_eq!(
        lock(&a, again, F_OFD_SETLK, F_WRLCK, 0, 10),
        Err(Error::WouldBlock)
    );
    assert_eq!(
        lock(&b, fb, F_SETLK, F_WRLCK, 0, 10),
        Err(Error::WouldBlock)
    );
    assert_eq!(who(&b, fb, F_WRLCK, 0, 0).pid, -1);
    a.release(fa).unwrap();
    lock(&a, again, F_OFD_SETLK, F_WRLCK, 0, 10).unwrap();
    // Whole-file locks are a world of their own.
    b.flock(fb, LOCK_EX).unwrap();
    assert_eq!(a.flock(again, LOCK_SH | LOCK_NB), Err(Error::WouldBlock));
    b.flock(fb, LOCK_SH).unwrap();
    a.flock(again, LOCK_SH | LOCK_NB).unwrap();
    b.release(fb).unwrap();
    a.flock(again, LOCK_EX | LOCK_NB).unwrap();
}

#[test]
fn a_waiter_gets_the_lock_when_it_is_released() {
    let (_rig, [(a, fa), (b, fb)]) = setup();
    lock(&a, fa, F_SETLK, F_WRLCK, 0, 0).unwrap();
    let released = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            lock(&b, fb, F_SETLKW, F_WRLCK, 0, 0).unwrap();
            assert!(released.load(SeqCst));
        });
        std::thread::sleep(Duration::from_millis(60));
        released.store(true, SeqCst);
        lock(&a, fa, F_SETLK, F_UNLCK, 0, 0).unwrap();
    });
}

#[test]
fn waiting_in_a_circle_is_refused() {
    let (_rig, [(a, fa), (b, fb)]) = setup();
    lock(&a, fa, F_SETLK, F_WRLCK, 0, 1).unwrap();
    lock(&b, fb, F_SETLK, F_WRLCK, 1, 1).unwrap();
    // Whoever closes the circle is refused, and makes way for the other.
    let wait = |user: &User, ofd, own, wanted| {
        let result = lock(user, ofd, F_SETLKW, F_WRLCK, wanted, 1);
        if result.is_err() {
            lock(user, ofd, F_SETLK, F_UNLCK, own, 1).unwrap();
        }
        result
    };
    let results = std::thread::scope(|scope| {
        let first = scope.spawn(|| wait(&a, fa, 0, 1));
        let second = wait(&b, fb, 1, 0);
        [first.join().unwrap(), second]
    });
    assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 1);
    assert!(results.contains(&Err(Error::Deadlock)), "{results:?}");
}

#[test]
fn locks_of_a_dead_process_do_not_stay() {
    let (fixture, [(a, fa), _]) = setup();
    let other = fixture.user();
    let fo = other.create("locked");
    lock(&other, fo, F_SETLK, F_WRLCK, 0, 0).unwrap();
    assert_eq!(lock(&a, fa, F_SETLK, F_WRLCK, 0, 0), Err(Error::WouldBlock));
    other.die();
    lock(&a, fa, F_SETLKW, F_WRLCK, 0, 0).unwrap();
}

#[test]
fn modes_need_the_matching_access() {
    let (_rig, [(a, _), _]) = setup();
    let reading = a.open("locked", O_RDONLY).unwrap();
    assert_eq!(
        lock(&a, reading, F_SETLK, F_WRLCK, 0, 0),
        Err(Error::BadDescriptor)
    );
    lock(&a, reading, F_SETLK, F_RDLCK, 0, 0).unwrap();
    let writing = a.open("locked", O_WRONLY).unwrap();
    assert_eq!(
        lock(&a, writing, F_SETLK, F_RDLCK, 0, 0),
        Err(Error::BadDescriptor)
    );
    assert_eq!(
        lock(&a, reading, F_SETLK, F_RDLCK, -1, 0),
        Err(Error::Invalid)
    );
}

/// Calls for other users leave locks to those who have the pool mapped, and what these give back
/// stays theirs.
#[test]
fn others_leave_locks_to_the_owner() {
    let fixture = Fixture::new(64 << 20);
    let (owner, other) = (fixture.user(), fixture.user());
    other.session().serve_another();
    let own = owner.create("own");
    let mut taken = 0;
    let full = 'full: loop {
        // Few of each file: they are in a list.
        let file = other.create(&format!("f{taken}"));
        for at in 0..500 {
            match lock(&other, file, F_OFD_SETLK, F_WRLCK, at * 2, 1) {
                Ok(()) => taken += 1,
                Err(e) => break 'full e,
            }
        }
    };
    assert_eq!(full, Error::NoLocks);
    let (all, left) = (LOCKS as u32, LOCKS_RESERVED as u32);
    assert!(taken >= all - left - 2 && taken <= all - left, "{taken}");
    for round in 0..3 {
        for at in 0..1000 {
            lock(&owner, own, F_OFD_SETLK, F_WRLCK, at * 2, 1).unwrap();
        }
        let file = other.create(&format!("g{round}"));
        lock(&owner, own, F_OFD_SETLK, F_UNLCK, 0, 0).unwrap();
        let again = lock(&other, file, F_OFD_SETLK, F_WRLCK, 0, 1);
        assert_eq!(again, Err(Error::NoLocks));
    }
}
