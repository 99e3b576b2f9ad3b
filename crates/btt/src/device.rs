//! What a table lies on.

/// Bytes that are read and written in place. A loss of power tears no aligned word of eight bytes,
/// and what is stored to a line of 64 bytes reaches the medium in its order.
pub trait Device {
    /// Why something could not be done.
    type Error;

    /// Bytes that it has.
    fn size(&self) -> Result<u64, Self::Error>;

    /// Fills `room` from `at`.
    fn read(&self, room: &mut [u8], at: u64) -> Result<(), Self::Error>;

    /// Writes all bytes to `at`.
    fn write(&self, bytes: &[u8], at: u64) -> Result<(), Self::Error>;

    /// What was written before is durable before anything that is written after.
    fn order(&self) -> Result<(), Self::Error>;

    /// A later write to this range finds its space.
    fn reserve(&self, at: u64, len: u64) -> Result<(), Self::Error>;

    /// Gives the space of a range back, which reads as zeroes.
    fn punch(&self, at: u64, len: u64) -> Result<(), Self::Error>;

    /// Where the next bytes are that take space, from `at` on. A device without holes says `at`.
    fn next_data(&self, at: u64) -> Result<Option<u64>, Self::Error>;
}
