//! What can be closed.
//!
//! Invariants: closing waits for the calls that run and needs no interpreter; after it nothing of
//! the pool is held; a parent closes its children first.

use crate::error::Failure;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// An object until it is closed. A call locks it for as long as it needs to copy what leads to
/// the pool, or, where the object changes by being used, for the whole call.
pub struct Handle<T> {
    kind: &'static str,
    object: Mutex<Option<T>>,
}

impl<T> Handle<T> {
    /// An open one.
    pub fn new(kind: &'static str, object: T) -> Arc<Handle<T>> {
        Arc::new(Handle {
            kind,
            object: Mutex::new(Some(object)),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.object.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses it.
    pub fn with<R>(&self, call: impl FnOnce(&mut T) -> Result<R, Failure>) -> Result<R, Failure> {
        let mut object = self.lock();
        call(object.as_mut().ok_or(Failure::closed(self.kind))?)
    }

    /// A copy of it.
    pub fn get(&self) -> Result<T, Failure>
    where
        T: Clone,
    {
        self.with(|object| Ok(object.clone()))
    }

    /// Takes it away.
    pub fn take(&self) -> Option<T> {
        self.lock().take()
    }

    /// Takes it away; it is an error if that was done before.
    pub fn finish(&self) -> Result<T, Failure> {
        self.take().ok_or(Failure::closed(self.kind))
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.lock().is_none()
    }
}

/// Anything that can be closed.
pub trait Close: Send + Sync {
    /// Closes it, if it is open.
    fn close(&self);
}

impl<T: Send> Close for Handle<T> {
    fn close(&self) {
        drop(self.take());
    }
}

/// Those to close together.
#[derive(Default)]
pub struct Children {
    all: Mutex<Vec<Weak<dyn Close>>>,
}

impl Children {
    /// Closes it with the others.
    pub fn add<T: Close + 'static>(&self, child: &Arc<T>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == all.capacity() {
            all.retain(|child| child.strong_count() > 0);
        }
        let child: Weak<T> = Arc::downgrade(child);
        all.push(child);
    }

    /// Closes all.
    pub fn close(&self) {
        let all = std::mem::take(&mut *self.all.lock().unwrap_or_else(PoisonError::into_inner));
        all.iter()
            .filter_map(Weak::upgrade)
            .for_each(|child| child.close());
    }
}
