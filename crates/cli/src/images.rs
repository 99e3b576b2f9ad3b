//! Disk images of all formats: qemu-img, run on the pool, reads and writes volumes as files;
//! those with a table, by way of one without.
//!
//! Invariants: a volume has its name when it is complete; an image that takes its content from
//! other files is refused.

use crate::failure::Failure;
use crate::new_volume::{Shape, copy, made, with_plain};
use holdfast::{Integrity, Pool};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = "qemu-img";
/// Where qemu-img finds the pool.
const AT: &str = "/holdfast-pool";

/// Makes the volume of this name, like `shape` but for its size, with what is in `image`.
pub fn import(
    path: &Path,
    pool: &Pool,
    (name, shape): (&str, Shape),
    image: &Path,
    format: Option<&str>,
) -> Result<(), Failure> {
    let format_words = format.map(|format| ["-f", format]);
    let mut info = Command::new(PROGRAM);
    info.args(["info", "--output", "json"])
        .args(format_words.iter().flatten());
    let image = &here(image);
    let said = said(info.arg(image), image)?;
    let info: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
    let size = info["virtual-size"].as_u64();
    let size = size.ok_or_else(|| Failure::new("qemu-img does not tell the size of the image"))?;
    // It could be any file that this user may read, and the image is perhaps of somebody else.
    let others = [
        &info["backing-filename"],
        &info["format-specific"]["data"]["data-file"],
    ];
    if let Some(other) = others.into_iter().find_map(Value::as_str) {
        let what = format!("{} takes its content from {other}", image.display());
        return Err(Failure::new(what).fix("qemu-img convert it to one that stands alone"));
    }
    let size = size.next_multiple_of(shape.sector.bytes());
    let shape = Shape { size, ..shape };
    let convert = |target: &str| {
        let mut words = ["convert", "-n", "-O", "raw"].map(OsStr::new).to_vec();
        words.extend(format_words.iter().flatten().map(OsStr::new));
        let target = place(target);
        words.extend([image.as_os_str(), target.as_ref()]);
        on_pool(path, &words, image)
    };
    made(pool, name, shape, |part| match shape.integrity {
        Integrity::Atomic | Integrity::Checked => with_plain(pool, name, shape, |plain| {
            convert(plain)?;
            Ok(copy(&pool.volume(plain)?, &pool.volume(part)?)?)
        }),
        Integrity::Plain => {
            convert(part)?;
            Ok(pool.volume(part)?.flush()?)
        }
    })
}

/// An image in this directory, whatever qemu-img would make of its name.
fn here(image: &Path) -> PathBuf {
    Path::new(".").join(image)
}

/// Writes what the volume has to `image`.
pub fn write(
    path: &Path,
    pool: &Pool,
    name: &str,
    image: &Path,
    format: &str,
) -> Result<(), Failure> {
    // Nobody writes to it meanwhile.
    let volume = pool.volume(name)?;
    let image = &here(image);
    let convert = |source: &str| {
        let source = place(source);
        let words = ["convert", "-f", "raw", "-O", format, &source].map(OsStr::new);
        on_pool(path, &[&words[..], &[image.as_os_str()]].concat(), image)
    };
    if volume.integrity() == Integrity::Plain {
        return convert(name);
    }
    with_plain(pool, name, Shape::of(&volume), |plain| {
        copy(&volume, &pool.volume(plain)?)?;
        convert(plain)
    })
}

/// The volume as qemu-img finds it.
fn place(name: &str) -> String {
    format!("{AT}/{}", name.trim_start_matches('/'))
}

/// Runs qemu-img with the pool's files.
fn on_pool(pool: &Path, words: &[&OsStr], image: &Path) -> Result<(), Failure> {
    let own = std::env::current_exe().map_err(|e| Failure::io("the holdfast program", &e))?;
    let mut command = Command::new(own);
    command
        .args(["run", "--at", AT, "--pool"])
        .arg(pool)
        .args(["--", PROGRAM]);
    said(command.args(words), image).map(drop)
}

/// What a command said that went well.
fn said(command: &mut Command, image: &Path) -> Result<Output, Failure> {
    let output = command.stdin(Stdio::null()).output();
    let missing =
        || Failure::new("there is no qemu-img").fix("as root: apt-get install qemu-utils");
    let output = match output {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(missing()),
        output => output.map_err(|e| Failure::io(PROGRAM, &e))?,
    };
    match output.status.code() {
        Some(0) => Ok(output),
        Some(127) => Err(missing()),
        _ => {
            let text = String::from_utf8_lossy(&output.stderr);
            let last = text.trim().lines().last().unwrap_or_default();
            let last = last.trim_start_matches("qemu-img: ").trim_end_matches('.');
            Err(Failure::new(format!(
                "qemu-img with {}: {last}",
                image.display()
            )))
        }
    }
}
