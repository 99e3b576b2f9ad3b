//! Programs that the library cannot enter, told apart before they run.
//!
//! Invariants: each is named in the report; its user is warned, on standard error, where it was
//! given something of the pool, since not every program says what it misses.

use super::args;
use super::data::ours;
use super::nr;
use super::process::Process;
use crate::sys;
use holdfast_client::program;

/// Arguments that are searched for names of the pool.
const ARGUMENTS: usize = 64;

/// Looks at a program that is about to run: `head` is the beginning of its file, `path` what to
/// call it, `argv` its arguments.
pub fn note(
    p: &Process,
    head: &[u8],
    path: &[u8],
    argv: usize,
    read_at: impl FnMut(u64, &mut [u8]) -> usize,
) {
    let Some(why) = program::closed(head, read_at) else {
        return;
    };
    p.client.note_uninstrumented(path);
    let what: &[u8] = if (0..3).any(|fd| ours(p, fd).is_ok()) {
        b": it cannot read or write the files of the pool that its standard input and output are\n"
    } else if p.client.cwd_inside() || is_named(p, argv) {
        b": it does not see the pool that its directory or arguments name\n"
    } else {
        return;
    };
    let line = [b"holdfast: ", path, b" ", why.text().as_bytes(), what].concat();
    // SAFETY: the kernel reads the line.
    unsafe { sys::raw(nr::WRITE, [2, line.as_ptr() as usize, line.len(), 0, 0, 0]) };
}

/// Whether one of the arguments has a path of the pool in it.
fn is_named(p: &Process, argv: usize) -> bool {
    (0..ARGUMENTS)
        .map_while(|n| {
            args::read_u64(argv.wrapping_add(8 * n))
                .ok()
                .filter(|arg| *arg != 0)
        })
        .any(|arg| args::with_path(arg as usize, |text| Ok(holds(text, &p.at))) == Ok(true))
}

/// Whether `text` names the directory `at` or something in it.
fn holds(text: &[u8], at: &[u8]) -> bool {
    text.windows(at.len())
        .enumerate()
        .any(|(n, part)| part == at && matches!(text.get(n + at.len()), None | Some(b'/')))
}
