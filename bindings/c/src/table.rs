//! Handles: numbers that stand for objects of ours.
//!
//! Invariants: a handle holds the place of its object, the place's generation and the kind, so a
//! closed handle is never taken for the next one at its place; looking one up touches no memory
//! that threads of other shards write; an object lives until the last call that found it is over.

use crate::error::Refusal;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Threads are spread over so many copies of a table.
const SHARDS: usize = 8;
const PLACES_MAX: u32 = 1 << 24;

/// An object behind a handle.
pub trait Kind: Sized + Send + Sync + 'static {
    /// In every handle of the kind; 1 to 15.
    const TAG: usize;
    /// In words.
    const NAME: &'static str;
    /// Where they are.
    fn table() -> &'static Table<Self>;
}

/// An object that was found, for the length of a call. Each shard counts its own finders, so that
/// finding is no meeting of threads.
pub struct Found<T>(Arc<Counted<T>>);

struct Counted<T>(Arc<T>);

impl<T> Found<T> {
    /// The object, to keep it.
    pub fn object(&self) -> &Arc<T> {
        &self.0.0
    }
}

impl<T> Deref for Found<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.0
    }
}

/// A handle as C holds it: a pointer that leads nowhere.
#[repr(transparent)]
pub struct Handle<T>(usize, PhantomData<fn() -> T>);

impl<T: Kind> Handle<T> {
    /// A handle of a new object.
    pub fn new(object: T) -> Result<Handle<T>, Refusal> {
        let number = T::table().insert(object)?;
        Ok(Handle(number << 4 | T::TAG, PhantomData))
    }

    /// The object.
    pub fn get(&self) -> Result<Found<T>, Refusal> {
        let found = self.number().and_then(|number| T::table().get(number));
        found.ok_or_else(|| Refusal::handle(T::NAME))
    }

    /// The object, which the handle leads to no longer.
    pub fn close(&self) -> Result<Arc<T>, Refusal> {
        let found = self.number().and_then(|number| T::table().remove(number));
        found.ok_or_else(|| Refusal::handle(T::NAME))
    }

    fn number(&self) -> Option<usize> {
        (self.0 & 15 == T::TAG).then_some(self.0 >> 4)
    }
}

struct Place<T> {
    generation: u32,
    object: Option<Arc<Counted<T>>>,
}

#[repr(align(128))]
struct Shard<T>(RwLock<Vec<Place<T>>>);

/// All objects of a kind.
pub struct Table<T> {
    shards: [Shard<T>; SHARDS],
    /// Places without an object; held while places change.
    free: Mutex<Vec<u32>>,
}

impl<T> Table<T> {
    /// Without objects.
    pub const fn new() -> Table<T> {
        Table {
            shards: [const { Shard(RwLock::new(Vec::new())) }; SHARDS],
            free: Mutex::new(Vec::new()),
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, object: T) -> Result<usize, Refusal> {
        let object = Arc::new(object);
        let mut free = self.free();
        let index = free.pop();
        let mut generation = 0;
        let mut at = index.unwrap_or(0);
        for shard in &self.shards {
            let mut places = shard.0.write().unwrap_or_else(PoisonError::into_inner);
            if index.is_none() {
                at = places.len() as u32;
                if at >= PLACES_MAX {
                    return Err(Refusal::invalid("there are too many open handles"));
                }
                places.push(Place {
                    generation: 0,
                    object: None,
                });
            }
            if let Some(place) = places.get_mut(at as usize) {
                place.object = Some(Arc::new(Counted(object.clone())));
                generation = place.generation;
            }
        }
        Ok((generation as usize) << 24 | at as usize)
    }

    fn get(&self, number: usize) -> Option<Found<T>> {
        let shard = self.shards.get(shard_of_thread())?;
        let places = shard.0.read().unwrap_or_else(PoisonError::into_inner);
        let place = places.get(number & (PLACES_MAX as usize - 1))?;
        let current = place.generation as usize == number >> 24;
        place.object.clone().filter(|_| current).map(Found)
    }

    fn remove(&self, number: usize) -> Option<Arc<T>> {
        let index = number & (PLACES_MAX as usize - 1);
        let mut free = self.free();
        let mut found = None;
        for shard in &self.shards {
            let mut places = shard.0.write().unwrap_or_else(PoisonError::into_inner);
            let place = places.get_mut(index)?;
            if place.generation as usize != number >> 24 {
                return None;
            }
            let object = place.object.take()?;
            place.generation = place.generation.wrapping_add(1);
            found = Some(object.0.clone());
        }
        free.push(index as u32);
        found
    }
}

fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    MINE.try_with(|shard| *shard).unwrap_or(0)
}

/// Gives a kind its tag, its name and its table.
macro_rules! kind {
    ($type:ty, $tag:literal, $name:literal) => {
        impl crate::table::Kind for $type {
            const TAG: usize = $tag;
            const NAME: &'static str = $name;
            fn table() -> &'static crate::table::Table<$type> {
                static TABLE: crate::table::Table<$type> = crate::table::Table::new();
                &TABLE
            }
        }
    };
}
pub(crate) use kind;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Thing(u32);
    kind!(Thing, 3, "thing");
    struct Other;
    kind!(Other, 4, "other");

    fn copy<T>(handle: &Handle<T>) -> Handle<T> {
        Handle(handle.0, PhantomData)
    }

    #[test]
    fn a_closed_handle_leads_nowhere_even_when_its_place_is_taken_again() {
        let first = Handle::new(Thing(1)).unwrap();
        let stale = copy(&first);
        assert_eq!(first.get().unwrap().object().0, 1);
        assert_eq!(*first.close().unwrap(), Thing(1));
        let second = Handle::new(Thing(2)).unwrap();
        assert!(stale.get().is_err() && stale.close().is_err());
        assert_eq!(second.get().unwrap().object().0, 2);
        assert!(second.close().is_ok() && second.close().is_err());
    }

    #[test]
    fn what_is_no_handle_of_the_kind_is_refused() {
        let thing = Handle::new(Thing(1)).unwrap();
        assert!(Handle::<Other>(thing.0, PhantomData).get().is_err());
        for bits in [0, 1, 3, usize::MAX, thing.0 ^ (1 << 28), thing.0 ^ (1 << 5)] {
            assert!(
                Handle::<Thing>(bits, PhantomData).get().is_err(),
                "{bits:#x}"
            );
            assert!(Handle::<Thing>(bits, PhantomData).close().is_err());
        }
        assert!(thing.close().is_ok());
    }

    #[test]
    fn threads_open_use_and_close_at_once() {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for n in 0..2000 {
                        let mine = Handle::new(Thing(thread * 10_000 + n)).unwrap();
                        assert_eq!(mine.get().unwrap().object().0, thread * 10_000 + n);
                        assert_eq!(mine.close().unwrap().0, thread * 10_000 + n);
                        assert!(mine.get().is_err());
                    }
                });
            }
        });
    }
}
