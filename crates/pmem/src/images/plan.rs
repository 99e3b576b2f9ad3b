//! Which combinations of kept and lost pieces to try at one point.
//!
//! What always holds here:
//! - Every combination is within the choices, so it is a legal image.
//! - If there are few enough, each is given exactly once; otherwise kinds are tried in a fixed
//!   order: nothing, all, program-order prefixes, one piece present, one absent, pairs, then random
//!   ones.

use super::Options;
use super::state::{Choice, stir};
use alloc::vec::Vec;

enum Kind {
    Exhaustive,
    Sampled,
}

pub(crate) struct Plan {
    choices: Vec<Choice>,
    kind: Kind,
    next: u64,
    total: u64,
    /// (choice, pieces kept after `low`) for every piece that may be lost.
    steps: Vec<(usize, usize)>,
    seqs: Vec<u64>,
    counts: [u64; 6],
    rng: u64,
}

impl Plan {
    pub fn new(choices: Vec<Choice>, options: Options, point: u64) -> Plan {
        let product = choices.iter().try_fold(1u64, |n, c| {
            n.checked_mul(c.seqs.len() as u64 + 1)
                .filter(|n| *n <= options.exhaustive)
        });
        let rng = stir(options.seed ^ stir(point));
        let empty = (Vec::new(), Vec::new());
        if let Some(total) = product {
            let (steps, seqs) = empty;
            let (kind, counts) = (Kind::Exhaustive, [0; 6]);
            return Plan {
                choices,
                kind,
                next: 0,
                total,
                steps,
                seqs,
                counts,
                rng,
            };
        }
        let mut steps = Vec::new();
        for (i, c) in choices.iter().enumerate() {
            steps.extend((1..=c.seqs.len()).map(|n| (i, n)));
        }
        let mut seqs: Vec<u64> = choices
            .iter()
            .flat_map(|c| c.seqs.iter().copied())
            .collect();
        seqs.sort_unstable();
        seqs.dedup();
        let cap = |n: usize| (n as u64).min(options.singles);
        let all_pairs = choices
            .len()
            .saturating_mul(choices.len().saturating_sub(1))
            / 2;
        let pairs = (all_pairs as u64).min(options.pairs);
        let (one, prefixes) = (cap(steps.len()), cap(seqs.len()));
        let counts = [2, prefixes, one, one, pairs, options.random];
        let total = counts.iter().sum();
        Plan {
            choices,
            kind: Kind::Sampled,
            next: 0,
            total,
            steps,
            seqs,
            counts,
            rng,
        }
    }

    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// Pieces to keep of each choice, counted from the start of its chain.
    pub fn next(&mut self) -> Option<Vec<usize>> {
        if self.next >= self.total {
            return None;
        }
        let n = self.next;
        self.next += 1;
        Some(match self.kind {
            Kind::Exhaustive => self.mixed_radix(n),
            Kind::Sampled => self.sample(n),
        })
    }

    fn mixed_radix(&self, mut n: u64) -> Vec<usize> {
        let digit = |c: &Choice| {
            let base = c.seqs.len() as u64 + 1;
            let d = n % base;
            n /= base;
            c.low + d as usize
        };
        self.choices.iter().map(digit).collect()
    }

    fn sample(&mut self, mut n: u64) -> Vec<usize> {
        let mut kind = 0;
        for count in self.counts {
            if n < count {
                break;
            }
            n -= count;
            kind += 1;
        }
        match kind {
            0 if n == 0 => self.lows(),
            0 => self.highs(),
            1 => self.prefix(n),
            2 => self.present(n),
            3 => self.absent(n),
            4 => self.pair(n),
            _ => self.random(),
        }
    }

    fn lows(&self) -> Vec<usize> {
        self.choices.iter().map(|c| c.low).collect()
    }

    fn highs(&self) -> Vec<usize> {
        self.choices.iter().map(Choice::high).collect()
    }

    /// The `n`-th of `len` things, or one at random where only `count` of them are tried.
    fn pick(&mut self, n: u64, len: usize, count: u64) -> usize {
        if len as u64 <= count {
            n as usize
        } else {
            self.below(len as u64) as usize
        }
    }

    /// Everything stored up to some moment.
    fn prefix(&mut self, n: u64) -> Vec<usize> {
        let i = self.pick(n, self.seqs.len(), self.counts[1]);
        let until = self.seqs.get(i).copied().unwrap_or(0);
        let kept = |c: &Choice| c.low + c.seqs.iter().filter(|s| **s <= until).count();
        self.choices.iter().map(kept).collect()
    }

    fn present(&mut self, n: u64) -> Vec<usize> {
        let i = self.pick(n, self.steps.len(), self.counts[2]);
        let mut versions = self.lows();
        if let Some(&(choice, kept)) = self.steps.get(i)
            && let Some(v) = versions.get_mut(choice)
        {
            *v += kept;
        }
        versions
    }

    fn absent(&mut self, n: u64) -> Vec<usize> {
        let i = self.pick(n, self.steps.len(), self.counts[3]);
        let mut versions = self.highs();
        if let Some(&(choice, lost)) = self.steps.get(i)
            && let Some(v) = versions.get_mut(choice)
        {
            *v -= lost;
        }
        versions
    }

    /// Two whole chains kept, all others lost.
    fn pair(&mut self, n: u64) -> Vec<usize> {
        let len = self.choices.len();
        let all = len * (len - 1) / 2;
        let mut rest = self.pick(n, all, self.counts[4]);
        let mut first = 0;
        while rest >= len - 1 - first {
            rest -= len - 1 - first;
            first += 1;
        }
        let mut versions = self.lows();
        for i in [first, first + 1 + rest] {
            if let (Some(v), Some(c)) = (versions.get_mut(i), self.choices.get(i)) {
                *v = c.high();
            }
        }
        versions
    }

    fn random(&mut self) -> Vec<usize> {
        // Some images keep most, some lose most, some are even.
        let bias = self.below(3);
        let mut versions = self.lows();
        for i in 0..versions.len() {
            let len = self.choices.get(i).map_or(0, |c| c.seqs.len());
            let draw = self.below(len as u64 + 1) as usize;
            let kept = match (bias, self.below(8)) {
                (1, 1..) => len,
                (2, 1..) => 0,
                _ => draw,
            };
            if let Some(v) = versions.get_mut(i) {
                *v += kept;
            }
        }
        versions
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(stir(self.rng)) * u128::from(n)) >> 64) as u64
    }
}
