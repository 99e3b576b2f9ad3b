//! The kinds of write protection, by name.

/// What keeps a process from storing into a region by mistake; the names are those of PMBD (Chen,
/// Mesnier, Hahn: "A Protected Block Device for Persistent Memory", MSST 2014), where it has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// `none`: it is mapped for writing.
    #[default]
    None,
    /// `auto`: the best that this machine has for the file.
    Auto,
    /// `pt`: page table entries are made writable for each copy (PT-naive).
    PageTable,
    /// `pt-batch`: as `pt`; volumes collect writes in buffers, and copy them in batches
    /// (PT-Buffer-Batch).
    PageTableBatch,
    /// `pmap`: a window is mapped for each copy (private mapping).
    Window,
    /// `pmap-cache`: as `pmap`, and a few windows of 2 MiB stay open for the next copies.
    WindowCache,
    /// `fd`: no window; the kernel writes.
    Descriptor,
    /// `pkey`: a mapping that a protection key of the CPU opens for the copying thread alone.
    Key,
}

impl Protection {
    /// All of them.
    pub const ALL: [Protection; 8] = [
        Protection::None,
        Protection::Auto,
        Protection::PageTable,
        Protection::PageTableBatch,
        Protection::Window,
        Protection::WindowCache,
        Protection::Descriptor,
        Protection::Key,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Protection::None => "none",
            Protection::Auto => "auto",
            Protection::PageTable => "pt",
            Protection::PageTableBatch => "pt-batch",
            Protection::Window => "pmap",
            Protection::WindowCache => "pmap-cache",
            Protection::Descriptor => "fd",
            Protection::Key => "pkey",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Protection> {
        Protection::ALL.into_iter().find(|one| one.name() == name)
    }
}
