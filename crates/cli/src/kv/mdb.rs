//! The format of LMDB's mdb_dump and mdb_load.
//!
//! Invariants: mdb_load reads what `Writer` writes; `Reader` reads what mdb_dump writes of a
//! database without duplicate keys; a truncated dump is refused.

use super::escape;
use super::lines::Lines;
use std::io::{self, BufRead, Write};

/// A key and a value, which the format lets expire never.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Bytes of a key in LMDB as it is built by default.
pub const KEY_MAX: usize = 511;
const PAGE: u64 = 4096;

/// How much room a database needs for some pairs, generously.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room(u64);

impl Room {
    /// And this pair.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        let (key, value) = (key.len() as u64, value.len() as u64);
        // A node is no larger than half of a page, and pages may be half full.
        let bytes = if key + value > PAGE / 2 - 64 {
            (value + 16).div_ceil(PAGE) * PAGE + 2 * (key + 24)
        } else {
            2 * (key + value + 24)
        };
        self.0 = self.0.saturating_add(bytes);
    }

    fn map_size(self) -> u64 {
        // Twice, because mdb_load commits in parts, and each part copies pages.
        let bytes = self.0.saturating_mul(2).saturating_add(1 << 20);
        bytes.checked_next_multiple_of(PAGE).unwrap_or(bytes)
    }
}

/// Writes a dump.
pub struct Writer<W> {
    out: W,
    print: bool,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    pub fn new(mut out: W, print: bool, room: Room) -> io::Result<Writer<W>> {
        let format = if print { "print" } else { "bytevalue" };
        let size = room.map_size();
        writeln!(
            out,
            "VERSION=3\nformat={format}\ntype=btree\nmapsize={size}"
        )?;
        writeln!(out, "maxreaders=126\ndb_pagesize={PAGE}\nHEADER=END")?;
        Ok(Writer { out, print })
    }

    /// Writes a pair.
    pub fn pair(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.line(key)?;
        self.line(value)
    }

    fn line(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(b" ")?;
        for byte in bytes {
            match byte {
                b' '..=b'~' if self.print && *byte != b'\\' => self.out.write_all(&[*byte])?,
                _ if self.print => write!(self.out, "\\{byte:02x}")?,
                _ => write!(self.out, "{byte:02x}")?,
            }
        }
        self.out.write_all(b"\n")
    }

    /// Writes the end.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b"DATA=END\n")?;
        self.out.flush()
    }
}

/// Reads a dump.
pub struct Reader<R> {
    lines: Lines<R>,
    print: bool,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads the header.
    pub fn new(from: R) -> Result<Reader<R>, String> {
        let mut lines = Lines::new(from);
        let (mut version, mut print) = (false, None);
        loop {
            let line = lines
                .next()?
                .ok_or("the input ends in the header; is it a dump?")?;
            let line = str::from_utf8(line).map_err(|_| "the header is not text")?;
            let (name, value) = line
                .split_once('=')
                .ok_or("a line of the header is not NAME=VALUE; is it a dump?")?;
            match (name, value) {
                ("HEADER", "END") => break,
                ("VERSION", "2" | "3") => version = true,
                ("VERSION", _) => {
                    return Err(format!("dumps of version {value} are not supported"));
                }
                ("format", "print") => print = Some(true),
                ("format", "bytevalue") => print = Some(false),
                ("format", _) => return Err(format!("the format {value} is not supported")),
                ("duplicates", "1") => {
                    return Err("the database may hold several values for a key".into());
                }
                _ => {}
            }
        }
        match print {
            Some(print) if version => Ok(Reader {
                lines,
                print,
                ended: false,
            }),
            _ => Err("the header lacks the version or the format".into()),
        }
    }

    /// The line that was read last.
    pub fn number(&self) -> u64 {
        self.lines.number()
    }

    /// The next pair; None after the last.
    pub fn pair(&mut self) -> Result<Option<Pair>, String> {
        if self.ended {
            return Ok(None);
        }
        let Some(key) = self.datum()? else {
            self.ended = true;
            return match self.lines.next()? {
                None => Ok(None),
                Some(_) => {
                    Err("the dump has more than one database; mdb_dump -s NAME dumps one".into())
                }
            };
        };
        let value = self.datum()?.ok_or("the last key has no value")?;
        Ok(Some((key, value)))
    }

    fn datum(&mut self) -> Result<Option<Vec<u8>>, String> {
        let print = self.print;
        let line = self.lines.next()?.ok_or("the dump is truncated")?;
        match line {
            b"DATA=END" => Ok(None),
            [b' ', rest @ ..] if print => unprint(rest).map(Some),
            [b' ', rest @ ..] => unhex(rest).map(Some),
            _ => Err("a line of data does not begin with a space".into()),
        }
    }
}

fn unhex(text: &[u8]) -> Result<Vec<u8>, String> {
    let pairs = text.chunks(2).map(|pair| match pair {
        [high, low] => escape::digits(*high, *low),
        _ => None,
    });
    let bytes: Option<Vec<u8>> = pairs.collect();
    bytes.ok_or_else(|| "a line of data does not consist of hexadecimal digits".into())
}

fn unprint(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        out.extend_from_slice(&rest[..at]);
        let (byte, len) = match &rest[at + 1..] {
            [b'\\', ..] => (b'\\', 2),
            [high, low, ..] => match escape::digits(*high, *low) {
                Some(byte) => (byte, 3),
                None => return Err(AMBIGUOUS.into()),
            },
            _ => return Err(AMBIGUOUS.into()),
        };
        out.push(byte);
        rest = &rest[at + len..];
    }
    out.extend_from_slice(rest);
    Ok(out)
}

/// Until LMDB 0.9.24, mdb_dump -p wrote a backslash as it is.
const AMBIGUOUS: &str = "a backslash lacks two hexadecimal digits; dump without -p, because \
                         mdb_dump -p does not escape backslashes before LMDB 0.9.25";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Vec<Pair>, String> {
        let mut reader = Reader::new(text)?;
        let mut pairs = Vec::new();
        while let Some(pair) = reader.pair()? {
            pairs.push(pair);
        }
        Ok(pairs)
    }

    #[test]
    fn pairs_come_back_in_both_formats() {
        let pairs: Vec<Pair> = vec![
            (b"a \\ b".to_vec(), b"1".to_vec()),
            ((0..=255).collect(), (0..=255).rev().collect()),
            (b"empty".to_vec(), vec![]),
        ];
        for print in [false, true] {
            let (mut text, mut room) = (Vec::new(), Room::default());
            pairs.iter().for_each(|(key, value)| room.add(key, value));
            let mut writer = Writer::new(&mut text, print, room).unwrap();
            for (key, value) in &pairs {
                writer.pair(key, value).unwrap();
            }
            writer.finish().unwrap();
            assert_eq!(read(&text), Ok(pairs.clone()));
        }
    }

    const HEAD: &str = "VERSION=3\nformat=print\ntype=btree\nmapsize=1048576\nHEADER=END\n";

    #[test]
    fn both_ways_to_write_a_backslash_are_known() {
        let text = format!("{HEAD} a\\\\b\n c\\5cd\nDATA=END\n");
        assert_eq!(
            read(text.as_bytes()),
            Ok(vec![(b"a\\b".into(), b"c\\d".into())])
        );
    }

    #[test]
    fn what_is_no_dump_is_refused() {
        let data = |data: &str| format!("{HEAD}{data}");
        for bad in [
            String::new(),
            "VERSION=3\n".into(),
            "VERSION=9\nformat=print\nHEADER=END\nDATA=END\n".into(),
            "VERSION=3\nformat=odd\nHEADER=END\nDATA=END\n".into(),
            "VERSION=3\nHEADER=END\nDATA=END\n".into(),
            "format=print\nHEADER=END\nDATA=END\n".into(),
            HEAD.replace("type", "duplicates=1\ntype") + "DATA=END\n",
            "a\tb\n".into(),
            data(""),
            data(" k\n"),
            data(" k\nDATA=END\n"),
            data(" k\n v\n"),
            data("k\nv\nDATA=END\n"),
            data(" \\g0\n v\nDATA=END\n"),
            data(" \\1\n v\nDATA=END\n"),
            data(" k\n v\nDATA=END\nVERSION=3\n"),
            data(" k1\n zz\nDATA=END\n").replace("format=print", "format=bytevalue"),
            data(" 616\n 61\nDATA=END\n").replace("format=print", "format=bytevalue"),
        ] {
            assert!(read(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert_eq!(read(data("DATA=END\n").as_bytes()), Ok(vec![]));
    }
}
