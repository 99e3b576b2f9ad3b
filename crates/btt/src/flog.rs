//! The log of a lane: what its last write was about to do to the map.
//!
//! A lane has two entries, and the sequence number of the newer one follows that of the older one
//! in the cycle 1, 2, 3. Linux had the second entry in another place for some years.
//!
//! Invariant: the sequence number is in the second word of an entry, which is written last, so an
//! entry is there as a whole, or is not the newer one.

use crate::map::Entry;

/// Bytes that the log of a lane takes.
pub const LEN: usize = 64;
const ENTRY_LEN: usize = 16;
const FIRST_SEQUENCE: u32 = 1;

/// The log of one lane, as it is on the medium.
pub type Group = [u8; LEN];

/// Sector `sector` goes from block `old` to `new`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub sector: u32,
    pub old: u32,
    pub new: u32,
    pub sequence: u32,
}

impl Move {
    /// The first entry of lane `lane`, which says that `block` is free.
    pub fn initial(lane: u32, block: u32) -> Move {
        Move {
            sector: lane,
            old: block,
            new: block,
            sequence: FIRST_SEQUENCE,
        }
    }

    /// Its two words; the second makes it the newer one.
    pub fn encode(&self) -> [[u8; 8]; 2] {
        let word = |low: u32, high: u32| (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
        [word(self.sector, self.old), word(self.new, self.sequence)]
    }

    fn decode(bytes: &[u8]) -> Move {
        let number = |at: usize| {
            let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
            u32::from_le_bytes(word.unwrap_or_default())
        };
        Move {
            sector: number(0),
            old: Entry::number(number(4)),
            new: Entry::number(number(8)),
            sequence: number(12),
        }
    }
}

pub fn next_sequence(sequence: u32) -> u32 {
    sequence % 3 + 1
}

/// Where the two entries of each lane are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots([usize; 2]);

impl Slots {
    pub const NEW: Slots = Slots([0, 1]);
    const OLD: Slots = Slots([0, 2]);

    /// As the logs of an arena have them. `None`: as none has them.
    pub fn of(groups: &[Group]) -> Option<Slots> {
        let used = |slot: usize| {
            let entry = slot * ENTRY_LEN..(slot + 1) * ENTRY_LEN;
            groups.iter().any(|group| {
                let bytes = group.get(entry.clone()).unwrap_or_default();
                bytes.iter().any(|byte| *byte != 0)
            })
        };
        match [used(1), used(2), used(3)] {
            [_, false, false] => Some(Slots::NEW),
            [false, true, false] => Some(Slots::OLD),
            _ => None,
        }
    }

    /// Where the entry is, from the beginning of the lane's log.
    pub fn offset(self, slot: usize) -> u64 {
        (self.0.get(slot).copied().unwrap_or_default() * ENTRY_LEN) as u64
    }

    /// The newer entry of a lane, and where it is. `None`: there is none.
    pub fn newest(self, group: &Group) -> Option<(usize, Move)> {
        let [first, second] = self.0.map(|slot| {
            let at = slot * ENTRY_LEN;
            Move::decode(group.get(at..at + ENTRY_LEN).unwrap_or_default())
        });
        match [first.sequence, second.sequence] {
            [1..=3, 0] => Some((0, first)),
            [0, 1..=3] => Some((1, second)),
            [a @ 1..=3, b @ 1..=3] if next_sequence(a) == b => Some((1, second)),
            [a @ 1..=3, b @ 1..=3] if next_sequence(b) == a => Some((0, first)),
            _ => None,
        }
    }
}
