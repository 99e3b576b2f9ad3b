//! A caller's memory as an address and a length.
//!
//! The memory may be unmapped, read-only or changed by other threads at any time: it is only
//! ever touched by the routines of `copy.rs`, which report a fault as a count.

use crate::copy::{self, SIDE_SOURCE};
use core::marker::PhantomData;

/// Why a copy between pool memory and a caller's memory was not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The caller's memory could not be touched past `copied` bytes.
    BadAddress { copied: usize },
    /// The medium lost bytes past `copied` bytes.
    Media { copied: usize },
    /// The range is not inside the mapping, or the mapping is read-only. Nothing was copied.
    OutOfRange,
}

impl Fault {
    /// Bytes that were copied before the copy stopped.
    pub fn copied(&self) -> usize {
        match *self {
            Fault::BadAddress { copied } | Fault::Media { copied } => copied,
            Fault::OutOfRange => 0,
        }
    }

    /// The positive errno for a call that copied nothing.
    pub fn errno(&self) -> i32 {
        match self {
            Fault::BadAddress { .. } => 14,
            Fault::Media { .. } => 5,
            Fault::OutOfRange => 22,
        }
    }
}

/// Memory of the caller to read from.
#[derive(Clone, Copy, Debug)]
pub struct ConstBuf<'a> {
    ptr: *const u8,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

/// Memory of the caller to write to.
#[derive(Debug)]
pub struct MutBuf<'a> {
    ptr: *mut u8,
    len: usize,
    life: PhantomData<&'a mut [u8]>,
}

impl<'a> ConstBuf<'a> {
    /// # Safety
    /// Any address is allowed while the process routes faults through
    /// [`crate::fault::landing_for`]; without that the range must be readable.
    pub unsafe fn from_raw(ptr: *const u8, len: usize) -> ConstBuf<'a> {
        ConstBuf {
            ptr,
            len,
            life: PhantomData,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn addr(&self) -> usize {
        self.ptr as usize
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Drops the first `n` bytes (all, when there are fewer).
    pub fn advance(&mut self, n: usize) {
        *self = self.split_at(n).1;
    }

    /// The first `n` bytes (at most all) and the rest.
    pub fn split_at(&self, n: usize) -> (ConstBuf<'a>, ConstBuf<'a>) {
        let n = n.min(self.len);
        let rest = self.ptr.wrapping_add(n);
        (
            ConstBuf { len: n, ..*self },
            ConstBuf {
                ptr: rest,
                len: self.len - n,
                life: PhantomData,
            },
        )
    }

    /// The first `n` bytes, at most all.
    pub fn take(&self, n: usize) -> ConstBuf<'a> {
        self.split_at(n).0
    }

    /// Copies from the start of this memory; returns `min(len, dst.len())`.
    pub fn read(&self, dst: &mut [u8]) -> Result<usize, Fault> {
        let n = self.len.min(dst.len());
        // SAFETY: dst is n writable bytes that we own; the source may fault, which the routine
        // reports, and whoever made this value promised that faults are routed.
        let out = unsafe { copy::holdfast_copy(dst.as_mut_ptr(), self.ptr, n) };
        done(n, out.left)
    }
}

impl<'a> MutBuf<'a> {
    /// # Safety
    /// The range must be the caller's to overwrite. Addresses that cannot be written are
    /// allowed while the process routes faults through [`crate::fault::landing_for`].
    pub unsafe fn from_raw(ptr: *mut u8, len: usize) -> MutBuf<'a> {
        MutBuf {
            ptr,
            len,
            life: PhantomData,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn addr(&self) -> usize {
        self.ptr as usize
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Drops the first `n` bytes (all, when there are fewer).
    pub fn advance(&mut self, n: usize) {
        let n = n.min(self.len);
        self.ptr = self.ptr.wrapping_add(n);
        self.len -= n;
    }

    /// The first `n` bytes (at most all) and the rest.
    pub fn split_at(self, n: usize) -> (MutBuf<'a>, MutBuf<'a>) {
        let n = n.min(self.len);
        let rest = self.ptr.wrapping_add(n);
        (
            MutBuf {
                ptr: self.ptr,
                len: n,
                life: PhantomData,
            },
            MutBuf {
                ptr: rest,
                len: self.len - n,
                life: PhantomData,
            },
        )
    }

    /// The same memory for a shorter time.
    pub fn reborrow(&mut self) -> MutBuf<'_> {
        MutBuf {
            ptr: self.ptr,
            len: self.len,
            life: PhantomData,
        }
    }

    /// The first `n` bytes (at most all), for a shorter time.
    pub fn take(&mut self, n: usize) -> MutBuf<'_> {
        MutBuf {
            ptr: self.ptr,
            len: n.min(self.len),
            life: PhantomData,
        }
    }

    /// Copies to the start of this memory; returns `min(len, src.len())`.
    pub fn write(&mut self, src: &[u8]) -> Result<usize, Fault> {
        let n = self.len.min(src.len());
        // SAFETY: src is n readable bytes; the destination is the caller's by the contract of
        // from_raw, and a fault in it is reported.
        let out = unsafe { copy::holdfast_copy(self.ptr, src.as_ptr(), n) };
        done(n, out.left)
    }

    /// Copies from one caller's memory to another's; returns `min(len, from.len())`.
    pub fn copy_from(&mut self, from: ConstBuf<'_>) -> Result<usize, Fault> {
        let n = self.len.min(from.len());
        // SAFETY: whoever made the two values promised that faults are routed, and that the
        // destination may be overwritten.
        let out = unsafe { copy::holdfast_copy(self.ptr, from.as_ptr(), n) };
        done(n, out.left)
    }

    /// Fills the first `n` bytes (at most all) with zeroes; returns how many.
    pub fn fill_zero(&mut self, n: usize) -> Result<usize, Fault> {
        let n = self.len.min(n);
        // SAFETY: as in `write`; the routine has no source.
        let out = unsafe { copy::holdfast_zero(self.ptr, core::ptr::null(), n) };
        done(n, out.left)
    }
}

fn done(n: usize, left: usize) -> Result<usize, Fault> {
    match left {
        0 => Ok(n),
        _ => Err(Fault::BadAddress { copied: n - left }),
    }
}

impl<'a> From<&'a [u8]> for ConstBuf<'a> {
    fn from(b: &'a [u8]) -> Self {
        ConstBuf {
            ptr: b.as_ptr(),
            len: b.len(),
            life: PhantomData,
        }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for ConstBuf<'a> {
    fn from(b: &'a [u8; N]) -> Self {
        b.as_slice().into()
    }
}

impl<'a> From<&'a mut [u8]> for MutBuf<'a> {
    fn from(b: &'a mut [u8]) -> Self {
        MutBuf {
            ptr: b.as_mut_ptr(),
            len: b.len(),
            life: PhantomData,
        }
    }
}

/// Why a NUL-terminated string could not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CstrFault {
    /// The memory cannot be read (EFAULT).
    BadAddress,
    /// No NUL within the room given (ENAMETOOLONG).
    TooLong,
}

impl CstrFault {
    pub fn errno(&self) -> i32 {
        match self {
            CstrFault::BadAddress => 14,
            CstrFault::TooLong => 36,
        }
    }
}

/// Copies the NUL-terminated string at `addr` with its NUL into `dst`; returns its length
/// without the NUL.
///
/// # Safety
/// Any address is allowed while the process routes faults through
/// [`crate::fault::landing_for`]; without that the string must be readable.
pub unsafe fn copy_cstr(addr: usize, dst: &mut [u8]) -> Result<usize, CstrFault> {
    // SAFETY: dst is writable and we own it; the source may fault, which the routine reports.
    let out = unsafe { copy::holdfast_cstr(dst.as_mut_ptr(), addr as *const u8, dst.len()) };
    match out.side {
        0 => Ok(out.left),
        SIDE_SOURCE => Err(CstrFault::BadAddress),
        _ => Err(CstrFault::TooLong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_buffer() {
        let data = [1u8, 2, 3, 4, 5];
        let mut b = ConstBuf::from(&data[..]);
        let (head, tail) = b.split_at(2);
        let mut got = [0; 5];
        assert_eq!((head.read(&mut got), tail.len()), (Ok(2), 3));
        assert_eq!(got, [1, 2, 0, 0, 0]);
        assert_eq!(b.split_at(9).1.len(), 0);
        b.advance(4);
        assert_eq!(b.read(&mut got), Ok(1));
        assert_eq!(got[0], 5);
        b.advance(4);
        assert!(b.is_empty());
    }

    #[test]
    fn writing_into_a_buffer() {
        let mut room = [9u8; 6];
        let mut b = MutBuf::from(&mut room[..]);
        assert_eq!(b.write(&[1, 2]), Ok(2));
        b.advance(2);
        assert_eq!(b.take(2).fill_zero(9), Ok(2));
        let (first, mut last) = b.split_at(3);
        assert_eq!((first.len(), last.len()), (3, 1));
        assert_eq!(last.write(&[7, 8, 9]), Ok(1));
        assert_eq!(room, [1, 2, 0, 0, 9, 7]);
    }

    #[test]
    fn strings() {
        let text = b"path\0more\0";
        let mut dst = [1u8; 10];
        // SAFETY: the string is ours and ends with a NUL.
        unsafe {
            let addr = text.as_ptr() as usize;
            assert_eq!(copy_cstr(addr, &mut dst), Ok(4));
            assert_eq!(copy_cstr(addr, &mut dst[..5]), Ok(4));
            assert_eq!(copy_cstr(addr, &mut dst[..4]), Err(CstrFault::TooLong));
            assert_eq!(copy_cstr(addr, &mut []), Err(CstrFault::TooLong));
        }
        assert_eq!(&dst[..5], b"path\0");
    }

    #[test]
    fn every_fault_has_an_errno_and_a_count() {
        let all = [
            (Fault::BadAddress { copied: 3 }, 14, 3),
            (Fault::Media { copied: 4 }, 5, 4),
            (Fault::OutOfRange, 22, 0),
        ];
        for (f, errno, copied) in all {
            assert_eq!((f.errno(), f.copied()), (errno, copied));
        }
        assert_eq!(
            (CstrFault::BadAddress.errno(), CstrFault::TooLong.errno()),
            (14, 36)
        );
    }
}
