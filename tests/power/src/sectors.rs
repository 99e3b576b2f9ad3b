//! Power cuts under a volume with atomic sectors: the table in a file of the pool.
//!
//! Invariant: in each image each sector is as the last request that returned left it, or as the one
//! under way leaves it; whole in any case. Without a table an image shows a torn one.

use crate::image::{Base, Dir};
use crate::model::Op;
use crate::stack::{self, ME, ROOT, Stack};
use holdfast_btt::{Device, Shape, Space, Sum, Table, device_len};
use holdfast_client::{Client, Error, OfdLink, abi};
use holdfast_pmem::images::{Image, Images, Model, Options};
use holdfast_pmem::{ConstBuf, Medium, MutBuf, Recorder};
use holdfast_pool::checksum::crc32c;
use holdfast_pool::format::superblock::Consistency;
use holdfast_service::CreateOptions;

const SECTORS: u64 = 80;
const NAME: &str = "disk";

/// The volume's file.
struct Raw<'a>(&'a Client, OfdLink);

impl Device for Raw<'_> {
    type Error = Error;

    fn size(&self) -> Result<u64, Error> {
        Ok(self.0.fstat(self.1)?.size)
    }

    fn read(&self, room: &mut [u8], at: u64) -> Result<(), Error> {
        let len = room.len();
        let n = self.0.pread(self.1, MutBuf::from(room), at as i64)?;
        assert_eq!(n, len, "a short read");
        Ok(())
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<(), Error> {
        let n = self.0.pwrite(self.1, ConstBuf::from(bytes), at as i64)?;
        assert_eq!(n, bytes.len(), "a short write");
        Ok(())
    }

    fn order(&self) -> Result<(), Error> {
        self.0.fdatasync(self.1)
    }

    fn reserve(&self, at: u64, len: u64) -> Result<(), Error> {
        let keep = abi::FALLOC_FL_KEEP_SIZE;
        self.0.fallocate(self.1, keep, at as i64, len as i64)
    }

    fn punch(&self, at: u64, len: u64) -> Result<(), Error> {
        let mode = abi::FALLOC_FL_PUNCH_HOLE | abi::FALLOC_FL_KEEP_SIZE;
        self.0.fallocate(self.1, mode, at as i64, len as i64)
    }

    fn next_data(&self, at: u64) -> Result<Option<u64>, Error> {
        match self.0.lseek(self.1, at as i64, abi::SEEK_DATA) {
            Ok(found) => Ok(Some(found)),
            Err(e) if e.errno() == 6 => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Sectors from the first on; each value fills a sector.
#[derive(Clone, Copy, Debug)]
enum Request {
    Write(u64, u64, u8),
    Zero(u64, u64, Space),
    /// Blocks are shared from now on.
    Snapshot,
}

use Request::*;

const REQUESTS: [Request; 10] = [
    Write(3, 1, 20),
    Write(3, 1, 21),
    Write(60, 6, 22),
    Zero(2, 4, Space::Given),
    Write(1, 3, 23),
    Snapshot,
    Write(3, 1, 24),
    Write(61, 2, 25),
    Zero(60, 4, Space::Kept),
    Write(62, 1, 26),
];

impl Request {
    fn apply(self, model: &mut [u8]) {
        let (first, count, value) = match self {
            Write(first, count, value) => (first, count, value),
            Zero(first, count, _) => (first, count, 0),
            Snapshot => return,
        };
        model[first as usize..(first + count) as usize].fill(value);
    }
}

#[derive(Clone, Copy)]
struct Plan {
    medium: Medium,
    model: Model,
    sector: u64,
    /// Sectors are in the file itself.
    plain: bool,
}

impl Plan {
    /// Small sectors have checksums, too.
    fn shape(&self) -> Shape {
        Shape {
            sector: self.sector as u32,
            sums: self.sector == 512,
        }
    }

    fn sum(&self) -> Option<Sum> {
        self.shape().sums.then_some(|bytes| crc32c(bytes))
    }
}

fn open(client: &Client) -> OfdLink {
    let flags = abi::O_RDWR | abi::O_CREAT;
    let path = NAME.as_bytes();
    client.open(&ME, ROOT, path, flags, 0o600, 0).unwrap()
}

fn request(stack: &mut Stack, plan: &Plan, request: Request) {
    if let Snapshot = request {
        return stack.call(&Op::Snapshot("then")).unwrap();
    }
    let client = stack.client();
    let raw = Raw(client, open(client));
    let bytes = |sectors: u64| sectors * plan.sector;
    match (request, plan.plain) {
        (Write(first, count, value), true) => {
            raw.write(&vec![value; bytes(count) as usize], bytes(first))
                .unwrap();
        }
        (Zero(first, count, _), true) => raw.punch(bytes(first), bytes(count)).unwrap(),
        (request, _) => {
            let table = Table::to_write(raw, plan.sum()).unwrap();
            match request {
                Write(first, count, value) => {
                    let data = vec![value; bytes(count) as usize];
                    table.write(&data, bytes(first)).unwrap();
                }
                Zero(first, count, space) => {
                    table.zero(bytes(first), bytes(count), space).unwrap();
                }
                Snapshot => {}
            }
            return client.release(table.into_device().1).unwrap();
        }
    }
    client.release(raw.1).unwrap();
}

/// A volume with a value in each sector.
fn prepare(stack: &mut Stack, plan: &Plan) -> Vec<u8> {
    let client = stack.client();
    let raw = Raw(client, open(client));
    let len = match plan.plain {
        true => SECTORS * plan.sector,
        false => device_len(SECTORS, plan.shape()),
    };
    client.ftruncate(raw.1, len as i64).unwrap();
    if !plan.plain {
        Table::format(&raw, SECTORS, plan.shape(), [1; 16]).unwrap();
    }
    client.fdatasync(raw.1).unwrap();
    client.release(raw.1).unwrap();
    let mut model = vec![0; SECTORS as usize];
    for first in (0..SECTORS / 2).step_by(4).chain([60]) {
        let write = Write(first, 4, 1 + first as u8);
        request(stack, plan, write);
        write.apply(&mut model);
    }
    model
}

/// The value of each sector, and of those that the table has in the snapshot nothing: it is opened
/// for reading. An error: one is torn.
fn values(stack: &Stack, plan: &Plan) -> Result<Vec<u8>, String> {
    let client = stack.client();
    let raw = Raw(client, open(client));
    let mut bytes = vec![0xee; (SECTORS * plan.sector) as usize];
    let raw = match plan.plain {
        true => {
            raw.read(&mut bytes, 0).map_err(|e| e.to_string())?;
            raw
        }
        false => {
            let table = Table::to_write(raw, plan.sum()).map_err(|e| e.to_string())?;
            table.check().map_err(|e| e.to_string())?;
            table.read(&mut bytes, 0).map_err(|e| e.to_string())?;
            table.into_device()
        }
    };
    client.release(raw.1).map_err(|e| e.to_string())?;
    let sectors = bytes.chunks_exact(plan.sector as usize).enumerate();
    let value = |(number, sector): (usize, &[u8])| {
        let whole = sector.iter().all(|byte| *byte == sector[0]);
        whole
            .then_some(sector[0])
            .ok_or(format!("sector {number} is torn"))
    };
    sectors.map(value).collect()
}

fn judge(image: &Image<'_>, plan: &Plan, base: &Base, states: &[Vec<u8>]) -> Result<(), String> {
    let dir = Dir::new("sectors");
    base.lay(image, &dir);
    if plan.medium == Medium::File {
        dir.reboot();
    }
    let engine = stack::recovered(dir.path(), plan.medium)?;
    let stack = Stack::start(engine)?;
    let found = values(&stack, plan)?;
    let (acked, begun) = (image.acked().count(), image.begun().count());
    let allowed = &states[acked..=begun];
    for (number, value) in found.iter().enumerate() {
        if !allowed.iter().any(|state| state[number] == *value) && !plan.plain {
            return Err(format!(
                "sector {number} has {value} after {acked} requests"
            ));
        }
    }
    stack.end()?;
    stack::check(dir.path(), plan.medium)
}

/// How many images there were, and what was wrong with the first that was.
fn run(plan: Plan, images: u64) -> (usize, Option<String>) {
    let dir = Dir::new("sectors");
    let options = CreateOptions {
        size: Some(16 << 20),
        medium: None,
        consistency: Consistency::Posix,
    };
    holdfast_service::create(dir.path(), &options).unwrap();
    let log = Recorder::new();
    let watches = dir.watch(&log);
    let mut stack = Stack::start(stack::recovered(dir.path(), plan.medium).unwrap()).unwrap();
    let mut states = vec![prepare(&mut stack, &plan)];
    stack.call(&Op::Checkpoint).unwrap();
    stack.step().unwrap();
    log.take();
    let base = Base::new(dir.read());
    for (number, one) in REQUESTS.into_iter().enumerate() {
        log.begin(number as u64);
        request(&mut stack, &plan, one);
        log.ack(number as u64);
        let mut state = states[number].clone();
        one.apply(&mut state);
        states.push(state);
    }
    let events = log.events();
    drop(watches);
    stack.end().unwrap();
    let bases: Vec<&[u8]> = base.full.iter().map(Vec::as_slice).collect();
    let options = Options {
        model: plan.model,
        exhaustive: images * 2,
        singles: images,
        pairs: images / 2,
        random: images,
        seed: 5,
    };
    let mut count = 0;
    let wrong = Images::new(&bases, &events, options).find_map(|image| {
        count += 1;
        let done = judge(&image, &plan, &base, &states);
        done.err().map(|why| format!("{image:?}: {why}"))
    });
    println!("{:?} {}: {count} images", plan.medium, plan.sector);
    (count, wrong)
}

fn tell(medium: Medium, model: Model, images: u64) {
    for sector in [512, 4096] {
        let plan = Plan {
            medium,
            model,
            sector,
            plain: false,
        };
        let (count, wrong) = run(plan, images);
        assert_eq!(wrong, None, "{sector}");
        assert!(count > 100, "{count}");
    }
}

#[test]
fn sectors_on_persistent_memory() {
    tell(Medium::Memory, Model::Lines, 3);
}

#[test]
fn sectors_on_an_ordinary_file() {
    tell(Medium::File, Model::Pages, 3);
}

/// What the table is for.
#[test]
fn without_a_table_a_sector_is_torn() {
    let plan = Plan {
        medium: Medium::Memory,
        model: Model::Lines,
        sector: 4096,
        plain: true,
    };
    let (_, wrong) = run(plan, 8);
    assert!(wrong.is_some_and(|why| why.contains("torn")));
}
