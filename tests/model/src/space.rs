//! The table of free extents and the cached extent, with a service that fills the table again.

use super::play;
use holdfast_client::{Client, space};
use holdfast_pool::session::free_table::{Feed, class_of, pack, unpack};
use holdfast_pool::session::{CACHED_SHORT, FreeTable, Ring};
use holdfast_pool::space::Run;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::*;

const ROUNDS: u64 = 4;
/// Blocks of the extents in one story, and how many there are.
const LEN: u64 = 8;
const EXTENTS: u64 = 6;

/// What the service of a story counts, and the blocks that somebody has. All threads of a story are
/// one thread of the system.
#[derive(Default)]
struct Books {
    feed: Feed,
    given_back: Feed,
    held: BTreeSet<u64>,
    first: u64,
}

thread_local! {
    static BOOKS: RefCell<Books> = RefCell::default();
}

fn table(client: &Client) -> &FreeTable {
    client.session().free_table().expect("a table")
}

fn hold(extent: Run) {
    BOOKS.with_borrow_mut(|books| {
        for block in extent.start..extent.end() {
            assert!(
                books.held.insert(block),
                "block {block} was handed out twice"
            );
        }
    });
}

fn let_go(extent: Run) {
    BOOKS.with_borrow_mut(|books| {
        for block in extent.start..extent.end() {
            assert!(books.held.remove(&block), "block {block} is nobody's");
        }
    });
}

/// The table with `extents` of `len` blocks, in one class, and nothing else.
fn fill(client: &Client, len: u64, extents: u64) {
    let table = table(client);
    let all = table.classes.iter().flat_map(drain);
    let longest = all.max_by_key(|run| run.len);
    let longest = longest.expect("an extent");
    let ring = &table.classes[class_of(len)];
    assert!(longest.len >= len * extents && ring.count() == 0);
    let mut feed = Feed::resume(ring);
    for n in 0..extents {
        feed.push(ring, Run::new(longest.start + n * len, len));
    }
    feed.publish(ring);
    BOOKS.set(Books {
        feed,
        first: longest.start,
        ..Books::default()
    });
}

/// Two extents of one block: whoever has one gives it back.
fn begin_few(client: &Client) {
    fill(client, 1, 2);
}

fn take_and_give_back(client: &Client, _: usize) {
    let table = table(client);
    for _ in 0..ROUNDS {
        let Some((extent, _)) = table.classes[0].take(1) else {
            holdfast_pmem::model::rest();
            continue;
        };
        hold(extent);
        let_go(extent);
        assert!(table.given_back.give_back(extent));
    }
}

/// Hands out what was given back, and takes everything back now and then, as in a session that
/// rests.
fn serve(client: &Client, _: usize) {
    let table = table(client);
    for round in 0..ROUNDS {
        let (mut feed, mut given_back) = BOOKS.with_borrow(|books| (books.feed, books.given_back));
        feed.look(&table.classes[0]);
        let mut all = given_back.collect(&table.given_back);
        if round % 2 == 1 {
            all.extend(feed.take_back(&table.classes[0], 0));
        }
        all.iter().for_each(|extent| hold(*extent));
        for extent in all {
            let_go(extent);
            feed.push(&table.classes[0], extent);
        }
        feed.publish(&table.classes[0]);
        BOOKS.with_borrow_mut(|books| (books.feed, books.given_back) = (feed, given_back));
    }
}

fn drain(ring: &Ring) -> Vec<Run> {
    std::iter::from_fn(|| ring.take(1).map(|(extent, _)| extent)).collect()
}

/// Every block is in one place.
fn all_there(client: &Client, blocks: u64) {
    let table = table(client);
    let mut given_back = BOOKS.with_borrow(|books| books.given_back);
    for cached in &client.session().slot().cached {
        hold(unpack(cached.swap(0, AcqRel)));
    }
    table.classes.iter().flat_map(drain).for_each(hold);
    given_back
        .collect(&table.given_back)
        .into_iter()
        .for_each(hold);
    BOOKS.with_borrow(|books| {
        let all: BTreeSet<u64> = (books.first..books.first + blocks).collect();
        assert_eq!(books.held, all, "blocks were lost");
    });
}

/// Fails when `Ring::take` does not compare, and when `Ring::give_back` does not take out what it
/// put where the service had looked before.
#[test]
fn an_extent_is_in_one_place() {
    let last = |client: &Client| all_there(client, 2);
    play(
        begin_few,
        &[take_and_give_back, take_and_give_back, serve],
        last,
    );
}

/// Some extents in the table, another one cached.
fn begin_cached(client: &Client) {
    fill(client, LEN, EXTENTS);
    let (extent, _) = table(client).classes[class_of(LEN)].take(1).expect("one");
    let cached = &client.session().slot().cached[CACHED_SHORT];
    cached.store(pack(extent), Relaxed);
}

/// Few blocks at a time, as threads of one process take them; some are not used.
fn allocate(client: &Client, n: usize) {
    let s = client.session();
    for round in 0..3 {
        let want = [3, 1, 4][(round + n) % 3];
        let (block, len) = space::alloc(s, want, None).expect("blocks");
        assert!((1..=want).contains(&len));
        let run = Run::of_data(block, len.into());
        hold(run);
        if round == 1 {
            let_go(run);
            space::give_back(s, block, len);
        }
    }
}

/// Takes the cached extent back, as the service does when the session rests, and as others do when
/// there is nothing else.
fn reclaim(client: &Client, _: usize) {
    let cached = &client.session().slot().cached[CACHED_SHORT];
    for _ in 0..2 {
        let extent = unpack(cached.swap(0, AcqRel));
        hold(extent);
        let_go(extent);
        assert!(extent.len == 0 || table(client).given_back.give_back(extent));
    }
}

/// Fails when `take_cached` or `keep` store the word without comparing.
#[test]
fn a_cached_extent_is_one_word() {
    let last = |client: &Client| all_there(client, LEN * EXTENTS);
    play(begin_cached, &[allocate, allocate, reclaim], last);
}
