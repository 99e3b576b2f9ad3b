//! Chunks: pieces of a stream that are compressed and checked each by itself.
//!
//! Invariants:
//!  * A chunk is a skippable frame of Zstandard (RFC 8878) with our header, and a frame with the
//!    records: so `zstd -t` and `zstd -d` know what to do with a stream.
//!  * The checksum covers the header, and the checksum of the chunk before: one that is missing, or
//!    stands in another place, is noticed.
//!  * Records never cross chunks.
//!  * Of a stream that was begun already, chunks are kept up to the first one that is damaged or
//!    holds other records than those that are written now: so what comes out is what would have
//!    been written anew, but for how it is compressed.

use crate::VERSION;
use crate::error::{Error, Result};
use crate::record::{Record, version_of};
use holdfast_pool::checksum::Crc;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Bytes of records after which a chunk is closed.
const CLOSED_AT: usize = 4 << 20;
/// Bytes of records that a chunk may have: the last one may be as long as a record can be.
const RAW_MAX: usize = 8 << 20;
/// Bytes that they may have when they are compressed.
const PACKED_MAX: usize = RAW_MAX + (1 << 20);
/// Of Zstandard: a skippable frame, and how many bytes of ours are in it.
const SKIPPABLE: u32 = 0x184D_2A58;
const OURS: u32 = 24;
const MARK: [u8; 4] = *b"HFC1";
const HEADER: usize = 8 + OURS as usize;
/// How hard it is compressed: the level at which this is about as fast as a disk.
const LEVEL: i32 = 1;
/// Chunks that are compressed at the same time, at most.
const WORKERS_MAX: usize = 8;

/// A chunk that is to be compressed, and who waits for it.
struct Job {
    raw: Vec<u8>,
    reply: SyncSender<io::Result<Packed>>,
}

struct Packed {
    raw_len: u32,
    bytes: Vec<u8>,
}

/// Where a chunk belongs.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    number: u32,
    /// The checksum of the chunk before.
    before: u32,
    /// Bytes of all chunks before.
    at: u64,
}

impl Place {
    fn behind(self, chunk: &Chunk) -> Place {
        Place {
            number: self.number + 1,
            before: chunk.crc,
            at: self.at + chunk.len,
        }
    }
}

/// What an interrupted save has left of a stream: chunks that hold what would be written are kept.
pub struct Begun<W> {
    /// The first chunk, until it was compared.
    first: Option<Chunk>,
    /// Those behind it.
    chunks: Receiver<Result<Option<Chunk>>>,
    /// Those that were compared end here.
    place: Place,
    cut: fn(&mut W, u64) -> io::Result<()>,
}

impl<W> Begun<W> {
    /// Reads what is there from its beginning, independently of what is written to. From `out`
    /// `cut` removes all behind so many bytes, and has it written to from there. `None`: nothing
    /// is there that could be kept.
    pub fn open(
        input: impl Read + Send + 'static,
        cut: fn(&mut W, u64) -> io::Result<()>,
    ) -> Option<Begun<W>> {
        let chunks = read_ahead(input, Arc::default()).ok()?;
        let first = chunks.recv().ok()?.ok()??;
        (version_of(&first.raw) == Some(VERSION)).then_some(Begun {
            first: Some(first),
            chunks,
            place: Place::default(),
            cut,
        })
    }

    /// The records with which it begins.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let mut rest = self.first.as_ref().map_or(&[][..], |first| &first.raw);
        std::iter::from_fn(move || Record::decode(&mut rest).ok())
    }

    /// Whether the next chunk that is there holds these records.
    fn has(&mut self, raw: &[u8]) -> bool {
        let next = self.first.take();
        let next = next.or_else(|| self.chunks.recv().ok()?.ok()?);
        let same = next.filter(|chunk| chunk.raw == raw);
        self.place = same
            .as_ref()
            .map_or(self.place, |chunk| self.place.behind(chunk));
        same.is_some()
    }
}

/// The threads that compress and write.
struct Threads<W> {
    jobs: SyncSender<Job>,
    order: SyncSender<Receiver<io::Result<Packed>>>,
    writer: JoinHandle<io::Result<W>>,
}

/// Writes records as chunks. Threads of its own compress and write them.
pub struct ChunkWriter<W> {
    raw: Vec<u8>,
    /// As long as what is written is there already; then there are no threads yet.
    begun: Option<(Begun<W>, W)>,
    threads: Option<Threads<W>>,
    kept: u64,
}

impl<W: Write + Send + 'static> ChunkWriter<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Result<ChunkWriter<W>> {
        Ok(ChunkWriter {
            raw: Vec::new(),
            begun: None,
            threads: Some(Threads::begin(out, Place::default())?),
            kept: 0,
        })
    }

    /// Writes to `out`, in which some of it may be already.
    pub fn after(begun: Begun<W>, out: W) -> ChunkWriter<W> {
        ChunkWriter {
            raw: Vec::new(),
            begun: Some((begun, out)),
            threads: None,
            kept: 0,
        }
    }

    /// Bytes that were there, and are kept.
    pub fn kept(&self) -> u64 {
        self.begun
            .as_ref()
            .map_or(self.kept, |(begun, _)| begun.place.at)
    }

    /// What comes now is not there, and has to be written.
    fn cut(&mut self) -> Result<()> {
        if let Some((begun, mut out)) = self.begun.take() {
            self.kept = begun.place.at;
            (begun.cut)(&mut out, self.kept).map_err(Error::Stream)?;
            self.threads = Some(Threads::begin(out, begun.place)?);
        }
        Ok(())
    }

    /// Adds a record.
    pub fn put(&mut self, record: &Record<'_>) -> Result<()> {
        record.encode(&mut self.raw);
        match self.raw.len() >= CLOSED_AT {
            true => self.close(),
            false => Ok(()),
        }
    }

    /// Closes the chunk.
    fn close(&mut self) -> Result<()> {
        if let Some((begun, _)) = &mut self.begun
            && begun.has(&self.raw)
        {
            self.raw.clear();
            return Ok(());
        }
        self.cut()?;
        let raw = std::mem::take(&mut self.raw);
        self.raw.reserve(CLOSED_AT + CLOSED_AT / 4);
        let (reply, packed) = sync_channel(1);
        let sent = self.threads.as_ref().is_some_and(|threads| {
            threads.order.send(packed).is_ok() && threads.jobs.send(Job { raw, reply }).is_ok()
        });
        match sent {
            true => Ok(()),
            // Whoever writes gave up.
            false => Err(self.why()),
        }
    }

    fn why(&mut self) -> Error {
        let gone = || io::Error::other("the thread that writes it is gone");
        match self.threads.take().map(|threads| threads.writer.join()) {
            Some(Ok(Err(error))) => Error::Stream(error),
            _ => Error::Stream(gone()),
        }
    }

    /// Writes what is left; gives back what it wrote to, when everything has been written.
    pub fn finish(mut self) -> Result<W> {
        if !self.raw.is_empty() {
            self.close()?;
        }
        self.cut()?;
        match self.threads.map(Threads::end) {
            Some(Ok(done)) => done.map_err(Error::Stream),
            _ => Err(Error::Stream(io::Error::other("a thread of it died"))),
        }
    }
}

impl<W: Write + Send + 'static> Threads<W> {
    /// The next chunk belongs to `place`, where `out` is.
    fn begin(out: W, place: Place) -> Result<Threads<W>> {
        let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
        let workers = workers.min(WORKERS_MAX);
        let (jobs, todo) = sync_channel(workers);
        let (order, packed) = sync_channel(workers);
        let todo = Arc::new(Mutex::new(todo));
        for _ in 0..workers {
            let todo = todo.clone();
            named("compress")
                .spawn(move || compress(&todo))
                .map_err(Error::Stream)?;
        }
        let writer = named("write").spawn(move || write_chunks(out, place, &packed));
        Ok(Threads {
            jobs,
            order,
            writer: writer.map_err(Error::Stream)?,
        })
    }

    fn end(self) -> std::thread::Result<io::Result<W>> {
        drop((self.jobs, self.order));
        self.writer.join()
    }
}

fn named(name: &str) -> Builder {
    Builder::new().name(name.into())
}

fn compress(todo: &Mutex<Receiver<Job>>) {
    let mut compressor = zstd::bulk::Compressor::new(LEVEL);
    loop {
        let job = todo.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { raw, reply }) = job else { return };
        let packed = match &mut compressor {
            Ok(compressor) => compressor.compress(&raw),
            Err(error) => Err(io::Error::other(error.to_string())),
        };
        let raw_len = raw.len() as u32;
        // Nobody waits any more when writing failed.
        let _ = reply.send(packed.map(|bytes| Packed { raw_len, bytes }));
    }
}

fn write_chunks<W: Write>(
    mut out: W,
    place: Place,
    chunks: &Receiver<Receiver<io::Result<Packed>>>,
) -> io::Result<W> {
    let (mut number, mut before) = (place.number, place.before);
    while let Ok(chunk) = chunks.recv() {
        let gone = |_| io::Error::other("a thread that compresses died");
        let packed = chunk.recv().map_err(gone)??;
        let mut header = Header {
            number,
            packed_len: packed.bytes.len() as u32,
            raw_len: packed.raw_len,
            before,
            crc: 0,
        };
        header.crc = header.checksum(&packed.bytes);
        out.write_all(&header.encode())?;
        out.write_all(&packed.bytes)?;
        (number, before) = (number + 1, header.crc);
    }
    out.flush()?;
    Ok(out)
}

/// What stands before the records of a chunk.
#[derive(Clone, Copy, Debug)]
struct Header {
    /// Counted from 0.
    number: u32,
    packed_len: u32,
    raw_len: u32,
    /// The checksum of the chunk before; 0 for the first.
    before: u32,
    crc: u32,
}

impl Header {
    fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        let words = [
            SKIPPABLE,
            OURS,
            u32::from_le_bytes(MARK),
            self.number,
            self.packed_len,
        ]
        .into_iter()
        .chain([self.raw_len, self.before, self.crc]);
        for (place, word) in out.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// `None`: this is no header.
    fn decode(bytes: &[u8; HEADER]) -> Option<Header> {
        let mut words = [0; HEADER / 4];
        for (word, place) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes(place.try_into().ok()?);
        }
        let [
            skippable,
            ours,
            mark,
            number,
            packed_len,
            raw_len,
            before,
            crc,
        ] = words;
        let is_ours = (skippable, ours, mark) == (SKIPPABLE, OURS, u32::from_le_bytes(MARK));
        is_ours.then_some(Header {
            number,
            packed_len,
            raw_len,
            before,
            crc,
        })
    }

    fn checksum(&self, packed: &[u8]) -> u32 {
        let mut crc = Crc::new();
        crc.update(&self.encode()[8..HEADER - 4]);
        crc.update(packed);
        crc.finish()
    }
}

/// Reads records from chunks. A thread of its own reads and checks what comes next.
pub struct ChunkReader {
    chunks: Receiver<Result<Option<Chunk>>>,
    chunk: Vec<u8>,
    at: usize,
    count: u32,
    /// The checksums of the first chunk and of this one.
    first: u32,
    crc: u32,
    /// Chunks before this one are checked, and nobody reads their records.
    passed: Arc<AtomicU32>,
}

/// A place between two records of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The chunk with the record before it.
    pub chunk: u32,
    /// Its checksum, and with it that of all chunks before.
    pub crc: u32,
    /// Bytes of its records before the place.
    pub at: u32,
}

impl ChunkReader {
    /// Reads from `input`.
    pub fn new(input: impl Read + Send + 'static) -> Result<ChunkReader> {
        let passed = Arc::default();
        let chunks = read_ahead(input, Arc::clone(&passed))?;
        let mut reader = ChunkReader {
            chunks,
            chunk: Vec::new(),
            at: 0,
            count: 0,
            first: 0,
            crc: 0,
            passed,
        };
        reader.next_chunk()?;
        reader.first = reader.crc;
        match version_of(&reader.chunk) {
            Some(VERSION) => Ok(reader),
            Some(found) => Err(Error::Version { found }),
            None => Err(Error::NotAStream),
        }
    }

    /// The next record.
    pub fn next_record(&mut self) -> Result<Record<'_>> {
        if self.at == self.chunk.len() {
            self.next_chunk()?;
        }
        let number = self.count - 1;
        let mut rest = &self.chunk[self.at..];
        let record = Record::decode(&mut rest).map_err(|what| Error::Damaged {
            chunk: number,
            what,
        })?;
        self.at = self.chunk.len() - rest.len();
        Ok(record)
    }

    /// What tells the stream from others: the checksum of its first chunk, which has the time at
    /// which it was begun.
    pub fn id(&self) -> u32 {
        self.first
    }

    /// Behind the record that was read last.
    pub fn position(&self) -> Position {
        Position {
            chunk: self.count - 1,
            crc: self.crc,
            at: self.at as u32,
        }
    }

    /// Goes on at `to`, which is not before this place. Chunks before it are checked, and must lead
    /// to the one that was there.
    pub fn pass(&mut self, to: &Position) -> Result<()> {
        self.passed.store(to.chunk, Relaxed);
        while self.count <= to.chunk {
            self.next_chunk()?;
        }
        let at = to.at as usize;
        match self.position().chunk == to.chunk && self.crc == to.crc && at <= self.chunk.len() {
            true => self.at = at,
            false => return Err(Error::OtherStream { chunk: to.chunk }),
        }
        Ok(())
    }

    /// That nothing follows.
    pub fn end(&mut self) -> Result<()> {
        match (self.at == self.chunk.len(), self.chunks.recv()) {
            (true, Ok(Ok(None))) => Ok(()),
            (_, Ok(Err(error))) => Err(error),
            _ => Err(self.damaged("more follows behind its end")),
        }
    }

    /// What is wrong with the record that was read last.
    pub fn damaged(&self, what: &'static str) -> Error {
        let chunk = self.count.saturating_sub(1);
        Error::Damaged { chunk, what }
    }

    fn next_chunk(&mut self) -> Result<()> {
        match self.chunks.recv() {
            Ok(Ok(Some(chunk))) => {
                (self.chunk, self.at, self.crc) = (chunk.raw, 0, chunk.crc);
                self.count += 1;
                Ok(())
            }
            Ok(Ok(None)) | Err(_) => Err(Error::Ends { chunks: self.count }),
            Ok(Err(error)) => Err(error),
        }
    }
}

/// A chunk that was read and checked.
struct Chunk {
    raw: Vec<u8>,
    /// Bytes of it in the stream.
    len: u64,
    crc: u32,
}

/// Has a thread read and check what comes next. Of chunks that are passed there are no records.
fn read_ahead(
    input: impl Read + Send + 'static,
    passed: Arc<AtomicU32>,
) -> Result<Receiver<Result<Option<Chunk>>>> {
    let (tell, chunks) = sync_channel(2);
    let reading = named("read").spawn(move || read_chunks(input, &passed, &tell));
    reading.map_err(Error::Stream)?;
    Ok(chunks)
}

fn read_chunks(mut input: impl Read, passed: &AtomicU32, tell: &SyncSender<Result<Option<Chunk>>>) {
    let (mut number, mut before) = (0, 0);
    loop {
        let is_passed = number < passed.load(Relaxed);
        let read = read_chunk(&mut input, number, before, is_passed);
        let goes_on = match &read {
            Ok(Some(chunk)) => {
                before = chunk.crc;
                true
            }
            _ => false,
        };
        // Whoever asked may have found something wrong and be gone.
        if tell.send(read).is_err() || !goes_on {
            return;
        }
        number += 1;
    }
}

fn read_chunk(
    input: &mut impl Read,
    number: u32,
    before: u32,
    is_passed: bool,
) -> Result<Option<Chunk>> {
    let mut bytes = [0; HEADER];
    match read_up_to(input, &mut bytes)? {
        0 if number > 0 => return Ok(None),
        HEADER => {}
        _ if number == 0 => return Err(Error::NotAStream),
        _ => return Err(Error::Ends { chunks: number }),
    }
    let damaged = |what| Error::Damaged {
        chunk: number,
        what,
    };
    let header = match Header::decode(&bytes) {
        None if number == 0 => return Err(Error::NotAStream),
        None => return Err(damaged("it does not begin as one")),
        Some(header) => header,
    };
    let (packed_len, raw_len) = (header.packed_len as usize, header.raw_len as usize);
    if packed_len > PACKED_MAX || raw_len > RAW_MAX || raw_len == 0 {
        return Err(damaged("its length"));
    }
    let mut packed = vec![0; packed_len];
    if read_up_to(input, &mut packed)? < packed_len {
        return Err(Error::Ends { chunks: number });
    }
    if header.checksum(&packed) != header.crc {
        return Err(damaged("its checksum"));
    }
    if (header.number, header.before) != (number, before) {
        return Err(damaged("it is not the one that belongs here"));
    }
    let (len, crc) = ((HEADER + packed_len) as u64, header.crc);
    if is_passed {
        let raw = Vec::new();
        return Ok(Some(Chunk { raw, len, crc }));
    }
    match zstd::bulk::decompress(&packed, raw_len) {
        Ok(raw) if raw.len() == raw_len => Ok(Some(Chunk { raw, len, crc })),
        _ => Err(damaged("it cannot be decompressed")),
    }
}

/// Fills `out` as far as there is something; how far.
fn read_up_to(input: &mut impl Read, out: &mut [u8]) -> Result<usize> {
    let mut len = 0;
    while len < out.len() {
        match input.read(&mut out[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::Stream(e)),
        }
    }
    Ok(len)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The same records in chunks of a few each, of as many as `few` says.
    pub fn in_small_chunks(stream: &[u8], mut few: impl FnMut() -> u64) -> Vec<u8> {
        let mut reader = ChunkReader::new(io::Cursor::new(stream.to_vec())).unwrap();
        let mut writer = ChunkWriter::new(Vec::new()).unwrap();
        let mut left = few();
        loop {
            let record = reader.next_record().unwrap();
            let is_end = record == Record::End;
            writer.put(&record).unwrap();
            if is_end {
                return writer.finish().unwrap();
            }
            left = left.saturating_sub(1);
            if left == 0 && !writer.raw.is_empty() {
                writer.close().unwrap();
                left = few();
            }
        }
    }

    /// A stream of another version, whose records nobody knows.
    pub fn of_version(version: u16) -> Vec<u8> {
        let [low, high] = version.to_le_bytes();
        let raw = [&[1, 2, 0, low, high][..], &[9; 40]].concat();
        let bytes = zstd::bulk::compress(&raw, LEVEL).unwrap();
        let mut header = Header {
            number: 0,
            packed_len: bytes.len() as u32,
            raw_len: raw.len() as u32,
            before: 0,
            crc: 0,
        };
        header.crc = header.checksum(&bytes);
        [&header.encode()[..], &bytes].concat()
    }
}
