//! The environment as the kernel passed it, and the auxiliary vector behind it.
//!
//! Invariant: they are read only during start-up, before the program can change it.
use core::ffi::{CStr, c_char};

#[derive(Clone, Copy)]
pub struct Env {
    vars: *const *const c_char,
}

impl Env {
    /// # Safety
    /// `vars` is null or a null-terminated array of C strings that outlives every result.
    pub unsafe fn new(vars: *const *const c_char) -> Env {
        Env { vars }
    }

    /// The value of an entry of the auxiliary vector (getauxval(3)).
    pub fn auxiliary(&self, kind: usize) -> Option<usize> {
        const AT_NULL: usize = 0;
        let mut at = self.vars;
        if at.is_null() {
            return None;
        }
        // SAFETY: as in `get`: up to the final null pointer.
        while unsafe { !(*at).is_null() } {
            // SAFETY: as above.
            at = unsafe { at.add(1) };
        }
        // SAFETY: the kernel puts the vector, pairs of words that end with AT_NULL, right behind
        // the null pointer, and the loader leaves it there.
        let mut pair = unsafe { at.add(1) }.cast::<[usize; 2]>();
        loop {
            // SAFETY: AT_NULL has not been passed.
            let [k, value] = unsafe { *pair };
            match k {
                AT_NULL => return None,
                k if k == kind => return Some(value),
                // SAFETY: this was not the last pair.
                _ => pair = unsafe { pair.add(1) },
            }
        }
    }

    /// The value of `name`.
    pub fn get(&self, name: &[u8]) -> Option<&'static [u8]> {
        let mut at = self.vars;
        if at.is_null() {
            return None;
        }
        loop {
            // SAFETY: `at` has not passed the final null pointer (contract of `new`).
            let entry = unsafe { *at };
            if entry.is_null() {
                return None;
            }
            // SAFETY: entries are C strings that stay valid (contract of `new`).
            let bytes = unsafe { CStr::from_ptr(entry) }.to_bytes();
            if let Some(value) = bytes.strip_prefix(name).and_then(|r| r.strip_prefix(b"=")) {
                return Some(value);
            }
            // SAFETY: the entry was not the final null pointer.
            at = unsafe { at.add(1) };
        }
    }
}
