//! The library without a pool: its own tests run programs with it.
//!
//! Invariant: it is in force only under `HOLDFAST_SESSION=selftest` (everything passes through the
//! hook) or `selftest-serve` (calls that cannot block are made from within the hook).

use crate::calls;
use crate::env::Env;
use crate::hook::{Call, ENTERED, HANDLED, Verdict};
use crate::sys::{self, Fd, nr};
use core::sync::atomic::{AtomicU8, Ordering};

const O_APPEND: usize = 0o2000;
const OFF: u8 = 0;
/// Every call of interest enters the hook and is passed on.
const PASS: u8 = 1;
/// Those that cannot block are made from within the hook.
const SERVE: u8 = 2;
static MODE: AtomicU8 = AtomicU8::new(OFF);
/// The file that `HOLDFAST_SELFTEST` names, with its final NUL. A copy: programs write over
/// their environment.
static REPORT: [AtomicU8; 256] = [const { AtomicU8::new(0) }; 256];

/// True if the environment asks for a self-test.
pub fn start(env: &Env) -> bool {
    let mode = match env.get(b"HOLDFAST_SESSION") {
        Some(b"selftest") => PASS,
        Some(b"selftest-serve") => SERVE,
        _ => OFF,
    };
    MODE.store(mode, Ordering::Relaxed);
    let path = env.get(b"HOLDFAST_SELFTEST").unwrap_or(b"");
    for (to, byte) in REPORT.iter().zip(path).take(REPORT.len() - 1) {
        to.store(*byte, Ordering::Relaxed);
    }
    if mode != OFF {
        (0..1024).for_each(calls::mark_fd);
    }
    mode != OFF
}

pub fn handle(call: &Call) -> Verdict {
    let mode = MODE.load(Ordering::Relaxed);
    if mode == OFF {
        return Verdict::Native;
    }
    if matches!(call.nr, nr::EXIT_GROUP | nr::EXECVE) {
        report();
    }
    if mode != SERVE || !never_blocks(call.nr) {
        return Verdict::Native;
    }
    // SAFETY: the program's own call, with its arguments, made on its behalf.
    let result = unsafe {
        match call.nr {
            nr::EXECVE => crate::signals::exec(call.nr, &call.args),
            _ => sys::raw(call.nr, call.args),
        }
    };
    Verdict::Handled(result)
}

/// stat, fstat, lseek, close, access, getcwd, chdir, readlink, newfstatat, unlink, getdents64
fn never_blocks(number: usize) -> bool {
    matches!(number, 3..=6 | 8 | 21 | 59 | 72 | 79..=84 | 87 | 89 | 90 | 95 | 217 | 262 | 267 | 269)
}

/// The self-test's account: one line per program image.
fn report() -> Option<()> {
    let path: [u8; 256] = core::array::from_fn(|i| REPORT[i].load(Ordering::Relaxed));
    let len = path.iter().position(|b| *b == 0)?;
    let fd = Fd::open(&path[..=len], sys::O_WRONLY | O_APPEND, 0)?;
    let mut line = [b' '; 32];
    let entered = ENTERED.load(Ordering::Relaxed);
    let handled = HANDLED.load(Ordering::Relaxed);
    decimal(&mut line[..15], entered);
    decimal(&mut line[16..31], handled);
    line[31] = b'\n';
    fd.write_all(&line)
}

fn decimal(out: &mut [u8], mut value: u64) {
    for digit in out.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}
