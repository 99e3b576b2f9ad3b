//! The quotas of a pool, as `pool status`, `top` and metrics show them.
//!
//! Invariants: limits are those of the trees, so they are known without a service; what is taken is
//! known while a session counts it, and none is opened to know it.

use crate::json::Json;
use crate::lsof::{Memory, stored_path};
use crate::metrics::{self, Kind};
use crate::quota_commands::{fields_of, named_for_people, percent, whom};
use crate::session;
use crate::size::Size;
use holdfast::QuotaOf;
use holdfast_client::attach::{self, Attachment};
use holdfast_pmem::{Access, Region};
use holdfast_pool::Reader;
use holdfast_pool::layout::{ROOT_INO, XATTR_VALUE_MAX, inode, xattr};
use holdfast_pool::protocol::Answer;
use holdfast_pool::quota::{self, Quota, Subject};
use holdfast_pool::session::{QUOTA_USER, Quota as Entry};
use holdfast_service::Files;
use std::cmp::Reverse;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// From so many per cent of a limit on, it is shown.
const NEARLY_FULL: u64 = 90;
/// At most so many of them.
const SHOWN: usize = 10;

/// A quota, and what is taken of it, if that is known.
pub struct Limited {
    of: QuotaOf,
    /// Bytes and files; 0: no limit.
    limits: [u64; 2],
    taken: Option<[u64; 2]>,
    /// All that is below the directory counts.
    complete: bool,
}

/// All quotas that can be read, those of users first.
pub fn all(files: &Files, live: Option<&Answer>) -> Vec<Limited> {
    let meta_len = files.superblock.meta_len as usize;
    let meta = Region::map(
        files.meta.as_fd(),
        0,
        meta_len,
        Access::ReadOnly,
        files.medium,
    );
    let Ok(meta) = meta else {
        return Vec::new();
    };
    let trees = Reader::new(&meta);
    let quotas = stored(&trees).unwrap_or_default();
    let is_counted = live.is_some_and(|answer| answer.sessions > 0) && !quotas.is_empty();
    let memory = is_counted.then(|| memory_of(files)).flatten();
    let limited = quotas.into_iter().filter_map(|(place, quota)| {
        let of = match quota.subject {
            Subject::User(uid) => QuotaOf::User(uid),
            Subject::Directory(ino) => {
                let path = stored_path(&trees, ino)?;
                match is_keyspace(&trees, ino) {
                    true => QuotaOf::Keyspace(path[1..].to_vec()),
                    false if path.is_empty() => QuotaOf::Directory(b"/".to_vec()),
                    false => QuotaOf::Directory(path),
                }
            }
        };
        let entry = memory.as_ref().and_then(|memory| memory.quota(place));
        Some(Limited {
            of,
            limits: [quota.bytes, quota.files],
            complete: !quota.partial,
            taken: entry.and_then(|entry| taken(entry, quota.subject)),
        })
    });
    let mut limited: Vec<_> = limited.collect();
    limited.sort_by(|a, b| a.of.cmp(&b.of));
    limited
}

fn is_keyspace(trees: &Reader<'_>, ino: u64) -> bool {
    let mut bytes = [0; inode::ENCODED_MAX];
    let found = inode::find(trees, ino, &mut bytes);
    found.is_ok_and(|found| found.is_some_and(|dir| dir.flags & inode::KEYSPACE != 0))
}

/// The table as the trees have it.
fn stored(trees: &Reader<'_>) -> holdfast_pool::Result<Vec<(usize, Quota)>> {
    let mut value = vec![0; XATTR_VALUE_MAX];
    quota::read_all(|name| {
        let len = xattr::find(trees, ROOT_INO, name, &mut value)?;
        Ok(len.map(|len| value[..len.min(value.len())].to_vec()))
    })
}

/// Of the session that is open.
fn memory_of(files: &Files) -> Option<Memory> {
    let attachment: Attachment =
        attach::attach(files.directory.as_os_str().as_bytes(), None).ok()?;
    Memory::map(session::memory(&attachment).ok()?).ok()
}

/// What the session counts for this subject.
fn taken(entry: &Entry, subject: Subject) -> Option<[u64; 2]> {
    let id = match subject {
        Subject::User(uid) => uid.into(),
        Subject::Directory(ino) => ino,
    };
    let (kind, is_users) = (
        entry.kind.load(Acquire),
        matches!(subject, Subject::User(_)),
    );
    let is_it = kind != 0 && (kind == QUOTA_USER) == is_users && entry.id.load(Relaxed) == id;
    // A sum below 0 is one that a death left, and counts as 0.
    let now = |sum: &AtomicU64| (sum.load(Acquire) as i64).max(0) as u64;
    is_it.then(|| [now(&entry.bytes), now(&entry.files)])
}

impl Limited {
    /// How much of the limit that is nearest is taken, in per cent.
    fn share(&self) -> Option<u64> {
        let pairs = self.limits.into_iter().zip(self.taken?);
        let shares = pairs.filter(|(limit, _)| *limit != 0);
        shares.map(|(limit, taken)| percent(taken, limit)).max()
    }

    fn json(&self) -> Json {
        let [bytes, files] = self.limits.map(|limit| (limit != 0).then_some(limit));
        let taken = |n: usize| self.taken.map(|taken| taken[n]);
        let numbers = [
            ("bytes_taken", taken(0)),
            ("bytes", bytes),
            ("files_taken", taken(1)),
            ("files", files),
        ];
        let known = numbers
            .into_iter()
            .filter_map(|(name, n)| Some((name, Json::Number(n?))));
        let complete = ("complete", Json::Bool(self.complete));
        let fields = fields_of(&self.of).into_iter().chain(known);
        Json::Object(fields.chain([complete]).collect())
    }

    fn text(&self) -> String {
        let [bytes, files] = self.taken.unwrap_or_default();
        let mut parts = Vec::new();
        if self.limits[0] != 0 {
            let share = percent(bytes, self.limits[0]);
            let (taken, limit) = (Size(bytes), Size(self.limits[0]));
            parts.push(format!("{taken} of {limit} ({share}%)"));
        }
        if self.limits[1] != 0 {
            let share = percent(files, self.limits[1]);
            parts.push(format!("{files} of {} files ({share}%)", self.limits[1]));
        }
        format!("{}: {}", whom(&self.of), parts.join(", "))
    }
}

/// For a JSON object.
pub fn field(all: &[Limited]) -> (&'static str, Json) {
    (
        "quotas",
        Json::List(all.iter().map(Limited::json).collect()),
    )
}

/// For people: how many there are, and which are nearly full, the fullest first.
pub fn rows(all: &[Limited]) -> Vec<(String, String)> {
    let shares = all
        .iter()
        .filter_map(|limited| Some((limited.share()?, limited)));
    let mut full: Vec<_> = shares.filter(|(share, _)| *share >= NEARLY_FULL).collect();
    full.sort_by_key(|(share, _)| Reverse(*share));
    let known = all.iter().filter(|limited| limited.taken.is_some()).count();
    let mut said = match (all.len(), known, full.len()) {
        (0, _, _) => String::from("none"),
        (n, 0, _) => format!("{n}; what is taken is counted while programs use the pool"),
        (n, _, 0) => format!("{n}, none nearly full"),
        (n, _, full) => format!("{n}, {full} nearly full"),
    };
    let partial = all.iter().filter(|limited| !limited.complete).count();
    if partial > 0 {
        said += &format!("; {partial} not complete: set again");
    }
    let mut rows = vec![("quotas".into(), said)];
    let shown = full.iter().take(SHOWN);
    rows.extend(shown.map(|(_, limited)| ("  quota".into(), limited.text())));
    if full.len() > SHOWN {
        let more = format!(
            "{} more; `holdfast quota POOL list` has all",
            full.len() - SHOWN
        );
        rows.push(("  quota".into(), more));
    }
    rows
}

const METRICS: [(&str, &str); 4] = [
    ("quota_limit_bytes", "Bytes that may be taken."),
    (
        "quota_limit_files",
        "Files, directories and others that may be there.",
    ),
    ("quota_taken_bytes", "Bytes that are taken."),
    (
        "quota_taken_files",
        "Files, directories and others that are there.",
    ),
];

/// In Prometheus' text format. There are at most as many as a pool may have quotas.
pub fn metrics(pool: &str, all: &[Limited]) -> String {
    let mut text = String::new();
    for (n, (name, help)) in METRICS.into_iter().enumerate() {
        let value = |limited: &Limited| match n {
            0 | 1 => Some(limited.limits[n]).filter(|limit| *limit != 0),
            _ => limited.taken.map(|taken| taken[n - 2]),
        };
        let values: Vec<_> = all
            .iter()
            .filter_map(|limited| Some((limited, value(limited)?)))
            .collect();
        if !values.is_empty() {
            metrics::head(&mut text, Kind::Gauge, name, help);
        }
        for (limited, value) in values {
            let whom = named_for_people(&limited.of);
            let kind = ("kind", limited.of.kind());
            let labels = metrics::labels(&[("pool", pool), kind, ("name", &whom)]);
            metrics::value(&mut text, name, &labels, value);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(uid: u32, limits: [u64; 2], taken: Option<[u64; 2]>) -> Limited {
        let of = QuotaOf::User(uid);
        let complete = uid != 70003;
        Limited {
            of,
            limits,
            taken,
            complete,
        }
    }

    #[test]
    fn the_fullest_are_shown_first() {
        let some = [
            limited(70001, [100 << 20, 0], Some([89 << 20, 1 << 40])),
            limited(70002, [100 << 20, 10], Some([0, 9])),
            limited(70003, [4096, 10], Some([8192, 1])),
        ];
        let said: Vec<_> = rows(&some).into_iter().map(|(_, said)| said).collect();
        assert_eq!(said[0], "3, 2 nearly full; 1 not complete: set again");
        assert_eq!(said[1], "user 70003: 8K of 4K (200%), 1 of 10 files (10%)");
        assert_eq!(said[2], "user 70002: 0 of 100M (0%), 9 of 10 files (90%)");
        assert_eq!(said.len(), 3);
        assert_eq!(rows(&[])[0].1, "none");
        assert_eq!(rows(&some[..1])[0].1, "1, none nearly full");
        let many: Vec<_> = (0..30).map(|n| limited(n, [1, 0], Some([1, 1]))).collect();
        let said = rows(&many);
        assert_eq!(said.len(), 2 + SHOWN);
        assert!(said[1 + SHOWN].1.starts_with("20 more"));
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let one = [limited(70001, [4096, 0], None)];
        let said = rows(&one);
        assert!(said[0].1.starts_with("1; what is taken is counted while"));
        assert_eq!(said.len(), 1);
        let shown = field(&one).1.render();
        assert!(
            shown.contains("\"bytes\":4096") && !shown.contains("taken"),
            "{shown}"
        );
        let text = metrics("/p", &one);
        let line = "holdfast_quota_limit_bytes{pool=\"/p\",kind=\"user\",name=\"70001\"} 4096\n";
        assert!(text.ends_with(line), "{text}");
        assert!(
            !text.contains("quota_taken") && !text.contains("files{"),
            "{text}"
        );
        assert_eq!(metrics("/p", &[]), "");
    }
}
