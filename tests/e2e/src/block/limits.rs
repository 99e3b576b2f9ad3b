//! Requests that cannot be, and a pool without room.
//!
//! Invariant: an error belongs to its request; what was there before is still there.

use super::{export, nbdsh, needs, pool_with_volume, volume, wait_until};
use crate::bad_input::{Case, Fixture, Stop, wrong};

pub const CASES: &[(&str, Case)] = &[
    ("nbd requests that cannot be", requests),
    ("nbd on a full pool", full),
    ("nbd on a medium that loses bytes", lost),
    ("nbd on atomic sectors whose file is cut", cut),
];

/// Beyond the end and not of whole sectors, and the requests that just fit.
fn requests(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh"])?;
    let pool = pool_with_volume(fixture, "64M", "16M")?;
    volume(fixture, &pool, "large", "16M", "4096")?;
    for (name, sector) in [("disk", 512), ("large", 4096)] {
        let exporter = export(fixture, &pool, name, "s", &[])?;
        let script = format!(
            "sector = {sector}
size = 16 << 20
h.set_strict_mode(0)
h.pwrite(b'p' * sector, size - sector)
h.pwrite(b'q' * sector, 0)
def fails(what, *errnos):
    try:
        what()
    except nbd.Error as e:
        if e.errno not in errnos: raise
        return
    raise Exception('a request that cannot be was carried out')
for at, count in [(size, sector), (size - sector, 2 * sector), (size + (1 << 40), sector)]:
    fails(lambda: h.pread(count, at), 'EINVAL')
    fails(lambda: h.pwrite(bytes(count), at), 'ENOSPC', 'EINVAL')
    fails(lambda: h.zero(count, at), 'ENOSPC', 'EINVAL')
    fails(lambda: h.trim(count, at), 'EINVAL')
unaligned = [(1, sector), (0, 1), (0, sector - 1), (sector, sector + 1), (sector // 2, sector)]
for at, count in unaligned:
    fails(lambda: h.pread(count, at), 'EINVAL')
    fails(lambda: h.pwrite(bytes(count), at), 'EINVAL')
    fails(lambda: h.zero(count, at), 'EINVAL')
    fails(lambda: h.trim(count, at), 'EINVAL')
if h.pread(sector, size - sector) != b'p' * sector: raise Exception('the end has changed')
if h.pread(sector, 0) != b'q' * sector: raise Exception('the beginning has changed')
if h.pread(sector, sector) != bytes(sector): raise Exception('more has changed')"
        );
        nbdsh(fixture, &exporter.uri, &script)?;
        exporter.end()?;
    }
    Ok(())
}

/// The volume promises more than the pool has.
fn full(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh"])?;
    let pool = pool_with_volume(fixture, "64M", "256M")?;
    let exporter = export(fixture, &pool, "disk", "s", &[])?;
    let script = "
M = 1 << 20
def text(n): return b'%08d' % n * (M // 8)
there = 0
while True:
    try:
        h.pwrite(text(there), there * M)
    except nbd.Error as e:
        if e.errno != 'ENOSPC': raise
        break
    there += 1
    if there == 256: raise Exception('64 MiB have room for 256')
if there < 32: raise Exception(f'only {there} MiB of 64 can be written')
h.flush()
def check(first=0):
    for n in range(first, there):
        if h.pread(M, n * M) != text(n): raise Exception(f'block {n} is wrong')
check()
# What has its space can be written again, and space that is given back is found.
h.pwrite(text(0), 0)
h.trim(8 * M, 0)
h.flush()
if h.pread(8 * M, 0) != bytes(8 * M): raise Exception('what was trimmed is there')
h.pwrite(text(1000), 100 * M)
if h.pread(M, 100 * M) != text(1000): raise Exception('what was written then is wrong')
check(8)";
    nbdsh(fixture, &exporter.uri, script)?;
    exporter.end()?;
    fixture.done(&["pool", "check", &pool]).map(drop)
}

/// The end of the pool's data is cut off, again and again, because the service soon mends that.
/// A request to what is gone fails, others do not, and the service names the block.
fn lost(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh"])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let exporter = export(fixture, &pool, "disk", "s", &[])?;
    let script = format!(
        "
import os
M = 1 << 20
data = {pool:?} + '/data-0.seg'
for at in range(40): h.pwrite(bytes([at + 1]) * M, at * M)
h.flush()
size = os.stat(data).st_size
errors = 0
for turn in range(100):
    os.truncate(data, 30 * M)
    for at in range(0, 40, 3):
        try:
            if h.pread(4096, at * M) != bytes([at + 1]) * 4096 and at < 10:
                raise Exception('other bytes')
        except nbd.Error as e:
            if e.errno != 'EIO' or at < 10: raise
            errors += 1
        h.pwrite(bytes([1]) * 4096, 0)
        h.pwrite(bytes([1]) * 4096, 4096)
    if errors > 20: break
if errors == 0: raise Exception('nothing was lost')
os.truncate(data, size)
h.pwrite(bytes([7]) * M, 39 * M)
h.flush()
if h.pread(M, 39 * M) != bytes([7]) * M: raise Exception('the export does not go on')"
    );
    nbdsh(fixture, &exporter.uri, &script)?;
    let named = || {
        let log = std::fs::read_to_string(format!("{pool}/service.log")).unwrap_or_default();
        log.contains("the medium has lost block ")
    };
    wait_until("the service names a block that was lost", named)?;
    let status = fixture.done(&["pool", "status", &pool, "--json"])?.out;
    if !status.contains("\"media_errors\":") || status.contains("\"media_errors\":0,") {
        return wrong(format!("no error of the medium is counted: {status}"));
    }
    exporter.end()
}

/// What a run does to the file of an export is an error of the requests that it concerns.
fn cut(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh"])?;
    let pool = fixture.path("pool").to_string_lossy().into_owned();
    fixture.done(&["pool", "create", &pool, "--size", "64M"])?;
    let create = ["volume", &pool, "create", "disk", "--size", "32M"];
    fixture.done(&[&create[..], &["--sector", "4096", "--atomic"]].concat())?;
    let exporter = export(fixture, &pool, "disk", "s", &[])?;
    nbdsh(fixture, &exporter.uri, "h.pwrite(bytes([5]) * 4096, 0)")?;
    let truncate = ["truncate", "-s", "1M", "/hf/disk"];
    fixture.done(&[&["run", "--pool", &pool, "--"], &truncate[..]].concat())?;
    let script = "
for n in range(3):
    try:
        h.pread(4096, n * 4096)
    except nbd.Error as e:
        if e.errno != 'EIO': raise
        continue
    raise Exception('what was cut is read')";
    nbdsh(fixture, &exporter.uri, script)?;
    exporter.end()
}
