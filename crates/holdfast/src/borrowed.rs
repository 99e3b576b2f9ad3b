//! Values read in place.
//!
//! Invariants: borrowed memory belongs to a pinned view, which is kept until the last borrower is
//! dropped. No reference to it is made here, because other processes of the user can write what
//! they have mapped. Whoever reads through the pointer calls `is_intact` afterwards, and discards
//! what it read if the answer is no.

use crate::error::Result;
use crate::kv;
use crate::view::{View, ViewOf};

/// A value of a view in the pool's own memory, or a copy of it if it is not in one piece.
pub struct Borrowed {
    view: View,
    address: usize,
    len: usize,
    copy: Option<Vec<u8>>,
}

impl Borrowed {
    pub(crate) fn copied(view: View, copy: Vec<u8>) -> Borrowed {
        Borrowed {
            view,
            address: copy.as_ptr() as usize,
            len: copy.len(),
            copy: Some(copy),
        }
    }

    pub(crate) fn at(view: View, address: usize, len: usize) -> Borrowed {
        Borrowed {
            view,
            address,
            len,
            copy: None,
        }
    }

    /// The address of the first byte. Another process may write this memory, so do not read it
    /// through a reference.
    pub fn as_ptr(&self) -> *const u8 {
        self.address as *const u8
    }

    /// The length of the value in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the value is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether this is the pool's own memory and not a copy.
    pub fn is_zero_copy(&self) -> bool {
        self.copy.is_none()
    }

    /// Whether everything read so far was the value: false once the view was given up and its
    /// memory may have been reused.
    pub fn is_intact(&self) -> Result<bool> {
        if self.copy.is_some() {
            return Ok(true);
        }
        match self.view.pinned.reach()? {
            ViewOf::Mapped(client, view) => Ok(view.is_intact(client.session())?),
            ViewOf::Served(..) => Ok(true),
        }
    }
}

pub(crate) fn borrow(view: &View, id: kv::Keyspace, key: &[u8]) -> Result<Option<Borrowed>> {
    let ViewOf::Mapped(client, pinned) = view.pinned.reach()? else {
        return Ok(None);
    };
    match pinned.piece(client.session(), id, key)? {
        Some((address, len)) => Ok(Some(Borrowed::at(view.clone(), address, len))),
        None => Ok(None),
    }
}
