//! The keys of values in the trees.

use pool::layout::value::TreeKey;

/// Keys up to this length take the short way.
const SHORT: usize = 56;

/// Runs `f` with the tree's key of a user's key.
#[inline]
pub(crate) fn with_key<T>(keyspace: u64, key: &[u8], f: impl FnOnce(&[u8]) -> T) -> T {
    if key.len() <= SHORT {
        let mut bytes = [0; 8 + SHORT];
        bytes[..8].copy_from_slice(&keyspace.to_be_bytes());
        bytes[8..8 + key.len()].copy_from_slice(key);
        return f(&bytes[..8 + key.len()]);
    }
    f(TreeKey::new(keyspace, key).as_slice())
}
