//! One of several processes that work in one directory at the same time.
//!
//! Invariants: DIR is there, and what is to be in it is never made elsewhere; each process makes
//! names of its own only; what it wrote there it reads again and compares; everything that others
//! are to reach is open to every user.

use super::content::{BLOCK, Random, UNIT, check, fill};
use super::{answer, status};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Files that all read.
const FILES: usize = 64;
/// Blocks of the file that one writes and others read.
const BLOCKS: usize = 256;

/// One process: `sharing DIR NUMBER`.
struct Member {
    dir: PathBuf,
    number: usize,
    random: Random,
}

/// The hidden command; `args` is what follows its name. Returns the exit status.
pub fn main(args: &[OsString]) -> u8 {
    let number = |word: &OsString| word.to_str()?.parse().ok();
    let [dir, word] = args else { return 2 };
    let Some(number) = number(word) else { return 2 };
    let mut member = Member {
        dir: dir.into(),
        number,
        random: Random::new(number as u64),
    };
    status(answer(|line| member.command(line)))
}

impl Member {
    fn command(&mut self, line: &str) -> io::Result<String> {
        let bad = || io::Error::other(format!("no such command: {line}"));
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["prepare"] => self.prepare().map(|()| String::new()),
            ["row", row, ops] => self.row(row, ops.parse().map_err(|_| bad())?),
            ["count"] => self.count(),
            _ => Err(bad()),
        }
    }

    /// Makes everything that is shared.
    fn prepare(&self) -> io::Result<()> {
        for name in ["together", "apart", "files", "database"] {
            let dir = self.dir.join(name);
            fs::create_dir(&dir)?;
            fs::set_permissions(&dir, Permissions::from_mode(0o777))?;
        }
        let mut block = [0; BLOCK];
        for n in 0..FILES {
            fill((n * BLOCK / UNIT) as u64, &mut block);
            fs::write(self.file(n), block)?;
        }
        let written = self.dir.join("written");
        fs::write(&written, vec![1; BLOCKS * BLOCK])?;
        fs::set_permissions(&written, Permissions::from_mode(0o666))
    }

    fn file(&self, n: usize) -> PathBuf {
        self.dir.join("files").join(format!("file-{n}"))
    }

    /// Nanoseconds for each of `ops` operations.
    fn row(&mut self, row: &str, ops: usize) -> io::Result<String> {
        let own = self.dir.join("apart").join(self.number.to_string());
        if matches!(row, "alone" | "apart") && !own.exists() {
            fs::create_dir(&own)?;
        }
        let start = Instant::now();
        let done = match row {
            "alone" | "apart" => self.turns(&own, ops),
            "together" => self.turns(&self.dir.join("together"), ops),
            "reading" => self.read_files(ops),
            "written" if self.number == 0 => self.write_blocks(ops),
            "written" => self.read_blocks(ops),
            "database" => self.transactions(ops),
            _ => Err(io::Error::other("no such row")),
        }?;
        Ok(format!(
            "{}",
            start.elapsed().as_nanos() as f64 / done as f64
        ))
    }

    /// A new file, written, looked at, read, renamed and removed.
    fn turns(&self, dir: &Path, ops: usize) -> io::Result<usize> {
        let (mut block, mut got) = ([0; BLOCK], Vec::with_capacity(BLOCK));
        for i in 0..ops {
            let name = |what: &str| dir.join(format!("{what}-{}-{}", self.number, i % 32));
            let (path, then) = (name("new"), name("kept"));
            let first = (self.number + i) as u64 % 64;
            if i < 64 {
                fill(first, &mut block);
            }
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&path)?;
            file.write_all(&block)?;
            drop(file);
            let len = fs::metadata(&path)?.len();
            got.clear();
            File::open(&path)?.read_to_end(&mut got)?;
            if got != block || len != BLOCK as u64 {
                return Err(io::Error::other("a file holds what nobody wrote"));
            }
            fs::rename(&path, &then)?;
            fs::remove_file(&then)?;
        }
        Ok(ops)
    }

    /// Opens and reads files that others read, too.
    fn read_files(&mut self, ops: usize) -> io::Result<usize> {
        let mut block = [0; BLOCK];
        for i in 0..ops {
            let n = self.random.below(FILES);
            File::open(self.file(n))?.read_exact(&mut block)?;
            if i % 64 == 0 {
                check((n * BLOCK / UNIT) as u64, &block)?;
            }
        }
        Ok(ops)
    }

    fn write_blocks(&mut self, ops: usize) -> io::Result<usize> {
        let file = OpenOptions::new()
            .write(true)
            .open(self.dir.join("written"))?;
        for i in 0..ops {
            let at = self.random.below(BLOCKS) * BLOCK;
            file.write_all_at(&[i as u8; BLOCK], at as u64)?;
        }
        Ok(ops)
    }

    fn read_blocks(&mut self, ops: usize) -> io::Result<usize> {
        let file = File::open(self.dir.join("written"))?;
        let mut block = [0; BLOCK];
        for _ in 0..ops {
            let at = self.random.below(BLOCKS) * BLOCK;
            file.read_exact_at(&mut block, at as u64)?;
        }
        Ok(ops)
    }

    /// Inserts rows into the database that all write, a transaction each.
    fn transactions(&self, ops: usize) -> io::Result<usize> {
        let insert = "INSERT INTO t(body) VALUES(randomblob(100));\n";
        self.sql(&insert.repeat(ops))?;
        Ok(ops)
    }

    /// How many rows the database has; makes it if there is none.
    fn count(&self) -> io::Result<String> {
        self.sql(
            "CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, body BLOB);\n\
             SELECT count(*) FROM t;",
        )
    }

    fn sql(&self, lines: &str) -> io::Result<String> {
        let mut shell = Command::new("sqlite3")
            .arg("-batch")
            .arg(self.dir.join("database/t"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut input) = shell.stdin.take() {
            input.write_all(format!(".bail on\n.timeout 100000\n{lines}\n").as_bytes())?;
        }
        let done = shell.wait_with_output()?;
        match done.status.success() {
            true => Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned()),
            false => Err(io::Error::other(
                String::from_utf8_lossy(&done.stderr).into_owned(),
            )),
        }
    }
}
