//! What the scanner finds in an object whose calls are known: `c/numbers.s`.
#![expect(dead_code, reason = "the library uses what the tests do not")]

extern crate alloc;

#[path = "../src/calls.rs"]
mod calls;
#[path = "../src/elf.rs"]
mod elf;
#[path = "../src/scan.rs"]
mod scan;
#[path = "../src/sys.rs"]
mod sys;
#[path = "../src/table.rs"]
mod table;

use std::process::Command;
use std::sync::LazyLock;

/// Made once: the tests run beside each other, and must not read what another is still linking.
static OBJECT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let out = concat!(env!("CARGO_TARGET_TMPDIR"), "/numbers.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/numbers.s");
    let made = Command::new("cc")
        .args(["-shared", "-nostdlib", "-o", out, source])
        .status();
    assert!(made.expect("cc runs").success());
    std::fs::read(out).expect("the object is there")
});

fn scanned() -> table::Table {
    scan::scan(&elf::Elf::from_file(&OBJECT).expect("it is an object"))
}

#[test]
fn numbers_are_known_beside_tables_and_far_from_where_they_are_set() {
    let mut numbers: Vec<_> = scanned().sites.iter().map(|site| site.nr).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [Some(9), Some(11)]);
}

#[test]
fn a_call_that_cannot_be_patched_and_concerns_no_mapping_is_told_apart() {
    let unpatchable = scanned().unpatchable;
    assert_eq!((unpatchable.all, unpatchable.of_mappings), (1, 0));
}

#[test]
fn what_cannot_be_patched_is_read_as_it_was_written() {
    let mut some = table::Unpatchable::default();
    for nr in [Some(165), None, Some(11)] {
        some.add(nr);
    }
    assert_eq!((some.all, some.of_mappings), (3, 2));
    assert_eq!(table::Unpatchable::from_bits(some.to_bits()), some);
}
