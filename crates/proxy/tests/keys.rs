//! What one user may keep of keys and values, and for how long it is of use.

mod fixture;

use fixture::*;
use holdfast_client::kv::Durability;
use holdfast_client::served::Batch;
use holdfast_client::served::pairs::{CHANGE_HEAD, Change, Kind};
use holdfast_client::served::wire::*;
use holdfast_client::{Base, Caller, Served};
use holdfast_pmem::SharedMem;
use holdfast_pmem::atomic::Ordering::*;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Views pin roots of the whole session, and what is kept between two calls takes memory of the
/// pool's owner: of both one user has a part, which comes back.
#[test]
fn one_user_keeps_no_more_than_a_part() {
    let mut fixture = Fixture::new("kept");
    let enter = || {
        let (connection, channel) = fixture.connect();
        let served = Served::enter(channel.as_fd(), connection.as_fd(), b"/hf").unwrap();
        let memory = SharedMem::map(channel.as_fd(), CHANNEL_LEN).unwrap();
        (served, connection, memory)
    };
    let (first, of_first, memory) = enter();
    let (second, _of_second, _) = enter();
    let c = caller();
    let keyspace = first.keyspace(&c, b"k", true).unwrap();
    let own = second.keyspace(&c, b"k", false).unwrap();
    let views: Vec<_> = (0..128)
        .map(|_| first.view(Some(keyspace)).unwrap())
        .collect();
    let refused = second.view(None).unwrap_err();
    assert_eq!(refused.errno(), Errno::USERS.raw_os_error());
    first.end_view(views[0]);
    let view = second.view(None).unwrap();
    let scan = || second.scan(&c, (own, view), (b"", None), false);
    let scans: Vec<_> = (0..1024).map(|_| scan().unwrap()).collect();
    assert_eq!(scan().err().unwrap().errno(), Errno::USERS.raw_os_error());
    second.end_scan(&scans[0]);
    scan().unwrap();
    // Parts of values that never become any.
    let (mut batch, mut kept) = (0, 0);
    let full = loop {
        match keep_part(&memory, batch) {
            Ok(name) => (batch, kept) = (name, kept + 1),
            Err(errno) => break errno,
        }
        // A value is not longer.
        if kept % 63 == 0 {
            batch = 0;
        }
    };
    assert_eq!(full, Errno::TOOBIG.raw_os_error() as u64);
    assert!((500..=512).contains(&kept), "{kept} parts");
    // Small values need none of that.
    let long = vec![7; 64 << 20];
    let pair = (&b"a"[..], &long[..100]);
    first
        .kv_put(&c, keyspace, pair, Durability::Ordered)
        .unwrap();
    drop((first, of_first));
    let begun = Instant::now();
    while second.view(None).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
    second
        .kv_put(&c, own, (b"large", &long), Durability::Ordered)
        .unwrap();
    let mut back = vec![0; long.len()];
    let len = second.kv_get(&c, own, None, b"large", &mut back).unwrap();
    assert!(len == Some(long.len() as u64) && back == long);
    assert_eq!(PANICS.load(SeqCst), 0);
    fixture.check();
}

/// Hands the largest part of a value over, which the batch of this name keeps (0: a new one): the
/// batch's name, or the error.
fn keep_part(memory: &SharedMem, batch: u32) -> Result<u32, u64> {
    let bytes = vec![7; BUFFER - CHANGE_HEAD];
    let part = Change {
        kind: Kind::Part,
        keyspace: 1,
        key: &[],
        value: &bytes,
    };
    let text = [&part.head()[..], &bytes].concat();
    let head = Head {
        op: Op::KvChange as u32,
        lens: [0, 0, text.len() as u32],
        ..Head::default()
    };
    let mut words = [0; WORDS];
    words[..HEAD].copy_from_slice(&head.encode());
    words[HEAD] = batch.into();
    assert!(ask(memory, 0, &words, &text));
    let line: &Line = memory.at(line_at(0)).unwrap();
    let answer = line.answer.each_ref().map(|word| word.load(Relaxed));
    // The next who asks on this line waits for it to be idle.
    line.turn.store(IDLE, SeqCst);
    match answer[0] {
        0 => Ok(answer[2] as u32),
        errno => Err(errno),
    }
}

/// What was opened, begun or collected with a right is of no use once the right is gone.
#[test]
fn a_right_that_is_lost_is_lost_for_what_is_open() {
    let mut fixture = Fixture::new("lost");
    let (connection, channel) = fixture.connect();
    let served = Served::enter(channel.as_fd(), connection.as_fd(), b"/hf").unwrap();
    // Its owner, who may do nothing but change the mode of the directory.
    let c = Caller {
        privileged: false,
        ..caller()
    };
    let keyspace = served.keyspace(&c, b"k", true).unwrap();
    let put = |key: &[u8]| served.kv_put(&c, keyspace, (key, &[7; 9000]), Durability::Ordered);
    (0..20u8).for_each(|i| put(&[i + 1]).unwrap());
    let chmod = |mode| served.chmod(&c, Base::Root, b"k", mode, 0).unwrap();
    let view = served.view(Some(keyspace)).unwrap();
    let get = |view, key: &[u8]| {
        let got = served.kv_get(&c, keyspace, view, key, &mut [0; 9000]);
        got.map_err(|e| e.errno())
    };
    let denied = Err(Errno::ACCESS.raw_os_error());
    for (mode, may_get, may_scan, may_change) in [
        (0o000, false, false, false),
        (0o100, true, false, false),
        (0o500, true, true, false),
        (0o300, true, false, true),
        (0o700, true, true, true),
    ] {
        chmod(0o700);
        let mut scan = served
            .scan(&c, (keyspace, view), (b"", None), false)
            .unwrap();
        assert!(scan.advance(&served, &c).unwrap());
        let mut batch = Batch::default();
        served
            .batch_put(&mut batch, keyspace, b"new", b"x")
            .unwrap();
        let file = served
            .open(&c, Base::Root, b"k", 0o20_200_002, 0o600, 0)
            .unwrap();
        chmod(mode);
        let allowed = |may: bool| if may { Ok(()) } else { denied };
        for view in [None, Some(view)] {
            assert_eq!(get(view, &[1]).map(drop), allowed(may_get), "{mode:o}");
        }
        // What came with the last answer is there; the rest is not.
        let rest = loop {
            match scan.advance(&served, &c) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(e) => break Err(e.errno()),
            }
        };
        served.end_scan(&scan);
        let errno = |e: holdfast_client::Error| e.errno();
        let erased = served.kv_erase(&c, keyspace, b"none", Durability::Ordered);
        let named = served.kv_name(&c, keyspace, b"file", file, Durability::Ordered);
        let made = served.kv_commit(&c, batch, Durability::Ordered);
        let changed = [put(b"put"), erased, named, made].map(|done| done.map_err(errno));
        served.release(file).unwrap();
        assert_eq!(rest, allowed(may_scan), "{mode:o}");
        assert_eq!(changed, [allowed(may_change); 4], "{mode:o}");
        chmod(0o700);
        for key in [&b"put"[..], b"file", b"new"] {
            assert_eq!(get(None, key).unwrap().is_some(), may_change, "{mode:o}");
            served
                .kv_erase(&c, keyspace, key, Durability::Ordered)
                .unwrap();
        }
    }
    fixture.check();
}
