//! What the sectors of a volume are kept from.

use super::attribute::Properties;

/// What the sectors of a volume are kept from; each includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Integrity {
    /// Nothing: a write that is interrupted may be there in part.
    #[default]
    Plain,
    /// Being torn: each sector is written as a whole or not at all, whatever interrupts a write,
    /// and a write is durable when it returns.
    Atomic,
    /// Being changed by anything but writes: each has a checksum, and one that does not have it is
    /// an error, not bytes.
    Checked,
}

impl Properties {
    pub(super) fn integrity(self) -> Integrity {
        match (self.table, self.sums) {
            (None, _) => Integrity::Plain,
            (Some(_), false) => Integrity::Atomic,
            (Some(_), true) => Integrity::Checked,
        }
    }
}
