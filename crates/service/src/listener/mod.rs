//! The service's socket: who connects, what they ask, and what they are told.

pub mod admission;
pub mod asks;
pub mod connection;
pub mod disposal;
