//! Keys and values that every peer gets.
//!
//! Invariants: key `i` sorts before key `i + 1`; what a key holds follows from its number and how
//! often it was written, so any value that a peer returns can be judged; nothing is computed
//! between two readings of the clock but the place of a value in a table of random bytes.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// The longest key.
pub const KEY_MAX: usize = 32;
/// Random bytes that values are taken from.
const NOISE: usize = 1 << 20;

/// Numbers that look random, the same in each run.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(mix(seed ^ 0x5851_F42D_4C95_7F2D))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A key of 16 to 32 bytes.
#[derive(Clone, Copy)]
pub struct Key {
    bytes: [u8; KEY_MAX],
    len: u8,
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// All keys and what they hold.
pub struct Data {
    pub keys: usize,
    pub value_len: usize,
    noise: Vec<u8>,
    /// How often each key was written; 0: not there.
    versions: Vec<AtomicU32>,
    /// How far apart keys are.
    step: u64,
}

impl Data {
    pub fn new(keys: usize, value_len: usize) -> Data {
        let mut random = Random::new(1);
        let noise = (0..(NOISE + value_len).div_ceil(8))
            .flat_map(|_| random.next().to_le_bytes())
            .collect();
        Data {
            keys,
            value_len,
            noise,
            versions: (0..keys).map(|_| AtomicU32::new(0)).collect(),
            step: (u64::MAX / keys.max(1) as u64).max(1),
        }
    }

    /// Key number `i`: sixteen digits that sort as the numbers do, then 0 to 16 letters.
    pub fn key(&self, i: usize) -> Key {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let noise = mix(i as u64 + 99);
        let place = self.step * i as u64 + noise % self.step;
        let mut key = Key {
            bytes: [0; KEY_MAX],
            len: (16 + (noise >> 40) % 17) as u8,
        };
        for (at, byte) in key.bytes.iter_mut().enumerate() {
            *byte = match at {
                0..16 => DIGITS[(place >> (60 - 4 * at)) as usize & 15],
                _ => b'a' + ((noise >> (at % 16)) & 15) as u8,
            };
        }
        key
    }

    /// What key `i` holds once it was written `version` times.
    pub fn value(&self, i: usize, version: u32) -> &[u8] {
        // An odd step: writes of one key take different places until all have been taken.
        let at = mix(i as u64 + 7).wrapping_add(u64::from(version) * 0x9E37_79B1);
        let at = at as usize % NOISE;
        &self.noise[at..at + self.value_len]
    }

    /// Which write of key `i` gave it this value.
    pub fn which(&self, i: usize, value: &[u8]) -> Option<u32> {
        (1..100_000).find(|version| self.value(i, *version) == value)
    }

    /// What key `i` holds now.
    pub fn now(&self, i: usize) -> &[u8] {
        self.value(i, self.version(i))
    }

    /// How often key `i` was written.
    pub fn version(&self, i: usize) -> u32 {
        self.versions[i].load(Relaxed)
    }

    /// Notes one more write of key `i`; its number.
    pub fn write(&self, i: usize) -> u32 {
        self.versions[i].fetch_add(1, Relaxed) + 1
    }

    /// All is to be written anew.
    pub fn forget(&self) {
        self.versions.iter().for_each(|v| v.store(0, Relaxed));
    }

    /// Bytes of all keys and values.
    pub fn payload(&self) -> u64 {
        let keys: usize = (0..self.keys).map(|i| self.key(i).as_ref().len()).sum();
        (keys + self.keys * self.value_len) as u64
    }

    /// All numbers of keys in random order.
    pub fn shuffled(&self, seed: u64) -> Vec<usize> {
        let mut random = Random::new(seed);
        let mut all: Vec<usize> = (0..self.keys).collect();
        for i in (1..all.len()).rev() {
            all.swap(i, random.below(i + 1));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_their_numbers_and_differ_in_length() {
        for keys in [1, 2, 1000] {
            let data = Data::new(keys, 100);
            let all: Vec<Key> = (0..keys).map(|i| data.key(i)).collect();
            assert!(all.windows(2).all(|w| w[0].as_ref() < w[1].as_ref()));
            assert!(all.iter().all(|k| (16..=32).contains(&k.as_ref().len())));
        }
        let data = Data::new(1000, 100);
        let lens: std::collections::BTreeSet<usize> =
            (0..1000).map(|i| data.key(i).as_ref().len()).collect();
        assert_eq!(lens.len(), 17);
    }

    #[test]
    fn values_tell_keys_and_versions_apart() {
        let data = Data::new(100, 50);
        for i in 0..100 {
            let places: std::collections::BTreeSet<_> =
                (1..2000).map(|v| data.value(i, v).as_ptr()).collect();
            assert_eq!(places.len(), 1999, "two writes of key {i} look alike");
        }
        assert_ne!(data.value(1, 1), data.value(2, 1));
        assert_ne!(data.value(1, 1), data.value(1, 2));
        assert_eq!((data.write(3), data.write(3)), (1, 2));
        assert_eq!(data.now(3), data.value(3, 2));
        assert_eq!(data.now(3).len(), 50);
        assert_eq!(data.which(3, data.now(3)), Some(2));
        assert_eq!(data.which(3, b""), None);
        let mut order = data.shuffled(1);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}
