//! The parts of preload that read ELF objects, which anybody may have made.
//!
//! Invariant: the sources are preload's own: it is a library of C's kind, so nothing can call into
//! it.
extern crate alloc;

#[path = "../../../../crates/preload/src/calls.rs"]
pub mod calls;
#[path = "../../../../crates/preload/src/elf.rs"]
pub mod elf;
#[path = "../../../../crates/preload/src/scan.rs"]
pub mod scan;
#[path = "../../../../crates/preload/src/table.rs"]
pub mod table;

/// Numbers of system calls that `calls` names.
mod sys {
    pub mod nr {
        pub const CLONE: usize = 56;
        pub const VFORK: usize = 58;
        pub const CLONE3: usize = 435;
    }
}

/// Does with a file what preload does when a program maps it to execute it, up to the patches;
/// how many there are, or what is wrong with one.
pub fn read(file: &[u8]) -> Result<usize, String> {
    let Some(object) = elf::Elf::from_file(file) else {
        return Ok(0);
    };
    let _ = object.build_id();
    let _ = scan::has_candidates(&object);
    let sites = scan::scan(&object).sites;
    for site in &sites {
        let there = object.bytes(site.addr.into(), site.len.into());
        let sound = site.is_sane()
            && there == Some(site.bytes())
            && table::Site::decode(&site.encode()).as_ref() == Some(site);
        if !sound {
            return Err(format!("{site:?}"));
        }
    }
    Ok(sites.len())
}
