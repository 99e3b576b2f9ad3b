//! What is durable and what is pending after a prefix of the log.
//!
//! What always holds here:
//! - A unit (line, word, page or sector) is its durable bytes plus pending pieces in order of time.
//!   Its content in an image is the durable bytes with the kept pieces laid over them in that
//!   order.
//! - Pieces are in chains, and only a prefix of a chain can be kept. Cached stores to a unit are
//!   one chain; stores around the cache are one chain for each 8-byte word.
//! - A durable piece is kept in every later image.
//! - A page or sector is one chain, and storing the bytes that are already there adds no piece to
//!   it: kept or lost, it leaves the same.

use super::Model;
use crate::LINE;
use crate::record::Event;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

/// A unit of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub region: u32,
    pub unit: u64,
}

/// Durable content of the units that differ, or may differ, from the base image.
pub(crate) type Overlay = BTreeMap<Key, Vec<u8>>;

/// The chain of cached stores; chain `1 + w` holds stores around the cache to word `w`.
const CACHED: usize = 0;

struct Piece {
    seq: u64,
    thread: u32,
    chain: usize,
    off: usize,
    data: Vec<u8>,
    durable: bool,
    /// Threads that started write-back after this store and have not fenced yet.
    flushed_by: Vec<u32>,
}

/// The pieces of one unit, oldest first.
struct Unit {
    durable: Vec<u8>,
    /// With all pieces.
    newest: Vec<u8>,
    pieces: Vec<Piece>,
}

/// A chain of which the pieces from `low` on may be lost.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub key: Key,
    pub chain: usize,
    /// Pieces of the chain that are kept in any case.
    pub low: usize,
    /// When the pieces after `low` were stored.
    pub seqs: Vec<u64>,
}

impl Choice {
    pub fn high(&self) -> usize {
        self.low + self.seqs.len()
    }
}

pub(crate) struct State<'a> {
    bases: &'a [&'a [u8]],
    model: Model,
    overlay: Arc<Overlay>,
    units: BTreeMap<Key, Unit>,
    /// Sum of the hashes of what the overlay changed.
    hash: u128,
    seq: u64,
}

impl<'a> State<'a> {
    pub fn new(bases: &'a [&'a [u8]], model: Model) -> State<'a> {
        let (overlay, units) = (Arc::default(), BTreeMap::new());
        State {
            bases,
            model,
            overlay,
            units,
            hash: 0,
            seq: 0,
        }
    }

    /// What is durable now. It is copied when it changes while somebody still holds it.
    pub fn overlay(&self) -> Arc<Overlay> {
        self.overlay.clone()
    }

    pub fn apply(&mut self, event: &Event) {
        self.seq += 1;
        match event {
            Event::Store {
                region,
                thread,
                off,
                data,
                nt,
            } if self.model != Model::Death => {
                self.store(*region, *thread, *off, data, *nt);
            }
            Event::Flush {
                region,
                thread,
                line,
            } if !self.model.by_sync() => {
                self.flush(*region, *thread, *line);
            }
            Event::Fence { thread } if !self.model.by_sync() => self.fence(*thread),
            Event::Sync {
                region, off, len, ..
            } if self.model.by_sync() => {
                self.sync(*region, *off, *len);
            }
            _ => {}
        }
    }

    /// Where every store is kept: the bytes `part` of one, at once.
    pub fn apply_part(&mut self, event: &Event, part: Range<usize>) {
        if let Event::Store {
            region,
            thread,
            off,
            data,
            ..
        } = event
        {
            let off = *off + part.start as u64;
            if let Some(data) = data.get(part) {
                self.store(*region, *thread, off, data, false);
            }
        }
    }

    fn store(&mut self, region: u32, thread: u32, off: u64, data: &[u8], nt: bool) {
        // Only the x86 model tells stores around the cache apart, word by word.
        let words = nt && self.model == Model::Lines;
        let step = self.model.atom() as u64;
        let unit_len = self.model.unit() as u64;
        let (mut off, mut rest) = (off, data);
        while !rest.is_empty() {
            let n = ((step - off % step) as usize).min(rest.len());
            let (now, later) = rest.split_at(n);
            let key = Key {
                region,
                unit: off / unit_len,
            };
            let at = (off % unit_len) as usize;
            off += n as u64;
            rest = later;
            if self.model.by_sync() && self.has(key, at, now) {
                continue;
            }
            let piece = Piece {
                seq: self.seq,
                thread,
                chain: if words { 1 + at / 8 } else { CACHED },
                off: at,
                data: now.to_vec(),
                durable: self.model == Model::Death,
                // Around the cache a fence alone is enough, in the word model too.
                flushed_by: if nt { [thread].into() } else { Vec::new() },
            };
            let unit = self.unit(key);
            lay(&mut unit.newest, &piece);
            unit.pieces.push(piece);
            if self.model == Model::Death {
                self.settle(key);
            }
        }
    }

    /// Whether these bytes are what was stored last.
    fn has(&self, key: Key, at: usize, bytes: &[u8]) -> bool {
        let newest = match self.units.get(&key) {
            Some(unit) => Some(&unit.newest),
            None => self.overlay.get(&key),
        };
        let range = at..at + bytes.len();
        if let Some(newest) = newest {
            return newest.get(range) == Some(bytes);
        }
        let len = self.model.unit();
        let start = key.unit as usize * len;
        let base = self.bases.get(key.region as usize);
        match base.and_then(|b| b.get(start + range.start..start + range.end)) {
            Some(there) => there == bytes,
            None => base_of(self.bases, key, len).get(range) == Some(bytes),
        }
    }

    fn flush(&mut self, region: u32, thread: u32, line: u64) {
        let unit = self.model.unit() as u64;
        let per_line = LINE as u64 / unit;
        let range = line * per_line..(line + 1) * per_line;
        let keys = Key {
            region,
            unit: range.start,
        }..Key {
            region,
            unit: range.end,
        };
        for (_, u) in self.units.range_mut(keys) {
            for p in u.pieces.iter_mut().filter(|p| p.chain == CACHED) {
                if !p.flushed_by.contains(&thread) {
                    p.flushed_by.push(thread);
                }
            }
        }
    }

    fn fence(&mut self, thread: u32) {
        let mut settled = Vec::new();
        for (key, u) in &mut self.units {
            let mut changed = false;
            for p in &mut u.pieces {
                let own = p.chain != CACHED && p.thread == thread;
                if own || (p.chain == CACHED && p.flushed_by.contains(&thread)) {
                    (p.durable, changed) = (true, true);
                }
            }
            if changed {
                settled.push(*key);
            }
        }
        settled.into_iter().for_each(|key| self.settle(key));
    }

    /// Pages that the range touches are durable, whole.
    fn sync(&mut self, region: u32, off: u64, len: u64) {
        let unit = self.model.unit() as u64;
        let page = crate::PAGE as u64;
        let (first, end) = (off / page * page, (off + len).next_multiple_of(page));
        let keys = Key {
            region,
            unit: first / unit,
        }..Key {
            region,
            unit: end / unit,
        };
        let mut settled = Vec::new();
        for (key, u) in self.units.range_mut(keys) {
            u.pieces.iter_mut().for_each(|p| p.durable = true);
            settled.push(*key);
        }
        settled.into_iter().for_each(|key| self.settle(key));
    }

    /// Makes what a durable piece implies durable, and folds the oldest durable pieces.
    fn settle(&mut self, key: Key) {
        let Some(u) = self.units.get_mut(&key) else {
            return;
        };
        let mut kept = [false; 9];
        // A durable piece of a chain makes the older ones of its chain durable.
        for p in u.pieces.iter_mut().rev() {
            if let Some(k) = kept.get_mut(p.chain) {
                *k |= p.durable;
                p.durable = *k;
            }
        }
        let n = u.pieces.iter().take_while(|p| p.durable).count();
        let before = hash_unit(key, &u.durable);
        for p in u.pieces.drain(..n) {
            lay(&mut u.durable, &p);
        }
        let content = u.durable.clone();
        let empty = u.pieces.is_empty();
        self.hash = self
            .hash
            .wrapping_add(hash_unit(key, &content))
            .wrapping_sub(before);
        Arc::make_mut(&mut self.overlay).insert(key, content);
        if empty {
            self.units.remove(&key);
        }
    }

    fn unit(&mut self, key: Key) -> &mut Unit {
        let len = self.model.unit();
        let (overlay, bases) = (&self.overlay, self.bases);
        self.units.entry(key).or_insert_with(|| {
            let durable = overlay
                .get(&key)
                .cloned()
                .unwrap_or_else(|| base_of(bases, key, len));
            Unit {
                newest: durable.clone(),
                durable,
                pieces: Vec::new(),
            }
        })
    }

    /// Everything that a power cut now could keep or lose.
    pub fn choices(&self) -> Vec<Choice> {
        let mut all = Vec::new();
        for (key, u) in &self.units {
            let mut chains: BTreeMap<usize, Choice> = BTreeMap::new();
            for p in &u.pieces {
                let c = chains.entry(p.chain).or_insert_with(|| Choice {
                    key: *key,
                    chain: p.chain,
                    low: 0,
                    seqs: Vec::new(),
                });
                match p.durable {
                    true => c.low += 1,
                    false => c.seqs.push(p.seq),
                }
            }
            all.extend(
                chains
                    .into_values()
                    .filter(|c| !c.seqs.is_empty() && u.matters(c.chain)),
            );
        }
        all
    }

    /// Content of all pending units when `versions` of the choices are kept, and the hash of
    /// the whole image.
    pub fn contents(&self, choices: &[Choice], versions: &[usize]) -> (Vec<(Key, Vec<u8>)>, u128) {
        let mut picks = choices.iter().zip(versions).peekable();
        let mut hash = self.hash;
        let mut contents = Vec::with_capacity(self.units.len());
        for (key, u) in &self.units {
            let mut keep = [usize::MAX; 9];
            while let Some((c, v)) = picks.next_if(|(c, _)| c.key == *key) {
                if let Some(k) = keep.get_mut(c.chain) {
                    *k = *v;
                }
            }
            let content = u.content(keep);
            hash = hash.wrapping_add(hash_unit(*key, &content));
            hash = hash.wrapping_sub(hash_unit(*key, &u.durable));
            contents.push((*key, content));
        }
        (contents, hash)
    }
}

impl Unit {
    /// The unit with the first `keep[chain]` pieces of each chain.
    fn content(&self, mut keep: [usize; 9]) -> Vec<u8> {
        let mut content = self.durable.clone();
        for p in &self.pieces {
            if let Some(k) = keep.get_mut(p.chain).filter(|k| **k > 0) {
                *k -= 1;
                lay(&mut content, p);
            }
        }
        content
    }

    /// False when keeping or losing the chain makes no difference: it writes what is there, and
    /// no other chain writes to the same bytes.
    fn matters(&self, chain: usize) -> bool {
        let mut own = self.pieces.iter().filter(|p| p.chain == chain);
        own.any(|p| {
            let same = self.durable.get(p.off..p.off + p.data.len()) == Some(p.data.as_slice());
            let apart = |q: &Piece| {
                q.chain == chain || q.off + q.data.len() <= p.off || p.off + p.data.len() <= q.off
            };
            !same || !self.pieces.iter().all(apart)
        })
    }
}

fn lay(content: &mut [u8], piece: &Piece) {
    if let Some(room) = content.get_mut(piece.off..piece.off + piece.data.len()) {
        room.copy_from_slice(&piece.data);
    }
}

/// The unit in the base image, zero past its end.
fn base_of(bases: &[&[u8]], key: Key, len: usize) -> Vec<u8> {
    let mut content = alloc::vec![0; len];
    let start = key.unit as usize * len;
    if let Some(from) = bases.get(key.region as usize).and_then(|b| b.get(start..)) {
        let n = from.len().min(len);
        content
            .iter_mut()
            .zip(from.iter().take(n))
            .for_each(|(c, b)| *c = *b);
    }
    content
}

/// 128 bits over a unit's place and content; sums of them identify an image.
fn hash_unit(key: Key, content: &[u8]) -> u128 {
    let mut h = mix(u128::from(key.region) << 64 | u128::from(key.unit), 0);
    for chunk in content.chunks(8) {
        let mut word = [0u8; 8];
        word.iter_mut().zip(chunk).for_each(|(w, b)| *w = *b);
        h = mix(h, u64::from_le_bytes(word));
    }
    h
}

/// Stirs 64 bits into a 128-bit hash. Not against an adversary.
pub(crate) fn mix(h: u128, word: u64) -> u128 {
    let (hi, lo) = ((h >> 64) as u64, h as u64);
    let a = stir(lo ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let b = stir(hi.rotate_left(23) ^ a.wrapping_add(word ^ 0xd6e8_feb8_6659_fd93));
    u128::from(b) << 64 | u128::from(a.wrapping_add(b.rotate_left(31)))
}

/// The finalizer of MurmurHash3.
pub(crate) fn stir(mut x: u64) -> u64 {
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}
