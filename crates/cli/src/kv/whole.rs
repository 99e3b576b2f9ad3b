//! `kv count`, `drop` and `rename`, and changes that depend on a value.
//!
//! Invariant: a change that was not made ends with exit status 1, and says what the key has.

use super::{Source, Target, escape, pool_to_change, to_change};
use crate::failure::{self, Failure, printed};
use crate::json::Json;
use holdfast::{Durability, Expires, Swap};
use std::io::{Read, Write};

/// `kv count`.
pub fn count(args: &Target<'_>, json: bool) -> Result<u8, Failure> {
    let count = Source::open(args)?.count()?;
    let mut out = std::io::stdout().lock();
    printed(match json {
        true => {
            let said = Json::Object(vec![("count", Json::Number(count))]);
            writeln!(out, "{}", said.render())
        }
        false => writeln!(out, "{count}"),
    })?;
    Ok(failure::OK)
}

/// `kv drop`.
pub fn remove(args: &Target<'_>) -> Result<u8, Failure> {
    pool_to_change(args)?.keyspace_drop(args.keyspace)?;
    Ok(failure::OK)
}

/// `kv rename`.
pub fn rename(args: &Target<'_>, new: &str, replace: bool) -> Result<u8, Failure> {
    let new = new.strip_prefix('/').unwrap_or(new);
    let renamed = pool_to_change(args)?.keyspace_rename(args.keyspace, new, replace);
    renamed.map_err(|e| match e {
        holdfast::Error::Exists { .. } if !replace => {
            Failure::from(e).fix("choose another name, or give --replace to drop that keyspace")
        }
        e => e.into(),
    })?;
    Ok(failure::OK)
}

/// All of standard input, as a value that is put on a condition.
pub fn input() -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut value);
    read.map_err(|e| Failure::io("standard input", &e))?;
    Ok(value)
}

/// `kv put --if` and `--if-absent`.
pub fn put_if(
    args: &Target<'_>,
    (key, value): (&[u8], &[u8]),
    expected: Option<&[u8]>,
    (expires, json): (Expires, bool),
) -> Result<u8, Failure> {
    // A keyspace that is not there has no value that could be expected.
    let (_pool, keyspace) = to_change(args, expected.is_none())?;
    let swap = keyspace.put_if_until(key, expected, value, expires, Durability::Durable)?;
    say(key, &swap, json)
}

/// `kv erase --if`.
pub fn erase_if(args: &Target<'_>, key: &[u8], expected: &[u8], json: bool) -> Result<u8, Failure> {
    let (_pool, keyspace) = to_change(args, false)?;
    let swap = keyspace.erase_if(key, expected, Durability::Durable)?;
    say(key, &swap, json)
}

fn say(key: &[u8], swap: &Swap, json: bool) -> Result<u8, Failure> {
    if json {
        let mut said = vec![("done", Json::Bool(swap.done))];
        said.extend(swap.present.as_deref().map(super::value_field));
        printed(writeln!(
            std::io::stdout(),
            "{}",
            Json::Object(said).render()
        ))?;
        return Ok(if swap.done {
            failure::OK
        } else {
            failure::FAILED
        });
    }
    let key = escape::short(key);
    match &swap.present {
        _ if swap.done => Ok(failure::OK),
        None => Err(Failure::new(format!("{key} has no value"))),
        Some(value) => {
            let value = escape::short(value);
            Err(Failure::new(format!("{key} has another value: {value}")))
        }
    }
}
