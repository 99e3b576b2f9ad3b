//! Clients that do not keep to the protocol.
//!
//! Invariant: what one of them does is its own loss; a client that was there before goes on.

use super::raw::{Client, READ, WRITE, greeted, option};
use super::{Exporter, export, needs, noise, pool_with_volume};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use std::io::Write;

pub const CASES: &[(&str, Case)] = &[
    ("nbd clients that vanish", vanish),
    ("nbd clients that speak garbage", garbage),
];

/// A client that was there before, and what it knows of the volume.
struct Witness {
    client: Client,
    round: u64,
}

impl Witness {
    fn of(exporter: &Exporter) -> Result<Witness, Stop> {
        let client = Client::connect(&exporter.socket)?;
        Ok(Witness { client, round: 0 })
    }

    /// Writes and reads, and so does a new client.
    fn goes_on(&mut self, exporter: &mut Exporter, after: &str) -> Result<(), Stop> {
        self.round += 1;
        let at = 32 << 20;
        let bytes = noise(8192, self.round);
        let mut work = || {
            let written = self.client.write(&bytes, at)?;
            let read = self.client.read(8192, at)?;
            let other = Client::connect(&exporter.socket)?.read(8192, at)?;
            std::io::Result::Ok((written, read, other))
        };
        match work() {
            Ok((0, read, other)) if read == bytes && other == bytes => {}
            Ok((error, ..)) => return wrong(format!("after {after}: other bytes, or {error}")),
            Err(error) => return wrong(format!("after {after}: {error}")),
        }
        match exporter.runs() {
            true => Ok(()),
            false => wrong(format!("after {after}: {}", exporter.said())),
        }
    }
}

fn vanish(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &[])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let mut exporter = export(fixture, &pool, "disk", "s", &[])?;
    let mut witness = Witness::of(&exporter)?;
    let before = vec![0x11; 1 << 20];
    if witness.client.write(&before, 0)? != 0 {
        return wrong("a write failed");
    }
    for _ in 0..20 {
        Client::connect(&exporter.socket)?.send_part_of_a_write()?;
    }
    witness.goes_on(&mut exporter, "a write that did not arrive")?;
    // Its bytes never arrived as a whole, so nothing of it is there.
    if witness.client.read(1 << 20, 0)? != before {
        return wrong("a part of a write that did not arrive was written");
    }
    for _ in 0..20 {
        let mut client = Client::connect(&exporter.socket)?;
        for n in 0..16 {
            client.request(READ, n << 20, 1 << 20)?;
        }
    }
    witness.goes_on(&mut exporter, "answers that nobody takes")?;
    for _ in 0..20 {
        let mut client = Client::connect(&exporter.socket)?;
        client.request(WRITE, 16 << 20, 4096)?;
        client.stream.write_all(&[0x22; 4096])?;
    }
    witness.goes_on(&mut exporter, "writes whose answer nobody takes")?;
    for _ in 0..20 {
        drop(greeted(&exporter.socket)?);
    }
    witness.goes_on(&mut exporter, "clients that say nothing")?;
    exporter.end()?;
    fixture.done(&["pool", "check", &pool]).map(drop)
}

fn garbage(fixture: &Fixture) -> Result<(), Stop> {
    needs(fixture, &[])?;
    let pool = pool_with_volume(fixture, "64M", "40M")?;
    let mut exporter = export(fixture, &pool, "disk", "s", &[])?;
    let mut witness = Witness::of(&exporter)?;
    let long = [&3u32.to_be_bytes()[..], &option(7, u32::MAX), &[0; 64]].concat();
    let words = [&3u32.to_be_bytes()[..], &option(0x5555_5555, 0)].concat();
    let greetings: [(&str, Vec<u8>); 6] = [
        ("the words of HTTP", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("zeroes", vec![0; 4096]),
        ("noise", noise(4096, 7)),
        ("flags that nobody has", vec![0xff; 4]),
        ("an option that is too long", long),
        ("an option that nobody has", words),
    ];
    for (what, bytes) in greetings {
        let mut stream = greeted(&exporter.socket)?;
        // The server may have had enough of it already.
        let _ = stream.write_all(&bytes);
        witness.goes_on(&mut exporter, what)?;
    }
    for seed in 1..50 {
        let mut client = Client::connect(&exporter.socket)?;
        let _ = client.stream.write_all(&noise(28 * 4, seed));
        witness.goes_on(&mut exporter, "noise for a request")?;
    }
    for (what, kind, offset, len) in [
        ("a request of no kind", 0x77, 0, 512),
        ("a read of 4 GiB", READ, 0, u32::MAX),
        ("a write of 4 GiB", WRITE, 0, u32::MAX),
        ("a read at the end of all", READ, u64::MAX, 512),
        ("a read around the end of all", READ, u64::MAX - 511, 1024),
        ("a write at the end of all", WRITE, u64::MAX - 4095, 4096),
        ("a read of nothing", READ, 0, 0),
        ("a read of a part of a sector", READ, 1, 100),
    ] {
        let mut client = Client::connect(&exporter.socket)?;
        client.request(kind, offset, len)?;
        let _ = client.stream.write_all(&[0; 4096]);
        witness.goes_on(&mut exporter, what)?;
    }
    exporter.end()?;
    fixture.done(&["pool", "check", &pool]).map(drop)
}
