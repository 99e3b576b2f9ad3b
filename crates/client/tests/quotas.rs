//! Quotas: what reaches a limit is refused, everything else goes on, and what is counted is what
//! the objects have, whatever was done to them.

mod common;

use common::{Fixture, ROOT, User};
use holdfast_client::abi::{AT_EMPTY_PATH, O_CREAT, O_DIRECTORY, O_RDWR, O_TRUNC, O_WRONLY};
use holdfast_client::{Base, Caller, Error, OfdLink, drain};
use holdfast_pmem::ConstBuf;
use holdfast_pool::quota::{Quota, Subject};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
const OTHER: Caller<'static> = Caller {
    uid: 1000,
    gid: 1000,
    groups: &[],
    umask: 0o022,
    privileged: false,
    ids: None,
};

fn limit(user: &User, subject: Subject, blocks: u64, files: u64) {
    let quota = Quota {
        subject,
        partial: false,
        bytes: blocks * BLOCK,
        files,
    };
    user.quota_set(quota).unwrap();
}

/// Blocks and objects that are taken.
fn taken(user: &User, subject: Subject) -> (u64, u64) {
    let all = user.quotas().unwrap();
    let info = all.iter().find(|info| info.quota.subject == subject);
    let info = info.expect("the quota is there");
    (info.bytes / BLOCK, info.files)
}

fn directory(user: &User, path: &str) -> Subject {
    user.quota_directory(&ROOT, path.as_bytes()).unwrap()
}

fn open_as(user: &User, who: &Caller<'_>, path: &str, flags: u32) -> Result<OfdLink, Error> {
    user.client
        .open(who, Base::Root, path.as_bytes(), flags, 0o644, 0)
}

fn mkdir(user: &User, who: &Caller<'_>, path: &str) -> Result<(), Error> {
    user.mkdir(who, Base::Root, path.as_bytes(), 0o777)
}

fn write(user: &User, ofd: OfdLink, blocks: u64, at: u64) -> Result<usize, Error> {
    let bytes = vec![7; (blocks * BLOCK) as usize];
    user.pwrite(ofd, ConstBuf::from(&bytes[..]), (at * BLOCK) as i64)
}

/// A directory in which everybody may write.
fn shared(user: &User, path: &str) {
    mkdir(user, &ROOT, path).unwrap();
    user.chmod(&ROOT, Base::Root, path.as_bytes(), 0o777, 0)
        .unwrap();
}

/// Waits until what is taken is this, which the service sees to while the session rests.
fn wait_for(user: &User, subject: Subject, wanted: (u64, u64)) {
    let until = Instant::now() + Duration::from_secs(20);
    while taken(user, subject) != wanted {
        assert!(Instant::now() < until, "{:?}", taken(user, subject));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_user_stops_at_the_limit() {
    let mut fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    let me = Subject::User(OTHER.uid);
    shared(&user, "/all");
    limit(&user, me, 10, 0);
    let ofd = open_as(&user, &OTHER, "/all/a", O_CREAT | O_RDWR).unwrap();
    assert_eq!(write(&user, ofd, 8, 0).unwrap(), 8 * BLOCK as usize);
    assert_eq!(taken(&user, me), (8, 1));
    // What fits is written.
    assert_eq!(write(&user, ofd, 8, 8).unwrap(), 2 * BLOCK as usize);
    assert_eq!(write(&user, ofd, 1, 10), Err(Error::OverQuota));
    assert_eq!(Error::OverQuota.errno(), 122);
    // What is there may be written again, others go on, and so do files without bytes.
    assert_eq!(write(&user, ofd, 10, 0).unwrap(), 10 * BLOCK as usize);
    user.put("/all/of-root", &[1; 1 << 20]);
    let empty = open_as(&user, &OTHER, "/all/empty", O_CREAT | O_RDWR).unwrap();
    assert_eq!(write(&user, empty, 1, 0), Err(Error::OverQuota));
    let short = user.pwrite(empty, ConstBuf::from(&b"short"[..]), 0);
    assert_eq!(short, Err(Error::OverQuota));
    // Room again.
    user.ftruncate(ofd, 4 * BLOCK as i64).unwrap();
    assert_eq!(taken(&user, me), (4, 2));
    assert_eq!(write(&user, empty, 6, 0).unwrap(), 6 * BLOCK as usize);
    assert_eq!(write(&user, empty, 1, 6), Err(Error::OverQuota));
    limit(&user, me, 11, 0);
    assert_eq!(write(&user, empty, 1, 6).unwrap(), BLOCK as usize);
    assert_eq!(write(&user, empty, 1, 7), Err(Error::OverQuota));
    // Below what is taken: nothing more until enough is gone.
    limit(&user, me, 3, 0);
    assert_eq!(write(&user, empty, 1, 7), Err(Error::OverQuota));
    user.unlink(&OTHER, Base::Root, b"/all/empty").unwrap();
    assert_eq!(taken(&user, me), (11, 2), "it is open still");
    user.release(empty).unwrap();
    assert_eq!(taken(&user, me), (4, 1));
    user.ftruncate(ofd, 0).unwrap();
    assert_eq!(write(&user, ofd, 3, 0).unwrap(), 3 * BLOCK as usize);
    user.release(ofd).unwrap();
    user.quota_remove(me).unwrap();
    assert_eq!(user.quota_remove(me), Err(Error::NotFound));
    assert_eq!(user.quotas().unwrap(), []);
    let ofd = open_as(&user, &OTHER, "/all/b", O_CREAT | O_RDWR).unwrap();
    assert_eq!(write(&user, ofd, 100, 0).unwrap(), 100 * BLOCK as usize);
    user.release(ofd).unwrap();
    drop(user);
    fixture.stop();
    fixture.check();
}

#[test]
fn files_are_limited_by_number() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    let me = Subject::User(OTHER.uid);
    shared(&user, "/all");
    limit(&user, me, 0, 3);
    mkdir(&user, &OTHER, "/all/dir").unwrap();
    user.symlink(&OTHER, b"x", Base::Root, b"/all/link")
        .unwrap();
    let ofd = open_as(&user, &OTHER, "/all/dir/file", O_CREAT | O_RDWR).unwrap();
    let made = open_as(&user, &OTHER, "/all/more", O_CREAT | O_RDWR);
    assert_eq!(made.err(), Some(Error::OverQuota));
    assert_eq!(mkdir(&user, &OTHER, "/all/dir2"), Err(Error::OverQuota));
    // One more name is no object more.
    let (old, new) = (b"/all/dir/file".as_slice(), b"/all/second".as_slice());
    user.link(&OTHER, (Base::Root, old), (Base::Root, new), 0)
        .unwrap();
    assert_eq!(write(&user, ofd, 100, 0).unwrap(), 100 * BLOCK as usize);
    assert_eq!(taken(&user, me), (100, 3));
    user.unlink(&OTHER, Base::Root, old).unwrap();
    assert_eq!(mkdir(&user, &OTHER, "/all/dir2"), Err(Error::OverQuota));
    user.unlink(&OTHER, Base::Root, b"/all/link").unwrap();
    mkdir(&user, &OTHER, "/all/dir2").unwrap();
    assert_eq!(taken(&user, me), (100, 3));
    // A file of somebody else is given to the user, and back.
    user.put("/all/given", &[1; 5 * BLOCK as usize]);
    let give = |uid| user.chown(&ROOT, Base::Root, b"/all/given", (Some(uid), None), 0);
    give(OTHER.uid).unwrap();
    assert_eq!(taken(&user, me), (105, 4));
    give(0).unwrap();
    assert_eq!(taken(&user, me), (100, 3));
    user.release(ofd).unwrap();
}

#[test]
fn a_directory_counts_all_that_is_below() {
    let mut fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    for dir in ["/top", "/top/dir", "/top/dir/deep", "/top/out"] {
        mkdir(&user, &ROOT, dir).unwrap();
    }
    user.put("/top/dir/a", &[1; 3 * BLOCK as usize]);
    user.put("/top/dir/deep/b", b"inline");
    user.put("/top/out/c", &[1; 7 * BLOCK as usize]);
    let dir = directory(&user, "/top/dir");
    limit(&user, dir, 8, 0);
    assert_eq!(taken(&user, dir), (4, 4));
    user.put("/top/dir/deep/new", &[1; 4 * BLOCK as usize]);
    let ofd = user.open("/top/dir/full", O_CREAT | O_RDWR).unwrap();
    assert_eq!(write(&user, ofd, 1, 0), Err(Error::OverQuota));
    user.release(ofd).unwrap();
    assert_eq!(taken(&user, dir), (8, 6));
    // Nothing is moved or linked across the border, whichever way; below it everything is.
    let rename = |old: &str, new: &str, flags| {
        let (old, new) = (old.as_bytes(), new.as_bytes());
        user.rename(&ROOT, (Base::Root, old), (Base::Root, new), flags)
    };
    let link = |old: &str, new: &str| {
        let (old, new) = (old.as_bytes(), new.as_bytes());
        user.link(&ROOT, (Base::Root, old), (Base::Root, new), 0)
    };
    let other = Err(Error::OtherQuota);
    assert_eq!(rename("/top/dir/a", "/top/out/a", 0), other);
    assert_eq!(rename("/top/out/c", "/top/dir/c", 0), other);
    assert_eq!(rename("/top/out/c", "/top/dir/a", 2), other);
    assert_eq!(rename("/top/out", "/top/dir/out", 0), other);
    assert_eq!(link("/top/dir/a", "/top/out/a"), other);
    assert_eq!(link("/top/out/c", "/top/dir/c"), other);
    assert_eq!(Error::OtherQuota.errno(), 18);
    rename("/top/dir/a", "/top/dir/deep/a", 0).unwrap();
    link("/top/dir/deep/a", "/top/dir/a").unwrap();
    rename("/top/dir", "/top/moved", 0).unwrap();
    let Subject::Directory(ino) = dir else {
        unreachable!()
    };
    assert_eq!(user.quota_path(ino).unwrap(), b"/top/moved");
    assert_eq!(taken(&user, dir), (8, 6));
    // One quota above another is not possible.
    for nested in ["/top/moved/deep", "/top", "/"] {
        let subject = directory(&user, nested);
        let quota = Quota {
            subject,
            partial: false,
            bytes: 1 << 20,
            files: 0,
        };
        assert_eq!(user.quota_set(quota), Err(Error::NestedQuota), "{nested}");
    }
    user.quota_remove(dir).unwrap();
    rename("/top/moved/a", "/top/out/a", 0).unwrap();
    user.put("/top/moved/more", &[1; 20 * BLOCK as usize]);
    drop(user);
    fixture.stop();
    fixture.check();
}

#[test]
fn a_directory_that_is_removed_has_no_quota_any_more() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    mkdir(&user, &ROOT, "/dir").unwrap();
    limit(&user, directory(&user, "/dir"), 8, 0);
    user.rmdir(&ROOT, Base::Root, b"/dir").unwrap();
    mkdir(&user, &ROOT, "/new").unwrap();
    let new = directory(&user, "/new");
    limit(&user, new, 9, 0);
    let all = user.quotas().unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0].quota.subject, new);
}

/// What has names only outside of the directory by then, or none, counts for no later quota.
#[test]
fn what_counted_once_does_not_count_for_the_next_directory() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    for (n, is_removed) in [false, true].into_iter().enumerate() {
        let (old, next) = (format!("/old{n}"), format!("/next{n}"));
        shared(&user, &old);
        shared(&user, &next);
        let (inside, outside) = (format!("{old}/a"), format!("/a{n}"));
        let inside = (Base::Root, inside.as_bytes());
        user.put(&format!("{old}/a"), &[1; 9000]);
        user.link(&ROOT, inside, (Base::Root, outside.as_bytes()), 0)
            .unwrap();
        let quota = directory(&user, &old);
        limit(&user, quota, 10, 0);
        assert_eq!(taken(&user, quota), (3, 2));
        let open = open_as(&user, &ROOT, &format!("{old}/b"), O_CREAT | O_RDWR).unwrap();
        user.unlink(&ROOT, Base::Root, inside.1).unwrap();
        let without_name = format!("{old}/b");
        user.unlink(&ROOT, Base::Root, without_name.as_bytes())
            .unwrap();
        assert_eq!(taken(&user, quota), (3, 3));
        match is_removed {
            true => user.rmdir(&ROOT, Base::Root, old.as_bytes()).unwrap(),
            false => user.quota_remove(quota).unwrap(),
        }
        let quota = directory(&user, &next);
        limit(&user, quota, 10, 0);
        assert_eq!(taken(&user, quota), (0, 1), "{n}");
        let outside = (Base::Root, outside.as_bytes());
        let again = format!("/again{n}");
        user.link(&ROOT, outside, (Base::Root, again.as_bytes()), 0)
            .unwrap();
        user.release(open).unwrap();
        assert_eq!(taken(&user, quota), (0, 1), "{n}");
        user.quota_remove(quota).unwrap();
    }
}

/// Blocks and objects of each of three users, as the objects have them.
fn add_up(user: &User, dir: &str, sums: &mut BTreeMap<u32, (u64, u64)>) {
    for name in user.names(dir) {
        if name == "." || name == ".." {
            continue;
        }
        let path = format!("{dir}/{name}");
        let stat = user
            .stat(&ROOT, Base::Root, path.as_bytes(), 0x100)
            .unwrap();
        let sum = sums.entry(stat.uid).or_default();
        sum.0 += stat.blocks * 512 / BLOCK;
        sum.1 += 1;
        if stat.mode & 0o170_000 == 0o040_000 {
            add_up(user, &path, sums);
        }
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// One change of a file, which may be refused.
fn change(user: &User, state: &mut u64) -> Result<(), Error> {
    let path = format!("/all/d{}/f{}", random(state) % 3, random(state) % 6);
    let who = match random(state) % 3 {
        0 => ROOT,
        uid => Caller {
            uid: uid as u32 + 1000,
            ..ROOT
        },
    };
    let kind = random(state) % 10;
    let (at, len) = (random(state) % 60_000, random(state) % 30_000);
    match kind {
        0 => return user.unlink(&ROOT, Base::Root, path.as_bytes()),
        1 => {
            let uid = Some(random(state) as u32 % 3 + 1000);
            return user.chown(&ROOT, Base::Root, path.as_bytes(), (uid, None), 0);
        }
        2 => {
            let to = format!("/all/d{}/f{}", random(state) % 3, random(state) % 6);
            let (old, new) = (path.as_bytes(), to.as_bytes());
            return user.rename(&ROOT, (Base::Root, old), (Base::Root, new), 0);
        }
        _ => {}
    }
    let trunc = if kind == 3 { O_TRUNC } else { 0 };
    let ofd = open_as(user, &who, &path, O_CREAT | O_RDWR | trunc)?;
    let done = match kind {
        4 => user.ftruncate(ofd, at as i64),
        // Punching, and allocating.
        5 => user.fallocate(ofd, 3, at as i64, len as i64 + 1),
        6 => user.fallocate(ofd, 1, at as i64, len as i64 + 1),
        7 => user.pwrite(ofd, ConstBuf::from(&[3; 200][..]), 0).map(drop),
        _ => {
            let bytes = vec![5; len as usize];
            let bytes = ConstBuf::from(&bytes[..]);
            user.pwrite(ofd, bytes, at as i64).map(drop)
        }
    };
    user.release(ofd).unwrap();
    done
}

#[test]
fn what_is_counted_is_what_is_there() {
    let mut fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    shared(&user, "/all");
    for n in 0..3 {
        shared(&user, &format!("/all/d{n}"));
    }
    let dir = directory(&user, "/all");
    for uid in [1001, 1002] {
        limit(&user, Subject::User(uid), 60, 20);
    }
    limit(&user, dir, 120, 30);
    let (mut state, mut over) = (88_172_645_463_325_252, 0);
    for n in 0..4000 {
        match change(&user, &mut state) {
            Err(Error::OverQuota) => over += 1,
            Ok(()) | Err(Error::NotFound) => {}
            Err(e) => panic!("{e}"),
        }
        let all = taken(&user, dir);
        assert!(all.0 <= 120 && all.1 <= 30, "{all:?}");
        if n % 200 != 0 {
            continue;
        }
        if n == 2000 {
            let pool = common::pool_of(&fixture);
            user.snapshot_create(pool, b"half").unwrap();
        }
        let mut sums = BTreeMap::new();
        add_up(&user, "/all", &mut sums);
        for uid in [1001, 1002] {
            let sum = sums.get(&uid).copied().unwrap_or_default();
            assert_eq!(taken(&user, Subject::User(uid)), sum, "{uid} after {n}");
        }
        let whole = sums.values().fold((0, 1), |a, b| (a.0 + b.0, a.1 + b.1));
        assert_eq!(taken(&user, dir), whole, "after {n}");
    }
    assert!(over > 20, "{over}");
    let subjects = [dir, Subject::User(1001), Subject::User(1002)];
    let before = subjects.map(|subject| taken(&user, subject));
    // The trees have the same: while the session rests it is compared with them.
    let s = user.session();
    drain::wait_applied(s, s.header().next_seq.load(Ordering::Acquire) - 1).unwrap();
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(subjects.map(|subject| taken(&user, subject)), before);
    drop(user);
    fixture.stop();
    fixture.check();
    fixture.start();
    let user = fixture.user();
    assert_eq!(subjects.map(|subject| taken(&user, subject)), before);
    drop(user);
    fixture.stop();
    fixture.check();
}

#[test]
fn nobody_exceeds_a_limit_together() {
    let fixture = Fixture::new(256 << 20);
    let user = fixture.user();
    shared(&user, "/all");
    let me = Subject::User(OTHER.uid);
    limit(&user, me, 1000, 0);
    let written: u64 = std::thread::scope(|scope| {
        let write_one = |n: u64| {
            let user = &user;
            move || {
                let path = format!("/all/{n}");
                let ofd = open_as(user, &OTHER, &path, O_CREAT | O_RDWR).unwrap();
                let mut at = 0;
                while let Ok(len) = write(user, ofd, n + 1, at) {
                    at += len as u64 / BLOCK;
                }
                user.release(ofd).unwrap();
                at
            }
        };
        let threads: Vec<_> = (0..8).map(|n| scope.spawn(write_one(n))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(written, 1000);
    assert_eq!(taken(&user, me), (1000, 8));
}

#[test]
fn what_a_dead_process_took_comes_back() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    shared(&user, "/all");
    let me = Subject::User(OTHER.uid);
    limit(&user, me, 100, 0);
    let ofd = open_as(&user, &OTHER, "/all/a", O_CREAT | O_RDWR).unwrap();
    write(&user, ofd, 50, 0).unwrap();
    // What a process leaves behind that dies before what it took is there.
    let quotas = user.session().quota(0).unwrap();
    quotas.bytes.fetch_add(50 * BLOCK, Ordering::SeqCst);
    quotas.files.fetch_sub(1, Ordering::SeqCst);
    assert_eq!(write(&user, ofd, 1, 50), Err(Error::OverQuota));
    user.release(ofd).unwrap();
    wait_for(&user, me, (50, 1));
}

#[test]
fn files_without_names_and_mapped_ones_count() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    mkdir(&user, &ROOT, "/dir").unwrap();
    let dir = directory(&user, "/dir");
    limit(&user, dir, 10, 3);
    let flags = 0o20_000_000 | O_DIRECTORY | O_RDWR;
    let nameless = user.open("/dir", flags).unwrap();
    write(&user, nameless, 4, 0).unwrap();
    assert_eq!(taken(&user, dir), (4, 2));
    let path = b"/dir/named".as_slice();
    let base = Base::Ofd(nameless);
    user.link(&ROOT, (base, b""), (Base::Root, path), 0x1000)
        .unwrap();
    user.release(nameless).unwrap();
    assert_eq!(taken(&user, dir), (4, 2));
    // Holes cost nothing until they are filled.
    let sparse = user.create("/dir/sparse");
    user.ftruncate(sparse, 1 << 30).unwrap();
    assert_eq!(taken(&user, dir), (4, 3));
    assert_eq!(user.fallocate(sparse, 0, 0, 7 << 12), Err(Error::OverQuota));
    user.ftruncate(sparse, 0).unwrap();
    assert_eq!(taken(&user, dir), (4, 3));
    user.release(sparse).unwrap();
    let made = user.open("/dir/more", O_CREAT | O_WRONLY);
    assert_eq!(made.err(), Some(Error::OverQuota));
}

#[test]
fn there_are_so_many_quotas() {
    let mut fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    shared(&user, "/all");
    let first = 0x8000_0000;
    for n in 0..1024 {
        limit(&user, Subject::User(first + n * 977), 1, 0);
    }
    let one_more = Quota {
        subject: Subject::User(5),
        partial: false,
        bytes: 1 << 20,
        files: 0,
    };
    assert_eq!(user.quota_set(one_more), Err(Error::TooManyQuotas));
    // Each is found, also after others are gone.
    for n in (0..1024).filter(|n| n % 7 != 0).step_by(50) {
        user.quota_remove(Subject::User(first + n * 977)).unwrap();
    }
    for n in (0..1024).step_by(7) {
        let uid = first + n * 977;
        let who = Caller { uid, ..OTHER };
        let ofd = open_as(&user, &who, &format!("/all/{n}"), O_CREAT | O_RDWR).unwrap();
        assert_eq!(write(&user, ofd, 2, 0).unwrap(), BLOCK as usize);
        assert_eq!(write(&user, ofd, 1, 1), Err(Error::OverQuota));
        user.release(ofd).unwrap();
    }
    user.quota_set(one_more).unwrap();
    let path = b"/".as_slice();
    let mut names = [0; 4096];
    let target = holdfast_client::Target::Path {
        base: Base::Root,
        path,
        nofollow: false,
    };
    let out = holdfast_pmem::MutBuf::from(&mut names[..]);
    assert_eq!(
        user.listxattr(&ROOT, target, out),
        Ok(0),
        "they are not shown"
    );
    drop(user);
    fixture.stop();
    fixture.check();
}

/// Blocks and files, and how many of them are left, as statfs(2) says of what `path` leads to.
fn statfs(user: &User, who: &Caller<'_>, path: &str) -> [u64; 5] {
    let s = user.statfs_at(who, Base::Root, path.as_bytes(), 0).unwrap();
    [s.blocks, s.free, s.available, s.files, s.files_free]
}

#[test]
fn statfs_in_a_directory_shows_its_quota() {
    let fixture = Fixture::new(64 << 20);
    let user = fixture.user();
    shared(&user, "/dir");
    shared(&user, "/out");
    let pool = statfs(&user, &ROOT, "/out");
    limit(&user, directory(&user, "/dir"), 100, 10);
    assert_eq!(statfs(&user, &ROOT, "/dir"), [100, 100, 100, 10, 9]);
    mkdir(&user, &ROOT, "/dir/sub").unwrap();
    let ofd = open_as(&user, &OTHER, "/dir/file", O_CREAT | O_RDWR).unwrap();
    write(&user, ofd, 30, 0).unwrap();
    for path in ["/dir", "/dir/sub", "/dir/file", "/out/../dir/sub/.."] {
        let shown = statfs(&user, &OTHER, path);
        assert_eq!(shown, [100, 70, 70, 10, 7], "{path}");
    }
    // Also of what is open, when its name is gone, too.
    user.unlink(&ROOT, Base::Root, b"/dir/file").unwrap();
    let open = user.statfs_at(&OTHER, Base::Ofd(ofd), b"", AT_EMPTY_PATH);
    assert_eq!(open.unwrap().free, 70);
    user.release(ofd).unwrap();
    assert_eq!(statfs(&user, &ROOT, "/dir"), [100, 100, 100, 10, 8]);
    // Outside, and for a user with a quota, it is the pool.
    limit(&user, Subject::User(1000), 5, 5);
    let out = statfs(&user, &OTHER, "/out");
    assert_eq!((out[0], out[4]), (pool[0], pool[4]));
    assert_eq!(statfs(&user, &OTHER, "/dir")[0], 100);
    // A limit above what the pool has shows the pool, one below what is taken shows no room.
    limit(&user, directory(&user, "/dir"), 1 << 40, 0);
    let large = statfs(&user, &ROOT, "/dir");
    assert_eq!((large[0], large[4]), (pool[0], pool[4]));
    assert!(large[1] <= pool[1]);
    limit(&user, directory(&user, "/dir"), 1, 1);
    let ofd = open_as(&user, &ROOT, "/out/x", O_CREAT | O_RDWR).unwrap();
    assert_eq!(statfs(&user, &ROOT, "/dir"), [1, 1, 1, 1, 0]);
    user.release(ofd).unwrap();
    user.quota_remove(directory(&user, "/dir")).unwrap();
    assert_eq!(statfs(&user, &ROOT, "/dir")[0], pool[0]);
}
