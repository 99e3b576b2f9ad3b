//! An entry of the map: in which block a sector is.

/// Both flags: a block that was written. Neither: the sector is where it was at first, in the block
/// of its own number.
const ZERO: u32 = 1 << 31;
const ERROR: u32 = 1 << 30;
const NUMBER: u32 = ERROR - 1;

/// Bytes of an entry.
pub const LEN: usize = 4;

/// As it is on the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry(u32);

impl Entry {
    /// Of a sector that was written to `block`.
    pub fn written(block: u32) -> Entry {
        Entry(block & NUMBER | ZERO | ERROR)
    }

    /// Of a sector that reads as zeroes, and keeps `block`.
    pub fn zeroes(block: u32) -> Entry {
        Entry(block & NUMBER | ZERO)
    }

    /// The block of sector `sector`.
    pub fn block(self, sector: u32) -> u32 {
        match self.is_initial() {
            true => sector,
            false => self.0 & NUMBER,
        }
    }

    /// Whether nobody has written the sector yet.
    pub fn is_initial(self) -> bool {
        self.0 & (ZERO | ERROR) == 0
    }

    pub fn is_zeroes(self) -> bool {
        self.0 & (ZERO | ERROR) == ZERO
    }

    pub fn is_error(self) -> bool {
        self.0 & (ZERO | ERROR) == ERROR
    }

    pub fn encode(self) -> [u8; LEN] {
        self.0.to_le_bytes()
    }

    pub fn decode(bytes: [u8; LEN]) -> Entry {
        Entry(u32::from_le_bytes(bytes))
    }

    /// A block's number without the flags that logs of others may have with it.
    pub fn number(word: u32) -> u32 {
        word & NUMBER
    }
}
