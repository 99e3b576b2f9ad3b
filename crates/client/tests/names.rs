//! Paths: where they lead, where they leave the pool, and what they look like from inside.

mod common;

use common::{Fixture, ROOT, User};
use holdfast_client::{Base, Caller, Error, LeaseSet, OfdLink, abi::*};
use holdfast_pool::layout::ROOT_INO;
use holdfast_pool::session::PROTECTED_SYMLINKS;
use std::sync::atomic::Ordering::Relaxed;

const POOL: u64 = 64 << 20;

fn outside<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Outside(path) | Error::OutsideSecond(path)) => {
            String::from_utf8(path.into()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

fn symlink(user: &User, target: &str, path: &str) {
    user.symlink(&ROOT, target.as_bytes(), Base::Root, path.as_bytes())
        .unwrap();
}

fn resolve(user: &User, base: Base, path: &str, how: u64) -> Result<(), Error> {
    let opened = user
        .client
        .open(&ROOT, base, path.as_bytes(), O_RDONLY, 0, how);
    opened.map(|ofd| user.release(ofd).unwrap())
}

fn open_dir(user: &User, path: &str) -> OfdLink {
    user.open(path, O_RDONLY | O_DIRECTORY).unwrap()
}

#[test]
fn paths_leave_the_pool_where_it_appears_in_the_host() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user_at(b"/mnt/hf");
    user.mkdir(&ROOT, Base::Root, b"d", 0o755).unwrap();
    user.put("d/file", b"inside");
    symlink(&user, "/mnt/hf/d/file", "d/absolute");
    symlink(&user, "/mnt/hfx/file", "d/neighbour");
    symlink(&user, "/etc", "d/etc");
    symlink(&user, "../../other", "d/up");
    assert_eq!(user.get("d/absolute"), b"inside");
    assert_eq!(outside(user.open("d/neighbour", O_RDONLY)), "/mnt/hfx/file");
    assert_eq!(outside(user.open("d/etc/passwd", O_RDONLY)), "/etc/passwd");
    assert_eq!(outside(user.open("d/up/x/", O_RDONLY)), "/mnt//other/x/");
    assert_eq!(outside(user.open("../a", O_RDONLY)), "/mnt//a");
    assert_eq!(outside(user.open("d/../..", O_RDONLY)), "/mnt/");
    let (from, to) = ((Base::Root, &b"d/file"[..]), (Base::Root, &b"d/etc/x"[..]));
    assert_eq!(outside(user.rename(&ROOT, from, to, 0)), "/etc/x");
    assert!(matches!(
        user.link(&ROOT, from, to, 0),
        Err(Error::OutsideSecond(_))
    ));
    assert_eq!(
        user.stat(&ROOT, Base::Root, b"d/etc", AT_SYMLINK_NOFOLLOW)
            .unwrap()
            .size,
        4
    );
}

#[test]
fn a_pool_that_appears_nowhere_is_its_own_root() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    user.put("file", b"x");
    symlink(&user, "/file", "link");
    assert_eq!(user.get("link"), b"x");
    assert_eq!(user.get("../../file"), b"x");
}

/// fs.protected_symlinks is about links that are opened, not about those on the way.
#[test]
fn what_leads_through_a_link_in_a_sticky_directory_is_found() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let protected = &user.client.session().header().protected;
    protected.store(PROTECTED_SYMLINKS, Relaxed);
    user.mkdir(&ROOT, Base::Root, b"d", 0o755).unwrap();
    user.put("d/file", b"x");
    user.mkdir(&ROOT, Base::Root, b"t", 0o1777).unwrap();
    user.chmod(&ROOT, Base::Root, b"t", 0o1777, 0).unwrap();
    let (one, other) = (as_user(1001), as_user(1002));
    user.symlink(&one, b"../d", Base::Root, b"t/link").unwrap();
    let stat = |path: &[u8]| user.stat(&other, Base::Root, path, 0);
    let (found, dir) = (stat(b"t/link/file"), user.stat(&ROOT, Base::Root, b"d", 0));
    assert_eq!(found.map(|stat| stat.size), Ok(1));
    assert_eq!(stat(b"t/link").map(drop), Err(Error::Denied));
    let leases = LeaseSet::default();
    let client = &user.client;
    let led = client.leased_directory(&other, ROOT_INO, b"t/link", &leases);
    assert_eq!(led, Ok(dir.unwrap().ino));
}

fn as_user(uid: u32) -> Caller<'static> {
    Caller {
        uid,
        gid: uid,
        privileged: false,
        ..ROOT
    }
}

#[test]
fn confined_walks_stay_where_they_began() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user_at(b"/hf");
    user.mkdir(&ROOT, Base::Root, b"d", 0o755).unwrap();
    user.put("d/in", b"");
    user.put("out", b"");
    symlink(&user, "/in", "d/abs");
    symlink(&user, "../out", "d/up");
    let base = Base::Ofd(open_dir(&user, "d"));
    assert_eq!(resolve(&user, base, "../out", 0), Ok(()));
    assert_eq!(
        resolve(&user, base, "../out", RESOLVE_BENEATH),
        Err(Error::CrossDevice)
    );
    assert_eq!(
        resolve(&user, base, "up", RESOLVE_BENEATH),
        Err(Error::CrossDevice)
    );
    assert_eq!(
        resolve(&user, base, "abs", RESOLVE_BENEATH),
        Err(Error::CrossDevice)
    );
    assert_eq!(resolve(&user, base, "abs", RESOLVE_IN_ROOT), Ok(()));
    assert_eq!(resolve(&user, base, "../in", RESOLVE_IN_ROOT), Ok(()));
    assert_eq!(
        resolve(&user, base, "up", RESOLVE_IN_ROOT),
        Err(Error::NotFound)
    );
    assert_eq!(
        resolve(&user, base, "up", RESOLVE_NO_SYMLINKS),
        Err(Error::Loop)
    );
    assert_eq!(
        resolve(&user, base, "../..", RESOLVE_NO_XDEV),
        Err(Error::CrossDevice)
    );
    assert_eq!(resolve(&user, base, "in", 0x4000), Err(Error::Invalid));
}

#[test]
fn limits_of_names_paths_and_links() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    let longest = "n".repeat(255);
    user.put(&longest, b"long");
    assert_eq!(user.get(&longest), b"long");
    assert_eq!(
        user.open(&"n".repeat(256), O_RDONLY),
        Err(Error::NameTooLong)
    );
    assert_eq!(
        user.open(&"./".repeat(2048), O_RDONLY),
        Err(Error::NameTooLong)
    );
    let almost = "./".repeat(1900) + &longest;
    assert_eq!(user.get(&almost), b"long");
    let target = format!("{}{longest}", "./".repeat(1900));
    symlink(&user, &target, "far");
    assert_eq!(user.get("far"), b"long");
    symlink(&user, &longest, "l0");
    for n in 1..=40 {
        symlink(&user, &format!("l{}", n - 1), &format!("l{n}"));
    }
    assert_eq!(user.get("l39"), b"long");
    assert_eq!(user.open("l40", O_RDONLY), Err(Error::Loop));
    symlink(&user, "self", "self");
    assert_eq!(user.open("self/x", O_RDONLY), Err(Error::Loop));
    assert_eq!(user.open("", O_RDONLY), Err(Error::NotFound));
}

fn cwd(user: &User) -> Result<String, Error> {
    let mut out = [0; 4096];
    let n = user.getcwd(&mut out)?;
    Ok(String::from_utf8(out[..n].to_vec()).unwrap())
}

fn path_of(user: &User, ofd: OfdLink) -> String {
    let mut out = [0; 4096];
    let n = user.path_of(ofd, &mut out).unwrap();
    String::from_utf8(out[..n].to_vec()).unwrap()
}

#[test]
fn the_working_directory_knows_its_path_while_it_moves() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    for dir in ["a", "a/b", "c"] {
        user.mkdir(&ROOT, Base::Root, dir.as_bytes(), 0o755)
            .unwrap();
    }
    assert!(!user.cwd_inside());
    user.chdir(&ROOT, Base::Root, b"/").unwrap();
    assert_eq!(cwd(&user).unwrap(), "/");
    user.chdir(&ROOT, Base::Cwd, b"a/b").unwrap();
    assert_eq!(cwd(&user).unwrap(), "/a/b");
    user.rename(&ROOT, (Base::Root, b"a/b"), (Base::Root, b"c/moved"), 0)
        .unwrap();
    assert_eq!(cwd(&user).unwrap(), "/c/moved");
    assert_eq!(user.getcwd(&mut [0; 7]), Err(Error::Range));
    let file = user
        .client
        .open(&ROOT, Base::Cwd, b"f", O_CREAT | O_RDWR, 0o644, 0)
        .unwrap();
    assert_eq!(path_of(&user, file), "/c/moved/f");
    let dir = open_dir(&user, "c");
    assert_eq!(path_of(&user, dir), "/c");
    assert_eq!(path_of(&user, open_dir(&user, "/")), "/");
    user.unlink(&ROOT, Base::Cwd, b"f").unwrap();
    assert_eq!(path_of(&user, file), "/c/moved/f (deleted)");
    user.rmdir(&ROOT, Base::Root, b"c/moved").unwrap();
    assert_eq!(cwd(&user), Err(Error::NotFound));
    let made = user
        .client
        .open(&ROOT, Base::Cwd, b"g", O_CREAT | O_RDWR, 0o644, 0);
    assert_eq!(made, Err(Error::NotFound));
    user.chdir(&ROOT, Base::Cwd, b"..").unwrap();
    assert_eq!(cwd(&user).unwrap(), "/c");
    user.chdir_outside().unwrap();
    assert!(!user.cwd_inside());
    assert_eq!(
        user.chdir(&ROOT, Base::Root, b"c/moved"),
        Err(Error::NotFound)
    );
}

#[test]
fn a_directory_cannot_move_below_itself() {
    let fixture = Fixture::new(POOL);
    let user = fixture.user();
    for dir in ["a", "a/b", "a/b/c"] {
        user.mkdir(&ROOT, Base::Root, dir.as_bytes(), 0o755)
            .unwrap();
    }
    let rename = |from: &str, to: &str, flags| {
        user.rename(
            &ROOT,
            (Base::Root, from.as_bytes()),
            (Base::Root, to.as_bytes()),
            flags,
        )
    };
    assert_eq!(rename("a", "a/b/x", 0), Err(Error::Invalid));
    assert_eq!(rename("a", "a/b/c", RENAME_EXCHANGE), Err(Error::Invalid));
    assert_eq!(rename("a/b/c", "a", 0), Err(Error::NotEmpty));
    assert_eq!(rename("a", "a", 0), Ok(()));
    assert_eq!(rename("a/b/c", "c", 0), Ok(()));
    assert_eq!(rename("a", "c", RENAME_EXCHANGE), Ok(()));
    assert_eq!(user.names("c").len(), 3);
    assert_eq!(user.names("a").len(), 2);
}
