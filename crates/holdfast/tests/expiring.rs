//! Random changes of two keyspaces whose keys expire, compared all the time with maps of the
//! standard library that know the times.
//!
//! Invariant: a call has seen the clock between two moments that this test knows. What expires
//! before them must not be there, what expires after them must be; in between either will do, and
//! what a change did says which it was.

mod fixture;

use fixture::{Fixture, Rng};
use holdfast::{Durability, Expires, Keyspace, Pool, Scan, Swap, View, ViewKeyspace};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const NAMES: [&str; 2] = ["first", "second"];
const MS: i64 = 1_000_000;
const HOUR: i64 = 3_600_000 * MS;

#[derive(Clone)]
struct Kept {
    value: Vec<u8>,
    until: Option<i64>,
}

type Map = BTreeMap<Vec<u8>, Kept>;

/// The clock before and after a call.
#[derive(Clone, Copy)]
struct Moment(i64, i64);

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_nanos() as i64
}

fn at<T>(call: impl FnOnce() -> T) -> (T, Moment) {
    let before = now();
    let done = call();
    (done, Moment(before, now()))
}

impl Kept {
    /// Whether it is there; `None`: it may be.
    fn is_there(&self, moment: Moment) -> Option<bool> {
        match self.until {
            Some(until) if until <= moment.0 => Some(false),
            Some(until) if until <= moment.1 => None,
            _ => Some(true),
        }
    }
}

/// Whether a call found what the map allows: the key's value and time, or nothing.
fn judge(map: &Map, key: &[u8], found: Option<(&[u8], Option<i64>)>, moment: Moment) {
    let kept = map.get(key);
    let is_there = kept.map_or(Some(false), |kept| kept.is_there(moment));
    let same = found == kept.map(|kept| (&kept.value[..], kept.until));
    let right = match is_there {
        Some(true) => same,
        Some(false) => found.is_none(),
        None => same || found.is_none(),
    };
    let len = found.map(|(value, until)| (value.len(), until));
    let want = kept.map(|kept| (kept.value.len(), kept.until));
    assert!(
        right,
        "{key:?}: {len:?}, kept {want:?}, {} to {}",
        moment.0, moment.1
    );
}

/// The same of whether there was such a key.
fn judge_presence(map: &Map, key: &[u8], found: bool, moment: Moment) {
    let is_there = map.get(key);
    let is_there = is_there.map_or(Some(false), |kept| kept.is_there(moment));
    assert!(
        is_there.is_none_or(|right| right == found),
        "{key:?}: {found}"
    );
}

struct Both {
    keyspaces: [Keyspace; 2],
    maps: [Map; 2],
}

impl Both {
    fn open(pool: &Pool, maps: [Map; 2]) -> Both {
        let keyspaces = NAMES.map(|name| pool.keyspace_or_create(name).unwrap());
        Both { keyspaces, maps }
    }
}

fn some_key(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.roll(40) {
        0 => 1024,
        n => n as usize % 5 + 1,
    };
    // Few different bytes, so that keys meet again.
    (0..len)
        .map(|_| [0, b'a', 255][rng.roll(3) as usize])
        .collect()
}

fn some_value(rng: &mut Rng) -> Vec<u8> {
    // Around the longest that is in the tree itself, with and without a time.
    let len = match rng.roll(20) {
        0 => rng.roll(300_000),
        1..4 => rng.roll(10_000),
        4..8 => 1980 + rng.roll(30),
        8 => 0,
        _ => rng.roll(200),
    };
    let mut value = vec![rng.roll(256) as u8; len as usize];
    let n = value.len().min(16);
    value[..n].copy_from_slice(&rng.bytes(16)[..n]);
    value
}

/// Long past, past in a moment, or in an hour; or never.
fn some_time(rng: &mut Rng) -> Option<i64> {
    match rng.roll(8) {
        0 => Some(1),
        1..5 => Some(now() + rng.roll(60) as i64 * MS),
        5 => Some(now() + HOUR),
        _ => None,
    }
}

fn some_durability(rng: &mut Rng) -> Durability {
    let all = [
        Durability::Durable,
        Durability::Ordered,
        Durability::Volatile,
    ];
    all[rng.roll(3) as usize]
}

fn change(both: &mut Both, pool: &Pool, rng: &mut Rng) {
    let i = rng.roll(2) as usize;
    let durability = some_durability(rng);
    let (keyspace, map) = (&both.keyspaces[i], &mut both.maps[i]);
    let key = some_key(rng);
    match rng.roll(42) {
        0 => whole(both, pool, rng),
        1 => {
            let (a, b) = (some_key(rng), some_key(rng));
            let (from, to) = (a.clone().min(b.clone()), a.max(b));
            keyspace.erase_range(&from, Some(&to), durability).unwrap();
            map.retain(|k, _| *k < from || *k >= to);
        }
        2..5 => {
            let (found, moment) = at(|| keyspace.remove(&key, durability).unwrap());
            judge_presence(map, &key, found, moment);
            map.remove(&key);
        }
        5..8 => swap(keyspace, map, rng, durability),
        8 => swap_at(keyspace, map, rng, durability),
        9..15 => expire(keyspace, map, rng, durability),
        15..18 => batch(both, pool, rng, durability),
        _ => {
            let (value, until) = (some_value(rng), some_time(rng));
            let expires = Expires::from(until);
            keyspace
                .put_until(&key, &value, expires, durability)
                .unwrap();
            map.insert(key, Kept { value, until });
        }
    }
}

/// A key that is likely to be there.
fn known_key(map: &Map, rng: &mut Rng) -> Vec<u8> {
    let key = some_key(rng);
    let known = map.range(key.clone()..).next();
    known.map_or(key, |(known, _)| known.clone())
}

fn expire(keyspace: &Keyspace, map: &mut Map, rng: &mut Rng, durability: Durability) {
    let (key, until) = (known_key(map, rng), some_time(rng));
    let expires = Expires::from(until);
    let (found, moment) = at(|| keyspace.expire(&key, expires, durability).unwrap());
    judge_presence(map, &key, found, moment);
    if found {
        map.get_mut(&key).unwrap().until = until;
    }
}

/// What has expired is as nothing to a change that depends on it.
fn swap(keyspace: &Keyspace, map: &mut Map, rng: &mut Rng, durability: Durability) {
    let key = known_key(map, rng);
    let expected = match rng.roll(3) {
        0 => None,
        1 => Some(some_value(rng)),
        _ => map.get(&key).map(|kept| kept.value.clone()),
    };
    let (value, until) = (some_value(rng), some_time(rng));
    let (swap, moment) = at(|| {
        let (expected, expires) = (expected.as_deref(), Expires::from(until));
        let swap = keyspace.put_if_until(&key, expected, &value, expires, durability);
        swap.unwrap()
    });
    let Swap { done, present, .. } = swap;
    let old = map.get(&key).map(|kept| kept.value.clone());
    if done {
        judge_presence(map, &key, expected.is_some(), moment);
        assert!(expected.is_none() || expected == old);
        map.insert(key, Kept { value, until });
    } else {
        judge_presence(map, &key, present.is_some(), moment);
        assert!(present.is_none() || present == old);
        assert_ne!(present, expected);
    }
}

/// A change that depends on the expiry of its key alone.
fn swap_at(keyspace: &Keyspace, map: &mut Map, rng: &mut Rng, durability: Durability) {
    let (key, value, until) = (known_key(map, rng), some_value(rng), some_time(rng));
    let expires = Expires::from(until);
    let wanted = match rng.roll(3) {
        0 => None,
        1 => Some(now() + HOUR),
        _ => map.get(&key).and_then(|kept| kept.until),
    };
    let kind = rng.roll(3);
    let (swap, moment) = at(|| {
        let swap = match kind {
            0 => keyspace.put_if_expires(&key, wanted, &value, expires, durability),
            1 => keyspace.erase_if_expires(&key, wanted, durability),
            _ => keyspace.expire_if(&key, wanted, expires, durability),
        };
        swap.unwrap()
    });
    let old = map.get(&key).and_then(|kept| kept.until);
    if !swap.done {
        judge_presence(map, &key, swap.present.is_some(), moment);
        let Some(present) = swap.present else { return };
        assert_eq!(present.time(), old);
        assert!(old.is_none() || wanted.is_some_and(|wanted| old != Some(wanted)));
        return;
    }
    judge_presence(map, &key, true, moment);
    assert!(old.is_some() && wanted.is_none_or(|wanted| old == Some(wanted)));
    assert_eq!(swap.present, (kind != 1).then_some(expires));
    match kind {
        0 => drop(map.insert(key, Kept { value, until })),
        1 => drop(map.remove(&key)),
        _ => map.get_mut(&key).unwrap().until = until,
    }
}

fn batch(both: &mut Both, pool: &Pool, rng: &mut Rng, durability: Durability) {
    let mut batch = pool.batch();
    let mut maps = both.maps.clone();
    let most = [10, 300, 2000][rng.roll(3) as usize];
    for _ in 0..rng.roll(most) {
        let i = rng.roll(2) as usize;
        let key = some_key(rng);
        if rng.roll(4) == 0 {
            batch.erase(&both.keyspaces[i], &key).unwrap();
            maps[i].remove(&key);
            continue;
        }
        let (len, until) = (rng.roll(150) as usize, some_time(rng));
        let value = rng.bytes(len);
        let put = batch.put_until(&both.keyspaces[i], &key, &value, Expires::from(until));
        put.unwrap();
        maps[i].insert(key, Kept { value, until });
    }
    if rng.roll(5) > 0 {
        batch.commit(durability).unwrap();
        both.maps = maps;
    }
}

/// Drops a keyspace, or has one replace the other.
fn whole(both: &mut Both, pool: &Pool, rng: &mut Rng) {
    let i = rng.roll(2) as usize;
    if rng.roll(2) == 0 {
        pool.keyspace_drop(NAMES[i]).unwrap();
        both.maps[i].clear();
    } else {
        pool.keyspace_rename(NAMES[1 - i], NAMES[i], true).unwrap();
        both.maps[i] = std::mem::take(&mut both.maps[1 - i]);
    }
    *both = Both::open(pool, std::mem::take(&mut both.maps));
}

/// What a scan shows, of which all that must be there has to be.
fn judge_scan(map: &Map, scan: Scan, bounds: (Bound<&[u8]>, Bound<&[u8]>), moment: Moment) {
    let mut scan = scan;
    let mut found = Map::new();
    while let Some(pair) = scan.next() {
        let (key, value) = pair.unwrap();
        let until = scan.expires().time();
        let twice = found.insert(key, Kept { value, until });
        assert!(twice.is_none(), "a key is there twice");
    }
    for (key, kept) in &found {
        judge(map, key, Some((&kept.value, kept.until)), moment);
    }
    for (key, _) in map.range::<[u8], _>(bounds) {
        if !found.contains_key(key) {
            judge(map, key, None, moment);
        }
    }
}

fn compare(both: &Both, rng: &mut Rng) {
    for (keyspace, map) in both.keyspaces.iter().zip(&both.maps) {
        for _ in 0..3 {
            let key = known_key(map, rng);
            let ((value, until), moment) = at(|| {
                let value = keyspace.get(&key).unwrap();
                (value, keyspace.expires(&key).unwrap())
            });
            // Between the two calls the key may have expired.
            if let (Some(value), Some(until)) = (&value, until) {
                judge(map, &key, Some((value, until.time())), moment);
            } else {
                judge(map, &key, None, moment);
            }
        }
        if rng.roll(20) == 0 {
            let (a, b) = (some_key(rng), some_key(rng));
            let (from, to) = (a.clone().min(b.clone()), a.max(b));
            let bounds = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
            let (scan, moment) = at(|| keyspace.scan(bounds.0, bounds.1).unwrap());
            let end = from == to;
            judge_scan(
                &if end { Map::new() } else { map.clone() },
                scan,
                bounds,
                moment,
            );
        }
        if rng.roll(40) == 0 {
            let all = (Bound::Unbounded, Bound::Unbounded);
            let (scan, moment) = at(|| keyspace.scan(all.0, all.1).unwrap().backward());
            judge_scan(map, scan, all, moment);
            let (count, moment) = at(|| keyspace.count().unwrap());
            let is = |right| move |kept: &&Kept| kept.is_there(moment) == right;
            let sure = map.values().filter(is(Some(true))).count() as u64;
            let maybe = map.values().filter(is(None)).count() as u64;
            assert!((sure..=sure + maybe).contains(&count), "{count}");
        }
    }
}

/// Something that shows one moment for as long as it lasts.
struct Old {
    keyspaces: [ViewKeyspace; 2],
    maps: [Map; 2],
    moment: Moment,
}

impl Old {
    fn new(both: &Both, view: impl FnOnce() -> View) -> Old {
        let (view, moment) = at(view);
        let maps = both.maps.clone();
        let keyspaces = NAMES.map(|name| view.keyspace(name).unwrap());
        Old {
            keyspaces,
            maps,
            moment,
        }
    }

    fn compare(&self, rng: &mut Rng) {
        for (keyspace, map) in self.keyspaces.iter().zip(&self.maps) {
            let key = known_key(map, rng);
            let value = keyspace.get(&key).unwrap();
            let until = keyspace.expires(&key).unwrap();
            assert_eq!(value.is_some(), until.is_some(), "a view changes");
            let found = value.as_deref().zip(until.map(Expires::time));
            judge(map, &key, found, self.moment);
            if rng.roll(30) == 0 {
                let all = (Bound::Unbounded, Bound::Unbounded);
                judge_scan(map, keyspace.scan(all.0, all.1).unwrap(), all, self.moment);
            }
        }
    }
}

/// Sessions one after the other; what is looked at while there is none goes to the service.
fn story(mut fixture: Fixture, seed: u64, steps: usize, snapshots: bool) {
    let mut rng = Rng(seed);
    let mut maps = [Map::new(), Map::new()];
    let mut kept: Vec<(String, [Map; 2], Moment)> = Vec::new();
    for session in 0..4 {
        let pool = fixture.open();
        let mut both = Both::open(&pool, maps);
        compare(&both, &mut rng);
        let mut old = Vec::new();
        for (name, maps, moment) in &kept {
            let view = pool.snapshot(name).unwrap();
            let mut shown = Old::new(&both, || view);
            (shown.maps, shown.moment) = (maps.clone(), *moment);
            old.push(shown);
        }
        for step in 0..steps {
            change(&mut both, &pool, &mut rng);
            compare(&both, &mut rng);
            if rng.roll(60) == 0 {
                old.truncate(kept.len());
                old.push(Old::new(&both, || pool.read().unwrap()));
            }
            old.iter().for_each(|old| old.compare(&mut rng));
            if snapshots && step == steps / 2 {
                let name = format!("snapshot-{session}");
                let ((), moment) = at(|| pool.snapshot_create(&name).unwrap());
                kept.push((name, both.maps.clone(), moment));
            }
        }
        maps = both.maps;
        drop((old, both.keyspaces, pool));
        if session % 2 == 0 {
            fixture.stop();
            fixture.check();
            fixture.start();
        }
    }
    for (name, ..) in &kept {
        fixture.open().snapshot_delete(name).unwrap();
    }
    nothing_is_left(&mut fixture, &maps);
}

/// With nobody there, the service removes from the trees what has expired.
fn nothing_is_left(fixture: &mut Fixture, maps: &[Map; 2]) {
    let last = maps.iter().flat_map(|map| map.values());
    let soon = |until: &i64| *until < now() + HOUR / 2;
    let last = last.filter_map(|kept| kept.until).filter(soon).max();
    while last.is_some_and(|last| now() <= last) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let moment = Moment(now(), now());
    let lasting = |kept: &&Kept| kept.is_there(moment) == Some(true);
    let lasting = || maps.iter().flat_map(|map| map.values().filter(lasting));
    // Each of those that expire is also in the index.
    let times = lasting().filter(|kept| kept.until.is_some()).count();
    let want = (lasting().count() + times) as u64;
    let begun = Instant::now();
    loop {
        std::thread::sleep(Duration::from_millis(1200));
        fixture.stop();
        fixture.check();
        let found = fixture.values();
        if found <= want || begun.elapsed() > Duration::from_secs(20) {
            assert!(found >= want, "{found} entries, {want} lasting ones");
            break;
        }
        fixture.start();
    }
    fixture.start();
    let pool = fixture.open();
    let both = Both::open(&pool, maps.clone());
    for (keyspace, map) in both.keyspaces.iter().zip(&both.maps) {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let (scan, moment) = at(|| keyspace.scan(all.0, all.1).unwrap());
        judge_scan(map, scan, all, moment);
    }
}

#[test]
fn random_changes_are_those_of_a_map_that_knows_the_time() {
    for seed in 1..4 {
        story(Fixture::new(256 << 20), seed, 250, seed % 2 == 0);
    }
}

#[test]
fn random_changes_by_a_proxy_are_those_of_a_map_that_knows_the_time() {
    for seed in 5..6 {
        story(Fixture::served(256 << 20), seed, 250, false);
    }
}
