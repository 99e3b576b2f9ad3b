//! The device as its driver sees it: features and configuration.
//!
//! Invariant: the configuration has the layout of the virtio specification, 1.2, 5.2.4.

use super::disk::Disk;
use holdfast::Written;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH,
    VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY,
    VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// The unit of offsets and lengths in requests, whatever the volume's sectors are.
pub const SECTOR: u64 = 512;
/// The most ranges in one request to discard or to write zeroes.
pub const RANGES_MAX: usize = 32;
/// The most sectors to discard at once: 2 GiB.
pub const DISCARD_MAX: u32 = 1 << 22;
/// The most sectors to zero at once, which may take as long as writing them: 64 MiB.
pub const ZERO_MAX: u32 = 1 << 17;
/// Buffers of a request; with header and status they fill the queue of a front-end that has the
/// usual 128 descriptors.
const BUFFERS_MAX: u32 = 126;
/// What the pool allocates at once.
const BLOCK: u64 = 4096;

/// The configuration's length, and where in it is what a driver can change.
const LEN: usize = 60;
const WRITE_CACHE: u32 = 32;

pub struct Device<D> {
    pub disk: D,
    queues: u16,
    features: AtomicU64,
    write_cache: AtomicBool,
}

impl<D: Disk> Device<D> {
    pub fn new(disk: D, queues: u16) -> Device<D> {
        Device {
            disk,
            queues,
            features: AtomicU64::new(0),
            write_cache: AtomicBool::new(true),
        }
    }

    /// Those of the device and of its queues.
    pub fn features(&self) -> u64 {
        let always = [
            VIRTIO_F_VERSION_1,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_TOPOLOGY,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_CONFIG_WCE,
            VIRTIO_BLK_F_MQ,
        ];
        let more: &[u32] = match self.disk.writes() {
            true => &[VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES],
            false => &[VIRTIO_BLK_F_RO],
        };
        let all = always.iter().chain(more);
        all.fold(0, |features, bit| features | 1 << bit)
    }

    /// What the driver and the device have in common.
    pub fn set_features(&self, features: u64) {
        self.features.store(features, Relaxed);
    }

    /// When a write is durable. A driver that cannot flush never has a write cache.
    pub fn written(&self) -> Written {
        let features = self.features.load(Relaxed);
        let has = |bit: u32| features & (1 << bit) != 0;
        let cached = match has(VIRTIO_BLK_F_CONFIG_WCE) {
            true => self.write_cache.load(Relaxed),
            false => has(VIRTIO_BLK_F_FLUSH),
        };
        match cached {
            true => Written::AtFlush,
            false => Written::AtReturn,
        }
    }

    pub fn config(&self) -> [u8; LEN] {
        let mut fields = Vec::with_capacity(LEN);
        let mut add = |bytes: &[u8]| fields.extend_from_slice(bytes);
        let sector = self.disk.sector();
        add(&(self.disk.size() / SECTOR).to_le_bytes());
        // size_max and geometry: features that it does not have.
        add(&0_u32.to_le_bytes());
        add(&BUFFERS_MAX.to_le_bytes());
        add(&[0; 4]);
        add(&(sector as u32).to_le_bytes());
        add(&[(BLOCK / sector).ilog2() as u8, 0]);
        add(&((BLOCK / sector) as u16).to_le_bytes());
        add(&0_u32.to_le_bytes());
        add(&[self.write_cache.load(Relaxed).into(), 0]);
        add(&self.queues.to_le_bytes());
        add(&DISCARD_MAX.to_le_bytes());
        add(&(RANGES_MAX as u32).to_le_bytes());
        add(&((BLOCK / SECTOR) as u32).to_le_bytes());
        add(&ZERO_MAX.to_le_bytes());
        add(&(RANGES_MAX as u32).to_le_bytes());
        // Zeroes may be holes.
        add(&[1, 0, 0, 0]);
        let mut config = [0; LEN];
        config.copy_from_slice(&fields);
        config
    }

    /// Switches the write cache: what is written into it is durable once it is off. False for
    /// anything else that somebody wants to change.
    pub fn set_config(&self, offset: u32, bytes: &[u8]) -> bool {
        let [on] = bytes else {
            return false;
        };
        if offset != WRITE_CACHE || *on > 1 {
            return false;
        }
        self.write_cache.store(*on == 1, Relaxed);
        *on == 1 || self.disk.flush().is_ok()
    }
}
