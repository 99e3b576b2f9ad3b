//! Values that expire.
//!
//! Invariant: whatever a call is given is checked before anything is changed.

use crate::batch::{Collected, change};
use crate::durability;
use crate::error::{Refusal, number, status};
use crate::foreign::{Input, Output, Place};
use crate::keyspace::Keys;
use crate::scan::Way;
use crate::stream::Writer;
use crate::table::Handle;
use crate::whole::{expected_value, tell};
use holdfast::{Expires, ExpirySwap};
use std::ffi::{c_int, c_uint};
use std::sync::PoisonError;
use std::time::Duration;

const NEVER: i64 = 0;
const ENOENT: i64 = 2;

/// A time as programs give it.
fn expiry(time: i64) -> Expires {
    match time {
        NEVER => Expires::Never,
        time => Expires::At(time),
    }
}

/// A time as programs get it.
fn told(expires: Expires) -> i64 {
    match expires {
        Expires::Never => NEVER,
        Expires::At(time) => time,
    }
}

/// The time that is so long from now.
#[unsafe(no_mangle)]
pub extern "C" fn hf_expires_after(milliseconds: u64) -> i64 {
    told(Expires::after(Duration::from_millis(milliseconds)))
}

/// Gives a key a value that expires.
#[unsafe(no_mangle)]
pub extern "C" fn hf_put_until(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    val: Input,
    val_len: usize,
    expires: i64,
    flags: c_uint,
) -> c_int {
    status((|| {
        let keys = keyspace.get()?;
        let (key, value) = (key.bytes(key_len)?, val.bytes(val_len)?);
        let (keyspace, wanted) = (keys.present()?, durability(flags)?);
        Ok(keyspace.put_until(key, value, expiry(expires), wanted)?)
    })())
}

/// Adds a put of a value that expires.
#[unsafe(no_mangle)]
pub extern "C" fn hf_batch_put_until(
    batch: Handle<Collected>,
    key: Input,
    key_len: usize,
    val: Input,
    val_len: usize,
    expires: i64,
) -> c_int {
    status(change(batch, |batch, keyspace| {
        let (key, value) = (key.bytes(key_len)?, val.bytes(val_len)?);
        Ok(batch.put_until(keyspace, key, value, expiry(expires))?)
    }))
}

/// Gives a key a value that expires if it has another one.
#[unsafe(no_mangle)]
pub extern "C" fn hf_put_if_until(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    expected: Input,
    expected_len: usize,
    val: Input,
    val_len: usize,
    expires: i64,
    flags: c_uint,
    mut buf: Output,
    cap: usize,
    mut len: Place<isize>,
) -> c_int {
    number((|| {
        let keys = keyspace.get()?;
        let (key, value) = (key.bytes(key_len)?, val.bytes(val_len)?);
        let room = buf.room(cap)?;
        let (keyspace, wanted) = (keys.present()?, durability(flags)?);
        let expected = expected_value(&expected, expected_len)?;
        let swap = keyspace.put_if_until(key, expected, value, expiry(expires), wanted)?;
        tell(&swap, room, &mut len)
    })())
}

/// Says anew when a key expires.
#[unsafe(no_mangle)]
pub extern "C" fn hf_expire(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    expires: i64,
    flags: c_uint,
) -> c_int {
    status((|| {
        let keys = keyspace.get()?;
        let (key, wanted) = (key.bytes(key_len)?, durability(flags)?);
        match keys.present()?.expire(key, expiry(expires), wanted)? {
            true => Ok(()),
            false => Err(Refusal::no_key()),
        }
    })())
}

/// When a key expires.
#[unsafe(no_mangle)]
pub extern "C" fn hf_expires(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    mut expires: Place<i64>,
) -> c_int {
    status((|| {
        let (keys, key) = (keyspace.get()?, key.bytes(key_len)?);
        let found = match &*keys {
            Keys::Present(keyspace, _) => keyspace.expires(key)?,
            Keys::View(keyspace) => keyspace.expires(key)?,
        };
        expires.store(told(found.ok_or_else(Refusal::no_key)?));
        Ok(())
    })())
}

/// When the value that a scan gave last expires.
#[unsafe(no_mangle)]
pub extern "C" fn hf_scan_expires(scan: Handle<Way>, mut expires: Place<i64>) -> c_int {
    status((|| {
        let way = scan.get()?;
        let scan = way.0.lock().unwrap_or_else(PoisonError::into_inner);
        expires.store(told(scan.expires()));
        Ok(())
    })())
}

/// The time at which a key is to expire; `NEVER` is what is not asked for: any.
fn wanted(at: i64) -> Option<i64> {
    (at != NEVER).then_some(at)
}

/// What became of a change, and when the key expires now.
fn tell_expiry(swap: ExpirySwap, present: &mut Place<i64>) -> Result<c_int, Refusal> {
    present.store(swap.present.map_or(-ENOENT, told));
    Ok(swap.done.into())
}

/// Gives a key a value if it expires.
#[unsafe(no_mangle)]
pub extern "C" fn hf_put_if_expires(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    at: i64,
    val: Input,
    val_len: usize,
    expires: i64,
    flags: c_uint,
    mut present: Place<i64>,
) -> c_int {
    number((|| {
        let keys = keyspace.get()?;
        let (key, value) = (key.bytes(key_len)?, val.bytes(val_len)?);
        let (keyspace, lasts) = (keys.present()?, durability(flags)?);
        let swap = keyspace.put_if_expires(key, wanted(at), value, expiry(expires), lasts)?;
        tell_expiry(swap, &mut present)
    })())
}

/// Takes a key away if it expires.
#[unsafe(no_mangle)]
pub extern "C" fn hf_erase_if_expires(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    at: i64,
    flags: c_uint,
    mut present: Place<i64>,
) -> c_int {
    number((|| {
        let keys = keyspace.get()?;
        let (key, lasts) = (key.bytes(key_len)?, durability(flags)?);
        let swap = keys.present()?.erase_if_expires(key, wanted(at), lasts)?;
        tell_expiry(swap, &mut present)
    })())
}

/// Says anew when a key expires, if it does.
#[unsafe(no_mangle)]
pub extern "C" fn hf_expire_if(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    at: i64,
    expires: i64,
    flags: c_uint,
    mut present: Place<i64>,
) -> c_int {
    number((|| {
        let keys = keyspace.get()?;
        let (key, lasts) = (key.bytes(key_len)?, durability(flags)?);
        let keyspace = keys.present()?;
        let swap = keyspace.expire_if(key, wanted(at), expiry(expires), lasts)?;
        tell_expiry(swap, &mut present)
    })())
}

/// Begins a value that expires.
#[unsafe(no_mangle)]
pub extern "C" fn hf_writer_open_until(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    expires: i64,
    mut out: Place<Handle<Writer>>,
) -> c_int {
    status(out.put(|| {
        let (keys, key) = (keyspace.get()?, key.bytes(key_len)?);
        let writer = keys.present()?.writer_until(key, expiry(expires))?;
        Ok(Writer::new(writer))
    }))
}
