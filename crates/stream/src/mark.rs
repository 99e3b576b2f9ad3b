//! How far the restore of a new pool has come: an entry of the pool itself.
//!
//! Invariants:
//!  * A commit that adds what records say has the mark behind the last of them. So whatever
//!    interrupts a restore, the pool has what the stream says before its mark, and nothing else.
//!  * Only a pool that is not complete has a mark.

use crate::chunk::Position;
use crate::error::Result;
use crate::record::COUNTS;
use crate::restore::Restored;
use crate::save::Progress;
use holdfast_pool::layout::RESTORE;
use holdfast_pool::snapshot;
use holdfast_pool::tree::{Batch, VALUE_MAX};
use holdfast_pool::{Pool, WriteToken};

/// The only key of its tree.
const KEY: &[u8] = &[0];
/// Bytes before the name of the state.
const FIXED: usize = 6 * 4 + 3 * 8 + 8 * COUNTS + 1;

/// Where in a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before the first one.
    #[default]
    Before = 0,
    /// Between its first record and its last.
    Within = 1,
    /// Behind its last record; its snapshot may not be there yet.
    Behind = 2,
}

/// What a state begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateHead {
    pub name: Vec<u8>,
    pub time: i64,
    pub counts: [u64; COUNTS],
}

/// How far it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Which stream it is (`ChunkReader::id`).
    pub(crate) stream: u32,
    pub(crate) position: Position,
    pub(crate) phase: Phase,
    /// States that were begun, and the last of them.
    pub(crate) states: u32,
    pub(crate) state: StateHead,
    pub(crate) done: Restored,
}

impl Mark {
    /// The mark of this pool. `None`: it is complete, or nobody restores it.
    pub fn of(pool: &Pool) -> Result<Option<Mark>> {
        let mut value = [0; VALUE_MAX];
        let len = pool.reader().get(RESTORE, KEY, &mut value)?;
        Ok(len.and_then(|len| Mark::decode(value.get(..len)?)))
    }

    /// Whether there is anything before it.
    pub fn has_any(&self) -> bool {
        self.phase != Phase::Before
    }

    /// Puts it where the last one was.
    pub(crate) fn put(&self, batch: &mut Batch<'_>) -> Result<()> {
        batch.put(RESTORE, KEY, &self.encode())?;
        Ok(())
    }

    /// Commits it alone.
    pub(crate) fn commit(&self, pool: &mut Pool, token: &WriteToken) -> Result<()> {
        let mut batch = pool.begin(token);
        self.put(&mut batch)?;
        batch.commit(|_| {})?;
        Ok(())
    }

    fn encode(&self) -> Vec<u8> {
        let Position { chunk, crc, at } = self.position;
        let Progress { entries, bytes } = self.done.progress;
        let mut out = Vec::with_capacity(FIXED + self.state.name.len());
        let states = [self.done.snapshots, self.states];
        for word in [self.stream, chunk, crc, at].into_iter().chain(states) {
            out.extend(word.to_le_bytes());
        }
        let time = self.state.time as u64;
        for word in [entries, bytes, time].into_iter().chain(self.state.counts) {
            out.extend(word.to_le_bytes());
        }
        out.push(self.phase as u8);
        out.extend(&self.state.name);
        out
    }

    /// `None`: this is no mark.
    fn decode(value: &[u8]) -> Option<Mark> {
        let (fixed, name) = value.split_at_checked(FIXED)?;
        let (words, rest) = fixed.split_at(6 * 4);
        let (longs, rest) = rest.split_at(8 * (3 + COUNTS));
        let mut words = words
            .chunks_exact(4)
            .filter_map(|word| Some(u32::from_le_bytes(word.try_into().ok()?)));
        let mut longs = longs
            .chunks_exact(8)
            .filter_map(|long| Some(u64::from_le_bytes(long.try_into().ok()?)));
        let stream = words.next()?;
        let position = Position {
            chunk: words.next()?,
            crc: words.next()?,
            at: words.next()?,
        };
        let (snapshots, states) = (words.next()?, words.next()?);
        let progress = Progress {
            entries: longs.next()?,
            bytes: longs.next()?,
        };
        let mut state = StateHead {
            name: name.to_vec(),
            time: longs.next()? as i64,
            counts: [0; COUNTS],
        };
        for (count, long) in state.counts.iter_mut().zip(longs) {
            *count = long;
        }
        let phase = match rest[0] {
            0 => Phase::Before,
            1 => Phase::Within,
            2 => Phase::Behind,
            _ => return None,
        };
        if !name.is_empty() && !snapshot::is_legal_name(name) {
            return None;
        }
        Some(Mark {
            stream,
            position,
            phase,
            states,
            state,
            done: Restored {
                progress,
                snapshots,
                ..Restored::default()
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_comes_back_and_nothing_else_is_one() {
        let mark = Mark {
            stream: 1,
            position: Position {
                chunk: 2,
                crc: 3,
                at: 4,
            },
            phase: Phase::Behind,
            states: 10,
            state: StateHead {
                name: vec![b'n'; 255],
                time: -5,
                counts: [6; COUNTS],
            },
            done: Restored {
                progress: Progress {
                    entries: 7,
                    bytes: 8,
                },
                snapshots: 9,
                ..Restored::default()
            },
        };
        let bytes = mark.encode();
        assert!(bytes.len() <= VALUE_MAX);
        assert_eq!(Mark::decode(&bytes), Some(mark));
        assert_eq!(Mark::decode(&bytes[..FIXED - 1]), None);
        let mut other = bytes.clone();
        other[FIXED - 1] = 3;
        assert_eq!(Mark::decode(&other), None);
        other = bytes;
        other[FIXED] = b'/';
        assert_eq!(Mark::decode(&other), None);
    }
}
