//! The program that reads a whole tree after a cut: name, length, then the bytes of each file.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// A tree as it was read: contents by name.
pub type Seen = BTreeMap<String, Vec<u8>>;

/// `hf-cuts dump DIR EXCEPT`; EXCEPT is the name of a directory that nobody judges.
pub fn main(dir: &str, except: &str) -> ExitCode {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let done = walk(Path::new(dir), "", except, &mut out).and_then(|()| {
        writeln!(out, "end")?;
        out.flush()
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("dump: {e}");
            ExitCode::FAILURE
        }
    }
}

fn walk(dir: &Path, name: &str, except: &str, out: &mut impl Write) -> io::Result<()> {
    for entry in std::fs::read_dir(dir).map_err(at(dir))? {
        let path = entry.map_err(at(dir))?.path();
        let last = path.file_name().unwrap_or_default().to_string_lossy();
        let full = format!("{name}{last}");
        if last == except || last == "lost+found" {
            continue;
        }
        if path.is_dir() {
            writeln!(out, "{full}/ 0")?;
            walk(&path, &format!("{full}/"), except, out)?;
        } else {
            let bytes = std::fs::read(&path).map_err(at(&path))?;
            writeln!(out, "{full} {}", bytes.len())?;
            out.write_all(&bytes)?;
        }
    }
    Ok(())
}

fn at(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |e| io::Error::other(format!("{}: {e}", path.display()))
}

/// What such a program wrote; the names of directories end with a slash.
pub fn parse(mut bytes: &[u8]) -> Result<Seen, String> {
    let mut seen = Seen::new();
    loop {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let end = end.ok_or("the listing has no end")?;
        let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
        bytes = &bytes[end + 1..];
        if line == "end" {
            return Ok(seen);
        }
        let (name, len) = line.split_once(' ').ok_or("a line without a length")?;
        let len: usize = len.parse().map_err(|_| "a length that is no number")?;
        if len > bytes.len() {
            return Err("the listing ends within a file".into());
        }
        let (content, rest) = bytes.split_at(len);
        seen.insert(name.into(), content.to_vec());
        bytes = rest;
    }
}
