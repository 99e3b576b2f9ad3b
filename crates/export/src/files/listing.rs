//! Entries of directories, as getdents64(2) tells them.

/// The part of an entry before its name: number, where the next ones begin, length, type.
const HEAD: usize = 19;

/// An entry, and where those behind it begin.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry<'b> {
    pub ino: u64,
    pub next: u64,
    /// `DT_*`.
    pub kind: u8,
    pub name: &'b [u8],
}

impl Entry<'_> {
    /// Whether it is the directory's own, or that above.
    pub fn is_dots(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }
}

/// All entries that are whole.
pub fn entries(mut bytes: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    std::iter::from_fn(move || {
        let word = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let len = usize::from(u16::from_ne_bytes(*bytes.get(16..)?.first_chunk()?));
        let entry = bytes.get(..len)?;
        let found = Entry {
            ino: word(0)?,
            next: word(8)?,
            kind: *entry.get(HEAD - 1)?,
            name: entry.get(HEAD..)?.split(|byte| *byte == 0).next()?,
        };
        bytes = bytes.get(len..)?;
        Some(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_entries_are_read_and_no_others() {
        let mut bytes = Vec::new();
        for (ino, name) in [(7u64, &b"a\0\0\0\0"[..]), (9, b"longer\0")] {
            bytes.extend(ino.to_ne_bytes());
            bytes.extend((ino + 1).to_ne_bytes());
            bytes.extend(((HEAD + name.len()) as u16).to_ne_bytes());
            bytes.push(8);
            bytes.extend(name);
        }
        let found: Vec<_> = entries(&bytes).collect();
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].ino, found[0].next, found[0].name),
            (7, 8, &b"a"[..])
        );
        assert_eq!((found[1].kind, found[1].name), (8, &b"longer"[..]));
        assert_eq!(entries(&bytes[..bytes.len() - 1]).count(), 1);
        assert_eq!(entries(&[0; 18]).count(), 0);
    }
}
