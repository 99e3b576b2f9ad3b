//! A program is simulated that touches pages of a small address space: what is mapped ahead of it.
//!
//! Invariant: the simulated memory maps an aligned block for each fault, as the kernel does.

use super::*;
extern crate std;
use std::cell::RefCell;
use std::vec;
use std::vec::Vec;

const PAGE: usize = 4096;
const BASE: usize = 1 << 40;

struct Pages(RefCell<Vec<bool>>);

impl Pages {
    fn new(len: usize) -> Pages {
        Pages(RefCell::new(vec![false; len / PAGE]))
    }

    fn map(&self, addr: usize, len: usize) {
        let from = (addr - BASE) / PAGE;
        self.0.borrow_mut()[from..from + len / PAGE].fill(true);
    }

    /// The program touches a page; whether that faulted.
    fn touch(&self, addr: usize) -> bool {
        let faults = !self.is_mapped(addr);
        if faults {
            let block = down(addr, BLOCK);
            let end = BASE + self.0.borrow().len() * PAGE;
            self.map(block.max(BASE), (block + BLOCK).min(end) - block.max(BASE));
        }
        faults
    }

    fn end(&self) -> usize {
        BASE + self.0.borrow().len() * PAGE
    }
}

impl Memory for Pages {
    fn is_mapped(&self, addr: usize) -> bool {
        self.0.borrow()[(addr - BASE) / PAGE]
    }

    fn first_absent(&self, from: usize, end: usize) -> usize {
        let mut at = from;
        while at < end && self.is_mapped(at) {
            at = up(at + 1, BLOCK);
        }
        at.min(end)
    }

    fn first_mapped(&self, from: usize, end: usize) -> usize {
        (from..end)
            .step_by(PAGE)
            .find(|at| self.is_mapped(*at))
            .unwrap_or(end)
    }
}

/// Turns until the next pause or the end; the bytes that were mapped.
fn run(stream: &mut Stream, pages: &Pages) -> (usize, Turn) {
    let mut mapped = 0;
    loop {
        match stream.turn(pages) {
            Turn::Map { addr, len } => {
                assert!(
                    addr >= stream.start() && addr + len <= stream.end(),
                    "outside"
                );
                assert!(len > 0 && len <= CHUNK);
                pages.map(addr, len);
                mapped += len;
            }
            other => return (mapped, other),
        }
    }
}

fn touch_all(pages: &Pages, from: usize, to: usize) -> usize {
    (from..to)
        .step_by(PAGE)
        .filter(|at| pages.touch(*at))
        .count()
}

#[test]
fn nothing_is_mapped_before_the_program_reads_in_order() {
    let pages = Pages::new(64 << 20);
    let mut stream = Stream::new(BASE, pages.end(), Expect::Unknown);
    assert_eq!(run(&mut stream, &pages), (0, Turn::Wait { us: 20 }));
    pages.touch(BASE);
    pages.touch(BASE + (30 << 20));
    assert_eq!(run(&mut stream, &pages), (0, Turn::Wait { us: 40 }));
    touch_all(&pages, BASE, BASE + IN_ORDER);
    let (mapped, turn) = run(&mut stream, &pages);
    assert_eq!(
        mapped,
        WINDOW_MIN - BLOCK,
        "a window with a hole in its middle"
    );
    assert_eq!(turn, Turn::Wait { us: 20 });
}

#[test]
fn the_first_window_lies_beyond_the_program_and_in_another_table() {
    let pages = Pages::new(64 << 20);
    let mut stream = Stream::new(BASE, pages.end(), Expect::Unknown);
    touch_all(&pages, BASE, BASE + (3 << 20));
    let Turn::Map { addr, .. } = stream.turn(&pages) else {
        panic!("it reads in order");
    };
    assert_eq!(addr, BASE + (6 << 20));
}

#[test]
fn windows_double_up_to_the_largest_while_the_program_comes() {
    let pages = Pages::new(1 << 30);
    let mut stream = Stream::new(BASE, pages.end(), Expect::Unknown);
    touch_all(&pages, BASE, BASE + IN_ORDER);
    let mut at = BASE + IN_ORDER;
    let (mut windows, mut turn) = (Vec::new(), Turn::Wait { us: 0 });
    while turn != Turn::End && windows.len() < 20 {
        let (mapped, next) = run(&mut stream, &pages);
        (turn, at) = (next, at);
        windows.push(mapped);
        if let State::Ahead {
            trip: Some(trip), ..
        } = stream.state
        {
            touch_all(&pages, at, trip + PAGE);
            at = trip + PAGE;
        }
    }
    assert_eq!(windows[0] + BLOCK, 256 << 10);
    assert_eq!(windows[1] + BLOCK, 512 << 10);
    assert_eq!(windows[8] + BLOCK, 64 << 20);
    assert_eq!(windows[9] + BLOCK, 64 << 20);
    assert!(stream.reached >= 9);
}

#[test]
fn a_program_that_overtakes_is_leapt_over() {
    let pages = Pages::new(256 << 20);
    let mut stream = Stream::new(BASE, pages.end(), Expect::Sequential);
    let first = stream.turn(&pages);
    assert_eq!(
        first,
        Turn::Map {
            addr: BASE + CHUNK,
            len: CHUNK
        }
    );
    // It maps twenty megabytes itself while the first chunk is being mapped.
    touch_all(&pages, BASE, BASE + (20 << 20));
    let Turn::Map { addr, .. } = stream.turn(&pages) else {
        panic!("there is more to map");
    };
    assert_eq!(addr, BASE + (22 << 20));
}

#[test]
fn who_reads_at_random_has_nothing_mapped_and_is_left_alone() {
    let pages = Pages::new(512 << 20);
    let mut stream = Stream::new(BASE, pages.end(), Expect::Unknown);
    let (mut seed, mut waited, mut turns) = (1u64, 0, 0);
    loop {
        for _ in 0..20 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let page = (seed >> 33) as usize % (512 << 8);
            pages.touch(BASE + page * PAGE);
        }
        let (mapped, turn) = run(&mut stream, &pages);
        assert_eq!(mapped, 0);
        match turn {
            Turn::Wait { us } => waited += us,
            _ => break,
        }
        turns += 1;
        assert!(turns < 40, "it is watched for ever");
    }
    assert!((80_000..300_000).contains(&waited), "{waited}");
}

#[test]
fn a_window_that_is_not_reached_halves_and_then_ends() {
    let pages = Pages::new(512 << 20);
    let mut stream = Stream::new(BASE, pages.end(), Expect::Sequential);
    let (first, _) = run(&mut stream, &pages);
    assert_eq!(first, WINDOW_MAX - BLOCK);
    let mut turns = 0;
    while run(&mut stream, &pages).1 != Turn::End {
        turns += 1;
        assert!(turns < 100, "it never ends");
    }
    assert_eq!(stream.window, WINDOW_MAX / 2);
    // Behind the window it would have gone on, with half of it.
    let mut again = Stream::new(BASE, pages.end(), Expect::Sequential);
    run(&mut again, &Pages::new(512 << 20));
    assert_eq!(again.missed(BASE + (65 << 20)), None);
    touch_all(&pages, BASE + (65 << 20), BASE + (66 << 20));
    assert_eq!(run(&mut again, &pages).0, WINDOW_MAX / 2 - BLOCK);
}

#[test]
fn a_slow_program_is_waited_for_as_long_as_it_takes() {
    let pages = Pages::new(512 << 20);
    let mut stream = Stream::new(BASE, pages.end(), Expect::Sequential);
    for _ in 0..2 {
        run(&mut stream, &pages);
        let State::Ahead {
            trip: Some(trip), ..
        } = stream.state
        else {
            panic!("a window is open");
        };
        // Each window takes it seven long pauses.
        for _ in 0..7 {
            stream.pause_us = PAUSE_MAX_US;
            assert!(matches!(run(&mut stream, &pages).1, Turn::Wait { .. }));
        }
        pages.touch(trip);
    }
    run(&mut stream, &pages);
    stream.pause_us = PAUSE_MAX_US;
    for _ in 0..20 {
        assert!(matches!(run(&mut stream, &pages).1, Turn::Wait { .. }));
    }
}

#[test]
fn the_whole_is_mapped_without_holes_if_that_was_asked_for() {
    let pages = Pages::new((10 << 20) + 3 * PAGE);
    let start = BASE + PAGE;
    let mut stream = Stream::new(start, pages.end(), Expect::Whole);
    assert_eq!(run(&mut stream, &pages), ((10 << 20) + 2 * PAGE, Turn::End));
    let absent = pages.0.borrow().iter().filter(|mapped| !**mapped).count();
    assert_eq!(absent, 1);
}

#[test]
fn what_is_gone_is_named_no_more() {
    let end = BASE + (64 << 20);
    let stream = Stream::new(BASE, end, Expect::Sequential);
    let parts = |from, to| {
        let parts = stream.without(BASE + from, BASE + to);
        parts.map(|part| part.map(|part| (part.start() - BASE, part.end() - BASE)))
    };
    assert_eq!(parts(0, 64 << 20), [None, None]);
    assert_eq!(parts(0, PAGE), [None, Some((PAGE, 64 << 20))]);
    assert_eq!(parts(63 << 20, 65 << 20), [Some((0, 63 << 20)), None]);
    let middle = [Some((0, 1 << 20)), Some((2 << 20, 64 << 20))];
    assert_eq!(parts(1 << 20, 2 << 20), middle);
    let pages = Pages::new(64 << 20);
    let [_, behind] = stream.without(BASE, BASE + (40 << 20));
    let mut behind = behind.expect("there is a rest");
    assert!(matches!(run(&mut behind, &pages), (0, Turn::Wait { .. })));
}

#[test]
fn what_is_not_in_memory_is_asked_for_again_later() {
    let pages = Pages::new(64 << 20);
    let mut stream = Stream::new(BASE, pages.end(), Expect::Whole);
    let Turn::Map { addr, .. } = stream.turn(&pages) else {
        panic!("all of it is wanted");
    };
    assert_eq!(stream.refused(addr), Turn::Wait { us: 20 });
    assert!(matches!(stream.turn(&pages), Turn::Map { addr: again, .. } if again == addr));
    let mut waits = 0;
    while stream.refused(addr) != Turn::End {
        waits += 1;
        assert!(waits < 40, "it never ends");
    }
}
