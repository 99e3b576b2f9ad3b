//! Random operations on a pool and on a tmpfs directory, one after the other with the same
//! arguments and credentials: results, errnos and what is there afterwards must be the same. The
//! kernel's tmpfs is the model; the pool is reopened in between and checked in the end.

mod common;

use common::{Fixture, User};
use holdfast_client::{Base, Caller, Error, OfdLink, SetTime, Stat, abi::*};
use holdfast_pmem::{ConstBuf, MutBuf};
use holdfast_pool::format::superblock::Consistency;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom};
use rustix::io::Errno;
use rustix::thread::{Gid, Uid};
use std::path::PathBuf;

const POOL: u64 = 256 << 20;
const CALLERS: [Caller<'static>; 4] = [
    Caller {
        uid: 0,
        gid: 0,
        groups: &[],
        umask: 0o022,
        privileged: true,
        ids: None,
    },
    Caller {
        uid: 0,
        gid: 0,
        groups: &[],
        umask: 0o022,
        privileged: true,
        ids: None,
    },
    Caller {
        uid: 1000,
        gid: 1000,
        groups: &[],
        umask: 0o022,
        privileged: false,
        ids: None,
    },
    Caller {
        uid: 1001,
        gid: 1001,
        groups: &[1000],
        umask: 0o022,
        privileged: false,
        ids: None,
    },
];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    fn path(&mut self) -> String {
        let mut path = String::new();
        let parts = self.of(&[1, 1, 1, 2, 2, 3]);
        for i in 0..parts {
            if i > 0 {
                path.push('/');
            }
            path += self.of(&["a", "b", "c", "d", "e", "f", "longer-name-of-a-file"]);
        }
        if self.one_in(25) {
            path += self.of(&["/", "/.", "/..", "//", "/./"]);
        }
        if self.one_in(25) {
            path = self
                .of(&["./", "../w/", ".", "..", "../../w/w/"])
                .to_string()
                + &path;
        }
        path
    }

    fn bytes(&mut self) -> Vec<u8> {
        let n = match self.below(8) {
            0 => 0,
            1..=3 => self.below(600),
            4 | 5 => self.below(9000),
            _ => self.below(150_000),
        };
        let seed = self.next();
        (0..n)
            .map(|i| ((seed >> (i % 40)) as u8) ^ (i as u8))
            .collect()
    }

    fn offset(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => self.below(3) * 4096,
            2 | 3 => self.below(600),
            4 | 5 => self.below(20_000),
            6 => self.below(400_000),
            _ => self.below(8 << 20),
        }
    }
}

/// The same base directory three levels down in both worlds.
struct World {
    fixture: Fixture,
    user: Option<User>,
    base: Option<OfdLink>,
    model_dir: PathBuf,
    model: OwnedFd,
    files: Vec<(OfdLink, OwnedFd, String)>,
    log: Vec<String>,
}

fn errno_of<T>(result: Result<T, Error>) -> Result<T, i32> {
    result.map_err(|e| e.errno())
}

fn model_errno<T>(result: Result<T, Errno>) -> Result<T, i32> {
    result.map_err(|e| e.raw_os_error())
}

/// This thread acts as `caller` while `f` runs.
fn as_caller<T>(caller: &Caller, f: impl FnOnce() -> T) -> T {
    if caller.uid == 0 {
        return f();
    }
    let keep = (Uid::ROOT, Gid::ROOT);
    let groups: Vec<Gid> = caller.groups.iter().map(|g| Gid::from_raw(*g)).collect();
    let (uid, gid) = (Uid::from_raw(caller.uid), Gid::from_raw(caller.gid));
    rustix::thread::set_thread_groups(&groups).unwrap();
    rustix::thread::set_thread_res_gid(keep.1, gid, keep.1).unwrap();
    rustix::thread::set_thread_res_uid(keep.0, uid, keep.0).unwrap();
    let result = f();
    rustix::thread::set_thread_res_uid(keep.0, Uid::ROOT, keep.0).unwrap();
    rustix::thread::set_thread_res_gid(keep.1, Gid::ROOT, keep.1).unwrap();
    rustix::thread::set_thread_groups(&[]).unwrap();
    result
}

fn enter_user(fixture: &Fixture) -> (User, OfdLink) {
    let user = fixture.user();
    let root = &CALLERS[0];
    for dir in ["w", "w/w", "w/w/w"] {
        match user.mkdir(
            &Caller { umask: 0, ..*root },
            Base::Root,
            dir.as_bytes(),
            0o777,
        ) {
            Ok(()) | Err(Error::Exists) => {}
            Err(e) => panic!("{e}"),
        }
    }
    let base = user.open("w/w/w", O_RDONLY | O_DIRECTORY).unwrap();
    (user, base)
}

impl World {
    fn new(name: &str, mode: Consistency) -> World {
        rustix::process::umask(Mode::from_raw_mode(0o022));
        let fixture = Fixture::with(POOL, mode);
        let (user, base) = enter_user(&fixture);
        let model_dir = PathBuf::from(format!("/dev/shm/hf-model-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&model_dir);
        let deep = model_dir.join("w/w/w");
        std::fs::create_dir_all(&deep).unwrap();
        for dir in ["w", "w/w", "w/w/w"] {
            let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(model_dir.join(dir), all).unwrap();
        }
        let model = fs::open(&deep, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (files, log) = (Vec::new(), Vec::new());
        World {
            fixture,
            user: Some(user),
            base: Some(base),
            model_dir,
            model,
            files,
            log,
        }
    }

    fn user(&self) -> &User {
        self.user.as_ref().unwrap()
    }

    fn base(&self) -> Base {
        Base::Ofd(self.base.unwrap())
    }

    fn same<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: String,
        ours: Result<T, i32>,
        model: Result<T, i32>,
    ) -> Option<T> {
        self.log.push(format!(
            "{what} -> {}",
            match &model {
                Ok(_) => "ok".into(),
                Err(e) => format!("errno {e}"),
            }
        ));
        if std::env::var_os("HF_TRACE").is_some() {
            eprintln!("{}", self.log[self.log.len() - 1]);
        }
        if ours != model {
            let from = self.log.len().saturating_sub(60);
            for line in &self.log[from..] {
                eprintln!("{line}");
            }
            let cut = |r: &Result<T, i32>| format!("{r:?}").chars().take(300).collect::<String>();
            panic!("{what}: pool {} model {}", cut(&ours), cut(&model));
        }
        model.ok()
    }

    fn open(&mut self, r: &mut Random, c: &Caller) {
        let path = r.path();
        let mut flags = r.of(&[O_RDONLY, O_RDWR, O_RDWR, O_WRONLY]);
        for (n, flag) in [
            (2, O_CREAT),
            (8, O_EXCL),
            (8, O_TRUNC),
            (6, O_APPEND),
            (20, O_DIRECTORY),
            (20, O_NOFOLLOW),
            (30, O_PATH),
        ] {
            flags |= if r.one_in(n) { flag } else { 0 };
        }
        if flags & O_CREAT != 0 {
            // In sticky directories the kernel says EACCES to others' links before it says ELOOP.
            flags &= !O_NOFOLLOW;
        }
        if r.one_in(40) {
            flags = O_RDWR | O_DIRECTORY | O_TMPFILE_BIT;
        }
        let mode = r.of(&[0o644, 0o666, 0o600, 0o777, 0o444, 0o6755]);
        let base = self.base();
        let client = &self.user().client;
        let ours = as_caller(c, || client.open(c, base, path.as_bytes(), flags, mode, 0));
        let ours = errno_of(ours);
        let model = as_caller(c, || {
            let flags = OFlags::from_bits_retain(flags);
            fs::openat(&self.model, &path, flags, Mode::from_raw_mode(mode))
        });
        let model = model_errno(model);
        let what = format!("open {path} {flags:o} {mode:o} as {}", c.uid);
        self.same(
            what,
            ours.map(|_| ()),
            model.as_ref().map(|_| ()).map_err(|e| *e),
        );
        if let (Ok(ofd), Ok(fd)) = (ours, model) {
            self.files.push((ofd, fd, path));
        }
        if self.files.len() > 12 {
            self.close(r);
        }
    }

    fn close(&mut self, r: &mut Random) {
        if self.files.is_empty() {
            return;
        }
        let i = r.below(self.files.len() as u64) as usize;
        let (ofd, _, path) = self.files.swap_remove(i);
        self.log.push(format!("close #{} {path}", ofd.raw()));
        self.user().release(ofd).unwrap();
    }

    fn on_file(&mut self, r: &mut Random) {
        if self.files.is_empty() {
            return;
        }
        let i = r.below(self.files.len() as u64) as usize;
        let (ofd, fd, path) = &self.files[i];
        let (ofd, fd, path) = (*ofd, fd.try_clone().unwrap(), path.clone());
        let at = r.offset();
        let path = format!("#{} {path}", ofd.raw());
        match r.below(12) {
            0 | 1 => {
                let bytes = r.bytes();
                let ours = self
                    .user()
                    .pwrite(ofd, ConstBuf::from(&bytes[..]), at as i64);
                let model = rustix::io::pwrite(&fd, &bytes, at);
                let what = format!("pwrite {path} {} at {at}", bytes.len());
                self.same(what, errno_of(ours), model_errno(model));
            }
            2 | 3 => {
                let bytes = r.bytes();
                let ours = self.user().write(ofd, ConstBuf::from(&bytes[..]));
                let model = rustix::io::write(&fd, &bytes);
                self.same(
                    format!("write {path} {}", bytes.len()),
                    errno_of(ours),
                    model_errno(model),
                );
            }
            4..=6 => self.read(r, ofd, &fd, &path, at),
            7 => self.seek(r, ofd, &fd, &path, at),
            8 => {
                let ours = errno_of(self.user().ftruncate(ofd, at as i64));
                let model = model_errno(fs::ftruncate(&fd, at));
                self.same(format!("ftruncate {path} {at}"), ours, model);
            }
            9 => self.fallocate(r, ofd, &fd, &path, at),
            10 => {
                let ours = errno_of(self.user().fsync(ofd));
                self.same(format!("fsync {path}"), ours, model_errno(fs::fsync(&fd)));
            }
            _ => {
                let ours = errno_of(self.user().fstat(ofd)).map(|s| shown(&s));
                let model = model_errno(fs::fstat(&fd)).map(|s| model_shown(&s));
                self.same(format!("fstat {path}"), ours, model);
            }
        }
    }

    fn read(&mut self, r: &mut Random, ofd: OfdLink, fd: &OwnedFd, path: &str, at: u64) {
        let n = r.bytes().len();
        let (mut a, mut b) = (vec![1; n], vec![1; n]);
        let (what, ours, model) = if r.one_in(3) {
            let ours = self.user().read(ofd, MutBuf::from(&mut a[..]));
            (
                format!("read {path} {n}"),
                ours,
                rustix::io::read(fd, &mut b[..]),
            )
        } else {
            let ours = self.user().pread(ofd, MutBuf::from(&mut a[..]), at as i64);
            let model = rustix::io::pread(fd, &mut b[..], at);
            (format!("pread {path} {n} at {at}"), ours, model)
        };
        self.same(what, errno_of(ours), model_errno(model));
        self.same_bytes(path, at, &a, &b);
    }

    fn same_bytes(&mut self, path: &str, at: u64, ours: &[u8], model: &[u8]) {
        let different = ours.iter().zip(model).position(|(a, b)| a != b);
        let result = different.map_or(Ok(()), |i| Err(i as i32));
        self.same(format!("bytes of {path} from {at}"), result, Ok(()));
    }

    fn seek(&mut self, r: &mut Random, ofd: OfdLink, fd: &OwnedFd, path: &str, at: u64) {
        let (whence, pos) = match r.below(4) {
            0 => (SEEK_SET, SeekFrom::Start(at)),
            1 => (SEEK_CUR, SeekFrom::Current(at as i64 - 500)),
            _ => (SEEK_END, SeekFrom::End(at as i64 - 500)),
        };
        let given = if whence == SEEK_SET {
            at as i64
        } else {
            at as i64 - 500
        };
        if fs::fstat(fd).unwrap().st_mode & 0o170000 == 0o040000 {
            return;
        }
        let ours = errno_of(self.user().lseek(ofd, given, whence));
        let model = model_errno(fs::seek(fd, pos));
        self.same(format!("lseek {path} {given} {whence}"), ours, model);
    }

    fn fallocate(&mut self, r: &mut Random, ofd: OfdLink, fd: &OwnedFd, path: &str, at: u64) {
        let mode = r.of(&[
            0,
            FALLOC_FL_KEEP_SIZE,
            FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            FALLOC_FL_PUNCH_HOLE,
        ]);
        let len = r.below(40_000);
        let is_file = fs::fstat(fd).unwrap().st_mode & 0o170000 == 0o100000;
        if !is_file {
            return;
        }
        let ours = errno_of(self.user().fallocate(ofd, mode, at as i64, len as i64));
        let flags = FallocateFlags::from_bits_retain(mode);
        let model = model_errno(fs::fallocate(fd, flags, at, len));
        self.same(format!("fallocate {path} {mode} {at} {len}"), ours, model);
    }

    fn on_name(&mut self, r: &mut Random, c: &Caller) {
        match r.below(14) {
            kind @ 0..=9 => self.change_name(r, c, kind),
            kind => self.change_attributes(r, c, kind),
        }
    }

    fn change_name(&mut self, r: &mut Random, c: &Caller, kind: u64) {
        let (path, other) = (r.path(), r.path());
        let (p, o) = (path.as_bytes(), other.as_bytes());
        let base = self.base();
        let client = &self.user.as_ref().unwrap().client;
        let dir = self.model.as_fd();
        let as_c = |f: &dyn Fn() -> rustix::io::Result<()>| model_errno(as_caller(c, f));
        let mode = r.of(&[0o755, 0o777, 0o700, 0o1777, 0o2775, 0o555]);
        let bits = Mode::from_raw_mode(mode);
        let (what, ours, model) = match kind {
            0 | 1 => (
                format!("mkdir {path} {mode:o}"),
                client.mkdir(c, base, p, mode),
                as_c(&|| fs::mkdirat(dir, &path, bits)),
            ),
            2 => (
                format!("rmdir {path}"),
                client.rmdir(c, base, p),
                as_c(&|| fs::unlinkat(dir, &path, AtFlags::REMOVEDIR)),
            ),
            3 | 4 => (
                format!("unlink {path}"),
                client.unlink(c, base, p),
                as_c(&|| fs::unlinkat(dir, &path, AtFlags::empty())),
            ),
            5..=7 => {
                let flags = r.of(&[0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE]);
                let renames = RenameFlags::from_bits_retain(flags);
                (
                    format!("rename {path} {other} {flags}"),
                    client.rename(c, (base, p), (base, o), flags),
                    as_c(&|| fs::renameat_with(dir, &path, dir, &other, renames)),
                )
            }
            8 => {
                let flags = r.of(&[0, AT_SYMLINK_FOLLOW]);
                let at = AtFlags::from_bits_retain(flags);
                (
                    format!("link {path} {other} {flags}"),
                    client.link(c, (base, p), (base, o), flags),
                    as_c(&|| fs::linkat(dir, &path, dir, &other, at)),
                )
            }
            _ => {
                let target = r.of(&["a", "b", "a/b", "c/d", ".", "missing", "a/", "d/../d", "f"]);
                (
                    format!("symlink {target} {path}"),
                    client.symlink(c, target.as_bytes(), base, p),
                    as_c(&|| fs::symlinkat(target, dir, &path)),
                )
            }
        };
        self.same(format!("{what} as {}", c.uid), errno_of(ours), model);
    }

    fn change_attributes(&mut self, r: &mut Random, c: &Caller, kind: u64) {
        let path = r.path();
        let p = path.as_bytes();
        let base = self.base();
        let client = &self.user.as_ref().unwrap().client;
        let dir = self.model.as_fd();
        let as_c = |f: &dyn Fn() -> rustix::io::Result<()>| model_errno(as_caller(c, f));
        let mode = r.of(&[0o755, 0o777, 0o700, 0o1777, 0o2775, 0o555]);
        let bits = Mode::from_raw_mode(mode);
        let (what, ours, model) = match kind {
            10 => (
                format!("chmod {path} {mode:o}"),
                client.chmod(c, base, p, mode, 0),
                as_c(&|| fs::chmodat(dir, &path, bits, AtFlags::empty())),
            ),
            11 => {
                let id = |n: u64| (n < 3).then_some([0, 1000, 1001][n.min(2) as usize]);
                let owner = (id(r.below(4)), id(r.below(4)));
                let ids = (owner.0.map(Uid::from_raw), owner.1.map(Gid::from_raw));
                (
                    format!("chown {path} {owner:?}"),
                    client.chown(c, base, p, owner, AT_SYMLINK_NOFOLLOW),
                    as_c(&|| fs::chownat(dir, &path, ids.0, ids.1, AtFlags::SYMLINK_NOFOLLOW)),
                )
            }
            12 => {
                let size = r.offset();
                let ours = as_caller(c, || client.truncate(c, base, p, size as i64));
                let full = format!(
                    "/proc/self/fd/{}/{path}",
                    std::os::fd::AsRawFd::as_raw_fd(&dir)
                );
                (
                    format!("truncate {path} {size}"),
                    ours,
                    as_c(&|| truncate(&full, size)),
                )
            }
            _ => {
                let time = r.of(&[SetTime::Omit, SetTime::At(5_000_000_007), SetTime::At(9)]);
                (
                    format!("utimens {path} {time:?}"),
                    client.utimens(c, base, p, [time, SetTime::At(77_000_000_001)], 0),
                    as_c(&|| fs::utimensat(dir, &path, &stamps(time), AtFlags::empty())),
                )
            }
        };
        self.same(format!("{what} as {}", c.uid), errno_of(ours), model);
    }

    /// The same tree on both sides, by name, attribute and byte.
    fn compare(&mut self) {
        let mut open = vec![String::from(".")];
        while let Some(dir) = open.pop() {
            let full = format!("w/w/w/{dir}");
            let mut ours = self.user().names(&full);
            ours.retain(|n| n != "." && n != "..");
            let model = self.model_dir.join("w/w/w").join(&dir);
            let entries = std::fs::read_dir(model).unwrap();
            let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            ours.sort();
            names.sort();
            self.same(format!("names of {dir}"), Ok(ours), Ok(names.clone()));
            for name in names {
                let path = format!("{dir}/{name}");
                if self.compare_object(&path) == 0o040000 {
                    open.push(path);
                }
            }
        }
    }

    fn compare_object(&mut self, path: &str) -> u32 {
        let full = format!("w/w/w/{path}");
        let host = self.model_dir.join(&full);
        let nofollow = AT_SYMLINK_NOFOLLOW;
        let ours = self
            .user()
            .stat(&CALLERS[0], Base::Root, full.as_bytes(), nofollow);
        let model = fs::lstat(&host).unwrap();
        let kind = model.st_mode & 0o170000;
        self.same(
            format!("stat {path}"),
            errno_of(ours).map(|s| shown(&s)),
            Ok(model_shown(&model)),
        );
        if kind == 0o100000 {
            let ours = self.user().get(&full);
            let model = std::fs::read(&host).unwrap();
            self.same(format!("length of {path}"), Ok(ours.len()), Ok(model.len()));
            self.same_bytes(path, 0, &ours, &model);
        }
        if kind == 0o120000 {
            let mut target = [0; 100];
            let to = MutBuf::from(&mut target[..]);
            let n = self
                .user()
                .readlink(&CALLERS[0], Base::Root, full.as_bytes(), to)
                .unwrap();
            let model = std::fs::read_link(&host).unwrap();
            let model = model.to_str().unwrap().as_bytes().to_vec();
            self.same(
                format!("target of {path}"),
                Ok(target[..n].to_vec()),
                Ok(model),
            );
        }
        kind
    }

    fn reopen(&mut self) {
        self.log.push("reopen".into());
        for (ofd, ..) in std::mem::take(&mut self.files) {
            self.user().release(ofd).unwrap();
        }
        let user = self.user.take().unwrap();
        user.release(self.base.take().unwrap()).unwrap();
        holdfast_client::slots::exit(user.session(), true);
        drop(user);
        self.fixture.stop();
        self.fixture.start();
        let (user, base) = enter_user(&self.fixture);
        (self.user, self.base) = (Some(user), Some(base));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.model_dir);
    }
}

fn truncate(path: &str, size: u64) -> rustix::io::Result<()> {
    // rustix has no truncate(2); opening for writing gives the same errno but for directories.
    match fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => fs::ftruncate(&fd, size),
        Err(e) => Err(e),
    }
}

fn stamps(atime: SetTime) -> fs::Timestamps {
    let spec = |t| match t {
        SetTime::Now => fs::Timespec {
            tv_sec: 0,
            tv_nsec: fs::UTIME_NOW,
        },
        SetTime::Omit => fs::Timespec {
            tv_sec: 0,
            tv_nsec: fs::UTIME_OMIT,
        },
        SetTime::At(ns) => fs::Timespec {
            tv_sec: ns / 1_000_000_000,
            tv_nsec: ns % 1_000_000_000,
        },
    };
    let last_modification = spec(SetTime::At(77_000_000_001));
    fs::Timestamps {
        last_access: spec(atime),
        last_modification,
    }
}

/// Type and mode, links, owner, and size (of a directory only whether it is one).
type Shown = (u32, u32, u32, u32, u64);

fn shown(s: &Stat) -> Shown {
    let size = if s.mode & S_IFMT == S_IFDIR {
        0
    } else {
        s.size
    };
    (s.mode, s.nlink, s.uid, s.gid, size)
}

fn model_shown(s: &fs::Stat) -> Shown {
    let size = if s.st_mode & 0o170000 == 0o040000 {
        0
    } else {
        s.st_size as u64
    };
    (s.st_mode, s.st_nlink as u32, s.st_uid, s.st_gid, size)
}

fn run(name: &str, mode: Consistency, seed: u64, steps: u64, callers: usize) {
    let mut r = Random(seed | 1);
    let mut world = World::new(name, mode);
    for step in 1..=steps {
        let c = CALLERS[r.below(callers as u64) as usize];
        match r.below(10) {
            0 | 1 => world.open(&mut r, &c),
            2..=5 => world.on_file(&mut r),
            6 => world.close(&mut r),
            _ => world.on_name(&mut r, &c),
        }
        if step % 500 == 0 {
            world.compare();
        }
        if step % 2000 == 0 {
            world.reopen();
            world.compare();
        }
    }
    world.compare();
}

fn seed() -> u64 {
    std::env::var("HF_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(20)
}

fn steps() -> u64 {
    std::env::var("HF_STEPS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(6000)
}

#[test]
fn root_sees_the_same_as_on_tmpfs() {
    run("root", Consistency::Posix, seed(), steps(), 1);
}

#[test]
fn strict_and_sync_pools_are_the_same_as_tmpfs() {
    run("sync", Consistency::Sync, seed() + 2, steps() / 2, 1);
    run("strict", Consistency::Strict, seed() + 3, steps() / 2, 1);
}

#[test]
fn others_see_the_same_as_on_tmpfs() {
    if !rustix::process::geteuid().is_root() {
        // Only root can act as somebody else.
        return;
    }
    run(
        "others",
        Consistency::Posix,
        seed() + 1,
        steps(),
        CALLERS.len(),
    );
}
