//! Rules that keep prose true: what a path description names exists, and the changelog has the
//! form that its readers and release scripts rely on.

use super::{Offender, Tree};

/// Every `` `file.rs: function` `` in docs/paths names a function of such a file, and every
/// description names at least one. `file.rs` may be any tail of the path.
pub fn paths_exist(tree: &Tree) -> Vec<Offender> {
    let mut offenders = Vec::new();
    let in_paths = |path: &str| path.starts_with("docs/paths/") && path.ends_with(".md");
    for doc in tree.files.iter().filter(|file| in_paths(&file.path)) {
        let mut named = 0;
        for (index, line) in doc.text.lines().enumerate() {
            for (file, function) in steps(line) {
                named += 1;
                if !exists(tree, file, function) {
                    let why = format!("there is no `fn {function}` in a file `{file}`");
                    offenders.push(Offender::new(&doc.path, index + 1, why));
                }
            }
        }
        if named == 0 {
            offenders.push(Offender::new(
                &doc.path,
                0,
                "names no step as `file.rs: function`",
            ));
        }
    }
    offenders
}

/// The steps in a line: quoted by backticks, a Rust file, a colon, a function.
fn steps(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.split('`').skip(1).step_by(2).filter_map(|quoted| {
        let (file, function) = quoted.split_once(':')?;
        let function = function.trim().trim_end_matches("()");
        let name = function.rsplit("::").next().unwrap_or(function);
        (file.ends_with(".rs") && !name.is_empty()).then_some((file, name))
    })
}

fn exists(tree: &Tree, file: &str, function: &str) -> bool {
    let tail = |path: &str| path == file || path.ends_with(&format!("/{file}"));
    // `client/write.rs` is short for `crates/client/src/write.rs`.
    let short = |path: &str| tail(&path.replacen("/src/", "/", 1));
    tree.rust()
        .filter(|source| tail(&source.path) || short(&source.path))
        .any(|source| {
            source.words("fn").any(|at| {
                let name = source.code[at + 2..].trim_start();
                let rest = name.strip_prefix(function);
                rest.is_some_and(|rest| rest.starts_with(['(', '<']))
            })
        })
}

const SECTIONS: &[&str] = &[
    "Added",
    "Changed",
    "Deprecated",
    "Removed",
    "Fixed",
    "Security",
];

/// CHANGELOG.md: a title, `## Unreleased`, then dated versions; entries under known sections.
pub fn changelog(tree: &Tree) -> Vec<Offender> {
    let path = "CHANGELOG.md";
    let Some(file) = tree.files.iter().find(|file| file.path == path) else {
        return vec![Offender::new(path, 0, "there is no CHANGELOG.md")];
    };
    let mut offenders = Vec::new();
    let mut bad = |index: usize, why: &str| offenders.push(Offender::new(path, index + 1, why));
    let (mut versions, mut section) = (0, false);
    for (index, line) in file.text.lines().enumerate() {
        if index == 0 && line != "# Changelog" {
            bad(index, "the first line is `# Changelog`");
        }
        if let Some(version) = line.strip_prefix("## ") {
            versions += 1;
            section = false;
            if (versions == 1) != (version == "Unreleased") {
                bad(index, "the first version, and only it, is `Unreleased`");
            } else if versions > 1 && !is_release(version) {
                bad(index, "a version is `## X.Y.Z - YYYY-MM-DD`");
            }
        } else if let Some(name) = line.strip_prefix("### ") {
            section = true;
            if !SECTIONS.contains(&name) {
                bad(
                    index,
                    "a section is Added, Changed, Deprecated, Removed, Fixed or Security",
                );
            }
        } else if line.starts_with("- ") && !section {
            bad(index, "an entry stands in a section");
        } else if line.chars().count() > 100 {
            bad(index, "a line has at most 100 characters");
        }
    }
    if versions == 0 {
        bad(0, "there is no `## Unreleased`");
    }
    offenders
}

fn is_release(version: &str) -> bool {
    let Some((number, date)) = version.split_once(" - ") else {
        return false;
    };
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let lengths: Vec<usize> = date.split('-').map(str::len).collect();
    number.split('.').count() == 3
        && number.split('.').all(digits)
        && lengths == [4, 2, 2]
        && date.split('-').all(digits)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_lines, tree};
    use super::*;

    #[test]
    fn a_path_that_names_what_is_gone_is_found() {
        let code = (
            "crates/client/src/write.rs",
            "//! h\npub fn pwrite<T>() {}\nfn helper_2() {}",
        );
        let judge = |text: &str| -> Vec<usize> {
            paths_exist(&tree(&[code, ("docs/paths/a.md", text)]))
                .iter()
                .map(|o| o.line)
                .collect()
        };
        assert_eq!(judge("1. `write.rs: pwrite` copies\n"), [0; 0]);
        assert_eq!(judge("1. `client/write.rs: pwrite()` copies\n"), [0; 0]);
        assert_eq!(
            judge("1. `crates/client/src/write.rs: Ofd::pwrite`\n"),
            [0; 0]
        );
        assert_eq!(judge("ok\n`write.rs: pwritev`\n"), [2]);
        assert_eq!(
            judge("`write.rs: helper`\n"),
            [1],
            "the name is a whole word"
        );
        assert_eq!(judge("`read.rs: pwrite`\n"), [1]);
        assert_eq!(
            judge("`rite.rs: pwrite`\n"),
            [1],
            "a tail begins at a slash"
        );
        assert_eq!(judge("nothing named\n"), [0]);
    }

    #[test]
    fn changelog_has_its_form() {
        let good = "# Changelog\n\n## Unreleased\n\n### Added\n- A.\n\n## 1.0.0 - 2026-01-02\n\n\
            ### Fixed\n- B.\n";
        assert_lines(changelog, "CHANGELOG.md", good, &[]);
        for (from, to, line) in [
            ("# Changelog", "# Changes", 1),
            ("## Unreleased", "## 1.1.0 - 2026-02-03", 3),
            ("### Added", "### New", 5),
            ("### Added\n", "\n", 6),
            ("## 1.0.0 - 2026-01-02", "## 1.0.0", 8),
            ("## 1.0.0 - 2026-01-02", "## 1.0 - 2026-01-02", 8),
            ("## 1.0.0 - 2026-01-02", "## Unreleased", 8),
        ] {
            assert_lines(
                changelog,
                "CHANGELOG.md",
                &good.replacen(from, to, 1),
                &[line],
            );
        }
        assert_lines(changelog, "README.md", "", &[0]);
        assert_lines(changelog, "CHANGELOG.md", "# Changelog\n", &[1]);
    }
}
