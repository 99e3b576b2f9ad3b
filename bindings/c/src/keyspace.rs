//! `hf_keyspace_*` and changes of single keys.
//!
//! Invariant: whatever a call is given is checked before anything is changed.

use crate::error::{Refusal, count, number, status};
use crate::foreign::{Input, Name, Output, Place};
use crate::pool::Source;
use crate::table::{Handle, kind};
use crate::{CREATE, durability, flags};
use holdfast::{Keyspace, ViewKeyspace};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// What a handle of a keyspace stands for.
pub enum Keys {
    /// The keyspace itself, and its pool.
    Present(Keyspace, Arc<Source>),
    /// What it was.
    View(ViewKeyspace),
}
kind!(Keys, 2, "keyspace");

impl Keys {
    /// The keyspace itself, to change it.
    pub fn present(&self) -> Result<&Keyspace, Refusal> {
        match self {
            Keys::Present(keyspace, _) => Ok(keyspace),
            Keys::View(_) => Err(Refusal::read_only()),
        }
    }
}

/// Opens a keyspace.
#[unsafe(no_mangle)]
pub extern "C" fn hf_keyspace_open(
    pool: Handle<Source>,
    name: Name,
    given: c_uint,
    mut out: Place<Handle<Keys>>,
) -> c_int {
    status(out.put(|| {
        let source = pool.get()?;
        let create = flags(given, CREATE)? == CREATE;
        let name = name.text()?;
        Ok(match (&*source, create) {
            (Source::Present(pool), false) => {
                Keys::Present(pool.keyspace(name)?, source.object().clone())
            }
            (Source::Present(pool), true) => {
                Keys::Present(pool.keyspace_or_create(name)?, source.object().clone())
            }
            (Source::View(view), _) => Keys::View(view.keyspace(name)?),
        })
    }))
}

/// Closes a keyspace.
#[unsafe(no_mangle)]
pub extern "C" fn hf_keyspace_close(keyspace: Handle<Keys>) {
    drop(keyspace.close());
}

/// Copies a value as far as it fits.
#[unsafe(no_mangle)]
pub extern "C" fn hf_get(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    mut buf: Output,
    cap: usize,
) -> isize {
    count((|| {
        let keys = keyspace.get()?;
        let (key, room) = (key.bytes(key_len)?, buf.room(cap)?);
        let len = match &*keys {
            Keys::Present(keyspace, _) => keyspace.get_into(key, room)?,
            Keys::View(keyspace) => keyspace.get_into(key, room)?,
        };
        len.ok_or_else(Refusal::no_key)
    })())
}

/// Gives a key its value.
#[unsafe(no_mangle)]
pub extern "C" fn hf_put(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    val: Input,
    val_len: usize,
    flags: c_uint,
) -> c_int {
    status((|| {
        let keys = keyspace.get()?;
        let (key, value) = (key.bytes(key_len)?, val.bytes(val_len)?);
        Ok(keys.present()?.put(key, value, durability(flags)?)?)
    })())
}

/// Takes a key away, whether it is there or not.
#[unsafe(no_mangle)]
pub extern "C" fn hf_erase(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    flags: c_uint,
) -> c_int {
    status((|| {
        let keys = keyspace.get()?;
        let key = key.bytes(key_len)?;
        Ok(keys.present()?.erase(key, durability(flags)?)?)
    })())
}

/// Takes a key away and says whether it was there.
#[unsafe(no_mangle)]
pub extern "C" fn hf_remove(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    flags: c_uint,
) -> c_int {
    number((|| {
        let keys = keyspace.get()?;
        let key = key.bytes(key_len)?;
        Ok(keys.present()?.remove(key, durability(flags)?)?.into())
    })())
}

/// Takes a range of keys away.
#[unsafe(no_mangle)]
pub extern "C" fn hf_erase_range(
    keyspace: Handle<Keys>,
    from: Input,
    from_len: usize,
    to: Input,
    to_len: usize,
    flags: c_uint,
) -> c_int {
    status((|| {
        let keys = keyspace.get()?;
        let (from, to) = range(&from, from_len, &to, to_len)?;
        let keyspace = keys.present()?;
        Ok(keyspace.erase_range(from.unwrap_or(&[]), to, durability(flags)?)?)
    })())
}

/// The ends of a range; None: open.
pub type Ends<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// NULL is an open end.
pub fn range<'a>(
    from: &'a Input,
    from_len: usize,
    to: &'a Input,
    to_len: usize,
) -> Result<Ends<'a>, Refusal> {
    let end = |bytes: &'a Input, len| match bytes.is_null() {
        true => Ok(None),
        false => bytes.bytes(len).map(Some),
    };
    Ok((end(from, from_len)?, end(to, to_len)?))
}
