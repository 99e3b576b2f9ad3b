//! Process slots and descriptor tables.

use crate::error::{Error, Result};
use crate::session::Session;

pub(crate) fn shadow_of_caller(_s: &Session) -> Option<u32> {
    None
}

/// Joins as process `pid`; `run` is the run's index. Returns the slot.
pub fn register(_s: &Session, _pid: u32, _run: Option<u32>) -> Result<u32> {
    Err(Error::NotImplemented)
}

/// Before fork: a slot for the child with a copy of the descriptor table and working directory.
pub fn fork_prepare(_s: &Session) -> Result<u32> {
    Err(Error::NotImplemented)
}

/// In the child after fork, first of all: the slot is ours.
pub fn fork_child(_s: &Session, _child: u32) -> Result<()> {
    Err(Error::NotImplemented)
}

/// In the parent after fork failed: drops the prepared slot.
pub fn fork_failed(_s: &Session, _child: u32) {}

/// In the parent before vfork: a slot that the child uses while it shares our memory.
pub fn vfork_prepare(_s: &Session) -> Result<u32> {
    Err(Error::NotImplemented)
}

/// In the vfork child, first of all.
pub fn vfork_child(_s: &Session, _child: u32) -> Result<()> {
    Err(Error::NotImplemented)
}

/// In the parent when it runs again: the child has called exec (and will adopt its slot), died,
/// or was never made.
pub fn vfork_done(_s: &Session, _child: u32) {}

/// After exec: takes over what the program that ran in this process before had open, where
/// `is_open` says that the descriptor is still there. `None`: it was in no slot, so `register`.
pub fn exec_adopt(_s: &Session, _is_open: &dyn Fn(u32) -> bool) -> Result<Option<u32>> {
    Err(Error::NotImplemented)
}

/// The process ends: drops its descriptors, locks, working directory and slot.
pub fn exit(_s: &Session) {}

/// Cleans up after dead processes; returns how many.
pub fn reap_dead(_s: &Session) -> u32 {
    0
}

/// Whether the process that had slot `slot_plus1` when its generation was `generation` lives.
pub fn alive(_s: &Session, _slot_plus1: u32, _generation: u32) -> bool {
    true
}

/// The link of the description behind descriptor `fd`, 0 if it is no pool file.
#[inline]
pub fn fd_get(_s: &Session, _fd: u32) -> u32 {
    0
}

/// Makes `fd` refer to the description `link` (0: to nothing) and returns what it referred to.
/// References are the caller's to count, inside `fd_changing`. `TooManyFiles`: too high.
pub fn fd_swap(_s: &Session, _fd: u32, _link: u32) -> Result<u32> {
    Err(Error::NotImplemented)
}

/// Held while references move between descriptors and descriptions, so that a sweep which
/// counts them knows when not to.
pub struct FdChanging<'a> {
    _s: &'a Session,
}

/// See `FdChanging`.
pub fn fd_changing(s: &Session) -> FdChanging<'_> {
    FdChanging { _s: s }
}
