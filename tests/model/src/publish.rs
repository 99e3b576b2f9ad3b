//! What others see of a change, and when.

use super::{CALLER, play};
use holdfast_client::{Base, Client, Error};
use holdfast_pool::journal::{RECORD_ALIGN, Record, decode};
use holdfast_pool::session::LANES;

const NAMES: [&[u8]; 3] = [b"one", b"two", b"three"];
const LOOKS: usize = 6;
/// Two owners, each with a group of the same number.
const OWNERS: [u32; 2] = [17, 18];

fn nothing(_: &Client) {}

fn make(client: &Client, _: usize) {
    for name in NAMES {
        client
            .mkdir(&CALLER, Base::Root, name, 0o711)
            .expect("room");
    }
}

/// Whoever finds a name finds its record, as recovery would.
fn look(client: &Client, _: usize) {
    for name in NAMES.iter().cycle().take(LOOKS) {
        match client.stat(&CALLER, Base::Root, name, 0) {
            Err(Error::NotFound) => {}
            Ok(stat) => {
                assert_eq!((stat.mode, stat.nlink), (0o040_711, 2));
                assert!(is_journaled(client, name), "seen before it is durable");
            }
            Err(e) => panic!("{e:?}"),
        }
    }
}

fn is_journaled(client: &Client, wanted: &[u8]) -> bool {
    let s = client.session();
    let mut bytes = vec![0; 4096];
    (0..LANES as u64).any(|lane| {
        s.journal()
            .read(lane * s.lane_len(), &mut bytes)
            .expect("inside");
        let places = (0..bytes.len()).step_by(RECORD_ALIGN);
        let is_it = |at: usize| {
            let record = decode(&bytes[at..]);
            matches!(record, Ok((_, Record::Create { name, .. })) if name == wanted)
        };
        places.into_iter().any(is_it)
    })
}

/// Fails when the record is not fenced before it is published, or is published before it is
/// written.
#[test]
fn what_is_seen_is_durable() {
    play(nothing, &[make, look, look], nothing);
}

fn give_away(client: &Client, _: usize) {
    for owner in [OWNERS[1], OWNERS[0], OWNERS[1]] {
        let to = (Some(owner), Some(owner));
        client
            .chown(&CALLER, Base::Root, b"one", to, 0)
            .expect("a change");
    }
}

fn look_at_owner(client: &Client, _: usize) {
    for _ in 0..LOOKS {
        let stat = client.stat(&CALLER, Base::Root, b"one", 0).expect("a file");
        assert_eq!(stat.uid, stat.gid, "half of a change was seen");
    }
}

fn owned(client: &Client) {
    client
        .mkdir(&CALLER, Base::Root, b"one", 0o711)
        .expect("room");
    let to = (Some(OWNERS[0]), Some(OWNERS[0]));
    client
        .chown(&CALLER, Base::Root, b"one", to, 0)
        .expect("a change");
}

/// Fails when `Changing` makes the version odd without a fence, or even with a relaxed store.
#[test]
fn a_change_is_seen_as_a_whole() {
    play(owned, &[give_away, look_at_owner, look_at_owner], nothing);
}
