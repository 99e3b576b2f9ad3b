//! Disk images of all formats: qemu-img, run on the pool, reads and writes volumes as files.
//!
//! Invariant: a volume is made from a whole image, or not at all.

use crate::failure::Failure;
use holdfast::{Pool, Sector};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = "qemu-img";
/// Where qemu-img finds the pool.
const AT: &str = "/holdfast-pool";

/// Makes the volume of this name and sector with what is in `image`.
pub fn import(
    path: &Path,
    pool: &Pool,
    (name, sector): (&str, Sector),
    image: &Path,
    format: Option<&str>,
) -> Result<(), Failure> {
    let format_words = format.map(|format| ["-f", format]);
    let mut info = Command::new(PROGRAM);
    info.args(["info", "--output", "json"])
        .args(format_words.iter().flatten());
    let said = said(info.arg(image), image)?;
    let size = serde_json::from_slice(&said.stdout).ok();
    let size = size.and_then(|info: Value| info["virtual-size"].as_u64());
    let size = size.ok_or_else(|| Failure::new("qemu-img does not tell the size of the image"))?;
    pool.volume_create(name, size.next_multiple_of(sector.bytes()), sector)?;
    let mut words = vec![
        "convert".as_ref(),
        "-n".as_ref(),
        "-O".as_ref(),
        "raw".as_ref(),
    ];
    words.extend(format_words.iter().flatten().map(OsStr::new));
    let target = place(name);
    words.extend([image.as_os_str(), target.as_ref()]);
    let done = on_pool(path, &words, image).and_then(|()| Ok(pool.volume(name)?.flush()?));
    if done.is_err() {
        pool.volume_delete(name)?;
    }
    done
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
    let _volume = pool.volume(name)?;
    let source = place(name);
    let words = ["convert", "-f", "raw", "-O", format, &source].map(OsStr::new);
    on_pool(path, &[&words[..], &[image.as_os_str()]].concat(), image)
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
