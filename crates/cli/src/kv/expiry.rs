//! When values expire: in JSON, and `kv expire`.
//!
//! Invariant: a time is nanoseconds since 1970 wherever it is written.

use super::{Source, Target, escape, to_change};
use crate::failure::{self, Failure, printed};
use crate::json::Json;
use holdfast::{Durability, Expires, ExpirySwap};
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
    let Some(after) = after else {
        let expires = Source::open(args)?
            .expires(key)?
            .ok_or_else(|| missing(args, key))?;
        return show(expires, json);
    };
    let (_pool, keyspace) = to_change(args, false)?;
    let expires = after.expires();
    match keyspace.expire(key, expires, Durability::Durable)? {
        true if json => show(expires, json),
        true => Ok(failure::OK),
        false => Err(missing(args, key)),
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

/// `kv put --if-expires`.
pub fn put_if(
    args: &Target<'_>,
    (key, value): (&[u8], &[u8]),
    at: Option<i64>,
    (expires, json): (Expires, bool),
) -> Result<u8, Failure> {
    let (_pool, keyspace) = to_change(args, false)?;
    let swap = keyspace.put_if_expires(key, at, value, expires, Durability::Durable)?;
    say(args, key, swap, json)
}

/// `kv erase --if-expires`.
pub fn erase_if(args: &Target<'_>, key: &[u8], at: Option<i64>, json: bool) -> Result<u8, Failure> {
    let (_pool, keyspace) = to_change(args, false)?;
    let swap = keyspace.erase_if_expires(key, at, Durability::Durable)?;
    say(args, key, swap, json)
}

/// `kv expire --if-expires`.
pub fn expire_if(
    args: &Target<'_>,
    key: &[u8],
    at: Option<i64>,
    after: After,
    json: bool,
) -> Result<u8, Failure> {
    let (_pool, keyspace) = to_change(args, false)?;
    let swap = keyspace.expire_if(key, at, after.expires(), Durability::Durable)?;
    say(args, key, swap, json)
}

/// What became of a change, and when the key expires.
fn say(args: &Target<'_>, key: &[u8], swap: ExpirySwap, json: bool) -> Result<u8, Failure> {
    if json {
        let mut said = vec![("done", Json::Bool(swap.done))];
        said.extend(swap.present.and_then(field));
        let said = Json::Object(said);
        printed(writeln!(std::io::stdout(), "{}", said.render()))?;
        return Ok(if swap.done {
            failure::OK
        } else {
            failure::FAILED
        });
    }
    let shown = escape::short(key);
    match swap.present {
        _ if swap.done => Ok(failure::OK),
        None => Err(missing(args, key)),
        Some(Expires::Never) => Err(Failure::new(format!("{shown} does not expire"))),
        Some(Expires::At(time)) => Err(Failure::new(format!("{shown} expires at {time}"))),
    }
}

fn missing(args: &Target<'_>, key: &[u8]) -> Failure {
    let (key, keyspace) = (escape::short(key), args.keyspace);
    Failure::new(format!("there is no key {key} in keyspace {keyspace}"))
}
