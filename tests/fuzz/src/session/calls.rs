//! What a program asks of the client.

use crate::input::Input;
use crate::sample::KEYSPACE;
use holdfast_client::kv::{Changes, Durability, Expected, Keyspace, Scan, View};
use holdfast_client::{
    Base, Caller, Client, DirentFormat, Flock, MapPin, OfdLink, SetTime, Target, abi,
};
use holdfast_pmem::{ConstBuf, MutBuf};
use holdfast_pool::quota::{Quota, Subject};

const CALLER: Caller<'static> = Caller {
    uid: 0,
    gid: 0,
    groups: &[],
    umask: 0o022,
    privileged: true,
    ids: None,
};
const LONG: &[u8] = &[b'n'; 180];
const PATHS: &[&[u8]] = &[
    b"new",
    b"dir/subdir/file",
    b"dir/new",
    b"second name",
    b"keyspace/k\x03",
    b"keyspace/blocks",
    b"dir",
    b"symlink",
    b".",
    LONG,
    b"keyspace",
    b"new dir",
    b"new dir/inside",
    b"dir/many 7",
    b"dir/../later",
    b"no such name",
    b"new dir/../dir/subdir",
    b"device",
];
const FLAGS: &[u32] = &[
    abi::O_RDWR,
    abi::O_RDWR | abi::O_CREAT,
    abi::O_RDWR | abi::O_CREAT | abi::O_TRUNC,
    abi::O_RDONLY,
    abi::O_RDWR | abi::O_CREAT | abi::O_APPEND,
    abi::O_RDWR | abi::O_TMPFILE_BIT | abi::O_DIRECTORY,
    abi::O_RDONLY | abi::O_DIRECTORY,
];
const LENGTHS: &[usize] = &[1, 100, 600, 4096, 5000, 40_000, 140_000];
const KEYS: &[&[u8]] = &[b"k\x01", b"k\x30", b"blocks", b"long", b"new key", b"k\x08"];
/// Entries of a scan or a directory that are looked at.
const ENTRIES_MAX: usize = 400;

/// A client and what it has open.
pub struct Calls<'a> {
    client: &'a Client,
    open: Vec<OfdLink>,
    keyspace: Option<Keyspace>,
    view: Option<View>,
    pin: Option<MapPin>,
    room: Vec<u8>,
}

impl<'a> Calls<'a> {
    pub fn new(client: &'a Client) -> Calls<'a> {
        Calls {
            client,
            open: Vec::new(),
            keyspace: None,
            view: None,
            pin: None,
            room: vec![7; LENGTHS[LENGTHS.len() - 1]],
        }
    }

    /// So that the tables have something of each kind; whether all of it could be done.
    pub fn begin(&mut self) -> bool {
        let c = self.client;
        for (path, flags) in [(0, 1), (1, 0), (9, 1), (6, 6), (4, 3)] {
            let opened = c.open(&CALLER, Base::Root, PATHS[path], FLAGS[flags], 0o644, 0);
            self.open.extend(opened.ok());
        }
        let mut all = self.open.len() == 5;
        for (fd, ofd) in self.open.iter().enumerate() {
            let written = c.write(*ofd, ConstBuf::from(&self.room[..5000]));
            // The last ones are a directory, and open for reading.
            all &= fd >= 3 || written == Ok(5000);
            let bound = c.retain(*ofd).and_then(|()| c.bind(fd as u32, *ofd));
            all &= bound.is_ok();
        }
        all &= c.mkdir(&CALLER, Base::Root, b"new dir", 0o777).is_ok();
        self.keyspace = c.keyspace(&CALLER, b"keyspace", false).ok();
        let Some(keyspace) = self.keyspace else {
            return false;
        };
        assert_eq!(keyspace.ino(), KEYSPACE);
        for (key, value) in [(&b"k\x01"[..], &b"a value"[..]), (b"new key", &[5; 3000])] {
            let put = c.kv_put(keyspace, key, value, Durability::Ordered);
            all &= put.is_ok();
        }
        all
    }

    /// Closes everything.
    pub fn end(&mut self) {
        let c = self.client;
        if let Some(view) = self.view.take() {
            c.end_view(view);
        }
        if let Some(pin) = self.pin.take() {
            let _ = c.map_unpin(pin, true);
        }
        for ofd in self.open.drain(..) {
            let _ = c.release(ofd);
        }
    }

    /// One call; errors are as good as values.
    pub fn call(&mut self, what: u8, input: &mut Input<'_>) {
        match what % 8 {
            0 => self.names(input),
            1 => self.more_names(input),
            2 | 3 => self.data(input),
            4 => self.descriptors(input),
            5 => self.attributes(input),
            6 => self.values(input),
            _ => self.views(input),
        }
    }

    fn ofd(&self, input: &mut Input<'_>) -> Option<OfdLink> {
        let nth = input.u8();
        // A number that the program was not given is one that session memory made up.
        match self.open.get(usize::from(nth)) {
            Some(ofd) => Some(*ofd),
            None if nth > 200 => OfdLink::from_raw(u32::from(nth - 200)),
            None => self.open.first().copied(),
        }
    }

    fn names(&mut self, input: &mut Input<'_>) {
        let (c, root) = (self.client, Base::Root);
        let (what, path) = (input.u8(), PATHS[input.below(PATHS.len())]);
        let other = PATHS[input.below(PATHS.len())];
        let _ = match what % 11 {
            0 => c.mkdir(&CALLER, root, path, 0o755),
            1 => c.unlink(&CALLER, root, path),
            2 => c.rmdir(&CALLER, root, path),
            3 => c.rename(&CALLER, (root, path), (root, other), 0),
            4 => c.rename(&CALLER, (root, path), (root, other), 2),
            5 => c.link(&CALLER, (root, path), (root, other), 0),
            6 => c.symlink(&CALLER, other, root, path),
            7 => c.stat(&CALLER, root, path, 0).map(drop),
            8 => c.mknod(&CALLER, root, path, 0o010_644, 0),
            9 => {
                let flags = FLAGS[input.below(FLAGS.len())];
                let opened = c.open(&CALLER, root, path, flags, 0o644, 0);
                opened.map(|ofd| self.open.push(ofd))
            }
            _ => c.truncate(&CALLER, root, path, (input.number() >> 8) as i64),
        };
    }

    fn more_names(&mut self, input: &mut Input<'_>) {
        let (c, root) = (self.client, Base::Root);
        let (what, path) = (input.u8(), PATHS[input.below(PATHS.len())]);
        let mut out = [0; 300];
        let _ = match what % 8 {
            0 => c.chdir(&CALLER, root, path),
            1 => c.getcwd(&mut out).map(drop),
            2 => c.stat(&CALLER, Base::Cwd, path, 0).map(drop),
            3 => c
                .readlink(&CALLER, root, path, MutBuf::from(&mut out[..]))
                .map(drop),
            4 => c.chdir_outside(),
            5 => c.statfs_at(&CALLER, root, path, 0).map(drop),
            6 => c.snapshot_list().map(drop),
            _ => c.access(&CALLER, root, path, 4, 0),
        };
    }

    fn data(&mut self, input: &mut Input<'_>) {
        let (what, Some(ofd)) = (input.u8(), self.ofd(input)) else {
            return;
        };
        let c = self.client;
        let len = LENGTHS[input.below(LENGTHS.len())];
        let at = (input.number() >> 4) as i64;
        let out = MutBuf::from(&mut self.room[..len]);
        let _ = match what % 12 {
            0 => c.pread(ofd, out, at),
            1 => c.pwrite(ofd, ConstBuf::from(&self.room[..len]), at),
            2 => c.read(ofd, out),
            3 => c.write(ofd, ConstBuf::from(&self.room[..len])),
            4 => c.ftruncate(ofd, at).map(|()| 0),
            5 => c
                .fallocate(ofd, u32::from(input.u8() % 4), at, len as i64)
                .map(|()| 0),
            6 => c.fsync(ofd).map(|()| 0),
            7 => c.lseek(ofd, at, u32::from(input.u8() % 5)).map(|_| 0),
            8 => self.list(ofd),
            9 => self
                .open
                .last()
                .map_or(Ok(0), |to| c.copy_range(ofd, None, *to, None, len)),
            10 => self.map(ofd, at as u64, len as u64),
            _ => c.writev(ofd, &[ConstBuf::from(&self.room[..len]); 3], Some(at), 0),
        };
    }

    fn list(&mut self, ofd: OfdLink) -> holdfast_client::Result<usize> {
        for _ in 0..ENTRIES_MAX {
            let out = MutBuf::from(&mut self.room[..1000]);
            if self.client.getdents(ofd, out, DirentFormat::Linux64)? == 0 {
                break;
            }
        }
        Ok(0)
    }

    fn map(&mut self, ofd: OfdLink, at: u64, len: u64) -> holdfast_client::Result<usize> {
        let c = self.client;
        let pin = c.map_pin(ofd, 3, true)?;
        if let Some(old) = self.pin.replace(pin) {
            c.map_unpin(old, true)?;
        }
        let (mut pieces, at) = (0, at & !4095);
        c.map_plan(pin, at, len.next_multiple_of(4096), true, &mut |_| {
            pieces += 1;
            Ok(())
        })?;
        c.map_size(pin)?;
        c.msync(pin, at, len)?;
        Ok(pieces)
    }

    fn descriptors(&mut self, input: &mut Input<'_>) {
        let c = self.client;
        let (what, fd) = (input.u8(), u32::from(input.u8()));
        let mut lock = Flock {
            kind: i16::from(input.u8() % 3),
            start: i64::from(input.u8()),
            len: i64::from(input.u8()),
            ..Flock::default()
        };
        let ofd = c.lookup(fd).or(self.ofd(input));
        let mut path = [0; 300];
        let _ = match (what % 9, ofd) {
            (0, _) => c.dup(fd, fd + 1),
            (1, _) => c.unbind(fd).map(drop),
            (2, Some(ofd)) => c.fcntl_lock(ofd, abi::F_SETLK, &mut lock),
            (3, Some(ofd)) => c.fcntl_lock(ofd, abi::F_GETLK, &mut lock),
            (4, Some(ofd)) => c.flock(ofd, 2 | 4),
            (5, Some(ofd)) => c.fstat(ofd).map(drop),
            (6, Some(ofd)) => c.path_of(ofd, &mut path).map(drop),
            (7, Some(_)) if self.open.len() > 1 => self.open.pop().map_or(Ok(()), |o| c.release(o)),
            (_, Some(ofd)) => c.setfl(ofd, abi::O_APPEND),
            _ => Ok(()),
        };
    }

    fn attributes(&mut self, input: &mut Input<'_>) {
        let (c, root) = (self.client, Base::Root);
        let (what, path) = (input.u8(), PATHS[input.below(PATHS.len())]);
        let nofollow = false;
        let target = Target::Path {
            base: root,
            path,
            nofollow,
        };
        let out = MutBuf::from(&mut self.room[..4000]);
        let value = ConstBuf::from(&[1; 900][..]);
        let _ = match what % 12 {
            0 => c.chmod(&CALLER, root, path, 0o640, 0),
            1 => c.chown(&CALLER, root, path, (Some(5), None), 0),
            2 => c.utimens(&CALLER, root, path, [SetTime::Now, SetTime::At(5)], 0),
            3 => c.getxattr(&CALLER, target, b"user.big", out).map(drop),
            4 => c.setxattr(&CALLER, target, b"user.a", value, 0),
            5 => c.listxattr(&CALLER, target, out).map(drop),
            6 => c.removexattr(&CALLER, target, b"user.a"),
            7 => c.sync(),
            8 => c.quotas().map(drop),
            9 => c.quota_remove(Subject::User(5)),
            _ => self.limit(input, path),
        };
    }

    /// Sets a quota of a user or a directory that is soon reached, or takes the latter's away.
    fn limit(&self, input: &mut Input<'_>, path: &[u8]) -> holdfast_client::Result<()> {
        let c = self.client;
        let how = input.u8();
        let subject = match how & 1 {
            0 => Subject::User(5),
            _ => c.quota_directory(&CALLER, path)?,
        };
        match how & 6 {
            0 => c.quota_remove(subject),
            _ => c.quota_set(Quota {
                subject,
                partial: false,
                bytes: u64::from(how) << 10,
                files: u64::from(how & 48),
            }),
        }
    }

    fn values(&mut self, input: &mut Input<'_>) {
        let (c, Some(keyspace)) = (self.client, self.keyspace) else {
            return;
        };
        let (what, key) = (input.u8(), KEYS[input.below(KEYS.len())]);
        let value = &self.room[..LENGTHS[input.below(LENGTHS.len())]];
        let durability = match input.u8() % 2 {
            0 => Durability::Ordered,
            _ => Durability::Durable,
        };
        let mut out = vec![0; 5000];
        let until = [1, i64::MAX][usize::from(what >> 7)];
        let _ = match what % 9 {
            0 => c.kv_get(keyspace, key, &mut out).map(drop),
            1 => c.kv_put(keyspace, key, value, durability),
            2 => c.kv_erase(keyspace, key, durability),
            3 => {
                let mut changes = Changes::default();
                let _ = changes.put(c, keyspace, key, value);
                let _ = changes.erase_range(keyspace, key, None);
                c.kv_commit(changes, durability)
            }
            4 => c.kv_sync(),
            5 => c.kv_put_until((keyspace, key), value, until, durability),
            6 => c
                .kv_swap(
                    None,
                    (keyspace, key),
                    Expected::Value(None),
                    Some((value, until)),
                    durability,
                )
                .map(drop),
            7 => c.kv_remove_expired(50),
            _ => match self.open.pop() {
                Some(ofd) => {
                    let _ = c.kv_name(keyspace, key, ofd, durability);
                    c.release(ofd)
                }
                None => Ok(()),
            },
        };
    }

    fn views(&mut self, input: &mut Input<'_>) {
        let (c, Some(keyspace)) = (self.client, self.keyspace) else {
            return;
        };
        let (what, key) = (input.u8(), KEYS[input.below(KEYS.len())]);
        if self.view.is_none() {
            self.view = c.view().ok();
        }
        let Some(view) = self.view.take() else {
            return;
        };
        let mut out = vec![0; 5000];
        match what % 4 {
            0 => _ = c.view_get(&view, keyspace, key, &mut out),
            1 => return c.end_view(view),
            _ => {
                let s = c.session();
                let mut scan = Scan::new(keyspace, b"", None, what % 4 == 2);
                for _ in 0..ENTRIES_MAX {
                    if !matches!(scan.next(s, &view), Ok(Some(_))) {
                        break;
                    }
                }
            }
        }
        self.view = Some(view);
    }
}
