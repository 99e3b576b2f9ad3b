//! `cargo xtask tidy`: the rules of CONTRIBUTING.md that a program can check.
//!
//! A rule looks at the whole tree of tracked files and returns its offenders; it never changes a
//! file. The tests of each rule show a text that breaks it. Adding a rule is one line in `RULES`.

mod deps;
mod docs;
mod layers;
mod layout;
mod source;
mod text;
mod unsafety;

use source::Source;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// One place that breaks one rule. `line` counts from 1; 0 stands for the file as a whole.
#[derive(Debug, PartialEq, Eq)]
pub struct Offender {
    pub path: String,
    pub line: usize,
    pub why: String,
}

impl Offender {
    pub fn new(path: &str, line: usize, why: impl Into<String>) -> Self {
        Offender {
            path: path.into(),
            line,
            why: why.into(),
        }
    }
}

impl fmt::Display for Offender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.why)
    }
}

/// All tracked text files, read once. Paths are relative to the root, with `/`.
pub struct Tree {
    pub root: PathBuf,
    pub files: Vec<Source>,
}

impl Tree {
    /// The Rust files of the tree.
    pub fn rust(&self) -> impl Iterator<Item = &Source> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    fn read(root: PathBuf) -> Result<Self, String> {
        let list = Command::new("git")
            .args([
                "ls-files",
                "--cached",
                "--others",
                "--exclude-standard",
                "-z",
            ])
            .current_dir(&root)
            .output()
            .map_err(|e| format!("git cannot be run: {e}"))?;
        if !list.status.success() {
            return Err("git ls-files failed; tidy works in a clone".into());
        }
        let mut files = Vec::new();
        for path in String::from_utf8_lossy(&list.stdout).split_terminator('\0') {
            // A file that is deleted but not yet staged, or that is not text, is not ours to judge.
            if let Ok(text) = std::fs::read_to_string(root.join(path)) {
                files.push(Source::new(path, text));
            }
        }
        Ok(Tree { root, files })
    }
}

type Rule = fn(&Tree) -> Vec<Offender>;

const RULES: &[(&str, Rule)] = &[
    ("dependency-direction", deps::direction),
    ("outside-dependencies", deps::outside),
    ("header", text::header),
    ("safety-comment", unsafety::safety_comment),
    ("unsafe-only-where-allowed", unsafety::where_allowed),
    ("file-length", text::file_length),
    ("function-length", text::function_length),
    ("line-length", text::line_length),
    ("ascii", text::ascii),
    ("banned-words", text::banned_words),
    ("write-token", text::write_token),
    ("dead-file", layout::dead_file),
    ("large-file", layout::large_file),
    ("folder-cycle", layers::folder_cycle),
    ("file-cycle", layers::file_cycle),
    ("private-path", layout::private_path),
    ("merge-marker", layout::merge_marker),
    ("paths-exist", docs::paths_exist),
    ("changelog", docs::changelog),
];

/// Runs every rule, prints the offenders, and closes with one line of sums.
pub fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask has a parent");
    let tree = match Tree::read(root.to_path_buf()) {
        Ok(tree) => tree,
        Err(why) => {
            eprintln!("tidy: {why}");
            return ExitCode::FAILURE;
        }
    };
    let mut failed = 0;
    for (name, rule) in RULES {
        let offenders = rule(&tree);
        failed += usize::from(!offenders.is_empty());
        for offender in offenders {
            println!("{offender} [{name}]");
        }
    }
    println!(
        "{} passed, {failed} failed, 0 skipped",
        RULES.len() - failed
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
pub mod testing {
    //! Trees for the tests of the rules: nothing here touches a disk.
    use super::{Offender, Rule, Source, Tree};

    pub fn tree(files: &[(&str, &str)]) -> Tree {
        let files = files
            .iter()
            .map(|(path, text)| Source::new(path, (*text).into()))
            .collect();
        Tree {
            root: "/nonexistent".into(),
            files,
        }
    }

    /// The offenders of one file.
    pub fn judge(rule: Rule, path: &str, text: &str) -> Vec<Offender> {
        rule(&tree(&[(path, text)]))
    }

    /// Asserts that the rule names exactly these lines of the file.
    pub fn assert_lines(rule: Rule, path: &str, text: &str, lines: &[usize]) {
        let found: Vec<usize> = judge(rule, path, text).iter().map(|o| o.line).collect();
        assert_eq!(found, lines, "in {path}:\n{text}");
    }
}
