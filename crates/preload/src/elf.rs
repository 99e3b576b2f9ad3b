//! Just enough of ELF to find the text, the build-id and the function starts of an object.
//!
//! Invariant: every offset that is read from the object is first checked against its segments; a
//! malformed object yields `None` or fewer results, never a read outside of it.
use alloc::vec::Vec;
use core::ffi::CStr;

/// A loadable segment, in the object's own addresses.
#[derive(Clone, Copy, Default)]
pub struct Load {
    pub vaddr: u64,
    pub filesz: u64,
    pub memsz: u64,
    pub offset: u64,
    pub read: bool,
    pub exec: bool,
}

/// Where the bytes of an object are.
#[derive(Clone, Copy)]
enum Bytes<'a> {
    /// Mapped by the loader at `bias`: an address is `bias + vaddr`.
    Memory { bias: usize },
    /// The whole file.
    File(&'a [u8]),
}

pub struct Elf<'a> {
    bytes: Bytes<'a>,
    pub loads: Vec<Load>,
    notes: Vec<(u64, u64)>,
    interpreter: Option<(u64, u64)>,
    eh_frame_hdr: Option<u64>,
}

const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PAGE: usize = 4096;
const HEADER: usize = 64;
const PHENTSIZE: usize = 56;
const MAX_PHNUM: usize = 64;

pub fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(
        b.get(at..at.checked_add(2)?)?.try_into().ok()?,
    ))
}

pub fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(
        b.get(at..at.checked_add(4)?)?.try_into().ok()?,
    ))
}

pub fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(
        b.get(at..at.checked_add(8)?)?.try_into().ok()?,
    ))
}

/// The program headers of a 64-bit x86-64 executable or shared object.
fn program_headers(header: &[u8]) -> Option<(usize, usize)> {
    let ident = header.get(..6)?;
    let kind = u16_at(header, 16)?;
    let sane = ident == b"\x7fELF\x02\x01"
        && (kind == 2 || kind == 3)
        && u16_at(header, 18)? == 62
        && u16_at(header, 54)? as usize == PHENTSIZE;
    let count = u16_at(header, 56)? as usize;
    (sane && count <= MAX_PHNUM).then_some((u64_at(header, 32)? as usize, count))
}

impl<'a> Elf<'a> {
    pub fn from_file(file: &'a [u8]) -> Option<Elf<'a>> {
        let (at, count) = program_headers(file)?;
        let table = file.get(at..at.checked_add(count * PHENTSIZE)?)?;
        Some(Elf::parse(Bytes::File(file), table))
    }

    /// An object that the loader has mapped; `first` is its first mapping (file offset 0).
    ///
    /// # Safety
    /// `first` must stay mapped and unchanged, and so must the object's segments.
    pub unsafe fn from_memory(first: &'a [u8]) -> Option<Elf<'a>> {
        let (at, count) = program_headers(first.get(..HEADER)?)?;
        let table = first.get(at..at.checked_add(count * PHENTSIZE)?)?;
        let mut elf = Elf::parse(Bytes::Memory { bias: 0 }, table);
        let base = elf.loads.iter().find(|l| l.offset == 0)?.vaddr;
        elf.bytes = Bytes::Memory {
            bias: (first.as_ptr() as usize).wrapping_sub(base as usize),
        };
        Some(elf)
    }

    fn parse(bytes: Bytes<'a>, table: &[u8]) -> Elf<'a> {
        let mut elf = Elf {
            bytes,
            loads: Vec::new(),
            notes: Vec::new(),
            interpreter: None,
            eh_frame_hdr: None,
        };
        for entry in table.chunks_exact(PHENTSIZE) {
            elf.add_header(entry);
        }
        elf
    }

    fn add_header(&mut self, entry: &[u8]) -> Option<()> {
        let flags = u32_at(entry, 4)?;
        let (offset, vaddr) = (u64_at(entry, 8)?, u64_at(entry, 16)?);
        let filesz = u64_at(entry, 32)?;
        vaddr.checked_add(filesz.max(u64_at(entry, 40)?))?;
        match u32_at(entry, 0)? {
            PT_LOAD => self.loads.push(Load {
                vaddr,
                filesz,
                memsz: u64_at(entry, 40)?,
                offset,
                read: flags & 4 != 0,
                exec: flags & 1 != 0,
            }),
            PT_INTERP => self.interpreter = Some((vaddr, filesz)),
            PT_NOTE => self.notes.push((vaddr, filesz)),
            PT_GNU_EH_FRAME => self.eh_frame_hdr = Some(vaddr),
            _ => {}
        }
        Some(())
    }

    /// What to add to the object's own addresses; 0 for a file.
    pub fn bias(&self) -> usize {
        match self.bytes {
            Bytes::Memory { bias } => bias,
            Bytes::File(_) => 0,
        }
    }

    /// The bytes from `vaddr` to the end of their segment's file part.
    pub fn tail(&self, vaddr: u64) -> Option<&'a [u8]> {
        let inside = |l: &&Load| l.read && vaddr >= l.vaddr && vaddr < l.vaddr + l.filesz;
        let load = self.loads.iter().find(inside)?;
        let len = (load.vaddr + load.filesz - vaddr) as usize;
        match self.bytes {
            Bytes::File(file) => {
                let at = load.offset.checked_add(vaddr - load.vaddr)? as usize;
                file.get(at..at.checked_add(len)?)
            }
            Bytes::Memory { bias } => {
                let at = bias.wrapping_add(vaddr as usize) as *const u8;
                // SAFETY: inside a readable segment of an object that the loader has mapped and
                // that stays mapped (`from_memory`).
                Some(unsafe { core::slice::from_raw_parts(at, len) })
            }
        }
    }

    pub fn bytes(&self, vaddr: u64, len: usize) -> Option<&'a [u8]> {
        self.tail(vaddr)?.get(..len)
    }

    /// The executable segments.
    pub fn text(&self) -> impl Iterator<Item = (u64, &'a [u8])> + '_ {
        let exec = self.loads.iter().filter(|l| l.exec && l.filesz > 0);
        exec.filter_map(|l| Some((l.vaddr, self.tail(l.vaddr)?)))
    }

    /// The path of the loader that a program asks for, with its final NUL.
    pub fn interpreter(&self) -> Option<&'a CStr> {
        let (vaddr, len) = self.interpreter?;
        CStr::from_bytes_with_nul(self.bytes(vaddr, len as usize)?).ok()
    }

    /// Where the executable segments are mapped: pages from the first to behind the last one.
    pub fn mapped_text(&self) -> Vec<(usize, usize)> {
        let bias = self.bias();
        let pages = |l: &Load| {
            let start = bias.wrapping_add(l.vaddr as usize);
            let end = start.wrapping_add(l.filesz as usize);
            (start & !(PAGE - 1), end.next_multiple_of(PAGE))
        };
        let exec = self.loads.iter().filter(|l| l.exec && l.filesz > 0);
        exec.map(pages).collect()
    }

    pub fn build_id(&self) -> Option<&'a [u8]> {
        self.notes
            .iter()
            .find_map(|&(vaddr, len)| find_build_id(self.bytes(vaddr, len as usize)?))
    }

    /// The functions known to the unwinder, sorted: start and length (0 when it is not known).
    pub fn functions(&self) -> Vec<(u64, u64)> {
        self.read_functions().unwrap_or_default()
    }

    fn read_functions(&self) -> Option<Vec<(u64, u64)>> {
        let hdr = self.eh_frame_hdr?;
        let bytes = self.tail(hdr)?;
        // Version 1, count as udata4, table as sdata4 relative to this header: what linkers write.
        if bytes.first() != Some(&1) || bytes.get(2..4)? != [0x03, 0x3b] {
            return None;
        }
        let count = u32_at(bytes, 8)? as usize;
        let table = bytes.get(12..12usize.checked_add(count.checked_mul(8)?)?)?;
        let mut functions = Vec::with_capacity(count);
        for entry in table.chunks_exact(8) {
            let start = hdr.wrapping_add_signed(i64::from(u32_at(entry, 0)? as i32));
            let fde = hdr.wrapping_add_signed(i64::from(u32_at(entry, 4)? as i32));
            let len = self.fde_length(fde, start).unwrap_or(0);
            // Signal frames begin one byte early, so that unwinders find them by `pc - 1`.
            let early = u64::from(self.is_signal_frame(fde));
            functions.push((start.wrapping_add(early), len.saturating_sub(early)));
        }
        functions.sort_unstable();
        Some(functions)
    }

    /// Whether the augmentation of the CIE that `fde` refers to has an `S`.
    fn is_signal_frame(&self, fde: u64) -> bool {
        let letters = || {
            let field = fde.checked_add(4)?;
            let back = u32_at(self.bytes(field, 4)?, 0)?;
            self.bytes(field.checked_sub(u64::from(back))?.checked_add(9)?, 8)
        };
        let letters = letters().unwrap_or(&[]);
        letters.iter().take_while(|b| **b != 0).any(|b| *b == b'S')
    }

    /// The length of the function whose FDE (pc-relative, 4-byte encoding) is at `fde`.
    fn fde_length(&self, fde: u64, start: u64) -> Option<u64> {
        let bytes = self.bytes(fde, 16)?;
        let begin = (fde + 8).wrapping_add_signed(i64::from(u32_at(bytes, 8)? as i32));
        (begin == start).then_some(u64::from(u32_at(bytes, 12)?))
    }
}

fn find_build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const NT_GNU_BUILD_ID: u32 = 3;
    loop {
        let name_len = u32_at(notes, 0)? as usize;
        let desc_len = u32_at(notes, 4)? as usize;
        let kind = u32_at(notes, 8)?;
        let desc_at = 12usize.checked_add(name_len.checked_add(3)? & !3)?;
        let desc = notes.get(desc_at..desc_at.checked_add(desc_len)?)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..16)? == b"GNU\0" {
            return (8..=64).contains(&desc_len).then_some(desc);
        }
        notes = notes.get(desc_at.checked_add(desc_len.checked_add(3)? & !3)?..)?;
    }
}
