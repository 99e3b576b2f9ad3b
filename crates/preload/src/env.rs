//! The environment as the kernel passed it.
//!
//! Invariant: it is read only during start-up, before the program can change it.
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
