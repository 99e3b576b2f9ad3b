//! A value behind the fork-safe lock.
//!
//! Invariant: the value is only reached through the guard.

use crate::lock::{Guard, Lock};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

/// A value that one thread at a time may use.
pub struct Mutex<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets one thread at a time reach the value.
unsafe impl<T: Send> Sync for Mutex<T> {}

/// The value, until dropped.
pub struct MutexGuard<'a, T> {
    _guard: Guard<'a>,
    value: &'a UnsafeCell<T>,
}

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Mutex<T> {
        Mutex {
            lock: Lock::new(),
            value: UnsafeCell::new(value),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            _guard: self.lock.hold(),
            value: &self.value,
        }
    }

    /// In the child of a fork, which has one thread: another value, whoever held the lock.
    pub fn renew(&self, value: T) {
        // SAFETY: nobody else can reach the value: the thread that did is not in this process.
        unsafe { self.value.get().write(value) };
        self.lock.reopen();
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock and is borrowed for writing.
        unsafe { &mut *self.value.get() }
    }
}
