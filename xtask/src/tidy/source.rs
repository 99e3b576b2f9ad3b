//! A file's text in two faces that the rules look at: the code alone and the comments alone.
//!
//! Both have the length and the line breaks of the original, so an offset or a line number found
//! in one holds in the others. Whatever does not belong to a face is a space there.

/// One tracked text file.
pub struct Source {
    pub path: String,
    pub text: String,
    /// The text without comments and without the insides of string and character literals.
    pub code: String,
    /// The comments alone, with their markers.
    pub comments: String,
}

/// A function item with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// Line of the word `fn`, from 1.
    pub line: usize,
    /// Lines from the word `fn` to the closing brace.
    pub lines: usize,
}

impl Source {
    pub fn new(path: &str, text: String) -> Self {
        let is_rust = path.ends_with(".rs");
        let (code, comments) = if is_rust {
            split(&text)
        } else {
            (text.clone(), String::new())
        };
        Source {
            path: path.into(),
            text,
            code,
            comments,
        }
    }

    /// Line, from 1, of a byte offset.
    pub fn line_of(&self, offset: usize) -> usize {
        self.text.as_bytes()[..offset]
            .iter()
            .filter(|&&b| b == b'\n')
            .count()
            + 1
    }

    /// Offsets at which `word` stands in the code as a whole word.
    pub fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        let code = self.code.as_bytes();
        self.code
            .match_indices(word)
            .map(|(at, _)| at)
            .filter(move |&at| {
                let after = code.get(at + word.len()).copied().unwrap_or(b' ');
                (at == 0 || !is_ident(code[at - 1])) && !is_ident(after)
            })
    }

    /// All functions with bodies, nested ones and those in macros included.
    pub fn functions(&self) -> Vec<Function> {
        self.words("fn")
            .filter_map(|at| self.function_at(at))
            .collect()
    }

    fn function_at(&self, at: usize) -> Option<Function> {
        let code = self.code.as_bytes();
        let name_at = skip_spaces(code, at + 2);
        let name_end = (name_at..code.len()).find(|&i| !is_ident(code[i]) && code[i] != b'$')?;
        if name_end == name_at {
            return None; // the type `fn(...)`
        }
        let open = body_open(code, name_end)?;
        let close = matching_brace(code, open)?;
        let line = self.line_of(at);
        Some(Function {
            name: self.code[name_at..name_end].into(),
            line,
            lines: self.line_of(close) - line + 1,
        })
    }
}

pub fn is_ident(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

pub fn skip_spaces(code: &[u8], mut at: usize) -> usize {
    while code.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// The `{` that opens the body, or None for a declaration that ends in `;`.
fn body_open(code: &[u8], from: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (at, byte) in code.iter().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(at),
            b';' if depth == 0 => return None,
            _ => {}
        }
        if depth < 0 {
            return None; // left what we started in: a fragment inside a macro
        }
    }
    None
}

fn matching_brace(code: &[u8], open: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (at, byte) in code.iter().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Splits Rust source into its code and its comments.
fn split(text: &str) -> (String, String) {
    let bytes = text.as_bytes();
    let mut kinds = vec![Kind::Code; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let (kind, end) = piece(bytes, at);
        kinds[at..end].fill(kind);
        at = end;
    }
    let face = |wanted: Kind| -> String {
        let keep = |(i, b): (usize, &u8)| {
            if *b == b'\n' || (kinds[i] == wanted && b.is_ascii()) {
                *b
            } else {
                b' '
            }
        };
        let kept = bytes.iter().enumerate().map(keep).collect();
        String::from_utf8(kept).expect("only ASCII bytes are kept")
    };
    (face(Kind::Code), face(Kind::Comment))
}

/// The kind and the end of the piece that starts at `at`.
fn piece(bytes: &[u8], at: usize) -> (Kind, usize) {
    let rest = &bytes[at..];
    let length = |n: usize| (at + n).min(bytes.len());
    if rest.starts_with(b"//") {
        let end = rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
        return (Kind::Comment, length(end));
    }
    if rest.starts_with(b"/*") {
        return (Kind::Comment, length(block_comment(rest)));
    }
    let fresh = at == 0 || !is_ident(bytes[at - 1]);
    if let Some(end) = fresh.then(|| raw_string(rest)).flatten() {
        return (Kind::Literal, length(end));
    }
    match rest[0] {
        b'"' => (Kind::Literal, length(quoted(rest))),
        b'\'' => match character(rest) {
            Some(end) => (Kind::Literal, length(end)),
            None => (Kind::Code, at + 1), // a lifetime
        },
        _ => (Kind::Code, at + 1),
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of a raw string (`r"..."`, `br#"..."#`, `cr"..."`), if one starts here.
fn raw_string(rest: &[u8]) -> Option<usize> {
    let prefix = [&b"r"[..], b"br", b"cr"]
        .into_iter()
        .find(|p| rest.starts_with(p) && matches!(rest.get(p.len()), Some(b'#' | b'"')))?;
    let hashes = rest[prefix.len()..]
        .iter()
        .take_while(|&&b| b == b'#')
        .count();
    let open = prefix.len() + hashes;
    if rest.get(open) != Some(&b'"') {
        return None; // a raw identifier such as r#type
    }
    let mut close = vec![b'#'; hashes + 1];
    close[0] = b'"';
    let body = &rest[open + 1..];
    let end = body
        .windows(close.len())
        .position(|w| w == close)
        .unwrap_or(body.len());
    Some(open + 1 + end + close.len())
}

fn quoted(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of a character literal; None where the quote begins a lifetime.
fn character(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        let close = rest.iter().skip(3).position(|&b| b == b'\'')?;
        return Some(3 + close + 1);
    }
    // One character, of up to four bytes, and a quote.
    let width = match rest.get(1)? {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    };
    (rest.get(1 + width) == Some(&b'\'')).then_some(width + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new("a.rs", text.into())
    }

    #[test]
    fn faces_keep_offsets_and_lines() {
        let s = source("let a = \"x // y\"; // z\n/* b /* c */ d */ e\n");
        assert_eq!(s.code.len(), s.text.len());
        assert_eq!(
            s.code.trim_end(),
            "let a =         ;     \n                  e".to_string()
        );
        assert_eq!(
            s.comments.split_whitespace().collect::<Vec<_>>().join(" "),
            "// z /* b /* c */ d */"
        );
    }

    #[test]
    fn quotes_of_all_kinds_are_told_apart() {
        let s = source("f('\"', b'\\'', '\\u{41}', r#\"a\" fn b\"#, br\"fn\", x::<'a>, r#fn)");
        assert_eq!(s.code.matches('"').count(), 0);
        assert!(s.code.contains("x::<'a>"));
        assert_eq!(s.words("fn").count(), 1, "{}", s.code);
    }

    #[test]
    fn functions_are_measured_from_fn_to_brace() {
        let s = source(
            "trait T { fn a(x: [u8; 2]); fn b() {} }\npub fn c<T>(f: fn(u8))\nwhere\n\
            T: Copy,\n{\n    if x { y }\n}\n",
        );
        let found: Vec<_> = s
            .functions()
            .into_iter()
            .map(|f| (f.name, f.line, f.lines))
            .collect();
        assert_eq!(found, [("b".into(), 1, 1), ("c".into(), 2, 6)]);
    }

    #[test]
    fn unfinished_text_does_not_panic() {
        for text in [
            "\"", "'", "'\\", "r#\"", "/*", "fn", "fn a", "fn a(", "fn a() {", "b\"\\",
        ] {
            let s = source(text);
            s.functions();
            assert_eq!(s.code.len(), text.len());
        }
    }
}
