//! `hf_lent_*`: values of views where they lie.
//!
//! Invariant: what is handed out stays mapped and pinned until its handle is closed.

use crate::error::{Refusal, status};
use crate::foreign::{Input, Place, Start};
use crate::keyspace::Keys;
use crate::table::{Handle, kind};
use holdfast::Borrowed;
use std::ffi::c_int;

/// A value that was lent.
pub struct Lent(Borrowed);
kind!(Lent, 7, "lent value");

/// Lends the value of a key.
#[unsafe(no_mangle)]
pub extern "C" fn hf_lend(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    mut val: Place<Start>,
    mut val_len: Place<usize>,
    mut out: Place<Handle<Lent>>,
) -> c_int {
    status((|| {
        let keys = keyspace.get()?;
        let Keys::View(view) = &*keys else {
            return Err(Refusal::invalid("only keyspaces of views lend values"));
        };
        out.check()?;
        let lent = view.borrow(key.bytes(key_len)?)?;
        let lent = lent.ok_or_else(Refusal::no_key)?;
        let (start, len) = (Start::at(lent.as_ptr()), lent.len());
        out.put(|| Ok(Lent(lent)))?;
        val.store(start);
        val_len.store(len);
        Ok(())
    })())
}

/// Whether all that was read up to now was the value.
#[unsafe(no_mangle)]
pub extern "C" fn hf_lent_check(lent: Handle<Lent>) -> c_int {
    status((|| match lent.get()?.0.is_intact()? {
        true => Ok(()),
        false => Err(Refusal::given_up()),
    })())
}

/// Gives it back.
#[unsafe(no_mangle)]
pub extern "C" fn hf_lent_close(lent: Handle<Lent>) {
    drop(lent.close());
}
