//! The example of docs/kv.md: `cargo run --example addresses -- POOL`. Everything below stands
//! there, too, and a test compares the two.

use holdfast::{Durability::*, Expires, Pool};

fn main() -> holdfast::Result<()> {
    let path = std::env::args().nth(1).expect("which pool?");
    let pool = Pool::open_or_create(path)?;
    let users = pool.keyspace_or_create("users")?;

    users.put(b"ada", b"1815", Durable)?;
    users.put(b"alan", b"1912", Ordered)?;
    assert_eq!(users.get(b"ada")?, Some(b"1815".to_vec()));

    // Several changes, all or none of which happen, also to several keyspaces.
    let log = pool.keyspace_or_create("log")?;
    let mut batch = pool.batch();
    batch.put(&users, b"grace", b"1906")?;
    batch.erase(&users, b"ada")?;
    batch.put(&log, b"0001", b"ada left")?;
    batch.commit(Durable)?;

    // Only if the value is still what it was; else `present` is what it is.
    let swap = users.put_if(b"alan", Some(b"1912"), b"1954", Durable)?;
    assert!(swap.done && users.count()? == 2);

    // Not there any more a minute from now, and for ever after all.
    let minute = Expires::after(std::time::Duration::from_secs(60));
    users.put_until(b"kurt", b"1906", minute, Ordered)?;
    assert!(users.expire(b"kurt", Expires::Never, Ordered)?);
    assert_eq!(users.expires(b"kurt")?, Some(Expires::Never));
    users.erase(b"kurt", Ordered)?;

    // Only while it still expires at the time that it had.
    users.put_until(b"emmy", b"1882", minute, Ordered)?;
    let later = Expires::after(std::time::Duration::from_secs(120));
    assert!(
        users
            .expire_if(b"emmy", minute.time(), later, Ordered)?
            .done
    );
    let erased = users.erase_if_expires(b"emmy", minute.time(), Ordered)?;
    assert!(!erased.done && erased.present == Some(later));
    assert!(users.erase_if_expires(b"emmy", None, Ordered)?.done);

    // Pairs in the order of their keys, as of the moment at which the scan begins.
    for pair in users.prefix(b"")?.backward() {
        let (key, value) = pair?;
        println!("{} {}", String::from_utf8_lossy(&key), value.len());
    }

    // A moment that does not change, and one that has a name and lasts.
    let now = pool.read()?;
    pool.snapshot_create("first")?;
    users.erase(b"alan", Durable)?;
    assert!(now.keyspace("users")?.get(b"alan")?.is_some());
    let first = pool.snapshot("first")?.keyspace("users")?;
    assert!(first.get(b"alan")?.is_some());
    drop(first);
    pool.snapshot_delete("first")?;

    // A keyspace as a whole.
    pool.keyspace_rename("log", "old log", false)?;
    pool.keyspace_drop("old log")
}
