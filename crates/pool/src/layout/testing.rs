//! Trees for tests: a sorted map in memory.
//!
//! Invariant: it behaves as `ReadTrees` demands, and a value that does not fit its buffer is an
//! error.

use super::{BadValue, ReadTrees, TreeId};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Seed of the hashes of names.
pub(crate) const SEED: u64 = 0x0123_4567_89ab_cdef;

/// A forest in memory.
#[derive(Clone, Default)]
pub(crate) struct MapTrees(pub BTreeMap<(TreeId, Vec<u8>), Vec<u8>>);

impl MapTrees {
    pub fn put(&mut self, tree: TreeId, key: &[u8], value: &[u8]) {
        self.0.insert((tree, key.to_vec()), value.to_vec());
    }
}

fn copy(from: &[u8], to: &mut [u8]) -> Result<usize, BadValue> {
    let too_long = BadValue {
        what: "too long for its buffer",
    };
    to.get_mut(..from.len())
        .ok_or(too_long)?
        .copy_from_slice(from);
    Ok(from.len())
}

impl ReadTrees for MapTrees {
    type Error = BadValue;

    fn name_seed(&self) -> Result<u64, BadValue> {
        Ok(SEED)
    }

    fn get(&self, tree: TreeId, key: &[u8], value: &mut [u8]) -> Result<Option<usize>, BadValue> {
        self.0
            .get(&(tree, key.to_vec()))
            .map(|v| copy(v, value))
            .transpose()
    }

    fn at_or_after(
        &self,
        tree: TreeId,
        from: &[u8],
        key: &mut [u8],
        value: &mut [u8],
    ) -> Result<Option<(usize, usize)>, BadValue> {
        match self.0.range((tree, from.to_vec())..).next() {
            Some(((t, k), v)) if *t == tree => Ok(Some((copy(k, key)?, copy(v, value)?))),
            _ => Ok(None),
        }
    }

    fn at_or_before(
        &self,
        tree: TreeId,
        to: &[u8],
        key: &mut [u8],
        value: &mut [u8],
    ) -> Result<Option<(usize, usize)>, BadValue> {
        match self.0.range(..=(tree, to.to_vec())).next_back() {
            Some(((t, k), v)) if *t == tree => Ok(Some((copy(k, key)?, copy(v, value)?))),
            _ => Ok(None),
        }
    }
}
