//! Changes of keyspaces that concern files: a value becomes a file, a name refers to another file.
//!
//! Invariants:
//!  * As far as these changes decide, a key is a value or a name of the keyspace's directory, never
//!    both: what becomes a name is no longer a value.
//!  * The blocks of a value that becomes a file stay where they are, with their epoch.

use super::{Applier, Failure, Grants, InodeBuf, Reject, Result, Store, Why, ensure};
use crate::journal::{KEEP_ORPHAN, Naming, Op, Promote};
use crate::layout::dirent::{self, Dirent};
use crate::layout::extent::Extent;
use crate::layout::inode::{INLINE, InodeRecord, TYPE_FILE, TYPE_MASK, is_legal_mode};
use crate::layout::value::{self, Head, InBlocks, NEVER, TreeKey};
use crate::layout::{INLINE_MAX, LINK_MAX, VALUES, is_legal_name};
use crate::quota::Taken;
use crate::tree::VALUE_MAX;

impl<S: Store, G: Grants> Applier<'_, S, G> {
    /// The value of `key` becomes the file `key` of the keyspace's directory.
    pub(super) fn promote(&mut self, dir: u64, key: &[u8], p: &Promote<'_>) -> Result<(), S> {
        self.settle_values()?;
        let cookie = self.check_new_name(dir, key)?;
        let own = value::is_number(p.ino);
        match own {
            true => ensure(!self.exists(p.ino)?, p.ino, Why::NumberInUse)?,
            false => self.check_new_ino(p.ino)?,
        }
        let is_file = p.mode & TYPE_MASK == TYPE_FILE && is_legal_mode(p.mode);
        ensure(is_file, p.ino, Why::Mode)?;
        let (tree_key, mut bytes) = (TreeKey::new(dir, key), [0; VALUE_MAX]);
        let found = self.store.get(VALUES, tree_key.as_slice(), &mut bytes);
        let len = found.map_err(Failure::Store)?;
        let len = len.ok_or(Reject::new(dir, Why::NoName))?;
        let bytes = bytes.get(..len).unwrap_or_default();
        let mut file = self.file_of_value(p, bytes)?;
        file.project = self.directory(dir, &mut InodeBuf::default())?.project;
        if !Head::decode(bytes)?.inline || file.blocks > 0 {
            file.blocks = self.take_over(p, bytes)?;
        }
        let erased = self.store.erase(VALUES, tree_key.as_slice());
        erased.map_err(Failure::Store)?;
        if self.carry.usage.is_on() {
            let old = Taken::by_entry(tree_key.as_slice(), bytes)?;
            self.carry.usage.value(dir, old, Taken::default());
        }
        // A file does not expire.
        if let expires @ 1.. = value::expiry_of(bytes) {
            self.reindex(tree_key.as_slice(), expires, NEVER)?;
        }
        let (ino, kind) = (p.ino, file.kind());
        let name = key;
        self.put_entry(dir, cookie, &Dirent { ino, kind, name })?;
        self.update(dir, |dir| dir.entries = dir.entries.saturating_add(1))?;
        self.put_inode(ino, &file)?;
        self.count_new(p.mode);
        if !own {
            let next = self.store.next_ino().max(ino + 1);
            self.store.set_next_ino(next);
        }
        Ok(())
    }

    /// The inode of a value that becomes a file, once it is known to be as the record says.
    /// `blocks` is not 0 if it gets some that the client filled.
    fn file_of_value<'b>(&self, p: &Promote<'_>, bytes: &'b [u8]) -> Result<InodeRecord<'b>, S> {
        let wrong = || Reject::new(p.ino, Why::Changes);
        let content = value::body(bytes);
        let (mut flags, mut tail, mut blocks) = (0, &[][..], 0);
        match value::blocks_of(bytes)? {
            Some(have) => {
                let said = InBlocks::decode(p.runs).map_err(|_| wrong())?;
                let place = |b: &InBlocks| b.runs().len();
                let pairs = have.runs().iter().zip(said.runs());
                let same = pairs
                    .clone()
                    .all(|(a, b)| (a.block, a.len) == (b.block, b.len));
                let same = same && place(&have) == place(&said) && have.len == said.len;
                ensure(same && have.len == p.size, p.ino, Why::Changes)?;
            }
            None if content.len() <= INLINE_MAX => {
                ensure(p.runs.is_empty(), p.ino, Why::Changes)?;
                flags = if content.is_empty() { 0 } else { INLINE };
                tail = content;
            }
            None => {
                let said = InBlocks::decode(p.runs).map_err(|_| wrong())?;
                let [run] = said.runs() else {
                    return Err(wrong().into());
                };
                let fits = run.len == 1 && run.epoch == 0;
                ensure(fits && said.len == p.size, p.ino, Why::Changes)?;
                ensure(self.grants.holds(run.block, 1), p.ino, Why::NotGranted)?;
                ensure(self.store.is_unused(run.block, 1), p.ino, Why::BlocksInUse)?;
                blocks = 1;
            }
        }
        let inline = Head::decode(bytes)?.inline;
        let fits = !inline || content.len() as u64 == p.size;
        ensure(fits, p.ino, Why::Changes)?;
        let (atime, mtime, ctime, btime) = (p.mtime, p.mtime, p.mtime, p.mtime);
        Ok(InodeRecord {
            mode: p.mode,
            uid: p.uid,
            gid: p.gid,
            nlink: 1,
            size: p.size,
            blocks,
            atime,
            mtime,
            ctime,
            btime,
            flags,
            tail,
            ..InodeRecord::default()
        })
    }

    /// The extents of a value that becomes a file; how many blocks they have.
    fn take_over(&mut self, p: &Promote<'_>, bytes: &[u8]) -> Result<u64, S> {
        let filled = Head::decode(bytes)?.inline;
        let blocks = match filled {
            true => InBlocks::decode(p.runs)?,
            false => InBlocks::decode(value::body(bytes))?,
        };
        let mut file_block = 0;
        for run in blocks.runs() {
            let (block, len, mut epoch) = (run.block, run.len, run.epoch);
            if filled {
                let used = self.store.mark_used(block, u64::from(len));
                used.map_err(Failure::Store)?;
                self.grants.take(block, u64::from(len));
                epoch = self.store.epoch();
            }
            let extent = Extent {
                file_block,
                block,
                len,
                epoch,
            };
            self.put_extent(p.ino, extent)?;
            file_block += u64::from(len);
        }
        Ok(file_block)
    }

    /// Before a name is taken from what it leads to: that must be as the record says.
    pub(super) fn check_unnamed(&mut self, op: &Op<'_>, naming: Option<Naming>) -> Result<(), S> {
        let dir = op.keyspace;
        let naming = naming.filter(|n| n.ino == 0 && n.flags & !KEEP_ORPHAN == 0);
        let naming = naming.ok_or(Reject::new(dir, Why::Changes))?;
        let found = self.entry(dir, op.key, naming.replaced)?;
        let mut buf = InodeBuf::default();
        let is_dir = self.live(found.ino, &mut buf)?.is_dir();
        ensure(!is_dir, found.ino, Why::IsADirectory)
    }

    /// A file without a name gets the key as its name, in place of what has it and of the value.
    pub(super) fn name_file(&mut self, op: &Op<'_>, time: i64) -> Result<(), S> {
        let dir = op.keyspace;
        let naming = match op.change {
            crate::journal::Change::Name(fields) => Naming::decode(fields),
            _ => None,
        };
        let naming = naming.ok_or(Reject::new(dir, Why::Changes))?;
        let ino = naming.ino;
        let mut buf = InodeBuf::default();
        let file = self.file(ino, &mut buf)?;
        ensure(file.nlink < LINK_MAX, ino, Why::TooManyNames)?;
        ensure(
            is_legal_name(op.key) && ino != naming.replaced,
            ino,
            Why::IllegalName,
        )?;
        if naming.replaced != 0 {
            let drop = Naming { ino: 0, ..naming };
            self.check_unnamed(op, Some(drop))?;
            self.unlink(dir, naming.replaced, naming.flags, time, op.key)?;
        } else {
            let found = dirent::search(&*self.store, dir, op.key).map_err(Failure::Store)?;
            ensure(found.0.is_none(), dir, Why::NameExists)?;
            ensure(found.1.is_some(), dir, Why::HashFull)?;
        }
        self.link(dir, ino, time, op.key)?;
        self.displace_value(op, time)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::journal::{Change, Naming, Op, Promote};
    use crate::layout::value::InBlocks;

    /// A record that speaks of files is never longer than one of values.
    #[test]
    fn changes_of_files_fit_a_record() {
        let mut runs = [0; 8 + 16];
        let mut blocks = InBlocks::new(4096);
        assert!(blocks.push(crate::layout::value::ValueRun {
            block: crate::layout::BlockAddr::new(0, 1),
            len: 1,
            epoch: 0
        }));
        assert_eq!(blocks.encode(&mut runs), 24);
        let (ino, replaced, flags) = (3, 4, 0);
        let fields = Naming {
            ino,
            replaced,
            flags,
        };
        let fields = fields.encode();
        let (keyspace, key) = (1, &[b'n'; 255][..]);
        let change = Change::Name(&fields);
        let op = Op {
            keyspace,
            key,
            change,
        };
        assert!(op.len() < 512 && change.is_keyed() && change.is_about_files());
        let promote = Promote {
            runs: &runs,
            ..Promote::decode(&[0; 48]).unwrap()
        };
        assert_eq!(promote.encode().len(), 72);
    }
}
