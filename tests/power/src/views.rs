//! Views while the service stands still: they wait for it only where the journal cannot tell.

use crate::image::Dir;
use crate::stack::{self, ME, Stack};
use holdfast_client::Client;
use holdfast_client::kv::{Durability, Entry, Keyspace, Scan, View};
use holdfast_pmem::Medium;
use holdfast_pool::format::superblock::Consistency;
use holdfast_service::CreateOptions;

const POOL: u64 = 64 << 20;
const V: Durability = Durability::Volatile;

fn keyspace(user: &Client) -> Keyspace {
    user.keyspace(&ME, b"ks", true).unwrap()
}

fn put(user: &Client, k: Keyspace, key: &str, number: u64) {
    let value = number.to_le_bytes();
    user.kv_put(k, key.as_bytes(), &value, V).unwrap();
}

fn get(user: &Client, view: &View, k: Keyspace, key: &str) -> Option<u64> {
    let mut out = [0; 8];
    let found = user.view_get(view, k, key.as_bytes(), &mut out).unwrap();
    found.map(|len| {
        assert_eq!(len, 8);
        u64::from_le_bytes(out)
    })
}

fn scan(user: &Client, view: &View, k: Keyspace) -> Vec<(String, u64)> {
    let (mut scan, mut all) = (Scan::new(k, b"", None, false), Vec::new());
    while let Some((key, entry)) = scan.next(user.session(), view).unwrap() {
        let Entry::Inline(value) = entry else {
            panic!("a value in blocks")
        };
        let number = u64::from_le_bytes(value.try_into().unwrap());
        all.push((String::from_utf8(key.to_vec()).unwrap(), number));
    }
    all
}

/// A session whose service works only when it is told to.
fn stepped() -> (Dir, Stack) {
    let dir = Dir::new("views");
    let options = CreateOptions {
        size: Some(POOL),
        medium: None,
        consistency: Consistency::Posix,
    };
    holdfast_service::create(dir.path(), &options).unwrap();
    let stack = Stack::start(stack::recovered(dir.path(), Medium::Memory).unwrap()).unwrap();
    (dir, stack)
}

#[test]
fn a_view_does_not_wait_for_the_service() {
    let (dir, mut pool) = stepped();
    let (k, first) = pool.serve(|c| {
        let k = keyspace(c);
        for key in ["a", "b", "gone"] {
            put(c, k, key, 1);
        }
        let first = c.view().unwrap();
        assert_eq!(scan(c, &first, k).len(), 3);
        (k, first)
    });
    let c = pool.client();
    put(c, k, "b", 2);
    put(c, k, "new", 3);
    c.kv_erase(k, b"gone", V).unwrap();
    let second = c.view().unwrap();
    put(c, k, "later", 9);
    for _ in 0..3 {
        let seen = ["a", "b", "new", "gone", "none"].map(|key| get(c, &second, k, key));
        assert_eq!(seen, [Some(1), Some(2), Some(3), None, None]);
    }
    put(c, k, "a", 9);
    assert_eq!(get(c, &second, k, "a"), Some(1));
    assert_eq!(get(c, &second, k, "later"), None);
    put(c, k, "b", 9);
    // What had changed before, too, only the service can tell.
    pool.serve(|c| {
        let seen = ["a", "b", "new", "later"].map(|key| get(c, &second, k, key));
        assert_eq!(seen, [Some(1), Some(2), Some(3), None]);
        let want = [("a", 1), ("b", 2), ("new", 3)].map(|(key, n)| (key.to_string(), n));
        assert_eq!(scan(c, &second, k), want);
        assert_eq!(get(c, &first, k, "gone"), Some(1));
        let third = c.view().unwrap();
        assert_eq!(scan(c, &third, k).len(), 4);
        for view in [first, second, third] {
            c.end_view(view);
        }
    });
    pool.end().unwrap();
    stack::check(dir.path(), Medium::Memory).unwrap();
}

/// A view that is used only after the trees have moved on by many commits finds its own root.
#[test]
fn a_view_finds_its_root_later() {
    let (dir, mut pool) = stepped();
    let k = pool.serve(keyspace);
    let mut views = Vec::new();
    for n in 0..20 {
        let c = pool.client();
        put(c, k, "a", n);
        put(c, k, &format!("n{n:03}"), n);
        views.push(c.view().unwrap());
    }
    put(pool.client(), k, "a", 99);
    pool.serve(|c| {
        c.kv_sync().unwrap();
        let last = c.view().unwrap();
        assert_eq!(scan(c, &last, k).len(), 21);
        c.end_view(last);
    });
    for (n, view) in views.into_iter().enumerate() {
        let c = pool.client();
        assert_eq!(get(c, &view, k, "a"), Some(n as u64));
        assert_eq!(scan(c, &view, k).len(), n + 2);
        c.end_view(view);
    }
    pool.end().unwrap();
    stack::check(dir.path(), Medium::Memory).unwrap();
}
