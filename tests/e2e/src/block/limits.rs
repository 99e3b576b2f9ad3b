//! Requests that cannot be, and a pool without room.
//!
//! Invariant: an error belongs to its request; what was there before is still there.

use super::{export, nbdsh, needs, pool_with_volume, volume};
use crate::bad_input::{Case, Fixture, Stop};

pub const CASES: &[(&str, Case)] = &[
    ("nbd requests that cannot be", requests),
    ("nbd on a full pool", full),
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
