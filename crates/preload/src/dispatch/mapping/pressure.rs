//! Whether the machine is short of memory, as the kernel tells of waits for it
//! (Documentation/accounting/psi.rst of Linux).
//!
//! Invariants: it is looked at once in a second at most; where the kernel does not tell, the
//! machine is never short.

use crate::sys::Fd;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const FILE: &[u8] = b"/proc/pressure/memory\0";
/// Milliseconds.
const EVERY: u64 = 1000;
/// Hundredths of the last ten seconds in which nobody worked, because all waited for memory: that a
/// neighbour waits, who has a limit of his own, does not count.
const SHORT: u32 = 5;

static LOOKED: AtomicU64 = AtomicU64::new(0);
static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// As of the last second; `now` in milliseconds.
pub fn is_short(now: u64) -> bool {
    if now.wrapping_sub(LOOKED.load(Relaxed)) >= EVERY {
        LOOKED.store(now, Relaxed);
        IS_SHORT.store(look(), Relaxed);
    }
    IS_SHORT.load(Relaxed)
}

#[cold]
fn look() -> bool {
    let mut text = [0; 160];
    let read = Fd::open(FILE, 0, 0).and_then(|file| file.read(&mut text));
    let text = read.and_then(|len| text.get(..len));
    text.and_then(waited).is_some_and(|waited| waited >= SHORT)
}

/// The whole hundredths of the second line: `full avg10=1.23 ...`.
fn waited(text: &[u8]) -> Option<u32> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let number = lines.find_map(|line| line.strip_prefix(b"full avg10="))?;
    let digits = number.iter().take_while(|byte| byte.is_ascii_digit());
    let value = digits.fold(0u32, |value, digit| {
        value
            .saturating_mul(10)
            .saturating_add(u32::from(digit - b'0'))
    });
    number.first()?.is_ascii_digit().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_read() {
        let lines = b"some avg10=99.00 avg60=0.18 avg300=0.23 total=5096140\n\
            full avg10=12.34 avg60=0.14 avg300=0.14 total=3173156\n";
        assert_eq!(waited(lines), Some(12));
        assert_eq!(waited(b"full avg10=0.99"), Some(0));
        assert_eq!(waited(b"some\nfull avg10=100.00"), Some(100));
        for bad in [
            &b""[..],
            b"full avg10=",
            b"full avg10=.1",
            b"some avg10=9.00",
        ] {
            assert_eq!(waited(bad), None);
        }
    }
}
