//! Rules about the text of single Rust files. They judge each file alone, so what they find does
//! not depend on the order of files.

use super::{Offender, Source, Tree};

const FILE_LINES_MAX: usize = 1000;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_CHARS_MAX: usize = 100;

/// What may not stand in code or comments, and what to write instead. The words are split so that
/// this table does not find itself.
const BANNED: &[(&str, &str)] = &[
    (concat!("FIX", "ME"), "open an issue, or fix it"),
    (concat!("TO", "DO"), "open an issue, or do it"),
    (concat!("XX", "X"), "open an issue, or say what is wrong"),
    (concat!("db", "g!"), "an assertion, or nothing"),
    (concat!("to", "do!"), "the code"),
    (
        concat!("unimpl", "emented!"),
        "the code, or an error that says what is refused",
    ),
    (concat!("static ", "mut "), "an atomic"),
    (
        concat!("allow(", "dead_code)"),
        "nothing: delete what is dead",
    ),
    (
        concat!("allow(", "unused)"),
        "nothing: delete what is unused",
    ),
    (
        concat!("allow(clippy", "::all)"),
        "expect(...) of the one lint, with a reason",
    ),
    (
        concat!("mem::", "transmute"),
        "from_ne_bytes or a typed view",
    ),
];

/// Every file starts with a `//!` header.
pub fn header(tree: &Tree) -> Vec<Offender> {
    let lacks = |file: &&Source| !file.text.trim_start().starts_with("//!");
    let why = "a file begins with a `//!` header that says what always holds in it";
    tree.rust()
        .filter(lacks)
        .map(|file| Offender::new(&file.path, 1, why))
        .collect()
}

/// A file has at most 1000 lines.
pub fn file_length(tree: &Tree) -> Vec<Offender> {
    let judge = |file: &Source| {
        let lines = file.text.lines().count();
        let why = format!("{lines} lines; at most {FILE_LINES_MAX}");
        (lines > FILE_LINES_MAX).then(|| Offender::new(&file.path, lines, why))
    };
    tree.rust().filter_map(judge).collect()
}

/// A function has at most 70 lines.
pub fn function_length(tree: &Tree) -> Vec<Offender> {
    let mut offenders = Vec::new();
    for file in tree.rust() {
        for function in file
            .functions()
            .iter()
            .filter(|f| f.lines > FUNCTION_LINES_MAX)
        {
            let (name, lines) = (&function.name, function.lines);
            let why = format!("fn {name} has {lines} lines; at most {FUNCTION_LINES_MAX}");
            offenders.push(Offender::new(&file.path, function.line, why));
        }
    }
    offenders
}

/// A line of a Rust file or a script has at most 100 characters.
pub fn line_length(tree: &Tree) -> Vec<Offender> {
    let is_script = |file: &Source| file.path.ends_with(".sh") || file.text.starts_with("#!");
    let checked = tree
        .files
        .iter()
        .filter(|file| file.path.ends_with(".rs") || is_script(file));
    each_line(checked, |line| {
        let chars = line.chars().count();
        (chars > LINE_CHARS_MAX).then(|| format!("{chars} characters; at most {LINE_CHARS_MAX}"))
    })
}

/// Source is ASCII: what a reader sees is what the compiler reads.
pub fn ascii(tree: &Tree) -> Vec<Offender> {
    each_line(tree.rust(), |line| {
        let foreign = line.chars().find(|c| !c.is_ascii())?;
        Some(format!(
            "{foreign:?} is not ASCII; write it as an escape or spell it out"
        ))
    })
}

/// Words with a better replacement.
pub fn banned_words(tree: &Tree) -> Vec<Offender> {
    each_line(tree.rust(), |line| {
        let (word, instead) = BANNED.iter().find(|(word, _)| has_word(line, word))?;
        Some(format!("instead of `{}` write {instead}", word.trim()))
    })
}

/// Only the service and offline tools may build a token that allows writing to the trees.
pub fn write_token(tree: &Tree) -> Vec<Offender> {
    let allowed = ["crates/service/", "crates/cli/", "crates/pool/", "xtask/"];
    let mut offenders = Vec::new();
    for file in tree
        .rust()
        .filter(|f| !allowed.iter().any(|dir| f.path.starts_with(dir)))
    {
        for (at, _) in file.code.match_indices("WriteToken::for_service") {
            let why = "only service, cli and pool may build a WriteToken";
            offenders.push(Offender::new(&file.path, file.line_of(at), why));
        }
    }
    offenders
}

fn each_line<'a>(
    files: impl Iterator<Item = &'a Source>,
    judge: impl Fn(&str) -> Option<String>,
) -> Vec<Offender> {
    let mut offenders = Vec::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            offenders.extend(judge(line).map(|why| Offender::new(&file.path, index + 1, why)));
        }
    }
    offenders
}

/// Whether the word stands in the line and is not the tail of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let is_ident = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    line.match_indices(word).any(|(at, _)| {
        let before = line.as_bytes()[..at].last();
        let after = line.as_bytes().get(at + word.len());
        let runs_on = word.ends_with(|c: char| c.is_ascii_alphanumeric());
        !(before.is_some_and(is_ident) || runs_on && after.is_some_and(is_ident))
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_lines, judge};
    use super::*;

    #[test]
    fn header_is_required_first() {
        assert_lines(header, "a.rs", "use x;\n//! late\n", &[1]);
        assert_lines(header, "a.rs", "", &[1]);
        assert_lines(header, "a.rs", "//! Holds.\nuse x;\n", &[]);
        assert_lines(header, "a.sh", "echo\n", &[]);
    }

    #[test]
    fn lengths_are_limited() {
        assert_lines(file_length, "a.rs", &"\n".repeat(1001), &[1001]);
        assert_lines(file_length, "a.rs", &"\n".repeat(1000), &[]);
        let function = |lines: usize| format!("\nfn f() {{\n{}}}\n", "x;\n".repeat(lines - 2));
        assert_lines(function_length, "a.rs", &function(71), &[2]);
        assert_lines(function_length, "a.rs", &function(70), &[]);
        assert_lines(
            line_length,
            "a.rs",
            &format!("a\n{}\n", "b".repeat(101)),
            &[2],
        );
        assert_lines(
            line_length,
            "a",
            &format!("#!/bin/sh\n{}\n", "b".repeat(101)),
            &[2],
        );
        assert_lines(line_length, "a.md", &"b".repeat(101), &[]);
    }

    #[test]
    fn source_is_ascii() {
        assert_lines(ascii, "a.rs", "ok\n// caf\u{e9}\n", &[2]);
        assert_lines(ascii, "a.md", "caf\u{e9}", &[]);
    }

    #[test]
    fn each_banned_word_is_found_and_explained() {
        for (word, instead) in BANNED {
            let found = judge(banned_words, "a.rs", &format!("// ok\n    {word} (x);\n"));
            assert_eq!(found.len(), 1, "{word}");
            assert_eq!(found[0].line, 2);
            assert!(found[0].why.contains(instead));
        }
        let near = concat!("auto", "do!(), TO", "DOS, MAXX", "X");
        assert_lines(banned_words, "a.rs", near, &[]);
    }

    #[test]
    fn write_tokens_are_made_by_the_trusted_only() {
        let text = "fn f() {\n    WriteToken::for_service();\n}\n";
        assert_lines(write_token, "crates/client/src/a.rs", text, &[2]);
        assert_lines(write_token, "crates/preload/src/a.rs", text, &[2]);
        assert_lines(write_token, "crates/service/src/a.rs", text, &[]);
        let comment = "// WriteToken::for_service is not ours\n";
        assert_lines(write_token, "crates/client/src/a.rs", comment, &[]);
    }
}
