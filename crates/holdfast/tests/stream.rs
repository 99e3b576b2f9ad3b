//! Values that are larger than one put can take: written and read piece by piece.

mod fixture;

use fixture::Fixture;
use holdfast::{Durability, Error, Expires, Keyspace};
use std::io::{Read, Seek, SeekFrom, Write};

const D: Durability = Durability::Durable;
const PIECE: usize = 300_000;

fn piece(i: usize) -> Vec<u8> {
    (0..PIECE).map(|at| (at / 7 + i * 3) as u8).collect()
}

fn write(keyspace: &Keyspace, key: &[u8], pieces: usize) {
    let mut writer = keyspace.writer(key).unwrap();
    for i in 0..pieces {
        writer.write_all(&piece(i)).unwrap();
        assert_eq!(
            keyspace.len_of(key).unwrap().unwrap_or(3),
            3,
            "before its end"
        );
    }
    writer.finish(D).unwrap();
}

#[test]
fn values_of_any_size_appear_as_a_whole_and_replace_what_was_there() {
    values_of_any_size(Fixture::new(512 << 20));
    values_of_any_size(Fixture::served(512 << 20));
}

fn values_of_any_size(fixture: Fixture) {
    let pool = fixture.open();
    let keyspace = pool.keyspace_or_create("large").unwrap();
    keyspace.put(b"key", b"old", D).unwrap();
    for pieces in [1, 10, 300] {
        keyspace.put(b"key", b"old", D).unwrap();
        write(&keyspace, b"key", pieces);
        let len = (pieces * PIECE) as u64;
        assert_eq!(keyspace.len_of(b"key").unwrap(), Some(len));
        let mut reader = keyspace.reader(b"key").unwrap().unwrap();
        let mut have = vec![0; PIECE];
        for i in 0..pieces {
            reader.read_exact(&mut have).unwrap();
            assert!(have == piece(i), "{pieces}: piece {i}");
        }
        assert_eq!(reader.read(&mut have).unwrap(), 0);
        assert_eq!(reader.seek(SeekFrom::End(-5)).unwrap(), len - 5);
        // What was found stays, whatever becomes of the key.
        keyspace.put(b"key", b"new", D).unwrap();
        reader.read_exact(&mut have[..5]).unwrap();
        assert_eq!(have[..5], piece(pieces - 1)[PIECE - 5..]);
        assert_eq!(keyspace.get(b"key").unwrap().unwrap(), b"new");
        keyspace.put(b"key", b"old", D).unwrap();
    }
    let large = vec![9; 70 << 20];
    keyspace.put(b"at once", &large, D).unwrap();
    assert!(keyspace.get(b"at once").unwrap().unwrap() == large);
    let scanned: Vec<_> = keyspace.prefix(b"").unwrap().map(|e| e.unwrap()).collect();
    let found: Vec<_> = scanned.iter().map(|(k, v)| (&k[..], v.len())).collect();
    assert_eq!(found, [(&b"at once"[..], large.len()), (&b"key"[..], 3)]);
    let no_name = keyspace.put(b"not/a/name", &large, D).unwrap_err();
    assert_eq!(no_name.errno(), 27);
    // A value that is not finished leaves nothing.
    let mut writer = keyspace.writer(b"dropped").unwrap();
    writer.write_all(&vec![1; 5 << 20]).unwrap();
    drop(writer);
    assert_eq!(keyspace.get(b"dropped").unwrap(), None);
    keyspace.erase(b"at once", D).unwrap();
    assert_eq!(keyspace.get(b"at once").unwrap(), None);
}

#[test]
fn a_value_that_expires_may_be_written_piece_by_piece() {
    values_that_expire(Fixture::new(512 << 20));
    values_that_expire(Fixture::served(512 << 20));
}

fn values_that_expire(fixture: Fixture) {
    let pool = fixture.open();
    let keyspace = pool.keyspace_or_create("large").unwrap();
    let hour = Expires::after(std::time::Duration::from_secs(3600));
    keyspace.put(b"key", b"old", D).unwrap();
    let mut writer = keyspace.writer_until(b"key", hour).unwrap();
    for i in 0..10 {
        writer.write_all(&piece(i)).unwrap();
        assert_eq!(keyspace.len_of(b"key").unwrap(), Some(3), "before its end");
    }
    writer.finish(D).unwrap();
    assert_eq!(keyspace.expires(b"key").unwrap(), Some(hour));
    let value = keyspace.get(b"key").unwrap().unwrap();
    assert!(value.len() == 10 * PIECE && value[9 * PIECE..] == piece(9));
    // As large as it may be, and a byte more.
    let most = vec![1; 64 << 20];
    let mut writer = keyspace.writer_until(b"key", hour).unwrap();
    writer.write_all(&most).unwrap();
    let refused = writer.write_all(b"x").unwrap_err().downcast::<Error>();
    assert!(
        matches!(refused, Ok(Error::ExpiringTooLarge)),
        "{refused:?}"
    );
    writer.finish(D).unwrap();
    assert_eq!(keyspace.len_of(b"key").unwrap(), Some(64 << 20));
    assert_eq!(keyspace.expires(b"key").unwrap(), Some(hour));
    let past = keyspace.writer_until(b"key", Expires::At(1)).unwrap();
    past.finish(D).unwrap();
    assert_eq!(keyspace.get(b"key").unwrap(), None);
}

#[test]
fn a_change_may_depend_on_the_expiry_of_its_key() {
    depending_on_expiry(Fixture::new(64 << 20));
    depending_on_expiry(Fixture::served(64 << 20));
}

fn depending_on_expiry(fixture: Fixture) {
    let pool = fixture.open();
    let keys = pool.keyspace_or_create("keys").unwrap();
    let [soon, later] = [3600, 7200].map(|s| Expires::after(std::time::Duration::from_secs(s)));
    for len in [0, 100, 9000, 300_000] {
        let value = vec![7; len];
        keys.put_until(b"a", &value, soon, D).unwrap();
        let refused = keys.expire_if(b"a", later.time(), later, D).unwrap();
        assert!(!refused.done && refused.present == Some(soon));
        let done = keys.expire_if(b"a", soon.time(), later, D).unwrap();
        assert!(done.done && done.present == Some(later));
        assert_eq!(keys.get(b"a").unwrap(), Some(value.clone()));
        assert_eq!(keys.expires(b"a").unwrap(), Some(later));
        assert!(!keys.erase_if_expires(b"a", soon.time(), D).unwrap().done);
        let put = keys.put_if_expires(b"a", None, b"x", Expires::Never, D);
        assert_eq!(put.unwrap().present, Some(Expires::Never));
        let refused = keys.put_if_expires(b"a", None, &value, soon, D).unwrap();
        assert!(!refused.done && refused.present == Some(Expires::Never));
        assert_eq!(keys.get(b"a").unwrap().unwrap(), b"x");
        keys.put_until(b"a", &value, Expires::At(1), D).unwrap();
        for gone in [
            keys.put_if_expires(b"a", None, b"x", soon, D),
            keys.erase_if_expires(b"a", Some(1), D),
            keys.expire_if(b"a", None, later, D),
        ] {
            let gone = gone.unwrap();
            assert!(!gone.done && gone.present.is_none());
        }
    }
    assert_eq!(keys.count().unwrap(), 0);
}
