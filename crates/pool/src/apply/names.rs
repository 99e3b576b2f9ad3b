//! Records about names: create, link, unlink, rename.
//!
//! Invariants:
//!  * Directories form a tree: each has one name, and going up from any of them ends at the root.
//!  * A directory's `entries` is the number of its names; its `nlink` is 2 plus one for each
//!    subdirectory. Any other object's `nlink` is the number of its names.

use super::{
    Applier, DEPTH_MAX, Failure, Grants, INO_MAX, InodeBuf, Reject, Result, Store, Why, ensure,
};
use crate::journal::{
    CREATE_ORPHAN, DROP_VALUES, KEEP_ORPHAN, PROJECT_SHIFT, RENAME_EXCHANGE, Record,
};
use crate::layout::dirent::{self, Dirent, Found};
use crate::layout::inode::{
    InodeRecord, KEYSPACE, PROJECT_MAX, TAIL_MAX, TARGET_IN_XATTRS, TYPE_BLOCK, TYPE_CHAR,
    TYPE_DIR, TYPE_FILE, TYPE_MASK, TYPE_SYMLINK, is_legal_mode,
};
use crate::layout::{DIRENTS, LINK_MAX, ROOT_INO, TARGET_MAX, is_legal_name};

const DT_DIR: u8 = 4;

/// A checked rename: where the names are.
struct Move<'a> {
    old_parent: u64,
    new_parent: u64,
    ino: u64,
    /// Entry that goes (or takes the other object).
    old: Found,
    /// Entry that is replaced or exchanged.
    new: Option<Found>,
    /// Cookie of the new entry.
    cookie: u64,
    old_name: &'a [u8],
    new_name: &'a [u8],
    flags: u32,
    time: i64,
}

impl<S: Store, G: Grants> Applier<'_, S, G> {
    pub(super) fn create(&mut self, record: &Record<'_>) -> Result<(), S> {
        let Record::Create {
            parent,
            ino,
            mode,
            uid,
            gid,
            flags,
            rdev,
            time,
            name,
            target,
        } = *record
        else {
            unreachable!("{record:?} creates nothing");
        };
        self.check_new_ino(ino)?;
        check_new_object(ino, mode, rdev, target)?;
        let project = (flags >> PROJECT_SHIFT) as u16;
        let flags = flags & ((1 << PROJECT_SHIFT) - 1);
        let known = flags & !CREATE_ORPHAN == 0 && project <= PROJECT_MAX;
        ensure(known, ino, Why::Flags)?;
        let is_dir = mode & TYPE_MASK == TYPE_DIR;
        let (atime, mtime, ctime, btime) = (time, time, time, time);
        let mut new = InodeRecord {
            mode,
            uid,
            gid,
            rdev,
            atime,
            mtime,
            ctime,
            btime,
            project,
            nlink: 1,
            size: target.len() as u64,
            ..InodeRecord::default()
        };
        if flags & CREATE_ORPHAN != 0 {
            ensure(
                mode & TYPE_MASK == TYPE_FILE && name.is_empty(),
                ino,
                Why::Flags,
            )?;
            new.nlink = 0;
            self.add_orphan(ino)?;
        } else {
            let cookie = self.check_new_name(parent, name)?;
            let entry = Dirent {
                ino,
                kind: new.kind(),
                name,
            };
            self.put_entry(parent, cookie, &entry)?;
            self.change_entries(parent, 1, i32::from(is_dir), time)?;
        }
        if is_dir {
            (new.nlink, new.parent, new.tail) = (2, parent, name);
        }
        if target.len() <= TAIL_MAX {
            new.tail = if is_dir { new.tail } else { target };
        } else {
            new.flags = TARGET_IN_XATTRS;
            self.put_chunks(ino, &[], target)?;
        }
        self.put_inode(ino, &new)?;
        self.count_new(mode);
        self.store.set_next_ino(self.store.next_ino().max(ino + 1));
        Ok(())
    }

    pub(super) fn check_new_ino(&self, ino: u64) -> Result<(), S> {
        let end = self
            .store
            .next_ino()
            .saturating_add(self.ino_window)
            .min(INO_MAX);
        ensure(ino > ROOT_INO && ino < end, ino, Why::NumberTooHigh)?;
        ensure(!self.exists(ino)?, ino, Why::NumberInUse)
    }

    pub(super) fn link(&mut self, parent: u64, ino: u64, time: i64, name: &[u8]) -> Result<(), S> {
        let mut buf = InodeBuf::default();
        let mut target = self.live(ino, &mut buf)?;
        ensure(!target.is_dir(), ino, Why::IsADirectory)?;
        ensure(target.nlink < LINK_MAX, ino, Why::TooManyNames)?;
        let cookie = self.check_new_name(parent, name)?;
        if target.nlink == 0 {
            self.erase_orphan(ino)?;
        }
        target.nlink += 1;
        target.ctime = time;
        self.put_inode(ino, &target)?;
        self.put_entry(
            parent,
            cookie,
            &Dirent {
                ino,
                kind: target.kind(),
                name,
            },
        )?;
        self.change_entries(parent, 1, 0, time)
    }

    pub(super) fn unlink(
        &mut self,
        parent: u64,
        ino: u64,
        flags: u32,
        time: i64,
        name: &[u8],
    ) -> Result<(), S> {
        ensure(flags & !(KEEP_ORPHAN | DROP_VALUES) == 0, ino, Why::Flags)?;
        self.directory(parent, &mut InodeBuf::default())?;
        let found = self.entry(parent, name, ino)?;
        self.check_values(ino, flags)?;
        let mut buf = InodeBuf::default();
        let target = self.live(ino, &mut buf)?;
        ensure(!target.is_dir() || target.entries == 0, ino, Why::NotEmpty)?;
        self.drop_values(ino, flags)?;
        self.erase_entry(parent, found.cookie)?;
        self.change_entries(parent, -1, -i32::from(target.is_dir()), time)?;
        self.drop_name(ino, flags & KEEP_ORPHAN != 0, time)
    }

    pub(super) fn rename(&mut self, record: &Record<'_>) -> Result<(), S> {
        let m = self.check_rename(record)?;
        if m.flags & RENAME_EXCHANGE != 0 {
            self.exchange(&m)
        } else {
            if let Some(replaced) = &m.new {
                self.check_values(replaced.ino, m.flags)?;
                self.drop_values(replaced.ino, m.flags)?;
            }
            self.displace(&m)
        }
    }

    fn check_rename<'r>(&self, record: &Record<'r>) -> Result<Move<'r>, S> {
        let Record::Rename {
            old_parent,
            new_parent,
            ino,
            replaced,
            flags,
            time,
            old_name,
            new_name,
        } = *record
        else {
            return Err(Reject::new(0, Why::Flags).into());
        };
        ensure(
            flags & !(KEEP_ORPHAN | RENAME_EXCHANGE | DROP_VALUES) == 0,
            ino,
            Why::Flags,
        )?;
        let replaces = replaced != 0 && flags & RENAME_EXCHANGE == 0;
        ensure(flags & DROP_VALUES == 0 || replaces, ino, Why::Flags)?;
        ensure(is_legal_name(new_name), ino, Why::IllegalName)?;
        ensure(ino != replaced, ino, Why::NameExists)?;
        self.directory(old_parent, &mut InodeBuf::default())?;
        self.directory(new_parent, &mut InodeBuf::default())?;
        let old = self.entry(old_parent, old_name, ino)?;
        let (new, free) =
            dirent::search(&*self.store, new_parent, new_name).map_err(Failure::Store)?;
        ensure(
            new.map_or(0, |f| f.ino) == replaced,
            new_parent,
            Why::OtherObject,
        )?;
        let full = Reject::new(new_parent, Why::HashFull);
        let cookie = new.map(|f| f.cookie).or(free).ok_or(full)?;
        let m = Move {
            old_parent,
            new_parent,
            ino,
            old,
            new,
            cookie,
            old_name,
            new_name,
            flags,
            time,
        };
        self.check_kinds(&m)?;
        Ok(m)
    }

    /// What is exchanged must exist, what is replaced must fit, and no directory may come to lie
    /// below itself.
    fn check_kinds(&self, m: &Move<'_>) -> Result<(), S> {
        if m.old.kind == DT_DIR {
            self.check_outside(m.ino, m.old_parent, m.new_parent)?;
        }
        let Some(new) = m.new else {
            return ensure(m.flags & RENAME_EXCHANGE == 0, m.ino, Why::NoName);
        };
        if m.flags & RENAME_EXCHANGE != 0 {
            if new.kind == DT_DIR {
                self.check_outside(new.ino, m.new_parent, m.old_parent)?;
            }
            return Ok(());
        }
        let mut buf = InodeBuf::default();
        let replaced = self.live(new.ino, &mut buf)?;
        match (m.old.kind == DT_DIR, replaced.is_dir()) {
            (true, false) => ensure(false, new.ino, Why::NotADirectory),
            (false, true) => ensure(false, new.ino, Why::IsADirectory),
            _ => ensure(replaced.entries == 0, new.ino, Why::NotEmpty),
        }
    }

    /// A keyspace with values is not empty. Only of a keyspace can they go with it.
    fn check_values(&mut self, ino: u64, flags: u32) -> Result<(), S> {
        let mut buf = InodeBuf::default();
        let keyspace = self.live(ino, &mut buf)?.flags & KEYSPACE != 0;
        match flags & DROP_VALUES {
            0 => ensure(!keyspace || !self.has_values(ino)?, ino, Why::NotEmpty),
            _ => ensure(keyspace, ino, Why::NotAKeyspace),
        }
    }

    /// Of a keyspace that is about to lose its name. Everything was checked before.
    fn drop_values(&mut self, ino: u64, flags: u32) -> Result<(), S> {
        match flags & DROP_VALUES {
            0 => Ok(()),
            _ => self.drop_all_values(ino),
        }
    }

    /// Whether `dir`, which is in `from`, can be put into `to`.
    fn check_outside(&self, dir: u64, from: u64, to: u64) -> Result<(), S> {
        if from == to {
            return Ok(());
        }
        let mut at = to;
        for _ in 0..DEPTH_MAX {
            self.steps.set(self.steps.get() + 1);
            ensure(at != dir, dir, Why::Loop)?;
            if at == ROOT_INO {
                return Ok(());
            }
            at = self.directory(at, &mut InodeBuf::default())?.parent;
        }
        Err(Reject::new(dir, Why::TooDeep).into())
    }

    fn displace(&mut self, m: &Move<'_>) -> Result<(), S> {
        let dir = i32::from(m.old.kind == DT_DIR);
        self.erase_entry(m.old_parent, m.old.cookie)?;
        self.change_entries(m.old_parent, -1, -dir, m.time)?;
        let entry = Dirent {
            ino: m.ino,
            kind: m.old.kind,
            name: m.new_name,
        };
        self.put_entry(m.new_parent, m.cookie, &entry)?;
        match m.new {
            Some(new) => {
                self.change_entries(m.new_parent, 0, 0, m.time)?;
                self.drop_name(new.ino, m.flags & KEEP_ORPHAN != 0, m.time)?;
            }
            None => self.change_entries(m.new_parent, 1, dir, m.time)?,
        }
        self.moved(m.ino, m.new_parent, m.new_name, m.time)
    }

    fn exchange(&mut self, m: &Move<'_>) -> Result<(), S> {
        let Some(new) = m.new else {
            unreachable!("an exchange was accepted that has no second name");
        };
        let entry = Dirent {
            ino: m.ino,
            kind: m.old.kind,
            name: m.new_name,
        };
        self.put_entry(m.new_parent, new.cookie, &entry)?;
        let entry = Dirent {
            ino: new.ino,
            kind: new.kind,
            name: m.old_name,
        };
        self.put_entry(m.old_parent, m.old.cookie, &entry)?;
        let more = i32::from(new.kind == DT_DIR) - i32::from(m.old.kind == DT_DIR);
        self.change_entries(m.old_parent, 0, more, m.time)?;
        self.change_entries(m.new_parent, 0, -more, m.time)?;
        self.moved(m.ino, m.new_parent, m.new_name, m.time)?;
        self.moved(new.ino, m.old_parent, m.old_name, m.time)
    }

    fn moved(&mut self, ino: u64, parent: u64, name: &[u8], time: i64) -> Result<(), S> {
        let mut buf = InodeBuf::default();
        let mut record = InodeRecord {
            ..self.live(ino, &mut buf)?
        };
        record.ctime = time;
        if !record.is_dir() {
            return self.put_inode(ino, &record);
        }
        self.put_inode(
            ino,
            &InodeRecord {
                parent,
                tail: name,
                ..record
            },
        )
    }

    /// The cookie for a name that a directory does not hold yet.
    pub(super) fn check_new_name(&self, parent: u64, name: &[u8]) -> Result<u64, S> {
        self.directory(parent, &mut InodeBuf::default())?;
        ensure(is_legal_name(name), parent, Why::IllegalName)?;
        let (found, free) = dirent::search(&*self.store, parent, name).map_err(Failure::Store)?;
        ensure(found.is_none(), parent, Why::NameExists)?;
        free.ok_or_else(|| Reject::new(parent, Why::HashFull).into())
    }

    /// The entry `name`, which must refer to `ino`.
    pub(super) fn entry(&self, parent: u64, name: &[u8], ino: u64) -> Result<Found, S> {
        ensure(is_legal_name(name), parent, Why::IllegalName)?;
        let found = dirent::find(&*self.store, parent, name).map_err(Failure::Store)?;
        let found = found.ok_or(Reject::new(parent, Why::NoName))?;
        ensure(found.ino == ino, ino, Why::OtherObject)?;
        Ok(found)
    }

    pub(super) fn put_entry(&mut self, dir: u64, cookie: u64, entry: &Dirent<'_>) -> Result<(), S> {
        let mut out = [0; dirent::ENCODED_MAX];
        let too_long = crate::layout::BadValue {
            what: "a directory entry is too long",
        };
        let len = entry.encode(&mut out).ok_or(too_long)?;
        self.store
            .put(DIRENTS, &dirent::key(dir, cookie), &out[..len])
            .map_err(Failure::Store)
    }

    fn erase_entry(&mut self, dir: u64, cookie: u64) -> Result<(), S> {
        self.store
            .erase(DIRENTS, &dirent::key(dir, cookie))
            .map_err(Failure::Store)
    }

    fn change_entries(&mut self, dir: u64, entries: i64, subdirs: i32, time: i64) -> Result<(), S> {
        self.update(dir, |record| {
            record.entries = record.entries.saturating_add_signed(entries);
            record.nlink = record.nlink.saturating_add_signed(subdirs);
            (record.mtime, record.ctime) = (time, time);
        })
    }
}

fn check_new_object(
    ino: u64,
    mode: u32,
    rdev: u64,
    target: &[u8],
) -> core::result::Result<(), Reject> {
    let file_type = mode & TYPE_MASK;
    let target_fits = match file_type {
        TYPE_SYMLINK => (1..=TARGET_MAX).contains(&target.len()) && !target.contains(&0),
        _ => target.is_empty(),
    };
    if !is_legal_mode(mode) {
        Err(Reject::new(ino, Why::Mode))
    } else if rdev != 0 && !matches!(file_type, TYPE_CHAR | TYPE_BLOCK) {
        Err(Reject::new(ino, Why::Device))
    } else if !target_fits {
        Err(Reject::new(ino, Why::Target))
    } else {
        Ok(())
    }
}
