//! One volume and several who want it.
//!
//! Invariant: one writes at a time; those who read see what was written.

use super::{MIB, client, export, nbdsh, needs, noise, pool_with_volume, same, volume};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use std::fs;

pub const CASES: &[(&str, Case)] = &[
    ("nbd one writer at a time", writers),
    ("nbd readers beside a writer", readers),
    ("nbd several connections", connections),
    ("nbd two volumes of a pool", volumes),
    ("nbd a snapshot", snapshot),
];

/// The second export of the volume is refused, in words that name it.
fn writers(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdinfo"])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let exporter = export(fixture, &pool, "disk", "s", &[])?;
    let second = format!("unix:{}", fixture.path("t").display());
    let words = ["export", &pool, "disk", "--nbd", &second];
    fixture.refused(&words, &[1])?;
    let ended = fixture.holdfast(&words)?;
    if !ended.err.contains("\"disk\"") || !ended.err.contains("\nFix: ") {
        return wrong(format!("the volume in use: {}", ended.err));
    }
    client(fixture, "nbdinfo", &[&exporter.uri])?;
    exporter.end()?;
    export(fixture, &pool, "disk", "t", &[])?.end()
}

fn readers(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh"])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let writer = export(fixture, &pool, "disk", "s", &[])?;
    let reader = export(fixture, &pool, "disk", "t", &["--read-only"])?;
    let other = export(fixture, &pool, "disk", "u", &["--read-only"])?;
    let write = "h.pwrite(b'seen' * 1024, 8192)";
    nbdsh(fixture, &writer.uri, write)?;
    let read = "
if h.pread(4096, 8192) != b'seen' * 1024: raise Exception('what was written is not seen')
h.set_strict_mode(0)
for change in (lambda: h.pwrite(bytes(512), 0), lambda: h.trim(512, 0), lambda: h.zero(512, 0)):
    try:
        change()
        raise Exception('a reader can change the volume')
    except nbd.Error as e:
        if e.errno != 'EPERM': raise
if h.pread(4096, 8192) != b'seen' * 1024: raise Exception('a refused change changed something')";
    for uri in [&reader.uri, &other.uri] {
        nbdsh(fixture, uri, read)?;
    }
    writer.end()?;
    nbdsh(fixture, &reader.uri, read)?;
    reader.end()?;
    other.end()
}

/// What one connection has written, the others see at once.
fn connections(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh"])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let exporter = export(fixture, &pool, "disk", "s", &[])?;
    let script = "
import random, threading
all = [h] + [nbd.NBD() for _ in range(5)]
for other in all[1:]: other.connect_uri(h.get_uri())
for n in range(2000):
    one, two = random.sample(all, 2)
    at = random.randrange(10240) * 4096
    text = b'%08d' % n * 512
    one.pwrite(text, at)
    if two.pread(4096, at) != text: raise Exception(f'write {n} is not seen')
    if n % 50 == 0: two.flush()
# All at once, each in a part of its own.
wrong = []
def work(number, connection):
    base, text = number << 22, {}
    for n in range(1500):
        at = random.randrange(1024) * 4096
        if at in text and connection.pread(4096, base + at) != text[at]: wrong.append(at)
        text[at] = b'%04d%04d' % (number, n) * 512
        connection.pwrite(text[at], base + at)
    for at in text:
        if connection.pread(4096, base + at) != text[at]: wrong.append(at)
threads = [threading.Thread(target=work, args=pair) for pair in enumerate(all)]
for thread in threads: thread.start()
for thread in threads: thread.join()
if wrong: raise Exception(f'{len(wrong)} blocks are wrong')";
    nbdsh(fixture, &exporter.uri, script)?;
    exporter.end()?;
    fixture.done(&["pool", "check", &pool]).map(drop)
}

fn volumes(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdcopy"])?;
    let pool = pool_with_volume(fixture, "128M", "32M")?;
    volume(fixture, &pool, "other", "32M", "512")?;
    let image = fixture.path("image");
    fs::write(&image, noise(32 * MIB, 3))?;
    let one = export(fixture, &pool, "disk", "s", &[])?;
    let other = export(fixture, &pool, "other", "t", &[])?;
    client(fixture, "nbdcopy", &[&image.to_string_lossy(), &one.uri])?;
    client(fixture, "nbdcopy", &[&one.uri, &other.uri])?;
    one.end()?;
    let back = fixture.path("back");
    client(fixture, "nbdcopy", &[&other.uri, &back.to_string_lossy()])?;
    same("from one volume to another", &back, &image)?;
    other.end()
}

/// It is as it was, whatever is written now, and only for reading.
fn snapshot(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh"])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let exporter = export(fixture, &pool, "disk", "s", &[])?;
    nbdsh(
        fixture,
        &exporter.uri,
        "h.pwrite(b'before' * 1024, 6144); h.flush()",
    )?;
    fixture.done(&["snapshot", &pool, "create", "then"])?;
    let then = export(fixture, &pool, "disk", "t", &["--snapshot", "then"])?;
    let after = "h.pwrite(b'after.' * 1024, 6144); h.trim(4096, 12288); h.flush()";
    nbdsh(fixture, &exporter.uri, after)?;
    let as_it_was = "
if not h.is_read_only(): raise Exception('a snapshot can be written to')
if h.pread(6144, 6144) != b'before' * 1024: raise Exception('the snapshot has changed')
if h.pread(6144, 0) != bytes(6144): raise Exception('the snapshot has more')";
    nbdsh(fixture, &then.uri, as_it_was)?;
    exporter.end()?;
    nbdsh(fixture, &then.uri, as_it_was)?;
    then.end()?;
    let now = export(fixture, &pool, "disk", "s", &["--read-only"])?;
    let script = "
if h.pread(6144, 6144)[:6144] != b'after.' * 1024: raise Exception('the volume is not as it is')";
    nbdsh(fixture, &now.uri, script)?;
    now.end()?;
    fixture.done(&["snapshot", &pool, "delete", "then"])?;
    fixture.done(&["pool", "check", &pool]).map(drop)
}
