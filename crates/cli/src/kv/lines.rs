//! The line format: a pair per line, as docs/kv.md describes it.
//!
//! Invariant: `read` inverts `write`.

use super::escape;
use std::io::{self, BufRead, Write};

/// A key and a value, and when that expires, in nanoseconds since 1970.
pub type Pair = (Vec<u8>, Vec<u8>, Option<i64>);

/// What stands between the value and the time at which it expires: no escape, so no value has it.
const MARK: &[u8] = b"\\@";

/// Writes a pair as a line.
pub fn write(
    out: &mut impl Write,
    (key, value): (&[u8], &[u8]),
    expires: Option<i64>,
) -> io::Result<()> {
    escape::write(out, key)?;
    out.write_all(b"\t")?;
    escape::write(out, value)?;
    if let Some(time) = expires {
        out.write_all(MARK)?;
        write!(out, "{time}")?;
    }
    out.write_all(b"\n")
}

/// The value in a field, and when it expires.
fn value(field: &[u8]) -> Result<(Vec<u8>, Option<i64>), String> {
    let mut at = 0;
    while let Some(rest) = field.get(at..).filter(|rest| !rest.is_empty()) {
        if let Some(time) = rest.strip_prefix(MARK) {
            let time = str::from_utf8(time).ok();
            let time = time.and_then(|time| time.parse().ok());
            let time = time.filter(|time| *time > 0);
            let time = time.ok_or("\\@ needs the time at which the value expires")?;
            return Ok((escape::undo(&field[..at])?, Some(time)));
        }
        // An escape goes with the byte behind it.
        at += if rest[0] == b'\\' { 2 } else { 1 };
    }
    Ok((escape::undo(field)?, None))
}

/// Lines on their way in.
pub struct Lines<R> {
    from: R,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    /// From the start.
    pub fn new(from: R) -> Lines<R> {
        Lines {
            from,
            line: Vec::new(),
            number: 0,
        }
    }

    /// The line that was read last, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The next line without its end; None after the last.
    pub fn next(&mut self) -> Result<Option<&[u8]>, String> {
        self.line.clear();
        let read = self.from.read_until(b'\n', &mut self.line);
        if read.map_err(|e| format!("standard input cannot be read: {}", plain(&e)))? == 0 {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(self.line.strip_suffix(b"\n").unwrap_or(&self.line)))
    }

    /// The keyspace on the next line, and the pair, if it has one.
    pub fn keyspace_and_pair(&mut self) -> Result<Option<(Vec<u8>, Option<Pair>)>, String> {
        let Some(line) = self.next()? else {
            return Ok(None);
        };
        let mut fields = line.splitn(3, |byte| *byte == b'\t');
        let mut field = || fields.next().map(escape::undo).transpose();
        let name = field()?.filter(|name| !name.is_empty());
        let name = name.ok_or("the line names no keyspace")?;
        match (field()?, fields.next().map(value).transpose()?) {
            (None, _) => Ok(Some((name, None))),
            (Some(key), Some((value, expires))) => Ok(Some((name, Some((key, value, expires))))),
            (Some(_), None) => Err("the line has no tab between key and value".into()),
        }
    }

    /// The pair on the next line.
    pub fn pair(&mut self) -> Result<Option<Pair>, String> {
        let Some(line) = self.next()? else {
            return Ok(None);
        };
        let tab = line.iter().position(|byte| *byte == b'\t');
        let tab = tab.ok_or("the line has no tab between key and value")?;
        let (value, expires) = self::value(&line[tab + 1..])?;
        Ok(Some((escape::undo(&line[..tab])?, value, expires)))
    }
}

/// A system's error without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_come_back() {
        let pairs: Vec<Pair> = vec![
            (b"a".to_vec(), b"1".to_vec(), None),
            (b"tab\tin key".to_vec(), b"and\nlines".to_vec(), Some(77)),
            ((0..=255).collect(), (0..=255).rev().collect(), None),
            (b"empty".to_vec(), vec![], Some(i64::MAX)),
        ];
        let mut text = Vec::new();
        for (key, value, expires) in &pairs {
            write(&mut text, (key, value), *expires).unwrap();
        }
        let mut lines = Lines::new(&text[..]);
        let mut back = Vec::new();
        while let Some(pair) = lines.pair().unwrap() {
            back.push(pair);
        }
        assert_eq!(back, pairs);
        assert_eq!(lines.number(), 4);
    }

    #[test]
    fn a_line_may_begin_with_its_keyspace() {
        let mut lines = Lines::new(&b"a\nb\\t\tk\tv\tw\nc\tk\n\tk\tv\n"[..]);
        assert_eq!(lines.keyspace_and_pair(), Ok(Some((b"a".to_vec(), None))));
        let pair = (b"k".to_vec(), b"v\tw".to_vec(), None);
        let second = lines.keyspace_and_pair();
        assert_eq!(second, Ok(Some((b"b\t".to_vec(), Some(pair)))));
        assert!(lines.keyspace_and_pair().is_err() && lines.keyspace_and_pair().is_err());
        assert_eq!(lines.keyspace_and_pair(), Ok(None));
    }

    #[test]
    fn values_may_hold_tabs_and_the_last_line_may_lack_its_end() {
        let mut lines = Lines::new(&b"k\tv\tw"[..]);
        let pair = (b"k".to_vec(), b"v\tw".to_vec(), None);
        assert_eq!(lines.pair(), Ok(Some(pair)));
        assert_eq!(lines.pair(), Ok(None));
    }

    #[test]
    fn the_time_on_a_line_is_told_from_the_value() {
        for bytes in [
            &b"plain"[..],
            b"",
            b"\\",
            b"\\@5",
            b"@5",
            b"a\\@",
            b"\t\\@9",
        ] {
            for expires in [None, Some(1), Some(i64::MAX)] {
                let mut line = Vec::new();
                write(&mut line, (b"k", bytes), expires).unwrap();
                let pair = Lines::new(&line[..]).pair();
                assert_eq!(pair, Ok(Some((b"k".to_vec(), bytes.to_vec(), expires))));
            }
        }
        for bad in ["v\\@", "v\\@x", "v\\@-1", "v\\@0", "v\\@5 ", "v\\"] {
            assert!(value(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_no_pair_is_refused() {
        for bad in ["k", "\n", "k\\\tv", "k\t\\x1\n"] {
            assert!(Lines::new(bad.as_bytes()).pair().is_err(), "{bad:?}");
        }
    }
}
