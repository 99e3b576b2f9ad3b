//! The ordinary program that works on files: it does what it is told, one line at a time, says
//! when it is done, and knows nothing of Holdfast.
//!
//! A command is one line of words; the answer is `ok` or `error` and the reason. The program that
//! tells it what to do knows from the answers alone what was acknowledged.

use crate::pattern;
use rustix::io::{IoSlice, ReadWriteFlags, pwritev2};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;

/// `hf-cuts writer DIR`
pub fn main(dir: &str) -> ExitCode {
    let mut writer = Writer {
        dir: dir.into(),
        kept: None,
    };
    answer_lines(|words| writer.act(words))
}

/// Answers each line of standard input until its end.
pub fn answer_lines(mut act: impl FnMut(&[&str]) -> io::Result<()>) -> ExitCode {
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else {
            return ExitCode::FAILURE;
        };
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match act(&words) {
            Ok(()) => "ok".to_string(),
            Err(e) => format!("error {line}: {e}"),
        };
        let mut out = io::stdout().lock();
        if writeln!(out, "{answer}")
            .and_then(|()| out.flush())
            .is_err()
        {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

pub fn number<T: std::str::FromStr>(word: &str) -> io::Result<T> {
    word.parse()
        .map_err(|_| io::Error::other(format!("`{word}` is no number")))
}

struct Writer {
    dir: std::path::PathBuf,
    /// The file that was written last, still open if that was asked for.
    kept: Option<(String, File)>,
}

impl Writer {
    fn act(&mut self, words: &[&str]) -> io::Result<()> {
        let at = |name: &str| self.dir.join(name);
        match words {
            ["here"] => Ok(()),
            ["mkdir", name] => std::fs::create_dir(at(name)),
            ["create", name] => File::create_new(at(name)).map(drop),
            ["make", keep, name, file, len] => {
                let mut made = File::create_new(at(name))?;
                made.write_all(&pattern::fill(number(file)?, 0, 0, number(len)?))?;
                if *keep == "keep" {
                    self.kept = Some((name.to_string(), made));
                }
                Ok(())
            }
            ["rename", from, to] => std::fs::rename(at(from), at(to)),
            ["unlink", name] => std::fs::remove_file(at(name)),
            ["truncate", name, len] => open(&at(name), 0)?.set_len(number(len)?),
            ["write", how, keep, name, file, version, at, len] => {
                let bytes =
                    pattern::fill(number(file)?, number(version)?, number(at)?, number(len)?);
                self.write(how, *keep == "keep", name, number(at)?, &bytes)
            }
            ["rewrite", name, file, version, len, chunk] => {
                let bytes = pattern::fill(number(file)?, number(version)?, 0, number(len)?);
                rewrite(&at(name), &bytes, number(chunk)?)
            }
            ["fsync", name] => self.reach(name)?.sync_all(),
            ["fdatasync", name] => self.reach(name)?.sync_data(),
            ["fsyncdir", name] => File::open(at(name))?.sync_all(),
            ["syncfs"] => Ok(rustix::fs::syncfs(File::open(&self.dir)?)?),
            ["sync"] => {
                rustix::fs::sync();
                Ok(())
            }
            ["crowd", name, count] => crowd(&at(name), number(count)?),
            _ => Err(io::Error::other("an unknown command")),
        }
    }

    /// The file that was kept open if it is this one, else one opened for reading.
    fn reach(&mut self, name: &str) -> io::Result<File> {
        match self.kept.take() {
            Some((kept, file)) if kept == name => Ok(file),
            _ => File::open(self.dir.join(name)),
        }
    }

    fn write(
        &mut self,
        how: &str,
        keep: bool,
        name: &str,
        at: u64,
        bytes: &[u8],
    ) -> io::Result<()> {
        let flags = match how {
            "osync" => rustix::fs::OFlags::SYNC,
            "odsync" => rustix::fs::OFlags::DSYNC,
            "append" => rustix::fs::OFlags::APPEND,
            _ => rustix::fs::OFlags::empty(),
        };
        let mut file = open(&self.dir.join(name), flags.bits().cast_signed())?;
        match how {
            "append" => file.write_all(bytes)?,
            "rwf" => {
                let done = pwritev2(&file, &[IoSlice::new(bytes)], at, ReadWriteFlags::DSYNC)?;
                if done != bytes.len() {
                    return Err(io::Error::other(format!("wrote {done} bytes")));
                }
            }
            _ => file.write_all_at(bytes, at)?,
        }
        if keep {
            self.kept = Some((name.into(), file));
        }
        Ok(())
    }
}

fn open(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .custom_flags(flags)
        .open(path)
}

/// Cuts the file to nothing and writes it anew, as editors and `>` do.
fn rewrite(path: &Path, bytes: &[u8], chunk: usize) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    bytes
        .chunks(chunk.max(1))
        .try_for_each(|part| file.write_all(part))
}

/// Many files that nobody asks for again, so that others leave caches.
fn crowd(dir: &Path, count: u64) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    (0..count).try_for_each(|number| File::create(dir.join(number.to_string())).map(drop))
}

/// The same for stores through a mapping, as a script: `map NAME OFFSET HEX` stores and msyncs.
pub const MAPPER: &str = r#"
import mmap, os, sys
top = sys.argv[1]
for line in sys.stdin:
    try:
        word, name, at, text = line.split()
        at, data = int(at), bytes.fromhex(text)
        fd = os.open(os.path.join(top, name), os.O_RDWR)
        with mmap.mmap(fd, os.fstat(fd).st_size) as view:
            view[at:at + len(data)] = data
            view.flush()
        os.close(fd)
        print("ok", flush=True)
    except Exception as e:
        print("error map:", e, flush=True)
"#;
