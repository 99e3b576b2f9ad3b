//! The words of memory that others also write.
//!
//! What always holds here: these are the processor's atomics and nothing else. With the feature
//! `model`, a scheduler decides at each access which thread continues, and when stores become
//! visible.

#[cfg(feature = "model")]
pub use crate::model::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, fence,
};
pub use core::sync::atomic::Ordering;
#[cfg(not(feature = "model"))]
pub use core::sync::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, fence,
};
