//! The value of `HOLDFAST_SESSION`.

use holdfast_client::env::{SessionEnv, VALUE_MAX};

/// What is accepted is exactly what would be written.
pub fn run(bytes: &[u8]) {
    let Some(env) = SessionEnv::parse(bytes) else {
        return;
    };
    let mut out = vec![0; bytes.len().max(VALUE_MAX)];
    let len = env.format(&mut out);
    assert_eq!(len.map(|len| &out[..len]), Some(bytes), "{env:?}");
}
