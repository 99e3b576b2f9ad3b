//! Arguments of system calls: strings and structs in the program's memory.
//!
//! Invariant: the program's memory is only touched by pmem's fault-tolerant copies, once per
//! value, so a bad address is EFAULT and a changing value cannot be seen twice.

use crate::sys;
use holdfast_client::abi::PATH_MAX;
use holdfast_pmem::{ConstBuf, MutBuf, copy_cstr};

/// A positive errno.
pub type Errno = i32;

/// EFAULT.
pub const EFAULT: Errno = 14;
/// EINVAL.
pub const EINVAL: Errno = 22;
/// ENAMETOOLONG.
pub const ENAMETOOLONG: Errno = 36;

/// What a call of the kernel returned: a number, or an errno.
pub fn result(ret: isize) -> Result<usize, Errno> {
    match sys::is_err(ret) {
        true => Err(-ret as Errno),
        false => Ok(ret as usize),
    }
}

/// The program's memory at `addr`, to read from.
pub fn source<'a>(addr: usize, len: usize) -> ConstBuf<'a> {
    // SAFETY: the signal module routes faults to pmem's landings before any hook runs; the
    // program passed the range to a call that reads it.
    unsafe { ConstBuf::from_raw(addr as *const u8, len) }
}

/// The program's memory at `addr`, to write to.
pub fn target<'a>(addr: usize, len: usize) -> MutBuf<'a> {
    // SAFETY: as in `source`, and the program passed the range to a call that fills it.
    unsafe { MutBuf::from_raw(addr as *mut u8, len) }
}

/// `N` bytes at `addr`.
pub fn read_bytes<const N: usize>(addr: usize) -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    source(addr, N).read(&mut bytes).map_err(|_| EFAULT)?;
    Ok(bytes)
}

/// The `u64` at `addr`.
pub fn read_u64(addr: usize) -> Result<u64, Errno> {
    read_bytes(addr).map(u64::from_le_bytes)
}

/// Stores `bytes` at `addr`.
pub fn write_bytes(addr: usize, bytes: &[u8]) -> Result<(), Errno> {
    target(addr, bytes.len())
        .write(bytes)
        .map(|_| ())
        .map_err(|_| EFAULT)
}

/// Paths up to this long take no 4 KiB of the program's stack.
const SHORT_PATH: usize = 256;

/// Calls `f` with the NUL-terminated path at `addr`, without its NUL.
pub fn with_path<T>(addr: usize, f: impl FnOnce(&[u8]) -> Result<T, Errno>) -> Result<T, Errno> {
    let mut short = [0; SHORT_PATH];
    match read_cstr(addr, &mut short) {
        Err(ENAMETOOLONG) => with_long_path(addr, f),
        Err(e) => Err(e),
        Ok(len) => f(&short[..len]),
    }
}

#[inline(never)]
fn with_long_path<T>(addr: usize, f: impl FnOnce(&[u8]) -> Result<T, Errno>) -> Result<T, Errno> {
    let mut long = [0; PATH_MAX];
    let len = read_cstr(addr, &mut long)?;
    f(&long[..len])
}

/// Copies the string at `addr` with its NUL; its length without the NUL.
pub fn read_cstr(addr: usize, out: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: as in `source`.
    unsafe { copy_cstr(addr, out) }.map_err(|e| e.errno())
}

/// Most entries of an iovec array (UIO_MAXIOV).
pub const IOV_MAX: usize = 1024;
/// Bytes that one call may move (MAX_RW_COUNT).
pub const RW_MAX: usize = 0x7fff_f000;

/// Entry `i` of the iovec array at `addr`.
pub fn iovec(addr: usize, i: usize) -> Result<(usize, usize), Errno> {
    let bytes: [u8; 16] = read_bytes(addr.wrapping_add(i * 16))?;
    let (base, len) = bytes.split_at(8);
    let word = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap_or([0; 8])) as usize;
    Ok((word(base), word(len)))
}

/// Checks an iovec array as the kernel does: count, each length and the sum. Gives the sum.
pub fn check_iovecs(addr: usize, count: usize) -> Result<usize, Errno> {
    if count > IOV_MAX {
        return Err(EINVAL);
    }
    let mut sum = 0usize;
    for i in 0..count {
        let len = iovec(addr, i)?.1;
        if len > isize::MAX as usize {
            return Err(EINVAL);
        }
        sum = sum.saturating_add(len);
        if sum > isize::MAX as usize {
            return Err(EINVAL);
        }
    }
    Ok(sum)
}
