//! `holdfast du`: what takes the space of a pool.
//!
//! Invariants: lines are written as soon as they are known, so that a pool of any size takes no
//! more memory than its files with several names do; what could not be seen is said at the end.

use crate::args::DuArgs;
use crate::failure::{self, Failure, say};
use crate::json::Json;
use crate::kv::{escape, open_pool};
use crate::size::Size;
use holdfast::{Part, PartKind};
use holdfast_pool::segment::META;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// `du`. The status is 1 if something could not be seen.
pub fn du(args: &DuArgs, json: bool) -> Result<u8, Failure> {
    if let Ok(program) = std::env::current_exe() {
        holdfast::use_program(program);
    }
    let mut shown = Shown {
        args,
        json,
        any: false,
        written: Ok(()),
        out: std::io::BufWriter::new(std::io::stdout().lock()),
    };
    let mut status = failure::OK;
    for named in &args.pool {
        let unseen = match shown.show(named) {
            Ok(unseen) => unseen,
            Err(_) if shown.written.is_err() => break,
            Err(failure) => return Err(failure),
        };
        if unseen > 0 {
            let what = match unseen {
                1 => "1 file or directory".into(),
                n => format!("{n} files and directories"),
            };
            say(Failure::new(format!(
                "{}: {what} may not be seen",
                named.display()
            )));
            status = failure::FAILED;
        }
    }
    failure::printed(shown.end())?;
    Ok(status)
}

struct Shown<'a, W> {
    args: &'a DuArgs,
    json: bool,
    /// Something was written.
    any: bool,
    written: std::io::Result<()>,
    out: W,
}

impl<W: Write> Shown<'_, W> {
    /// A pool, or a path in it; how much may not be seen.
    fn show(&mut self, named: &Path) -> Result<u64, Failure> {
        let (pool, path) = parts_of(named)?;
        let (opened, snapshot) = (open_pool(&pool, None)?, self.args.snapshot.as_ref());
        let mut each = |part: Part| match self.is_wanted(&part) {
            true => self.part(&pool, &part),
            false => Ok(()),
        };
        let unseen = match snapshot {
            None => opened.usage(&path, &mut each),
            Some(name) => opened.snapshot(name)?.usage(&path, &mut each),
        };
        unseen.map_err(|e| match e {
            holdfast::Error::Pool(e) => Failure::new(format!("{}: {e}", named.display())),
            e => e.into(),
        })
    }

    fn is_wanted(&self, part: &Part) -> bool {
        let depth = match self.args.summarize {
            true => Some(0),
            false => self.args.max_depth,
        };
        let is_near = depth.is_none_or(|depth| part.depth <= depth);
        let is_shown = part.kind != PartKind::File || self.args.all || part.depth == 0;
        is_near && is_shown
    }

    /// The first error ends it.
    fn part(&mut self, pool: &Path, part: &Part) -> holdfast::Result<()> {
        self.written = match self.json {
            true => self.item(pool, part),
            false => self.line(pool, part),
        };
        match &self.written {
            Ok(()) => Ok(()),
            Err(e) => Err(holdfast::Error::Os {
                what: "standard output",
                errno: e.raw_os_error().unwrap_or(0),
            }),
        }
    }

    fn line(&mut self, pool: &Path, part: &Part) -> std::io::Result<()> {
        let bytes = match self.args.apparent_size {
            true => part.space.size,
            false => part.space.taken,
        };
        let note = match part.kind {
            PartKind::Keyspace => " (keyspace)",
            PartKind::Volume => " (volume)",
            PartKind::Directory | PartKind::File => "",
        };
        let path = [pool.as_os_str().as_bytes(), &part.path].concat();
        let (size, path) = (Size(bytes).to_string(), escape::shown(&path));
        writeln!(self.out, "{size:<7} {path}{note}")
    }

    fn item(&mut self, pool: &Path, part: &Part) -> std::io::Result<()> {
        let kind = match part.kind {
            PartKind::Directory => "directory",
            PartKind::Keyspace => "keyspace",
            PartKind::Volume => "volume",
            PartKind::File => "file",
        };
        let path = match part.path.is_empty() {
            true => "/".into(),
            false => escape::shown(&part.path),
        };
        let fields = Json::Object(vec![
            ("pool", Json::Text(pool.display().to_string())),
            ("path", Json::Text(path)),
            ("kind", Json::Text(kind.into())),
            ("taken", Json::Number(part.space.taken)),
            ("size", Json::Number(part.space.size)),
        ]);
        let before = if self.any { ",\n" } else { "[" };
        self.any = true;
        write!(self.out, "{before}{}", fields.render())
    }

    fn end(mut self) -> std::io::Result<()> {
        std::mem::replace(&mut self.written, Ok(()))?;
        match (self.json, self.any) {
            (true, true) => writeln!(self.out, "]")?,
            (true, false) => writeln!(self.out, "[]")?,
            _ => {}
        }
        self.out.flush()
    }
}

/// The pool that is named, and the path in it.
fn parts_of(named: &Path) -> Result<(PathBuf, Vec<u8>), Failure> {
    let found = named.ancestors().find(|path| {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        path.join(META).exists()
    });
    let Some(pool) = found else {
        return Err(holdfast_service::Error::Missing { path: named.into() }.into());
    };
    let below = named.strip_prefix(pool).unwrap_or(Path::new(""));
    let pool = match pool.as_os_str().is_empty() {
        true => PathBuf::from("."),
        false => pool.into(),
    };
    Ok((pool, below.as_os_str().as_bytes().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_told_from_what_is_in_it() {
        let pool = std::env::temp_dir().join(format!("holdfast-du-{}", std::process::id()));
        std::fs::create_dir(&pool).unwrap();
        std::fs::write(pool.join(META), "").unwrap();
        let parts = |below: &str| parts_of(&pool.join(below));
        assert_eq!(parts(""), Ok((pool.clone(), Vec::new())));
        assert_eq!(parts("a/b c/"), Ok((pool.clone(), b"a/b c".to_vec())));
        std::fs::remove_dir_all(&pool).unwrap();
        let missing = parts("a").unwrap_err().to_string();
        assert!(
            missing.starts_with("holdfast: there is no pool at "),
            "{missing}"
        );
    }

    fn part(depth: usize, kind: PartKind) -> Part {
        let (path, space) = (b"/d".to_vec(), holdfast::Space::default());
        Part {
            path,
            kind,
            depth,
            space,
        }
    }

    #[test]
    fn what_is_asked_for_is_shown() {
        let wanted = |change: &dyn Fn(&mut DuArgs), depth, kind| {
            let mut args = DuArgs {
                pool: Vec::new(),
                summarize: false,
                max_depth: None,
                all: false,
                apparent_size: false,
                snapshot: None,
            };
            change(&mut args);
            let shown = Shown {
                args: &args,
                json: false,
                any: false,
                written: Ok(()),
                out: Vec::new(),
            };
            shown.is_wanted(&part(depth, kind))
        };
        let one = |args: &mut DuArgs| args.max_depth = Some(1);
        assert!(wanted(&|_| {}, 9, PartKind::Volume));
        assert!(!wanted(&|_| {}, 9, PartKind::File));
        // What is named is shown, whatever it is.
        assert!(wanted(&|_| {}, 0, PartKind::File));
        assert!(wanted(&|args| args.all = true, 9, PartKind::File));
        assert!(wanted(&one, 1, PartKind::Directory));
        assert!(!wanted(&one, 2, PartKind::Directory));
        assert!(!wanted(
            &|args| args.summarize = true,
            1,
            PartKind::Keyspace
        ));
    }
}
