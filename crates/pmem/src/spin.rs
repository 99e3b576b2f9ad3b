//! A lock for the test recorder, for setting up mappings, and for windows into protected regions.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

pub(crate) struct Spin<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a guard, and only one guard exists while `held` is
// true, so sharing the lock shares at most the right to move T between threads.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    pub(crate) const fn new(value: T) -> Self {
        Spin {
            held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Nobody holds it: in a child of fork(2), where whoever held it is not.
    pub(crate) fn release(&self) {
        self.held.store(false, Ordering::Release);
    }

    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        while self.held.swap(true, Ordering::Acquire) {
            rustix::thread::sched_yield();
        }
        SpinGuard(self)
    }
}

pub(crate) struct SpinGuard<'a, T>(&'a Spin<T>);

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard proves that this thread alone holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard proves that this thread alone holds the lock, and it is borrowed
        // mutably, so no other reference to the value exists.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::Release);
    }
}
