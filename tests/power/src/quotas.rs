//! Quotas in the stories: setting them, and what they say is taken, which is counted here anew.
//!
//! Invariant: what counts for whom follows from paths, owners and sizes as stat(2) tells them, and
//! from nothing that the pool keeps for it.

use crate::file_stories;
use crate::model::Limits;
use crate::model::Mode::{self, *};
use crate::model::Op::{self, *};
use crate::model::Whose::{self, *};
use crate::run::{Plan, run};
use crate::sight;
use crate::stack::{ME, ROOT};
use crate::stories;
use holdfast_client::{Client, QuotaInfo, abi};
use holdfast_pmem::Medium;
use holdfast_pmem::images::Model as Images;
use holdfast_pool::directory::LANE_LEN;
use holdfast_pool::quota::{Quota, Subject};
use std::collections::BTreeMap;

type Done<T = ()> = Result<T, String>;

fn subject(c: &Client, whose: Whose) -> holdfast_client::Result<Subject> {
    match whose {
        User(uid) => Ok(Subject::User(uid)),
        Directory(path) => c.quota_directory(&ME, path.as_bytes()),
    }
}

/// As the library does it.
pub fn set(c: &Client, whose: Whose, bytes: u64, files: u64) -> holdfast_client::Result<()> {
    let subject = subject(c, whose)?;
    c.quota_set(Quota {
        subject,
        partial: false,
        bytes,
        files,
    })?;
    c.sync()
}

pub fn remove(c: &Client, whose: Whose) -> holdfast_client::Result<()> {
    c.quota_remove(subject(c, whose)?)?;
    c.sync()
}

/// All quotas of users and of directories that are there, by name.
fn all(c: &Client) -> Done<Vec<(String, QuotaInfo)>> {
    let mut all = Vec::new();
    for info in c.quotas().map_err(|e| format!("quotas: {e}"))? {
        let name = match info.quota.subject {
            Subject::User(uid) => format!("user {uid}"),
            Subject::Directory(ino) => match c.quota_path(ino) {
                Ok(path) => String::from_utf8_lossy(&path[1..]).into_owned(),
                Err(holdfast_client::Error::NotFound) => continue,
                Err(e) => return Err(format!("path of {ino}: {e}")),
            },
        };
        all.push((name, info));
    }
    Ok(all)
}

pub fn seen(c: &Client) -> Done<BTreeMap<String, Limits>> {
    let limits = |info: QuotaInfo| {
        let Quota {
            partial,
            bytes,
            files,
            ..
        } = info.quota;
        Limits {
            partial,
            bytes,
            files,
        }
    };
    let all = all(c)?.into_iter();
    Ok(all.map(|(name, info)| (name, limits(info))).collect())
}

/// What is taken is what the objects say.
pub fn check(c: &Client) -> Done {
    let all = all(c)?;
    if all.is_empty() {
        return Ok(());
    }
    let view = sight::view(c)?;
    for (name, info) in all.iter().filter(|(_, info)| !info.quota.partial) {
        let below = format!("{name}/");
        let mut counted = BTreeMap::new();
        for path in view.keys() {
            let stat = c.stat(&ME, ROOT, path.as_bytes(), abi::AT_SYMLINK_NOFOLLOW);
            let stat = stat.map_err(|e| format!("stat {path}: {e}"))?;
            let counts = match info.quota.subject {
                Subject::User(uid) => stat.uid == uid,
                Subject::Directory(_) => path == name || path.starts_with(&below),
            };
            if counts {
                counted.insert(stat.ino, stat.blocks * 512);
            }
        }
        let taken = (counted.values().sum::<u64>(), counted.len() as u64);
        if taken != (info.bytes, info.files) {
            let told = (info.bytes, info.files);
            return Err(format!("{name} takes {told:?}, not {taken:?}"));
        }
    }
    Ok(())
}

/// Sets again what was interrupted; whether there was such a quota.
pub fn complete(c: &Client) -> Done<bool> {
    let mut any = false;
    for (name, info) in all(c)?.iter().filter(|(_, info)| info.quota.partial) {
        let done = c.quota_set(Quota {
            partial: false,
            ..info.quota
        });
        done.map_err(|e| format!("set again {name}: {e}"))?;
        any = true;
    }
    match all(c)?.iter().any(|(_, info)| info.quota.partial) {
        true => Err("a quota stays partial".into()),
        false => Ok(any),
    }
}

const ROOMY: u64 = 8 << 20;

/// Quotas come, change and go while their users and directories have files.
fn story() -> Vec<Op> {
    vec![
        Quota(Directory("old"), ROOMY, 100),
        Append("old/f", 5000, 3),
        Create("old/empty/g"),
        Write("old/empty/g", 0, 100, 4),
        Quota(User(7), ROOMY, 0),
        Chown("old/f", 7),
        Truncate("old/f", 300),
        Write("old/f", 20_000, 300, 5),
        Fsync("old/f"),
        Mkdir("d"),
        Create("d/a"),
        Quota(Directory("old"), 2 * ROOMY, 0),
        Chown("old/empty/g", 7),
        Rename("old/empty", "old/e"),
        Unlink("old/small"),
        Rename("old", "moved"),
        QuotaRemove(Directory("moved")),
        Rename("moved/e", "d/e"),
        Quota(Directory("d"), 0, 100),
        Unlink("d/e/g"),
        Rmdir("d/e"),
        QuotaRemove(User(7)),
        Chown("moved/f", 8),
        Unlink("d/a"),
        Rmdir("d"),
        Quota(User(8), ROOMY, 9),
    ]
}

fn tell(medium: Medium, mode: Mode, step_every: usize) {
    let model = match medium {
        Medium::File => Images::Pages,
        _ => Images::Lines,
    };
    let plan = Plan {
        mode,
        medium,
        lane_len: LANE_LEN,
        step_every,
        images: file_stories::few(model, 1),
        again_every: 90,
        images_again: file_stories::few(model, 1),
    };
    let figures = run("quotas", &plan, &stories::before(), &story());
    assert!(figures.images > 100, "{figures:?}");
    assert_eq!(figures.failures, 0, "{figures:?}");
}

#[test]
fn quotas_posix() {
    tell(Medium::Memory, Posix, 3);
}

#[test]
fn quotas_strict() {
    tell(Medium::Memory, Strict, 1);
}

#[test]
fn quotas_on_a_file_posix() {
    tell(Medium::File, Posix, 4);
}

#[test]
fn quotas_on_a_file_sync() {
    tell(Medium::File, Sync, 2);
}
