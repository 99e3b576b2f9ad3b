//! Holdfast preload: catches the system calls of an unmodified program, inside the program.
//!
//! Invariants:
//! * No libc, no allocator, no thread-local storage of the program is ever used. The only exported
//!   symbol is the one that the loader demands of an auditor: the library could be loaded into
//!   anything.
//! * A caught call that Holdfast does not answer runs in the kernel exactly as the program made it.
//! * While our code runs, no handler of the program runs in the same thread (`signals`).
//! * Nothing unwinds out of here: a panic ends the process, as a corrupted state would.
#![no_std]
extern crate alloc;

mod births;
mod cache;
mod calls;
mod dispatch;
mod early;
mod elf;
mod entry;
mod env;
mod faults;
mod heap;
mod hook;
mod image;
mod lock;
mod maps;
mod mem;
mod patch;
mod process;
mod scan;
mod signals;
mod start;
mod sys;
mod table;
mod tramp;
mod user;
mod waiting;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    const MESSAGE: &[u8] = b"holdfast: internal error, the process cannot continue\n";
    let args = [2, MESSAGE.as_ptr() as usize, MESSAGE.len(), 0, 0, 0];
    loop {
        // SAFETY: writes a constant; then ends the process.
        unsafe {
            sys::raw(sys::nr::WRITE, args);
            sys::raw(sys::nr::EXIT_GROUP, [134, 0, 0, 0, 0, 0]);
        }
    }
}
