//! Programs that the library cannot enter, recognized by their file (elf(5)).
//!
//! Invariants: the file is anybody's: no number in it is trusted; at most `HEADERS` program headers
//! and `NOTES` bytes of notes are read.

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const EM_X86_64: u16 = 62;
const HEADERS: u16 = 64;
const HEADER_SIZE: u64 = 56;
const NOTES: usize = 512;
/// Owner and type of the note in which Go keeps its build id.
const GO: (&[u8], u32) = (b"Go\0\0", 4);

/// Why the library cannot enter a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// No dynamic linker of this machine loads libraries into it.
    Static,
    /// It makes system calls without the C library, on stacks too small for ours.
    Go,
}

impl Closed {
    /// What it is, as the end of a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Closed::Static => "is not dynamically linked",
            Closed::Go => "is a Go program",
        }
    }
}

/// Recognizes the program whose file begins with `head`; `read_at` reads the file and returns how
/// many bytes it found. Whatever is not an ELF file is left to others.
pub fn closed(head: &[u8], mut read_at: impl FnMut(u64, &mut [u8]) -> usize) -> Option<Closed> {
    if head.len() < 64 || !head.starts_with(b"\x7fELF") {
        return None;
    }
    let mut read = |at: u64, out: &mut [u8]| match near(head, at, out.len()) {
        Some(bytes) => {
            out.copy_from_slice(bytes);
            bytes.len()
        }
        None => read_at(at, out),
    };
    let (start, count) = (u64_in(head, 32)?, u16_in(head, 56)?.min(HEADERS));
    let (mut dynamic, mut go) = (false, false);
    if head[4] == 2 && u16_in(head, 18)? == EM_X86_64 {
        for n in 0..u64::from(count) {
            let mut header = [0; HEADER_SIZE as usize];
            let at = start.saturating_add(n * HEADER_SIZE);
            if read(at, &mut header) < header.len() {
                break;
            }
            match u32_in(&header, 0)? {
                PT_INTERP => dynamic = true,
                PT_NOTE => go |= names_go(u64_in(&header, 8)?, u64_in(&header, 32)?, &mut read),
                _ => {}
            }
        }
    }
    match (dynamic, go) {
        (false, _) => Some(Closed::Static),
        (true, true) => Some(Closed::Go),
        (true, false) => None,
    }
}

/// Whether one of the notes at `at` is Go's.
fn names_go(at: u64, len: u64, read: &mut impl FnMut(u64, &mut [u8]) -> usize) -> bool {
    let mut buf = [0; NOTES];
    let wanted = usize::try_from(len).map_or(NOTES, |len| len.min(NOTES));
    let have = read(at, &mut buf[..wanted]);
    let mut notes = &buf[..have.min(wanted)];
    while let Some((owner, kind, rest)) = first_note(notes) {
        if (owner, kind) == GO {
            return true;
        }
        notes = rest;
    }
    false
}

/// Owner and type of the first note, and the notes behind it.
fn first_note(notes: &[u8]) -> Option<(&[u8], u32, &[u8])> {
    let padded = |at| Some((u32_in(notes, at)? as usize).checked_add(3)? & !3);
    let desc_at = padded(0)?.checked_add(12)?;
    let end = desc_at.checked_add(padded(4)?)?;
    let rest = notes.get(end..).unwrap_or(&[]);
    Some((notes.get(12..desc_at)?, u32_in(notes, 8)?, rest))
}

fn near(head: &[u8], at: u64, len: usize) -> Option<&[u8]> {
    let at = usize::try_from(at).ok()?;
    head.get(at..at.checked_add(len)?)
}

fn u16_in(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_in(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_in(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    /// An ELF file with these program headers, and with these notes at its end.
    fn file(kinds: &[u32], notes: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        file[18..20].copy_from_slice(&EM_X86_64.to_le_bytes());
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[56..58].copy_from_slice(&(kinds.len() as u16).to_le_bytes());
        let end = 64 + kinds.len() as u64 * HEADER_SIZE;
        for kind in kinds {
            let mut header = [0; HEADER_SIZE as usize];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&end.to_le_bytes());
            header[32..40].copy_from_slice(&(notes.len() as u64).to_le_bytes());
            file.extend(header);
        }
        file.extend(notes);
        file
    }

    fn note(owner: &[u8], kind: u32, desc: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        note.extend((owner.len() as u32).to_le_bytes());
        note.extend((desc.len() as u32).to_le_bytes());
        note.extend(kind.to_le_bytes());
        for part in [owner, desc] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    /// What `closed` says with `head` bytes of the file at hand.
    fn look(file: &[u8], head: usize) -> Option<Closed> {
        closed(&file[..head.min(file.len())], |at, out| {
            let tail = &file[(at as usize).min(file.len())..];
            let n = out.len().min(tail.len());
            out[..n].copy_from_slice(&tail[..n]);
            n
        })
    }

    #[test]
    fn programs_are_told_apart() {
        let gnu = [note(b"GNU\0", 3, &[7; 20]), note(b"GNU\0", 1, &[0; 16])].concat();
        let go = [&gnu[..], &note(b"Go\0\0", 4, &[b'x'; 83])].concat();
        for head in [64, 256, 4096] {
            assert_eq!(look(&file(&[6, PT_INTERP, PT_NOTE], &gnu), head), None);
            assert_eq!(look(&file(&[6, PT_NOTE], &gnu), head), Some(Closed::Static));
            assert_eq!(
                look(&file(&[PT_INTERP, PT_NOTE], &go), head),
                Some(Closed::Go)
            );
        }
        assert_eq!(look(b"#!/bin/sh\n", 64), None);
    }

    #[test]
    fn no_file_makes_it_fail() {
        let go = note(b"Go\0\0", 4, b"id");
        let whole = file(&[PT_INTERP, PT_NOTE], &go);
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = whole.clone();
                bad[at] = value;
                let _ = look(&bad, 256);
            }
            let _ = look(&whole[..at], 256);
        }
    }
}
