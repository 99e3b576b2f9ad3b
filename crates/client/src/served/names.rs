//! Names and attributes, as `Client` has them.
//!
//! Invariant: every function here has the name, the arguments and the meaning of the one of
//! `Client`; who the caller is the proxy knows better.

use crate::base::abi::{AT_EMPTY_PATH, O_KERNELS, R_OK, X_OK};
use crate::base::error::{Error, Result};
use crate::base::types::*;
use crate::served::Served;
use crate::served::channel::{Ask, DESCRIPTORS, descriptor};
use crate::served::life::args;
use crate::served::wire::*;
use pmem::{ConstBuf, MutBuf};

/// A request by `c` about one path.
pub(super) fn at<'a>(c: &'a Caller<'a>, base: Base, path: &'a [u8], words: &[u64]) -> Ask<'a> {
    let mut all = [0; 6];
    all[0] = base_word(base);
    for (to, word) in all.iter_mut().skip(1).zip(words) {
        *to = *word;
    }
    Ask {
        caller: Some(c),
        texts: [path, &[]],
        ..args(&all)
    }
}

/// A request by `c` about two paths.
fn two<'a>(c: &'a Caller<'a>, old: (Base, &'a [u8]), new: (Base, &'a [u8]), flags: u32) -> Ask<'a> {
    Ask {
        caller: Some(c),
        texts: [old.1, new.1],
        ..args(&[base_word(old.0), base_word(new.0), flags.into()])
    }
}

/// A request by `c` about an attribute.
fn of<'a>(c: &'a Caller<'a>, target: Target<'a>, name: &'a [u8], words: &[u64]) -> Ask<'a> {
    let (base, path, nofollow) = match target {
        Target::Path {
            base,
            path,
            nofollow,
        } => (base, path, u64::from(nofollow)),
        Target::Ofd(ofd) => (Base::Ofd(ofd), &[][..], 2),
    };
    let mut all = [0; 6];
    (all[0], all[1]) = (base_word(base), nofollow);
    for (to, word) in all.iter_mut().skip(2).zip(words) {
        *to = *word;
    }
    Ask {
        caller: Some(c),
        texts: [path, name],
        ..args(&all)
    }
}

impl Served {
    pub fn open(
        &self,
        c: &Caller,
        base: Base,
        path: &[u8],
        oflags: u32,
        mode: u32,
        resolve: u64,
    ) -> Result<OfdLink> {
        // The kernel's pipes are where only the pool's owner comes.
        let oflags = oflags & !O_KERNELS;
        let words = [oflags.into(), mode.into(), resolve];
        let handle = self.number(Op::Open, &at(c, base, path, &words))?;
        OfdLink::from_raw(handle as u32).ok_or(Error::Invalid)
    }

    /// As `open`, for descriptor `fd`, which the kernel just gave us and which is bound to it. What
    /// is a pipe is bound when it is open, too: by `open_pipe`, with the handle that this returns.
    pub fn open_as(
        &self,
        (fd, c): (u32, &Caller),
        base: Base,
        path: &[u8],
        oflags: u32,
        mode: u32,
        resolve: u64,
    ) -> Result<Option<OfdLink>> {
        if fd as usize >= DESCRIPTORS {
            return Err(Error::TooManyFiles);
        }
        let words = [oflags.into(), mode.into(), resolve, u64::from(fd) + 1];
        let births = self.known.births();
        let answered = self.ask(Op::Open, &at(c, base, path, &words))?;
        let words = answered.words;
        if let Some(pipe) = OfdLink::from_raw(words[2] as u32) {
            return Ok(Some(pipe));
        }
        if self.is_own() {
            self.note_bound(fd, true);
            self.known.note_file(fd, words[3], Some(births));
            self.known.note_flags(fd, words[4] as u32, births);
            self.note_content(fd, &answered);
            self.quiet.set(fd, true);
            // As in `note_file`.
            if births != self.known.births() {
                self.quiet.set(fd, false);
            }
        }
        Ok(None)
    }

    /// The program at a path, to be read and executed by `c`, who may do both.
    pub fn open_program(&self, c: &Caller, base: Base, path: &[u8]) -> Result<OfdLink> {
        self.access(c, base, path, R_OK | X_OK, 0)?;
        self.open(c, base, path, 0, 0, 0)
    }

    /// Flags are looked at with the rest of the call.
    pub fn check_open(&self, _oflags: u32) -> Result<()> {
        Ok(())
    }

    pub fn mkdir(&self, c: &Caller, base: Base, path: &[u8], mode: u32) -> Result<()> {
        self.tell(Op::Mkdir, &at(c, base, path, &[mode.into()]))
    }

    pub fn mknod(&self, c: &Caller, base: Base, path: &[u8], mode: u32, rdev: u64) -> Result<()> {
        self.tell(Op::Mknod, &at(c, base, path, &[mode.into(), rdev]))
    }

    pub fn symlink(&self, c: &Caller, target: &[u8], base: Base, path: &[u8]) -> Result<()> {
        let ask = Ask {
            texts: [target, path],
            ..at(c, base, path, &[])
        };
        self.tell(Op::Symlink, &ask)
    }

    pub fn link(
        &self,
        c: &Caller,
        old: (Base, &[u8]),
        new: (Base, &[u8]),
        flags: u32,
    ) -> Result<()> {
        self.tell(Op::Link, &two(c, old, new, flags))
    }

    pub fn unlink(&self, c: &Caller, base: Base, path: &[u8]) -> Result<()> {
        self.tell(Op::Unlink, &at(c, base, path, &[]))
    }

    pub fn rmdir(&self, c: &Caller, base: Base, path: &[u8]) -> Result<()> {
        self.tell(Op::Rmdir, &at(c, base, path, &[]))
    }

    pub fn rename(
        &self,
        c: &Caller,
        old: (Base, &[u8]),
        new: (Base, &[u8]),
        flags: u32,
    ) -> Result<()> {
        self.tell(Op::Rename, &two(c, old, new, flags))
    }

    pub fn readlink(&self, c: &Caller, base: Base, path: &[u8], out: MutBuf) -> Result<usize> {
        let words = [out.len() as u64];
        self.ask(Op::Readlink, &at(c, base, path, &words))?
            .take(0, out)
    }

    pub fn access(&self, c: &Caller, base: Base, path: &[u8], mode: u32, flags: u32) -> Result<()> {
        if let Some(known) = self.known_access(c, base, path, (mode, flags)) {
            return known;
        }
        let words = [mode.into(), flags.into()];
        self.tell(Op::Access, &at(c, base, path, &words))
    }

    pub fn chmod(&self, c: &Caller, base: Base, path: &[u8], mode: u32, flags: u32) -> Result<()> {
        let words = [mode.into(), flags.into()];
        self.tell(Op::Chmod, &at(c, base, path, &words))
    }

    pub fn chown(
        &self,
        c: &Caller,
        base: Base,
        path: &[u8],
        owner: (Option<u32>, Option<u32>),
        flags: u32,
    ) -> Result<()> {
        let words = [id_word(owner.0), id_word(owner.1), flags.into()];
        self.tell(Op::Chown, &at(c, base, path, &words))
    }

    pub fn utimens(
        &self,
        c: &Caller,
        base: Base,
        path: &[u8],
        times: [SetTime; 2],
        flags: u32,
    ) -> Result<()> {
        let [access, change] = times.map(time_word);
        self.tell(
            Op::Utimens,
            &at(c, base, path, &[access, change, flags.into()]),
        )
    }

    pub fn truncate(&self, c: &Caller, base: Base, path: &[u8], size: i64) -> Result<()> {
        self.tell(Op::Truncate, &at(c, base, path, &[size as u64]))
    }

    pub fn stat(&self, c: &Caller, base: Base, path: &[u8], flags: u32) -> Result<Stat> {
        if let (Base::Ofd(ofd), true, true) = (base, path.is_empty(), flags & AT_EMPTY_PATH != 0) {
            return self.fstat(ofd);
        }
        if let Some(known) = self.known_stat(c, base, path, flags) {
            return known;
        }
        let answered = self.ask(Op::Stat, &at(c, base, path, &[flags.into()]))?;
        Ok(words_stat(&answered.words[2..]))
    }

    pub fn statfs_at(&self, c: &Caller, base: Base, path: &[u8], flags: u32) -> Result<StatFs> {
        let asked = self.ask(Op::Statfs, &at(c, base, path, &[flags.into()]))?;
        let words = asked.words;
        Ok(StatFs {
            block_size: words[2] as u32,
            blocks: words[3],
            free: words[4],
            available: words[5],
            files: words[6],
            files_free: words[7],
            name_max: words[8] as u32,
        })
    }

    pub fn chdir(&self, c: &Caller, base: Base, path: &[u8]) -> Result<()> {
        self.change_directory(Op::Chdir, &at(c, base, path, &[]))
    }

    pub fn fchdir(&self, c: &Caller, ofd: OfdLink) -> Result<()> {
        self.change_directory(Op::Fchdir, &at(c, Base::Ofd(ofd), &[], &[]))
    }

    fn change_directory(&self, op: Op, ask: &Ask<'_>) -> Result<()> {
        if !self.is_own() {
            return self.tell(op, ask);
        }
        let moved = self.known.begin_move();
        let entered = self.number(op, ask);
        self.known.end_move(&moved, entered.as_ref().ok().copied());
        entered?;
        self.note_inside(true);
        Ok(())
    }

    pub fn chdir_outside(&self) -> Result<()> {
        if self.cwd_inside() {
            self.tell(Op::ChdirOutside, &Ask::default())?;
            self.note_inside(false);
        }
        Ok(())
    }

    fn note_inside(&self, inside: bool) {
        if self.member().is_some_and(|(_, own)| own) {
            self.inside.store(inside, pmem::atomic::Ordering::Release);
        }
    }

    pub fn cwd_inside(&self) -> bool {
        match self.member() {
            Some((_, true)) => self.inside.load(pmem::atomic::Ordering::Acquire),
            Some((_, false)) => self
                .number(Op::CwdInside, &Ask::default())
                .is_ok_and(|inside| inside != 0),
            None => false,
        }
    }

    pub fn getcwd(&self, out: &mut [u8]) -> Result<usize> {
        let ask = args(&[out.len() as u64]);
        self.ask(Op::Getcwd, &ask)?.take(0, MutBuf::from(out))
    }

    pub fn path_of(&self, ofd: OfdLink, out: &mut [u8]) -> Result<usize> {
        let ask = args(&[ofd.raw().into(), out.len() as u64]);
        self.ask(Op::PathOf, &ask)?.take(0, MutBuf::from(out))
    }

    pub fn getxattr(&self, c: &Caller, target: Target, name: &[u8], out: MutBuf) -> Result<usize> {
        if self.known_to_lack(c, target, name) {
            return Err(Error::NoAttribute);
        }
        let ask = of(c, target, name, &[out.len() as u64]);
        let answered = self.ask(Op::Getxattr, &ask)?;
        answered.take(0, out)?;
        Ok(answered.words[2] as usize)
    }

    pub fn setxattr(
        &self,
        c: &Caller,
        target: Target,
        name: &[u8],
        value: ConstBuf,
        flags: u32,
    ) -> Result<()> {
        let data = [value];
        let ask = Ask {
            data: &data,
            ..of(c, target, name, &[flags.into()])
        };
        self.tell(Op::Setxattr, &ask)
    }

    pub fn listxattr(&self, c: &Caller, target: Target, out: MutBuf) -> Result<usize> {
        let ask = of(c, target, &[], &[out.len() as u64]);
        let answered = self.ask(Op::Listxattr, &ask)?;
        answered.take(0, out)?;
        Ok(answered.words[2] as usize)
    }

    pub fn removexattr(&self, c: &Caller, target: Target, name: &[u8]) -> Result<()> {
        self.tell(Op::Removexattr, &of(c, target, name, &[]))
    }

    pub fn fstat(&self, ofd: OfdLink) -> Result<Stat> {
        if let Some(known) = descriptor(ofd).and_then(|fd| self.known_fstat(fd)) {
            return Ok(known);
        }
        let answered = self.ask(Op::Fstat, &args(&[ofd.raw().into()]))?;
        Ok(words_stat(&answered.words[2..]))
    }

    pub fn fchmod(&self, c: &Caller, ofd: OfdLink, mode: u32) -> Result<()> {
        self.tell(Op::Fchmod, &at(c, Base::Ofd(ofd), &[], &[mode.into()]))
    }

    pub fn fchown(
        &self,
        c: &Caller,
        ofd: OfdLink,
        owner: (Option<u32>, Option<u32>),
    ) -> Result<()> {
        let words = [id_word(owner.0), id_word(owner.1)];
        self.tell(Op::Fchown, &at(c, Base::Ofd(ofd), &[], &words))
    }

    pub fn futimens(&self, c: &Caller, ofd: OfdLink, times: [SetTime; 2]) -> Result<()> {
        self.tell(
            Op::Futimens,
            &at(c, Base::Ofd(ofd), &[], &times.map(time_word)),
        )
    }
}
