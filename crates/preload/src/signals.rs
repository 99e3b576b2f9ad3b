//! The program's signal handlers, and holding signals back while the hook runs.
//!
//! Invariants:
//! * The kernel knows only our wrapper; the program's own action is in `ACTIONS`, and the program
//!   is told that one.
//! * A handler of the program never runs while a thread is inside the hook, where it could find our
//!   locks held. The signal is put into `HELD` and sent to the same thread again when the hook
//!   leaves. From the first one on the thread blocks everything, so that the kernel keeps the
//!   others in order. The thread's real mask is also in `HELD`; leaving the hook, fork, exec and
//!   reading the mask restore or use it.
//! * A handler never sees an address of ours: frames that point into a trampoline show the place in
//!   the program's own code instead, and get the trampoline back afterwards.
//! * SIGSEGV and SIGBUS always reach us first.
use crate::calls;
use crate::dispatch;
use crate::entry::{self, FRAME, Leaving, Regs};
use crate::hook::{Call, Verdict};
use crate::lock::Lock;
use crate::patch;
use crate::process;
use crate::sys::{self, nr};
use crate::user::{self, Plain};
use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// How many signals are held back, in all threads.
pub static PENDING: AtomicU32 = AtomicU32::new(0);

const SIGILL: usize = 4;
const SIGTRAP: usize = 5;
const SIGBUS: usize = 7;
const SIGFPE: usize = 8;
const SIGSEGV: usize = 11;
const LAST: usize = 64;
const FIRST_REALTIME: i32 = 32;
const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;
const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_RESTART: u64 = 0x1000_0000;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;
const MASK_SIZE: usize = 8;
/// A fault that is blocked kills; ours must be mended whatever the program blocks.
const FAULT_MASK: u64 = 1 << (SIGSEGV - 1) | 1 << (SIGBUS - 1);
/// What else an instruction can cause, which kills where it is blocked.
const SYNCHRONOUS: u64 = 1 << (SIGILL - 1) | 1 << (SIGTRAP - 1) | 1 << (SIGFPE - 1) | 1 << 30;
/// What a thread blocks while a signal is held back for it, as the kernel tells it: everything,
/// but those and the two that cannot be blocked.
const ALL_HELD: u64 = !(FAULT_MASK | SYNCHRONOUS | 1 << (9 - 1) | 1 << (19 - 1));
const EAGAIN: isize = 11;
const EINVAL: isize = 22;

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}
// SAFETY: integers only.
unsafe impl Plain for Action {}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Info {
    signal: i32,
    errno: i32,
    code: i32,
    pad: i32,
    /// `si_addr` of a fault.
    addr: u64,
    rest: [u64; 13],
}

/// The kernel's `struct ucontext`.
#[repr(C)]
pub struct Context {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    r8: u64,
    r9: u64,
    r10: u64,
    r11: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rax: u64,
    rcx: u64,
    rsp: u64,
    rip: u64,
    eflags: u64,
    segments: u64,
    err: u64,
    trapno: u64,
    oldmask: u64,
    cr2: u64,
    vectors: u64,
    reserved: [u64; 8],
    /// The mask that the interrupted code had, and gets back.
    sigmask: u64,
}

const _: () = assert!(core::mem::offset_of!(Context, sigmask) == 296);

struct Slot {
    handler: AtomicU64,
    flags: AtomicU64,
    restorer: AtomicU64,
    mask: AtomicU64,
}

static ACTIONS: [Slot; LAST + 1] = [const {
    Slot {
        handler: AtomicU64::new(SIG_DFL),
        flags: AtomicU64::new(0),
        restorer: AtomicU64::new(0),
        mask: AtomicU64::new(0),
    }
}; LAST + 1];
static ACTIONS_LOCK: Lock = Lock::new();

impl Slot {
    fn get(&self) -> Action {
        Action {
            handler: self.handler.load(Ordering::Acquire),
            flags: self.flags.load(Ordering::Relaxed),
            restorer: self.restorer.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    fn set(&self, action: &Action) {
        self.flags.store(action.flags, Ordering::Relaxed);
        self.restorer.store(action.restorer, Ordering::Relaxed);
        self.mask.store(action.mask, Ordering::Relaxed);
        self.handler.store(action.handler, Ordering::Release);
    }
}

// On entry the kernel's frame is at rsp: the restorer's address, then the context. Between
// `hf_open` and `hf_open_end` a further signal is delivered at once: nothing is held there.
global_asm!(
    ".pushsection .text.holdfast_signal,\"ax\",@progbits",
    ".hidden hf_signal, hf_open, hf_open_end, hf_restorer, hf_restorer_end",
    ".hidden hf_open2, hf_open2_end, hf_gate1, hf_gate2",
    ".globl hf_gate1, hf_gate2, hf_signal, hf_open, hf_open_end, hf_restorer, hf_restorer_end",
    ".globl hf_open2, hf_open2_end",
    ".p2align 4",
    ".type hf_signal,@function",
    "hf_signal:",
    ".cfi_startproc",
    "sub rsp, 56",
    ".cfi_adjust_cfa_offset 56",
    "mov [rsp], rdi",
    "mov [rsp + 8], rsi",
    "mov [rsp + 16], rdx",
    "lea rcx, [rsp + 24]",
    "cld",
    "call {enter}",
    "cmp rax, 1",
    "jb 4f",
    "je 3f",
    "mov [rsp + 40], rax",
    "cmp dword ptr [rip + {pending}], 0",
    "hf_gate1:",
    "je hf_open",
    "lea rdi, [rsp + 48]",
    "call {resend}",
    "lea rsi, [rsp + 48]",
    "mov eax, 14",
    "mov edi, 2",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "hf_open:",
    "mov rdi, [rsp]",
    "mov rsi, [rsp + 8]",
    "mov rdx, [rsp + 16]",
    "xor eax, eax",
    "call [rsp + 40]",
    "hf_open_end:",
    "mov rdx, [rsp + 16]",
    "mov rcx, [rsp + 24]",
    "mov r8, [rsp + 32]",
    "cmp [rdx + 168], rcx",
    "jne 3f",
    "mov [rdx + 168], r8",
    "3:",
    "cmp dword ptr [rip + {pending}], 0",
    "hf_gate2:",
    "je hf_open2",
    "lea rdi, [rsp + 48]",
    "call {resend}",
    "lea rsi, [rsp + 48]",
    "mov eax, 14",
    "mov edi, 2",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "hf_open2:",
    "add rsp, 56",
    ".cfi_adjust_cfa_offset -56",
    "ret",
    "hf_open2_end:",
    ".cfi_adjust_cfa_offset 56",
    // Back into the hook: from here, not from the program's restorer, so that a further signal
    // is seen to find us inside.
    "4:",
    "add rsp, 64",
    "mov eax, 15",
    "syscall",
    ".cfi_endproc",
    ".size hf_signal, . - hf_signal",
    // hf_on_stack(addr rdi, stack rsi): calls `mend` there.
    ".hidden hf_on_stack",
    ".globl hf_on_stack",
    ".type hf_on_stack,@function",
    "hf_on_stack:",
    "push rbp",
    "mov rbp, rsp",
    "mov rsp, rsi",
    "and rsp, -16",
    "call {mend}",
    "mov rsp, rbp",
    "pop rbp",
    "ret",
    ".size hf_on_stack, . - hf_on_stack",
    // hf_exec(nr rdi, args rsi, mask rdx): the program's mask, then exec. In between its
    // handlers run: it would get those signals before exec or after it.
    ".hidden hf_exec, hf_exec_open, hf_exec_end, hf_deliver, hf_deliver_open, hf_deliver_end",
    ".globl hf_exec, hf_exec_open, hf_exec_end, hf_deliver, hf_deliver_open, hf_deliver_end",
    ".type hf_exec,@function",
    "hf_exec:",
    "push rbx",
    "push r12",
    "mov rbx, rdi",
    "mov r12, rsi",
    "mov rsi, rdx",
    "mov eax, 14",
    "mov edi, 2",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "hf_exec_open:",
    "mov rdi, [r12]",
    "mov rsi, [r12 + 8]",
    "mov rdx, [r12 + 16]",
    "mov r10, [r12 + 24]",
    "mov r8, [r12 + 32]",
    "mov rax, rbx",
    "syscall",
    "hf_exec_end:",
    "pop r12",
    "pop rbx",
    "ret",
    ".size hf_exec, . - hf_exec",
    // hf_deliver(): what is held for this thread is handled now.
    ".type hf_deliver,@function",
    "hf_deliver:",
    "sub rsp, 24",
    "lea rdi, [rsp + 8]",
    "call {resend}",
    "lea rsi, [rsp + 8]",
    "mov eax, 14",
    "mov edi, 2",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "hf_deliver_open:",
    "add rsp, 24",
    "hf_deliver_end:",
    "ret",
    ".size hf_deliver, . - hf_deliver",
    // Byte for byte what unwinders recognise.
    "nop",
    "hf_restorer:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05",
    "hf_restorer_end:",
    ".popsection",
    enter = sym enter,
    resend = sym resend,
    mend = sym mend,
    pending = sym PENDING,
);

unsafe extern "C" {
    fn hf_exec(nr: usize, args: *const usize, mask: *const u64) -> isize;
    fn hf_exec_open();
    fn hf_exec_end();
    fn hf_deliver();
    fn hf_deliver_open();
    fn hf_deliver_end();
    fn hf_on_stack(addr: usize, stack: usize) -> u32;
    fn hf_signal();
    fn hf_open();
    fn hf_open_end();
    fn hf_gate1();
    fn hf_gate2();
    fn hf_open2();
    fn hf_open2_end();
    fn hf_restorer();
    fn hf_restorer_end();
}

fn address(f: unsafe extern "C" fn()) -> usize {
    f as *const () as usize
}

fn kernel_action(sig: usize, new: usize, old: usize) -> isize {
    // SAFETY: both are null or point to live `Action`s of ours.
    unsafe { sys::raw(nr::RT_SIGACTION, [sig, new, old, MASK_SIZE, 0, 0]) }
}

fn install(sig: usize, action: &Action, old: &mut Action) -> isize {
    let new = core::ptr::from_ref(action) as usize;
    kernel_action(sig, new, core::ptr::from_mut(old) as usize)
}

const NO_ACTION: Action = Action {
    handler: SIG_DFL,
    flags: 0,
    restorer: 0,
    mask: 0,
};

fn is_memory_fault(sig: usize) -> bool {
    sig == SIGSEGV || sig == SIGBUS
}

/// Makes `mask` the thread's mask; the one before.
fn set_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    let (new, old) = (
        core::ptr::from_ref(&mask) as usize,
        core::ptr::from_mut(&mut before) as usize,
    );
    // SAFETY: both words are live.
    unsafe { sys::raw(nr::RT_SIGPROCMASK, [SIG_SETMASK, new, old, MASK_SIZE, 0, 0]) };
    before
}

const SIG_BLOCK: usize = 0;
const SIG_UNBLOCK: usize = 1;
const SIG_SETMASK: usize = 2;

/// The program's rt_sigprocmask: SIGSEGV and SIGBUS stay open.
pub fn sigprocmask(call: &Call) -> Verdict {
    let [how, set, old, size, ..] = call.args;
    if size != MASK_SIZE || set == 0 || how == SIG_UNBLOCK {
        return Verdict::Native;
    }
    match user::read::<u64>(set) {
        Some(set) if set & FAULT_MASK != 0 => {
            Verdict::Handled(change_mask(how, set & !FAULT_MASK, old))
        }
        _ => Verdict::Native,
    }
}

/// Blocks more, or sets the mask, whatever is blocked just now because signals are held.
fn change_mask(how: usize, set: u64, old: usize) -> isize {
    let before = set_mask(ALL_HELD);
    let own = sys::gettid();
    let held = held_mask(own);
    let truth = held.unwrap_or(before);
    let new = match how {
        SIG_BLOCK => Some(truth | set),
        SIG_SETMASK => Some(set),
        _ => None,
    };
    match held {
        None => {
            set_mask(new.unwrap_or(before));
        }
        // It takes effect when the hook leaves.
        Some(_) => {
            for slot in held_by(own) {
                slot.mask.store(new.unwrap_or(truth), Ordering::Relaxed);
            }
        }
    }
    match new {
        None => -EINVAL,
        Some(_) if old != 0 && !user::write(old, &truth) => -sys::EFAULT,
        Some(_) => 0,
    }
}

/// What the kernel is given in place of `own`.
fn wrapped(sig: usize, own: &Action) -> Action {
    let handled = own.handler != SIG_DFL && own.handler != SIG_IGN;
    let handler = address(hf_signal) as u64;
    if handled {
        let flags = (own.flags | SA_SIGINFO) & !SA_RESETHAND;
        let mask = own.mask & !FAULT_MASK;
        return Action {
            handler,
            flags,
            mask,
            ..*own
        };
    }
    if !is_memory_fault(sig) {
        return *own;
    }
    let flags = SA_SIGINFO | SA_RESTORER | SA_NODEFER;
    Action {
        handler,
        flags,
        restorer: address(hf_restorer) as u64,
        mask: 0,
    }
}

/// Takes SIGSEGV and SIGBUS; the program's view of them stays what it was.
pub fn init() {
    holdfast_pmem::futex::set_must_end(&(must_end as fn() -> bool));
    for sig in [SIGSEGV, SIGBUS] {
        let mut old = NO_ACTION;
        if install(sig, &wrapped(sig, &NO_ACTION), &mut old) == 0 {
            ACTIONS[sig].set(&old);
        }
    }
}

/// The program's rt_sigaction.
pub fn sigaction(call: &Call) -> Verdict {
    let [sig, new, old, size, ..] = call.args;
    let catchable = (1..=LAST).contains(&sig) && sig != 9 && sig != 19;
    if size != MASK_SIZE || !catchable {
        return Verdict::Native;
    }
    let own = match new {
        0 => None,
        at => match user::read::<Action>(at) {
            Some(action) => Some(action),
            None => return Verdict::Handled(-sys::EFAULT),
        },
    };
    // The kernel makes no frame without a restorer; such a handler never returns.
    if own.is_some_and(|a| a.handler > SIG_IGN && a.flags & SA_RESTORER == 0) {
        return Verdict::Native;
    }
    let before = match exchange(sig, own.as_ref()) {
        Ok(before) => before,
        Err(errno) => return Verdict::Handled(errno),
    };
    if old != 0 && !user::write(old, &before) {
        return Verdict::Handled(-sys::EFAULT);
    }
    Verdict::Handled(0)
}

/// Makes `own` the program's action; the one before, as the program made it.
fn exchange(sig: usize, own: Option<&Action>) -> Result<Action, isize> {
    let _held = ACTIONS_LOCK.hold();
    let slot = &ACTIONS[sig];
    let before = slot.get();
    let mut kernels = NO_ACTION;
    let ret = match own {
        None => kernel_action(sig, 0, core::ptr::from_mut(&mut kernels) as usize),
        // A child that still shares our memory has actions of its own, but not a table.
        Some(own) if process::in_shared_child() => install(sig, own, &mut kernels),
        Some(own) => {
            slot.set(own);
            let ret = install(sig, &wrapped(sig, own), &mut kernels);
            if ret != 0 {
                slot.set(&before);
            }
            ret
        }
    };
    if ret != 0 {
        return Err(ret);
    }
    let ours = kernels.handler == address(hf_signal) as u64;
    Ok(if ours { before } else { kernels })
}

/// Which code a signal interrupted.
enum Place {
    /// The program, a trampoline, or code of ours where nothing is held.
    Open,
    Leaving(Leaving),
    /// Inside the hook.
    Hook,
}

static TEXT_START: AtomicUsize = AtomicUsize::new(0);
static TEXT_END: AtomicUsize = AtomicUsize::new(0);
static VDSO_START: AtomicUsize = AtomicUsize::new(0);
static VDSO_END: AtomicUsize = AtomicUsize::new(0);

/// Tells where our text and the vDSO are.
pub fn set_text(own: (usize, usize), vdso: (usize, usize)) {
    TEXT_START.store(own.0, Ordering::Relaxed);
    TEXT_END.store(own.1, Ordering::Relaxed);
    VDSO_START.store(vdso.0, Ordering::Relaxed);
    VDSO_END.store(vdso.1, Ordering::Relaxed);
}

fn between(ip: usize, start: &AtomicUsize, end: &AtomicUsize) -> bool {
    (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&ip)
}

fn is_own_text(ip: usize) -> bool {
    between(ip, &TEXT_START, &TEXT_END)
}

/// Whether the wrapper has just seen that no signal is held back.
fn is_gate(context: &Context) -> bool {
    const ZERO_FLAG: u64 = 0x40;
    let ip = context.rip as usize;
    (ip == address(hf_gate1) || ip == address(hf_gate2)) && context.eflags & ZERO_FLAG != 0
}

/// Parts of our text where a signal may be handled at once.
fn is_open(ip: usize) -> bool {
    ip == address(hf_signal)
        || (address(hf_open)..=address(hf_open_end)).contains(&ip)
        || (address(hf_open2)..address(hf_open2_end)).contains(&ip)
        || (address(hf_restorer)..=address(hf_restorer_end)).contains(&ip)
        || (address(hf_exec_open)..=address(hf_exec_end)).contains(&ip)
        || (address(hf_deliver_open)..=address(hf_deliver_end)).contains(&ip)
        || crate::faults::is_interruptible(ip)
}

/// Whether a call into the vDSO came from our own code: a return address of ours is near.
fn called_by_us(context: &Context) -> bool {
    (0..32u64).any(|i| {
        let word = user::read::<u64>((context.rsp + i * 8) as usize).unwrap_or(0) as usize;
        is_own_text(word) && !is_open(word)
    })
}

// SAFETY: integers.
unsafe impl Plain for u64 {}

fn place(context: &Context) -> Place {
    let (mut inner, entry) = (context, address(hf_signal) as u64);
    while inner.rip == entry {
        // Another signal's frame, whose handler has not begun: it counts where that one came.
        // SAFETY: the kernel passed the address of that frame in rdx, and it is still below.
        inner = unsafe { &*(inner.rdx as *const Context) };
    }
    match place_of(inner) {
        // What is left to do there is done when that signal's own turn comes.
        Place::Leaving(_) if !core::ptr::eq(inner, context) => Place::Open,
        place => place,
    }
}

fn place_of(context: &Context) -> Place {
    let ip = context.rip as usize;
    if patch::original_of(ip).is_some() {
        return Place::Open;
    }
    if between(ip, &VDSO_START, &VDSO_END) {
        return if called_by_us(context) {
            Place::Hook
        } else {
            Place::Open
        };
    }
    if !is_own_text(ip) || is_open(ip) || is_gate(context) {
        return Place::Open;
    }
    match entry::leaving(ip, context.rcx) {
        Some(leaving) => Place::Leaving(leaving),
        None => Place::Hook,
    }
}

/// What the wrapper does when there is no handler to run.
const BACK_INTO_HOOK: u64 = 0;
const BACK: u64 = 1;

/// Called by the wrapper: the handler to run, or one of the constants above. `shown` gets the
/// address that the frame shows while the handler runs and the one to put back afterwards.
unsafe extern "C" fn enter(
    sig: i32,
    info: *const Info,
    context: *mut Context,
    shown: *mut [u64; 2],
) -> u64 {
    // SAFETY: the kernel made both on this stack for this handler; nobody else uses them now.
    let (info, context) = unsafe { (&*info, &mut *context) };
    let number = sig as usize;
    let fault = info.code > 0 && matches!(number, SIGILL | SIGTRAP | SIGBUS | SIGFPE | SIGSEGV);
    let place = place(context);
    let back = if let Place::Hook = place {
        BACK_INTO_HOOK
    } else {
        BACK
    };
    if fault && is_memory_fault(number) && resolve(number, info, context) {
        return back;
    }
    match place {
        Place::Hook if fault => refault(number),
        Place::Hook => hold_back(sig, info, context),
        _ => {}
    }
    if back == BACK_INTO_HOOK {
        return back;
    }
    if let Place::Leaving(leaving) = &place {
        roll_forward(context, leaving);
    }
    let restarts = ACTIONS[number].get().flags & SA_RESTART != 0;
    // SAFETY: two words of the wrapper's own frame.
    show(context, unsafe { &mut *shown }, restarts);
    handler_of(number, fault, info).unwrap_or(BACK)
}

/// Makes the frame show a place in the program's own code.
fn show(context: &mut Context, shown: &mut [u64; 2], restarts: bool) {
    if let Some(landing) = crate::faults::interrupted_wait(context.rip as usize, restarts) {
        context.rip = landing as u64;
    }
    *shown = [context.rip; 2];
    if let Some(original) = patch::original_of(context.rip as usize) {
        context.rip = original as u64;
        shown[0] = original as u64;
    }
}

/// Faults that are ours to mend: a copy with a landing, a page that is filled on demand, which
/// raises SIGBUS. What the protection of a mapping forbids is SIGSEGV.
fn resolve(sig: usize, info: &Info, context: &mut Context) -> bool {
    if let Some(landing) = crate::faults::landing_for(context.rip as usize) {
        context.rip = landing as u64;
        return true;
    }
    if sig != SIGBUS {
        return false;
    }
    let addr = info.addr as usize;
    match room_below(context, addr) {
        None => dispatch::on_fault(addr),
        Some(stack) => mend_on(stack, addr),
    }
}

/// When the handler runs on a signal stack, which may be too small for what mends a page: the
/// interrupted stack below its red zone. Not when the fault may be an overflow of that stack.
fn room_below(context: &Context, addr: usize) -> Option<usize> {
    const RED_ZONE: usize = 128;
    const NEAR: usize = 64 << 10;
    let [base, _, size] = context.stack.map(|word| word as usize);
    let on = |sp: usize| sp > base && sp - base <= size;
    let (own, interrupted) = (core::ptr::from_ref(context) as usize, context.rsp as usize);
    let far = addr.abs_diff(interrupted) > NEAR;
    (on(own) && !on(interrupted) && far).then(|| interrupted - RED_ZONE)
}

/// Mends the fault on the stack that ends at `stack`. Every signal is blocked meanwhile: one that
/// wants the signal stack would start at its top again, over our frame.
fn mend_on(stack: usize, addr: usize) -> bool {
    let before = set_mask(u64::MAX);
    // SAFETY: below the red zone of the interrupted code nothing is in use, and that code stands
    // still until this handler returns.
    let mended = unsafe { hf_on_stack(addr, stack) };
    set_mask(before);
    mended != 0
}

extern "C" fn mend(addr: usize) -> u32 {
    u32::from(dispatch::on_fault(addr))
}

/// Lets the fault happen again without us.
fn refault(sig: usize) {
    let mut old = NO_ACTION;
    install(sig, &NO_ACTION, &mut old);
}

/// The program's handler; without one, what the kernel would do is made to happen.
fn handler_of(sig: usize, fault: bool, info: &Info) -> Option<u64> {
    let action = ACTIONS[sig].get();
    if action.handler > SIG_IGN {
        if action.flags & SA_RESETHAND != 0 {
            reset(sig);
        }
        return Some(action.handler);
    }
    if fault || action.handler == SIG_DFL {
        refault(sig);
        if !fault {
            queue(sig, core::ptr::from_ref(info) as usize);
        }
    }
    None
}

/// SA_RESETHAND: the action is the default one as soon as its handler runs.
fn reset(sig: usize) {
    let mut old = NO_ACTION;
    ACTIONS[sig].handler.store(SIG_DFL, Ordering::Release);
    install(sig, &wrapped(sig, &NO_ACTION), &mut old);
}

/// Completes what the interrupted code had left to do on its way out of the hook.
fn roll_forward(context: &mut Context, leaving: &Leaving) {
    if let Leaving::JumpOnly = leaving {
        context.rip = context.r11;
        return;
    }
    // SAFETY: between `hf_leave` and its last load the stack pointer is at the saved registers
    // of this very thread.
    let regs = unsafe { &*(context.rsp as *const Regs) };
    context.r15 = regs.r15;
    context.r14 = regs.r14;
    context.r13 = regs.r13;
    context.r12 = regs.r12;
    context.r10 = regs.r10;
    context.r9 = regs.r9;
    context.r8 = regs.r8;
    context.rbp = regs.rbp;
    context.rdi = regs.rdi;
    context.rsi = regs.rsi;
    context.rdx = regs.rdx;
    context.rbx = regs.rbx;
    context.rax = regs.rax;
    context.r11 = regs.target;
    context.rip = regs.target;
    context.eflags = regs.rflags;
    context.rsp += FRAME;
}

const HELD_MAX: usize = 256;
const FREE: u32 = 0;
const BUSY: u32 = 1;

/// `owner` is FREE, BUSY (being filled or emptied) or the thread's id.
struct Held {
    owner: AtomicU32,
    /// 0: none; there is only a mask to put back.
    signal: AtomicU32,
    /// What the thread had blocked when the signal came; all bits: unknown.
    mask: AtomicU64,
    info: [AtomicU64; 16],
}

static HELD: [Held; HELD_MAX] = [const {
    Held {
        owner: AtomicU32::new(FREE),
        signal: AtomicU32::new(0),
        mask: AtomicU64::new(0),
        info: [const { AtomicU64::new(0) }; 16],
    }
}; HELD_MAX];
/// No entry of `HELD` at or above this was ever used: nobody need look at them.
static HELD_USED: AtomicUsize = AtomicUsize::new(0);
/// Signals lost because too many were held back, in more threads than there are entries.
pub static LOST: AtomicU32 = AtomicU32::new(0);

impl Held {
    /// Makes a free entry busy.
    fn take(&self, owner: u32) -> bool {
        let order = (Ordering::Acquire, Ordering::Relaxed);
        let taken = self.owner.compare_exchange(owner, BUSY, order.0, order.1);
        taken.is_ok()
    }
}

fn words(info: &Info) -> [u64; 16] {
    // SAFETY: both are 128 bytes of plain integers.
    unsafe { core::mem::transmute_copy(info) }
}

fn used() -> &'static [Held] {
    &HELD[..HELD_USED.load(Ordering::Acquire).min(HELD_MAX)]
}

/// The entries of a thread.
fn held_by(tid: u32) -> impl Iterator<Item = &'static Held> {
    used()
        .iter()
        .filter(move |held| held.owner.load(Ordering::Acquire) == tid)
}

/// The mask of a thread that has signals held: handlers nest, and an inner one blocks more.
fn held_mask(tid: u32) -> Option<u64> {
    let all = held_by(tid).fold(u64::MAX, |mask, h| mask & h.mask.load(Ordering::Relaxed));
    (all != u64::MAX).then_some(all)
}

/// Keeps a signal until the hook leaves; the interrupted code gets no other until then. An
/// ordinary signal that is already held is dropped, as the kernel drops one that is pending.
fn hold_back(sig: i32, info: &Info, context: &mut Context) {
    let (own, mask) = (sys::gettid(), context.sigmask);
    let same = |h: &&Held| h.signal.load(Ordering::Relaxed) == sig as u32;
    let known = if sig < FIRST_REALTIME {
        held_by(own).find(same)
    } else {
        None
    };
    match known {
        Some(slot) => {
            slot.mask.fetch_and(mask, Ordering::Relaxed);
        }
        None if keep(own, sig, info, mask) => {}
        None => {
            LOST.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
    context.sigmask = ALL_HELD;
    holdfast_pmem::futex::note_put_off();
}

fn take_free() -> Option<&'static Held> {
    let mut entries = HELD.iter().enumerate();
    let free = entries.find(|(index, held)| {
        // Before it is taken: a fork in another thread may come at any moment.
        HELD_USED.fetch_max(index + 1, Ordering::AcqRel);
        held.take(FREE)
    });
    free.map(|(_, held)| held)
}

fn keep(own: u32, sig: i32, info: &Info, mask: u64) -> bool {
    let Some(slot) = take_free() else {
        return false;
    };
    slot.signal.store(sig as u32, Ordering::Relaxed);
    slot.mask.store(mask, Ordering::Relaxed);
    for (to, word) in slot.info.iter().zip(words(info)) {
        to.store(word, Ordering::Relaxed);
    }
    slot.owner.store(own, Ordering::Release);
    PENDING.fetch_add(1, Ordering::Release);
    true
}

/// Blocks every signal and sends what is held for this thread again: before what was sent to the
/// process meanwhile, but behind real-time signals of the same number that were sent to this very
/// thread. `mask` gets the mask that the program has; the caller puts it back where a signal may
/// be delivered.
///
/// # Safety
/// `mask` is a word that the caller may have written.
pub unsafe extern "C" fn resend(mask: *mut u64) {
    let before = set_mask(u64::MAX);
    let own = sys::gettid();
    let truth = match held_mask(own) {
        Some(held) if before == ALL_HELD => held,
        // Nobody but the program has changed it.
        _ => before,
    };
    for slot in held_by(own) {
        if !slot.take(own) {
            continue;
        }
        let info: [u64; 16] = core::array::from_fn(|i| slot.info[i].load(Ordering::Relaxed));
        let signal = slot.signal.load(Ordering::Relaxed) as usize;
        if signal != 0 && queue(signal, info.as_ptr() as usize) == -EAGAIN {
            // The user's queue of signals is full: again when the next call leaves.
            slot.mask.store(u64::MAX, Ordering::Relaxed);
            slot.owner.store(own, Ordering::Release);
            continue;
        }
        slot.owner.store(FREE, Ordering::Release);
        PENDING.fetch_sub(1, Ordering::Release);
    }
    // SAFETY: a word of the caller's frame.
    unsafe { *mask = truth };
}

fn queue(sig: usize, info: usize) -> isize {
    let (pid, tid) = (sys::getpid() as usize, sys::gettid() as usize);
    // SAFETY: `info` points to 128 live bytes.
    unsafe { sys::raw(nr::RT_TGSIGQUEUEINFO, [pid, tid, sig, info, 0, 0]) }
}

/// exec with the mask that the program has; comes back only with an error. What was held is
/// handled before. The caller holds no lock.
///
/// # Safety
/// As for `sys::raw`.
pub unsafe fn exec(nr: usize, args: &[usize; 6]) -> isize {
    let mut mask = 0u64;
    // SAFETY: the word is live.
    unsafe { resend(&raw mut mask) };
    // SAFETY: six words and a mask, all live; the call is the caller's to answer for.
    unsafe { hf_exec(nr, args.as_ptr(), &raw const mask) }
}

/// Whether a signal is held for the calling thread that must end its wait. Those that restart
/// what they interrupt are handled here and now: the caller holds no lock.
fn must_end() -> bool {
    if PENDING.load(Ordering::Acquire) == 0 {
        return false;
    }
    let (mut any, mut ends) = (false, false);
    for slot in held_by(sys::gettid()) {
        let signal = slot.signal.load(Ordering::Relaxed) as usize;
        any = true;
        ends |= ACTIONS[signal].get().flags & SA_RESTART == 0;
    }
    if any && !ends {
        // SAFETY: handlers of the program may run here.
        unsafe { hf_deliver() };
    }
    ends
}

/// In the child after fork: what was held for other threads, and for the thread that forked
/// (`parent`), is the parent's, but the child was born with the mask of that time. What arrived
/// for the child itself since its birth stays.
pub fn forked(parent: Option<u32>) {
    // What came between a look at an entry and freeing it would be lost, and its mask would stay.
    let before = set_mask(u64::MAX);
    ACTIONS_LOCK.reopen();
    let own = sys::gettid();
    let born_with = parent.and_then(held_mask);
    let mut kept = 0;
    for slot in used() {
        if slot.owner.load(Ordering::Relaxed) == own {
            kept += 1;
        } else {
            slot.owner.store(FREE, Ordering::Relaxed);
        }
    }
    if let Some(mask) = born_with
        && let Some(slot) = take_free()
    {
        slot.signal.store(0, Ordering::Relaxed);
        slot.mask.store(mask, Ordering::Relaxed);
        slot.owner.store(own, Ordering::Release);
        kept += 1;
    }
    PENDING.store(kept, Ordering::Release);
    set_mask(before);
}

// Without it the kernel would learn of handlers that are not wrapped.
const _: () = assert!(calls::class_is_caught(nr::RT_SIGACTION));
