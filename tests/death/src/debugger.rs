//! Running a child instruction by instruction, and killing it after a given store.
//!
//! Invariant: only stores into mappings that others share count, and each of them does: the next
//! instruction never runs.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register,
    UsedMemory,
};
use nix::libc::user_regs_struct;
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::sys::{personality, ptrace};
use nix::unistd::Pid;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{self, Command, ExitCode, Stdio};
use std::time::Duration;

/// How a child's work ended.
#[derive(Debug)]
pub enum Outcome {
    /// Killed after a store by the instruction at this offset of its program.
    Killed {
        #[allow(dead_code, reason = "for whoever reads a failure")]
        at: u64,
    },
    /// It came to its end first.
    Ended,
}

/// In the child: the work begins.
pub fn begin() {
    ptrace::traceme().expect("the parent debugs us");
    raise(Signal::SIGSTOP).expect("a stop");
}

/// In a child: whether the parent may debug us.
pub fn probe() -> ExitCode {
    ExitCode::from(u8::from(ptrace::traceme().is_err()))
}

/// Whether this machine lets a process debug its children.
pub fn is_allowed() -> bool {
    let me = std::env::current_exe();
    let probe = me.and_then(|me| Command::new(me).arg("probe").status());
    probe.is_ok_and(|status| status.success())
}

/// In the child: the work is done.
pub fn end() {
    raise(Signal::SIGSTOP).expect("a stop");
}

/// What the instruction at an address may store.
pub type Stores = BTreeMap<u64, Vec<UsedMemory>>;

/// Addresses are the same in all children: what was learned of one holds for the next.
pub fn same_addresses() {
    let fixed = personality::Persona::ADDR_NO_RANDOMIZE;
    personality::set(fixed).expect("fixed addresses");
}

/// Runs case `name` on the pool in `dir` to its end, and learns which instructions store into
/// shared memory.
pub fn learn(dir: &Path, name: &str) -> Result<Stores, String> {
    with_child(dir, name, |child| {
        let mut known = Stores::new();
        let mut found = BTreeSet::new();
        let mut turn = Turn::default();
        loop {
            let regs = child.regs()?;
            if let Entry::Vacant(new) = known.entry(regs.rip) {
                new.insert(child.stores_at(regs.rip)?);
            }
            if child.hits(&known[&regs.rip], &regs) {
                found.insert(regs.rip);
                turn = Turn::default();
            } else if !near_stack(&known[&regs.rip], &regs) {
                turn = Turn::default();
            } else if turn.is_long(regs.rip) && child.is_direct(&turn.body)? {
                child.run_out(&core::mem::take(&mut turn).body)?;
                continue;
            }
            if let Stop::Ended = child.step()? {
                known.retain(|rip, _| found.contains(rip));
                return Ok((known, true));
            }
        }
    })
}

/// Whether what the next instruction stores to, if anything, is the program's stack.
fn near_stack(stores: &[UsedMemory], regs: &user_regs_struct) -> bool {
    stores.iter().all(|store| {
        let address = store.virtual_address(0, |r, _, _| register(regs, r));
        address.is_some_and(|at| at.abs_diff(regs.rsp) < 1 << 16)
    })
}

/// Steps since the last store to anything but the stack, or since somewhere after it.
#[derive(Default)]
struct Turn {
    body: BTreeSet<u64>,
    /// Since the last instruction that was not in `body` before.
    steps: usize,
}

impl Turn {
    /// Whether the program is in a loop that goes on for long, whose instructions are `body`.
    fn is_long(&mut self, rip: u64) -> bool {
        self.steps += 1;
        if self.body.insert(rip) {
            self.steps = 0;
        }
        if self.steps > 0 || self.body.len() <= LOOP_MAX {
            return self.steps == LOOP_STEPS;
        }
        *self = Turn::default();
        false
    }
}

/// Instructions of what is taken for a loop, and how many steps it is looked at for.
const LOOP_MAX: usize = 256;
const LOOP_STEPS: usize = 20_000;

/// Runs the case up to its `nth` store, and kills it there.
pub fn run(dir: &Path, name: &str, nth: usize, stores: &Stores) -> Result<Outcome, String> {
    with_child(dir, name, |child| {
        let at = child.run_to(nth, stores)?;
        let outcome = at.map_or(Outcome::Ended, |at| Outcome::Killed { at });
        Ok((outcome, at.is_none()))
    })
}

/// A child that is stopped amid its work, without a debugger.
pub struct Stopped {
    process: process::Child,
    pub at: u64,
}

impl Stopped {
    /// Lets it go on to its end.
    pub fn wake(mut self) -> Result<(), String> {
        let pid = Pid::from_raw(self.process.id().cast_signed());
        // It stops itself once more when its work is done.
        while self
            .process
            .try_wait()
            .map_err(|e| e.to_string())?
            .is_none()
        {
            kill(pid, Signal::SIGCONT).map_err(broken)?;
            std::thread::sleep(Duration::from_millis(2));
        }
        let status = self.process.wait().map_err(|e| e.to_string())?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("the child that was stopped ended with {status}")),
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Where it has ended already there is nobody to kill.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the case up to its `nth` store, and stops it there; `None`: the work ended before.
pub fn stop(
    dir: &Path,
    name: &str,
    nth: usize,
    stores: &Stores,
) -> Result<Option<Stopped>, String> {
    let process = spawn(dir, name)?;
    let pid = Pid::from_raw(process.id().cast_signed());
    let mut stopped = Stopped { process, at: 0 };
    let found = Child::stopped(pid)?.run_to(nth, stores)?;
    let signal = found.map(|_| Signal::SIGSTOP);
    ptrace::detach(pid, signal).map_err(broken)?;
    match found {
        Some(at) => stopped.at = at,
        None => stopped
            .process
            .wait()
            .map(drop)
            .map_err(|e| e.to_string())?,
    }
    Ok(found.map(|_| stopped))
}

/// Runs the case up to its `nth` store, and does `f` while the child is held there.
pub fn hold(
    dir: &Path,
    name: &str,
    nth: usize,
    stores: &Stores,
    f: impl FnOnce(),
) -> Result<(), String> {
    with_child(dir, name, |child| {
        if child.run_to(nth, stores)?.is_some() {
            f();
            while let Stop::Trap = child.go_on()? {}
        }
        Ok(((), true))
    })
}

impl Child {
    /// Whether these instructions lead only where they say, or where the linker has said.
    fn is_direct(&self, body: &BTreeSet<u64>) -> Result<bool, String> {
        for at in body {
            let i = self.decode(*at)?;
            let flow = i.flow_control();
            let indirect = matches!(
                flow,
                FlowControl::IndirectBranch | FlowControl::IndirectCall
            );
            if indirect && !i.is_ip_rel_memory_operand() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Goes on until the program leaves these instructions, which have stored to the stack alone
    /// for long, and lead only where they say.
    fn run_out(&self, body: &BTreeSet<u64>) -> Result<(), String> {
        let mut bytes = BTreeMap::new();
        for at in body {
            let i = self.decode(*at)?;
            let jumps = !matches!(i.flow_control(), FlowControl::Next | FlowControl::Return);
            let next = (i.flow_control() != FlowControl::UnconditionalBranch).then(|| i.next_ip());
            let target = (jumps && i.near_branch_target() != 0).then(|| i.near_branch_target());
            for exit in next
                .into_iter()
                .chain(target)
                .filter(|at| !body.contains(at))
            {
                if let Entry::Vacant(new) = bytes.entry(exit) {
                    new.insert(self.poke(exit, BREAKPOINT)?);
                }
            }
        }
        let Stop::Trap = self.go_on()? else {
            return Err("the work ended in a loop".into());
        };
        let mut regs = self.regs()?;
        regs.rip -= 1;
        ptrace::setregs(self.pid, regs).map_err(broken)?;
        for (at, byte) in &bytes {
            self.poke(*at, *byte)?;
        }
        match bytes.contains_key(&regs.rip) {
            true => Ok(()),
            false => Err("a strange breakpoint".into()),
        }
    }

    /// Goes on to the `nth` store; where that was in the program, `None`: the work ended before.
    fn run_to(&mut self, nth: usize, stores: &Stores) -> Result<Option<u64>, String> {
        let child = self;
        let bytes: BTreeMap<u64, u8> = stores
            .keys()
            .map(|at| Ok((*at, child.poke(*at, BREAKPOINT)?)))
            .collect::<Result<_, String>>()?;
        let (mut count, mut turns, mut reached) = (0, Turns::default(), None);
        loop {
            if let Stop::Ended = child.go_on()? {
                break;
            }
            let mut regs = child.regs()?;
            regs.rip -= 1;
            let (at, byte) = (
                regs.rip,
                bytes.get(&regs.rip).ok_or("a strange breakpoint")?,
            );
            let hits = child.hits(&stores[&at], &regs);
            ptrace::setregs(child.pid, regs).map_err(broken)?;
            child.poke(at, *byte)?;
            child.step()?;
            child.poke(at, BREAKPOINT)?;
            if !hits || !turns.counts(at) {
                continue;
            }
            count += 1;
            if count == nth {
                reached = Some(at.wrapping_sub(child.program));
                break;
            }
        }
        for (at, byte) in &bytes {
            child.poke(*at, *byte)?;
        }
        Ok(reached)
    }
}

const BREAKPOINT: u8 = 0xcc;

/// How often each instruction has stored. Long copies and fills are looked at after fewer and
/// fewer of their stores.
#[derive(Default)]
struct Turns(BTreeMap<u64, u32>);

impl Turns {
    fn counts(&mut self, at: u64) -> bool {
        let turn = self.0.entry(at).or_default();
        *turn += 1;
        *turn <= 12 || turn.is_power_of_two()
    }
}

/// A child at the beginning of its work, and at its end let go or killed.
fn with_child<T>(
    dir: &Path,
    name: &str,
    f: impl FnOnce(&mut Child) -> Result<(T, bool), String>,
) -> Result<T, String> {
    let mut process = spawn(dir, name)?;
    let pid = Pid::from_raw(process.id().cast_signed());
    let outcome = Child::stopped(pid).and_then(|mut child| f(&mut child));
    let ended = matches!(outcome, Ok((_, true)));
    let let_go = match ended {
        true => ptrace::detach(pid, None),
        false => ptrace::kill(pid),
    };
    let status = process.wait().map_err(|e| e.to_string())?;
    if ended && (let_go.is_err() || !status.success()) {
        return Err(format!("the child ended with {status}"));
    }
    outcome.map(|(value, _)| value)
}

fn spawn(dir: &Path, name: &str) -> Result<process::Child, String> {
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(me);
    command
        .arg("child")
        .arg(dir)
        .arg(name)
        .stdout(Stdio::null());
    command.spawn().map_err(|e| e.to_string())
}

fn broken(e: nix::Error) -> String {
    format!("debugging the child: {e}")
}

enum Stop {
    /// After a step, or at a breakpoint.
    Trap,
    Ended,
}

struct Child {
    pid: Pid,
    memory: File,
    shared: Vec<Range<u64>>,
    program: u64,
}

impl Child {
    fn stopped(pid: Pid) -> Result<Child, String> {
        match waitpid(pid, None) {
            Ok(WaitStatus::Stopped(_, Signal::SIGSTOP)) => {}
            other => return Err(format!("the child does not begin: {other:?}")),
        }
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .map_err(|e| e.to_string())?;
        let (shared, program) = mappings(pid)?;
        Ok(Child {
            pid,
            memory,
            shared,
            program,
        })
    }

    fn regs(&self) -> Result<user_regs_struct, String> {
        ptrace::getregs(self.pid).map_err(broken)
    }

    fn step(&self) -> Result<Stop, String> {
        ptrace::step(self.pid, None).map_err(broken)?;
        self.wait()
    }

    fn go_on(&self) -> Result<Stop, String> {
        ptrace::cont(self.pid, None).map_err(broken)?;
        self.wait()
    }

    fn wait(&self) -> Result<Stop, String> {
        match waitpid(self.pid, None).map_err(broken)? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => Ok(Stop::Trap),
            WaitStatus::Stopped(_, Signal::SIGSTOP) => Ok(Stop::Ended),
            other => Err(format!("the child: {other:?}")),
        }
    }

    /// Changes a byte of the child's text; the one that was there.
    fn poke(&self, at: u64, byte: u8) -> Result<u8, String> {
        let mut old = [0];
        let done = self.memory.read_exact_at(&mut old, at);
        let done = done.and_then(|()| self.memory.write_all_at(&[byte], at));
        done.map_err(|e| format!("the child's text: {e}"))?;
        Ok(old[0])
    }

    /// Whether the instruction that comes next stores into shared memory.
    fn hits(&self, stores: &[UsedMemory], regs: &user_regs_struct) -> bool {
        stores.iter().any(|store| {
            let address = store.virtual_address(0, |r, _, _| register(regs, r));
            let is_in = |range: &Range<u64>| address.is_some_and(|a| range.contains(&a));
            self.shared.iter().any(is_in)
        })
    }

    fn decode(&self, rip: u64) -> Result<Instruction, String> {
        let mut code = [0; 16];
        let read = self.memory.read_at(&mut code, rip);
        let n = read.map_err(|e| format!("the child's text: {e}"))?;
        Ok(Decoder::with_ip(64, &code[..n], rip, DecoderOptions::NONE).decode())
    }

    fn stores_at(&self, rip: u64) -> Result<Vec<UsedMemory>, String> {
        let mut factory = InstructionInfoFactory::new();
        let instruction = self.decode(rip)?;
        let stores = factory
            .info(&instruction)
            .used_memory()
            .iter()
            .filter(|used| {
                use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
                matches!(used.access(), Write | ReadWrite | CondWrite | ReadCondWrite)
            });
        Ok(stores.copied().collect())
    }
}

/// What the process shares, and where its program is.
fn mappings(pid: Pid) -> Result<(Vec<Range<u64>>, u64), String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).map_err(|e| e.to_string())?;
    let mut shared = Vec::new();
    let mut program = 0;
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ').ok_or("a strange line in maps")?;
        let (start, end) = range.split_once('-').ok_or("a strange range in maps")?;
        let number = |text| u64::from_str_radix(text, 16).map_err(|e| e.to_string());
        let range = number(start)?..number(end)?;
        if program == 0 {
            program = range.start;
        }
        if rest.starts_with("rw-s") {
            shared.push(range);
        }
    }
    Ok((shared, program))
}

fn register(regs: &user_regs_struct, register: Register) -> Option<u64> {
    Some(match register.full_register() {
        Register::RAX => regs.rax,
        Register::RBX => regs.rbx,
        Register::RCX => regs.rcx,
        Register::RDX => regs.rdx,
        Register::RSI => regs.rsi,
        Register::RDI => regs.rdi,
        Register::RBP => regs.rbp,
        Register::RSP => regs.rsp,
        Register::R8 => regs.r8,
        Register::R9 => regs.r9,
        Register::R10 => regs.r10,
        Register::R11 => regs.r11,
        Register::R12 => regs.r12,
        Register::R13 => regs.r13,
        Register::R14 => regs.r14,
        Register::R15 => regs.r15,
        Register::FS => regs.fs_base,
        Register::GS => regs.gs_base,
        _ => 0,
    })
}
