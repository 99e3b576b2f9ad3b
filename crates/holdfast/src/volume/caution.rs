//! Writes that are more careful than they need to be: PMBD's sub-block update and read-back
//! verification.
//!
//! Invariant: what is in the volume after a write is the same with and without them.

use super::Written;
use super::content::Content;
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What is compared, and written where it differs.
const LINE: usize = 64;

#[derive(Default)]
pub(super) struct Caution {
    pub verifies: AtomicBool,
    pub spares: AtomicBool,
}

impl Caution {
    #[inline]
    pub fn is_none(&self) -> bool {
        !self.verifies.load(Relaxed) && !self.spares.load(Relaxed)
    }

    /// As `Content::write`.
    #[cold]
    pub fn write(
        &self,
        content: &Content,
        bytes: &[u8],
        offset: u64,
        durable: Written,
    ) -> Result<()> {
        let mut room = vec![0; bytes.len()];
        match self.spares.load(Relaxed) && content.is_plain() {
            true => {
                content.read(&mut room, offset)?;
                write_changed(content, bytes, &room, offset)?;
                if durable == Written::AtReturn {
                    content.file().sync()?;
                }
            }
            false => content.write(bytes, offset, durable)?,
        }
        if self.verifies.load(Relaxed) {
            content.read(&mut room, offset)?;
            if let Some(at) = (0..bytes.len()).find(|at| bytes.get(*at) != room.get(*at)) {
                let at = offset + at as u64;
                let what = format!("byte {at} is not what was just written");
                return Err(Error::VolumeDamaged { what });
            }
        }
        Ok(())
    }
}

/// Writes the lines that are not as they are to be, those in a row at once.
fn write_changed(content: &Content, bytes: &[u8], old: &[u8], offset: u64) -> Result<()> {
    let lines = bytes.chunks(LINE).zip(old.chunks(LINE));
    let differ = lines.map(|(new, old)| new != old).chain([false]);
    let (mut at, mut row) = (0, 0);
    for differs in differ {
        if differs {
            row += LINE;
            continue;
        }
        if let Some(part) = bytes
            .get(at..(at + row).min(bytes.len()))
            .filter(|part| !part.is_empty())
        {
            content.write(part, offset + at as u64, Written::AtFlush)?;
        }
        at += row + LINE;
        row = 0;
    }
    Ok(())
}
