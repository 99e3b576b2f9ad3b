//! Whose descriptor tables are in use: a process may have its own, or use that of another one.

use crate::session::Session;
use crate::session::live::SLOT_FREE;
use pmem::atomic::Ordering::*;
use pool::session::Slot;

/// Whether the slot's own descriptor table (`files`) or working directory is used by others.
pub(crate) fn is_used(s: &Session, index: u32, files: bool, directory: bool) -> bool {
    if s.slot_at(index)
        .is_ok_and(|slot| slot.lent.load(Relaxed) == 0)
    {
        return false;
    }
    let uses = |slot: &Slot| {
        slot.state.load(SeqCst) != SLOT_FREE
            && (files && slot.files.load(SeqCst) == index + 1
                || directory && slot.directory.load(SeqCst) == index + 1)
    };
    (0..s.slots_used()).any(|other| other != index && s.slot_at(other).is_ok_and(uses))
}

/// Whether the descriptor table of slot `slot_plus1` is the one that it was when the generation
/// was `generation`, and is in use.
pub(crate) fn is_same(s: &Session, slot_plus1: u32, generation: u32) -> bool {
    let index = slot_plus1.wrapping_sub(1);
    let Ok(slot) = s.slot_at(index) else {
        return false;
    };
    slot.generation.load(Acquire) == generation
        && (s.is_alive(index) || is_used(s, index, true, false))
}

/// The generation of the slot whose descriptor table the caller uses.
pub(crate) fn generation(s: &Session) -> u32 {
    let slot = s.slot_at(s.table_index());
    slot.map_or(0, |slot| slot.generation.load(Relaxed))
}
