//! Removing what has expired.
//!
//! Nobody sees what has expired, so nothing depends on when it is removed. A helper that the
//! service starts does it; so does whoever finds the pool full.
//!
//! Invariant: a value is erased under the lock of its key's bucket, by a record like any other,
//! and only if it is that value that has expired. So what was put again meanwhile stays, and a
//! value that becomes a file is there when the record that says so is applied.

use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::session::{Session, drain, space};
use crate::values::files;
use alloc::boxed::Box;
use alloc::vec::Vec;
use pmem::atomic::Ordering::Acquire;
use pool::Leaf;
use pool::layout::VALUES;
use pool::layout::value::{INDEX, TreeKey, is_in_index, parse_in_index, parse_key};

/// Leaves of the index that whoever needs room goes through before it tries again.
const LEAVES: usize = 64;
/// How often it does so.
const ROUNDS: u32 = 16;
/// Records of ours that are made before those before them have to be in the trees: so whoever puts
/// something meanwhile waits for at most twice as many of them.
const AHEAD: u64 = 4000;
/// How often a leaf may change while it is copied.
const TRIES: usize = 1000;

/// Does `work`; where the pool or a quota has no room for it, what has expired makes room first.
#[inline]
pub(super) fn making_room<T>(s: &Session, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    match work() {
        Err(e) if is_full(&e) && s.has_expiring() => again(s, e, &mut work),
        done => done,
    }
}

#[cold]
fn again<T>(s: &Session, mut full: Error, work: &mut dyn FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..ROUNDS {
        let mut due = Due::new();
        let removed = due.remove(s, LEAVES, &|| false)?;
        if removed == 0 {
            break;
        }
        drain::wait_applied(s, last_record(s))?;
        if full == Error::NoSpace {
            space::gather(s, 1)?;
        }
        match work() {
            Err(e) if is_full(&e) => full = e,
            done => return done,
        }
    }
    Err(full)
}

/// The number of the last record that anybody began.
fn last_record(s: &Session) -> u64 {
    s.header().next_seq.load(Acquire).saturating_sub(1)
}

fn is_full(e: &Error) -> bool {
    matches!(e, Error::NoSpace | Error::OverQuota)
}

/// Removes all that has expired, as far as `most_ms` suffices.
pub(super) fn remove_expired(s: &Session, most_ms: u64) -> Result<()> {
    let end = clock::monotonic_ms().saturating_add(most_ms);
    let is_late = || clock::monotonic_ms() >= end;
    Due::new().remove(s, usize::MAX, &is_late).map(drop)
}

/// Goes through the front of the index.
struct Due {
    /// Where it goes on; empty at the end.
    from: Vec<u8>,
    leaf: Box<Leaf>,
    /// Records of ours since `mark`, the number of a record.
    ahead: u64,
    mark: u64,
}

impl Due {
    fn new() -> Due {
        Due {
            from: TreeKey::new(INDEX, &[]).as_slice().to_vec(),
            leaf: Box::default(),
            ahead: 0,
            mark: 0,
        }
    }

    /// Removes what is due in the next leaves, until it `is_late`; how many keys.
    fn remove(&mut self, s: &Session, leaves: usize, is_late: &dyn Fn() -> bool) -> Result<u64> {
        let mut removed = 0;
        for _ in 0..leaves {
            if self.from.is_empty() || is_late() {
                break;
            }
            for tree_key in self.next_leaf(s)? {
                s.check()?;
                let (keyspace, key) = parse_key(&tree_key).map_err(pool::Error::from)?;
                let erased = u64::from(files::remove_expired(s, keyspace, key)?);
                (removed, self.ahead) = (removed + erased, self.ahead + erased);
            }
            self.keep_near(s)?;
        }
        Ok(removed)
    }

    /// Waits where many records of ours may wait. Those of others do not count: where they put as
    /// fast as they can, many of theirs always wait.
    fn keep_near(&mut self, s: &Session) -> Result<()> {
        if self.ahead < AHEAD {
            return Ok(());
        }
        drain::wait_applied(s, self.mark)?;
        (self.ahead, self.mark) = (0, last_record(s));
        Ok(())
    }

    /// The keys in the tree of what is due in one leaf.
    fn next_leaf(&mut self, s: &Session) -> Result<Vec<Vec<u8>>> {
        let now = s.moment();
        self.load(s)?;
        let mut keys = Vec::new();
        for at in self.leaf.find(&self.from)?..self.leaf.count() {
            let (key, _) = self.leaf.entry(at)?;
            if !is_in_index(key) {
                self.from.clear();
                return Ok(keys);
            }
            let (expires, tree_key) = parse_in_index(key).map_err(pool::Error::from)?;
            if expires > now {
                self.from.clear();
                return Ok(keys);
            }
            keys.push(tree_key.to_vec());
        }
        self.from = self.leaf.beyond().unwrap_or_default().to_vec();
        Ok(keys)
    }

    fn load(&mut self, s: &Session) -> Result<()> {
        let reader = s.tree().reader();
        for _ in 0..TRIES {
            let root = reader.root(VALUES)?;
            let loaded = reader.leaf_from(VALUES, &root, &self.from, &mut self.leaf);
            if reader.still(root.seq)? {
                return Ok(loaded?);
            }
        }
        Err(Error::Pool(pool::Error::Busy.errno()))
    }
}
