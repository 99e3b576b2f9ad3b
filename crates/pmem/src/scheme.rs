//! The ways to write bytes so that they become durable, by name.

use crate::cpu;

/// How bytes get to the medium; the names are those of PMBD, where it has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// `auto`: as the medium needs it, at the least cost.
    #[default]
    Auto,
    /// `nt`: whole lines go around the cache.
    NonTemporal,
    /// `clwb`: through the cache, and each line is written back.
    WriteBack,
    /// `clflushopt`: through the cache, and each line is written back and dropped.
    FlushUnordered,
    /// `clflush`: as `clflushopt`, one line after the other.
    Flush,
    /// `wb`: through the cache, and nothing is written back: for media that caches are a part of.
    Cached,
    /// `fd`: the kernel writes, as the protection of the same name has it.
    Descriptor,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Scheme; 7] = [
        Scheme::Auto,
        Scheme::NonTemporal,
        Scheme::WriteBack,
        Scheme::FlushUnordered,
        Scheme::Flush,
        Scheme::Cached,
        Scheme::Descriptor,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Auto => "auto",
            Scheme::NonTemporal => "nt",
            Scheme::WriteBack => "clwb",
            Scheme::FlushUnordered => "clflushopt",
            Scheme::Flush => "clflush",
            Scheme::Cached => "wb",
            Scheme::Descriptor => "fd",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Scheme> {
        Scheme::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Whether the CPU has the instructions.
    pub fn is_there(self) -> bool {
        match self {
            Scheme::WriteBack => cpu::has(cpu::CLWB),
            Scheme::FlushUnordered => cpu::has(cpu::CLFLUSHOPT),
            _ => true,
        }
    }
}
