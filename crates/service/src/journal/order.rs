//! Putting the records of all lanes into the order of their sequence numbers.
//!
//! Invariants: sequence numbers come from one counter, so a number below one that was seen is a
//! record elsewhere, one in flight, or void. A record is passed on only when every lower number was
//! passed on or declared void; one that appears after that is passed on as late.

use crate::journal::lane::Entry;
use std::collections::VecDeque;

/// More numbers than this are never in flight at once: a record further ahead is nobody's, and
/// must not use the numbers up.
pub const FLIGHT_MAX: u64 = 1 << 20;

/// What comes next.
#[derive(Debug)]
pub enum Next {
    /// The next record in order.
    Record(Entry),
    /// A record whose number was declared void.
    Late(Entry),
    /// Numbers from `first` up to below `bound` are missing; `bound` is there.
    Missing { first: u64, bound: u64 },
    /// Nothing was read that was not handed out.
    Nothing,
}

/// Records that were read and not handed out yet.
#[derive(Debug)]
pub struct Order {
    queues: Vec<VecDeque<Entry>>,
    next: u64,
    waiting: usize,
}

impl Order {
    /// Hands out from `next` on.
    pub fn new(lanes: usize, next: u64) -> Order {
        Order {
            queues: (0..lanes).map(|_| VecDeque::new()).collect(),
            next,
            waiting: 0,
        }
    }

    /// Takes a record in; those of one lane come in their order.
    pub fn push(&mut self, entry: Entry) {
        if let Some(queue) = self.queues.get_mut(entry.lane) {
            queue.push_back(entry);
            self.waiting += 1;
        }
    }

    /// Records taken in and not handed out.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Records of one lane taken in and not handed out.
    pub fn waiting_in(&self, lane: usize) -> usize {
        self.queues.get(lane).map_or(0, VecDeque::len)
    }

    /// Everything taken in and not handed out, lane by lane.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.queues.iter().flatten()
    }

    /// The lowest number that was neither handed out nor declared void.
    pub fn next_seq(&self) -> u64 {
        self.next
    }

    /// Hands out what comes next.
    pub fn next(&mut self) -> Next {
        let first = (0..self.queues.len())
            .filter_map(|lane| Some((self.queues[lane].front()?.seq, lane)))
            .min();
        let Some((seq, lane)) = first else {
            return Next::Nothing;
        };
        if seq > self.next {
            return Next::Missing {
                first: self.next,
                bound: seq,
            };
        }
        let Some(entry) = self.queues[lane].pop_front() else {
            return Next::Nothing;
        };
        self.waiting -= 1;
        if seq < self.next {
            return Next::Late(entry);
        }
        self.next = seq + 1;
        Next::Record(entry)
    }

    /// What `next` would hand out.
    pub fn peek(&self) -> Option<&Entry> {
        let fronts = self.queues.iter().filter_map(VecDeque::front);
        fronts
            .min_by_key(|entry| entry.seq)
            .filter(|e| e.seq <= self.next)
    }

    /// Hands out the first record of a lane, which is known by a look: all that came before it has
    /// been handed out.
    pub fn take(&mut self, lane: usize) -> Option<Entry> {
        let entry = self.queues.get_mut(lane)?.pop_front()?;
        self.waiting -= 1;
        self.next = self.next.max(entry.seq + 1);
        Some(entry)
    }

    /// Puts a record that was just handed out back in front.
    pub fn put_back(&mut self, entry: Entry) {
        if let Some(queue) = self.queues.get_mut(entry.lane) {
            self.next = self.next.min(entry.seq);
            queue.push_front(entry);
            self.waiting += 1;
        }
    }

    /// Nobody will ever write the numbers below `bound` that are missing.
    pub fn declare_void(&mut self, bound: u64) {
        self.next = self.next.max(bound);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(lane: usize, seq: u64) -> Entry {
        Entry {
            seq,
            lane,
            end: 0,
            bytes: Vec::new(),
        }
    }

    #[test]
    fn order_is_by_number_across_lanes() {
        let mut order = Order::new(3, 1);
        for (lane, seq) in [(0, 1), (0, 4), (1, 2), (1, 6), (2, 3), (2, 5)] {
            order.push(entry(lane, seq));
        }
        for want in 1..=6 {
            assert!(matches!(order.next(), Next::Record(e) if e.seq == want));
        }
        assert!(matches!(order.next(), Next::Nothing));
        assert_eq!((order.waiting(), order.next_seq()), (0, 7));
    }

    #[test]
    fn a_gap_holds_back_until_it_is_void_and_then_comes_late() {
        let mut order = Order::new(2, 5);
        order.push(entry(0, 7));
        assert!(matches!(order.next(), Next::Missing { first: 5, bound: 7 }));
        order.push(entry(1, 6));
        assert!(matches!(order.next(), Next::Missing { first: 5, bound: 6 }));
        order.declare_void(6);
        assert!(matches!(order.next(), Next::Record(e) if e.seq == 6));
        assert!(matches!(order.next(), Next::Record(e) if e.seq == 7));
        order.push(entry(1, 5));
        assert!(matches!(order.next(), Next::Late(e) if e.seq == 5));
        assert!(matches!(order.next(), Next::Nothing));
    }

    #[test]
    fn what_was_put_back_comes_again() {
        let mut order = Order::new(1, 1);
        order.push(entry(0, 1));
        let Next::Record(first) = order.next() else {
            panic!("a record is there")
        };
        order.put_back(first);
        assert!(matches!(order.next(), Next::Record(e) if e.seq == 1));
    }
}
