//! Holdfast client.
#![no_std]
extern crate alloc;
