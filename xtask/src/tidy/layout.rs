//! Rules about which files there are, and what may stand in any of them.

use super::{Offender, Source, Tree};

const FILE_BYTES_MAX: usize = 512 * 1024;

/// Where things lie on the machine of whoever wrote a line; a stranger does not have them. Split
/// so that this table does not find itself.
const PRIVATE: &[&str] = &[
    concat!("/home", "/"),
    concat!("/root", "/."),
    concat!("/root", "/src"),
    concat!("/Users", "/"),
    concat!("/mnt", "/c/"),
    concat!("/tmp/", "target"),
];

/// Every module file is named by a `mod` of its parent; one that is not is never compiled.
pub fn dead_file(tree: &Tree) -> Vec<Offender> {
    let mut offenders = Vec::new();
    for file in tree.rust() {
        let Some((name, parents)) = parents_of(&file.path) else {
            continue;
        };
        let declared = |parent: &Source| {
            parents.contains(&parent.path)
                && parent
                    .words("mod")
                    .any(|at| declares(&parent.code[at..], &name))
        };
        if !tree.rust().any(declared) {
            let why = format!("no `mod {name};` in {}", parents.join(" or "));
            offenders.push(Offender::new(&file.path, 0, why));
        }
    }
    offenders
}

/// The module's name and the files that could declare it; None for the root of a crate.
fn parents_of(path: &str) -> Option<(String, Vec<String>)> {
    let (_, inside) = path.split_once("src/")?;
    let base = &path[..path.len() - inside.len()];
    if matches!(inside, "lib.rs" | "main.rs") || inside.starts_with("bin/") {
        return None;
    }
    let module = inside
        .strip_suffix("/mod.rs")
        .or(inside.strip_suffix(".rs"))?;
    Some(match module.rsplit_once('/') {
        None => (
            module.into(),
            vec![format!("{base}lib.rs"), format!("{base}main.rs")],
        ),
        Some((parent, name)) => {
            let files = vec![
                format!("{base}{parent}.rs"),
                format!("{base}{parent}/mod.rs"),
            ];
            (name.into(), files)
        }
    })
}

fn declares(code: &str, name: &str) -> bool {
    let mut words = code.split(|c: char| c.is_whitespace() || c == ';' || c == '{');
    words.next() == Some("mod") && words.next() == Some(name)
}

/// A tracked file is small; what is large is made by a script.
pub fn large_file(tree: &Tree) -> Vec<Offender> {
    let large = |file: &&Source| file.text.len() > FILE_BYTES_MAX;
    let why = |file: &Source| format!("{} bytes; at most {FILE_BYTES_MAX}", file.text.len());
    tree.files
        .iter()
        .filter(large)
        .map(|f| Offender::new(&f.path, 0, why(f)))
        .collect()
}

/// No file mentions a path that only the authors' machines have.
pub fn private_path(tree: &Tree) -> Vec<Offender> {
    let mut offenders = Vec::new();
    for file in &tree.files {
        for (index, line) in file.text.lines().enumerate() {
            if let Some(path) = PRIVATE.iter().find(|path| line.contains(**path)) {
                let why = format!("`{path}` means nothing in a stranger's clone");
                offenders.push(Offender::new(&file.path, index + 1, why));
            }
        }
    }
    offenders
}

/// What a merge leaves where it could not decide.
const MARKERS: &[&str] = &["<<<<<<< ", "||||||| ", ">>>>>>> "];

/// No file holds the marks of a merge that was not finished.
pub fn merge_marker(tree: &Tree) -> Vec<Offender> {
    let mut offenders = Vec::new();
    for file in &tree.files {
        for (index, line) in file.text.lines().enumerate() {
            if MARKERS.iter().any(|marker| line.starts_with(marker)) {
                let why = "the mark of an unfinished merge".to_string();
                offenders.push(Offender::new(&file.path, index + 1, why));
            }
        }
    }
    offenders
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_lines, tree};
    use super::*;

    #[test]
    fn a_module_that_nobody_names_is_dead() {
        let dead = |files: &[(&str, &str)]| -> Vec<String> {
            dead_file(&tree(files))
                .into_iter()
                .map(|o| o.path)
                .collect()
        };
        let root = ("crates/a/src/lib.rs", "mod b;\n// mod c;\npub mod d { }\n");
        assert_eq!(dead(&[root, ("crates/a/src/b.rs", "")]), [""; 0]);
        assert_eq!(
            dead(&[root, ("crates/a/src/c.rs", "")]),
            ["crates/a/src/c.rs"]
        );
        assert_eq!(dead(&[root, ("crates/a/src/b/mod.rs", "")]), [""; 0]);
        let deep = ("crates/a/src/b/e.rs", "");
        assert_eq!(
            dead(&[root, ("crates/a/src/b.rs", "mod e;"), deep]),
            [""; 0]
        );
        assert_eq!(
            dead(&[root, ("crates/a/src/b.rs", ""), deep]),
            ["crates/a/src/b/e.rs"]
        );
        // A crate's file does not count for another crate.
        assert_eq!(
            dead(&[root, ("crates/z/src/b.rs", "")]),
            ["crates/z/src/b.rs"]
        );
        assert_eq!(
            dead(&[("crates/a/tests/t.rs", ""), ("xtask/build.rs", "")]),
            [""; 0]
        );
    }

    #[test]
    fn a_large_file_is_found() {
        assert_lines(large_file, "a.bin", &"x".repeat(FILE_BYTES_MAX + 1), &[0]);
        assert_lines(large_file, "a.bin", &"x".repeat(FILE_BYTES_MAX), &[]);
    }

    #[test]
    fn the_marks_of_a_merge_are_found() {
        let text = "a\n<<<<<<< HEAD\nb\n=======\nc\n>>>>>>> other\n";
        assert_lines(merge_marker, "README.md", text, &[2, 6]);
        assert_lines(merge_marker, "README.md", "a << b\n=======\n", &[]);
    }

    #[test]
    fn private_paths_are_found_in_any_file() {
        for path in PRIVATE {
            assert_lines(
                private_path,
                "README.md",
                &format!("fine\nsee {path}/x\n"),
                &[2],
            );
        }
        assert_lines(private_path, "README.md", "/hf/work/a /tmp/work\n", &[]);
    }
}
