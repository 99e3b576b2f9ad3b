//! What fuzzers found, and what they needed to get everywhere, again.

use holdfast_fuzz::TARGETS;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

/// No input takes longer.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the corpus of one target. An input that panics or hangs is named.
fn replay(name: &'static str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut files: Vec<PathBuf> = std::fs::read_dir(root.join(name))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no corpus");
    for file in files {
        let (bytes, run) = (std::fs::read(&file).unwrap(), target.run);
        let (done, wait) = mpsc::channel();
        eprintln!("{}", file.display());
        let thread = std::thread::spawn(move || {
            run(&bytes);
            done.send(()).unwrap();
        });
        let ended = wait.recv_timeout(LIMIT);
        assert!(
            ended != Err(mpsc::RecvTimeoutError::Timeout),
            "{} hangs",
            file.display()
        );
        thread.join().unwrap();
    }
}

#[test]
fn environment() {
    replay("environment");
}

#[test]
fn format() {
    replay("format");
}

#[test]
fn journal() {
    replay("journal");
}

#[test]
fn load() {
    replay("load");
}

#[test]
fn object() {
    replay("object");
}

#[test]
fn protocol() {
    replay("protocol");
}

#[test]
fn proxy() {
    replay("proxy");
}

#[test]
fn service() {
    replay("service");
}

#[test]
fn session() {
    replay("session");
}

#[test]
fn table() {
    replay("table");
}
