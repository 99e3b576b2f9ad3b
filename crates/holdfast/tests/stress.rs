//! Threads that change and read a few keys of two keyspaces all the time: what they see must be
//! what one after the other could have done.

mod fixture;

use fixture::{Fixture, Rng};
use holdfast::{Durability::*, Keyspace, Pool};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Each pair of keys is changed by one thread, always both in one batch.
const PAIRS: usize = 3;
const TIME: Duration = Duration::from_secs(4);

/// What a pair is about. `told`: the last number that was committed; `begun`: that is being.
#[derive(Default)]
struct Pair {
    begun: AtomicU64,
    told: AtomicU64,
}

fn keys(pair: usize) -> [Vec<u8>; 2] {
    ["left", "right"].map(|side| format!("{side}-{pair}").into_bytes())
}

/// A number in a value of any length.
fn value(number: u64, rng: &mut Rng) -> Vec<u8> {
    let len = [8, 100, 1800, 5000][rng.roll(4) as usize];
    let mut value = vec![number as u8; len];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

/// The number in a value that is whole.
fn number(value: Option<Vec<u8>>) -> u64 {
    let Some(value) = value else { return 0 };
    let number = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert!(value[8..].iter().all(|b| *b == number as u8), "a mix");
    number
}

/// A thread with the same handles, or with a pool of its own.
struct Hands {
    pool: Pool,
    keyspaces: [Keyspace; 2],
}

impl Hands {
    fn new(pool: Pool) -> Hands {
        let keyspaces = ["one", "two"].map(|name| pool.keyspace_or_create(name).unwrap());
        Hands { pool, keyspaces }
    }

    fn change(&self, index: usize, pair: &Pair, rng: &mut Rng) {
        let next = pair.told.load(SeqCst) + 1;
        pair.begun.store(next, SeqCst);
        let mut batch = self.pool.batch();
        for (keyspace, key) in self.keyspaces.iter().zip(keys(index)) {
            batch.put(keyspace, &key, &value(next, rng)).unwrap();
        }
        // Some wait for the trees.
        match rng.roll(60) {
            0 => batch.erase_range(&self.keyspaces[0], b"x", None).unwrap(),
            1 => (0..9).for_each(|_| batch.erase(&self.keyspaces[1], b"none").unwrap()),
            _ => {}
        }
        let durability = [Durable, Ordered, Volatile][rng.roll(3) as usize];
        batch.commit(durability).unwrap();
        pair.told.store(next, SeqCst);
    }

    /// One key, then the other: the second is not older than the first, and neither is older than
    /// what was told before, or newer than what was begun after.
    fn look(&self, index: usize, pair: &Pair, rng: &mut Rng) {
        let first = rng.roll(2) as usize;
        let told = pair.told.load(SeqCst);
        let get = |side: usize| number(self.keyspaces[side].get(&keys(index)[side]).unwrap());
        let (a, b) = (get(first), get(1 - first));
        let begun = pair.begun.load(SeqCst);
        assert!(told <= a && a <= b && b <= begun, "{told} {a} {b} {begun}");
    }

    /// All of a view is of one moment.
    fn view(&self, pairs: &[Pair]) {
        let told: Vec<u64> = pairs.iter().map(|pair| pair.told.load(SeqCst)).collect();
        let view = self.pool.read().unwrap();
        let begun: Vec<u64> = pairs.iter().map(|pair| pair.begun.load(SeqCst)).collect();
        let both = ["one", "two"].map(|name| view.keyspace(name).unwrap());
        for index in 0..PAIRS {
            let keys = keys(index);
            let [a, b] = [0, 1].map(|side| number(both[side].get(&keys[side]).unwrap()));
            assert!(a == b && told[index] <= a && a <= begun[index], "{a} {b}");
        }
        let scanned = both[1]
            .prefix(b"right")
            .unwrap()
            .map(|entry| entry.unwrap().1);
        let scanned: Vec<u64> = scanned.map(|value| number(Some(value))).collect();
        let got = (0..PAIRS).map(|i| number(both[1].get(&keys(i)[1]).unwrap()));
        assert_eq!(scanned, got.filter(|n| *n > 0).collect::<Vec<_>>());
    }
}

/// Runs all threads until the time is over; how many changes and looks there were.
fn storm(fixture: &Fixture, own_pools: bool) -> (u64, u64) {
    let pairs: [Pair; PAIRS] = Default::default();
    let (over, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    let shared = fixture.open();
    let hands = || match own_pools {
        true => Hands::new(fixture.open()),
        false => Hands::new(shared.clone()),
    };
    // What is there is not from the last storm.
    for keyspace in hands().keyspaces {
        keyspace.erase_range(b"", None, Ordered).unwrap();
    }
    std::thread::scope(|scope| {
        for (index, pair) in pairs.iter().enumerate() {
            let (hands, over) = (hands(), &over);
            scope.spawn(move || {
                let mut rng = Rng(index as u64 + 1);
                while !over.load(SeqCst) {
                    hands.change(index, pair, &mut rng);
                }
            });
        }
        for seed in 0..2 {
            let (hands, over, pairs, looks) = (hands(), &over, &pairs, &looks);
            scope.spawn(move || {
                let mut rng = Rng(seed + 100);
                while !over.load(SeqCst) {
                    let index = rng.roll(PAIRS as u64) as usize;
                    hands.look(index, &pairs[index], &mut rng);
                    looks.fetch_add(1, SeqCst);
                    if rng.roll(100) == 0 {
                        hands.view(pairs);
                    }
                }
            });
        }
        let begun = Instant::now();
        while begun.elapsed() < TIME {
            std::thread::sleep(Duration::from_millis(20));
        }
        over.store(true, SeqCst);
    });
    let changes = pairs.iter().map(|pair| pair.told.load(SeqCst)).sum();
    (changes, looks.load(SeqCst))
}

#[test]
fn threads_see_one_order() {
    // A view is given up once a quarter of this is kept for it, which takes a second then, also
    // where its thread waits for a processor.
    for made in [Fixture::new, Fixture::served] {
        let fixture = made(1 << 30);
        for own_pools in [false, true] {
            let (changes, looks) = storm(&fixture, own_pools);
            assert!(changes > 100 && looks > 100, "{changes} {looks}");
        }
    }
}
