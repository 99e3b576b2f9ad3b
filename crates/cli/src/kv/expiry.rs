//! When values expire: in JSON, and `kv expire`.
//!
//! Invariant: a time is nanoseconds since 1970 wherever it is written.

use super::{Source, Target, escape, to_change};
use crate::failure::{self, Failure, printed};
use crate::json::Json;
use holdfast::{Durability, Expires};
use holdfast_cli::after::After;
use std::io::Write;

/// The field of an object, if the value expires.
pub fn field(expires: Expires) -> Option<(&'static str, Json)> {
    match expires {
        Expires::Never => None,
        Expires::At(time) => Some(("expires_ns", Json::Number(time.unsigned_abs()))),
    }
}

/// `kv expire`: says anew when a value expires, or shows it.
pub fn expire(
    args: &Target<'_>,
    key: &[u8],
    after: Option<After>,
    json: bool,
) -> Result<u8, Failure> {
    let missing = || {
        let key = escape::short(key);
        Failure::new(format!(
            "there is no key {key} in keyspace {}",
            args.keyspace
        ))
    };
    let Some(after) = after else {
        let expires = Source::open(args)?.expires(key)?.ok_or_else(missing)?;
        return show(expires, json);
    };
    let (_pool, keyspace) = to_change(args, false)?;
    let expires = after.expires();
    match keyspace.expire(key, expires, Durability::Durable)? {
        true if json => show(expires, json),
        true => Ok(failure::OK),
        false => Err(missing()),
    }
}

fn show(expires: Expires, json: bool) -> Result<u8, Failure> {
    let mut out = std::io::stdout().lock();
    printed(match (json, expires) {
        (true, expires) => {
            let said = Json::Object(field(expires).into_iter().collect());
            writeln!(out, "{}", said.render())
        }
        (false, Expires::Never) => writeln!(out, "never"),
        (false, Expires::At(time)) => writeln!(out, "{time}"),
    })?;
    Ok(failure::OK)
}
