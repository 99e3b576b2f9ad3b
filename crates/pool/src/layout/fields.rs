//! Little-endian fields in a byte slice.
//!
//! Invariant: reading past the end is an error and writing past the end is `None`; neither panics.

use super::{BadValue, bad};

/// Reads fields from the front of a slice.
pub(crate) struct Reading<'a>(pub &'a [u8]);

impl<'a> Reading<'a> {
    pub fn take<const N: usize>(&mut self) -> Result<[u8; N], BadValue> {
        match self.0.split_first_chunk::<N>() {
            Some((first, rest)) => {
                self.0 = rest;
                Ok(*first)
            }
            None => bad("a value is shorter than its fields"),
        }
    }

    pub fn u8(&mut self) -> Result<u8, BadValue> {
        Ok(self.take::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, BadValue> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    pub fn u32(&mut self) -> Result<u32, BadValue> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    pub fn u64(&mut self) -> Result<u64, BadValue> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    pub fn i64(&mut self) -> Result<i64, BadValue> {
        Ok(i64::from_le_bytes(self.take()?))
    }
}

/// Writes fields to the front of a slice.
pub(crate) struct Writing<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writing<'a> {
    pub fn new(out: &'a mut [u8]) -> Self {
        Writing { out, at: 0 }
    }

    pub fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.at.checked_add(bytes.len())?;
        self.out.get_mut(self.at..end)?.copy_from_slice(bytes);
        self.at = end;
        Some(())
    }

    pub fn u16(&mut self, v: u16) -> Option<()> {
        self.put(&v.to_le_bytes())
    }

    pub fn u32(&mut self, v: u32) -> Option<()> {
        self.put(&v.to_le_bytes())
    }

    pub fn u64(&mut self, v: u64) -> Option<()> {
        self.put(&v.to_le_bytes())
    }

    pub fn i64(&mut self, v: i64) -> Option<()> {
        self.put(&v.to_le_bytes())
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.at
    }
}
