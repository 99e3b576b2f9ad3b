//! What nbdinfo, nbdcopy, qemu-img, qemu-io and fio do with a volume.
//!
//! Invariant: what was written is compared with its source, never with a second reading.

use super::{MIB, client, export, export_at, nbdsh, needs, noise, pool_with_volume, same, volume};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;

pub const CASES: &[(&str, Case)] = &[
    ("nbd properties", properties),
    ("nbd over TCP", tcp),
    ("nbd copies by nbdcopy", copies),
    ("nbd images by qemu-img", images),
    ("nbd patterns by qemu-io", patterns),
    ("nbd zeroes and holes", zeroes),
    ("nbd verified by fio", verified),
    ("nbd by protection and scheme", protections),
];

fn properties(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdinfo"])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    volume(fixture, &pool, "large", "24M", "4096")?;
    for (name, size, sector, options) in [
        ("disk", 40 * MIB, 512, &[][..]),
        ("large", 24 * MIB, 4096, &[]),
        ("disk", 40 * MIB, 512, &["--read-only"]),
    ] {
        let exporter = export(fixture, &pool, name, "s", options)?;
        let said = client(fixture, "nbdinfo", &["--json", &exporter.uri])?;
        let json: Value = serde_json::from_str(&said).unwrap_or_default();
        let found = &json["exports"][0];
        let writes = options.is_empty();
        for (key, expected) in [
            ("export-size", Value::from(size)),
            ("is_read_only", Value::from(!writes)),
            ("can_flush", Value::from(true)),
            ("can_fua", Value::from(writes)),
            ("can_trim", Value::from(writes)),
            ("can_zero", Value::from(writes)),
            ("can_fast_zero", Value::from(writes)),
            ("can_multi_conn", Value::from(true)),
            ("can_cache", Value::from(false)),
            ("is_rotational", Value::from(false)),
            ("block_size_minimum", Value::from(sector)),
            ("block_size_preferred", Value::from(4096)),
            ("block_size_maximum", Value::from(32 * MIB)),
        ] {
            if found[key] != expected {
                return wrong(format!("{name} {options:?}: {key} is {}", found[key]));
            }
        }
        exporter.end()?;
    }
    Ok(())
}

fn tcp(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdinfo"])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    for host in ["127.0.0.1", "[::1]"] {
        let Ok(listener) = TcpListener::bind(format!("{host}:0")) else {
            return Err(Stop::Skip(format!("this host has no {host}")));
        };
        let address = listener.local_addr()?.to_string();
        let words = ["export", &pool, "disk", "--nbd", &address];
        fixture.refused(&words, &[1])?;
        drop(listener);
        let exporter = export_at(fixture, &pool, "disk", (&address, "s"), &[])?;
        if exporter.uri != format!("nbd://{address}") {
            return wrong(format!("the address is said to be {}", exporter.uri));
        }
        let size = client(fixture, "nbdinfo", &["--size", &exporter.uri])?;
        if size.trim() != (40 * MIB).to_string() {
            return wrong(format!("the size is {size}"));
        }
        exporter.end()?;
    }
    Ok(())
}

fn copies(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdcopy"])?;
    let pool = pool_with_volume(fixture, "128M", "64M")?;
    let (image, back) = (fixture.path("image"), fixture.path("back"));
    fs::write(&image, noise(64 * MIB, 1))?;
    let exporter = export(fixture, &pool, "disk", "s", &[])?;
    let paths = [image.to_string_lossy(), back.to_string_lossy()];
    let many = ["--connections=4", "--requests=16", "--flush"];
    client(
        fixture,
        "nbdcopy",
        &[&many[..], &[&paths[0], &exporter.uri]].concat(),
    )?;
    client(
        fixture,
        "nbdcopy",
        &[&many[..], &[&exporter.uri, &paths[1]]].concat(),
    )?;
    same("through one export", &back, &image)?;
    exporter.end()?;
    let exporter = export(fixture, &pool, "disk", "s", &["--read-only"])?;
    fs::remove_file(&back)?;
    client(fixture, "nbdcopy", &[&exporter.uri, &paths[1]])?;
    same("through the next export", &back, &image)?;
    exporter.end()?;
    fixture.done(&["pool", "check", &pool]).map(drop)
}

fn images(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["qemu-img"])?;
    let pool = pool_with_volume(fixture, "192M", "64M")?;
    let (raw, qcow) = (fixture.path("raw"), fixture.path("qcow2"));
    // Data, then what both formats keep as a hole, then data.
    let mut bytes = noise(64 * MIB, 2);
    bytes[20 * MIB..40 * MIB].fill(0);
    fs::write(&raw, &bytes)?;
    let (raw, qcow) = (raw.to_string_lossy(), qcow.to_string_lossy());
    let qemu = |args: &[&str]| client(fixture, "qemu-img", args);
    qemu(&["convert", "-f", "raw", "-O", "qcow2", &raw, &qcow])?;
    let exporter = export(fixture, &pool, "disk", "s", &[])?;
    let uri = exporter.uri.as_str();
    for (format, source) in [("raw", &raw), ("qcow2", &qcow)] {
        // What was there before must be gone, also where the image has a hole.
        client(
            fixture,
            "qemu-img",
            &[
                "bench",
                "-f",
                "raw",
                "-w",
                "-c",
                "64",
                "-s",
                "1M",
                "--pattern=85",
                uri,
            ],
        )?;
        qemu(&["convert", "-n", "-f", format, "-O", "raw", source, uri])?;
        qemu(&["compare", "-f", format, "-F", "raw", source, uri])?;
        let back = fixture.path("back");
        qemu(&[
            "convert",
            "-f",
            "raw",
            "-O",
            "raw",
            uri,
            &back.to_string_lossy(),
        ])?;
        same(format, &back, &fixture.path("raw"))?;
    }
    exporter.end()?;
    fixture.done(&["pool", "check", &pool]).map(drop)
}

fn patterns(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["qemu-io"])?;
    let pool = pool_with_volume(fixture, "128M", "64M")?;
    let exporter = export(fixture, &pool, "disk", "s", &[])?;
    let qemu = |commands: &[&str]| -> Result<(), Stop> {
        let mut words = vec!["-f", "raw", "-d", "unmap"];
        commands
            .iter()
            .for_each(|command| words.extend(["-c", *command]));
        words.push(&exporter.uri);
        let said = client(fixture, "qemu-io", &words)?;
        // It exits with 0 whatever it has read.
        match said.contains("verification failed") || said.contains("error") {
            true => wrong(format!("qemu-io {commands:?}: {said}")),
            false => Ok(()),
        }
    };
    qemu(&["read -P 0 0 64M"])?;
    qemu(&[
        "write -P 0x11 0 1M",
        "write -P 0x22 512K 512",
        "write -P 0x33 63M 1M",
        "flush",
    ])?;
    qemu(&[
        "read -P 0x11 0 512K",
        "read -P 0x22 512K 512",
        "read -P 0x33 63M 1M",
    ])?;
    qemu(&[
        "write -f -P 0x44 4K 4K",
        "read -P 0x44 4K 4K",
        "read -P 0x11 8K 4K",
    ])?;
    qemu(&[
        "discard 0 256K",
        "flush",
        "read -P 0 0 256K",
        "read -P 0x11 256K 256K",
    ])?;
    // Not aligned to blocks of the pool.
    qemu(&[
        "discard 262656 1024",
        "read -P 0 262656 1024",
        "read -P 0x11 263680 512",
    ])?;
    qemu(&[
        "write -z 63M 512K",
        "read -P 0 63M 512K",
        "read -P 0x33 65024K 512K",
    ])?;
    qemu(&[
        "write -z -u 65024K 4K",
        "read -P 0 65024K 4K",
        "read -P 0x33 65028K 4K",
    ])?;
    // A larger request than any write may be.
    qemu(&["write -P 0x55 0 30M", "discard 0 60M", "read -P 0 0 60M"])?;
    exporter.end()?;
    // What qemu-io could not fail: the same reading finds what is not there.
    let exporter = export(fixture, &pool, "disk", "s", &["--read-only"])?;
    let words = ["-r", "-f", "raw", "-c", "read -P 0x77 65028K 4K"];
    let said = client(fixture, "qemu-io", &[&words[..], &[&exporter.uri]].concat());
    match said {
        Ok(said) if !said.contains("verification failed") => {
            wrong(format!("qemu-io finds what is not there: {said}"))
        }
        _ => exporter.end(),
    }
}

/// Space is given back, taken, and shown as it is.
fn zeroes(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["nbdsh"])?;
    let pool = pool_with_volume(fixture, "128M", "64M")?;
    let exporter = export(fixture, &pool, "disk", "s", &[])?;
    let script = r#"
import nbd
M = 1 << 20
h2 = nbd.NBD()
h2.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h2.connect_uri(h.get_uri())
h = h2
def extents(offset, count, flags=0):
    found = []
    def add(context, at, entries, error):
        for n in range(0, len(entries), 2):
            if found and found[-1][1] == entries[n + 1]:
                found[-1][0] += entries[n]
            else:
                found.append([entries[n], entries[n + 1]])
    h.block_status(count, offset, add, flags)
    # The last may go on behind what was asked for.
    found[-1][0] = min(found[-1][0], count - sum(n for n, _ in found[:-1]))
    return found
HOLE = nbd.STATE_HOLE | nbd.STATE_ZERO
def expect(what, expected):
    if what != expected:
        raise Exception(f"{what}, not {expected}")
expect(extents(0, 64 * M), [[64 * M, HOLE]])
h.pwrite(b"x" * M, 4 * M)
h.pwrite(b"y" * 4096, 8 * M)
expect(extents(0, 16 * M)[:4], [[4 * M, HOLE], [M, 0], [3 * M, HOLE], [4096, 0]])
expect(extents(4 * M, 512, nbd.CMD_FLAG_REQ_ONE)[0][1], 0)
h.trim(M // 2, 4 * M)
expect(h.pread(M, 4 * M), bytes(M // 2) + b"x" * (M // 2))
expect(extents(4 * M, M), [[M // 2, HOLE], [M // 2, 0]])
h.zero(M // 4, 4 * M + M // 2)
expect(h.pread(M // 2, 4 * M + M // 2), bytes(M // 4) + b"x" * (M // 4))
h.zero(M // 4, 4 * M + M // 2, nbd.CMD_FLAG_NO_HOLE)
expect(extents(4 * M + M // 2, M // 4), [[M // 4, 0]])
# It is fast where it is a hole, and says so where it is not.
h.zero(M // 4, 4 * M, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_FUA)
try:
    h.zero(M // 4, 4 * M, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)
    raise Exception("writing zeroes is said to be fast")
except nbd.Error as e:
    expect(e.errno in ("ENOTSUP", "EOPNOTSUPP"), True)
h.trim(64 * M - 512, 512, nbd.CMD_FLAG_FUA)
h.flush()
expect(h.pread(M, 4 * M + M // 2)[M // 4:M // 2], bytes(M // 4))
"#;
    nbdsh(fixture, &exporter.uri, script)?;
    exporter.end()?;
    fixture.done(&["pool", "check", &pool]).map(drop)
}

fn verified(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["fio"])?;
    let pool = pool_with_volume(fixture, "128M", "64M")?;
    volume(fixture, &pool, "large", "32M", "4096")?;
    for (name, jobs, size) in [
        ("disk", "1", "64M"),
        ("disk", "4", "16M"),
        ("large", "2", "16M"),
    ] {
        let exporter = export(fixture, &pool, name, "s", &[])?;
        let said = client(
            fixture,
            "fio",
            &[
                "--name=verified",
                "--ioengine=nbd",
                &format!("--uri={}", exporter.uri),
                "--rw=randwrite",
                "--bsrange=4k-64k",
                "--iodepth=8",
                &format!("--size={size}"),
                &format!("--offset_increment={size}"),
                &format!("--numjobs={jobs}"),
                "--verify=crc32c",
                "--verify_fatal=1",
                "--fsync=16",
                "--group_reporting",
                "--output-format=json",
            ],
        )?;
        // It may say something before.
        let sheet = said.find('{').map_or("", |at| &said[at..]);
        let json: Value = serde_json::from_str(sheet).unwrap_or_default();
        let job = &json["jobs"][0];
        // What was written was read.
        let bytes = |kind: &str| job[kind]["io_bytes"].as_u64();
        if job["error"] != 0 || bytes("read").is_none_or(|n| n < 16 << 20) {
            return wrong(format!(
                "fio on {name} read {:?}: {}",
                bytes("read"),
                job["error"]
            ));
        }
        exporter.end()?;
    }
    fixture.done(&["pool", "check", &pool]).map(drop)
}

/// In some cases with a barrier, and careful.
fn options_of<'a>(n: usize, protect: &'a str, persist: &'a str) -> Vec<&'a str> {
    let mut options = vec!["--protect", protect, "--persist", persist];
    if n % 2 == 1 {
        options.extend(["--barrier", "strict"]);
    }
    if n % 3 == 0 {
        options.extend(["--verify", "--sub-block"]);
    }
    options
}

/// Whatever keeps the server from stray stores, and however it writes, clients get what they wrote;
/// and where the server is protected, it has the pool's data mapped for reading only.
fn protections(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &["qemu-io"])?;
    let pool = pool_with_volume(fixture, "128M", "32M")?;
    let ways = [
        ("none", "auto"),
        ("none", "nt"),
        ("none", "clflush"),
        ("pt", "auto"),
        ("pt-batch", "auto"),
        ("pmap", "nt"),
        ("pmap-cache", "auto"),
        ("fd", "auto"),
        ("auto", "fd"),
        ("auto", "auto"),
    ];
    for (n, (protect, persist)) in ways.into_iter().enumerate() {
        let options = options_of(n, protect, persist);
        let exporter = export(fixture, &pool, "disk", "s", &options)?;
        let byte = n + 1;
        let (write, at) = (
            format!("write -P {byte} 100K 5M"),
            format!("read -P {byte} 100K 5M"),
        );
        let small = format!("write -f -P {byte} 30M 512");
        let again = format!("read -P {byte} 30M 512");
        let mut words = vec!["-f", "raw"];
        for command in [&write, &small, "flush", &at, &again, "read -P 0 6M 1M"] {
            words.extend(["-c", command]);
        }
        words.push(&exporter.uri);
        let said = client(fixture, "qemu-io", &words)?;
        if said.contains("verification failed") || said.contains("error") {
            return wrong(format!("{protect} {persist}: {said}"));
        }
        let (reads, writes) = maps_of_server(&pool)?;
        let right = match protect {
            "none" => writes > 0,
            // Those that are kept for the next copies.
            "pmap-cache" => reads > 0 && (1..=8).contains(&writes),
            _ => reads > 0 && writes == 0,
        };
        if !right {
            let found = format!("{reads} mappings read, {writes} store");
            return wrong(format!("{protect} {persist}: {found}"));
        }
        exporter.end()?;
    }
    for options in [
        ["--protect", "much"],
        ["--persist", "much"],
        ["--barrier", "much"],
    ] {
        let words = [&["export", &pool, "disk", "--nbd", "unix:s"], &options[..]].concat();
        fixture.refused(&words, &[2])?;
    }
    let both = [
        "export",
        &pool,
        "disk",
        "--nbd",
        "unix:s",
        "--protect",
        "pt",
        "--persist",
        "fd",
    ];
    fixture.refused(&both, &[1])
}

/// How many mappings of the pool's data nbdkit has that only read, and how many that store.
fn maps_of_server(pool: &str) -> Result<(usize, usize), Stop> {
    let marker = format!("pool={pool}");
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0);
        if !words.any(|word| word == marker.as_bytes()) {
            continue;
        }
        let maps = std::fs::read_to_string(entry.path().join("maps"))?;
        let data = maps.lines().filter(|line| line.ends_with("/data-0.seg"));
        let stores = |line: &&str| {
            line.split(' ')
                .nth(1)
                .is_some_and(|rights| rights.contains('w'))
        };
        let (writes, reads): (Vec<_>, Vec<_>) = data.partition(stores);
        return Ok((reads.len(), writes.len()));
    }
    wrong("no server has the pool")
}
