//! Holdfast pmem.
#![no_std]
extern crate alloc;

pub mod crc;
