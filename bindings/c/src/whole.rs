//! Keyspaces as a whole, and changes that depend on a value.
//!
//! Invariant: whatever a call is given is checked before anything is changed.

use crate::error::{Refusal, count, number, status};
use crate::foreign::{Input, Name, Output, Place};
use crate::keyspace::Keys;
use crate::pool::Source;
use crate::table::Handle;
use crate::{REPLACE, durability, flags};
use holdfast::Swap;
use std::ffi::{c_int, c_uint};

const ENOENT: isize = 2;

/// Removes a keyspace and all its keys.
#[unsafe(no_mangle)]
pub extern "C" fn hf_keyspace_drop(pool: Handle<Source>, name: Name) -> c_int {
    status((|| {
        Ok(pool.get()?.present()?.keyspace_drop(name.text()?)?)
    })())
}

/// Gives a keyspace another name.
#[unsafe(no_mangle)]
pub extern "C" fn hf_keyspace_rename(
    pool: Handle<Source>,
    name: Name,
    new: Name,
    given: c_uint,
) -> c_int {
    status((|| {
        let replace = flags(given, REPLACE)? == REPLACE;
        let source = pool.get()?;
        let pool = source.present()?;
        Ok(pool.keyspace_rename(name.text()?, new.text()?, replace)?)
    })())
}

/// How many keys there are.
#[unsafe(no_mangle)]
pub extern "C" fn hf_keyspace_count(keyspace: Handle<Keys>) -> isize {
    count((|| {
        Ok(match &*keyspace.get()? {
            Keys::Present(keyspace, _) => keyspace.count()?,
            Keys::View(keyspace) => keyspace.count()?,
        })
    })())
}

/// Gives a key its value if it has another one.
#[unsafe(no_mangle)]
pub extern "C" fn hf_put_if(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    expected: Input,
    expected_len: usize,
    val: Input,
    val_len: usize,
    flags: c_uint,
    mut buf: Output,
    cap: usize,
    mut len: Place<isize>,
) -> c_int {
    number((|| {
        let keys = keyspace.get()?;
        let (key, value) = (key.bytes(key_len)?, val.bytes(val_len)?);
        let room = buf.room(cap)?;
        let keyspace = keys.present()?;
        let expected = expected_value(&expected, expected_len)?;
        let swap = keyspace.put_if(key, expected, value, durability(flags)?)?;
        tell(&swap, room, &mut len)
    })())
}

/// Takes a key away if it has a value.
#[unsafe(no_mangle)]
pub extern "C" fn hf_erase_if(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    expected: Input,
    expected_len: usize,
    flags: c_uint,
    mut buf: Output,
    cap: usize,
    mut len: Place<isize>,
) -> c_int {
    number((|| {
        let keys = keyspace.get()?;
        let (key, expected) = (key.bytes(key_len)?, expected.bytes(expected_len)?);
        let room = buf.room(cap)?;
        let swap = keys
            .present()?
            .erase_if(key, expected, durability(flags)?)?;
        tell(&swap, room, &mut len)
    })())
}

/// The value that a change expects; NULL: none.
pub fn expected_value(expected: &Input, len: usize) -> Result<Option<&[u8]>, Refusal> {
    match expected.is_null() && len == 0 {
        true => Ok(None),
        false => Ok(Some(expected.bytes(len)?)),
    }
}

/// What became of a change, and the value that there is.
pub fn tell(swap: &Swap, room: &mut [u8], len: &mut Place<isize>) -> Result<c_int, Refusal> {
    len.store(match &swap.present {
        None => -ENOENT,
        Some(value) => {
            let fits = value.len().min(room.len());
            room[..fits].copy_from_slice(&value[..fits]);
            value.len() as isize
        }
    });
    Ok(swap.done.into())
}
