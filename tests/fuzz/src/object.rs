//! ELF files that a program maps to execute them: a small one of which some bytes are others, or
//! anything.
//!
//! What must hold: reading it ends without a panic, which would end the program; and each call
//! that is found to be patched is there.

use crate::input::Input;

const PAGE: usize = 4096;
/// Where the parts of the small object are.
const NOTE: usize = 0x200;
const FRAME_HDR: usize = 0x240;
const FRAMES: usize = 0x300;
const TEXT: usize = 0x400;
/// Two functions with a call each: `mov eax, 2; syscall; ret`.
const FUNCTION: [u8; 16] = [
    0xb8, 2, 0, 0, 0, 0x0f, 0x05, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
];

pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let file = match input.u8() {
        0 => input.rest().to_vec(),
        _ => changed(&mut input),
    };
    let done = holdfast_fuzz_objects::read(&file);
    assert!(done.is_ok(), "{done:?}");
}

/// The small object with other bytes in some places.
fn changed(input: &mut Input<'_>) -> Vec<u8> {
    let mut file = object(base(input));
    while !input.is_empty() {
        let at = match input.u8() {
            at @ 0..224 => at.into(),
            _ => usize::from(input.u16()) % PAGE,
        };
        let (value, wide) = (input.number().to_le_bytes(), input.u8() & 1 == 0);
        let len = (if wide { 8 } else { 4 }).min(PAGE - at);
        file[at..at + len].copy_from_slice(&value[..len]);
    }
    file
}

/// Where the object begins in its own addresses: low, near the end of 32 bits, or of 64.
fn base(input: &mut Input<'_>) -> u64 {
    let pages = u64::from(input.u8());
    match pages & 3 {
        0 => 0,
        1 => pages * PAGE as u64,
        2 => (1 << 32) - (pages >> 2) * PAGE as u64,
        _ => 0u64.wrapping_sub(((pages >> 2) + 1) * PAGE as u64),
    }
}

/// A shared object with a build-id, a table of functions and two functions.
fn object(base: u64) -> Vec<u8> {
    let mut file = vec![0; PAGE];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &[3, 0, 62, 0, 1]);
    put(32, &64u64.to_le_bytes());
    put(52, &[64, 0, 56, 0, 3, 0]);
    let segments = [
        (1u32, 0, PAGE - 1),
        (4, NOTE, 32),
        (0x6474_e550, FRAME_HDR, 28),
    ];
    for (n, (kind, place, len)) in segments.into_iter().enumerate() {
        let at = 64 + 56 * n;
        put(at, &kind.to_le_bytes());
        put(at + 4, &5u32.to_le_bytes());
        put(at + 8, &(place as u64).to_le_bytes());
        put(at + 16, &(base + place as u64).to_le_bytes());
        put(at + 32, &(len as u64).to_le_bytes());
    }
    put(
        NOTE,
        &[4, 0, 0, 0, 16, 0, 0, 0, 3, 0, 0, 0, b'G', b'N', b'U', 0],
    );
    put(FRAME_HDR, &[1, 0x1b, 0x03, 0x3b, 0, 0, 0, 0, 2, 0, 0, 0]);
    for n in 0..2 {
        let (function, frame) = (TEXT + 16 * n, FRAMES + 32 + 32 * n);
        let from_hdr = |at: usize| ((at - FRAME_HDR) as u32).to_le_bytes();
        put(FRAME_HDR + 12 + 8 * n, &from_hdr(function));
        put(FRAME_HDR + 16 + 8 * n, &from_hdr(frame));
        put(frame + 4, &((frame + 4 - FRAMES) as u32).to_le_bytes());
        put(frame + 8, &((function - frame - 8) as u32).to_le_bytes());
        put(frame + 12, &16u32.to_le_bytes());
        put(function, &FUNCTION);
    }
    // The CIE, with the augmentation "zR".
    put(FRAMES + 9, b"zR");
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else what is changed would be looked at no further than its header.
    #[test]
    fn the_small_object_has_two_calls() {
        assert_eq!(holdfast_fuzz_objects::read(&object(0)), Ok(2));
    }
}
