//! The program that changes keys and values through the library: batches, durable or ordered.
//!
//! `batch durable|ordered KEYSPACE KEY:VERSION:LENGTH...` commits them all at once; `-` for the
//! length erases the key. The number of a key is its file number in the pattern of its value.

use crate::pattern;
use crate::writer::{answer_lines, number};
use holdfast::{Durability, Pool};
use std::io;
use std::process::ExitCode;

/// `hf-cuts keys POOL`
pub fn main(pool: &str) -> ExitCode {
    if let Some(program) = std::env::var_os("HOLDFAST") {
        holdfast::use_program(program);
    }
    let pool = match Pool::open(pool) {
        Ok(pool) => pool,
        Err(e) => {
            eprintln!("keys: {e}");
            return ExitCode::FAILURE;
        }
    };
    answer_lines(|words| act(&pool, words).map_err(io::Error::other))
}

fn act(pool: &Pool, words: &[&str]) -> Result<(), String> {
    let ["batch", durability, keyspace, changes @ ..] = words else {
        return Err("an unknown command".into());
    };
    let durability = match *durability {
        "durable" => Durability::Durable,
        _ => Durability::Ordered,
    };
    let text = |e: holdfast::Error| e.to_string();
    let keyspace = pool.keyspace_or_create(keyspace).map_err(text)?;
    let mut batch = pool.batch();
    for change in changes {
        let parts: Vec<&str> = change.split(':').collect();
        let [key, version, len] = parts[..] else {
            return Err(format!("`{change}` is no change"));
        };
        if len == "-" {
            batch.erase(&keyspace, key.as_bytes()).map_err(text)?;
        } else {
            let value = value(key, version, len).map_err(|e| e.to_string())?;
            batch.put(&keyspace, key.as_bytes(), &value).map_err(text)?;
        }
    }
    batch.commit(durability).map_err(text)
}

fn value(key: &str, version: &str, len: &str) -> io::Result<Vec<u8>> {
    Ok(pattern::fill(
        number(key)?,
        number(version)?,
        0,
        number(len)?,
    ))
}
