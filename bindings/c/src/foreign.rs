//! Memory of the caller: the only place where pointers of C are followed.
//!
//! Invariants: no Rust code can make a value of these types out of a number or an address, so each
//! comes from a call by C, whose caller vouches for it as the header says; NULL is told apart
//! before anything is read; nothing is kept beyond the call.

use crate::error::Refusal;
use crate::quota::Quota;
use crate::table::{Handle, Kind};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;

/// A text that we hand out.
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// It lives as long as the library.
    pub fn of(text: &'static CStr) -> Text {
        Text(text.as_ptr())
    }

    /// It lives as long as its owner says.
    pub fn or_null(text: Option<&CStr>) -> Text {
        Text(text.map_or(std::ptr::null(), CStr::as_ptr))
    }
}

/// A name or path that we are given: NULL, or a text with a NUL at its end.
#[repr(transparent)]
pub struct Name(*const c_char);

impl Name {
    /// The bytes; None for NULL.
    pub fn bytes(&self) -> Option<&[u8]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: C gave us this, so it is a text that ends with NUL and lasts for the call,
        // which `self` does not outlive.
        Some(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// The text; a name that is none, or no UTF-8, is refused.
    pub fn text(&self) -> Result<&str, Refusal> {
        let bytes = self.bytes().ok_or(Refusal::invalid("a name is NULL"))?;
        str::from_utf8(bytes).map_err(|_| Refusal::invalid("a name is not UTF-8"))
    }
}

/// Bytes that we are given.
#[repr(transparent)]
pub struct Input(*const c_void);

impl Input {
    /// Whether it is NULL, which has a meaning of its own for some calls.
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The bytes; NULL is none.
    pub fn bytes(&self, len: usize) -> Result<&[u8], Refusal> {
        if len == 0 {
            return Ok(&[]);
        }
        if self.0.is_null() || len > isize::MAX as usize {
            return Err(Refusal::invalid("bytes are announced and not given"));
        }
        // SAFETY: C gave us this together with its length, so so many bytes can be read, and
        // nobody changes them during the call, which `self` does not outlive.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), len) })
    }
}

/// Room for bytes that we give.
#[repr(transparent)]
pub struct Output(*mut c_void);

impl Output {
    /// The room; NULL has none.
    pub fn room(&mut self, len: usize) -> Result<&mut [u8], Refusal> {
        if len == 0 {
            return Ok(&mut []);
        }
        if self.0.is_null() || len > isize::MAX as usize {
            return Err(Refusal::invalid("room is announced and not given"));
        }
        // SAFETY: C gave us this together with its length, so so many bytes can be written, and
        // nobody else looks at them during the call, which `self` does not outlive. Bytes of C
        // are bytes to us, whatever was or was not stored in them.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.cast(), len) })
    }
}

/// Where a result goes.
#[repr(transparent)]
pub struct Place<T>(*mut MaybeUninit<T>);

impl<T> Place<T> {
    /// A result is wanted.
    pub fn check(&self) -> Result<(), Refusal> {
        match self.0.is_null() {
            true => Err(Refusal::invalid("there is no place for the result")),
            false => Ok(()),
        }
    }

    /// Stores the result; nothing is stored at NULL.
    pub fn store(&mut self, value: T) {
        if !self.0.is_null() {
            // SAFETY: C gave us this, so a result of the type can be written there.
            unsafe { self.0.write(MaybeUninit::new(value)) };
        }
    }
}

impl<T: Kind> Place<Handle<T>> {
    /// Stores a handle of the object that `make` makes.
    pub fn put(&mut self, make: impl FnOnce() -> Result<T, Refusal>) -> Result<(), Refusal> {
        self.check()?;
        self.store(Handle::new(make()?)?);
        Ok(())
    }
}

/// The start of bytes that we hand out.
#[repr(transparent)]
pub struct Start(*const c_void);

impl Start {
    /// They live as long as their owner says.
    pub fn of(bytes: &[u8]) -> Start {
        Start::at(bytes.as_ptr())
    }

    /// As `of`, where there is no reference to them.
    pub fn at(bytes: *const u8) -> Start {
        Start(bytes.cast())
    }
}

/// What C wants handed back to its functions.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Argument(*mut c_void);

/// A function of C that is given a name.
pub type NameFn = Option<unsafe extern "C" fn(Argument, *const c_char) -> c_int>;
/// A function of C that is given a name and a time.
pub type SnapshotFn = Option<unsafe extern "C" fn(Argument, *const c_char, i64) -> c_int>;
/// A function of C that is given a quota.
pub type QuotaFn = Option<unsafe extern "C" fn(Argument, *const Quota) -> c_int>;
/// A function of C that is given a name, a size, and the part of it that is in use.
pub type VolumeFn = Option<unsafe extern "C" fn(Argument, *const c_char, u64, u64) -> c_int>;

/// Calls the function with a name.
pub fn tell_name(function: NameFn, arg: Argument, name: &CStr) -> Result<c_int, Refusal> {
    let function = function.ok_or(Refusal::invalid("there is no function to call"))?;
    // SAFETY: C gave us function and argument together and vouches that they fit; the name lasts
    // for the call.
    Ok(unsafe { function(arg, name.as_ptr()) })
}

/// Calls the function with a name and a time.
pub fn tell_snapshot(
    function: SnapshotFn,
    arg: Argument,
    name: &CStr,
    time_ns: i64,
) -> Result<c_int, Refusal> {
    let function = function.ok_or(Refusal::invalid("there is no function to call"))?;
    // SAFETY: as for names.
    Ok(unsafe { function(arg, name.as_ptr(), time_ns) })
}

/// Calls the function with a quota.
pub fn tell_quota(function: QuotaFn, arg: Argument, quota: &Quota) -> Result<c_int, Refusal> {
    let function = function.ok_or(Refusal::invalid("there is no function to call"))?;
    // SAFETY: as for names; the quota, and the name in it, last for the call.
    Ok(unsafe { function(arg, quota) })
}

/// Calls the function with a name, a size, and the part of it that is in use.
pub fn tell_volume(
    function: VolumeFn,
    arg: Argument,
    name: &CStr,
    (size, allocated): (u64, u64),
) -> Result<c_int, Refusal> {
    let function = function.ok_or(Refusal::invalid("there is no function to call"))?;
    // SAFETY: as for names.
    Ok(unsafe { function(arg, name.as_ptr(), size, allocated) })
}
