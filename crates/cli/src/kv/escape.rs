//! Bytes as text on one line.
//!
//! Invariants: `undo` inverts `write`; `write` produces valid UTF-8 without control characters, and
//! so without a tab or a line break.

use std::fmt::Write as _;
use std::io::{self, Write};

/// Writes bytes so that `undo` understands them.
pub fn write(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    for chunk in bytes.utf8_chunks() {
        write_text(out, chunk.valid())?;
        for byte in chunk.invalid() {
            write!(out, "\\x{byte:02x}")?;
        }
    }
    Ok(())
}

fn write_text(out: &mut impl Write, text: &str) -> io::Result<()> {
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != 0x7f && byte != b'\\' {
            continue;
        }
        out.write_all(&text.as_bytes()[plain..at])?;
        plain = at + 1;
        match byte {
            b'\\' => out.write_all(b"\\\\")?,
            b'\t' => out.write_all(b"\\t")?,
            b'\n' => out.write_all(b"\\n")?,
            b'\r' => out.write_all(b"\\r")?,
            _ => write!(out, "\\x{byte:02x}")?,
        }
    }
    out.write_all(&text.as_bytes()[plain..])
}

/// For messages, which are short.
pub fn short(bytes: &[u8]) -> String {
    const MAX: usize = 64;
    let rest = if bytes.len() > MAX { "..." } else { "" };
    shown(&bytes[..bytes.len().min(MAX)]) + rest
}

/// All of them as one text.
pub fn shown(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    let _ = write(&mut out, bytes);
    String::from_utf8_lossy(&out).into_owned()
}

/// Two digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// The bytes that were meant, or why nothing can be meant.
pub fn undo(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        out.extend_from_slice(&rest[..at]);
        let (byte, len) = match &rest[at + 1..] {
            [b'\\', ..] => (b'\\', 2),
            [b't', ..] => (b'\t', 2),
            [b'n', ..] => (b'\n', 2),
            [b'r', ..] => (b'\r', 2),
            [b'x', high, low, ..] => match digits(*high, *low) {
                Some(byte) => (byte, 4),
                None => return Err("\\x needs two hexadecimal digits".into()),
            },
            _ => {
                return Err(
                    "a backslash begins no known escape; write \\\\ for a backslash".into(),
                );
            }
        };
        out.push(byte);
        rest = &rest[at + len..];
    }
    out.extend_from_slice(rest);
    Ok(out)
}

/// A byte of two hexadecimal digits.
pub fn digits(high: u8, low: u8) -> Option<u8> {
    let digit = |c: u8| (c as char).to_digit(16);
    Some((digit(high)? << 4 | digit(low)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        let mixed = "tab\there \\ back \u{e4}\u{1f600}\n\r\0".as_bytes();
        for bytes in [&all[..], mixed, b"", b"\\x41", &[0xc3], &[0xe2, 0x82, b'a']] {
            let line = shown(bytes);
            assert!(!line.contains(|c: char| c.is_ascii_control()), "{line:?}");
            assert_eq!(undo(line.as_bytes()).as_deref(), Ok(bytes), "{line}");
        }
        assert_eq!(shown("a\t\u{e4}\u{7f}\\".as_bytes()), "a\\t\u{e4}\\x7f\\\\");
        assert_eq!(shown(&[b'a', 0xff]), "a\\xff");
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for bad in ["\\", "a\\", "\\q", "\\x", "\\x1", "\\xg0", "\\0"] {
            assert!(undo(bad.as_bytes()).is_err(), "{bad}");
        }
        assert_eq!(undo(b"\\x41\\x7E\tb"), Ok(b"A~\tb".to_vec()));
    }
}
