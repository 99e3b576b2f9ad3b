//! Finds the `syscall` instructions of an object and a window to patch for each.
//!
//! Invariants: text is decoded linearly, starting again at every function start. A site counts only
//! if decoding from its function's start (or, where the unwinder knows no function, from most of
//! several earlier bytes) arrives exactly at it, so bytes that merely look like a `syscall` are
//! never patched. Where the unwinder knows functions, only code inside of them is patched. Every
//! direct jump, every address taken of text, and every entry of what may be a jump table counts as
//! a target that no window may contain. Nothing but a table is where the address of a table, as far
//! as it may be one, is taken.
use crate::calls;
use crate::elf::{Elf, u32_at};
use crate::table::{Fix, Site, Table, WINDOW_MAX};
use alloc::vec;
use alloc::vec::Vec;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const JMP_LEN: usize = 5;
/// Instructions kept on each side of a site.
const KEEP: usize = 8;
/// Instructions before a site among which the one that sets its number is looked for.
const LOOK_BACK: usize = 32;
const BEHIND_END_MAX: usize = 64;
const JUMP_TABLE_MAX: u64 = 4096;
/// Text that is too large to be decoded at a program's start in reasonable time.
const TEXT_MAX: usize = 256 << 20;

/// Scans every executable segment of `elf`.
pub fn scan(elf: &Elf) -> Table {
    let mut table = Table::default();
    let functions = elf.functions();
    for (vaddr, bytes) in elf.text() {
        if vaddr + bytes.len() as u64 <= u64::from(u32::MAX) && bytes.len() <= TEXT_MAX {
            Text::new(elf, vaddr, bytes, &functions).scan(&mut table);
        }
    }
    table.sites.sort_unstable_by_key(|s| s.addr);
    table
}

/// Whether the object has bytes that could be a `syscall` at all.
pub fn has_candidates(elf: &Elf) -> bool {
    elf.text()
        .any(|(_, bytes)| candidates(bytes).next().is_some())
}

fn candidates(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let mut from = 0;
    core::iter::from_fn(move || {
        loop {
            let at = from + find_byte(bytes.get(from..)?, SYSCALL[0])?;
            from = at + 1;
            if bytes.get(from) == Some(&SYSCALL[1]) {
                return Some(at);
            }
        }
    })
}

/// Eight bytes at a time: whole libraries are searched.
fn find_byte(bytes: &[u8], byte: u8) -> Option<usize> {
    const LOW: u64 = 0x0101_0101_0101_0101;
    let pattern = LOW * u64::from(byte);
    let mut chunks = bytes.chunks_exact(8);
    let mut at = 0;
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().unwrap_or_default()) ^ pattern;
        let hit = word.wrapping_sub(LOW) & !word & (LOW << 7);
        if hit != 0 {
            return Some(at + hit.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    chunks
        .remainder()
        .iter()
        .position(|b| *b == byte)
        .map(|i| at + i)
}

/// One bit per byte of text.
struct Bits(Vec<u64>);

impl Bits {
    fn new(len: usize) -> Bits {
        Bits(vec![0; len / 64 + 1])
    }

    fn set(&mut self, at: usize) {
        if let Some(word) = self.0.get_mut(at / 64) {
            *word |= 1 << (at % 64);
        }
    }

    fn get(&self, at: usize) -> bool {
        self.0
            .get(at / 64)
            .is_some_and(|word| word >> (at % 64) & 1 == 1)
    }
}

struct Text<'a> {
    elf: &'a Elf<'a>,
    vaddr: u64,
    bytes: &'a [u8],
    /// Function starts inside this text: offset and length.
    functions: Vec<(usize, usize)>,
    targets: Bits,
}

/// The surroundings of one site, in order.
struct Surroundings {
    /// In a function that the unwinder knows, unless the object has none such: data between
    /// functions may decode as well as code does.
    trusted: bool,
    before: Vec<Instruction>,
    syscall: Instruction,
    after: Vec<Instruction>,
}

impl<'a> Text<'a> {
    fn new(elf: &'a Elf<'a>, vaddr: u64, bytes: &'a [u8], functions: &[(u64, u64)]) -> Text<'a> {
        let len = bytes.len() as u64;
        let inside = functions
            .iter()
            .filter(|f| f.0 >= vaddr && f.0 - vaddr < len);
        let functions = inside
            .map(|f| ((f.0 - vaddr) as usize, f.1 as usize))
            .collect();
        Text {
            elf,
            vaddr,
            bytes,
            functions,
            targets: Bits::new(0),
        }
    }

    fn scan(&mut self, table: &mut Table) {
        let found: Vec<usize> = candidates(self.bytes).collect();
        let found: Vec<Surroundings> = found
            .iter()
            .filter_map(|at| self.surroundings(*at))
            .collect();
        if found.is_empty() {
            return;
        }
        self.targets = Bits::new(self.bytes.len());
        self.find_targets();
        for site in &found {
            let nr = self.known_nr(site);
            if nr.is_some_and(|n| calls::class_of(n.into()) == calls::NATIVE) {
                continue;
            }
            // Outside of functions and with any number in rax: data, such as tables of constants.
            if !site.trusted && nr.is_none() {
                continue;
            }
            match self.choose_window(site).filter(|_| site.trusted) {
                Some((first, count)) => self.add(table, site, first, count, nr),
                None => table.unpatchable.add(nr),
            }
        }
    }

    fn decoder(&self, from: usize, to: usize) -> Decoder<'a> {
        let bytes = self.bytes.get(from..to).unwrap_or(&[]);
        Decoder::with_ip(64, bytes, self.vaddr + from as u64, DecoderOptions::NONE)
    }

    /// The last function start at or before `at`.
    fn function_of(&self, at: usize) -> Option<(usize, usize)> {
        let after = self.functions.partition_point(|f| f.0 <= at);
        self.functions.get(after.checked_sub(1)?).copied()
    }

    /// The instructions around the candidate at `at`; `None` when no `syscall` starts there.
    fn surroundings(&self, at: usize) -> Option<Surroundings> {
        let function = self
            .function_of(at)
            .filter(|f| at < f.0 + f.1 || self.falls_into(*f, at));
        let start = match function {
            Some((start, _)) => start,
            None => self.vote(at)?,
        };
        let trusted = function.is_some() || self.functions.is_empty();
        let before = self.decode_up_to(start, at)?;
        let mut decoder = self.decoder(at, (at + 64).min(self.bytes.len()));
        let syscall = decoder.decode();
        if syscall.code() != Code::Syscall {
            return None;
        }
        let after = decoder.into_iter().take(KEEP).collect();
        Some(Surroundings {
            trusted,
            before,
            syscall,
            after,
        })
    }

    /// Whether the code of a function goes on behind the end that the unwinder knows, up to `at`:
    /// so around `clone`, where unwinding would be wrong in the child.
    fn falls_into(&self, function: (usize, usize), at: usize) -> bool {
        use Mnemonic as M;
        let end = function.0 + function.1;
        let (edge, target) = (self.vaddr + end as u64, self.vaddr + at as u64);
        if function.1 == 0 || at - end > BEHIND_END_MAX {
            return false;
        }
        let mut decoder = self.decoder(function.0, at);
        while decoder.ip() < target {
            let instruction = decoder.decode();
            let ends = instruction.is_invalid()
                || matches!(
                    instruction.mnemonic(),
                    M::Ret | M::Jmp | M::Ud2 | M::Hlt | M::Int3 | M::Nop | M::Call
                );
            if ends && instruction.next_ip() >= edge {
                return false;
            }
        }
        decoder.ip() == target
    }

    /// Decodes from `start`; the last instructions before `at`, or `None` when `at` is missed.
    fn decode_up_to(&self, start: usize, at: usize) -> Option<Vec<Instruction>> {
        let mut recent = Vec::with_capacity(2 * LOOK_BACK);
        let target = self.vaddr + at as u64;
        let mut decoder = self.decoder(start, (at + 16).min(self.bytes.len()));
        while decoder.ip() < target {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                recent.clear();
                continue;
            }
            if recent.len() == 2 * LOOK_BACK {
                recent.drain(..LOOK_BACK);
            }
            recent.push(instruction);
        }
        (decoder.ip() == target).then_some(recent)
    }

    /// Outside of known functions: the start, among several, from which a majority agrees.
    fn vote(&self, at: usize) -> Option<usize> {
        let starts = (24..56).step_by(4).filter_map(|back| at.checked_sub(back));
        let (mut agree, mut asked, mut best) = (0, 0, None);
        for start in starts {
            asked += 1;
            if self.decode_up_to(start, at).is_some() {
                agree += 1;
                best = Some(start);
            }
        }
        let start = best.filter(|_| agree * 4 >= asked * 3);
        // A function without an entry at the very start of the text.
        start.or_else(|| (at < 24 && self.decode_up_to(0, at).is_some()).then_some(0))
    }

    fn mark(&mut self, vaddr: u64) {
        if let Some(at) = vaddr.checked_sub(self.vaddr) {
            self.targets.set(at as usize);
        }
    }

    fn find_targets(&mut self) {
        let starts: Vec<usize> = self.functions.iter().map(|f| f.0).collect();
        let (mut from, mut taken) = (0, Vec::new());
        for next in starts.into_iter().chain([self.bytes.len()]) {
            self.find_targets_in(from, next, &mut taken);
            self.targets.set(next);
            from = next;
        }
        self.mark_jump_tables(taken);
    }

    /// `taken`: gets the addresses that are taken.
    fn find_targets_in(&mut self, from: usize, to: usize, taken: &mut Vec<u64>) {
        let mut decoder = self.decoder(from, to);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if instruction.op0_kind() == OpKind::NearBranch64 {
                self.mark(instruction.near_branch64());
            } else if instruction.mnemonic() == Mnemonic::Lea
                && instruction.is_ip_rel_memory_operand()
            {
                let address = instruction.ip_rel_memory_address();
                self.mark(address);
                taken.push(address);
            }
        }
    }

    /// Whatever may be a table. One ends where the next one begins: compilers put them next to each
    /// other, and the offsets of one are wrong from the place of another.
    fn mark_jump_tables(&mut self, mut tables: Vec<u64>) {
        tables.sort_unstable();
        tables.dedup();
        let may_begin = |table: &u64| self.entry(*table, 0).is_some();
        tables.retain(may_begin);
        for (i, table) in tables.iter().enumerate() {
            let later = &tables[i + 1..];
            let next = later.iter().find(|next| (*next - table) % 4 == 0);
            let room = next.map_or(u64::MAX, |next| (next - table) / 4);
            for n in 0..room.min(JUMP_TABLE_MAX) {
                let Some(target) = self.entry(*table, n) else {
                    break;
                };
                self.mark(target);
            }
        }
    }

    /// Where an entry leads of what may be a table of offsets relative to itself, as compilers make
    /// for `switch`.
    fn entry(&self, table: u64, n: u64) -> Option<u64> {
        let bytes = self.elf.tail(table)?;
        let offset = u32_at(bytes, usize::try_from(n).ok()? * 4)?;
        let target = table.wrapping_add_signed(i64::from(offset as i32));
        let own = self.vaddr..self.vaddr + self.bytes.len() as u64;
        own.contains(&target).then_some(target)
    }

    fn is_target(&self, instruction: &Instruction) -> bool {
        self.targets.get((instruction.ip() - self.vaddr) as usize)
    }

    /// The number in rax, if the straight line of code before the call sets it.
    fn known_nr(&self, site: &Surroundings) -> Option<u16> {
        let mut entered = self.is_target(&site.syscall);
        for instruction in site.before.iter().rev() {
            if entered {
                return None;
            }
            match effect_on_rax(instruction) {
                Rax::Kept => {}
                Rax::Set(nr) => return u16::try_from(nr).ok().filter(|n| *n < 512),
                Rax::Lost => return None,
            }
            entered = self.is_target(instruction);
        }
        None
    }

    /// The window for a site: index of its first instruction (in `before`, counted from the end)
    /// and the number of instructions taken after the call.
    fn choose_window(&self, site: &Surroundings) -> Option<(usize, usize)> {
        // Only code before the call: whoever resumes at or behind the call finds it intact.
        let all = 0..=site.before.len().min(KEEP);
        let only_before = all.clone().map(|n| (n, 0));
        let after = (1..=site.after.len()).map(|n| (0, n));
        let mixed = all.flat_map(|b| (1..=site.after.len()).map(move |a| (b, a)));
        only_before
            .chain(after)
            .chain(mixed)
            .find(|&(b, a)| self.is_window(site, b, a))
    }

    fn is_window(&self, site: &Surroundings, before: usize, after: usize) -> bool {
        let head = &site.before[site.before.len() - before..];
        let tail = &site.after[..after];
        let head_len: usize = head.iter().map(Instruction::len).sum();
        let tail_len: usize = tail.iter().map(Instruction::len).sum();
        let len = head_len + SYSCALL.len() + tail_len;
        if len > WINDOW_MAX || (if after == 0 { head_len } else { len }) < JMP_LEN {
            return false;
        }
        let last = tail.len().saturating_sub(1);
        let inner = head.iter().chain([&site.syscall]).chain(tail).skip(1);
        inner.into_iter().all(|i| !self.is_target(i))
            && head.iter().all(is_straight)
            && tail
                .iter()
                .enumerate()
                .all(|(i, x)| is_straight(x) || (i == last && is_exit(x)))
            && self.is_confirmed(head.first().unwrap_or(&site.syscall), site)
    }

    /// Whether decoding from most of several bytes before the window arrives at its start and
    /// at its call: function starts alone have been wrong.
    fn is_confirmed(&self, first: &Instruction, site: &Surroundings) -> bool {
        let start = (first.ip() - self.vaddr) as usize;
        let call = (site.syscall.ip() - self.vaddr) as usize;
        let froms = (24..88)
            .step_by(4)
            .filter_map(|back| start.checked_sub(back));
        let (mut agree, mut asked) = (0, 0);
        for from in froms {
            asked += 1;
            let hit = self.decode_up_to(from, start).is_some();
            agree += u32::from(hit && self.decode_up_to(start, call).is_some());
        }
        agree * 2 > asked || asked == 0
    }

    fn add(
        &self,
        table: &mut Table,
        site: &Surroundings,
        before: usize,
        after: usize,
        nr: Option<u16>,
    ) {
        let head = &site.before[site.before.len() - before..];
        let first = head.first().unwrap_or(&site.syscall).ip();
        let last = site.after[..after].last().unwrap_or(&site.syscall);
        let end = last.next_ip();
        let from = (first - self.vaddr) as usize;
        let len = (end - first) as usize;
        let mut window = [0; WINDOW_MAX];
        window[..len].copy_from_slice(&self.bytes[from..from + len]);
        let copied = head
            .iter()
            .chain(&site.after[..after])
            .filter(|i| !is_short_jmp(i));
        let mut fixes = copied.filter_map(|i| self.fix(i, first));
        let fixes_taken = [fixes.next(), fixes.next()];
        let entry = Site {
            addr: first as u32,
            len: len as u8,
            syscall: (site.syscall.ip() - first) as u8,
            nr,
            fixes: fixes_taken,
            resume: is_short_jmp(last).then(|| (last.near_branch64().wrapping_sub(first)) as i32),
            window,
        };
        match fixes.next().is_none() && entry.is_sane() {
            true => table.sites.push(entry),
            false => table.unpatchable.add(nr),
        }
    }

    /// The displacement of `instruction` that depends on where it is.
    fn fix(&self, instruction: &Instruction, first: u64) -> Option<Fix> {
        let from = (instruction.ip() - self.vaddr) as usize;
        let mut decoder = self.decoder(from, from + instruction.len());
        let again = decoder.decode();
        let offsets = decoder.get_constant_offsets(&again);
        let base = (instruction.ip() - first) as usize;
        let at = if instruction.is_ip_rel_memory_operand() {
            offsets.displacement_offset()
        } else if instruction.op0_kind() == OpKind::NearBranch64 {
            offsets.immediate_offset()
        } else {
            return None;
        };
        Some(Fix {
            at: (base + at) as u8,
            end: (base + instruction.len()) as u8,
        })
    }
}

enum Rax {
    Kept,
    Set(u64),
    Lost,
}

fn is_rax(register: Register) -> bool {
    matches!(
        register,
        Register::RAX | Register::EAX | Register::AX | Register::AL | Register::AH
    )
}

/// What `instruction` does to rax; whatever is not known to leave it alone loses it.
fn effect_on_rax(instruction: &Instruction) -> Rax {
    use Mnemonic as M;
    let own = instruction.op0_kind() == OpKind::Register && is_rax(instruction.op0_register());
    match instruction.mnemonic() {
        M::Mov if own && instruction.op1_kind() != OpKind::Register => match instruction.code() {
            Code::Mov_r32_imm32 => Rax::Set(instruction.immediate32().into()),
            Code::Mov_rm64_imm32 => Rax::Set(instruction.immediate32to64() as u64),
            Code::Mov_r64_imm64 => Rax::Set(instruction.immediate64()),
            _ => Rax::Lost,
        },
        M::Xor if own => {
            let zeroes = instruction.op1_kind() == OpKind::Register
                && instruction.op0_register() == instruction.op1_register()
                && matches!(instruction.op0_register(), Register::EAX | Register::RAX);
            if zeroes { Rax::Set(0) } else { Rax::Lost }
        }
        M::Cmp | M::Test | M::Nop | M::Push => Rax::Kept,
        // Where it does not jump.
        M::Ja
        | M::Jae
        | M::Jb
        | M::Jbe
        | M::Je
        | M::Jne
        | M::Jg
        | M::Jge
        | M::Jl
        | M::Jle
        | M::Jo
        | M::Jno
        | M::Js
        | M::Jns
        | M::Jp
        | M::Jnp => Rax::Kept,
        M::Mov
        | M::Lea
        | M::Xor
        | M::And
        | M::Or
        | M::Add
        | M::Sub
        | M::Movzx
        | M::Movsx
        | M::Movsxd
        | M::Shl
        | M::Shr
        | M::Sar
        | M::Not
        | M::Neg
        | M::Pop
        | M::Movups
        | M::Movaps
        | M::Movdqa
        | M::Movdqu
        | M::Movq
        | M::Movd
            if !own =>
        {
            Rax::Kept
        }
        _ => Rax::Lost,
    }
}

/// May run elsewhere, given a corrected displacement, and falls through.
fn is_straight(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    let ops = instruction.op_count();
    let branches = (0..ops).any(|i| {
        matches!(
            instruction.op_kind(i),
            OpKind::NearBranch16
                | OpKind::NearBranch32
                | OpKind::NearBranch64
                | OpKind::FarBranch16
                | OpKind::FarBranch32
        )
    });
    let eip = instruction.memory_base() == Register::EIP;
    !branches
        && !eip
        && !matches!(
            instruction.mnemonic(),
            M::INVALID
                | M::Call
                | M::Jmp
                | M::Ret
                | M::Retf
                | M::Iret
                | M::Iretd
                | M::Iretq
                | M::Int
                | M::Int1
                | M::Int3
                | M::Into
                | M::Syscall
                | M::Sysenter
                | M::Sysexit
                | M::Sysret
                | M::Sysexitq
                | M::Sysretq
                | M::Hlt
                | M::Ud0
                | M::Ud1
                | M::Ud2
                | M::Endbr64
                | M::Endbr32
                | M::Xbegin
                | M::Xend
                | M::Xabort
                | M::Rsm
        )
}

/// May stand at the end of a window although it does not fall through.
fn is_exit(instruction: &Instruction) -> bool {
    let near = instruction.op0_kind() == OpKind::NearBranch64;
    let returns = matches!(instruction.mnemonic(), Mnemonic::Call | Mnemonic::Xbegin);
    let long_jump = near && instruction.len() >= JMP_LEN && !returns;
    long_jump
        || is_short_jmp(instruction)
        || matches!(instruction.code(), Code::Retnq | Code::Retnq_imm16)
}

fn is_short_jmp(instruction: &Instruction) -> bool {
    instruction.code() == Code::Jmp_rel8_64
}
