//! Rules about `unsafe`: where it may stand, and that each use argues why it is sound.
//!
//! They look at words of the code, so they also see into macros, where the compiler's lints
//! do not look.

use super::source::{Source, is_ident, skip_spaces};
use super::{Offender, Tree};

/// Where unsafe code may be: the crates that own it, the bindings, to which C gives pointers
/// and Python asks for some, and the benchmark's bindings to its peers.
const ALLOWED: &[&str] = &[
    "crates/pmem/",
    "crates/preload/",
    "bindings/",
    "bench/kv/src/peers/",
];

/// What the word `unsafe` introduces.
#[derive(Debug, PartialEq, Eq)]
enum Use {
    Block,
    Impl,
    /// A public function or a trait.
    Item,
    /// A foreign block, a private function, the type of a function pointer, or an attribute such
    /// as `#[unsafe(no_mangle)]`.
    Mention,
}

/// `unsafe` stands only in the crates that own it.
pub fn where_allowed(tree: &Tree) -> Vec<Offender> {
    let mut offenders = Vec::new();
    for file in tree
        .rust()
        .filter(|f| !ALLOWED.iter().any(|dir| f.path.starts_with(dir)))
    {
        for at in file.words("unsafe") {
            let why = "`unsafe` belongs into pmem, or where unavoidable preload and bindings";
            offenders.push(Offender::new(&file.path, file.line_of(at), why));
        }
    }
    offenders
}

/// Blocks and impls have a `// SAFETY:` comment, unsafe items a `# Safety` section.
pub fn safety_comment(tree: &Tree) -> Vec<Offender> {
    let mut offenders = Vec::new();
    for file in tree.rust() {
        for at in file.words("unsafe") {
            let line = file.line_of(at);
            let (wanted, why) = match use_at(file, at) {
                Use::Mention => continue,
                Use::Block => (
                    &["SAFETY:"][..],
                    "an unsafe block needs a `// SAFETY:` comment",
                ),
                Use::Impl => (
                    &["SAFETY:"][..],
                    "an unsafe impl needs a `// SAFETY:` comment",
                ),
                Use::Item => (
                    &["SAFETY:", "# Safety"][..],
                    "an unsafe item needs a `# Safety` section",
                ),
            };
            if !wanted.iter().any(|mark| comment_above(file, line, mark)) {
                offenders.push(Offender::new(&file.path, line, why));
            }
        }
    }
    offenders
}

fn use_at(file: &Source, at: usize) -> Use {
    let code = file.code.as_bytes();
    let next = skip_spaces(code, at + "unsafe".len());
    let rest = &file.code[next.min(code.len())..];
    let starts = |word: &str| {
        rest.starts_with(word)
            && !rest
                .as_bytes()
                .get(word.len())
                .copied()
                .is_some_and(is_ident)
    };
    // A private function's callers are all in sight, each with its own argument; a foreign block
    // only declares.
    let start = file.code[..at].trim_end();
    let start = start.trim_end_matches("const").trim_end();
    let is_public = start.ends_with("pub") || start.ends_with("pub(crate)");
    match () {
        () if rest.starts_with('{') => Use::Block,
        () if starts("impl") => Use::Impl,
        () if is_public && (starts("fn") || starts("extern")) => Use::Item,
        () if starts("trait") => Use::Item,
        () => Use::Mention,
    }
}

/// Whether the mark stands in a comment on this line or directly above the statement or item that
/// the line belongs to.
fn comment_above(file: &Source, line: usize, mark: &str) -> bool {
    let code: Vec<&str> = file.code.lines().collect();
    let comments: Vec<&str> = file.comments.lines().collect();
    if comments[line - 1].contains(mark) {
        return true;
    }
    let mut in_comment = false;
    for index in (0..line - 1).rev() {
        let (code, comment) = (code[index].trim(), comments[index].trim());
        if code.is_empty() {
            if comment.is_empty() && !in_comment {
                return false;
            }
            if comment.is_empty() {
                return false;
            }
            in_comment = true;
            if comment.contains(mark) {
                return true;
            }
        } else if in_comment || ends_statement(code) {
            return false;
        }
    }
    false
}

/// Whether what follows this line of code is a new statement or item. An attribute and an opening
/// like `let x =` or `match` are part of what follows.
fn ends_statement(code: &str) -> bool {
    let is_attribute = code.starts_with("#[") && code.ends_with(']');
    !is_attribute && code.ends_with([';', '{', '}', ','])
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_lines;
    use super::*;

    #[test]
    fn unsafe_stays_in_its_crates() {
        let text = "//! h\nfn f() { unsafe { g() } }\n";
        assert_lines(where_allowed, "crates/client/src/a.rs", text, &[2]);
        assert_lines(where_allowed, "crates/pmem/src/a.rs", text, &[]);
        let mentions = "#![forbid(unsafe_code)]\n// unsafe\nconst A: &str = \"unsafe\";\n";
        assert_lines(where_allowed, "crates/client/src/a.rs", mentions, &[]);
    }

    #[test]
    fn a_block_without_an_argument_is_found() {
        assert_lines(
            safety_comment,
            "a.rs",
            "fn f() {\n    unsafe { g() }\n}\n",
            &[2],
        );
        let late = "fn f() {\n    // SAFETY: no\n    a();\n    unsafe { g() }\n}\n";
        assert_lines(safety_comment, "a.rs", late, &[4]);
        let apart = "// SAFETY: no\n\nunsafe { g() }\n";
        assert_lines(safety_comment, "a.rs", apart, &[3]);
        assert_lines(safety_comment, "a.rs", "unsafe impl Send for A {}\n", &[1]);
        assert_lines(
            safety_comment,
            "a.rs",
            "/// Does.\npub unsafe fn f() {}\n",
            &[2],
        );
        let in_macro = "macro_rules! m { () => {\n    unsafe { g() }\n} }\n";
        assert_lines(safety_comment, "a.rs", in_macro, &[2]);
    }

    #[test]
    fn an_argued_block_is_not() {
        for text in [
            "// SAFETY: g holds,\n// because.\nunsafe { g() }\n",
            "// SAFETY: g\nlet x =\n    unsafe { g() };\n",
            "let x = unsafe { g() }; // SAFETY: g\n",
            "// SAFETY: A is plain\n#[cfg(x)]\nunsafe impl Send for A {}\n",
            "/// Does.\n///\n/// # Safety\n/// None.\n#[inline]\npub unsafe fn f() {}\n",
            "type F = unsafe extern \"C\" fn(u8);\nfn f(g: unsafe fn()) {}\n\
             pub(crate) type G = unsafe extern \"C\" fn(u8);\n",
            "unsafe fn private() {}\nunsafe extern \"C\" {\n    fn f();\n}\n",
            "#[unsafe(no_mangle)]\npub extern \"C\" fn f() {}\n",
        ] {
            assert_lines(safety_comment, "a.rs", text, &[]);
        }
    }
}
