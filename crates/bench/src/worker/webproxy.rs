//! The workload of filebench's `webproxy`: a cache of small objects, of which each turn replaces
//! one and reads five.
//!
//! Invariants: all objects are in one directory (or keyspace); each belongs to one thread, and a
//! thread works only on its own; an object's content follows from its number and how often it was
//! written, so that every read can be judged; a thread that fails ends the row.

use super::content::Random;
use super::{answer, status};
use holdfast::{Durability, Keyspace, Pool};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Instant;

/// Objects, as in the web proxy's profile.
const OBJECTS: usize = 1000;
/// Mean size of an object; sizes follow a gamma distribution of shape 1.5.
const MEAN: f64 = 16384.0;
/// The largest object.
const LARGEST: usize = 256 << 10;
/// What is read at once.
const IO: usize = 1 << 20;
/// Objects read in a turn.
const READS: usize = 5;
/// Random bytes that contents are taken from.
const NOISE: usize = 1 << 20;

/// Where objects are kept.
pub trait Cache: Sync {
    /// Makes an object that is not there, or writes one anew.
    fn put(&self, name: &str, content: &[u8]) -> io::Result<()>;
    /// Reads a whole object; its length.
    fn get(&self, name: &str, buffer: &mut [u8]) -> io::Result<usize>;
    fn delete(&self, name: &str) -> io::Result<()>;
}

/// Files of a directory.
struct Files(PathBuf);

impl Cache for Files {
    fn put(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let path = self.0.join(name);
        let mut file = options.write(true).create(true).truncate(true).open(path)?;
        file.write_all(content)
    }

    fn get(&self, name: &str, buffer: &mut [u8]) -> io::Result<usize> {
        let mut file = File::open(self.0.join(name))?;
        let mut len = 0;
        loop {
            match file.read(&mut buffer[len..])? {
                0 => return Ok(len),
                n => len += n,
            }
        }
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(name))
    }
}

/// Values of a keyspace. As with files, what was written survives the program at once.
struct Values(Keyspace);

impl Cache for Values {
    fn put(&self, name: &str, content: &[u8]) -> io::Result<()> {
        Ok(self.0.put(name.as_bytes(), content, Durability::Ordered)?)
    }

    fn get(&self, name: &str, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.0.get_into(name.as_bytes(), buffer)?;
        len.map(|len| len as usize)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        Ok(self.0.erase(name.as_bytes(), Durability::Ordered)?)
    }
}

/// Sizes and contents of all objects.
struct Objects {
    noise: Vec<u8>,
    sizes: Vec<usize>,
}

impl Objects {
    /// All of `fixed` bytes, or of sizes as the profile has them.
    fn new(fixed: Option<usize>) -> Objects {
        let mut random = Random::new(5);
        let noise = (0..(NOISE + LARGEST) / 8).flat_map(|_| random.next().to_le_bytes());
        let noise = noise.collect();
        let sizes = (0..OBJECTS)
            .map(|_| fixed.unwrap_or_else(|| size(&mut random)))
            .collect();
        Objects { noise, sizes }
    }

    fn content(&self, object: usize, version: u64) -> &[u8] {
        let at = Random::new(version << 16 | object as u64).below(NOISE);
        &self.noise[at..at + self.sizes[object]]
    }
}

/// Gamma distributed with shape 1.5: an exponential and half the square of a normal number.
fn size(random: &mut Random) -> usize {
    let mut unit = || (random.next() >> 11) as f64 / (1u64 << 53) as f64 + 1e-12;
    let exponential = -unit().ln();
    let normal = (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
    let size = (exponential + normal * normal / 2.0) * MEAN / 1.5;
    (size as usize).clamp(1, LARGEST)
}

/// Nanoseconds that passed, and that a thread was running.
#[derive(Clone, Copy, Debug)]
struct Took {
    wall: f64,
    thread: f64,
}

/// CPU time of this thread.
fn cpu_ns() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// One thread's part of the objects.
struct Part<'a> {
    cache: &'a dyn Cache,
    objects: &'a Objects,
    names: Vec<String>,
    mine: std::ops::Range<usize>,
    versions: Vec<u64>,
    random: Random,
    buffer: Vec<u8>,
}

/// What a row does again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// One object deleted and made anew, five read.
    Turn,
    /// One object written anew.
    Put,
    /// One object read.
    Get,
}

impl Body {
    fn find(name: &str) -> Option<Body> {
        match name {
            "turn" => Some(Body::Turn),
            "put" => Some(Body::Put),
            "get" => Some(Body::Get),
            _ => None,
        }
    }
}

impl<'a> Part<'a> {
    fn new(cache: &'a dyn Cache, objects: &'a Objects, thread: usize, threads: usize) -> Part<'a> {
        let each = OBJECTS / threads;
        let mine = thread * each..(thread + 1) * each;
        Part {
            cache,
            objects,
            names: (0..OBJECTS).map(|i| format!("object-{i:06}")).collect(),
            versions: vec![0; OBJECTS],
            mine,
            random: Random::new(thread as u64 + 40),
            buffer: vec![0; IO],
        }
    }

    fn pick(&mut self) -> usize {
        self.mine.start + self.random.below(self.mine.len())
    }

    fn write(&mut self, object: usize) -> io::Result<()> {
        self.versions[object] += 1;
        let content = self.objects.content(object, self.versions[object]);
        self.cache.put(&self.names[object], content)
    }

    /// Reads an object; compares its length, and where `whole`, its content.
    fn read(&mut self, object: usize, whole: bool) -> io::Result<()> {
        let len = self.cache.get(&self.names[object], &mut self.buffer)?;
        let want = self.objects.content(object, self.versions[object]);
        if len != want.len() || (whole && self.buffer[..len] != *want) {
            let name = &self.names[object];
            return Err(io::Error::other(format!("{name} holds what nobody wrote")));
        }
        Ok(())
    }

    fn step(&mut self, body: Body, n: usize) -> io::Result<()> {
        match body {
            Body::Turn => {
                let object = self.pick();
                self.cache.delete(&self.names[object])?;
                self.write(object)?;
                (0..READS).try_for_each(|k| {
                    let object = self.pick();
                    self.read(object, (n + k).is_multiple_of(64))
                })
            }
            Body::Put => {
                let object = self.pick();
                self.write(object)
            }
            Body::Get => {
                let object = self.pick();
                self.read(object, n.is_multiple_of(64))
            }
        }
    }

    /// Fills the part, works, and judges every object; what the work took.
    fn run(&mut self, body: Body, ops: usize, together: &Barrier) -> io::Result<Took> {
        let filled = self.mine.clone().try_for_each(|object| self.write(object));
        let warm = filled.and_then(|()| (0..ops / 8).try_for_each(|n| self.step(body, n)));
        together.wait();
        warm?;
        let (start, cpu) = (Instant::now(), cpu_ns());
        for n in 0..ops {
            self.step(body, n)?;
        }
        let took = Took {
            wall: start.elapsed().as_nanos() as f64,
            thread: cpu_ns() - cpu,
        };
        for object in self.mine.clone() {
            self.read(object, true)?;
            self.cache.delete(&self.names[object])?;
        }
        Ok(took)
    }
}

/// What a step of each thread takes, on average.
fn measure(cache: &dyn Cache, words: &[&str], quick: bool) -> io::Result<Took> {
    let bad = || io::Error::other(format!("no such row: {}", words.join(" ")));
    let [body, fixed, threads] = words else {
        return Err(bad());
    };
    let body = Body::find(body).ok_or_else(bad)?;
    let fixed = match *fixed {
        "mixed" => None,
        size => Some(
            size.parse()
                .ok()
                .filter(|s| *s <= LARGEST)
                .ok_or_else(bad)?,
        ),
    };
    let threads: usize = threads.parse().map_err(|_| bad())?;
    if !(1..=OBJECTS).contains(&threads) {
        return Err(bad());
    }
    let objects = Objects::new(fixed);
    let full = if body == Body::Turn { 20_000 } else { 100_000 };
    let ops = (if quick { full / 20 } else { full }) / threads;
    let together = Barrier::new(threads);
    let times = std::thread::scope(|scope| {
        let run = |thread| {
            let (objects, together) = (&objects, &together);
            scope.spawn(move || Part::new(cache, objects, thread, threads).run(body, ops, together))
        };
        let all: Vec<_> = (0..threads).map(run).collect();
        let panicked = || Err(io::Error::other("a measuring thread panicked"));
        let join = |t: std::thread::ScopedJoinHandle<_>| t.join().unwrap_or_else(|_| panicked());
        all.into_iter().map(join).collect::<io::Result<Vec<Took>>>()
    })?;
    let n = (threads * ops.max(1)) as f64;
    Ok(Took {
        wall: times.iter().map(|t| t.wall).sum::<f64>() / n,
        thread: times.iter().map(|t| t.thread).sum::<f64>() / n,
    })
}

/// The hidden command: `webproxy files|keyspace DIR [--quick]`; answers `row BODY SIZE THREADS`.
pub fn main(args: &[OsString]) -> u8 {
    let quick = args.iter().any(|word| word == "--quick");
    let cache = match args {
        [kind, dir, ..] if kind == "files" => files(Path::new(dir)),
        [kind, pool, ..] if kind == "keyspace" => values(Path::new(pool)),
        _ => Err(io::Error::other("webproxy files|keyspace DIR [--quick]")),
    };
    status(cache.and_then(|cache| answer(|line| command(&*cache, line, quick))))
}

fn files(dir: &Path) -> io::Result<Box<dyn Cache>> {
    let dir = dir.join("objects");
    fs::create_dir_all(&dir)?;
    Ok(Box::new(Files(dir)))
}

fn values(pool: &Path) -> io::Result<Box<dyn Cache>> {
    holdfast::use_program(crate::paths::holdfast().map_err(io::Error::other)?);
    Ok(Box::new(Values(
        Pool::open(pool)?.keyspace_or_create("objects")?,
    )))
}

fn command(cache: &dyn Cache, line: &str, quick: bool) -> io::Result<String> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    match words.split_first() {
        Some((&"row", rest)) => {
            let took = measure(cache, rest, quick)?;
            Ok(format!("{} {}", took.wall, took.thread))
        }
        _ => Err(io::Error::other(format!("no such command: {line}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[test]
    fn sizes_have_the_mean_of_the_profile() {
        let objects = Objects::new(None);
        let mean = objects.sizes.iter().sum::<usize>() as f64 / OBJECTS as f64;
        assert!((14_000.0..19_000.0).contains(&mean), "{mean}");
        assert_eq!(Objects::new(Some(7)).content(3, 1).len(), 7);
        assert_ne!(objects.content(3, 1)[..8], objects.content(3, 2)[..8]);
    }

    /// Loses a byte of some writes.
    struct Liar(Files, AtomicUsize);

    impl Cache for Liar {
        fn put(&self, name: &str, content: &[u8]) -> io::Result<()> {
            let lost = self.1.fetch_add(1, Relaxed) % 50 == 49;
            let content = if lost { &content[1..] } else { content };
            self.0.put(name, content)
        }
        fn get(&self, name: &str, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.get(name, buffer)
        }
        fn delete(&self, name: &str) -> io::Result<()> {
            self.0.delete(name)
        }
    }

    #[test]
    fn files_are_measured_and_lies_are_noticed() {
        let dir = std::env::temp_dir().join(format!("holdfast-webproxy.{}", std::process::id()));
        let cache = files(&dir).unwrap();
        for row in [
            ["turn", "mixed", "2"],
            ["put", "4096", "1"],
            ["get", "4096", "8"],
        ] {
            assert!(measure(&*cache, &row, true).unwrap().wall > 0.0, "{row:?}");
        }
        for row in [
            ["turn", "mixed", "0"],
            ["walk", "mixed", "1"],
            ["get", "x", "1"],
        ] {
            assert!(measure(&*cache, &row, true).is_err(), "{row:?}");
        }
        let left = fs::read_dir(dir.join("objects")).unwrap().count();
        assert_eq!(left, 0);
        let liar = Liar(Files(dir.join("objects")), 0.into());
        assert!(measure(&liar, &["turn", "mixed", "1"], true).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
