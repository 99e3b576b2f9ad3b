//! `holdfast quota`: set, list, remove.
//!
//! Invariant: users are named as /etc/passwd has them, or by number.

use crate::args::{QuotaArgs, QuotaCommand, QuotaOfArgs};
use crate::failure::{self, Failure, printed};
use crate::json::Json;
use crate::kv::{escape, open_pool};
use crate::size::Size;
use holdfast::{Pool, Quota, QuotaOf};
use nix::unistd::{Uid, User};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// `quota`.
pub fn quota(args: &QuotaArgs, json: bool) -> Result<u8, Failure> {
    if let Ok(program) = std::env::current_exe() {
        holdfast::use_program(program);
    }
    match &args.command {
        QuotaCommand::Set { of, size, files } => {
            let of = named(of)?;
            if *size == Some(Size(0)) {
                let what = "a quota of 0 bytes would let nothing be written";
                return Err(Failure::new(what)
                    .fix("name a size such as 4K, or use modes to forbid writing")
                    .code(failure::USAGE));
            }
            let bytes = size.map(|size| size.0);
            open_pool(&args.pool, None)?.quota_set(&of, bytes, *files)?;
        }
        QuotaCommand::List => list(&open_pool(&args.pool, None)?, json)?,
        QuotaCommand::Remove { of } => {
            let of = named(of)?;
            open_pool(&args.pool, None)?.quota_remove(&of)?;
        }
    }
    Ok(failure::OK)
}

fn named(args: &QuotaOfArgs) -> Result<QuotaOf, Failure> {
    if let Some(path) = &args.directory {
        return Ok(QuotaOf::Directory(path.as_bytes().to_vec()));
    }
    if let Some(name) = &args.keyspace {
        return Ok(QuotaOf::Keyspace(name.as_bytes().to_vec()));
    }
    let name = args.user.as_deref().unwrap_or_default();
    let found = match name.parse() {
        Ok(uid) if uid != u32::MAX => Some(uid),
        _ => {
            let user = User::from_name(name);
            let user = user.map_err(|e| Failure::io(format!("user {name}"), &e.into()))?;
            user.map(|user| user.uid.as_raw())
        }
    };
    let nobody =
        || Failure::new(format!("there is no user {name:?}")).fix("name a user of this machine");
    found.map(QuotaOf::User).ok_or_else(nobody)
}

/// The name of a user, if there is one.
fn name_of(uid: u32) -> Option<String> {
    User::from_uid(Uid::from_raw(uid))
        .ok()
        .flatten()
        .map(|user| user.name)
}

fn list(pool: &Pool, json: bool) -> Result<(), Failure> {
    let quotas = pool.quotas()?;
    let mut out = std::io::stdout().lock();
    if json {
        let items = quotas.iter().map(item).collect();
        return printed(writeln!(out, "{}", Json::List(items).render()));
    }
    printed(
        quotas
            .iter()
            .try_for_each(|quota| writeln!(out, "{}", line(quota))),
    )
}

/// How much of a limit is taken, rounded down, so that less than all is never 100 %.
pub fn percent(taken: u64, limit: u64) -> u64 {
    (u128::from(taken) * 100 / u128::from(limit.max(1))) as u64
}

/// For people: the name of a user or keyspace, or a path.
pub fn named_for_people(of: &QuotaOf) -> String {
    match of {
        QuotaOf::User(uid) => name_of(*uid).unwrap_or(uid.to_string()),
        QuotaOf::Directory(path) => escape::shown(path),
        QuotaOf::Keyspace(name) => escape::shown(name),
    }
}

/// The same with its kind, unless that is clear.
pub fn whom(of: &QuotaOf) -> String {
    let name = named_for_people(of);
    match of {
        QuotaOf::User(_) => format!("user {name}"),
        QuotaOf::Directory(_) => name,
        QuotaOf::Keyspace(_) => format!("keyspace {name}"),
    }
}

fn line(quota: &Quota) -> String {
    let whom = whom(&quota.of);
    let taken = Size(quota.bytes_taken).to_string();
    let space = match quota.bytes {
        Some(limit) => {
            let share = percent(quota.bytes_taken, limit);
            format!("{taken} of {} ({share}%)", Size(limit))
        }
        None => taken,
    };
    let files = match quota.files {
        Some(limit) => {
            let share = percent(quota.files_taken, limit);
            format!("{} of {limit} files ({share}%)", quota.files_taken)
        }
        None => format!("{} files", quota.files_taken),
    };
    let note = match quota.complete {
        true => "",
        false => "  (not complete: set it again)",
    };
    format!("{whom}  {space}, {files}{note}")
}

/// Whom a quota limits.
pub fn fields_of(of: &QuotaOf) -> Vec<(&'static str, Json)> {
    match of {
        QuotaOf::User(uid) => {
            let mut fields = vec![("uid", Json::Number((*uid).into()))];
            fields.extend(name_of(*uid).map(|name| ("user", Json::Text(name))));
            fields
        }
        QuotaOf::Directory(path) => {
            let path = String::from_utf8_lossy(path).into_owned();
            vec![("directory", Json::Text(path))]
        }
        QuotaOf::Keyspace(name) => {
            let name = String::from_utf8_lossy(name).into_owned();
            vec![("keyspace", Json::Text(name))]
        }
    }
}

fn item(quota: &Quota) -> Json {
    let mut fields = fields_of(&quota.of);
    fields.push(("bytes_taken", Json::Number(quota.bytes_taken)));
    fields.extend(quota.bytes.map(|limit| ("bytes", Json::Number(limit))));
    fields.push(("files_taken", Json::Number(quota.files_taken)));
    fields.extend(quota.files.map(|limit| ("files", Json::Number(limit))));
    fields.push(("complete", Json::Bool(quota.complete)));
    Json::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_down() {
        assert_eq!(percent(4095, 4096), 99);
        assert_eq!(percent(4096, 4096), 100);
        assert_eq!(percent(u64::MAX, u64::MAX), 100);
        assert_eq!(percent(0, 0), 0);
        assert_eq!(
            percent(3 << 40, 1 << 40),
            300,
            "what was there before the limit"
        );
    }

    #[test]
    fn users_have_names_or_numbers() {
        let of = |user: &str| {
            named(&QuotaOfArgs {
                user: Some(user.into()),
                directory: None,
                keyspace: None,
            })
        };
        assert_eq!(of("0"), Ok(QuotaOf::User(0)));
        assert_eq!(of("root"), Ok(QuotaOf::User(0)));
        assert_eq!(of("70123"), Ok(QuotaOf::User(70123)));
        assert!(of("4294967295").is_err() && of("nobody-at-all").is_err());
    }
}
