//! What was told of an inode under a lease.

use super::{CALLER, play};
use holdfast_client::abi::{O_CREAT, O_RDONLY, O_RDWR};
use holdfast_client::{Base, Client, LeaseSet, OfdLink};
use holdfast_pmem::{ConstBuf, MutBuf};
use holdfast_pool::layout::ROOT_INO;
use std::sync::atomic::Ordering::*;

const NAME: &[u8] = b"name";
const LOOKS: usize = 4;
const TYPE: u32 = 0o040_000;
/// Each is changed to the next one.
const MODES: [u32; 4] = [0o700, 0o711, 0o750, 0o755];

fn begin(client: &Client) {
    client.expect_others(17);
    client.give_leases().expect("words");
    let made = client.mkdir(&CALLER, Base::Root, NAME, MODES[0]);
    made.expect("room");
    client.session().header().total_blocks.store(0, Relaxed);
}

/// Says which changes are complete.
fn change(client: &Client, _: usize) {
    for (n, mode) in MODES.iter().enumerate().skip(1) {
        let changed = client.chmod(&CALLER, Base::Root, NAME, *mode, 0);
        changed.expect("a directory");
        let done = &client.session().header().total_blocks;
        done.store(n as u64, Release);
    }
}

/// What the leases last for is not older than the changes that are complete.
fn look(client: &Client, _: usize) {
    let done = &client.session().header().total_blocks;
    for _ in 0..LOOKS {
        let leases = LeaseSet::default();
        let stat = client.leased_stat(&CALLER, (ROOT_INO, NAME), 0, &leases);
        let told = stat.expect("a directory").0.mode;
        let complete = done.load(Acquire) as usize;
        if client.leases_last(&leases) {
            let now = &MODES[complete..];
            let is_so = now.iter().any(|mode| told == TYPE | mode);
            assert!(is_so, "{told:o} after change {complete}");
        }
    }
}

fn last(client: &Client) {
    let leases = LeaseSet::default();
    let stat = client.leased_stat(&CALLER, (ROOT_INO, NAME), 0, &leases);
    assert_eq!(stat.expect("a directory").0.mode, TYPE | MODES[3]);
    assert!(client.leases_last(&leases), "nobody changes anything");
    client.leave();
}

/// A file that is opened to be read: its content comes with the answer.
const FILE: &[u8] = b"file";
const WRITES: u8 = 3;

fn begin_file(client: &Client) {
    client.expect_others(17);
    client.give_leases().expect("words");
    let open = |flags| client.open(&CALLER, Base::Root, FILE, flags, 0o600, 0);
    let file = open(O_RDWR | O_CREAT).expect("room");
    write(client, file, 0);
    // The first read moves the time of access, and nobody is told the content that does.
    let mut seen = [0; 8];
    client
        .read(file, MutBuf::from(&mut seen[..]))
        .expect("a file");
    client.bind(0, file).expect("free");
    client
        .bind(1, open(O_RDONLY).expect("there"))
        .expect("free");
    client.session().header().total_blocks.store(0, Relaxed);
}

fn write(client: &Client, file: OfdLink, what: u8) {
    let bytes = [what; 8];
    let wrote = client.pwrite(file, ConstBuf::from(&bytes[..]), 0);
    assert_eq!(wrote.expect("room"), 8);
}

fn rewrite(client: &Client, _: usize) {
    let file = client.lookup(0).expect("bound");
    for what in 1..=WRITES {
        write(client, file, what);
        // The content is told again after this.
        let mut seen = [0; 8];
        let read = client.pread(file, MutBuf::from(&mut seen[..]), 0);
        assert_eq!(read.expect("a file"), 8);
        let done = &client.session().header().total_blocks;
        done.store(what.into(), Release);
    }
}

/// The content, if it is told, with the writes that were complete before the leases were seen to
/// last.
fn content(client: &Client) -> Option<(u8, u8)> {
    let (leases, mut told) = (LeaseSet::default(), [0; 8]);
    let file = client.lookup(1).expect("bound");
    let len = client.leased_content(file, MutBuf::from(&mut told[..]), &leases);
    let complete = client.session().header().total_blocks.load(Acquire) as u8;
    let is_told = len.expect("a file") == Some(8) && client.leases_last(&leases);
    is_told.then_some((told[0], complete))
}

fn look_at_content(client: &Client, _: usize) {
    for _ in 0..LOOKS {
        if let Some((told, complete)) = content(client) {
            assert!(told >= complete, "{told} after write {complete}");
        }
    }
}

fn last_content(client: &Client) {
    // Of two looks the first may bring the content into memory.
    let told = content(client).or_else(|| content(client));
    assert_eq!(told, Some((WRITES, WRITES)));
    client.leave();
}

#[test]
fn content_that_has_a_lease_is_not_older_than_the_last_write() {
    play(
        begin_file,
        &[rewrite, look_at_content, look_at_content],
        last_content,
    );
}

/// Fails when `Session::recall` does nothing, and when a lease is given without a look at the lock.
#[test]
fn what_has_a_lease_is_not_older_than_the_last_change() {
    play(begin, &[change, look, look], last);
}
