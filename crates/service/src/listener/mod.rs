//! The service's socket: connections, their requests, and the answers.

pub mod admission;
pub mod asks;
pub mod connection;
pub mod disposal;
pub mod proxies;
