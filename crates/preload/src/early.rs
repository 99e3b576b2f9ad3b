//! What is mapped when this library is loaded as the only auditor, which is how programs of a
//! session are started: the program, its loader, this library and the vDSO. Where they are, the
//! auxiliary vector tells, without a look at /proc/self/maps.
use crate::elf::Elf;
use crate::entry;
use crate::env::Env;

const PAGE: usize = 4096;
const AT_PHDR: usize = 3;
const AT_BASE: usize = 7;
const AT_SYSINFO_EHDR: usize = 33;
/// Where program headers begin in every object that a linker makes.
const HEADERS_AT: usize = 64;

/// Address ranges, and the two objects of others.
pub struct Early {
    /// The text of this library.
    pub own: (usize, usize),
    /// (0, 0): there is none.
    pub vdso: (usize, usize),
    pub program: Elf<'static>,
    pub loader: Elf<'static>,
}

/// `None`: more may be mapped, or it is not where it usually is.
pub fn find(env: &Env) -> Option<Early> {
    let auditors = env.get(b"LD_AUDIT")?;
    if auditors.is_empty() || auditors.contains(&b':') {
        return None;
    }
    // The loader was not started as a program, with the program as its argument.
    let loader = env.auxiliary(AT_BASE).filter(|base| *base != 0)?;
    let program = env.auxiliary(AT_PHDR)?.checked_sub(HEADERS_AT)?;
    let vdso = env.auxiliary(AT_SYSINFO_EHDR);
    let text = |elf: Elf| elf.mapped_text().into_iter().next();
    Some(Early {
        own: own_text(),
        vdso: vdso.and_then(object_at).and_then(text).unwrap_or((0, 0)),
        program: object_at(program)?,
        loader: object_at(loader)?,
    })
}

/// The object whose first page is mapped at `at`.
fn object_at(at: usize) -> Option<Elf<'static>> {
    if !at.is_multiple_of(PAGE) {
        return None;
    }
    // SAFETY: the kernel or the loader has mapped an object there, whose headers are in its first
    // page; it stays while the program runs.
    unsafe { Elf::from_memory(core::slice::from_raw_parts(at as *const u8, PAGE)) }
}

/// The text of this library; the linker says where it begins.
fn own_text() -> (usize, usize) {
    unsafe extern "C" {
        #[link_name = "__ehdr_start"]
        static START: u8;
    }
    let ip = entry::entry_address();
    let holds = |text: &(usize, usize)| (text.0..text.1).contains(&ip);
    let own = object_at(&raw const START as usize);
    let text = own.and_then(|elf| elf.mapped_text().into_iter().find(holds));
    text.unwrap_or((0, 0))
}
