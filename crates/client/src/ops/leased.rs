//! Answers with leases on all that they were made from, for callers who keep them.
//!
//! Invariant: each is what the function of `Client` without leases answers, at some moment of the
//! call; while its leases last, the same call has the same answer.

use crate::base::error::{Error, Result};
use crate::base::types::{Base, Caller, OfdLink, Stat};
use crate::content::file::File;
use crate::content::perm;
use crate::ops::client::Client;
use crate::ops::path::{self, Walk};
use crate::ops::{read, stat};
use crate::tables::leased::LeaseSet;
use pmem::MutBuf;
use pool::session::{INODE_ACL, INODE_DEFAULT_ACL, INODE_XATTRS};

impl Client {
    fn leased<'a>(&'a self, who: &'a Caller<'a>, leases: &'a LeaseSet) -> Walk<'a> {
        Walk {
            leases: Some(leases),
            ..Walk::new(self.session(), &self.at, who)
        }
    }

    /// Number of the directory where a path from `base` starts.
    pub fn start_of(&self, base: Base) -> Result<u64> {
        path::start(self.session(), base)
    }

    /// Number of the directory that `path`, from directory `start`, leads to, where a longer path
    /// goes through it: so a symbolic link at its end is not one that names the file itself.
    pub fn leased_directory(
        &self,
        who: &Caller<'_>,
        start: u64,
        path: &[u8],
        leases: &LeaseSet,
    ) -> Result<u64> {
        let through = [path, b"/."].concat();
        let a = self
            .leased(who, leases)
            .attributes(Base::Node(start), &through, 0)?;
        match perm::is_dir(&a) {
            true => Ok(a.ino),
            false => Err(Error::NotDirectory),
        }
    }

    /// As `stat` of a name in directory `dir`, and whether it has extended attributes, perhaps.
    pub fn leased_stat(
        &self,
        who: &Caller<'_>,
        (dir, name): (u64, &[u8]),
        flags: u32,
        leases: &LeaseSet,
    ) -> Result<(Stat, bool)> {
        let a = self
            .leased(who, leases)
            .attributes(Base::Node(dir), name, flags)?;
        let has_more = a.state & (INODE_XATTRS | INODE_ACL | INODE_DEFAULT_ACL) != 0;
        Ok((stat::from_attributes(&a), has_more))
    }

    /// As `access` to a name in directory `dir`.
    pub fn leased_access(
        &self,
        who: &Caller<'_>,
        (dir, name): (u64, &[u8]),
        (mode, flags): (u32, u32),
        leases: &LeaseSet,
    ) -> Result<()> {
        let a = self
            .leased(who, leases)
            .attributes(Base::Node(dir), name, flags)?;
        perm::check(self.session(), who, &a, mode)
    }

    /// As `fstat`.
    pub fn leased_fstat(&self, ofd: OfdLink, leases: &LeaseSet) -> Result<Stat> {
        self.lease(ofd, leases)?;
        self.fstat(ofd)
    }

    /// All bytes of an open file; `None`: it has more than `out`, somebody may store to it through
    /// a mapping, or read(2) would change more than the file offset.
    pub fn leased_content(
        &self,
        ofd: OfdLink,
        out: MutBuf<'_>,
        leases: &LeaseSet,
    ) -> Result<Option<usize>> {
        read::whole(&File::readable(self.session(), ofd)?, out, leases)
    }

    /// A lease on what is read of an open file from here on.
    pub fn lease(&self, ofd: OfdLink, leases: &LeaseSet) -> Result<()> {
        leases.add(self.session(), &File::any(self.session(), ofd)?.inode);
        Ok(())
    }
}
