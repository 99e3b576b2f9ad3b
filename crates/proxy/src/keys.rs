//! What a process has of keys and values: the keyspaces that it opened, and what is kept for it
//! between two calls.
//!
//! Invariants:
//!  * A process names a keyspace by its index here, so it reaches none that it could not open.
//!  * What is kept is counted, and given back when it is dropped. Whoever works with it has it: a
//!    second call for the same finds nothing.

use crate::proxy::Shared;
use holdfast_client::kv::{Changes, Keyspace, Scan, View};
use holdfast_client::{Client, Error, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Keyspaces that one process may open.
const KEYSPACES_MAX: usize = 65_536;
/// What may be kept for one process.
const KEPT_MAX: usize = 4096;

/// A scan, and its view.
pub struct Going {
    pub scan: Scan,
    pub view: Arc<View>,
    pub keyspace: Keyspace,
    /// The pair that had no room in the last answer.
    pub waiting: Option<Pair>,
    /// What kept the scan from going on when it had found some pairs.
    pub failed: Option<Error>,
}

/// Changes that are not complete.
#[derive(Default)]
pub struct Batch {
    pub changes: Changes,
    /// The first part of the value that comes next.
    pub part: Vec<u8>,
    /// When it expires.
    pub expires: i64,
}

/// A key, its value, and when that expires.
pub type Pair = (Vec<u8>, Vec<u8>, i64);

/// What is kept under one name.
pub enum Kept {
    View(Arc<View>),
    Scan(Box<Going>),
    Batch(Box<Batch>),
    /// A value that is longer than an answer.
    Value(Arc<Vec<u8>>),
}

/// One of them, and how many bytes of the user's it takes.
pub struct Counted {
    pub kept: Kept,
    pub bytes: u32,
}

impl Counted {
    /// Of changes that are to come.
    pub fn batch() -> Counted {
        let (kept, bytes) = (Kept::Batch(Box::default()), 0);
        Counted { kept, bytes }
    }
}

enum Slot {
    Free,
    /// A call works with what was here.
    Taken,
    Kept(Counted),
}

/// Of one process.
#[derive(Default)]
pub struct Keys {
    keyspaces: Mutex<Vec<Keyspace>>,
    kept: Mutex<Vec<Slot>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The index behind a name; 0 is none.
fn index_of(name: u32) -> Result<usize> {
    let index = name.checked_sub(1).ok_or(Error::BadDescriptor)?;
    Ok(index as usize)
}

impl Keys {
    /// How the process names a keyspace from now on.
    pub fn open(&self, keyspace: Keyspace) -> Result<u32> {
        let mut all = lock(&self.keyspaces);
        let same = |known: &Keyspace| known.ino() == keyspace.ino();
        let known = all.iter().position(same);
        let index = match known {
            Some(index) => index,
            None if all.len() < KEYSPACES_MAX => {
                all.push(keyspace);
                all.len() - 1
            }
            None => return Err(Error::TooManyFiles),
        };
        Ok(index as u32 + 1)
    }

    /// The keyspace of this name.
    pub fn keyspace(&self, name: u32) -> Result<Keyspace> {
        let found = lock(&self.keyspaces).get(index_of(name)?).copied();
        found.ok_or(Error::BadDescriptor)
    }

    /// A name for what is to be kept, which `put_back` does. `NoMemory`: too much is.
    pub fn new_name(&self) -> Result<u32> {
        let mut all = lock(&self.kept);
        let free = all.iter().position(|slot| matches!(slot, Slot::Free));
        let index = match free {
            Some(index) => index,
            None if all.len() < KEPT_MAX => {
                all.push(Slot::Free);
                all.len() - 1
            }
            None => return Err(Error::NoMemory),
        };
        all[index] = Slot::Taken;
        Ok(index as u32 + 1)
    }

    /// What is kept under this name is the caller's, until it puts something back or frees the
    /// name.
    pub fn take(&self, name: u32) -> Result<Counted> {
        let mut all = lock(&self.kept);
        let slot = all.get_mut(index_of(name)?);
        let slot = slot.filter(|slot| matches!(slot, Slot::Kept(_)));
        match slot.map(|slot| std::mem::replace(slot, Slot::Taken)) {
            Some(Slot::Kept(counted)) => Ok(counted),
            _ => Err(Error::BadDescriptor),
        }
    }

    /// Keeps something under a name that the caller has taken.
    pub fn put_back(&self, name: u32, counted: Counted) {
        self.set(name, Slot::Kept(counted));
    }

    /// A name that the caller has taken is nobody's.
    pub fn free(&self, name: u32) {
        self.set(name, Slot::Free);
    }

    fn set(&self, name: u32, to: Slot) {
        let mut all = lock(&self.kept);
        let slot = index_of(name).ok().and_then(|index| all.get_mut(index));
        *slot.expect("a name that was taken") = to;
    }

    fn kept<T>(&self, name: u32, see: impl FnOnce(&Kept) -> Option<T>) -> Result<T> {
        let found = match lock(&self.kept).get(index_of(name)?) {
            Some(Slot::Kept(counted)) => see(&counted.kept),
            _ => None,
        };
        found.ok_or(Error::BadDescriptor)
    }

    /// The view of this name, for `let_go`.
    pub fn view(&self, name: u32) -> Result<Arc<View>> {
        self.kept(name, |kept| match kept {
            Kept::View(view) => Some(view.clone()),
            _ => None,
        })
    }

    /// The value that is kept under this name.
    pub fn value(&self, name: u32) -> Result<Arc<Vec<u8>>> {
        self.kept(name, |kept| match kept {
            Kept::Value(value) => Some(value.clone()),
            _ => None,
        })
    }

    /// The process has ended.
    pub fn clear(&self, shared: &Shared, client: &Client) {
        let all = std::mem::take(&mut *lock(&self.kept));
        for slot in all {
            if let Slot::Kept(counted) = slot {
                drop_kept(shared, client, counted);
            }
        }
    }
}

/// It takes so many bytes from now on. `NoMemory`: the user has none left.
pub fn recount(shared: &Shared, counted: &mut Counted, bytes: usize) -> Result<()> {
    let bytes = u32::try_from(bytes).map_err(|_| Error::NoMemory)?;
    if bytes > counted.bytes {
        let more = shared.kept.take(bytes - counted.bytes);
        more.map_err(|_| Error::NoMemory)?;
    } else {
        shared.kept.give_back(counted.bytes - bytes);
    }
    counted.bytes = bytes;
    Ok(())
}

/// What was kept is not needed any more.
pub fn drop_kept(shared: &Shared, client: &Client, counted: Counted) {
    shared.kept.give_back(counted.bytes);
    match counted.kept {
        Kept::View(view) => let_go(shared, client, view),
        Kept::Scan(going) => {
            shared.scans.give_back(1);
            let_go(shared, client, going.view);
        }
        Kept::Batch(batch) => client.kv_abort(batch.changes),
        Kept::Value(_) => {}
    }
}

/// The last who has a view ends it.
pub fn let_go(shared: &Shared, client: &Client, view: Arc<View>) {
    if let Some(view) = Arc::into_inner(view) {
        client.end_view(view);
        shared.views.give_back(1);
    }
}
