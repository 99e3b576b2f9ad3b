//! When a pool was last saved by `serve --keep`, and whether that goes on well.
//!
//! Invariants: the record is in the pool's directory, as the target of a symbolic link, so that it
//! is there on every file system and changes as a whole; a record that cannot be read is none; of
//! what it says nothing is believed but for display, and that FILE need not be written again only
//! if the pool and FILE are both just as the record has them.

use crate::failure::Failure;
use crate::json::Json;
use holdfast_pool::directory::{SAVED, SAVED_NEW};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// No target of a link is longer.
const TARGET_MAX: usize = 4095;
/// Bytes of a sentence that are kept.
const SENTENCE_MAX: usize = 300;

/// A record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Where the pool is saved.
    pub file: PathBuf,
    /// When FILE last had all that was in the pool, in seconds since 1970; 0: never.
    pub time: u64,
    /// The pool as it was then, as `states::Segments::mark` tells states apart; 0: unknown.
    pub mark: u64,
    /// FILE as it was then: bytes, and when it was changed in nanoseconds since 1970.
    pub file_was: (u64, u64),
    /// Why the last save failed, if it did.
    pub failed: Option<String>,
}

impl Saved {
    /// The record of a pool.
    pub fn of(pool: &Path) -> Option<Saved> {
        let target = std::fs::read_link(pool.join(SAVED)).ok()?;
        Saved::decode(target.to_str()?)
    }

    /// It becomes that of the pool.
    pub fn keep(&self, pool: &Path) -> Result<(), Failure> {
        let (new, at) = (pool.join(SAVED_NEW), pool.join(SAVED));
        let _ = std::fs::remove_file(&new);
        std::os::unix::fs::symlink(self.encode(), &new)
            .and_then(|()| std::fs::rename(&new, &at))
            .map_err(|e| Failure::io(at.display(), &e))
    }

    /// From now on FILE has all of the pool in the state `mark`.
    pub fn is_now(file: &Path, mark: u64) -> Saved {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Saved {
            file: file.into(),
            time: now.map_or(0, |since| since.as_secs()),
            mark,
            file_was: looks(file).unwrap_or_default(),
            failed: None,
        }
    }

    /// The state of the pool that FILE has, if it is the file that was written then.
    pub fn mark_in(&self, file: &Path) -> Option<u64> {
        let same = self.mark != 0 && self.file == file && looks(file) == Some(self.file_was);
        same.then_some(self.mark)
    }

    /// How long ago FILE had all of the pool, and which file that is, for people.
    pub fn said(&self) -> String {
        let then = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(self.time));
        let age = then.map(|then| SystemTime::now().duration_since(then).unwrap_or_default());
        let file = self.file.display();
        match age.filter(|_| self.time != 0) {
            Some(age) => {
                let age = humantime::format_duration(Duration::from_secs(age.as_secs()));
                format!("{age} ago in {file}")
            }
            None => format!("never in {file}"),
        }
    }

    fn encode(&self) -> String {
        let (len, changed) = self.file_was;
        let mut fields = vec![
            ("file", Json::Text(self.file.display().to_string())),
            ("time", Json::Number(self.time)),
            ("mark", Json::Number(self.mark)),
            ("len", Json::Number(len)),
            ("changed", Json::Number(changed)),
        ];
        if let Some(why) = &self.failed {
            let short: String = why.chars().take(SENTENCE_MAX).collect();
            fields.push(("failed", Json::Text(short)));
        }
        let text = Json::Object(fields).render();
        // A path that is that long: what is to be said of it is lost, and no more.
        if text.len() <= TARGET_MAX {
            text
        } else {
            "{}".into()
        }
    }

    fn decode(text: &str) -> Option<Saved> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |name: &str| value.get(name)?.as_u64();
        // What is shown on a terminal may be of somebody who wants more than to tell.
        let shown = |text: &&str| !text.chars().any(char::is_control);
        let text = |name: &str| Some(value.get(name)?.as_str().filter(shown)?.to_string());
        Some(Saved {
            file: text("file")?.into(),
            time: number("time")?,
            mark: number("mark")?,
            file_was: (number("len")?, number("changed")?),
            failed: text("failed"),
        })
    }
}

/// Bytes of a file, and when it was changed.
fn looks(file: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(file).ok().filter(|f| f.is_file())?;
    let changed = found.mtime().checked_mul(1_000_000_000)? + found.mtime_nsec();
    Some((found.len(), u64::try_from(changed).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_and_nothing_else_is_one() {
        let mut saved = Saved {
            file: "/a b/\u{e4}\"".into(),
            time: 5,
            mark: u64::MAX,
            file_was: (1, 2),
            failed: None,
        };
        assert_eq!(Saved::decode(&saved.encode()), Some(saved.clone()));
        saved.failed = Some("no room".into());
        assert_eq!(Saved::decode(&saved.encode()), Some(saved.clone()));
        saved.failed = Some("\x1b[2J".into());
        assert_eq!(Saved::decode(&saved.encode()).unwrap().failed, None);
        saved.failed = Some("x".repeat(5000));
        let short = Saved::decode(&saved.encode()).unwrap().failed.unwrap();
        assert_eq!(short.len(), SENTENCE_MAX);
        saved.file = "y".repeat(4096).into();
        assert_eq!(Saved::decode(&saved.encode()), None);
        for text in ["", "{}", "1", "{\"file\":1}", "/a/link"] {
            assert_eq!(Saved::decode(text), None, "{text}");
        }
    }

    #[test]
    fn a_file_that_somebody_changed_is_not_the_one_that_was_written() {
        let dir = std::env::temp_dir().join(format!("holdfast-saved-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (file, other) = (dir.join("file"), dir.join("other"));
        std::fs::write(&file, "stream").unwrap();
        let saved = Saved::is_now(&file, 7);
        saved.keep(&dir).unwrap();
        assert_eq!(Saved::of(&dir), Some(saved.clone()));
        assert_eq!(saved.mark_in(&file), Some(7));
        assert_eq!(saved.mark_in(&other), None);
        std::fs::write(&file, "stream, longer").unwrap();
        assert_eq!(saved.mark_in(&file), None);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(saved.mark_in(&file), None);
        assert_eq!(Saved::default().mark_in(&file), None);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(Saved::of(&dir), None);
    }
}
