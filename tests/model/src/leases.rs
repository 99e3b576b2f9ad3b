//! What was told of an inode under a lease.

use super::{CALLER, play};
use holdfast_client::{Base, Client, LeaseSet};
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
        let told = stat.expect("a directory").mode;
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
    assert_eq!(stat.expect("a directory").mode, TYPE | MODES[3]);
    assert!(client.leases_last(&leases), "nobody changes anything");
    client.leave();
}

/// Fails when `Session::recall` does nothing, and when a lease is given without a look at the lock.
#[test]
fn what_has_a_lease_is_not_older_than_the_last_change() {
    play(begin, &[change, look, look], last);
}
