//! Reading one journal lane that an untrusted process writes.
//!
//! Invariants: a record is copied out of the journal before any of it is looked at; the position
//! only grows, by what was read here, never by what the client says; the sequence numbers of the
//! records read strictly increase. Every call reads a bounded number of bytes.

use holdfast_pmem::Region;
use holdfast_pool::journal::{self, BATCH_RECORD_MAX, RECORD_ALIGN, RECORD_HEADER};

/// A record copied out of a lane, with a checksum that matched.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its number.
    pub seq: u64,
    /// The lane that it was in.
    pub lane: usize,
    /// Position behind it.
    pub end: u64,
    /// The record as `journal::decode` takes it.
    pub bytes: Vec<u8>,
}

/// Buffers of records that were applied, for those to come.
#[derive(Debug, Default)]
pub struct Buffers {
    short: Vec<Vec<u8>>,
    long: Vec<Vec<u8>>,
}

/// Short buffers that are kept, and how long they may be.
const SHORT_MAX: usize = 16 * 1024;
const SHORT_LEN_MAX: usize = 1024;
/// Longer ones that are kept: of records of many changes, of which few wait at a time.
const LONG_MAX: usize = 8;

impl Buffers {
    /// One of `len` bytes, of which each is to be written: they may be those of another record.
    fn take(&mut self, len: usize) -> Vec<u8> {
        let kept = match len > SHORT_LEN_MAX {
            true => self.long.pop(),
            false => self.short.pop(),
        };
        let mut buffer = kept.unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }

    /// Takes a buffer back.
    pub fn put(&mut self, buffer: Vec<u8>) {
        let (kept, most) = match buffer.capacity() > SHORT_LEN_MAX {
            true => (&mut self.long, LONG_MAX),
            false => (&mut self.short, SHORT_MAX),
        };
        if kept.len() < most {
            kept.push(buffer);
        }
    }
}

/// Where the reading of one lane has come to.
#[derive(Clone, Debug)]
pub struct Lane {
    index: usize,
    /// Offset of the lane in the journal segment.
    base: u64,
    len: u64,
    position: u64,
    last_seq: u64,
}

impl Lane {
    /// Continues behind `position`, where the last record was `last_seq`.
    pub fn new(index: usize, len: u64, position: u64, last_seq: u64) -> Lane {
        Lane {
            index,
            base: index as u64 * len,
            len,
            position,
            last_seq,
        }
    }

    /// Position behind the last record that was read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Number of the last record that was read.
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Goes on at a position ahead, where a record was found behind damage.
    pub fn skip_to(&mut self, position: u64) {
        self.position = position.max(self.position);
    }

    /// The next complete record, if there is one.
    ///
    /// A record never crosses the end of the ring: a writer that has no room there goes on at the
    /// start. So where no newer record begins, the start of the ring is the only other place, and
    /// only for a record that has no room here.
    pub fn next(&mut self, journal: &Region, buffers: &mut Buffers) -> Option<Entry> {
        let offset = self.position % self.len;
        let wrapped = self.position - offset + self.len;
        let entry = match self.read(journal, self.position, buffers) {
            Some(entry) => entry,
            None if offset > 0 => {
                let entry = self.read(journal, wrapped, buffers)?;
                let has_room = entry.end - wrapped <= self.len - offset;
                Some(entry).filter(|_| !has_room)?
            }
            None => return None,
        };
        self.position = entry.end;
        self.last_seq = entry.seq;
        Some(entry)
    }

    fn read(&self, journal: &Region, position: u64, buffers: &mut Buffers) -> Option<Entry> {
        let offset = position % self.len;
        let room = (self.len - offset).min(BATCH_RECORD_MAX as u64) as usize;
        let mut head = [0; RECORD_HEADER];
        if room < RECORD_HEADER {
            return None;
        }
        journal.read(self.base + offset, &mut head).ok()?;
        let header = journal::peek(&head).ok()?;
        let padded = header.padded_len().next_multiple_of(RECORD_ALIGN);
        if !self.is_next(&header) || padded > room {
            return None;
        }
        let mut bytes = buffers.take(header.len);
        journal.read(self.base + offset, &mut bytes).ok()?;
        // The header is read again from the copy: the first look was only for the length.
        let (header, _) = journal::decode(&bytes).ok()?;
        if !self.is_next(&header) || header.len != bytes.len() {
            return None;
        }
        let end = position + padded as u64;
        Some(Entry {
            seq: header.seq,
            lane: self.index,
            end,
            bytes,
        })
    }

    fn is_next(&self, header: &journal::Header) -> bool {
        header.seq > self.last_seq && usize::from(header.lane) == self.index
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_pool::journal::Record;

    const LEN: u64 = 4096;

    fn journal() -> Region {
        Region::in_memory(4 * LEN as usize).unwrap()
    }

    /// Appends as a client does and returns the position behind the record.
    fn append(region: &Region, lane: u64, position: u64, seq: u64, data: &[u8]) -> u64 {
        let record = Record::Inline {
            ino: 5,
            mtime: 0,
            ctime: 0,
            data,
        };
        let mut bytes = [0; 2048];
        let n = record.encode(seq, lane as u16).copy_to(&mut bytes).unwrap() as u64;
        let offset = position % LEN;
        let start = if offset + n > LEN {
            position - offset + LEN
        } else {
            position
        };
        region
            .write_nt(lane * LEN + start % LEN, &bytes[..n as usize])
            .unwrap();
        start + n
    }

    #[test]
    fn records_come_back_over_many_laps() {
        let region = journal();
        let mut lane = Lane::new(2, LEN, 0, 0);
        let mut position = 0;
        for seq in 1..1000 {
            let data = vec![seq as u8; (seq * 37 % 1500) as usize];
            position = append(&region, 2, position, seq, &data);
            let entry = lane.next(&region, &mut Buffers::default()).unwrap();
            assert_eq!((entry.seq, entry.end), (seq, position));
            assert!(
                lane.next(&region, &mut Buffers::default()).is_none(),
                "an old lap came back after {seq}"
            );
        }
    }

    #[test]
    fn torn_and_foreign_records_do_not_exist() {
        let region = journal();
        let end = append(&region, 1, 0, 7, b"first");
        append(&region, 1, end, 8, b"second");
        let torn = LEN + end + 40;
        region.store(torn, &[0xff]).unwrap();
        let mut lane = Lane::new(1, LEN, 0, 6);
        assert_eq!(lane.next(&region, &mut Buffers::default()).unwrap().seq, 7);
        assert!(lane.next(&region, &mut Buffers::default()).is_none());
        // A record of lane 1 means nothing in lane 3.
        let mut bytes = [0; 64];
        region.read(LEN, &mut bytes).unwrap();
        region.store(3 * LEN, &bytes).unwrap();
        assert!(
            Lane::new(3, LEN, 0, 0)
                .next(&region, &mut Buffers::default())
                .is_none()
        );
    }

    #[test]
    fn noise_never_makes_a_record_or_a_panic() {
        let region = journal();
        let mut x = 1u64;
        for _ in 0..2000 {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let at = (x >> 20) % (4 * LEN - 8);
            let mut noise = x.to_le_bytes();
            if x & 3 == 0 {
                noise[..4].copy_from_slice(&journal::RECORD_MAGIC.to_le_bytes());
            }
            region.store(at & !63, &noise).unwrap();
            for index in 0..4 {
                assert!(
                    Lane::new(index, LEN, (x % (1 << 40)) & !63, 0)
                        .next(&region, &mut Buffers::default())
                        .is_none()
                );
            }
        }
    }
}
