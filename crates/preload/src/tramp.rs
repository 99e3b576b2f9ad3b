//! Writes trampolines, which run in place of a patched window.
//!
//! Invariants: a trampoline uses no stack and changes no flag; up to its jump into the library it
//! changes only rcx and r11. It executes the window's own instructions unchanged, apart from
//! displacements that depend on the place. `Slot::original` is total over its bytes.
use crate::calls::{self, ALWAYS, BY_FD, NATIVE, OF_MAPPINGS};
use crate::entry;
use crate::table::{Fix, Site, WINDOW_MAX};

/// No trampoline is longer.
pub const LEN_MAX: usize = 128;

/// What is remembered of a trampoline. Places are relative to the block that it is in, so that it
/// holds wherever the block and the text lie, as long as their distance stays.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Slot {
    /// The window in the program.
    pub window: i32,
    /// First byte of the trampoline.
    pub start: u32,
    pub window_len: u8,
    /// Offset of the `syscall` in the window.
    pub syscall: u8,
    /// Offset of the native `syscall` in the trampoline.
    pub native: u8,
    pub len: u8,
    /// The number, 0xffff when it varies.
    pub nr: u16,
    pub pad: u16,
}

impl Slot {
    /// Where the program would be, unpatched, with the instruction pointer at `ip`; the block is at
    /// `block`.
    pub fn original(&self, block: usize, ip: usize) -> usize {
        let window = self.window_in(block);
        let at = ip.wrapping_sub(block).wrapping_sub(self.start as usize);
        let (before, native) = (usize::from(self.syscall), usize::from(self.native));
        let behind = window + before + 2;
        let then = native.wrapping_sub(entry::THEN_BACK as usize);
        if at < before {
            return window + at;
        }
        if at >= native + 2 {
            let end = window + usize::from(self.window_len);
            return (behind + (at - native - 2)).min(end);
        }
        match self.reports() && at > then && at < native {
            true => behind,
            false => window + before,
        }
    }

    /// Address of the window.
    pub fn window_in(&self, block: usize) -> usize {
        block.wrapping_add_signed(self.window as isize)
    }

    /// Whether the trampoline has the variant that reports after the call.
    pub fn reports(&self) -> bool {
        self.nr == u16::MAX || calls::splits(self.nr.into())
    }
}

/// Bytes under construction; overflow is remembered, not suffered.
struct Code<'a> {
    out: &'a mut [u8],
    len: usize,
    /// Address of the first byte.
    base: usize,
    bad: bool,
}

impl Code<'_> {
    fn push(&mut self, bytes: &[u8]) {
        match self.out.get_mut(self.len..self.len + bytes.len()) {
            Some(room) => room.copy_from_slice(bytes),
            None => self.bad = true,
        }
        self.len += bytes.len();
    }

    /// A 4-byte displacement from the end of itself to `target`.
    fn push_rel32(&mut self, target: usize) {
        let end = self.base + self.len + 4;
        match i32::try_from(target.wrapping_sub(end) as isize) {
            Ok(rel) => self.push(&rel.to_le_bytes()),
            Err(_) => self.bad = true,
        }
    }

    /// A short forward jump if rcx is 0; returns where its displacement is.
    fn jump_if_zero(&mut self) -> usize {
        self.push(&[0xe3, 0]);
        self.len - 1
    }

    /// Makes the short jump at `from` arrive here.
    fn land(&mut self, from: usize) {
        match u8::try_from(self.len - from - 1) {
            Ok(rel) if rel < 0x80 && from < self.out.len() => self.out[from] = rel,
            _ => self.bad = true,
        }
    }

    /// rcx = the entry that `load` gets, at the word that `movzx` puts into ecx, of the table whose
    /// address is at `gate`.
    fn look_up(&mut self, movzx: [u8; 3], gate: usize, load: [u8; 5]) {
        self.push(&movzx);
        self.push(&[0x4c, 0x8b, 0x1d]); // mov r11, [rip + rel32]
        self.push_rel32(gate);
        self.push(&load);
    }

    /// Copies window bytes `from..to` and corrects their displacements.
    fn relocate(&mut self, site: &Site, window: usize, from: usize, to: usize) {
        let start = self.len;
        self.push(&site.window[from..to]);
        let inside = |f: &&Fix| usize::from(f.at) >= from && usize::from(f.end) <= to;
        for fix in site.fixes.iter().flatten().filter(inside) {
            let (at, end) = (usize::from(fix.at) - from, usize::from(fix.end));
            let place = start + at;
            let Some(field) = self.out.get_mut(place..place + 4) else {
                return;
            };
            let old = i32::from_le_bytes([field[0], field[1], field[2], field[3]]);
            let target = (window + end).wrapping_add_signed(old as isize);
            let new_end = self.base + start + end - from;
            match i32::try_from(target.wrapping_sub(new_end) as isize) {
                Ok(rel) => field.copy_from_slice(&rel.to_le_bytes()),
                Err(_) => self.bad = true,
            }
        }
    }
}

/// What a block begins with: where the library is in this process, as words.
pub const GATES: usize = 32;
const GATE_ENTRY: usize = 0;
const GATE_POST: usize = 8;
const GATE_NUMBERS: usize = 16;
const GATE_DESCRIPTORS: usize = 24;

/// The gates of this process.
pub fn gates() -> [u8; GATES] {
    let words = [
        (GATE_ENTRY, entry::entry_address()),
        (GATE_POST, entry::post_address()),
        (GATE_NUMBERS, calls::number_table()),
        (GATE_DESCRIPTORS, calls::fd_table()),
    ];
    let mut out = [0; GATES];
    for (at, word) in words {
        out[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    out
}

/// Writes the trampoline for `site` to `out`, which will run at `base`, in the block that begins
/// with its gates at `block`. `None` when something is out of reach.
pub fn write(site: &Site, bias: usize, out: &mut [u8], base: usize, block: usize) -> Option<Slot> {
    let mut code = Code {
        out,
        len: 0,
        base,
        bad: false,
    };
    let window = bias.wrapping_add(site.addr as usize);
    let at = usize::from(site.syscall);
    let len = site.copied_len().min(WINDOW_MAX);
    let class = site.nr.map(|nr| calls::class_of(nr.into()));
    code.relocate(site, window, 0, at);
    let to_native = checks(&mut code, class, block);
    let mut slot = Slot {
        window: i32::try_from(window.wrapping_sub(block) as isize).ok()?,
        start: u32::try_from(base - block).ok()?,
        window_len: site.len,
        syscall: site.syscall,
        native: 0,
        len: 0,
        nr: site.nr.unwrap_or(u16::MAX),
        pad: 0,
    };
    // lea rcx, [native]; jmp [entry]
    let then_len = if slot.reports() {
        entry::THEN_BACK as usize
    } else {
        0
    };
    let native = code.len + 13 + then_len;
    code.push(&[0x48, 0x8d, 0x0d]);
    code.push_rel32(base + native);
    code.push(&[0xff, 0x25]);
    code.push_rel32(block + GATE_ENTRY);
    if slot.reports() {
        // syscall; lea rcx, [behind]; jmp [post]
        code.push(&[0x0f, 0x05, 0x48, 0x8d, 0x0d]);
        code.push_rel32(base + native + 2);
        code.push(&[0xff, 0x25]);
        code.push_rel32(block + GATE_POST);
    }
    for from in to_native.into_iter().flatten() {
        code.land(from);
    }
    code.bad |= code.len != native;
    code.push(&[0x0f, 0x05]);
    code.relocate(site, window, at + 2, len);
    code.push(&[0xe9]);
    code.push_rel32(match site.resume {
        Some(offset) => window.wrapping_add_signed(offset as isize),
        None => window + len,
    });
    slot.native = u8::try_from(native).ok()?;
    slot.len = u8::try_from(code.len).ok()?;
    (!code.bad && code.len <= LEN_MAX).then_some(slot)
}

/// The tests before the library is entered; returns the jumps that go to the native call.
fn checks(code: &mut Code, class: Option<u8>, block: usize) -> [Option<usize>; 2] {
    const MOVZX_ECX_DI: [u8; 3] = [0x0f, 0xb7, 0xcf];
    const MOVZX_ECX_AX: [u8; 3] = [0x0f, 0xb7, 0xc8];
    const BYTE_AT_R11_RCX: [u8; 5] = [0x41, 0x0f, 0xb6, 0x0c, 0x0b];
    const WORD_AT_R11_2RCX: [u8; 5] = [0x41, 0x0f, 0xb7, 0x0c, 0x4b];
    let by_fd = |code: &mut Code| {
        code.look_up(MOVZX_ECX_DI, block + GATE_DESCRIPTORS, WORD_AT_R11_2RCX);
        code.jump_if_zero()
    };
    match class {
        Some(ALWAYS) => [None, None],
        Some(BY_FD) => [Some(by_fd(code)), None],
        Some(OF_MAPPINGS) => {
            code.look_up(MOVZX_ECX_AX, block + GATE_NUMBERS, BYTE_AT_R11_RCX);
            [Some(code.jump_if_zero()), None]
        }
        Some(NATIVE) | Some(_) => [None, None],
        None => {
            code.look_up(MOVZX_ECX_AX, block + GATE_NUMBERS, BYTE_AT_R11_RCX);
            let native = code.jump_if_zero();
            code.push(&[0x8d, 0x49, ALWAYS.wrapping_neg()]); // lea ecx, [rcx - ALWAYS]
            let always = code.jump_if_zero();
            let unmarked = by_fd(code);
            code.land(always);
            [Some(native), Some(unmarked)]
        }
    }
}
