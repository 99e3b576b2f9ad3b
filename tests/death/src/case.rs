//! What the child is doing when it dies, and what others may find then.

use crate::common::{ROOT, User};
use holdfast_client::abi::*;
use holdfast_client::kv::{Changes, Durability, Entry, Keyspace, Scan};
use holdfast_client::{Base, Error, OfdLink, Target, abandoned, drain, recover, slots};
use holdfast_pmem::{ConstBuf, MutBuf};
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::session::{DENTRIES, INODES};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;

/// One kind of work.
pub struct Case {
    pub name: &'static str,
    pub in_mode: fn(Consistency) -> bool,
    /// What is there before, made by the survivor.
    pub prepare: fn(&User),
    /// What the child opens before it works.
    pub ready: fn(&User) -> Option<OfdLink>,
    pub work: fn(&User, Option<OfdLink>),
    /// Bytes of a file may be the old or the new ones, and its size between the two.
    torn: bool,
    /// Whoever finishes for the dead one dies, too.
    pub successors: bool,
    /// Whoever finishes for the dead one finds no room in the tables of names and inodes.
    pub full: bool,
}

impl Case {
    pub fn allows(&self, before: &View, after: &View, seen: &View) -> bool {
        seen == before || seen == after || self.torn && seen.is_between(before, after)
    }
}

/// Everything that a user sees, by path: what it is, and its bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct View(BTreeMap<String, (String, Vec<u8>)>);

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (path, (what, bytes)) in &self.0 {
            let mut runs: Vec<(u8, usize)> = Vec::new();
            for byte in bytes {
                match runs.last_mut() {
                    Some((last, n)) if last == byte => *n += 1,
                    _ => runs.push((*byte, 1)),
                }
            }
            runs.truncate(8);
            write!(f, "{path}: {what} {runs:?}; ")?;
        }
        Ok(())
    }
}

impl View {
    /// What a change that was under way looks like is settled by the first who comes across it, or
    /// by whoever the service asks: so the look after that counts.
    pub fn of(user: &User) -> View {
        View::look(user);
        let mut view = View(BTreeMap::new());
        assert!(view.add(user, ""), "a name is not what it leads to");
        view.add_values(user);
        view
    }

    fn look(user: &User) {
        // Who asks where he is, or puts a value, locks no directory, so this comes first.
        if user.cwd_inside() && user.getcwd(&mut [0; 64]).is_err() {
            let found = user.stat(&ROOT, Base::Root, b"d", 0);
            assert!(
                found.is_err(),
                "the working directory has no path and is there"
            );
        }
        for (name, keyspace) in keyspaces(user) {
            match user.kv_put(keyspace, b"zz", b"", Durability::Ordered) {
                // Another may have the name by now.
                Err(Error::NotFound) if !has_name(user, keyspace, &name) => {}
                done => done.expect("a put"),
            }
        }
        View(BTreeMap::new()).add(user, "");
        let s = user.session();
        let upto = s.header().next_seq.load(SeqCst).saturating_sub(1);
        drain::wait_applied(s, upto).expect("the trees have it");
        for (_, keyspace) in keyspaces(user) {
            for key in KEYS {
                user.kv_get(keyspace, key, &mut []).expect("a get");
            }
            scan(user, keyspace);
            // Waits until everything before it is in the trees.
            let mut nothing = Changes::default();
            nothing.erase_range(keyspace, b"zz", None).expect("a range");
            user.kv_commit(nothing, Durability::Ordered)
                .expect("a commit");
        }
    }

    /// All values, as `get` and as a scan find them.
    fn add_values(&mut self, user: &User) {
        for (name, keyspace) in keyspaces(user) {
            for key in KEYS {
                let mut bytes = vec![0; VALUE_MAX];
                let found = user.kv_find(None, None, (keyspace, key), &mut bytes);
                if let Some(found) = found.expect("a get") {
                    bytes.truncate(found.len as usize);
                    let path = format!("{name}/={}", String::from_utf8_lossy(key));
                    let what = format!("value until {}", found.expires);
                    self.0.insert(path, (what, bytes));
                }
            }
            let found = scan(user, keyspace);
            let of = format!("{name}/=");
            let here = self.0.iter().filter(|(path, _)| path.starts_with(&of));
            let here: Vec<_> = here.map(|(_, (_, bytes))| bytes.clone()).collect();
            assert_eq!(
                here, found,
                "what a scan finds in {name} is not what get finds"
            );
        }
    }

    /// False: a name that is listed leads nowhere, or to something else from one call to the next.
    fn add(&mut self, user: &User, dir: &str) -> bool {
        let here = if dir.is_empty() { "." } else { dir };
        let Ok(opened) = user.open(here, O_RDONLY | O_DIRECTORY) else {
            return false;
        };
        let names = user.names_of(opened, 1024);
        user.release(opened).expect("a directory is closed");
        for name in names {
            if name == "." || name == ".." {
                continue;
            }
            let path = if dir.is_empty() {
                name
            } else {
                format!("{dir}/{name}")
            };
            let Ok(stat) = user.stat(&ROOT, Base::Root, path.as_bytes(), AT_SYMLINK_NOFOLLOW)
            else {
                return false;
            };
            let what = format!("{:o} {} {}", stat.mode, stat.nlink, attribute(user, &path));
            let bytes = match stat.mode & S_IFMT {
                S_IFREG => content(user, &path).filter(|bytes| bytes.len() as u64 == stat.size),
                S_IFLNK => link(user, &path),
                _ => Some(Vec::new()),
            };
            let Some(bytes) = bytes else { return false };
            self.0.insert(path.clone(), (what, bytes));
            let is_dir = stat.mode & S_IFMT == S_IFDIR;
            if is_dir && !is_keyspace(user, &path) && !self.add(user, &path) {
                return false;
            }
        }
        true
    }

    fn is_between(&self, before: &View, after: &View) -> bool {
        self.0.len() == before.0.len()
            && self.0.iter().all(|(path, (what, bytes))| {
                let (Some(old), Some(new)) = (before.0.get(path), after.0.get(path)) else {
                    return false;
                };
                let sizes = old.1.len().min(new.1.len())..=old.1.len().max(new.1.len());
                let known = |(i, byte)| old.1.get(i) == Some(byte) || new.1.get(i) == Some(byte);
                (*what == old.0 || *what == new.0)
                    && sizes.contains(&bytes.len())
                    && bytes.iter().enumerate().all(known)
            })
    }
}

/// The keys of the cases, in their order.
const KEYS: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"go"];
const VALUE_MAX: usize = 10_000;

fn is_keyspace(user: &User, name: &str) -> bool {
    user.keyspace(&ROOT, name.as_bytes(), false).is_ok()
}

fn has_name(user: &User, keyspace: Keyspace, name: &str) -> bool {
    let found = user.keyspace(&ROOT, name.as_bytes(), false);
    found.is_ok_and(|found| found.ino() == keyspace.ino())
}

fn keyspaces(user: &User) -> Vec<(String, Keyspace)> {
    let names = user.names(".").into_iter();
    let open = |name: String| {
        let keyspace = user.keyspace(&ROOT, name.as_bytes(), false).ok()?;
        Some((name, keyspace))
    };
    names
        .filter(|name| name != "." && name != "..")
        .filter_map(open)
        .collect()
}

fn scan(user: &User, keyspace: Keyspace) -> Vec<Vec<u8>> {
    let view = user.view_of(keyspace).expect("a view");
    let (s, mut scan) = (user.session(), Scan::new(keyspace, b"", None, false));
    let mut all = Vec::new();
    while let Some((key, entry)) = scan.next(s, &view).expect("a scan goes on") {
        let key = key.to_vec();
        all.push(match entry {
            Entry::Inline(value) => value.to_vec(),
            Entry::Blocks(blocks) => {
                let mut value = vec![0; blocks.len as usize];
                Scan::copy(s, &view, &blocks, &mut value).expect("a value");
                value
            }
            Entry::File(ino) => {
                let mut value = vec![0; VALUE_MAX];
                let len = scan.read(s, (&key, ino), &mut value, None).expect("a file");
                value.truncate(len.expect("it is still there") as usize);
                value
            }
        });
    }
    user.end_view(view);
    all
}

fn keyspace(user: &User, name: &str) -> Keyspace {
    let made = user.keyspace(&ROOT, name.as_bytes(), true);
    made.expect("a keyspace")
}

/// A change of one key: erased, or to so many bytes.
type KeyChange = (&'static str, &'static [u8], Option<usize>, u8);

/// All at once.
fn change(user: &User, list: &[KeyChange]) {
    let mut changes = Changes::default();
    for (name, key, len, byte) in list {
        let keyspace = keyspace(user, name);
        match len {
            Some(len) => changes.put(user, keyspace, key, &vec![*byte; *len]),
            None => changes.erase(user, keyspace, key),
        }
        .expect("room");
    }
    user.kv_commit(changes, Durability::Durable)
        .expect("a commit");
}

/// A time that no test comes to.
const LATER: i64 = 1 << 62;

/// Values of so many bytes that expire then, all at once.
fn put_until(user: &User, list: &[(&[u8], usize, i64)]) {
    let (mut changes, k) = (Changes::default(), keyspace(user, "k"));
    for (key, len, expires) in list {
        let put = changes.put_until(user, (k, key), &vec![9; *len], *expires);
        put.expect("room");
    }
    user.kv_commit(changes, Durability::Durable)
        .expect("a commit");
}

fn stage_values(user: &User) {
    user.put("f", &[1; 100]);
    change(
        user,
        &[
            ("k", b"a", Some(20), 1),
            ("k", b"b", Some(5000), 2),
            ("l", b"c", Some(300), 3),
            ("l", b"d", Some(40), 4),
        ],
    );
}

/// Only who writes to a value needs it as a file.
fn become_file(user: &User, path: &str) {
    let file = user.open(path, O_RDWR).expect("a value");
    user.release(file).expect("closed");
}

/// Everything that can be done with keyspaces.
fn go_on_with_values(user: &User) {
    for (name, keyspace) in keyspaces(user) {
        let mut got = vec![0; VALUE_MAX];
        for len in [30, 6000] {
            for key in KEYS {
                let value = vec![len as u8; len];
                user.kv_put(keyspace, key, &value, Durability::Durable)
                    .expect("a put");
                let found = user.kv_get(keyspace, key, &mut got).expect("a get");
                assert_eq!(found, Some(len as u64), "{name}");
                assert!(got[..len] == value);
            }
        }
        let mut changes = Changes::default();
        changes.erase_range(keyspace, b"", None).expect("a range");
        changes.erase(user, keyspace, b"a").expect("room");
        user.kv_commit(changes, Durability::Ordered)
            .expect("a commit");
        assert!(scan(user, keyspace).is_empty());
    }
}

fn attribute(user: &User, path: &str) -> String {
    let mut out = [0; 64];
    let target = Target::Path {
        base: Base::Root,
        path: path.as_bytes(),
        nofollow: true,
    };
    match user.getxattr(&ROOT, target, b"user.a", MutBuf::from(&mut out[..])) {
        Ok(n) => String::from_utf8_lossy(&out[..n]).into_owned(),
        Err(_) => String::new(),
    }
}

fn content(user: &User, path: &str) -> Option<Vec<u8>> {
    let file = user.open(path, O_RDONLY).ok()?;
    let size = user.fstat(file).expect("a file has a size").size as usize;
    let bytes = user.pread_vec(file, size + 1, 0);
    user.release(file).expect("a file is closed");
    Some(bytes)
}

fn link(user: &User, path: &str) -> Option<Vec<u8>> {
    let mut out = vec![0; 4096];
    let n = user.readlink(
        &ROOT,
        Base::Root,
        path.as_bytes(),
        MutBuf::from(&mut out[..]),
    );
    out.truncate(n.ok()?);
    Some(out)
}

/// What the next process does: it joins, and looks around.
pub fn inherit(user: &User) {
    user.join(0, &|_| false).expect("joined");
    View::look(user);
}

fn open_files(user: &User) -> usize {
    let used = user.session().header().ofd_used.load(SeqCst);
    let all = (1..=used).map_while(|link| user.session().ofd(link).ok());
    all.filter(|ofd| ofd.inode.load(SeqCst) != 0).count()
}

/// The survivor can still do everything, also in the directory where the dead process worked.
pub fn go_on(user: &User) {
    // What it had open is closed for it, once.
    slots::reap_dead(user.session());
    abandoned::sweep(user.session()).expect("a sweep");
    assert_eq!(open_files(user), 0, "of the dead");
    let found = user.session().header().broken.finding();
    assert!(
        found.is_none(),
        "{}",
        found.map_or_else(String::new, |f| f.to_string())
    );
    go_on_with_values(user);
    let rename = |from: &[u8], to: &[u8]| {
        let moved = user.rename(&ROOT, (Base::Root, from), (Base::Root, to), 0);
        moved.expect("a rename");
    };
    user.mkdir(&ROOT, Base::Root, b"go", 0o755)
        .expect("a directory");
    user.put("x", b"others");
    assert_eq!(user.get("x"), b"others");
    let ofd = user.open("x", O_RDWR | O_APPEND).expect("an open");
    user.write(ofd, ConstBuf::from(&[9; 9000][..]))
        .expect("an append");
    user.fsync(ofd).expect("an fsync");
    user.ftruncate(ofd, 4).expect("a cut");
    user.release(ofd).expect("a close");
    rename(b"x", b"go/y");
    assert_eq!(user.get("go/y"), b"othe");
    user.put("x", b"new");
    rename(b"x", b"go/y");
    assert_eq!(user.get("go/y"), b"new");
    // What it had open, too.
    for name in ["f", "small", "over"] {
        if let Ok(ofd) = user.open(name, O_RDWR | O_APPEND) {
            user.write(ofd, ConstBuf::from(&b"more"[..]))
                .expect("an append");
            user.ftruncate(ofd, 2).expect("a cut");
            user.release(ofd).expect("a close");
            assert_eq!(user.get(name).len(), 2);
        }
    }
}

/// The survivor finishes for the dead while no entry of a table is free, and with `pinned` no
/// inode can make room either.
pub fn recover_without_room(user: &User, pinned: bool) {
    let h = user.session().header();
    let inodes = h.inode_used.swap(INODES as u32, SeqCst);
    let dentries = h.dentry_used.swap(DENTRIES as u32, SeqCst);
    h.inode_free.store(0, SeqCst);
    h.dentry_free.store(0, SeqCst);
    // Nobody maps files here.
    let map = |maps: u32| {
        let all = (1..=inodes).map_while(|link| user.session().inode(link).ok());
        all.for_each(|e| e.maps.store(maps, SeqCst));
    };
    map(u32::from(pinned));
    recover::lanes(user.session()).expect("the service lives");
    map(0);
    // What was free is lost, but not what never was in use.
    h.inode_used.store(inodes, SeqCst);
    h.dentry_used.store(dentries, SeqCst);
}

/// Removes everything.
pub fn clear(user: &User) {
    for name in user.names(".") {
        if name == "." || name == ".." {
            continue;
        }
        if user.unlink(&ROOT, Base::Root, name.as_bytes()).is_ok() {
            continue;
        }
        if let Ok(keyspace) = user.keyspace(&ROOT, name.as_bytes(), false) {
            let mut changes = Changes::default();
            changes.erase_range(keyspace, b"", None).expect("a range");
            user.kv_commit(changes, Durability::Ordered)
                .expect("a commit");
        }
        for inner in user.names(&name) {
            let path = format!("{name}/{inner}");
            if inner != "."
                && inner != ".."
                && user.unlink(&ROOT, Base::Root, path.as_bytes()).is_err()
            {
                user.rmdir(&ROOT, Base::Root, path.as_bytes())
                    .expect("an empty directory");
            }
        }
        user.rmdir(&ROOT, Base::Root, name.as_bytes())
            .expect("a directory goes");
    }
}

fn prepare(user: &User) {
    user.mkdir(&ROOT, Base::Root, b"d", 0o755)
        .expect("a directory");
    user.put("f", &[1; 3 * 4096 + 100]);
    user.put("small", b"inline content");
    user.put("over", &[2; 5000]);
}

fn open_f(user: &User) -> Option<OfdLink> {
    Some(user.open("f", O_RDWR).expect("an open"))
}

fn open_append(user: &User) -> Option<OfdLink> {
    Some(user.open("f", O_RDWR | O_APPEND).expect("an open"))
}

fn open_small(user: &User) -> Option<OfdLink> {
    Some(user.open("small", O_RDWR).expect("an open"))
}

fn nothing(_: &User) -> Option<OfdLink> {
    None
}

fn write(user: &User, ofd: Option<OfdLink>, bytes: &[u8], at: i64) {
    user.pwrite_all(ofd.expect("an open file"), bytes, at);
}

const fn case(
    name: &'static str,
    ready: fn(&User) -> Option<OfdLink>,
    work: fn(&User, Option<OfdLink>),
) -> Case {
    Case {
        name,
        in_mode: |_| true,
        prepare,
        ready,
        work,
        torn: false,
        successors: false,
        full: false,
    }
}

const fn torn(case: Case) -> Case {
    Case { torn: true, ..case }
}

/// What returns in one step of the journal is told in one mode only; the rest in all.
const fn names(name: &'static str, work: fn(&User, Option<OfdLink>)) -> Case {
    Case {
        in_mode: |mode| mode == Consistency::Posix,
        ..case(name, nothing, work)
    }
}

const fn with_heirs(case: Case) -> Case {
    Case {
        successors: true,
        ..case
    }
}

const fn without_room(case: Case) -> Case {
    Case { full: true, ..case }
}

/// Changes of values happen as a whole or not at all, in all modes in the same way.
const fn values(name: &'static str, work: fn(&User, Option<OfdLink>)) -> Case {
    Case {
        prepare: stage_values,
        ..names(name, work)
    }
}

const fn strict(case: Case) -> Case {
    Case {
        in_mode: |mode| mode == Consistency::Strict,
        ..case
    }
}

const fn lax(case: Case) -> Case {
    Case {
        in_mode: |mode| mode != Consistency::Strict,
        ..torn(case)
    }
}

const R: Base = Base::Root;

pub const CASES: &[Case] = &[
    with_heirs(names("create", |u, _| {
        drop(u.open("n", O_CREAT | O_RDWR | O_EXCL))
    })),
    without_room(names("create_full", |u, _| {
        drop(u.open("n", O_CREAT | O_RDWR | O_EXCL))
    })),
    names("mkdir", |u, _| {
        u.mkdir(&ROOT, R, b"n", 0o755).expect("done")
    }),
    without_room(names("mkdir_full", |u, _| {
        u.mkdir(&ROOT, R, b"d/n", 0o755).expect("done")
    })),
    without_room(names("rename_full", |u, _| {
        u.rename(&ROOT, (R, b"f"), (R, b"d/n"), 0).expect("done")
    })),
    names("symlink", |u, _| {
        u.symlink(&ROOT, b"f", R, b"n").expect("done")
    }),
    names("long_symlink", |u, _| {
        u.symlink(&ROOT, &[b'x'; 900], R, b"n").expect("done")
    }),
    names("link", |u, _| {
        u.link(&ROOT, (R, b"f"), (R, b"d/n"), 0).expect("done")
    }),
    names("unlink", |u, _| u.unlink(&ROOT, R, b"f").expect("done")),
    names("rmdir", |u, _| u.rmdir(&ROOT, R, b"d").expect("done")),
    Case {
        // Others work there.
        prepare: |u| {
            prepare(u);
            u.chdir(&ROOT, R, b"d").expect("a directory");
        },
        ..names("rmdir_of_others", |u, _| {
            u.rmdir(&ROOT, R, b"d").expect("done")
        })
    },
    names("rename", |u, _| {
        u.rename(&ROOT, (R, b"f"), (R, b"d/n"), 0).expect("done")
    }),
    with_heirs(names("rename_over", |u, _| {
        u.rename(&ROOT, (R, b"f"), (R, b"over"), 0).expect("done")
    })),
    names("exchange", |u, _| {
        u.rename(&ROOT, (R, b"f"), (R, b"d"), RENAME_EXCHANGE)
            .expect("done");
    }),
    names("flock", |u, _| {
        let f = u.open("f", O_RDWR).expect("an open");
        u.flock(f, LOCK_EX).expect("a lock");
        u.bind(100, f).expect("a descriptor");
    }),
    names("descriptors", |u, _| {
        let f = u.open("f", O_RDWR).expect("an open");
        u.bind(100, f).expect("a descriptor");
        u.dup(100, 101).expect("another one");
        u.unbind(100).expect("a close");
        u.unbind(101).expect("the last one");
    }),
    names("chmod", |u, _| {
        u.chmod(&ROOT, R, b"f", 0o600, 0).expect("done")
    }),
    names("setxattr", |u, _| {
        let target = Target::Path {
            base: R,
            path: b"f",
            nofollow: false,
        };
        u.setxattr(&ROOT, target, b"user.a", ConstBuf::from(&b"value"[..]), 0)
            .expect("done");
    }),
    Case {
        // Nobody has journaled what it wrote.
        ready: |u| {
            let f = u.open("f", O_RDWR).expect("an open");
            u.ftruncate(f, 8192).expect("a cut");
            u.pwrite_all(f, &[1; 4096 + 100], 8192);
            Some(f)
        },
        ..names("unlink_written", |u, _| {
            u.unlink(&ROOT, R, b"f").expect("done")
        })
    },
    names("unlink_open", |u, _| {
        let ofd = u.open("f", O_RDONLY).expect("an open");
        u.unlink(&ROOT, R, b"f").expect("done");
        u.release(ofd).expect("a close");
    }),
    case("cut", open_f, |u, f| {
        u.ftruncate(f.expect("open"), 5000).expect("done")
    }),
    case("cut_to_nothing", open_f, |u, f| {
        u.ftruncate(f.expect("open"), 0).expect("done")
    }),
    case("cut_inline", open_small, |u, f| {
        u.ftruncate(f.expect("open"), 3).expect("done")
    }),
    case("grow", open_f, |u, f| {
        u.ftruncate(f.expect("open"), 9 * 4096).expect("done")
    }),
    torn(case("append", open_append, |u, f| {
        u.write(f.expect("open"), ConstBuf::from(&[5; 6000][..]))
            .expect("done");
    })),
    torn(case("append_twice_and_sync", open_append, |u, f| {
        let f = f.expect("open");
        for _ in 0..2 {
            u.write(f, ConstBuf::from(&[5; 3000][..])).expect("done");
        }
        u.fsync(f).expect("done");
    })),
    torn(case("append_and_write_back", open_append, |u, f| {
        u.write(f.expect("open"), ConstBuf::from(&[5; 6000][..]))
            .expect("done");
        assert_eq!(u.write_back().expect("done"), 0);
    })),
    torn(case("write_to_inline", open_small, |u, f| {
        write(u, f, &[6; 40], 4)
    })),
    torn(case("write_and_close", nothing, |u, _| {
        let f = u.open("small", O_RDWR).expect("open");
        u.pwrite_all(f, &[6; 40], 4);
        u.release(f).expect("a close");
    })),
    lax(case("overwrite", open_f, |u, f| {
        write(u, f, &[7; 5000], 100)
    })),
    with_heirs(strict(case("strict_short", open_f, |u, f| {
        write(u, f, &[7; 700], 4000)
    }))),
    strict(case("strict_long", open_f, |u, f| {
        write(u, f, &[7; 8000], 100)
    })),
    torn(case("punch", open_f, |u, f| {
        let mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        u.fallocate(f.expect("open"), mode, 4000, 8000)
            .expect("done");
    })),
    values("keyspace", |u, _| {
        keyspace(u, "n");
    }),
    values("put_value", |u, _| change(u, &[("k", b"a", Some(70), 5)])),
    values("put_large_value", |u, _| {
        change(u, &[("k", b"a", Some(2000), 5)]);
    }),
    values("erase_value", |u, _| change(u, &[("k", b"b", None, 0)])),
    with_heirs(values("put_batch", |u, _| {
        change(
            u,
            &[
                ("k", b"a", Some(40), 6),
                ("l", b"c", None, 0),
                ("l", b"e", Some(50), 7),
                ("k", b"b", Some(60), 8),
                ("k", b"e", Some(10), 9),
            ],
        );
    })),
    values("drop_keyspace", |u, _| {
        u.kv_drop(&ROOT, b"k").expect("done");
    }),
    values("rename_over_keyspace", |u, _| {
        u.kv_rename(&ROOT, b"k", b"l", true).expect("done");
    }),
    values("read_value", |u, _| {
        drop(u.get("k/a"));
    }),
    values("read_large_value", |u, _| {
        drop(u.get("k/b"));
    }),
    without_room(values("read_value_full", |u, _| {
        drop(u.get("k/b"));
    })),
    values("open_value", |u, _| become_file(u, "k/a")),
    values("open_large_value", |u, _| become_file(u, "k/b")),
    without_room(values("open_value_full", |u, _| become_file(u, "k/b"))),
    Case {
        ready: |u| {
            let file = u.open("k/a", O_RDONLY).expect("a value");
            let pin = u.map_pin(file, 1, true).expect("a mapping");
            u.map_unpin(pin, false).expect("a mapping");
            Some(file)
        },
        ..with_heirs(values("open_read_value", |u, _| become_file(u, "k/a")))
    },
    Case {
        ready: |u| Some(u.open("k/b", O_RDONLY).expect("a value")),
        ..with_heirs(values("open_read_large_value", |u, _| {
            become_file(u, "k/b");
        }))
    },
    Case {
        ready: |u| Some(u.open("k/b", O_RDONLY).expect("a value")),
        ..values("put_over_read_value", |u, f| {
            change(u, &[("k", b"b", Some(5000), 6)]);
            let found = u.pread_vec(f.expect("open"), 5001, 0);
            assert!(found == [2; 5000]);
        })
    },
    values("write_to_value", |u, _| {
        let file = u.open("l/c", O_WRONLY | O_APPEND).expect("a value");
        u.pwrite_all(file, &[9; 300], 0);
        u.release(file).expect("closed");
    }),
    values("rename_over_value", |u, _| {
        let (from, to) = ((Base::Root, &b"k/b"[..]), (Base::Root, &b"l/c"[..]));
        u.rename(&ROOT, from, to, 0).expect("renamed");
    }),
    values("unlink_value", |u, _| {
        u.unlink(&ROOT, Base::Root, b"k/b").expect("a value");
    }),
    Case {
        ready: |u| {
            become_file(u, "k/a");
            become_file(u, "l/c");
            Some(u.open("k/b", O_RDWR).expect("a value"))
        },
        ..with_heirs(values("put_over_files", |u, _| {
            change(
                u,
                &[
                    ("k", b"a", Some(40), 6),
                    ("l", b"c", None, 0),
                    ("k", b"b", Some(60), 8),
                ],
            );
        }))
    },
    Case {
        ready: |u| {
            become_file(u, "k/b");
            None
        },
        ..values("erase_range_of_files", |u, _| {
            let mut changes = Changes::default();
            let k = keyspace(u, "k");
            changes.erase_range(k, b"a", Some(b"c")).expect("a range");
            u.kv_commit(changes, Durability::Durable).expect("done");
        })
    },
    Case {
        ready: |u| {
            let flags = O_TMPFILE_BIT | O_DIRECTORY | O_RDWR;
            let file = u.open("k", flags).expect("a directory");
            u.pwrite_all(file, &[4; 6000], 0);
            Some(file)
        },
        ..values("name_a_file", |u, f| {
            let (k, file) = (keyspace(u, "k"), f.expect("open"));
            u.kv_name(k, b"a", file, Durability::Durable)
                .expect("named");
        })
    },
    values("erase_range", |u, _| {
        let mut changes = Changes::default();
        let k = keyspace(u, "k");
        changes.put(u, k, b"e", b"new").expect("room");
        changes.erase_range(k, b"a", Some(b"b")).expect("a range");
        u.kv_commit(changes, Durability::Durable).expect("done");
    }),
    values("spilled_batch", |u, _| {
        // More changes of one key than the index has room for.
        let one: KeyChange = ("k", b"a", Some(10), 3);
        change(
            u,
            &[one, one, one, one, one, one, one, one, ("l", b"c", None, 0)],
        );
    }),
    with_heirs(values("put_until", |u, _| {
        put_until(
            u,
            &[(b"a", 30, LATER), (b"b", 6000, LATER + 1), (b"e", 5000, 1)],
        );
    })),
    with_heirs(Case {
        ready: |u| {
            put_until(u, &[(b"a", 30, 1), (b"b", 6000, 1)]);
            None
        },
        ..values("remove_expired", |u, _| {
            u.kv_remove_expired(10_000).expect("done");
        })
    }),
    Case {
        ready: |u| {
            put_until(u, &[(b"e", 6000, 1)]);
            None
        },
        ..values("create_where_it_expired", |u, _| {
            drop(u.open("k/e", O_CREAT | O_RDWR | O_EXCL))
        })
    },
    Case {
        ready: |u| {
            change(u, &[("k", b"a", Some(20), 1)]);
            None
        },
        ..values("view", |u, _| {
            let view = u.view().expect("a view");
            let found = u.view_get(&view, keyspace(u, "k"), b"a", &mut [0; 30]);
            assert_eq!(found.expect("a value"), Some(20));
            u.end_view(view);
        })
    },
    case("allocate", open_f, |u, f| {
        u.fallocate(f.expect("open"), 0, 8 * 4096, 8192)
            .expect("done");
    }),
];
