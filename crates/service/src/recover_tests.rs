//! Recovery of journals that were written byte by byte as the specification says, judged by what is
//! in the trees and in the blocks afterwards.
//!
//! Invariant: the expected state is computed by plain maps here, with none of the code above.

mod evidence;
mod losses;
mod random;

use crate::base::error::Error;
use crate::base::files::{self, CreateOptions, Files};
use crate::journal::engine::Engine;
use crate::recovery::recover::{self, Recovered};
use crate::testing::TempDir;
use holdfast_pmem::Medium;
use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::layout::extent::{self, Run};
use holdfast_pool::layout::{InodeRecord, inode};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const LANE: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// The file that records are about.
const INO: u64 = 2;
/// What lies in a block that nobody has written since.
const STALE: u8 = 0xee;
const OTHER_BOOT: [u8; 16] = [7; 16];

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & 0_u32.wrapping_sub(crc & 1))
        })
    })
}

/// A record as bytes, padded.
fn record(kind: u16, lane: u16, seq: u64, fields: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 24];
    out[..4].copy_from_slice(&0x524a_4648_u32.to_le_bytes());
    out[8..16].copy_from_slice(&seq.to_le_bytes());
    out[16..20].copy_from_slice(&(24 + fields.len() as u32).to_le_bytes());
    out[20..22].copy_from_slice(&kind.to_le_bytes());
    out[22..24].copy_from_slice(&lane.to_le_bytes());
    out.extend_from_slice(fields);
    let sum = crc32c(&out[8..]);
    out[4..8].copy_from_slice(&sum.to_le_bytes());
    out.resize(out.len().next_multiple_of(64), 0);
    out
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Kind and fields of a record.
type Body = (u16, Vec<u8>);

fn create(ino: u64, name: &[u8], mode: u32) -> Body {
    let mut f = words(&[1, ino]);
    for word in [mode, 0, 0, 0] {
        f.extend(word.to_le_bytes());
    }
    f.extend(words(&[0, 5]));
    f.extend((name.len() as u16).to_le_bytes());
    f.extend(name);
    (1, f)
}

fn extent(file_block: u64, block: u64, len: u32, size: u64) -> Body {
    let mut f = words(&[INO, file_block, block]);
    f.extend(len.to_le_bytes());
    f.extend(words(&[size, 7, 8]));
    f.extend(0u32.to_le_bytes());
    (6, f)
}

fn data(block: u64, bytes: &[u8]) -> Body {
    (19, [words(&[block]), bytes.to_vec()].concat())
}

fn in_place(before: u64, runs: &[(u64, u64)]) -> Body {
    let mut f = vec![before];
    runs.iter()
        .for_each(|(block, len)| f.extend([*block, *len]));
    (20, words(&f))
}

fn mark(seq: u64, acked: u64, heads: [u64; 16], acked_heads: [u64; 16]) -> Body {
    let f = [&[seq, acked][..], &heads, &acked_heads].concat();
    (15, words(&f))
}

/// A change of keyspace `keyspace`, as the first of its record.
fn change(kind: u8, keyspace: u64, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut f = vec![kind, 0];
    f.extend((key.len() as u16).to_le_bytes());
    f.extend((value.len() as u32).to_le_bytes());
    f.extend(4_u32.to_le_bytes());
    f.extend([0; 4]);
    f.extend(words(&[keyspace]));
    f.extend([key, value].concat());
    f.resize(f.len().next_multiple_of(8), 0);
    f
}

fn batch(changes: &[u8]) -> Body {
    (17, [words(&[9]), changes.to_vec()].concat())
}

/// A pool whose users are all dead, and what they wrote to its journal.
struct Fixture {
    _dir: TempDir,
    path: PathBuf,
    /// Whatever the directory of the test lies on.
    medium: Medium,
    journal: File,
    data: File,
    heads: [u64; 16],
    acked: [u64; 16],
    acked_seq: u64,
    /// The last number that was taken.
    seq: u64,
}

impl Fixture {
    fn new(name: &str, medium: Medium, consistency: Consistency) -> Fixture {
        let dir = TempDir::new(name);
        let path = dir.path().join("pool");
        let options = CreateOptions {
            size: Some(16 << 20),
            medium: None,
            consistency,
        };
        files::create(&path, &options).unwrap();
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true);
            options.open(path.join(name)).unwrap()
        };
        let fixture = Fixture {
            medium,
            journal: open("journal-0.seg"),
            data: open("data-0.seg"),
            _dir: dir,
            path,
            heads: [0; 16],
            acked: [0; 16],
            acked_seq: 0,
            seq: 0,
        };
        fixture.engine().store.begin().unwrap();
        fixture
    }

    /// On ordinary files, with the file `INO`.
    fn file(name: &str) -> Fixture {
        let mut fixture = Fixture::new(name, Medium::File, Consistency::Posix);
        fixture.put(0, &create(INO, b"f", 0o100_644));
        fixture
    }

    fn engine(&self) -> Engine {
        let mut files = Files::open(&self.path).unwrap();
        files.medium = self.medium;
        let mut engine = Engine::open(files).unwrap();
        engine.store.show().unwrap();
        engine
    }

    fn put(&mut self, lane: usize, body: &Body) -> u64 {
        self.seq += 1;
        self.put_as(lane, self.seq, body);
        self.seq
    }

    /// Where it was put.
    fn put_as(&mut self, lane: usize, seq: u64, (kind, fields): &Body) -> u64 {
        let bytes = record(*kind, lane as u16, seq, fields);
        let head = &mut self.heads[lane];
        if *head % LANE + bytes.len() as u64 > LANE {
            *head = head.next_multiple_of(LANE);
        }
        let at = *head;
        *head += bytes.len() as u64;
        self.write_at(lane, at, &bytes);
        at
    }

    fn write_at(&self, lane: usize, at: u64, bytes: &[u8]) {
        let offset = lane as u64 * LANE + at % LANE;
        self.journal.write_all_at(bytes, offset).unwrap();
    }

    fn flip(&self, lane: usize, at: u64, bit: u64) {
        let offset = lane as u64 * LANE + at % LANE + bit / 8;
        let mut byte = [0];
        self.journal.read_exact_at(&mut byte, offset).unwrap();
        byte[0] ^= 1 << (bit % 8);
        self.journal.write_all_at(&byte, offset).unwrap();
    }

    /// A flush, after which a mark is durable.
    fn mark(&mut self, lane: usize) -> u64 {
        let (heads, seq) = (self.heads, self.seq);
        let body = mark(seq, self.acked_seq, heads, self.acked);
        let number = self.put(lane, &body);
        (self.acked, self.acked_seq) = (heads, seq);
        number
    }

    fn fill(&self, block: u64, byte: u8) {
        let bytes = [byte; BLOCK as usize];
        self.data.write_all_at(&bytes, block * BLOCK).unwrap();
    }

    fn lose_power(&self) {
        self.engine()
            .store
            .note(|sb| sb.boot_id = OTHER_BOOT)
            .unwrap();
    }

    fn recover(&self) -> Result<(Engine, Recovered), Error> {
        let mut engine = self.engine();
        let recovered = recover::recover(&mut engine)?;
        Ok((engine, recovered))
    }

    /// Power was lost; what recovery makes of it, and that a second one changes nothing.
    fn recovered(&self) -> (Engine, Recovered) {
        self.lose_power();
        self.recover_soundly()
    }

    fn recover_soundly(&self) -> (Engine, Recovered) {
        assert!(self.findings().is_empty(), "{:?}", self.findings());
        let (mut engine, recovered) = self.recover().unwrap();
        let before = shown(&engine, 64);
        let again = recover::recover(&mut engine).unwrap();
        assert_eq!(again.records, 0);
        assert_eq!(shown(&engine, 64), before);
        assert!(self.findings().is_empty(), "{:?}", self.findings());
        (engine, recovered)
    }

    /// What the independent check has to say.
    fn findings(&self) -> Vec<String> {
        let mut files = Files::open_read_only(&self.path).unwrap();
        files.medium = self.medium;
        let report = crate::check::check(&files).unwrap();
        report.damage().map(ToString::to_string).collect()
    }

    /// Recovery refuses, the check says the same, nothing was changed; then what is left of it.
    fn lost(&self) -> (Vec<(usize, u64, u64)>, Engine) {
        let journal = || std::fs::read(self.path.join("journal-0.seg")).unwrap();
        let before = journal();
        let losses = match self.recover() {
            Err(Error::Journal { losses, .. }) => losses,
            Err(e) => panic!("{e}"),
            Ok(_) => panic!("recovery said nothing; check says {:?}", self.findings()),
        };
        let found = self.findings();
        assert_eq!(found.len(), losses.len(), "{found:?} {losses:?}");
        for (text, loss) in found.iter().zip(&losses) {
            let place = format!("lane {} at {}: ", loss.lane, loss.position);
            assert!(text.contains(&place), "{text} {losses:?}");
            let first = format!(" {}", loss.first);
            assert!(text.contains(&first), "{text} {losses:?}");
        }
        assert!(before == journal());
        let mut engine = self.engine();
        recover::recover_what_is_left(&mut engine).unwrap();
        assert!(self.findings().is_empty(), "{:?}", self.findings());
        let losses = losses.iter().map(|l| (l.lane, l.first, l.last)).collect();
        (losses, engine)
    }
}

/// The first byte of each block that the file shows; `None`: a hole.
fn shown(engine: &Engine, blocks: u64) -> Vec<Option<u8>> {
    let reader = engine.store.pool.reader();
    let shows = |file_block| match extent::find(&reader, INO, file_block).unwrap() {
        Run::Blocks { block, .. } => {
            let mut byte = [0];
            engine.store.data.read(block.offset(), &mut byte).unwrap();
            Some(byte[0])
        }
        _ => None,
    };
    (0..blocks).map(shows).collect()
}

fn exists(engine: &Engine, ino: u64) -> bool {
    crate::tests::exists(engine, ino)
}

fn size_and_times(engine: &Engine) -> (u64, i64, i64) {
    let mut buf = [0; inode::ENCODED_MAX];
    let found: Option<InodeRecord<'_>> =
        inode::find(&engine.store.pool.reader(), INO, &mut buf).unwrap();
    let found = found.unwrap();
    (found.size, found.mtime, found.ctime)
}

/// A generator of numbers that come again for the same seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        let next = self.0.wrapping_mul(6364136223846793005);
        self.0 = next.wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}
