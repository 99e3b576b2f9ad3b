//! Sorting by a number that decides almost every comparison.
//!
//! Invariant: the result is that of sorting by the number and, for equal numbers, by `order`,
//! however the numbers are distributed; only the time depends on it.

use alloc::vec::Vec;
use core::cmp::Ordering;

/// Bits of one pass, and of both.
const BITS: u32 = 11;
const DIGITS: usize = 1 << BITS;
const BOTH: u32 = 2 * BITS;
/// Shorter lists are not worth the passes.
const SHORT: usize = 256;

/// Sorts `list` by `number` and then `order`. `spare` is room that is kept for the next time.
pub(super) fn sort<T: Copy>(
    list: &mut Vec<T>,
    spare: &mut Vec<T>,
    number: impl Fn(&T) -> u128,
    order: impl Fn(&T, &T) -> Ordering,
) {
    let compare = |a: &T, b: &T| number(a).cmp(&number(b)).then_with(|| order(a, b));
    if list.is_sorted_by(|a, b| compare(a, b).is_le()) {
        return;
    }
    if list.len() < SHORT {
        list.sort_unstable_by(compare);
        return;
    }
    let first = number(&list[0]);
    let differ = list.iter().fold(0, |all, one| all | (number(one) ^ first));
    let shift = (128 - differ.leading_zeros()).saturating_sub(BOTH);
    let digits = |one: &T| (number(one) >> shift) as usize % (DIGITS * DIGITS);
    pass(list, spare, |one| digits(one) % DIGITS);
    pass(spare, list, |one| digits(one) / DIGITS);
    for same in list.chunk_by_mut(|a, b| digits(a) == digits(b)) {
        if same.len() > 1 {
            same.sort_unstable_by(compare);
        }
    }
}

/// Makes `to` what `from` is, in the order of `digit`.
fn pass<T: Copy>(from: &[T], to: &mut Vec<T>, digit: impl Fn(&T) -> usize) {
    let mut places = [0; DIGITS];
    from.iter().for_each(|one| places[digit(one)] += 1);
    let mut next = 0;
    for place in &mut places {
        next += core::mem::replace(place, next);
    }
    to.clear();
    to.extend_from_slice(from);
    for one in from {
        let place = &mut places[digit(one)];
        to[*place] = *one;
        *place += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(numbers: impl Iterator<Item = u128>) {
        let mut list: Vec<(u128, u32)> =
            numbers.zip((0..).map(|i: u32| i.reverse_bits())).collect();
        let mut wanted = list.clone();
        wanted.sort();
        sort(
            &mut list,
            &mut Vec::new(),
            |one| one.0,
            |a, b| a.1.cmp(&b.1),
        );
        assert_eq!(list, wanted);
    }

    #[test]
    fn every_distribution_is_sorted() {
        let mix = |i: u128| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        for len in [0, 1, 2, 255, 256, 5000] {
            check((0..len).map(mix));
            check((0..len).rev());
            check((0..len).map(|i| i % 3));
            check((0..len).map(|i| mix(i) >> 100 | 7 << 90));
            check((0..len).map(|i| if i % 7 == 0 { mix(i) } else { mix(i) >> 110 }));
            check((0..len).map(|_| u128::MAX));
            check((0..len).map(|i| u128::MAX - (i & 1)));
        }
    }
}
