//! Holdfast pool.
#![no_std]
extern crate alloc;
