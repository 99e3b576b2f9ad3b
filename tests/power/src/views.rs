//! Views while the service stands still: they wait for it only where the journal cannot tell.

use crate::image::Dir;
use holdfast_client::kv::{Durability, Entry, Keyspace, Scan, View};
use holdfast_client::mapped::{self, Segments};
use holdfast_client::{Caller, Client, slots};
use holdfast_pool::format::superblock::Consistency;
use holdfast_service::stepping::{Engine, Session, recover};
use holdfast_service::{CreateOptions, Files};
use rustix::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;

const POOL: u64 = 64 << 20;
const ROOT: Caller<'static> = Caller {
    uid: 0,
    gid: 0,
    groups: &[],
    umask: 0o022,
    privileged: true,
};
const V: Durability = Durability::Volatile;

fn keyspace(user: &Client) -> Keyspace {
    user.keyspace(&ROOT, b"ks", true).unwrap()
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
struct Stepped {
    _dir: Dir,
    engine: Engine,
    service: Option<Session>,
    client: Client,
}

impl Stepped {
    fn new() -> Stepped {
        let dir = Dir::new("views");
        let options = CreateOptions {
            size: Some(POOL),
            medium: None,
            consistency: Consistency::Posix,
        };
        holdfast_service::create(dir.path(), &options).unwrap();
        let mut engine = Engine::open(Files::open(dir.path()).unwrap()).unwrap();
        recover(&mut engine).unwrap();
        let mut service = Session::create(&mut engine).unwrap();
        let fds = service.descriptors().unwrap();
        let superblock = engine.pool.superblock();
        let segments = Segments {
            session: fds[0].as_fd(),
            meta: (fds[1].as_fd(), superblock.meta_len),
            journal: (fds[2].as_fd(), engine.journal.len() as u64),
            data: (fds[3].as_fd(), superblock.data_len),
            medium: 0,
            cpu: 0,
        };
        let session = mapped::map(&segments).unwrap();
        slots::register(&session, std::process::id(), None).unwrap();
        let client = Client::new(session, b"");
        while service.turn(&mut engine).more {}
        Stepped {
            _dir: dir,
            engine,
            service: Some(service),
            client,
        }
    }

    /// Lets the service work until `done`.
    fn work_while<T>(&mut self, done: impl FnOnce(&Client) -> T) -> T {
        let (stop, client, engine) = (AtomicBool::new(false), &self.client, &mut self.engine);
        let service = self.service.as_mut().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Acquire) {
                    service.turn(engine);
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
            let value = done(client);
            stop.store(true, Release);
            value
        })
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        slots::exit(self.client.session());
        if let Some(service) = self.service.take() {
            service.end(&mut self.engine).unwrap();
        }
    }
}

#[test]
fn a_view_does_not_wait_for_the_service() {
    let mut pool = Stepped::new();
    let (k, first) = pool.work_while(|c| {
        let k = keyspace(c);
        for key in ["a", "b", "gone"] {
            put(c, k, key, 1);
        }
        let first = c.view().unwrap();
        assert_eq!(scan(c, &first, k).len(), 3);
        (k, first)
    });
    let c = &pool.client;
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
    pool.work_while(|c| {
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
}

/// A view that is used only after the trees have moved on by many commits finds its own root.
#[test]
fn a_view_finds_its_root_later() {
    let mut pool = Stepped::new();
    let k = pool.work_while(|c| keyspace(c));
    let mut views = Vec::new();
    for n in 0..20 {
        let c = &pool.client;
        put(c, k, "a", n);
        put(c, k, &format!("n{n:03}"), n);
        views.push(c.view().unwrap());
    }
    put(&pool.client, k, "a", 99);
    pool.work_while(|c| {
        c.kv_sync().unwrap();
        let last = c.view().unwrap();
        assert_eq!(scan(c, &last, k).len(), 21);
        c.end_view(last);
    });
    for (n, view) in views.into_iter().enumerate() {
        let c = &pool.client;
        assert_eq!(get(c, &view, k, "a"), Some(n as u64));
        assert_eq!(scan(c, &view, k).len(), n + 2);
        c.end_view(view);
    }
}
