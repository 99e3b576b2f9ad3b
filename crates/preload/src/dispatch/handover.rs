//! What a process that has given up the rights by which it has the pool mapped hands over to a
//! proxy: by execve(2), after which the next program is served, or at once (`leaving`).
//!
//! Invariants: what the process has open in the pool, its working directory and its mask go to the
//! proxy before the program begins, by a place in the session that nobody else can ask for; none of
//! our descriptors of the pool's segments outlives the exec. If the exec fails, everything is as it
//! was.

use super::args::Errno;
use super::outcome::{Stop, Why};
use super::pool::Pool;
use super::process::{Process, process as current};
use super::{names, nr};
use crate::sys;
use alloc::boxed::Box;
use core::time::Duration;
use holdfast_client::attach::{AttachError, Joined, join};
use holdfast_client::env::{SessionEnv, VALUE_MAX, VARIABLE};
use holdfast_client::{Client, Served, SlotId};
use holdfast_pmem::atomic::AtomicU32;
use holdfast_pmem::{futex, process};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::process::{Resource, getrlimit};

const EACCES: Errno = 13;
const F_SETFD: usize = 2;
const F_DUPFD_CLOEXEC: usize = 1030;
const FD_CLOEXEC: usize = 1;

/// What is undone unless the exec succeeds, or it is complete without one.
pub struct Handover {
    /// Our variable for the new program.
    pub env: Box<[u8]>,
    /// What was at the number that the connection has now, and those that exec closes.
    segment: Option<OwnedFd>,
    at: u32,
    closing: [u32; 4],
    /// The place that the proxy has taken.
    slot: SlotId,
    is_over: bool,
}

/// Before exec. `None`: the program may go on as this one did.
pub fn prepare(p: &Process) -> Result<Option<Handover>, Stop> {
    match &p.client {
        Pool::Mapped(client) if client.has_place() && !p.may_map_after_exec() => begin(p, client),
        _ => Ok(None),
    }
}

/// Before the mapping goes. `None`: the process may keep it.
pub(super) fn prepare_to_leave(p: &Process) -> Result<Option<Handover>, Stop> {
    match &p.client {
        Pool::Mapped(client) if client.has_place() => {
            match p.may_map() || client.shares_descriptors() {
                true => Ok(None),
                false => begin(p, client),
            }
        }
        _ => Ok(None),
    }
}

fn begin(p: &Process, client: &Client) -> Result<Option<Handover>, Stop> {
    let refused = || Stop::Refused(EACCES, Why::NotServed);
    let pool = p.special_dir.strip_suffix(b"/special").unwrap_or_default();
    let Some((connection, channel)) = connect(pool) else {
        return Err(refused());
    };
    let secret = secret().ok_or_else(refused)?;
    let slot = client.child_offer(secret)?;
    let served = Served::adopt(
        (channel.as_fd(), connection.as_fd()),
        &p.at,
        (slot.to_bits(), secret),
    );
    if served.is_err() {
        client.child_made(slot, -1);
        return Err(refused());
    }
    let (at, segment) = place(p, &connection)?;
    let [session, meta, journal] = p.segments;
    // Where the connection has its number, there is no fourth one.
    let data = if at == p.data_fd { session } else { p.data_fd };
    let mut handover = Handover {
        env: Box::default(),
        segment,
        at,
        closing: [session, meta, journal, data],
        slot,
        is_over: false,
    };
    handover.env = variable(p, pool, at).ok_or_else(refused)?;
    client.give_locks(slot, false)?;
    handover.close_at_exec(true);
    Ok(Some(handover))
}

/// Gives the connection the number of the data segment, and what was there another; or, below a
/// limit that the process cannot raise any more, one near that.
fn place(p: &Process, connection: &OwnedFd) -> Result<(u32, Option<OwnedFd>), Stop> {
    let full = |_| Stop::Errno(EMFILE);
    let number = p.data_fd;
    // SAFETY: duplicates a descriptor of ours; touches no memory.
    let copy = unsafe { sys::raw(nr::FCNTL, [number as usize, F_DUPFD_CLOEXEC, 0, 0, 0, 0]) };
    let segment = process::take(copy as i32).map_err(full)?;
    if process::put_at(connection.as_fd(), number as i32).is_ok() {
        return Ok((number, Some(segment)));
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or_default();
    let from = limit.saturating_sub(NEAR) as usize;
    let args = [connection.as_raw_fd() as usize, F_DUPFD, from, 0, 0, 0];
    // SAFETY: as above.
    let near = unsafe { sys::raw(nr::FCNTL, args) };
    u32::try_from(near).map_or(Err(Stop::Errno(EMFILE)), |near| Ok((near, None)))
}

const EMFILE: Errno = 24;
/// So many numbers below the limit a free one is looked for.
const NEAR: u64 = 16;
const F_DUPFD: usize = 0;
/// While a service is about to be there.
const ATTEMPTS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);
const EAGAIN: i32 = 11;

/// A connection to the proxy of the user that the process is now, and its channel.
fn connect(pool: &[u8]) -> Option<(OwnedFd, OwnedFd)> {
    for _ in 0..ATTEMPTS {
        match join(pool, None) {
            Ok(Joined::Served {
                connection,
                channel,
            }) => return Some((connection, channel)),
            Err(e) if matches!(e, AttachError::NoService) || e.errno() == EAGAIN => {
                futex::wait(&AtomicU32::new(0), 0, Some(PAUSE));
            }
            _ => return None,
        }
    }
    None
}

impl Handover {
    /// What our variable says.
    pub fn value(&self) -> &[u8] {
        let text = self.env.strip_suffix(b"\0").unwrap_or(&self.env);
        text.get(VARIABLE.len() + 1..).unwrap_or_default()
    }

    /// The connection keeps its number. With the descriptor of session memory the kernel takes the
    /// lock by which the process lives in the session.
    pub fn complete(mut self) {
        self.segment = None;
        self.is_over = true;
        for fd in self.closing {
            // SAFETY: closes descriptors of ours; touches no memory.
            unsafe { sys::raw(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
        }
    }

    fn close_at_exec(&self, closes: bool) {
        for fd in self.closing {
            let flags = if closes { FD_CLOEXEC } else { 0 };
            // SAFETY: flags of a descriptor of ours; touches no memory.
            unsafe { sys::raw(nr::FCNTL, [fd as usize, F_SETFD, flags, 0, 0, 0]) };
        }
    }
}

/// The exec failed, or did not come about. What the proxy has goes with its connection.
impl Drop for Handover {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.close_at_exec(false);
        if let Some(Pool::Mapped(client)) = current().map(|p| &p.client) {
            // What is lost then somebody else has damaged, and he is told.
            let _ = client.give_locks(self.slot, true);
        }
        // It was there before; or the number is new.
        match self.segment.take() {
            Some(segment) => {
                let _ = process::put_at(segment.as_fd(), self.at as i32);
            }
            None => {
                // SAFETY: closes a descriptor of ours; touches no memory.
                unsafe { sys::raw(nr::CLOSE, [self.at as usize, 0, 0, 0, 0, 0]) };
            }
        }
    }
}

/// A number that nobody can guess, and not 0; `None`: the kernel gives us none.
pub(super) fn secret() -> Option<u64> {
    let mut random = [0; 8];
    let at = random.as_mut_ptr() as usize;
    // SAFETY: the kernel fills eight bytes.
    let got = unsafe { sys::raw(nr::GETRANDOM, [at, random.len(), 0, 0, 0, 0]) };
    let whole = got == random.len() as isize;
    whole.then(|| u64::from_le_bytes(random).max(1))
}

/// `HOLDFAST_SESSION=...` of a program whose connection has this number, with NUL.
fn variable(p: &Process, pool: &[u8], number: u32) -> Option<Box<[u8]>> {
    let numbers = [number, p.base_fd, p.parking_fd].map(|fd| fd as i32);
    let env = SessionEnv {
        trace: p.trace,
        ..SessionEnv::of_served(numbers, p.map, pool, &p.at)
    };
    let mut value = alloc::vec![0; VALUE_MAX];
    let len = env.format(&mut value)?;
    Some(names::terminated(
        &[VARIABLE.as_bytes(), b"=", value.get(..len)?].concat(),
    ))
}
