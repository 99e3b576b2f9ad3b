//! `hf_writer_*` and `hf_reader_*`: values piece by piece.
//!
//! Invariant: a value that is not finished was never there.

use crate::durability;
use crate::error::{Refusal, count, status};
use crate::foreign::{Input, Output, Place};
use crate::keyspace::Keys;
use crate::table::{Handle, kind};
use holdfast::{ValueReader, ValueWriter};
use std::ffi::{c_int, c_uint};
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::{Mutex, PoisonError};

/// A value on its way in; None once it was finished.
pub struct Writer(Mutex<Option<ValueWriter>>);
kind!(Writer, 5, "writer");

impl Writer {
    pub fn new(writer: ValueWriter) -> Writer {
        Writer(Mutex::new(Some(writer)))
    }
}

/// A value on its way out.
pub struct Reader(Mutex<ValueReader>);
kind!(Reader, 6, "reader");

/// Begins a value.
#[unsafe(no_mangle)]
pub extern "C" fn hf_writer_open(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    mut out: Place<Handle<Writer>>,
) -> c_int {
    status(out.put(|| {
        let keys = keyspace.get()?;
        let writer = keys.present()?.writer(key.bytes(key_len)?)?;
        Ok(Writer::new(writer))
    }))
}

/// Adds to it.
#[unsafe(no_mangle)]
pub extern "C" fn hf_writer_write(writer: Handle<Writer>, buf: Input, len: usize) -> c_int {
    status((|| {
        let writer = writer.get()?;
        let mut writer = writer.0.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = writer.as_mut().ok_or_else(|| Refusal::handle("writer"))?;
        Ok(writer.write_all(buf.bytes(len)?)?)
    })())
}

/// Makes it the value of its key.
#[unsafe(no_mangle)]
pub extern "C" fn hf_writer_finish(writer: Handle<Writer>, flags: c_uint) -> c_int {
    status((|| {
        let writer = writer.close()?;
        let durability = durability(flags)?;
        let taken = {
            let mut writer = writer.0.lock().unwrap_or_else(PoisonError::into_inner);
            writer.take()
        };
        let writer = taken.ok_or_else(|| Refusal::handle("writer"))?;
        Ok(writer.finish(durability)?)
    })())
}

/// Forgets it.
#[unsafe(no_mangle)]
pub extern "C" fn hf_writer_abort(writer: Handle<Writer>) {
    drop(writer.close());
}

/// Opens the value of a key.
#[unsafe(no_mangle)]
pub extern "C" fn hf_reader_open(
    keyspace: Handle<Keys>,
    key: Input,
    key_len: usize,
    mut out: Place<Handle<Reader>>,
) -> c_int {
    status(out.put(|| {
        let keys = keyspace.get()?;
        let key = key.bytes(key_len)?;
        let reader = match &*keys {
            Keys::Present(keyspace, _) => keyspace.reader(key)?,
            Keys::View(keyspace) => keyspace.reader(key)?,
        };
        let reader = reader.ok_or_else(Refusal::no_key)?;
        Ok(Reader(Mutex::new(reader)))
    }))
}

/// Copies a part of it.
#[unsafe(no_mangle)]
pub extern "C" fn hf_reader_read(
    reader: Handle<Reader>,
    mut buf: Output,
    len: usize,
    offset: u64,
) -> isize {
    count((|| {
        let reader = reader.get()?;
        let mut reader = reader.0.lock().unwrap_or_else(PoisonError::into_inner);
        reader.seek(SeekFrom::Start(offset))?;
        let room = buf.room(len)?;
        let mut done = 0;
        while let Some(rest) = room.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match reader.read(rest)? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done as u64)
    })())
}

/// Closes it.
#[unsafe(no_mangle)]
pub extern "C" fn hf_reader_close(reader: Handle<Reader>) {
    drop(reader.close());
}
