//! The bytes that a caller wants written.

use crate::base::cold::later;
use crate::base::error::{Error, Result};
use crate::session::Session;
use crate::tables::inode_table::LockedInode;
use pmem::{ConstBuf, Fault};
use pool::layout::BlockAddr;

/// A write to a locked file: the next `n` bytes of `source` go to `offset`.
pub(crate) struct Write<'a, 'b> {
    pub source: &'a mut Source<'b>,
    pub offset: u64,
    pub n: usize,
    /// When it happens.
    pub now: i64,
}

impl<'b> Write<'_, 'b> {
    /// Behind its last byte.
    #[inline]
    pub fn end(&self) -> u64 {
        self.offset + self.n as u64
    }

    /// What is left of it after `done` bytes, `most` of that at most.
    #[inline]
    pub fn part(&mut self, done: usize, most: usize) -> Write<'_, 'b> {
        Write {
            source: self.source,
            offset: self.offset + done as u64,
            n: (self.n - done).min(most),
            now: self.now,
        }
    }
}

/// The caller's bytes, taken from the front.
pub(crate) struct Source<'a> {
    bufs: &'a [ConstBuf<'a>],
    /// The next buffer, and how much of it is taken.
    first: usize,
    skip: usize,
}

impl<'a> Source<'a> {
    #[inline]
    pub fn new(bufs: &'a [ConstBuf<'a>]) -> Source<'a> {
        Source {
            bufs,
            first: 0,
            skip: 0,
        }
    }

    /// Bytes left.
    #[inline]
    pub fn len(&self) -> usize {
        let rest = self.bufs.get(self.first..).unwrap_or(&[]);
        let total = rest.iter().map(|b| b.len()).fold(0, usize::saturating_add);
        total - self.skip
    }

    /// Has `copy` take the next `n` bytes to behind the first `skip` bytes of a block that `inode`
    /// has or gets: how many, and why not all.
    #[inline]
    pub fn copy_in(
        &mut self,
        s: &Session,
        inode: &LockedInode,
        (block, skip): (BlockAddr, u64),
        n: usize,
        copy: impl Fn(&Session, u32, (BlockAddr, u64), ConstBuf) -> Result<usize, Fault>,
    ) -> (usize, Result<()>) {
        let copied = self.pieces(n, |piece, done| {
            copy(s, inode.link, (block, skip + done as u64), piece)
        });
        match copied {
            Ok(n) => (n, Ok(())),
            Err(fault) => (fault.copied(), Err(fault.into())),
        }
    }

    /// Copies the next `out.len()` bytes to private memory.
    pub fn read(&mut self, out: &mut [u8]) -> Result<()> {
        let n = out.len();
        let got = self.pieces(n, |piece, done| {
            piece.read(&mut out[done..done + piece.len()])
        })?;
        if got == n {
            Ok(())
        } else {
            Err(Error::Invalid)
        }
    }

    #[inline]
    fn pieces(
        &mut self,
        n: usize,
        mut copy: impl FnMut(ConstBuf, usize) -> Result<usize, Fault>,
    ) -> Result<usize, Fault> {
        let mut done = 0;
        while done < n {
            let Some(buf) = self.bufs.get(self.first) else {
                break;
            };
            let (_, rest) = buf.split_at(self.skip);
            let piece = rest.take(n - done);
            let copied = copy(piece, done).map_err(|f| later(f, done))?;
            done += copied;
            self.skip += copied;
            if self.skip >= buf.len() {
                (self.first, self.skip) = (self.first + 1, 0);
            }
        }
        Ok(done)
    }
}
