//! What a peer must do to be measured.
//!
//! Invariants: `put` and `commit` return when what they wrote survives whatever the medium lets
//! survive; each get and each scan copies what it read out of the peer's memory.

use std::path::PathBuf;

/// Why something could not be done.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Done<T> = Result<T, Error>;

/// A key and its value.
pub type Pair<'a> = (&'a [u8], &'a [u8]);

/// An open store.
pub trait Store: Send + Sync {
    /// One durable commit of one pair.
    fn put(&self, key: &[u8], value: &[u8]) -> Done<()> {
        self.commit(&mut std::iter::once((key, value)))
    }

    /// One durable commit of all pairs, in their order.
    fn commit(&self, pairs: &mut dyn Iterator<Item = Pair<'_>>) -> Done<()>;

    /// Reads one value in a transaction of its own; whether it is there.
    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> Done<bool>;

    /// Runs `body` in one transaction that reads.
    fn view(&self, body: &mut dyn FnMut(&mut dyn View) -> Done<()>) -> Done<()>;

    /// Other processes that work for this store, whose CPU time counts.
    fn helpers(&self) -> Vec<i32> {
        Vec::new()
    }
}

/// A transaction that reads.
pub trait View {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Done<bool>;

    /// Shows `n` pairs from `from` on. What is shown lives until `each` returns.
    fn scan(&mut self, from: &[u8], n: usize, each: &mut dyn FnMut(&[u8], &[u8])) -> Done<()>;
}

/// Who opens a store, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The process that writes; nobody else has it open.
    Alone,
    /// The process that writes, while others read.
    Sharing,
    /// Another process that reads.
    Reader,
}

/// A store that can be measured.
#[derive(Clone)]
pub struct Peer {
    pub name: &'static str,
    /// It is on files: it can be opened again, killed, and weighed.
    pub lasting: bool,
    /// Other processes can read while one writes.
    pub shared: bool,
    pub open: fn(&Site, Role) -> Done<Box<dyn Store>>,
    /// Makes what `open` wants to find in an empty directory.
    pub make: fn(&Site) -> Done<()>,
    /// Takes away what `make` made; the directory is removed afterwards.
    pub unmake: fn(&Site) -> Done<()>,
}

/// Where a store is and how large it gets.
#[derive(Clone, Debug)]
pub struct Site {
    pub dir: PathBuf,
    /// Bytes of keys and values.
    pub payload: u64,
    /// The `holdfast` command.
    pub holdfast: PathBuf,
}

impl Site {
    /// Bytes of address space or cache that hold everything, whatever the peer adds to it.
    pub fn room(&self) -> u64 {
        self.payload * 8 + (1 << 30)
    }
}

/// Copies what was read.
pub fn copy(out: &mut Vec<u8>, value: &[u8]) {
    out.clear();
    out.extend_from_slice(value);
}
