//! Requests as drivers make them, and as hostile ones do, against a disk in memory.

use super::device::{Device, RANGES_MAX, ZERO_MAX};
use super::disk::Disk;
use super::queue::serve_some;
use super::request::Broken;
use holdfast::{Error, Written, Zeroes};
use std::sync::Mutex;

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO,
};
use virtio_queue::desc::{RawDescriptor, split::Descriptor};
use virtio_queue::mock::MockSplitQueue;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const SIZE: u64 = 1 << 20;
const MEMORY: usize = 4 << 20;
const DESCRIPTORS: u16 = 16;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Places in the guest's memory.
const HEADER: u64 = 0x1_0000;
const DATA: u64 = 0x2_0000;
const STATUS: u64 = 0x1_8000;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const ZEROES: u32 = 13;

const OK: u8 = 0;
const FAILED: u8 = 1;
const UNSUPPORTED: u8 = 2;
/// What a status is before the device writes it.
const UNTOUCHED: u8 = 0xee;

#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    flushes: usize,
    written: Vec<Written>,
    zeroed: Vec<(u64, u64, Zeroes)>,
}

struct Fake {
    content: Mutex<Content>,
    sector: u64,
    writes: bool,
}

impl Fake {
    fn change<T>(
        &self,
        at: u64,
        len: u64,
        f: impl FnOnce(&mut Content, usize) -> T,
    ) -> Result<T, Error> {
        // `request.rs` checks before: whatever reaches the disk is right.
        assert!((at | len).is_multiple_of(self.sector) && at + len <= SIZE);
        match self.writes {
            true => Ok(f(&mut self.content.lock().unwrap(), at as usize)),
            false => Err(Error::BatchTooLarge),
        }
    }
}

impl Disk for Fake {
    fn size(&self) -> u64 {
        SIZE
    }

    fn sector(&self) -> u64 {
        self.sector
    }

    fn writes(&self) -> bool {
        self.writes
    }

    fn name(&self) -> &str {
        "a disk with a long name"
    }

    fn read(&self, room: &mut [u8], at: u64) -> Result<(), Error> {
        assert!((at | room.len() as u64).is_multiple_of(self.sector));
        let at = at as usize;
        room.copy_from_slice(&self.content.lock().unwrap().bytes[at..at + room.len()]);
        Ok(())
    }

    fn write(&self, bytes: &[u8], at: u64, durable: Written) -> Result<(), Error> {
        self.change(at, bytes.len() as u64, |content, at| {
            content.bytes[at..at + bytes.len()].copy_from_slice(bytes);
            content.written.push(durable);
        })
    }

    fn flush(&self) -> Result<(), Error> {
        self.content.lock().unwrap().flushes += 1;
        Ok(())
    }

    fn zero(&self, at: u64, len: u64, zeroes: Zeroes) -> Result<(), Error> {
        self.change(at, len, |content, start| {
            content.bytes[start..start + len as usize].fill(0);
            content.zeroed.push((at, len, zeroes));
        })
    }
}

/// A buffer: address, length, flags.
type Buffer = (u64, u32, u16);

struct Guest {
    memory: GuestMemoryMmap,
    device: Device<Fake>,
}

impl Guest {
    fn new() -> Guest {
        Guest::with(512, true)
    }

    fn with(sector: u64, writes: bool) -> Guest {
        let content = Content {
            bytes: (0..SIZE).map(|i| (i / 512 + i) as u8).collect(),
            ..Content::default()
        };
        let disk = Fake {
            content: Mutex::new(content),
            sector,
            writes,
        };
        let device = Device::new(disk, 1);
        device.set_features(1 << VIRTIO_BLK_F_FLUSH | 1 << VIRTIO_BLK_F_CONFIG_WCE);
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
        Guest { memory, device }
    }

    fn header(&self, kind: u32, sector: u64) {
        let words = [kind.to_le_bytes(), [0; 4]].concat();
        self.put(HEADER, &[words, sector.to_le_bytes().to_vec()].concat());
        self.put(STATUS, &[UNTOUCHED]);
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory
            .read_slice(&mut bytes, GuestAddress(at))
            .unwrap();
        bytes
    }

    /// Offers descriptors from index 0 on, and serves what `heads` names.
    fn offer(&self, table: &[Descriptor], heads: &[u16]) -> (Queue, Result<usize, Broken>) {
        let mock = MockSplitQueue::new(&self.memory, DESCRIPTORS);
        for (index, descriptor) in table.iter().enumerate() {
            let raw = RawDescriptor::from(*descriptor);
            mock.desc_table().store(index as u16, raw).unwrap();
        }
        for (place, head) in heads.iter().enumerate() {
            let place = mock.avail().ring().ref_at(place).unwrap();
            place.store(head.to_le());
        }
        mock.avail().idx().store((heads.len() as u16).to_le());
        let mut queue: Queue = mock.create_queue().unwrap();
        let served = serve_some(&self.device, &self.memory, &mut queue);
        (queue, served)
    }

    /// One request of these buffers, chained; how many bytes of it were used.
    fn chain(&self, buffers: &[Buffer]) -> Result<u32, Broken> {
        let last = buffers.len() - 1;
        let link = |(index, buffer): (usize, &Buffer)| {
            let (address, len, flags) = *buffer;
            let flags = if index < last { flags | NEXT } else { flags };
            Descriptor::new(address, len, flags, index as u16 + 1)
        };
        let table: Vec<_> = buffers.iter().enumerate().map(link).collect();
        let (queue, served) = self.offer(&table, &[0]);
        assert_eq!(served?, 1);
        let used = self.get(queue.used_ring(), 12);
        assert_eq!(used[2..4], [1, 0]);
        Ok(u32::from_le_bytes(used[8..12].try_into().unwrap()))
    }

    /// A request as Linux makes it; its status.
    fn ask(&self, kind: u32, sector: u64, len: u32) -> u8 {
        self.header(kind, sector);
        let flags = if matches!(kind, IN | GET_ID) {
            WRITE
        } else {
            0
        };
        let buffers = [(HEADER, 16, 0), (DATA, len, flags), (STATUS, 1, WRITE)];
        let used = match len {
            0 => self.chain(&[buffers[0], buffers[2]]),
            _ => self.chain(&buffers),
        };
        assert_eq!(used, Ok(1 + if flags == WRITE { len } else { 0 }));
        self.get(STATUS, 1)[0]
    }

    fn ranges(&self, kind: u32, ranges: &[(u64, u32, u32)]) -> u8 {
        let bytes = |range: &(u64, u32, u32)| {
            let (sector, sectors, flags) = *range;
            let words = [sectors.to_le_bytes(), flags.to_le_bytes()].concat();
            [sector.to_le_bytes().to_vec(), words].concat()
        };
        let bytes: Vec<u8> = ranges.iter().flat_map(bytes).collect();
        self.put(DATA, &bytes);
        self.ask(kind, 0, bytes.len() as u32)
    }

    fn disk(&self) -> Vec<u8> {
        self.device.disk.content.lock().unwrap().bytes.clone()
    }

    fn zeroed(&self) -> Vec<(u64, u64, Zeroes)> {
        std::mem::take(&mut self.device.disk.content.lock().unwrap().zeroed)
    }

    fn written(&self) -> Vec<Written> {
        std::mem::take(&mut self.device.disk.content.lock().unwrap().written)
    }
}

#[test]
fn requests_do_what_they_say() {
    let guest = Guest::new();
    assert_eq!(guest.ask(IN, 3, 2048), OK);
    assert_eq!(guest.get(DATA, 2048), guest.disk()[1536..3584]);
    let bytes: Vec<u8> = (0..4096).map(|i| (i * 7 / 5) as u8).collect();
    guest.put(DATA, &bytes);
    assert_eq!(guest.ask(OUT, 8, 4096), OK);
    assert_eq!(guest.disk()[4096..8192], bytes);
    assert_eq!(guest.ask(FLUSH, 0, 0), OK);
    assert_eq!(guest.device.disk.content.lock().unwrap().flushes, 1);
    assert_eq!(guest.ask(GET_ID, 0, 20), OK);
    assert_eq!(guest.get(DATA, 20), b"a disk with a long n");
    assert_eq!(guest.ranges(DISCARD, &[(0, 8, 0), (16, 8, 0)]), OK);
    let holes = [(0, 4096, Zeroes::Hole), (8192, 4096, Zeroes::Hole)];
    assert_eq!(guest.zeroed(), holes);
    assert_eq!(guest.ranges(ZEROES, &[(8, 1, 0), (9, 1, 1)]), OK);
    let zeroes = [(4096, 512, Zeroes::Blocks), (4608, 512, Zeroes::Hole)];
    assert_eq!(guest.zeroed(), zeroes);
    assert_eq!(guest.ask(IN, 0, 0), OK);
    assert_eq!(guest.ask(7, 0, 512), UNSUPPORTED);
}

#[test]
fn buffers_may_be_cut_anywhere() {
    let guest = Guest::new();
    guest.header(IN, 1);
    let buffers = [
        (HEADER, 5, 0),
        (HEADER + 5, 11, 0),
        (DATA, 0, WRITE),
        (DATA, 1000, WRITE),
    ];
    let last = [(DATA + 1000, 25, WRITE)];
    assert_eq!(guest.chain(&[buffers.as_slice(), &last].concat()), Ok(1025));
    assert_eq!(guest.get(DATA, 1024), guest.disk()[512..1536]);
    assert_eq!(guest.get(DATA + 1024, 1), [OK]);
}

#[test]
fn a_write_is_durable_when_the_driver_has_no_cache() {
    let guest = Guest::new();
    assert_eq!(guest.ask(OUT, 0, 512), OK);
    assert_eq!(guest.written(), [Written::AtFlush]);
    assert!(guest.device.set_config(32, &[0]));
    assert_eq!(guest.device.disk.content.lock().unwrap().flushes, 1);
    assert_eq!(guest.ask(OUT, 0, 512), OK);
    assert_eq!(guest.written(), [Written::AtReturn]);
    assert!(guest.device.set_config(32, &[1]));
    assert_eq!(guest.ask(OUT, 0, 512), OK);
    assert_eq!(guest.written(), [Written::AtFlush]);
    // A driver that knows nothing of caches, and one that can flush but not switch.
    for (features, durable) in [
        (0, Written::AtReturn),
        (1 << VIRTIO_BLK_F_FLUSH, Written::AtFlush),
    ] {
        guest.device.set_features(features);
        assert_eq!(guest.ask(OUT, 0, 512), OK);
        assert_eq!(guest.written(), [durable]);
    }
    for (offset, bytes) in [
        (0, [0].as_slice()),
        (32, &[2]),
        (32, &[0, 0]),
        (u32::MAX, &[]),
    ] {
        assert!(!guest.device.set_config(offset, bytes));
    }
}

#[test]
fn the_configuration_has_its_layout() {
    let guest = Guest::with(4096, true);
    let config = guest.device.config();
    let word = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(4)), ((SIZE / 512) as u32, 0));
    assert_eq!((word(12), word(20)), (126, 4096));
    assert_eq!(config[24..26], [0, 0]);
    assert_eq!(config[32..36], [1, 0, 1, 0]);
    assert_eq!((word(36), word(40), word(44)), (1 << 22, 32, 8));
    assert_eq!((word(48), word(52), config[56]), (1 << 17, 32, 1));
    assert_eq!(Guest::new().device.config()[24..28], [3, 0, 8, 0]);
    let (both, reads) = (
        guest.device.features(),
        Guest::with(512, false).device.features(),
    );
    assert_eq!((both >> VIRTIO_BLK_F_RO) & 1, 0);
    assert_eq!((both >> VIRTIO_BLK_F_DISCARD) & 1, 1);
    assert_eq!((reads >> VIRTIO_BLK_F_RO) & 1, 1);
    assert_eq!((reads >> VIRTIO_BLK_F_DISCARD) & 1, 0);
}

#[test]
fn wrong_requests_fail_and_change_nothing() {
    let guest = Guest::new();
    let before = guest.disk();
    let end = SIZE / 512;
    for (kind, sector, len) in [
        (IN, end, 512),
        (OUT, end, 512),
        (OUT, end - 1, 1024),
        (OUT, u64::MAX, 512),
        (OUT, u64::MAX / 512, 512),
        (OUT, 0, 511),
        (IN, 0, 513),
        (IN, 0, MEMORY as u32 - DATA as u32),
        (GET_ID, 0, 19),
        (DISCARD, 0, 0),
        (DISCARD, 0, 15),
        (ZEROES, 0, 17),
    ] {
        assert_eq!(
            guest.ask(kind, sector, len),
            FAILED,
            "{kind} {sector} {len}"
        );
    }
    for (kind, range, status) in [
        (DISCARD, (0, 8, 1), UNSUPPORTED),
        (DISCARD, (0, 8, 2), UNSUPPORTED),
        (ZEROES, (0, 8, 2), UNSUPPORTED),
        (DISCARD, (end - 1, 2, 0), FAILED),
        (DISCARD, (u64::MAX, 1, 0), FAILED),
        (ZEROES, (0, u32::MAX, 0), FAILED),
        (ZEROES, (0, ZERO_MAX + 1, 0), FAILED),
    ] {
        assert_eq!(guest.ranges(kind, &[(0, 8, 0), range]), status, "{range:?}");
    }
    let many = vec![(0, 1, 0); RANGES_MAX + 1];
    assert_eq!(guest.ranges(DISCARD, &many), FAILED);
    assert_eq!(guest.disk(), before);
    assert_eq!(guest.zeroed(), []);
    let large = Guest::with(4096, true);
    assert_eq!(large.ask(OUT, 1, 4096), FAILED);
    assert_eq!(large.ask(OUT, 0, 512), FAILED);
    assert_eq!(large.ask(OUT, 8, 4096), OK);
    let reads = Guest::with(512, false);
    assert_eq!(reads.ask(OUT, 0, 512), FAILED);
    assert_eq!(reads.ranges(DISCARD, &[(0, 8, 0)]), FAILED);
    assert_eq!(reads.ask(IN, 0, 512), OK);
}

#[test]
fn what_has_no_status_stops_the_queue() {
    let guest = Guest::new();
    let before = guest.disk();
    guest.header(OUT, 0);
    let (head, data, status) = ((HEADER, 16, 0), (DATA, 512, 0), (STATUS, 1, WRITE));
    let beyond = MEMORY as u64;
    for (buffers, broken) in [
        (vec![head], Broken::NoStatus),
        (vec![head, data], Broken::NoStatus),
        (vec![head, data, (STATUS, 0, WRITE)], Broken::NoStatus),
        (vec![head, (beyond, 512, 0), status], Broken::Address),
        (vec![head, (beyond - 1, 512, 0), status], Broken::Address),
        (vec![head, (u64::MAX - 5, 512, 0), status], Broken::Address),
        (vec![(u64::MAX, 16, 0), data, status], Broken::Address),
        (vec![head, data, (beyond, 1, WRITE)], Broken::Address),
        (
            vec![head, (DATA, u32::MAX - 20, 0), status],
            Broken::Address,
        ),
        // More than a chain may have.
        (vec![head, (DATA, u32::MAX, 0), status], Broken::NoStatus),
        // An indirect table that is not there, and one of half a descriptor.
        (vec![(beyond, 48, INDIRECT)], Broken::NoStatus),
        (vec![(DATA, 24, INDIRECT)], Broken::NoStatus),
    ] {
        assert_eq!(guest.chain(&buffers), Err(broken), "{buffers:?}");
        assert_eq!(guest.get(STATUS, 1), [UNTOUCHED]);
    }
    // A header that is too short, with a place to say so.
    assert_eq!(guest.chain(&[(HEADER, 15, 0), status]), Ok(1));
    assert_eq!(guest.get(STATUS, 1), [FAILED]);
    assert_eq!(guest.chain(&[status]), Ok(1));
    assert_eq!(guest.disk(), before);
}

#[test]
fn rings_that_make_no_sense_stop_the_queue() {
    let guest = Guest::new();
    guest.header(FLUSH, 0);
    let head = Descriptor::new(HEADER, 16, NEXT, 1);
    let status = Descriptor::new(STATUS, 1, WRITE, 0);
    let served = |table: &[Descriptor], heads: &[u16]| guest.offer(table, heads).1;
    assert_eq!(served(&[head, status], &[0]), Ok(1));
    // A head that there is not, and more of them than descriptors.
    assert!(served(&[head, status], &[DESCRIPTORS]).is_err());
    let mock = MockSplitQueue::new(&guest.memory, DESCRIPTORS);
    mock.avail().idx().store(DESCRIPTORS + 1);
    let mut queue: Queue = mock.create_queue().unwrap();
    let too_many = serve_some(&guest.device, &guest.memory, &mut queue);
    assert_eq!(too_many, Err(Broken::Ring));
    // Chains that bite their tails end with the number of descriptors.
    let tail = Descriptor::new(STATUS, 1, WRITE | NEXT, 0);
    assert!(served(&[head, tail], &[0]).is_ok());
    let own = Descriptor::new(HEADER, 16, NEXT, 0);
    assert_eq!(served(&[own], &[0]), Err(Broken::NoStatus));
    let out = Descriptor::new(HEADER, 16, NEXT, DESCRIPTORS);
    assert_eq!(served(&[out], &[0]), Err(Broken::NoStatus));
    // A table within a table.
    let inner = Descriptor::new(HEADER, 16, INDIRECT, 0);
    let raw = RawDescriptor::from(inner);
    guest.memory.write_obj(raw, GuestAddress(DATA)).unwrap();
    let outer = Descriptor::new(DATA, 16, INDIRECT, 0);
    assert_eq!(served(&[outer], &[0]), Err(Broken::NoStatus));
    // A queue outside of the memory.
    queue.set_next_avail(0);
    queue.set_avail_ring_address(Some(MEMORY as u32), Some(0));
    let outside = serve_some(&guest.device, &guest.memory, &mut queue);
    assert_eq!(outside, Err(Broken::Ring));
    // One that says that there is something, where there is no memory any more.
    guest.put(MEMORY as u64 - 4, &[0, 0, 1, 0]);
    queue.set_avail_ring_address(Some(MEMORY as u32 - 4), Some(0));
    let outside = serve_some(&guest.device, &guest.memory, &mut queue);
    assert_eq!(outside, Err(Broken::Ring));
}

/// xorshift64.
struct Chance(u64);

impl Chance {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len() as u64) as usize]
    }
}

/// Whatever descriptors say, each request ends in a status that there is, or the queue stops, and
/// the disk is asked only for what it has: it asserts that itself.
#[test]
fn no_chain_of_descriptors_gets_through() {
    let guest = Guest::new();
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    let (mut answered, mut stopped) = (0, 0);
    for _ in 0..20_000 {
        let kind = chance.one_of(&[IN, OUT, FLUSH, GET_ID, DISCARD, ZEROES, 99]);
        let sector = chance.one_of(&[0, 1, 7, 2047, 2048, u64::MAX / 512, u64::MAX]);
        guest.header(kind, sector);
        let table: Vec<Descriptor> = (0..DESCRIPTORS)
            .map(|index| {
                let places = [HEADER, DATA, STATUS, MEMORY as u64 - 8, u64::MAX - 3, 0];
                let len = chance.one_of(&[0, 1, 15, 16, 17, 48, 512, 4096, 1 << 20, u32::MAX]);
                let next = chance.one_of(&[index + 1, index + 1, index + 1, 0, 5, u16::MAX]);
                let flags = chance.one_of(&[NEXT, NEXT, NEXT | WRITE, WRITE, 0, INDIRECT, 7]);
                let place = chance.one_of(&places[..if index < 2 { 3 } else { 6 }]);
                Descriptor::new(place, len, flags, next)
            })
            .collect();
        let heads = [0, chance.roll(u64::from(DESCRIPTORS) + 1) as u16];
        match guest.offer(&table, &heads).1 {
            Ok(served) => answered += served,
            Err(_) => stopped += 1,
        }
    }
    assert!(answered > 1000 && stopped > 1000, "{answered} {stopped}");
}
