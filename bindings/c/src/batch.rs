//! `hf_batch_*`.
//!
//! Invariant: a batch is given to the pool once, by the call that takes its handle away.

use crate::durability;
use crate::error::{Refusal, status};
use crate::foreign::{Input, Place};
use crate::keyspace::{Keys, range};
use crate::pool::Source;
use crate::table::{Handle, kind};
use holdfast::{Batch, Keyspace};
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, Mutex, PoisonError};

/// Changes that were collected.
pub struct Collected {
    state: Mutex<State>,
}
kind!(Collected, 3, "batch");

struct State {
    /// None once it was given to the pool.
    batch: Option<Batch>,
    /// What comes next is for this one.
    keyspace: Keyspace,
    source: Arc<Source>,
}

/// The keyspace itself and its pool.
fn parts(keys: &Keys) -> Result<(&Keyspace, &Arc<Source>), Refusal> {
    match keys {
        Keys::Present(keyspace, source) => Ok((keyspace, source)),
        Keys::View(_) => Err(Refusal::read_only()),
    }
}

pub fn change(
    batch: Handle<Collected>,
    make: impl FnOnce(&mut Batch, &Keyspace) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let collected = batch.get()?;
    let mut state = collected
        .state
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let State {
        batch, keyspace, ..
    } = &mut *state;
    let batch = batch.as_mut().ok_or_else(|| Refusal::handle("batch"))?;
    make(batch, keyspace)
}

/// A batch without changes.
#[unsafe(no_mangle)]
pub extern "C" fn hf_batch_begin(
    keyspace: Handle<Keys>,
    mut out: Place<Handle<Collected>>,
) -> c_int {
    status(out.put(|| {
        let keys = keyspace.get()?;
        let (keyspace, source) = parts(&keys)?;
        Ok(Collected {
            state: Mutex::new(State {
                batch: Some(source.present()?.batch()),
                keyspace: keyspace.clone(),
                source: source.clone(),
            }),
        })
    }))
}

/// What comes next is for another keyspace.
#[unsafe(no_mangle)]
pub extern "C" fn hf_batch_keyspace(batch: Handle<Collected>, keyspace: Handle<Keys>) -> c_int {
    status((|| {
        let (collected, keys) = (batch.get()?, keyspace.get()?);
        let (keyspace, source) = parts(&keys)?;
        let mut state = collected
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&state.source, source) {
            return Err(Refusal::other_pool());
        }
        state.keyspace = keyspace.clone();
        Ok(())
    })())
}

/// Adds a put.
#[unsafe(no_mangle)]
pub extern "C" fn hf_batch_put(
    batch: Handle<Collected>,
    key: Input,
    key_len: usize,
    val: Input,
    val_len: usize,
) -> c_int {
    status(change(batch, |batch, keyspace| {
        let (key, value) = (key.bytes(key_len)?, val.bytes(val_len)?);
        Ok(batch.put(keyspace, key, value)?)
    }))
}

/// Adds an erase.
#[unsafe(no_mangle)]
pub extern "C" fn hf_batch_erase(batch: Handle<Collected>, key: Input, key_len: usize) -> c_int {
    status(change(batch, |batch, keyspace| {
        Ok(batch.erase(keyspace, key.bytes(key_len)?)?)
    }))
}

/// Adds the erasing of a range.
#[unsafe(no_mangle)]
pub extern "C" fn hf_batch_erase_range(
    batch: Handle<Collected>,
    from: Input,
    from_len: usize,
    to: Input,
    to_len: usize,
) -> c_int {
    status(change(batch, |batch, keyspace| {
        let (from, to) = range(&from, from_len, &to, to_len)?;
        Ok(batch.erase_range(keyspace, from.unwrap_or(&[]), to)?)
    }))
}

/// All of it, or nothing.
#[unsafe(no_mangle)]
pub extern "C" fn hf_batch_commit(batch: Handle<Collected>, flags: c_uint) -> c_int {
    status((|| {
        let collected = batch.close()?;
        let durability = durability(flags)?;
        let taken = {
            let mut state = collected
                .state
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            state.batch.take()
        };
        let batch = taken.ok_or_else(|| Refusal::handle("batch"))?;
        Ok(batch.commit(durability)?)
    })())
}

/// Nothing of it.
#[unsafe(no_mangle)]
pub extern "C" fn hf_batch_abort(batch: Handle<Collected>) {
    drop(batch.close());
}
