//! What a process listed last: who asks for the attributes of one of these names asks for those of
//! the others soon.

use std::sync::{Mutex, PoisonError};

/// Names whose attributes are looked up ahead at a time.
const AHEAD: usize = 64;
/// Bytes before the name in an entry of getdents64(2), where its length is, and its type.
const NAME_AT: usize = 19;
const LEN_AT: usize = 16;

/// The last part of a listing.
#[derive(Default)]
pub struct Listed(Mutex<Listing>);

#[derive(Default)]
struct Listing {
    dir: u64,
    /// As getdents64(2) gave it.
    entries: Vec<u8>,
    /// Where the first name is that was not looked up yet.
    at: usize,
}

impl Listed {
    /// These entries of directory `dir` were listed.
    pub fn note(&self, dir: u64, entries: Vec<u8>) {
        let listing = Listing {
            dir,
            entries,
            at: 0,
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = listing;
    }

    /// The next names, if it is this directory that was listed.
    pub fn next(&self, dir: u64) -> Vec<Vec<u8>> {
        let mut listing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names = Vec::new();
        while listing.dir == dir && names.len() < AHEAD {
            let Some((name, len)) = entry(&listing.entries[listing.at..]) else {
                break;
            };
            if !matches!(name, b"." | b"..") {
                names.push(name.to_vec());
            }
            listing.at += len;
        }
        names
    }
}

/// The name in the first entry, and how long the entry is.
fn entry(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let len = u16::from_le_bytes(*bytes.get(LEN_AT..)?.first_chunk()?) as usize;
    let name = bytes.get(NAME_AT..len)?;
    let end = name.iter().position(|byte| *byte == 0)?;
    Some((&name[..end], len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(names: &[&str]) -> Vec<u8> {
        let mut all = Vec::new();
        for name in names {
            let len = (NAME_AT + name.len() + 1).next_multiple_of(8);
            let mut entry = vec![0; len];
            entry[LEN_AT..LEN_AT + 2].copy_from_slice(&(len as u16).to_le_bytes());
            entry[NAME_AT..NAME_AT + name.len()].copy_from_slice(name.as_bytes());
            all.extend(entry);
        }
        all
    }

    #[test]
    fn names_come_once_and_in_order() {
        let listed = Listed::default();
        assert!(listed.next(0).is_empty());
        listed.note(7, entries(&[".", "..", "a", "a longer name", "b"]));
        assert!(listed.next(8).is_empty());
        let names: [&[u8]; 3] = [b"a", b"a longer name", b"b"];
        assert_eq!(listed.next(7), names);
        assert!(listed.next(7).is_empty());
        let many: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        listed.note(7, entries(&many));
        assert_eq!([listed.next(7).len(), listed.next(7).len()], [AHEAD, 36]);
    }

    #[test]
    fn what_is_no_listing_has_no_names() {
        let listed = Listed::default();
        let whole = entries(&["name"]);
        for len in 0..whole.len() {
            listed.note(1, whole[..len].to_vec());
            assert!(listed.next(1).is_empty());
        }
        listed.note(1, vec![0; 64]);
        assert!(listed.next(1).is_empty());
        listed.note(1, vec![0xff; 64]);
        assert!(listed.next(1).is_empty());
    }
}
