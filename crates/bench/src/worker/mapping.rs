//! The measuring program of `bench mapping`: it maps files and copies records out of them.
//!
//! Invariants: it is an ordinary program, like the worker of `bench files`; a row is a whole life
//! of a mapping, from mmap(2) to munmap(2), of which each part is timed; every record that was
//! copied is looked at, and its last words are compared with what was written.

use super::content::Random;
use super::{answer, status};
use holdfast_pmem::{Error, FileMap, Hint};
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// One record in so many is read at random places.
const SPARSE: usize = 8;
/// Exponent of the distribution by which small files are chosen.
const ZIPF: f64 = 0.99;
/// Huge pages come to a pool one by one; they have come when so long none did.
const STILL: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(180);

/// How bytes are reached.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    mapped: bool,
    populated: bool,
    advised: bool,
    /// A fault maps one page.
    single: bool,
}

impl Way {
    const DEFAULT: Way = Way {
        mapped: true,
        populated: false,
        advised: false,
        single: false,
    };

    fn find(name: &str) -> Option<Way> {
        let mut way = Way::DEFAULT;
        match name {
            "read" => way.mapped = false,
            "default" => {}
            "populate" => way.populated = true,
            "advised" => way.advised = true,
            _ => return None,
        }
        Some(way)
    }

    fn map(self, file: &File, len: usize, order: Order) -> Result<Option<FileMap>, Error> {
        if !self.mapped {
            return Ok(None);
        }
        let mut map = FileMap::new(file.as_fd(), len, self.populated)?;
        if self.single {
            map.map_single_pages()?;
        }
        if self.advised {
            map.advise(order.hint())?;
        }
        Ok(Some(map))
    }
}

/// In which order records are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Sequential,
    Random,
}

impl Order {
    fn hint(self) -> Hint {
        match self {
            Order::Sequential => Hint::Sequential,
            Order::Random => Hint::Random,
        }
    }

    /// Where the records begin.
    fn places(self, len: usize, record: usize) -> Box<dyn Iterator<Item = usize>> {
        let all = len / record;
        match self {
            Order::Sequential => Box::new((0..all).map(move |n| n * record)),
            Order::Random => {
                let mut random = Random::new(7);
                let some = (0..all / SPARSE).map(move |_| random.below(all) * record);
                Box::new(some)
            }
        }
    }
}

/// What a row took.
struct Took {
    operations: usize,
    map: Duration,
    access: Duration,
    unmap: Duration,
    cpu: Duration,
    faults: i64,
}

impl Took {
    /// For each operation, in nanoseconds but for the faults.
    fn say(&self) -> String {
        let each = |time: Duration| time.as_nanos() as f64 / self.operations as f64;
        let wall = self.map + self.access + self.unmap;
        format!(
            "wall={} use={} cpu={} map={} access={} unmap={} faults={}",
            each(wall),
            each(self.map + self.access),
            each(self.cpu),
            each(self.map),
            each(self.access),
            each(self.unmap),
            self.faults as f64 / self.operations as f64
        )
    }
}

/// A clock of several parts, which counts CPU time and faults beside.
struct Meter {
    usage: Usage,
    took: Took,
}

impl Meter {
    fn start() -> io::Result<Meter> {
        Ok(Meter {
            usage: getrusage(UsageWho::RUSAGE_SELF)?,
            took: Took {
                operations: 0,
                map: Duration::ZERO,
                access: Duration::ZERO,
                unmap: Duration::ZERO,
                cpu: Duration::ZERO,
                faults: 0,
            },
        })
    }

    fn end(mut self, operations: usize) -> io::Result<Took> {
        let after = getrusage(UsageWho::RUSAGE_SELF)?;
        self.took.operations = operations.max(1);
        self.took.cpu = cpu(&after).saturating_sub(cpu(&self.usage));
        self.took.faults = after.minor_page_faults() - self.usage.minor_page_faults();
        Ok(self.took)
    }
}

fn cpu(usage: &Usage) -> Duration {
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.unsigned_abs())
}

/// The program; `args` are DIR MIB FILES. Returns the exit status.
pub fn main(args: &[OsString]) -> u8 {
    let number = |word: &OsString| word.to_str()?.parse().ok();
    let [dir, mib, files] = args else { return 2 };
    let (Some(mib), Some(files)) = (number(mib), number(files)) else {
        return 2;
    };
    let mapper = Mapper {
        dir: dir.into(),
        mib,
        files,
    };
    status(answer(|line| mapper.command(line)))
}

struct Mapper {
    dir: PathBuf,
    /// MiB of the large file.
    mib: usize,
    /// How many files of 1 MiB there are.
    files: usize,
}

impl Mapper {
    fn command(&self, line: &str) -> io::Result<String> {
        let bad = || io::Error::other(format!("no such command: {line}"));
        let number = |word: &str| word.parse::<usize>().map_err(|_| bad());
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["prepare"] => self.prepare().map(|()| String::new()),
            ["settle"] => self.settle(),
            ["records", order, kib, way, ref pages @ ..] => {
                let order = match order {
                    "seq" => Order::Sequential,
                    "random" => Order::Random,
                    _ => return Err(bad()),
                };
                let way = Way {
                    single: matches!(pages, ["single"]),
                    ..Way::find(way).ok_or_else(bad)?
                };
                self.records(order, number(kib)? << 10, way)
                    .map(|t| t.say())
            }
            ["files", ops, way] => {
                let way = Way::find(way).ok_or_else(bad)?;
                self.small_files(number(ops)?, way).map(|t| t.say())
            }
            _ => Err(bad()),
        }
    }

    fn large(&self) -> PathBuf {
        self.dir.join("large")
    }

    fn small(&self, n: usize) -> PathBuf {
        self.dir.join("files").join(format!("{n}"))
    }

    /// Writes all files, as programs do: a MiB at a time.
    fn prepare(&self) -> io::Result<()> {
        fs::create_dir_all(self.dir.join("files"))?;
        let mut block = vec![0; MIB];
        let mut large = File::create(self.large())?;
        for n in 0..self.mib {
            fill(n * MIB, &mut block);
            large.write_all(&block)?;
        }
        for n in 0..self.files {
            fill(n, &mut block);
            fs::write(self.small(n), &block)?;
        }
        Ok(())
    }

    /// Waits until mapping the large file costs no fewer faults than a while before; how long it
    /// took, in seconds.
    fn settle(&self) -> io::Result<String> {
        let (start, mut fewest, mut since) = (Instant::now(), i64::MAX, Instant::now());
        while since.elapsed() < STILL && start.elapsed() < PATIENCE {
            let took = self.records(Order::Sequential, 64 << 10, Way::DEFAULT)?;
            if took.faults < fewest {
                (fewest, since) = (took.faults, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        Ok(format!("{}", (start.elapsed() - since.elapsed()).as_secs()))
    }

    /// Copies records of the large file.
    fn records(&self, order: Order, record: usize, way: Way) -> io::Result<Took> {
        // What is watched by userfaultfd(2) has to be open for writing, too.
        let file = File::options()
            .read(true)
            .write(way.single)
            .open(self.large())?;
        let len = self.mib * MIB;
        let mut buffer = vec![0; record];
        let mut meter = Meter::start()?;
        let places = order.places(len, record);
        let count = copy(
            &mut meter.took,
            (&file, len),
            way,
            order,
            places,
            |at, map| {
                match map {
                    Some(map) => map.read(at, &mut buffer).map_err(other)?,
                    None => file.read_exact_at(&mut buffer, at as u64)?,
                }
                check(at, &buffer)
            },
        )?;
        meter.end(count)
    }

    /// Opens files of 1 MiB, the popular ones more often, and copies each in pieces, as a server
    /// does that answers with them.
    fn small_files(&self, ops: usize, way: Way) -> io::Result<Took> {
        let choose = Zipf::new(self.files);
        let mut random = Random::new(11);
        let mut buffer = vec![0; 64 << 10];
        let mut meter = Meter::start()?;
        for _ in 0..ops {
            let n = choose.one(&mut random);
            let file = File::open(self.small(n))?;
            let places = Order::Sequential.places(MIB, buffer.len());
            copy(
                &mut meter.took,
                (&file, MIB),
                way,
                Order::Sequential,
                places,
                |at, map| {
                    match map {
                        Some(map) => map.read(at, &mut buffer).map_err(other)?,
                        None => file.read_exact_at(&mut buffer, at as u64)?,
                    }
                    check(n + at, &buffer)
                },
            )?;
        }
        meter.end(ops)
    }
}

fn other(error: Error) -> io::Error {
    io::Error::other(error.to_string())
}

/// One life of a mapping; how many records were copied by `one`.
fn copy(
    took: &mut Took,
    (file, len): (&File, usize),
    way: Way,
    order: Order,
    places: impl Iterator<Item = usize>,
    mut one: impl FnMut(usize, Option<&FileMap>) -> io::Result<()>,
) -> io::Result<usize> {
    let begun = Instant::now();
    let map = way.map(file, len, order).map_err(other)?;
    let mapped = Instant::now();
    let mut count = 0;
    for at in places {
        one(at, map.as_ref())?;
        count += 1;
    }
    let done = Instant::now();
    drop(map);
    took.map += mapped - begun;
    took.access += done - mapped;
    took.unmap += done.elapsed();
    Ok(count)
}

/// What a block that begins at `at` holds: numbers that tell where they are.
fn fill(at: usize, block: &mut [u8]) {
    for (n, word) in block.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(at + n * 8).to_le_bytes());
    }
}

/// Whether the last word of a record that begins at `at` is its own.
fn check(at: usize, record: &[u8]) -> io::Result<()> {
    let want = (at + record.len() - 8).to_le_bytes();
    match record.ends_with(&want) {
        true => Ok(()),
        false => Err(io::Error::other(format!("wrong content at byte {at}"))),
    }
}

/// Chooses among `n` things, the first ones more often.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(n: usize) -> Zipf {
        let mut sum = 0.0;
        let weights = (1..=n).map(|rank| {
            sum += (rank as f64).powf(-ZIPF);
            sum
        });
        Zipf(weights.collect())
    }

    fn one(&self, random: &mut Random) -> usize {
        let all = self.0.last().copied().unwrap_or_default();
        let at = (random.next() >> 11) as f64 / (1u64 << 53) as f64 * all;
        self.0
            .partition_point(|sum| *sum <= at)
            .min(self.0.len().max(1) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_copies_what_was_written() {
        let dir = std::env::temp_dir().join(format!("holdfast-mapping.{}", std::process::id()));
        let mapper = Mapper {
            dir: dir.clone(),
            mib: 2,
            files: 3,
        };
        mapper.command("prepare").unwrap();
        for way in ["read", "default", "populate", "advised"] {
            for order in ["seq", "random"] {
                let said = mapper.command(&format!("records {order} 4 {way}")).unwrap();
                let faults = said
                    .rsplit_once("faults=")
                    .unwrap()
                    .1
                    .parse::<f64>()
                    .unwrap();
                assert!(said.starts_with("wall=") && faults < 2.0, "{said}");
            }
            mapper.command(&format!("files 5 {way}")).unwrap();
        }
        // Not everywhere may a program ask for it.
        if let Ok(said) = mapper.command("records seq 4 default single") {
            let faults = said
                .rsplit_once("faults=")
                .unwrap()
                .1
                .parse::<f64>()
                .unwrap();
            assert!((1.0..1.5).contains(&faults), "{said}");
        }
        let file = File::options().write(true).open(mapper.large()).unwrap();
        file.write_all_at(b"x", 4095).unwrap();
        assert!(mapper.command("records seq 4 default").is_err());
        assert!(mapper.command("records both 4 default").is_err());
        assert!(mapper.command("records seq 4 slowly").is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_first_files_are_chosen_more_often() {
        let (zipf, mut random) = (Zipf::new(2000), Random::new(1));
        let mut counts = vec![0; 2000];
        (0..100_000).for_each(|_| counts[zipf.one(&mut random)] += 1);
        // 1 / H(2000, 0.99) is 0.118.
        assert!((11_000..13_000).contains(&counts[0]), "{}", counts[0]);
        assert!(counts[0] > counts[9] * 5 && counts.iter().filter(|n| **n > 0).count() > 1500);
    }
}
