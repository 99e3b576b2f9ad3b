//! A value that one thread at a time takes and puts back.
//!
//! Invariant: nobody ever waits for it. A caller that comes while it is taken finds nothing,
//! possibly forever: in the child of a fork that happened meanwhile, or after a signal handler that
//! never returned.

use alloc::boxed::Box;
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::AcqRel};

/// Room for one value.
#[derive(Debug)]
pub struct TakeCell<T> {
    place: AtomicPtr<T>,
    /// It owns one.
    owns: PhantomData<Box<T>>,
}

impl<T> Default for TakeCell<T> {
    fn default() -> TakeCell<T> {
        TakeCell {
            place: AtomicPtr::default(),
            owns: PhantomData,
        }
    }
}

impl<T: Send> TakeCell<T> {
    /// Takes the value away, if it is there.
    pub fn take(&self) -> Option<Box<T>> {
        self.exchange(None)
    }

    /// Puts a value there, in place of the one that is.
    pub fn put(&self, value: Box<T>) {
        drop(self.exchange(Some(value)));
    }

    fn exchange(&self, value: Option<Box<T>>) -> Option<Box<T>> {
        let new = value.map_or(ptr::null_mut(), Box::into_raw);
        let old = self.place.swap(new, AcqRel);
        // SAFETY: what is in `place` came from `into_raw`, and who swaps it out alone has it. `T`
        // is `Send`, so it may come from another thread, which released it.
        (!old.is_null()).then(|| unsafe { Box::from_raw(old) })
    }
}

impl<T> Drop for TakeCell<T> {
    fn drop(&mut self) {
        let last = *self.place.get_mut();
        if !last.is_null() {
            // SAFETY: as in `exchange`; nobody else has `self` any more.
            drop(unsafe { Box::from_raw(last) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;

    #[test]
    fn each_value_is_taken_once_and_dropped_once() {
        let counted = Arc::new(());
        let parked = TakeCell::default();
        assert!(parked.take().is_none());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        if let Some(mine) = parked.take() {
                            assert!(Arc::strong_count(&mine) > 1);
                            parked.put(mine);
                        } else {
                            parked.put(Box::new(counted.clone()));
                        }
                    }
                });
            }
        });
        assert_eq!(Arc::strong_count(&counted), 2);
        drop(parked);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
