//! `pkey`: protection keys (pkeys(7)). A second mapping of the region has a key, and each thread
//! has the rights of the key in a register of its own.
//!
//! What always holds here: a thread has the right to write between `open` and `close` alone; new
//! threads, and handlers of signals, begin without it.

use super::{Closing, Open, Region};
use crate::fault::Protected;
use crate::map::{Access, MapOptions, Mapping};
use crate::{Error, sys};
use core::arch::asm;
use rustix::io::Errno;

const SYS_PKEY_MPROTECT: usize = 329;
const SYS_PKEY_ALLOC: usize = 330;
const SYS_PKEY_FREE: usize = 331;
/// Neither reads nor writes.
const NOTHING: usize = 3;
const READ_WRITE: usize = 3;

pub(super) struct Key {
    mapping: Mapping,
    number: Number,
    /// So that strays are reported.
    _known: Protected,
}

/// A key that is ours.
struct Number(u32);

/// Whether the CPU and the kernel have keys, and one is left.
pub(super) fn is_there() -> bool {
    Number::new().is_ok()
}

impl Number {
    fn new() -> Result<Number, Error> {
        // SAFETY: a key that nothing has yet; no memory of this process is changed.
        let key = sys::count(unsafe { sys::syscall(SYS_PKEY_ALLOC, [0, NOTHING, 0, 0]) });
        // It says so of a kernel and of a CPU that know no keys.
        let none = |_| Error::NotHere {
            what: "there are no protection keys on this machine, or none is left",
        };
        Ok(Number(key.map_err(none)? as u32))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        // SAFETY: nothing has the key any more: what had it is dropped before.
        unsafe { sys::syscall(SYS_PKEY_FREE, [self.0 as usize, 0, 0, 0]) };
    }
}

impl Key {
    pub fn new(region: &Region<'_>) -> Result<Key, Error> {
        let number = Number::new()?;
        let options = MapOptions::new(Access::ReadWrite, region.options.medium);
        let mapping = Mapping::shared(region.fd, region.offset, region.len, &options)?;
        let key = number.0 as usize;
        let args = [mapping.ptr() as usize, mapping.len(), READ_WRITE, key];
        // SAFETY: the whole of a mapping that was just made and that nothing refers to.
        let done = sys::count(unsafe { sys::syscall(SYS_PKEY_MPROTECT, args) });
        done.map_err(|e: Errno| Error::os("pkey_mprotect")(e))?;
        let _known = Protected::new(mapping.ptr() as usize, mapping.len());
        Ok(Key {
            mapping,
            number,
            _known,
        })
    }

    pub fn open(&self, off: u64) -> Open<'_> {
        self.set(0);
        let at = self.mapping.ptr().wrapping_add(off as usize);
        Open::new(at, Closing::Key(Opened(self)))
    }

    /// Denies this thread what is in `denied`.
    #[inline]
    fn set(&self, denied: u32) {
        let shift = self.number.0 * 2;
        let rights: u32;
        // SAFETY: keys were given out, so the CPU has the register. Without `nomem` accesses stay
        // on their side; the register only says what this thread may do with memory that has keys,
        // and only this key's bits are changed.
        unsafe {
            asm!("rdpkru", in("ecx") 0, out("eax") rights, out("edx") _, options(nostack));
            let rights = rights & !(3 << shift) | denied << shift;
            asm!("wrpkru", in("eax") rights, in("ecx") 0, in("edx") 0, options(nostack));
        }
    }
}

/// That this thread may write.
pub(super) struct Opened<'a>(&'a Key);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.0.set(NOTHING as u32);
    }
}
