//! Paths as users give them.
//!
//! Invariant: what `absolute` returns starts with a slash and has no `.`, `..` or double slash.

use std::path::{Component, Path, PathBuf};

/// The path from the root, by its text alone: nothing on the way need exist.
pub fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    let whole = std::env::current_dir()?.join(path);
    let mut out = PathBuf::from("/");
    for part in whole.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                out.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_absolute() {
        let cwd = std::env::current_dir().unwrap();
        for (path, want) in [
            ("/hf", "/hf"),
            ("/a/./b/../c//d/", "/a/c/d"),
            ("/..", "/"),
            ("/", "/"),
        ] {
            assert_eq!(absolute(Path::new(path)).unwrap(), Path::new(want));
        }
        assert_eq!(absolute(Path::new("x")).unwrap(), cwd.join("x"));
        assert_eq!(absolute(Path::new("")).unwrap(), cwd);
    }
}
