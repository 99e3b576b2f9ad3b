//! Who has which slot: children before, at and after their birth, and what they share. Several
//! clients of this one process play parent and child; where a process has to be dead, it lets go of
//! its life.

use crate::fixture::{ROOT, TestPool};
use crate::{READ, content, create};
use holdfast_client::{Base, Client, Error, Share, live, slots};
use holdfast_pmem::{Holder, MutBuf};
use holdfast_pool::session::{FDS, OWNER_SLOT};
use std::sync::atomic::Ordering::*;
use std::time::Duration;

const FREE: u32 = live::SLOT_FREE;

fn state(c: &Client, index: u32) -> u32 {
    c.session().slot_at(index).unwrap().state.load(SeqCst)
}

/// As if the process of slot `index` had died.
fn kill(c: &Client, index: u32) {
    let s = c.session();
    let generation = s.slot_at(index).unwrap().generation.load(SeqCst);
    s.locks().leave(live::life_of(index, generation));
}

/// As if the parent of the child that slot `index` waits for had died.
fn kill_parent(c: &Client, index: u32) {
    const NOBODY: u64 = 0;
    let slot = c.session().slot_at(index).unwrap();
    slot.parent.store(NOBODY, SeqCst);
}

/// Slots that are not free.
fn taken(c: &Client) -> Vec<u32> {
    (0..500).filter(|index| state(c, *index) != FREE).collect()
}

/// The slot that is made for a child with `share`.
fn prepared(c: &Client, share: Share) -> (holdfast_client::SlotId, u32) {
    let before = taken(c);
    let id = c.child_prepare(share).unwrap();
    let new = taken(c).into_iter().find(|index| !before.contains(index));
    (id, new.unwrap())
}

fn bind(c: &Client, path: &str, fd: u32) {
    let ofd = c.open(&ROOT, Base::Root, path.as_bytes(), READ, 0, 0);
    c.bind(fd, ofd.unwrap()).unwrap();
}

const MEMORY: Share = Share {
    memory: true,
    files: false,
    directory: false,
    ids: true,
};
const FILES: Share = Share {
    memory: false,
    files: true,
    directory: false,
    ids: true,
};
const DIRECTORY: Share = Share {
    memory: false,
    files: false,
    directory: true,
    ids: true,
};

/// The turn of slots comes to this one.
fn take_next(c: &Client, index: u32) {
    c.session().header().slots_hand.store(index, SeqCst);
}

#[test]
fn a_slot_waits_for_the_child_that_was_made() {
    let pool = TestPool::new("waits");
    let c = pool.client();
    let (id, index) = prepared(&c, MEMORY);
    // clone(2) is over, and the child, which lives, has not run yet.
    c.child_made(id, std::process::id() as isize);
    let (_, next) = prepared(&c, MEMORY);
    assert_ne!(index, next, "the slot of a child that lives was given away");
    slots::reap_dead(c.session());
    assert_ne!(state(&c, index), FREE);
    // The child comes, and then it goes.
    let child = pool.client();
    child.exit(true);
    child.fork_child(Some(id)).unwrap();
    assert_eq!(child.session().slot_index(), index);
    child.exit(true);
    assert_eq!(state(&c, index), FREE);
}

#[test]
fn one_side_decides_about_a_slot() {
    let pool = TestPool::new("decides");
    let (c, child) = (pool.client(), pool.client());
    child.exit(true);
    let (id, index) = prepared(&c, Share::default());
    // The call failed. Somebody else has the slot meanwhile.
    c.child_made(id, -11);
    assert_eq!(state(&c, index), FREE);
    take_next(&c, index);
    let (other, again) = prepared(&c, Share::default());
    assert_eq!(again, index);
    assert_eq!(child.fork_child(Some(id)), Err(Error::NoPlace));
    assert!(!child.has_place());
    c.child_made(id, -11);
    assert_ne!(
        state(&c, index),
        FREE,
        "a late parent freed the slot of another child"
    );
    child.fork_child(Some(other)).unwrap();
    assert!(child.has_place());
    assert_eq!(child.fork_child(Some(other)), Err(Error::NoPlace));
    c.shared_child_gone(other);
    assert_eq!(
        state(&c, index),
        live::SLOT_LIVE,
        "a parent freed its child's slot"
    );
}

#[test]
fn a_child_whose_parent_died_may_be_late() {
    let pool = TestPool::new("late");
    let (c, child) = (pool.client(), pool.client());
    child.exit(true);
    let (id, index) = prepared(&c, Share::default());
    kill_parent(&c, index);
    assert_eq!(slots::reap_dead(c.session()), 0);
    child.fork_child(Some(id)).unwrap();
    assert!(child.has_place());
    child.exit(true);
    // One that never comes does not keep its slot for ever.
    let (id, index) = prepared(&c, Share::default());
    kill_parent(&c, index);
    assert_eq!(slots::reap_dead(c.session()), 0);
    let slot = c.session().slot_at(index).unwrap();
    slot.orphaned.fetch_sub(2 * live::ORPHAN_MS_MAX, SeqCst);
    assert_eq!(slots::reap_dead(c.session()), 1);
    assert_eq!(child.fork_child(Some(id)), Err(Error::NoPlace));
}

/// A process that has no slot yet takes locks, too, and may be kept from running while it has one.
#[test]
fn who_joins_is_waited_for_while_it_lives() {
    const NUMBER: u32 = 40_000;
    let pool = TestPool::new("joining");
    let c = pool.client();
    let (s, life) = (c.session(), live::joining_life(NUMBER));
    s.locks().hold(life).unwrap();
    let joining = live::NOBODY + 1 | NUMBER << OWNER_SLOT.count_ones();
    s.header().slots_lock.store(joining, SeqCst);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| pool.client());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!other.is_finished(), "a living process's lock was taken");
        // It dies.
        s.locks().leave(life);
        assert!(other.join().unwrap().has_place());
    });
    let is_left = |n| s.locks().holder(live::joining_life(n)) == Ok(Holder::Nobody);
    assert!((1..=live::JOINING_MAX).all(is_left));
}

#[test]
fn without_a_place_nothing_of_others_is_touched() {
    let pool = TestPool::new("placeless");
    let (c, lost) = (pool.client(), pool.client());
    create(&c, "f", b"mine").unwrap();
    assert_eq!(lost.fork_child(None), Err(Error::NoPlace));
    assert!(!lost.has_place() && c.has_place());
    assert_eq!(lost.child_prepare(Share::default()), Err(Error::NoPlace));
    let before = taken(&c);
    lost.exit(true);
    assert_eq!(taken(&c), before);
    // A slot that was freed is not its old owner's any more, whoever has it now.
    let gone = pool.client();
    let index = gone.session().slot_index();
    gone.exit(true);
    assert!(!gone.has_place());
    take_next(&c, index);
    let next = pool.client();
    assert_eq!(next.session().slot_index(), index);
    assert!(!gone.has_place() && next.has_place());
    gone.exit(true);
    assert!(
        next.has_place(),
        "an exit ended the slot of another process"
    );
}

#[test]
fn a_shared_table_is_there_until_its_last_user_has_gone() {
    let pool = TestPool::new("table");
    let (parent, child) = (pool.client(), pool.client());
    child.exit(true);
    create(&parent, "f", b"shared").unwrap();
    create(&parent, "g", b"later").unwrap();
    bind(&parent, "f", 5);
    let (id, index) = prepared(&parent, FILES);
    let owner = parent.session().slot_index();
    child.fork_child(Some(id)).unwrap();
    assert!(child.lookup(5).is_some());
    bind(&child, "g", 6);
    assert!(
        parent.lookup(6).is_some(),
        "what the child opened is not there"
    );
    // The parent ends; its table stays as long as the child does.
    parent.exit(true);
    kill(&child, owner);
    slots::reap_dead(child.session());
    slots::reap_dead(child.session());
    assert_ne!(state(&child, owner), FREE);
    assert!(child.lookup(5).is_some() && child.lookup(6).is_some());
    assert_eq!(content(&child, "f").unwrap(), b"shared");
    let watcher = pool.client();
    child.exit(true);
    assert_eq!(state(&watcher, index), FREE);
    assert_eq!(state(&watcher, owner), FREE);
}

#[test]
fn a_shared_working_directory_is_one() {
    let pool = TestPool::new("directory");
    let (parent, child) = (pool.client(), pool.client());
    child.exit(true);
    parent.mkdir(&ROOT, Base::Root, b"d", 0o755).unwrap();
    let (id, _) = prepared(&parent, DIRECTORY);
    child.fork_child(Some(id)).unwrap();
    child.chdir(&ROOT, Base::Root, b"d").unwrap();
    child.set_creation_mask(0o77);
    assert!(parent.cwd_inside());
    assert_eq!(parent.creation_mask(), 0o77);
    // unshare(CLONE_FS) in the child.
    let own = child.part_prepare(false, true).unwrap().unwrap();
    child.parted(own, 0).unwrap();
    assert!(child.has_place() && child.cwd_inside());
    child.chdir_outside().unwrap();
    assert!(parent.cwd_inside() && !child.cwd_inside());
    assert_eq!(child.part_prepare(false, true), Ok(None));
}

#[test]
fn leaving_a_shared_table_takes_a_copy() {
    let pool = TestPool::new("copy");
    let (parent, child) = (pool.client(), pool.client());
    child.exit(true);
    create(&parent, "f", b"x").unwrap();
    bind(&parent, "f", 5);
    let (id, _) = prepared(&parent, FILES);
    child.fork_child(Some(id)).unwrap();
    // The owner of the table leaves it, as exec and unshare(CLONE_FILES) do.
    let before = parent.session().slot_index();
    let own = parent.part_prepare(true, false).unwrap().unwrap();
    parent.parted(own, 0).unwrap();
    assert_ne!(parent.session().slot_index(), before);
    assert!(parent.lookup(5).is_some() && child.lookup(5).is_some());
    parent.unbind(5).unwrap();
    assert!(parent.lookup(5).is_none() && child.lookup(5).is_some());
    bind(&child, "f", 7);
    assert!(parent.lookup(7).is_none());
    // A call that failed changes nothing.
    let index = child.session().slot_index();
    if let Some(next) = child.part_prepare(true, false).unwrap() {
        child.parted(next, -12).unwrap();
    }
    assert_eq!(child.session().slot_index(), index);
    assert!(child.lookup(5).is_some());
}

/// What the file behind a descriptor has.
fn read_at(c: &Client, fd: u32) -> Vec<u8> {
    let mut out = vec![0; 64];
    let read = c.pread(c.lookup(fd).unwrap(), MutBuf::from(&mut out[..]), 0);
    out.truncate(read.unwrap());
    out
}

/// Pages of descriptor tables beyond the first ones, and those that are free of them.
fn fd_pages(c: &Client) -> (u32, u32) {
    let (h, mut free) = (c.session().header(), 0);
    let mut link = h.fd_pages_free.load(SeqCst);
    while link != 0 {
        link = c.session().fd_page(link).unwrap().entries[0].load(SeqCst);
        free += 1;
    }
    (h.fd_pages_used.load(SeqCst), free)
}

#[test]
fn descriptors_of_any_number_are_inherited_and_their_pages_are_used_again() {
    let pool = TestPool::new("high");
    let (c, mut child) = (pool.client(), pool.client());
    child.exit(true);
    create(&c, "f", b"content").unwrap();
    let numbers = [3, 1023, 1024, 65_536, 200_000, FDS as u32 - 1];
    for fd in numbers {
        bind(&c, "f", fd);
    }
    assert_eq!(c.lookup(65_537), None);
    assert_eq!(c.lookup(500_000), None);
    let above = c.open(&ROOT, Base::Root, b"f", READ, 0, 0).unwrap();
    assert_eq!(c.bind(FDS as u32, above), Err(Error::TooManyFiles));
    c.release(above).unwrap();
    // A directory and four pages for each process.
    assert_eq!(fd_pages(&c), (5, 0));
    for _ in 0..20 {
        let (id, _) = prepared(&c, Share::default());
        child = pool.client();
        child.exit(true);
        child.fork_child(Some(id)).unwrap();
        let mut found = Vec::new();
        child.each_descriptor(&mut |fd| found.push(fd));
        assert_eq!(found, numbers);
        assert_eq!(child.next_descriptor(1025), Some(65_536));
        assert_eq!(read_at(&child, FDS as u32 - 1), b"content");
        assert_eq!(fd_pages(&c), (10, 0));
        child.exit(true);
        assert_eq!(fd_pages(&c), (10, 5));
    }
    drop(child);
    for fd in numbers {
        assert!(c.unbind(fd).unwrap());
        assert_eq!(c.lookup(fd), None);
    }
    assert_eq!(c.next_descriptor(0), None);
}

#[test]
fn a_process_has_hundreds_of_thousands_of_descriptors() {
    let pool = TestPool::new("many-high");
    let (c, child) = (pool.client(), pool.client());
    child.exit(true);
    create(&c, "f", b"content").unwrap();
    bind(&c, "f", 5000);
    let numbers = 100_000..300_000;
    numbers.clone().for_each(|fd| c.dup(5000, fd).unwrap());
    let (id, _) = prepared(&c, Share::default());
    child.fork_child(Some(id)).unwrap();
    for fd in numbers {
        assert_eq!(child.lookup(fd), c.lookup(5000), "{fd}");
        assert!(c.unbind(fd).unwrap());
    }
    let ofd = c.session().ofd(c.lookup(5000).unwrap().raw()).unwrap();
    assert_eq!(ofd.refs.load(SeqCst), 200_002);
    child.exit(true);
    assert_eq!(ofd.refs.load(SeqCst), 1);
    let (_, free) = fd_pages(&c);
    assert!(free >= 196, "{free} pages came back");
}

#[test]
fn pages_of_descriptors_that_a_dead_process_lost_are_found_again() {
    let pool = TestPool::new("lost-pages");
    let (c, other) = (pool.client(), pool.client());
    create(&c, "f", b"content").unwrap();
    bind(&c, "f", 5000);
    let h = c.session().header();
    // It died when it had taken three pages and not noted the last one anywhere.
    bind(&other, "f", 900_000);
    h.fd_pages_used.fetch_add(1, SeqCst);
    h.fd_pages_lock.store(other.session().owner(), SeqCst);
    kill(&other, other.session().slot_index());
    slots::reap_dead(c.session());
    assert_eq!(fd_pages(&c), (5, 3));
    bind(&c, "f", 70_000);
    assert_eq!(fd_pages(&c), (5, 2));
    assert_eq!(read_at(&c, 5000), b"content");
}
