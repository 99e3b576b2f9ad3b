//! Keyspaces in the stories: what is changed, by the client, and what must be there, in a map.
//!
//! Invariant: the changes of one call are all there or none of them is.

use crate::judge::{Seen, View};
use holdfast_client::kv::{Changes, Durability, Entry, Keyspace, Scan};
use holdfast_client::{Caller, Client};
use std::collections::BTreeMap;

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
}

/// Keyspace and key, and the value.
pub type Values = BTreeMap<(String, String), Vec<u8>>;

/// What the numbered keys of `Many` are called.
fn numbered(key: &str, i: usize) -> String {
    format!("{key}{i:05}")
}

/// What a change does to a map.
pub fn apply(values: &mut Values, change: &Change) {
    let at = |k: &str, key: &str| (k.to_string(), key.to_string());
    match *change {
        Change::Put(k, key, len, byte) => {
            values.insert(at(k, key), vec![byte; len]);
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
            values.extend((0..count).map(|i| (at(k, &numbered(key, i)), vec![byte; len])));
        }
    }
}

/// Makes all changes, as one batch.
pub fn make(c: &Client, me: &Caller, changes: &[Change]) -> holdfast_client::Result<()> {
    let mut all = Changes::default();
    let open = |name: &str| c.keyspace(me, name.as_bytes(), false);
    for change in changes {
        match *change {
            Change::Put(k, key, len, byte) => {
                all.put(c, open(k)?, key.as_bytes(), &vec![byte; len])?;
            }
            Change::Erase(k, key) => all.erase(c, open(k)?, key.as_bytes())?,
            Change::Range(k, from, to) => {
                all.erase_range(open(k)?, from.as_bytes(), Some(to.as_bytes()))?;
            }
            Change::Many(k, key, count, len, byte) => {
                let keyspace = open(k)?;
                for i in 0..count {
                    all.put(c, keyspace, numbered(key, i).as_bytes(), &vec![byte; len])?;
                }
            }
        }
    }
    c.kv_commit(all, Durability::Durable)
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
    let seen = |bytes: &Vec<u8>| Seen {
        mode: VALUE,
        links: 1,
        size: bytes.len() as u64,
        bytes: bytes.clone(),
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
        for (key, bytes) in scan(c, keyspace).map_err(|e| format!("scan {name}: {e}"))? {
            let mut got = vec![0; bytes.len() + 1];
            let len = c.kv_get(keyspace, &key, &mut got);
            got.truncate(bytes.len());
            let key = String::from_utf8_lossy(&key).into_owned();
            if len != Ok(Some(bytes.len() as u64)) || got != bytes {
                return Err(format!("{name}: {key} is {len:?}, not what a scan finds"));
            }
            let (mode, links, size) = (VALUE, 1, bytes.len() as u64);
            let seen = Seen {
                mode,
                links,
                size,
                bytes,
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

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn scan(c: &Client, keyspace: Keyspace) -> holdfast_client::Result<Pairs> {
    let view = c.view()?;
    let (s, mut scan) = (c.session(), Scan::new(keyspace, b"", None, false));
    let mut all = Pairs::new();
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
        all.push((key, value));
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
