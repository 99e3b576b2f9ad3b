//! The tree of files that the kernel shows.
//!
//! Invariants: the kernel keeps neither names nor attributes nor, but for mappings, content, so
//! what programs in the pool do is seen by the next call; a number of an open file is that of its
//! description in the pool.

use super::locks::Locks;
use super::nodes::{Named, Nodes, Place};
use super::shares::Shares;
use super::who;
use fuser::{FileHandle, Request};
use holdfast::{Error, FileStat, Pool, User};
use holdfast_client::Error::NotFound as Gone;
use holdfast_client::abi::{
    AT_EACCESS, AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, O_ACCMODE, O_APPEND, O_CREAT, O_DIRECTORY,
    O_DSYNC, O_EXCL, O_NOATIME, O_NOFOLLOW, O_RDONLY, O_SYNC, O_TRUNC, SEEK_SET, W_OK, X_OK,
};
use holdfast_client::{Base, Caller, Client, OfdLink, SetTime, Target};
use rustix::process::geteuid;

/// An execve(2) opens the file: the kernel's flag, which programs cannot give.
const FOR_EXECUTION: u32 = 0x20;
/// Flags of open(2) that mean something to the pool.
const KEPT: u32 = O_ACCMODE | O_APPEND | O_DSYNC | O_NOATIME | O_SYNC | O_TRUNC;

/// Calls that change nothing they are not asked to.
const ITSELF: u32 = AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW;

pub struct Tree {
    pool: Pool,
    pub nodes: Nodes,
    pub locks: Locks,
    pub shares: Shares,
    /// The pool takes this program for root, whose writes leave set-id bits.
    is_roots: bool,
}

/// What setattr changes; nothing: set-id bits are to go, by a chown that leaves the owner, or
/// before a change of content that only the kernel knows of.
#[derive(Default, PartialEq, Eq)]
pub struct Changes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub times: Option<[SetTime; 2]>,
}

/// The mode that a change of content by this user leaves, as the kernel has it: where the group may
/// not execute, its bit stays if the user is in it.
fn without_set_ids(file: &FileStat, user: &User) -> u32 {
    let is_in = user.gid == file.gid || user.groups.contains(&file.gid);
    let stays = file.mode & 0o10 == 0 && is_in;
    file.mode & !if stays { 0o4000 } else { 0o6000 }
}

/// The description that the kernel's number of an open file means.
pub fn description(file: FileHandle) -> Result<OfdLink, Error> {
    let raw = u32::try_from(file.0).ok().and_then(OfdLink::from_raw);
    raw.ok_or(Error::Pool(holdfast_client::Error::BadDescriptor))
}

impl Tree {
    /// `NotForOthers` for who does not own the pool and is not root.
    pub fn new(pool: Pool) -> Result<Tree, Error> {
        let tree = Tree {
            pool,
            nodes: Nodes::default(),
            locks: Locks::default(),
            shares: Shares::default(),
            is_roots: geteuid().is_root(),
        };
        tree.inside(|_, _| Ok(()))?;
        Ok(tree)
    }

    /// Everything that was written is durable.
    pub fn sync(&self) -> Result<(), Error> {
        self.inside(|client, _| client.sync())?;
        self.pool.sync()
    }

    /// A call as the user of the request.
    pub fn act<T>(
        &self,
        request: &Request,
        call: impl FnOnce(&Client, &Caller) -> holdfast_client::Result<T>,
    ) -> Result<T, Error> {
        self.pool.act(&who::user(request, 0), call)
    }

    /// A call that needs no rights: they were looked at when the file was opened.
    pub fn inside<T>(
        &self,
        call: impl FnOnce(&Client, &Caller) -> holdfast_client::Result<T>,
    ) -> Result<T, Error> {
        self.pool.act(&who::all_rights(), call)
    }

    /// What the name leads to; the kernel is told of it.
    pub fn look_up(&self, user: &User, dir: u64, name: &[u8]) -> Result<FileStat, Error> {
        let found = self.pool.act(user, |client, who| {
            client.stat(who, Base::Node(dir), name, AT_SYMLINK_NOFOLLOW)
        })?;
        self.nodes.found(found.ino, dir, name);
        Ok(self.pool.seen(found))
    }

    pub fn stat(&self, ino: u64) -> Result<FileStat, Error> {
        let Place { base, path } = self.nodes.place(ino);
        let stat = self.inside(|client, who| client.stat(who, base, &path, ITSELF))?;
        Ok(self.pool.seen(stat))
    }

    /// Opens what the kernel found before.
    pub fn open(&self, request: &Request, ino: u64, flags: u32) -> Result<OfdLink, Error> {
        let Place { base, path } = self.nodes.place(ino);
        let mut user = who::user(request, 0);
        if flags & FOR_EXECUTION != 0 {
            self.pool.act(&user, |client, who| {
                client.access(who, base, &path, X_OK, AT_EMPTY_PATH)
            })?;
            // Programs may be executed by who cannot read them.
            user = who::all_rights();
        }
        let kept = flags & (KEPT | O_DIRECTORY);
        if !path.is_empty() {
            let open = |client: &Client, who: &Caller| {
                client.open(who, base, &path, kept | O_NOFOLLOW, 0, 0)
            };
            return self
                .shares
                .take(request.uid(), || self.pool.act(&user, open));
        }
        let named = self.nodes.named(ino);
        let root = Named {
            dir: ino,
            name: Box::default(),
        };
        let Named { dir, name } = named.unwrap_or(root);
        let open = |client: &Client, who: &Caller| {
            let executes = flags & FOR_EXECUTION != 0;
            match client.open_node(who, ino, (dir, &name), kept) {
                Err(Gone) if !name.is_empty() && !executes => {}
                opened => return opened,
            }
            // It was replaced since it was found. Who opens the name gets what has it now, however
            // often that happens; the kernel looks once more, and then gives up.
            let opened = client.open(who, Base::Node(dir), &name, kept | O_NOFOLLOW, 0, 0);
            let opened = opened.map_err(|_| Gone)?;
            self.nodes.stand_in(ino, client.ino_of(opened)?);
            Ok(opened)
        };
        self.shares
            .take(request.uid(), || self.pool.act(&user, open))
    }

    /// Makes a file, or opens what came meanwhile.
    pub fn create(
        &self,
        user: &User,
        (dir, name): (u64, &[u8]),
        mode: u32,
        flags: u32,
    ) -> Result<(OfdLink, FileStat), Error> {
        let flags = flags & (KEPT | O_EXCL) | O_CREAT | O_NOFOLLOW;
        let open =
            |client: &Client, who: &Caller| client.open(who, Base::Node(dir), name, flags, mode, 0);
        let made = self.shares.take(user.uid, || self.pool.act(user, open))?;
        let stat = self.inside(|client, _| client.fstat(made));
        let stat = stat.inspect_err(|_| self.close(made))?;
        self.nodes.found(stat.ino, dir, name);
        Ok((made, self.pool.seen(stat)))
    }

    /// Makes a change to content. The pool takes this program for root where it is, so set-id bits
    /// are taken here from a file that somebody else changes.
    pub fn store<T>(
        &self,
        request: &Request,
        (base, path): (Base, &[u8]),
        change: impl FnOnce(&Client, &Caller) -> holdfast_client::Result<T>,
    ) -> Result<T, Error> {
        self.inside(|client, who| {
            let done = change(client, who)?;
            if self.is_roots && request.uid() != 0 {
                let file = self.pool.seen(client.stat(who, base, path, ITSELF)?);
                if file.mode & 0o6000 != 0 {
                    let left = without_set_ids(&file, &who::user(request, 0));
                    client.chmod(who, base, path, left & 0o7777, ITSELF)?;
                }
            }
            Ok(done)
        })
    }

    /// Changes attributes, and tells them.
    pub fn change(
        &self,
        request: &Request,
        (ino, open): (u64, Option<OfdLink>),
        changes: &Changes,
    ) -> Result<FileStat, Error> {
        let user = who::user(request, 0);
        let Place { base, path } = self.nodes.place(ino);
        if let Some(size) = changes.size {
            let size = i64::try_from(size).unwrap_or(i64::MAX);
            match open {
                Some(open) => self.store(request, (Base::Ofd(open), b""), |client, _| {
                    client.ftruncate(open, size)
                })?,
                None => {
                    let cut =
                        |client: &Client, who: &Caller| client.truncate(who, base, &path, size);
                    self.pool.act(&user, cut)?;
                    self.store(request, (base, &path), |_, _| Ok(()))?;
                }
            }
        }
        let mut user = user;
        if *changes == Changes::default() && self.may_write(&user, (base, &path)) {
            user = who::all_rights();
        }
        let owner = self.pool.owner_of(changes.uid, changes.gid);
        self.pool.act(&user, |client, who| {
            if owner != (None, None) || *changes == Changes::default() {
                client.chown(who, base, &path, owner, ITSELF)?;
            }
            if let Some(mode) = changes.mode {
                client.chmod(who, base, &path, mode & 0o7777, ITSELF)?;
            }
            if let Some(times) = changes.times {
                client.utimens(who, base, &path, times, ITSELF)?;
            }
            Ok(())
        })?;
        match open {
            Some(open) => {
                let stat = self.inside(|client, _| client.fstat(open))?;
                Ok(self.pool.seen(stat))
            }
            None => self.stat(ino),
        }
    }

    fn may_write(&self, user: &User, (base, path): (Base, &[u8])) -> bool {
        let flags = ITSELF | AT_EACCESS;
        let may = |client: &Client, who: &Caller| client.access(who, base, path, W_OK, flags);
        self.pool.act(user, may).is_ok()
    }

    /// A call on the attributes that have names.
    pub fn with_attributes<T>(
        &self,
        request: &Request,
        ino: u64,
        call: impl FnOnce(&Client, &Caller, Target) -> holdfast_client::Result<T>,
    ) -> Result<T, Error> {
        let Place { base, path } = self.nodes.place(ino);
        let target = Target::Path {
            base,
            path: &path,
            nofollow: true,
        };
        self.act(request, |client, who| call(client, who, target))
    }

    pub fn close(&self, open: OfdLink) {
        self.shares.give_back(open);
        let _ = self.inside(|client, _| client.release(open));
    }

    /// Directories are read on from `at`.
    pub fn go_to(&self, open: OfdLink, at: u64) -> Result<(), Error> {
        let at = i64::try_from(at).unwrap_or(i64::MAX);
        self.inside(|client, _| client.lseek(open, at, SEEK_SET).map(drop))
    }

    /// A directory, to be read.
    pub fn open_directory(&self, request: &Request, ino: u64) -> Result<OfdLink, Error> {
        self.open(request, ino, O_RDONLY | O_DIRECTORY)
    }

    /// Whose calls the pool is asked for.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}
