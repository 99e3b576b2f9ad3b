//! What cannot be exported.
//!
//! Invariant: a refusal is one sentence with its remedy, and what was there is still there.

use super::{export, needs, pool_with_volume};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use std::fs;
use std::os::unix::net::{UnixDatagram, UnixListener};

pub const CASES: &[(&str, Case)] = &[
    ("export usage", usage),
    ("export of what is no volume", no_volume),
    ("nbd addresses that are none", addresses),
    ("nbd paths that are taken", paths),
];

fn usage(fixture: &Fixture) -> Result<(), Stop> {
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let pool = pool.as_str();
    let address = format!("unix:{}", fixture.path("s").display());
    for words in [
        &[][..],
        &[pool],
        &[pool, "disk"],
        &[pool, "disk", "--nbd"],
        &[pool, "--nbd", &address],
        &[pool, "disk", "surplus", "--nbd", &address],
        &[pool, "disk", "--nbd", &address, "--nbd", &address],
        &[pool, "disk", "--nbd", &address, "--nonsense"],
        &[pool, "disk", "--nbd", &address, "--read-only=maybe"],
        &[pool, "disk", "--nbd", &address, "--snapshot"],
    ] {
        fixture.refused(&[&["export"], words].concat(), &[2])?;
    }
    match fixture.path("s").exists() {
        true => wrong("a refused command made a socket"),
        false => Ok(()),
    }
}

fn no_volume(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &[])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let script = "cd /hf; mkdir dir; echo text >file; mkfifo pipe; ln -s none dangling";
    fixture.run(pool.as_ref(), &["bash", "-c", script])?;
    let none = fixture.path("none").to_string_lossy().into_owned();
    let address = format!("unix:{}", fixture.path("s").display());
    for (pool, volume, fix) in [
        (&pool, "none", true),
        (&pool, "none/below", true),
        (&pool, "file/below", false),
        (&pool, "dir", true),
        (&pool, "file", true),
        (&pool, "pipe", false),
        (&pool, "dangling", true),
        (&pool, "", true),
        (&pool, "..", true),
        (&none, "disk", true),
    ] {
        for option in [&[][..], &["--read-only"]] {
            let words = ["export", pool, volume, "--nbd", &address];
            let words = [&words[..], option].concat();
            fixture.refused(&words, &[1])?;
            let said = fixture.holdfast(&words)?.err;
            if fix && !said.contains("\nFix: ") {
                return wrong(format!("{volume:?} has no remedy: {said}"));
            }
        }
    }
    let words = ["export", &pool, "disk", "--nbd", &address];
    fixture.refused(&[&words[..], &["--snapshot", "none"]].concat(), &[1])?;
    match fixture.path("s").exists() {
        true => wrong("a refused command made a socket"),
        false => export(fixture, &pool, "disk", "s", &[])?.end(),
    }
}

fn addresses(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &[])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let long = format!("unix:/{}", "s".repeat(107));
    for (address, code) in [
        ("", 2),
        ("unix", 2),
        ("unix:", 2),
        ("127.0.0.1", 2),
        ("127.0.0.1:", 2),
        ("127.0.0.1:0", 2),
        ("127.0.0.1:65536", 2),
        ("127.0.0.1:-1", 2),
        (":10809", 2),
        ("::1:10809", 2),
        ("[::1]", 2),
        ("[127.0.0.1]:10809", 2),
        ("nbd://127.0.0.1:10809", 2),
        (&long, 1),
        ("unix:/nowhere/at/all", 1),
        ("host.invalid:10809", 1),
        // An address of documentation, which is nobody's.
        ("192.0.2.1:10809", 1),
    ] {
        let words = ["export", &pool, "disk", "--nbd", address];
        fixture.refused(&words, &[code])?;
    }
    Ok(())
}

fn paths(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &[])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let address = |name: &str| format!("unix:{}", fixture.path(name).display());
    let _listens = UnixListener::bind(fixture.path("listens"))?;
    let _datagrams = UnixDatagram::bind(fixture.path("datagrams"))?;
    fs::write(fixture.path("file"), "mine")?;
    fs::create_dir(fixture.path("dir"))?;
    std::os::unix::fs::symlink("nowhere", fixture.path("dangling"))?;
    std::os::unix::fs::symlink("stale", fixture.path("link"))?;
    drop(UnixListener::bind(fixture.path("stale"))?);
    for name in ["listens", "datagrams", "file", "dir", "dangling", "link"] {
        let words = ["export", &pool, "disk", "--nbd", &address(name)];
        fixture.refused(&words, &[1])?;
        if fs::symlink_metadata(fixture.path(name)).is_err() {
            return wrong(format!("{name} has been removed"));
        }
    }
    if fs::read(fixture.path("file"))? != b"mine" || !fixture.path("stale").exists() {
        return wrong("a refused command changed what was there");
    }
    // Nobody listens on it.
    export(fixture, &pool, "disk", "stale", &[])?.end()?;
    export(fixture, &pool, "disk", "a b&c=%d", &[])?.end()
}
