//! The ordinary program that keeps descriptions of files open and says what each call on them
//! gave: `ok`, or `errno` and the number.

use crate::pattern;
use crate::writer::number;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// After so long an fsync of much is half done.
const ALMOST: Duration = Duration::from_millis(3);

/// `hf-cuts holder DIR`
pub fn main(dir: &str) -> ExitCode {
    let mut held = BTreeMap::new();
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else {
            return ExitCode::FAILURE;
        };
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match act(Path::new(dir), &mut held, &words) {
            Ok(()) => "ok".to_string(),
            Err(e) => match e.raw_os_error() {
                Some(errno) => format!("errno {errno}"),
                None => format!("error {line}: {e}"),
            },
        };
        let mut out = io::stdout().lock();
        let said = writeln!(out, "{answer}").and_then(|()| out.flush());
        if said.is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn act(dir: &Path, held: &mut BTreeMap<String, File>, words: &[&str]) -> io::Result<()> {
    let known = |place: &str| {
        let file = held.get(place);
        file.ok_or_else(|| io::Error::other(format!("nothing is open as {place}")))
    };
    match words {
        ["open", place, name] => {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true);
            held.insert(place.to_string(), options.open(dir.join(name))?);
            Ok(())
        }
        ["write", place, file, version, at, len] => {
            let (at, len) = (number(at)?, number(len)?);
            let bytes = pattern::fill(number(file)?, number(version)?, at, len);
            known(place)?.write_all_at(&bytes, at)
        }
        ["fsync", place] => known(place)?.sync_all(),
        ["die", place] => {
            let me = rustix::process::getpid();
            std::thread::spawn(move || {
                std::thread::sleep(ALMOST);
                let _ = rustix::process::kill_process(me, Signal::KILL);
            });
            known(place)?.sync_all()
        }
        ["syncfs", place] => Ok(rustix::fs::syncfs(known(place)?)?),
        _ => Err(io::Error::other("an unknown command")),
    }
}
