//! Keyspaces in the stories: what is changed, by the client, and what must be there, in a map.
//!
//! Invariants:
//!  * The changes of one call are all there or none of them is.
//!  * A value expires never, long before all stories or long after: so one that has expired is
//!    not there as soon as it is put, and stays in the trees until somebody removes it.
//!  * What expires is in the index of expiry, under its time and no other.

use crate::judge::{Seen, View};
use holdfast_client::kv::{Changes, Durability, Entry, Expected, Keyspace, Scan, Swapped};
use holdfast_client::{Caller, Client};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// A change of a keyspace, which is named.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// So many bytes, all the same.
    Put(&'static str, &'static str, usize, u8),
    Erase(&'static str, &'static str),
    /// From a key on, up to another.
    Range(&'static str, &'static str, &'static str),
    /// As `Put`, of so many keys that begin so.
    Many(&'static str, &'static str, usize, usize, u8),
    /// As `Put`; it expires then.
    Until(&'static str, &'static str, usize, u8, i64),
    /// As `Many`; they expire then.
    ManyUntil(&'static str, &'static str, usize, usize, u8, i64),
}

pub const NEVER: i64 = 0;
/// In 1970.
pub const PAST: i64 = 1_000_000;
/// In 2200, and a day later.
pub const LATE: i64 = 7_258_118_400_000_000_000;
pub const LATER: i64 = LATE + 86_400_000_000_000;

/// Keyspace and key, the value, and when it expires.
pub type Values = BTreeMap<(String, String), (Vec<u8>, i64)>;

fn put(values: &mut Values, place: (String, String), bytes: Vec<u8>, until: i64) {
    match until {
        PAST => drop(values.remove(&place)),
        until => drop(values.insert(place, (bytes, until))),
    }
}

/// What saying anew when a key expires does to a map.
pub fn expire(values: &mut Values, keyspace: &str, key: &str, until: i64) {
    let place = (keyspace.to_string(), key.to_string());
    let (bytes, _) = values.remove(&place).unwrap();
    put(values, place, bytes, until);
}

/// What the numbered keys of `Many` are called.
fn numbered(key: &str, i: usize) -> String {
    format!("{key}{i:05}")
}

/// What a change does to a map.
pub fn apply(values: &mut Values, change: &Change) {
    let at = |k: &str, key: &str| (k.to_string(), key.to_string());
    match *change {
        Change::Put(k, key, len, byte) => put(values, at(k, key), vec![byte; len], NEVER),
        Change::Until(k, key, len, byte, until) => {
            put(values, at(k, key), vec![byte; len], until);
        }
        Change::Erase(k, key) => {
            values.remove(&at(k, key));
        }
        Change::Range(k, from, to) => {
            let inside =
                |(name, key): &(String, String)| name == k && (from..to).contains(&key.as_str());
            values.retain(|place, _| !inside(place));
        }
        Change::Many(k, key, count, len, byte) => {
            apply(values, &Change::ManyUntil(k, key, count, len, byte, NEVER));
        }
        Change::ManyUntil(k, key, count, len, byte, until) => {
            let places = (0..count).map(|i| at(k, &numbered(key, i)));
            places.for_each(|place| put(values, place, vec![byte; len], until));
        }
    }
}

/// Makes all changes, as one batch.
pub fn make(c: &Client, me: &Caller, changes: &[Change]) -> holdfast_client::Result<()> {
    let mut all = Changes::default();
    let open = |name: &str| c.keyspace(me, name.as_bytes(), false);
    let put = |all: &mut Changes, place: (Keyspace, &str), (len, byte), until| {
        let place = (place.0, place.1.as_bytes());
        all.put_until(c, place, &vec![byte; len], until)
    };
    for change in changes {
        match *change {
            Change::Put(k, key, len, byte) => put(&mut all, (open(k)?, key), (len, byte), NEVER)?,
            Change::Until(k, key, len, byte, until) => {
                put(&mut all, (open(k)?, key), (len, byte), until)?;
            }
            Change::Erase(k, key) => all.erase(c, open(k)?, key.as_bytes())?,
            Change::Range(k, from, to) => {
                all.erase_range(open(k)?, from.as_bytes(), Some(to.as_bytes()))?;
            }
            Change::Many(k, key, count, len, byte) => {
                let keyspace = open(k)?;
                for i in 0..count {
                    put(&mut all, (keyspace, &numbered(key, i)), (len, byte), NEVER)?;
                }
            }
            Change::ManyUntil(k, key, count, len, byte, until) => {
                let keyspace = open(k)?;
                for i in 0..count {
                    put(&mut all, (keyspace, &numbered(key, i)), (len, byte), until)?;
                }
            }
        }
    }
    c.kv_commit(all, Durability::Durable)
}

/// Says anew when the key expires, which is there.
pub fn make_expire(
    c: &Client,
    me: &Caller,
    (keyspace, key, until): (&str, &str, i64),
) -> holdfast_client::Result<()> {
    let keyspace = c.keyspace(me, keyspace.as_bytes(), false)?;
    let mut bytes = vec![0; 100_000];
    let len = c.kv_get(keyspace, key.as_bytes(), &mut bytes)?;
    bytes.truncate(len.expect("the key is there") as usize);
    let place = (keyspace, key.as_bytes());
    let new = Some((&bytes[..], until));
    let swapped = c.kv_swap(
        None,
        place,
        Expected::Value(Some(&bytes)),
        new,
        Durability::Durable,
    )?;
    assert_eq!(swapped, Swapped::Done);
    Ok(())
}

/// The values that expire, and the index of expiry: time, and keyspace with key. Read as the
/// specification says, from the trees as they are.
#[derive(Default)]
struct Expiring {
    values: BTreeSet<(i64, Vec<u8>)>,
    index: BTreeSet<(i64, Vec<u8>)>,
}

/// Whether each value that expires is in the index, and nothing else is, unless a range that was
/// erased has left it there.
pub fn check_index(c: &Client, ranges: bool) -> Result<(), String> {
    let (reader, mut all) = (c.session().tree().reader(), Expiring::default());
    let number = |bytes: &[u8]| i64::from_be_bytes(*bytes.first_chunk().unwrap());
    let scanned = reader.scan(holdfast_pool::layout::VALUES, &[], None, |key, value| {
        if number(key) == 0 {
            all.index.insert((number(&key[8..]), key[16..].to_vec()));
        } else if matches!(value[0], 3 | 4) {
            let until = i64::from_le_bytes(*value[7..].first_chunk().unwrap());
            all.values.insert((until, key.to_vec()));
        }
        ControlFlow::Continue(())
    });
    scanned.map_err(|e| e.to_string())?;
    let lacks = all.values.difference(&all.index).count();
    let more = all.index.difference(&all.values).count();
    match lacks > 0 || (more > 0 && !ranges) {
        true => Err(format!(
            "the index lacks {lacks} values and has {more} more"
        )),
        false => Ok(()),
    }
}

/// How a value shows among the objects.
const VALUE: u32 = 0o170_000;

fn path(keyspace: &str, key: &str) -> String {
    format!("{keyspace}/={key}")
}

/// Whether this is a value and no object of the namespace.
pub fn is_value(seen: &Seen) -> bool {
    seen.mode == VALUE
}

/// The values that must be there, as they must be seen.
pub fn wanted(values: &Values) -> impl Iterator<Item = (String, Seen)> {
    let seen = |(bytes, until): &(Vec<u8>, i64)| Seen {
        mode: VALUE,
        links: 1,
        uid: 0,
        size: bytes.len() as u64,
        bytes: bytes.clone(),
        until: *until,
    };
    values
        .iter()
        .map(move |((k, key), v)| (path(k, key), seen(v)))
}

/// Adds all values to what is seen: as a scan finds them, each of which `get` must find, too.
pub fn look(c: &Client, me: &Caller, view: &mut View) -> Result<(), String> {
    for name in names(c)? {
        let keyspace = c.keyspace(me, name.as_bytes(), false);
        let keyspace = keyspace.map_err(|e| format!("keyspace {name}: {e}"))?;
        for (key, bytes, until) in scan(c, keyspace).map_err(|e| format!("scan {name}: {e}"))? {
            let mut got = vec![0; bytes.len() + 1];
            let found = c.kv_find(None, None, (keyspace, &key), &mut got);
            got.truncate(bytes.len());
            let found = found.map(|found| found.map(|found| (found.len, found.expires)));
            let key = String::from_utf8_lossy(&key).into_owned();
            if found != Ok(Some((bytes.len() as u64, until))) || got != bytes {
                return Err(format!("{name}: {key} is {found:?}, not what a scan finds"));
            }
            let (mode, links, uid, size) = (VALUE, 1, 0, bytes.len() as u64);
            let seen = Seen {
                mode,
                links,
                uid,
                size,
                bytes,
                until,
            };
            view.insert(path(&name, &key), seen);
        }
    }
    Ok(())
}

/// The names of all keyspaces.
pub fn names(c: &Client) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let mut add = |name: &[u8]| names.push(String::from_utf8_lossy(name).into_owned());
    c.keyspaces(&mut add).map_err(|e| e.to_string())?;
    Ok(names)
}

type Found = Vec<(Vec<u8>, Vec<u8>, i64)>;

fn scan(c: &Client, keyspace: Keyspace) -> holdfast_client::Result<Found> {
    let view = c.view()?;
    let (s, mut scan) = (c.session(), Scan::new(keyspace, b"", None, false));
    let mut all = Found::new();
    while let Some((key, entry)) = scan.next(s, &view)? {
        let key = key.to_vec();
        let value = match entry {
            Entry::Inline(value) => value.to_vec(),
            Entry::Blocks(blocks) => {
                let mut value = vec![0; blocks.len as usize];
                Scan::copy(s, &view, &blocks, &mut value)?;
                value
            }
            // No program opens values in these stories.
            Entry::File(_) => continue,
        };
        all.push((key, value, scan.expires()));
    }
    c.end_view(view);
    Ok(all)
}

/// Changes every keyspace and empties it.
pub fn use_them(c: &Client, me: &Caller) -> Result<(), String> {
    for name in names(c)? {
        let used = || {
            let keyspace = c.keyspace(me, name.as_bytes(), false)?;
            let mut got = [0; 10_000];
            for len in [10, 10_000] {
                c.kv_put(keyspace, b"~", &vec![5; len], Durability::Durable)?;
                let found = c.kv_get(keyspace, b"~", &mut got)?;
                if found != Some(len as u64) || got[..len] != vec![5; len] {
                    return Ok(false);
                }
            }
            let mut all = Changes::default();
            all.erase_range(keyspace, b"", None)?;
            c.kv_commit(all, Durability::Ordered)?;
            Ok(c.kv_get(keyspace, b"~", &mut got)?.is_none())
        };
        let used: holdfast_client::Result<bool> = used();
        if used.as_ref().map_err(|e| format!("use {name}: {e}"))? != &true {
            return Err(format!("{name}: not what was put"));
        }
    }
    Ok(())
}
