//! `holdfast snapshot`: create, list, delete; `diff` and `thin` have files of their own.
//!
//! Invariant: times are of UTC.

use crate::args::{SnapshotArgs, SnapshotCommand};
use crate::failure::{self, Failure, printed};
use crate::json::Json;
use crate::kv::open_pool;
use crate::{owner, snapshot_diff, thinning};
use holdfast::Pool;
use std::io::Write;
use std::path::Path;

/// `snapshot`.
pub fn snapshot(args: &SnapshotArgs, json: bool) -> Result<u8, Failure> {
    if let Ok(program) = std::env::current_exe() {
        holdfast::use_program(program);
    }
    match &args.command {
        SnapshotCommand::Diff { from, to } => {
            return snapshot_diff::diff(&args.pool, from, to.as_deref(), json);
        }
        SnapshotCommand::Thin {
            keep,
            prefix,
            dry_run,
        } => return thinning::thin(&args.pool, keep, prefix, *dry_run),
        SnapshotCommand::Rollback { name, delete_newer } => {
            return roll_back(&args.pool, name, *delete_newer, json);
        }
        _ => {}
    }
    let pool = open_pool(&args.pool, None)?;
    match &args.command {
        SnapshotCommand::Create { name } => pool.snapshot_create(name)?,
        SnapshotCommand::Delete { name } => pool.snapshot_delete(name)?,
        SnapshotCommand::List => list(&pool, json)?,
        SnapshotCommand::Rename { name, to } => pool.snapshot_rename(name, to)?,
        SnapshotCommand::Diff { .. }
        | SnapshotCommand::Thin { .. }
        | SnapshotCommand::Rollback { .. } => {}
    }
    Ok(failure::OK)
}

fn roll_back(pool: &Path, name: &str, delete_newer: bool, json: bool) -> Result<u8, Failure> {
    owner::become_owner(pool)?;
    let done = holdfast_service::roll_back(pool, name.as_bytes(), delete_newer);
    let done = done.map_err(|error| match error {
        holdfast_service::Error::Pool {
            error: holdfast_pool::Error::NoSnapshot,
            ..
        } => Failure::new(format!("there is no snapshot {name:?}"))
            .fix("`holdfast snapshot POOL list` shows the pool's snapshots"),
        other => other.into(),
    })?;
    let mut out = std::io::stdout().lock();
    printed(match json {
        true => {
            let deleted = done.deleted.iter().rev();
            let deleted = deleted.map(|name| Json::Text(String::from_utf8_lossy(name).into()));
            let object = Json::Object(vec![
                ("snapshot", Json::Text(name.into())),
                ("entries", Json::Number(done.changed)),
                ("deleted", Json::List(deleted.collect())),
            ]);
            writeln!(out, "{}", object.render())
        }
        false => {
            let (entries, deleted) = (done.changed, done.deleted.len());
            write!(out, "back at {name}: {entries} entries changed").and_then(|()| match deleted {
                0 => writeln!(out),
                n => writeln!(out, ", {n} newer snapshots deleted"),
            })
        }
    })?;
    Ok(failure::OK)
}

fn list(pool: &Pool, json: bool) -> Result<(), Failure> {
    let snapshots = pool.snapshot_list()?;
    let mut out = std::io::stdout().lock();
    if json {
        let items = snapshots.iter().map(|snapshot| {
            Json::Object(vec![
                ("name", Json::Text(snapshot.name.clone())),
                ("time", Json::Text(utc(snapshot.time_ns))),
                ("time_ns", Json::Number(snapshot.time_ns.max(0) as u64)),
            ])
        });
        return printed(writeln!(out, "{}", Json::List(items.collect()).render()));
    }
    printed(
        snapshots
            .iter()
            .try_for_each(|snapshot| writeln!(out, "{}  {}", utc(snapshot.time_ns), snapshot.name)),
    )
}

/// Nanoseconds since 1970 as date and time of day.
fn utc(time_ns: i64) -> String {
    let seconds = time_ns.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years that begin in March, so that a leap day is the last of its year; 400 of them have
    // 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = era * 400 + year + next;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(seconds * 1_000_000_000), text);
        }
    }
}
