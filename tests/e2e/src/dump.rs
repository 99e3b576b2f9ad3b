//! A canonical listing of a tree. Two trees have equal listings exactly if a user could tell them
//! apart only by inode numbers, times and the sizes of directories.

use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;

/// `hf-e2e dump DIR`
pub fn main(dir: &str) -> ExitCode {
    match tree(Path::new(dir)) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("dump: {dir}: {e}");
            ExitCode::FAILURE
        }
    }
}

/// One line per entry below `dir`, in byte order of the paths.
pub fn tree(dir: &Path) -> io::Result<String> {
    let mut lines = Vec::new();
    below(dir, Path::new(""), &mut lines)?;
    lines.sort();
    Ok(lines.concat())
}

fn below(dir: &Path, inside: &Path, lines: &mut Vec<String>) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = inside.join(entry.file_name());
        let full = entry.path();
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", full.display()));
        lines.push(line(&full, &path).map_err(named)?);
        if full.symlink_metadata().map_err(named)?.is_dir() {
            below(&full, &path, lines)?;
        }
    }
    Ok(())
}

fn line(full: &Path, path: &Path) -> io::Result<String> {
    let meta = full.symlink_metadata()?;
    let kind = meta.file_type();
    // The path comes first, so that sorted lines are sorted paths.
    let mut line = format!(
        "{} {:04o} {}:{} links {}",
        path.to_string_lossy().escape_debug(),
        meta.permissions().mode() & 0o7777,
        meta.uid(),
        meta.gid(),
        meta.nlink(),
    );
    let rest = if kind.is_dir() {
        " directory".into()
    } else if kind.is_symlink() {
        format!(
            " symlink {}",
            std::fs::read_link(full)?.to_string_lossy().escape_debug()
        )
    } else if kind.is_file() {
        format!(" file {} {:016x}", meta.size(), hash(&std::fs::read(full)?))
    } else if kind.is_fifo() {
        " fifo".into()
    } else if kind.is_socket() {
        " socket".into()
    } else {
        format!(" device {:x}", meta.rdev())
    };
    writeln!(line, "{rest}").expect("writing to a string does not fail");
    Ok(line)
}

/// FNV-1a, good enough to tell an honest mistake.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_differ_where_trees_do() {
        let dir = std::env::temp_dir().join(format!("hf-dump.{}", std::process::id()));
        let make = |content: &str, mode: u32| -> String {
            let _ = std::fs::remove_dir_all(&dir);
            std::fs::create_dir_all(dir.join("d")).expect("made");
            std::fs::write(dir.join("d/f"), content).expect("written");
            std::os::unix::fs::symlink("d/f", dir.join("s")).expect("linked");
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(dir.join("d/f"), mode).expect("set");
            tree(&dir).expect("listed")
        };
        let first = make("abc", 0o644);
        assert_eq!(first, make("abc", 0o644));
        assert_ne!(first, make("abd", 0o644));
        assert_ne!(first, make("abc", 0o600));
        assert_eq!(first.lines().count(), 3);
        assert!(
            first
                .lines()
                .nth(2)
                .is_some_and(|l| l.ends_with("symlink d/f")),
            "{first}"
        );
        std::fs::hard_link(dir.join("d/f"), dir.join("g")).expect("linked");
        assert!(tree(&dir).expect("listed").contains("links 2 file"));
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
