//! Our side of a channel: a thread for each line that is in use.
//!
//! Invariants: a request is copied out of the channel once; nothing that is stored there later
//! changes what is done. A thread ends when the channel is closed, whatever the other side does.

use crate::apart::Apart;
use crate::calls;
use crate::maps::Maps;
use crate::member::Member;
use crate::threads;
use holdfast_client::served::wire::*;
use holdfast_pmem::atomic::AtomicU64;
use holdfast_pmem::atomic::Ordering::*;
use holdfast_pmem::{SharedMem, futex};
use rustix::fd::OwnedFd;
use std::cell::RefCell;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A thread that sleeps looks so often whether its channel is closed.
const LOOK: Duration = Duration::from_secs(1);

/// The channel of one memory.
pub struct Channel {
    pub memory: Arc<SharedMem>,
    /// The process that it was made for.
    owner: u32,
    /// Who asks here: that process, and children in its memory, which may live longer there.
    family: Mutex<Vec<Arc<Member>>>,
    started: [AtomicBool; LINES],
    closed: AtomicBool,
    /// Held by whoever does the untold.
    catches_up: Mutex<()>,
    /// What is mapped in this memory.
    pub maps: Arc<Maps>,
}

/// How often an item may be replaced while we begin with it.
const REPLACED_MAX: u32 = 1000;

/// The item in an entry, which is not replaced from now on.
fn begin(entry: &AtomicU64) -> Option<Item> {
    for _ in 0..REPLACED_MAX {
        let word = entry.load(SeqCst);
        let item = Item::decode(word)?;
        if entry
            .compare_exchange(word, BEING_DONE, SeqCst, Relaxed)
            .is_ok()
        {
            return Some(item);
        }
    }
    // Nobody does that but to harm us.
    None
}

/// It is the caller's turn.
fn give(line: &Line, answer: [u64; WORDS]) {
    for (to, word) in line.answer.iter().zip(answer) {
        to.store(word, Relaxed);
    }
    line.turn.store(ANSWERED, SeqCst);
}

/// How long a call may wait for a lock at a time.
const WAIT_MAX: Duration = Duration::from_millis(50);

thread_local! {
    /// The line whose call this thread makes, and since when.
    static LINE: RefCell<Option<(Arc<Channel>, usize, Instant)>> = const { RefCell::new(None) };
}

/// Whether the call that this thread makes is to end its wait: its caller has gone, got a signal,
/// or is to ask again.
fn must_end() -> bool {
    LINE.with_borrow(|line| {
        line.as_ref().is_some_and(|(channel, index, since)| {
            channel.is_cancelled(*index) || since.elapsed() > WAIT_MAX
        })
    })
}

static MUST_END: fn() -> bool = must_end;

impl Channel {
    /// A new one for `member`, and the descriptor to send. Of its lines the first is in use.
    pub fn for_program(member: &Arc<Member>) -> Option<(Arc<Channel>, OwnedFd)> {
        let (channel, fd) = Channel::new(member)?;
        if !channel.start(0) {
            channel.close();
            return None;
        }
        Some((channel, fd))
    }

    /// As `for_program`, with no line in use.
    pub fn new(member: &Arc<Member>) -> Option<(Arc<Channel>, OwnedFd)> {
        let (fd, memory) = SharedMem::create_memfd("holdfast-channel", CHANNEL_LEN).ok()?;
        let channel = Arc::new(Channel {
            memory: Arc::new(memory),
            owner: member.id,
            family: Mutex::new(vec![member.clone()]),
            started: [const { AtomicBool::new(false) }; LINES],
            closed: AtomicBool::new(false),
            catches_up: Mutex::default(),
            maps: Arc::default(),
        });
        member.enter(&channel.maps, &channel.memory);
        futex::set_must_end(&MUST_END);
        Some((channel, fd))
    }

    /// Whether nobody wants to know the end of the call on this line, or not before a signal was
    /// handled.
    pub fn is_cancelled(&self, index: usize) -> bool {
        let cancelled = |line: &Line| line.cancel.load(Acquire) != 0;
        self.closed.load(Acquire) || self.line(index).is_some_and(cancelled)
    }

    fn line(&self, index: usize) -> Option<&Line> {
        self.memory.at(line_at(index))
    }

    fn family(&self) -> MutexGuard<'_, Vec<Arc<Member>>> {
        self.family.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what the other side has done without us and left word of. A number may be in use for
    /// something else after the next call or program, so these begin after this, whichever line
    /// the call is on.
    pub fn catch_up(&self) {
        let Some(untold) = self.memory.at::<Untold>(UNTOLD_AT) else {
            return;
        };
        if untold.count.load(SeqCst) == 0 {
            return;
        }
        let held = self.catches_up.lock();
        let _held = held.unwrap_or_else(PoisonError::into_inner);
        for entry in &untold.entries {
            let Some(item) = begin(entry) else {
                continue;
            };
            if let Some(member) = self.member(0)
                && let Some(client) = member.place().as_ref()
            {
                // Its errors are those of a call that has returned.
                let _ = match item.what {
                    Done::Closed => member.unbind(client, item.fd).map(drop),
                    Done::At(offset) => member.seek(client, item.fd, offset),
                };
            }
            entry.store(0, SeqCst);
            if untold.count.fetch_sub(1, SeqCst) <= 1 {
                return;
            }
        }
    }

    /// A child that runs in the same memory asks here, too.
    pub fn adopt(&self, member: &Arc<Member>) {
        let mut family = self.family();
        family.retain(|member| !member.has_ended());
        member.enter(&self.maps, &self.memory);
        family.push(member.clone());
    }

    /// A process has ended, or has another memory now. With the last one the channel is closed.
    pub fn leave(&self, member: &Member) {
        if let Some(client) = member.place().as_ref() {
            member.leave_memory(client);
        }
        let mut family = self.family();
        family.retain(|kin| kin.id != member.id && !kin.has_ended());
        let was_last = family.is_empty();
        drop(family);
        if was_last {
            self.close();
        }
    }

    fn member(&self, id: u32) -> Option<Arc<Member>> {
        let id = if id == 0 { self.owner } else { id };
        let family = self.family();
        family.iter().find(|member| member.id == id).cloned()
    }

    /// Looks after a line from now on; false: there is none of that number, or no thread for it.
    pub fn start(self: &Arc<Channel>, index: usize) -> bool {
        let Some(started) = self.started.get(index) else {
            return false;
        };
        if started.swap(true, SeqCst) {
            return true;
        }
        let channel = self.clone();
        threads::run(move || {
            LINE.set(Some((channel.clone(), index, Instant::now())));
            channel.serve(index);
            LINE.set(None);
        })
    }

    /// Leaves the answer to RESUME in the line on which the program would ask for it.
    pub fn answer_ahead(self: &Arc<Channel>, member: &Arc<Member>) {
        let head = Head {
            op: Op::Resume as u32,
            ..Head::default()
        };
        let mut words = [0; WORDS];
        words[..HEAD].copy_from_slice(&head.encode());
        let answer = calls::answer(self, 0, member, &head, &words);
        if let Some(line) = self.line(0) {
            give(line, answer);
        }
    }

    /// Nobody asks here any more.
    pub fn close(&self) {
        self.closed.store(true, SeqCst);
        self.family().clear();
        // Who starts one from now on finds the channel closed.
        let is_started = |index: &usize| self.started[*index].load(SeqCst);
        let lines = (0..LINES).filter(is_started);
        for line in lines.filter_map(|index| self.line(index)) {
            line.proxy_sleeps.store(0, SeqCst);
            futex::wake(&line.turn, u32::MAX);
        }
    }

    fn serve(self: &Arc<Channel>, index: usize) {
        let Some(line) = self.line(index) else { return };
        let (patience, mut apart) = (Patience::default(), Apart::default());
        while self.wait(line, &patience) {
            let words = line.request.each_ref().map(|word| word.load(Relaxed));
            let head = Head::decode(&words);
            LINE.with_borrow_mut(|line| {
                if let Some((.., since)) = line {
                    *since = Instant::now();
                }
            });
            self.catch_up();
            let answer = match self.member(head.member) {
                Some(member) => calls::answer(self, index, &member, &head, &words),
                None => calls::nobody(),
            };
            give(line, answer);
            if line.caller_sleeps.load(SeqCst) != 0 {
                apart.note_sleep(line.caller_cpu.load(Relaxed));
                futex::wake(&line.turn, 1);
            }
        }
    }

    /// Until it is our turn; false when the channel is closed.
    fn wait(&self, line: &Line, patience: &Patience) -> bool {
        let is_closed = || self.closed.load(SeqCst);
        if patience.look(|| line.turn.load(Acquire) == ASKED) {
            return !is_closed();
        }
        line.proxy_sleeps.store(1, SeqCst);
        loop {
            let turn = line.turn.load(SeqCst);
            // Who closes something after this changes the turn.
            self.catch_up();
            if is_closed() {
                return false;
            }
            if turn == ASKED {
                line.proxy_sleeps.store(0, Relaxed);
                return true;
            }
            if turn == KNOCKED {
                let _ = line.turn.compare_exchange(KNOCKED, IDLE, SeqCst, Relaxed);
                continue;
            }
            futex::wait(&line.turn, turn, Some(LOOK));
        }
    }
}
