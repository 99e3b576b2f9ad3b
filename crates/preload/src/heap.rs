//! The allocator of this library: lock-free lists of blocks over an arena in its own memory.
//!
//! Invariants: nothing is taken from the program's allocator; there is no lock that a fork or a
//! signal could leave held; a block stays mapped for ever, so a reader that lost a race reads stale
//! bytes and then fails its exchange. Blocks above `LARGE`, and all blocks once the arena is used
//! up, are separate mappings.
use crate::sys;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Small enough not to hurt a program that locks its memory or limits its address space.
const ARENA: usize = 8 << 20;
/// What starting a process takes of it.
const AT_START: usize = 12 << 10;
const UNIT: usize = 16;
const PAGE: usize = 4096;
const LARGE: usize = 128 << 10;
/// Sizes 16 << n up to `LARGE`.
const CLASSES: usize = 14;

/// Heads are `tag << 32 | unit index + 1`; the tag changes at every exchange (no ABA).
struct Heap {
    top: AtomicUsize,
    free: [AtomicU64; CLASSES],
}

static HEAP: Heap = Heap {
    top: AtomicUsize::new(0),
    free: [const { AtomicU64::new(0) }; CLASSES],
};

/// Zero pages until they are used, as they are mapped with the library.
#[repr(C, align(4096))]
struct Arena(UnsafeCell<[u8; ARENA]>);
// SAFETY: reached by its address alone; each part belongs to whom the heap handed it out.
unsafe impl Sync for Arena {}
static MEMORY: Arena = Arena(UnsafeCell::new([0; ARENA]));

/// Where the arena begins.
fn base() -> usize {
    MEMORY.0.get() as usize
}

impl Heap {
    fn pop(&self, class: usize) -> Option<usize> {
        let head = &self.free[class];
        let mut old = head.load(Ordering::Acquire);
        loop {
            let index = (old & 0xffff_ffff) as usize;
            if index == 0 {
                return None;
            }
            let block = base() + (index - 1) * UNIT;
            // SAFETY: blocks lie in the arena, which is never unmapped, and are 16-aligned; a
            // stale value is harmless, the exchange below then fails by its tag.
            let next = unsafe { (*(block as *const AtomicU32)).load(Ordering::Relaxed) };
            let new = ((old >> 32) + 1) << 32 | u64::from(next);
            match head.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(block),
                Err(seen) => old = seen,
            }
        }
    }

    fn push(&self, class: usize, block: usize) {
        let head = &self.free[class];
        let index = ((block - base()) / UNIT + 1) as u64;
        let mut old = head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the block is being freed: it is ours until the exchange publishes it.
            unsafe { (*(block as *const AtomicU32)).store(old as u32, Ordering::Relaxed) };
            let new = ((old >> 32) + 1) << 32 | index;
            match head.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => old = seen,
            }
        }
    }

    /// A new block of zeros, or 0 when the arena is used up.
    fn bump(&self, size: usize) -> usize {
        let at = self.top.fetch_add(size, Ordering::Relaxed);
        if at + size > ARENA {
            self.top.store(ARENA, Ordering::Relaxed);
            return 0;
        }
        if at == 0 {
            populate();
        }
        base() + at
    }
}

/// Gets the pages that every start uses in one call instead of a fault for each. Only speed
/// depends on it: an older kernel refuses.
fn populate() {
    const MADV_POPULATE_WRITE: usize = 23;
    // SAFETY: faults in pages of our own mapping; they are zero and stay so.
    unsafe {
        sys::raw(
            sys::nr::MADVISE,
            [base(), AT_START, MADV_POPULATE_WRITE, 0, 0, 0],
        )
    };
}

/// Blocks are aligned to 16; what asks for more gets a block of its own size or a page.
fn class_of(layout: &Layout) -> Option<usize> {
    if layout.align() > UNIT || layout.size() > LARGE {
        return None;
    }
    let size = layout.size().max(UNIT).next_power_of_two();
    Some(size.trailing_zeros() as usize - 4)
}

fn map(layout: &Layout) -> *mut u8 {
    if layout.align() > PAGE {
        return ptr::null_mut();
    }
    let prot = sys::PROT_READ | sys::PROT_WRITE;
    sys::map_anon(0, mapping_len(layout), prot, 0).unwrap_or(0) as *mut u8
}

fn mapping_len(layout: &Layout) -> usize {
    (layout.size().max(1) + PAGE - 1) & !(PAGE - 1)
}

struct Global;

// SAFETY: blocks are handed out once until freed (single exchange per head), sized up to the
// class, and aligned to 16 or to a page.
unsafe impl GlobalAlloc for Global {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(&layout) else {
            return map(&layout);
        };
        match HEAP.pop(class).unwrap_or_else(|| HEAP.bump(UNIT << class)) {
            0 => map(&layout),
            block => block as *mut u8,
        }
    }

    // SAFETY: as `alloc`; what is new is zero, and is not touched before it is used.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(&layout) else {
            return map(&layout);
        };
        match HEAP.pop(class) {
            None => match HEAP.bump(UNIT << class) {
                0 => map(&layout),
                block => block as *mut u8,
            },
            Some(block) => {
                let block = block as *mut u8;
                // SAFETY: a block of this class has as many bytes, and is nobody's now.
                unsafe { block.write_bytes(0, layout.size()) };
                block
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(&layout) {
            Some(class) if (base()..base() + ARENA).contains(&(block as usize)) => {
                HEAP.push(class, block as usize)
            }
            // SAFETY: `alloc` made exactly this mapping for this layout.
            _ => unsafe { sys::unmap(block as usize, mapping_len(&layout)) },
        }
    }
}

#[global_allocator]
static GLOBAL: Global = Global;
