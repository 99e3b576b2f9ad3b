//! The crash recorder: what a power cut could undo, byte-exact and in order.
//!
//! What always holds here:
//! - Several regions write into one log, so an order across segments is an order in the log.
//! - Events name a region, a thread and offsets; no address is in the log.
//! - It exists only with the cargo feature `recording`: the shipped program has no code of it.

use crate::spin::Spin;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// What happened to one operation of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The operation was asked for.
    Begin,
    /// The operation returned: what it promised must hold from here on.
    Ack,
}

/// One entry of the log. `region` is the number given to [`Recorder::region`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes stored; `nt` when around the cache.
    Store {
        region: u32,
        thread: u32,
        off: u64,
        data: Box<[u8]>,
        nt: bool,
    },
    /// Write-back of the 64-byte line number `line` was started.
    Flush { region: u32, thread: u32, line: u64 },
    /// This thread's flushed lines and non-temporal stores are durable, in all regions.
    Fence { thread: u32 },
    /// msync of a range of an ordinary file.
    Sync {
        region: u32,
        thread: u32,
        off: u64,
        len: u64,
    },
    /// A mark of the workload: operation `op` began or was acknowledged.
    Mark { thread: u32, op: u64, mark: Mark },
}

/// Appends to a log that all its clones share.
#[derive(Clone)]
pub struct Recorder {
    log: Arc<Spin<Vec<Event>>>,
    region: u32,
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder::new()
    }
}

impl Recorder {
    /// A new log, for region 0.
    pub fn new() -> Recorder {
        Recorder {
            log: Arc::new(Spin::new(Vec::new())),
            region: 0,
        }
    }

    /// The same log for another region.
    pub fn region(&self, region: u32) -> Recorder {
        Recorder {
            log: self.log.clone(),
            region,
        }
    }

    /// A copy of the log so far.
    pub fn events(&self) -> Vec<Event> {
        self.log.lock().clone()
    }

    /// Takes the log and starts an empty one: what was pending is forgotten, so take it only
    /// where everything before is durable or part of the next base image.
    pub fn take(&self) -> Vec<Event> {
        core::mem::take(&mut *self.log.lock())
    }

    /// The operation numbered `op` of the workload begins.
    pub fn begin(&self, op: u64) {
        self.mark(op, Mark::Begin);
    }

    /// The operation numbered `op` has returned to its caller.
    pub fn ack(&self, op: u64) {
        self.mark(op, Mark::Ack);
    }

    pub fn mark(&self, op: u64, mark: Mark) {
        self.push(Event::Mark {
            thread: thread(),
            op,
            mark,
        });
    }

    fn push(&self, event: Event) {
        self.log.lock().push(event);
    }

    pub(crate) fn store(&self, off: u64, data: &[u8], nt: bool) {
        if !data.is_empty() {
            let (region, thread) = (self.region, thread());
            self.push(Event::Store {
                region,
                thread,
                off,
                data: data.into(),
                nt,
            });
        }
    }

    pub(crate) fn flush(&self, line: u64) {
        self.push(Event::Flush {
            region: self.region,
            thread: thread(),
            line,
        });
    }

    pub(crate) fn fence(&self) {
        self.push(Event::Fence { thread: thread() });
    }

    pub(crate) fn sync(&self, off: u64, len: usize) {
        let (region, thread) = (self.region, thread());
        self.push(Event::Sync {
            region,
            thread,
            off,
            len: len as u64,
        });
    }

    /// The range is zeroed around us; `read` gives what is there before. Only what is not zero
    /// yet is a store.
    pub(crate) fn zeroed(&self, off: u64, len: usize, read: impl Fn(u64, &mut [u8]) -> bool) {
        let mut page = [0; crate::PAGE];
        for start in (0..len).step_by(page.len()) {
            let n = page.len().min(len - start);
            let (at, Some(page)) = (off + start as u64, page.get_mut(..n)) else {
                continue;
            };
            if !read(at, page) || page.iter().all(|b| *b == 0) {
                continue;
            }
            for (i, line) in page.chunks(crate::LINE).enumerate() {
                if line.iter().any(|b| *b != 0) {
                    let zero = [0; crate::LINE];
                    let zero = zero.get(..line.len()).unwrap_or(&zero);
                    self.store(at + (i * crate::LINE) as u64, zero, true);
                }
            }
        }
    }
}

fn thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}
