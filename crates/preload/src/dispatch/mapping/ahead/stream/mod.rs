//! What to map ahead of a program that reads through one mapping.
//!
//! Invariants: nothing here makes a call; what is mapped of the memory is asked of [`Memory`]. All
//! addresses that a stream names lie in its range. Before the program is known to read in order, or
//! has said so, nothing is mapped; then at most one window further than it has come. A window that
//! the program does not reach halves, and after `FRUITLESS_MAX` looks at the longest pause the
//! stream ends.

/// What one fault of the program maps, aligned: the kernel's fault_around_bytes.
pub const BLOCK: usize = 64 << 10;
/// Mapped by one call: short enough that whoever waits for the memory's lock waits 0.2 ms.
pub const CHUNK: usize = 2 << 20;
/// What one table of pages maps: two tasks that fill the same one wait for each other.
const TABLE: usize = 2 << 20;
const WINDOW_MIN: usize = 256 << 10;
const WINDOW_MAX: usize = 64 << 20;
/// So much is read in order before more is expected to be.
const IN_ORDER: usize = 4 * BLOCK;
const PAUSE_MIN_US: u32 = 20;
const PAUSE_MAX_US: u32 = 10_000;
const FRUITLESS_MAX: u32 = 8;

/// What is mapped of the addresses.
pub trait Memory {
    /// Whether the page at this address is mapped.
    fn is_mapped(&self, addr: usize) -> bool;
    /// The first block from `from` on whose first page is not mapped, or `end`.
    fn first_absent(&self, from: usize, end: usize) -> usize;
    /// The first page from `from` on that is mapped, or `end`.
    fn first_mapped(&self, from: usize, end: usize) -> usize;
}

/// How the program was told to read, or that nothing is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// It is watched first.
    Unknown,
    /// In order.
    Sequential,
    /// All of it soon.
    Whole,
}

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Map these addresses.
    Map { addr: usize, len: usize },
    /// Nothing for so long.
    Wait { us: u32 },
    /// Nothing more.
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The program has been seen at `at`, if anywhere, and what it has read from there is short.
    Watching { at: Option<usize> },
    /// A window is being mapped from `next` to `limit`, but for the block at `trip`: when that is
    /// mapped the program has come so far.
    Ahead {
        next: usize,
        limit: usize,
        trip: Option<usize>,
    },
}

/// One mapping, or what is left of it.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    start: usize,
    end: usize,
    state: State,
    window: usize,
    pause_us: u32,
    fruitless: u32,
    /// For how long the program has not been seen, and how long it took for the last window.
    waited_us: u32,
    usual_us: u32,
    /// Windows begun and windows reached that were not counted yet.
    windows: u32,
    reached: u32,
}

fn down(addr: usize, unit: usize) -> usize {
    addr & !(unit - 1)
}

fn up(addr: usize, unit: usize) -> usize {
    down(addr.saturating_add(unit - 1), unit)
}

impl Stream {
    /// For the addresses from `start` to `end`; the ends are pages.
    pub fn new(start: usize, end: usize, expect: Expect) -> Stream {
        let mut stream = Stream {
            start,
            end,
            state: State::Watching { at: None },
            window: WINDOW_MIN,
            pause_us: PAUSE_MIN_US,
            fruitless: 0,
            waited_us: 0,
            usual_us: 0,
            windows: 0,
            reached: 0,
        };
        match expect {
            Expect::Unknown => {}
            Expect::Sequential => {
                stream.window = WINDOW_MAX;
                stream.begin(up(start + CHUNK, BLOCK));
            }
            Expect::Whole => {
                stream.window = end - start;
                stream.begin(start);
            }
        }
        stream
    }

    /// Windows that were begun and that the program reached, since this was last asked.
    pub fn take_counts(&mut self) -> (u32, u32) {
        let counts = (self.windows, self.reached);
        (self.windows, self.reached) = (0, 0);
        counts
    }

    pub fn start(&self) -> usize {
        self.start
    }

    pub fn end(&self) -> usize {
        self.end
    }

    /// What is left once `from..to` is gone: before it and behind it. What a window would have been
    /// is forgotten if it does not lie wholly in one of them.
    pub fn without(&self, from: usize, to: usize) -> [Option<Stream>; 2] {
        [
            (self.start, self.end.min(from)),
            (self.start.max(to), self.end),
        ]
        .map(|(start, end)| (start < end).then(|| self.part(start, end)))
    }

    fn part(&self, start: usize, end: usize) -> Stream {
        let keeps = match self.state {
            State::Watching { at } => at.is_none_or(|at| (start..end).contains(&at)),
            State::Ahead { next, limit, .. } => start <= next && limit <= end,
        };
        match keeps {
            true => Stream {
                start,
                end,
                ..*self
            },
            false => Stream::new(start, end, Expect::Unknown),
        }
    }

    /// A window from `next` on.
    fn begin(&mut self, next: usize) {
        let limit = next.saturating_add(self.window).min(self.end);
        let middle = down(next + self.window / 2, BLOCK);
        let trip = (limit < self.end && middle > next).then_some(middle);
        self.state = State::Ahead { next, limit, trip };
        self.pause_us = PAUSE_MIN_US;
        self.fruitless = 0;
        self.usual_us = self.waited_us;
        self.waited_us = 0;
        self.windows += u32::from(next < self.end);
    }

    fn grow(&mut self) {
        self.reached += 1;
        self.window = (self.window * 2).min(WINDOW_MAX).max(self.window);
    }

    /// A window beyond a program that has come to `front`. It maps what lies between itself, and
    /// is overtaken less often.
    fn leap(&mut self, front: usize) {
        self.begin(up(front.saturating_add(CHUNK), TABLE));
    }

    /// What to do now.
    pub fn turn(&mut self, memory: &impl Memory) -> Turn {
        loop {
            let turn = match self.state {
                State::Watching { at } => self.watch(at, memory),
                State::Ahead { next, .. } if next >= self.end => Some(Turn::End),
                State::Ahead { next, limit, trip } if next < limit => {
                    self.advance(next, limit, trip, memory)
                }
                State::Ahead { limit, trip, .. } => self.await_program(limit, trip, memory),
            };
            if let Some(turn) = turn {
                return turn;
            }
        }
    }

    fn watch(&mut self, at: Option<usize>, memory: &impl Memory) -> Option<Turn> {
        let at = match at {
            Some(at) => at,
            None => match memory.first_mapped(self.start, self.end) {
                first if first >= self.end => return Some(self.rest()),
                first => down(first, BLOCK).max(self.start),
            },
        };
        self.state = State::Watching { at: Some(at) };
        let front = memory.first_absent(at, self.end);
        if front >= self.end {
            return Some(Turn::End);
        }
        if front - at < IN_ORDER {
            return Some(self.rest());
        }
        self.leap(front);
        None
    }

    /// The next chunk of the window, unless the program is there already.
    fn advance(
        &mut self,
        next: usize,
        limit: usize,
        trip: Option<usize>,
        memory: &impl Memory,
    ) -> Option<Turn> {
        if trip == Some(next) {
            let next = next + BLOCK;
            self.state = State::Ahead { next, limit, trip };
            return None;
        }
        if memory.is_mapped(next) {
            self.grow();
            self.leap(memory.first_absent(next, self.end));
            return None;
        }
        let hole = trip.filter(|trip| *trip > next).unwrap_or(limit);
        let to = down(next + CHUNK, BLOCK).min(limit).min(hole).max(next + 1);
        self.state = State::Ahead {
            next: to,
            limit,
            trip,
        };
        Some(Turn::Map {
            addr: next,
            len: to - next,
        })
    }

    /// The window is mapped: the next one follows when the program has come to the middle.
    fn await_program(
        &mut self,
        limit: usize,
        trip: Option<usize>,
        memory: &impl Memory,
    ) -> Option<Turn> {
        if trip.is_none_or(|trip| memory.is_mapped(trip)) {
            self.grow();
            self.begin(limit);
            return None;
        }
        let turn = self.rest();
        if turn == Turn::End {
            return self.missed(limit);
        }
        Some(turn)
    }

    /// The program did not come: it may have gone past, but not by what is mapped.
    fn missed(&mut self, limit: usize) -> Option<Turn> {
        if self.window <= WINDOW_MIN {
            return Some(Turn::End);
        }
        self.window /= 2;
        self.fruitless = FRUITLESS_MAX / 2;
        self.state = State::Watching { at: Some(limit) };
        None
    }

    /// A pause, each time twice as long, until there were too many.
    fn rest(&mut self) -> Turn {
        let us = self.pause_us;
        if us == PAUSE_MAX_US {
            let is_late = self.waited_us / 4 > self.usual_us;
            if self.fruitless >= FRUITLESS_MAX && is_late {
                return Turn::End;
            }
            self.fruitless += 1;
        }
        self.waited_us = self.waited_us.saturating_add(us);
        self.pause_us = (us * 2).min(PAUSE_MAX_US);
        Turn::Wait { us }
    }

    /// Why nothing of what was asked for could be mapped: it is not in memory, or not any more. It
    /// is looked at again later.
    pub fn refused(&mut self, addr: usize) -> Turn {
        if let State::Ahead { limit, trip, .. } = self.state {
            self.state = State::Ahead {
                next: addr,
                limit,
                trip,
            };
        }
        self.rest()
    }
}

#[cfg(test)]
mod tests;
