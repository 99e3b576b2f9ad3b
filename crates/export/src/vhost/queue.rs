//! The virtqueues: each is served by a thread of its own.
//!
//! Invariants: a queue whose rings make no sense is stopped until the driver sets it up again;
//! its lock is given up after a bounded number of requests.

use super::device::Device;
use super::disk::Disk;
use super::poll::Poll;
use super::request::{Broken, serve};
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackend, VringMutex, VringState, VringT};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};

pub type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
type Vring = VringMutex<Memory>;

/// The most descriptors of a queue.
const DESCRIPTORS_MAX: usize = 1024;
/// So many requests are served before others may have the queue's lock.
const AT_ONCE: usize = 32;
/// The most bytes of a configuration that a front-end may ask for.
const CONFIG_MAX: usize = 256;

/// Held for reading while requests are served, and for writing by those who need that none is: the
/// end of an export, and a switch of the write cache.
pub type Gate = Arc<RwLock<()>>;

/// A connection's device.
pub struct Queues<D> {
    device: Device<D>,
    memory: Memory,
    gate: Gate,
    each: Vec<Each>,
}

struct Each {
    poll: Mutex<Poll>,
    stopped: AtomicBool,
}

/// What a turn ended with.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    More,
    Empty,
    /// The queue is not to be served.
    Off,
}

impl<D: Disk> Queues<D> {
    pub fn new(disk: D, queues: u16, memory: Memory, gate: Gate) -> Queues<D> {
        let each = || Each {
            poll: Mutex::new(Poll::new()),
            stopped: AtomicBool::new(false),
        };
        Queues {
            device: Device::new(disk, queues),
            memory,
            gate,
            each: (0..queues).map(|_| each()).collect(),
        }
    }

    /// Serves a queue until nothing is left in it and the driver knows that it has to kick.
    fn run(&self, each: &Each, vring: &Vring) -> Result<(), Broken> {
        let mut poll = each.poll.lock().unwrap_or_else(PoisonError::into_inner);
        poll.woken();
        loop {
            // Not in the match: the lock would be held in its arms.
            let turn = self.turn(&mut vring.get_mut())?;
            match turn {
                Turn::More => std::thread::yield_now(),
                Turn::Off => break,
                Turn::Empty if poll.found(|| self.has_more(&mut vring.get_mut())) => {}
                Turn::Empty if self.waits_for_kick(&mut vring.get_mut())? => break,
                Turn::Empty => {}
            }
        }
        poll.sleeps();
        Ok(())
    }

    /// Serves some requests.
    fn turn(&self, vring: &mut VringState<Memory>) -> Result<Turn, Broken> {
        if !vring.is_enabled() || !vring.get_queue().ready() {
            return Ok(Turn::Off);
        }
        let _open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let memory = self.memory.memory();
        let queue = vring.get_queue_mut();
        ring(queue.disable_notification(&*memory))?;
        let served = serve_some(&self.device, &memory, queue)?;
        if served > 0 && ring(queue.needs_notification(&*memory))? {
            // A front-end that does not listen is on its way out.
            let _ = vring.signal_used_queue();
        }
        Ok(match served {
            AT_ONCE => Turn::More,
            _ => Turn::Empty,
        })
    }

    fn has_more(&self, vring: &mut VringState<Memory>) -> bool {
        let (memory, queue) = (self.memory.memory(), vring.get_queue());
        let there = queue.avail_idx(&*memory, Acquire);
        there.is_ok_and(|there| there.0 != queue.next_avail())
    }

    /// False if something came meanwhile.
    fn waits_for_kick(&self, vring: &mut VringState<Memory>) -> Result<bool, Broken> {
        let memory = self.memory.memory();
        Ok(!ring(vring.get_queue_mut().enable_notification(&*memory))?)
    }
}

/// Serves at most `AT_ONCE` requests; says how many.
pub(super) fn serve_some<D: Disk>(
    device: &Device<D>,
    memory: &GuestMemoryMmap,
    queue: &mut Queue,
) -> Result<usize, Broken> {
    for served in 0..AT_ONCE {
        let there = ring(queue.avail_idx(memory, Acquire))?.0 != queue.next_avail();
        let chain = match ring(queue.iter(memory))?.next() {
            Some(chain) => chain,
            None if there => return Err(Broken::Ring),
            None => return Ok(served),
        };
        let head = chain.head_index();
        let written = serve(device, memory, chain)?;
        ring(queue.add_used(memory, head, written))?;
    }
    Ok(AT_ONCE)
}

fn ring<T>(done: Result<T, virtio_queue::Error>) -> Result<T, Broken> {
    done.map_err(|_| Broken::Ring)
}

impl<D: Disk> VhostUserBackend for Queues<D> {
    type Bitmap = ();
    type Vring = Vring;

    fn num_queues(&self) -> usize {
        self.each.len()
    }

    fn max_queue_size(&self) -> usize {
        DESCRIPTORS_MAX
    }

    fn features(&self) -> u64 {
        self.device.features() | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn acked_features(&self, features: u64) {
        self.device.set_features(features);
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&self, _: bool) {
        // The queues know.
    }

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let config = self.device.config();
        let fields = config.iter().skip(offset as usize).copied();
        let padded = fields.chain(std::iter::repeat(0));
        padded.take((size as usize).min(CONFIG_MAX)).collect()
    }

    fn set_config(&self, offset: u32, bytes: &[u8]) -> io::Result<()> {
        // A write that was begun with a cache ends before the cache is flushed.
        let _shut = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        match self.device.set_config(offset, bytes) {
            true => Ok(()),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn update_memory(&self, _: Memory) -> io::Result<()> {
        // It is the one that this has.
        Ok(())
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        (0..self.each.len()).map(|queue| 1 << queue).collect()
    }

    fn exit_event(&self, _: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC).ok()
    }

    fn stop_vring(&self, queue: u32) -> io::Result<()> {
        // The lock of the vring was taken before this, so no request is on its way.
        if let Some(each) = self.each.get(queue as usize) {
            each.stopped.store(false, Relaxed);
        }
        Ok(())
    }

    fn handle_event(
        &self,
        event: u16,
        _: EventSet,
        vrings: &[Vring],
        queue: usize,
    ) -> io::Result<()> {
        let (Some(each), Some(vring)) = (self.each.get(queue), vrings.get(event as usize)) else {
            return Ok(());
        };
        if !each.stopped.load(Relaxed)
            && let Err(broken) = self.run(each, vring)
        {
            each.stopped.store(true, Relaxed);
            eprintln!("holdfast: queue {queue} is stopped: {broken}.");
        }
        Ok(())
    }
}
