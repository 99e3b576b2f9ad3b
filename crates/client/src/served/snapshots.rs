//! The list of snapshots, as `Client` has it.

use crate::base::error::{Error, Result};
use crate::base::types::Caller;
use crate::ops::snapshot::SnapshotInfo;
use crate::served::Served;
use crate::served::keys::by;
use crate::served::wire::*;
use alloc::vec;
use alloc::vec::Vec;
use pmem::MutBuf;

/// The words before a name: time, last record, objects, length of the name.
const HEAD: usize = 32;

impl Served {
    /// All snapshots, the oldest first.
    pub fn snapshot_list(&self, c: &Caller) -> Result<Vec<SnapshotInfo>> {
        let mut all = Vec::new();
        loop {
            let answered = self.ask(Op::SnapshotList, &by(c, &[all.len() as u64]))?;
            let mut bytes = vec![0; answered.len()];
            answered.take(0, MutBuf::from(&mut bytes[..]))?;
            if bytes.is_empty() {
                return Ok(all);
            }
            drop(answered);
            all.extend(decode_snapshots(&bytes).ok_or(Error::Invalid)?);
        }
    }
}

/// As many of the first as fit an answer, as bytes.
pub fn encode_snapshots(all: &[SnapshotInfo]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for one in all {
        if bytes.len() + HEAD + one.name.len() > BUFFER {
            break;
        }
        let words = [
            one.time_ns as u64,
            one.seq,
            one.objects,
            one.name.len() as u64,
        ];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend_from_slice(&one.name);
    }
    bytes
}

/// The same read back; `None`: it is none.
pub fn decode_snapshots(mut bytes: &[u8]) -> Option<Vec<SnapshotInfo>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let (words, _) = head.as_chunks();
        let [time, seq, objects, len] = *words else {
            return None;
        };
        let len = usize::try_from(u64::from_le_bytes(len)).ok()?;
        let (name, rest) = rest.split_at_checked(len)?;
        all.push(SnapshotInfo {
            name: name.to_vec(),
            time_ns: i64::from_le_bytes(time),
            seq: u64::from_le_bytes(seq),
            objects: u64::from_le_bytes(objects),
        });
        bytes = rest;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_back_and_cut_ones_do_not() {
        let one = |name: &[u8]| SnapshotInfo {
            name: name.to_vec(),
            time_ns: -1,
            seq: 2,
            objects: 3,
        };
        let all = [one(b"monday"), one(b"t")];
        let bytes = encode_snapshots(&all);
        assert_eq!(decode_snapshots(&bytes).unwrap(), all);
        assert_eq!(decode_snapshots(&[]).unwrap(), []);
        let many = vec![one(&[b'n'; 200]); 10_000];
        let first = decode_snapshots(&encode_snapshots(&many)).unwrap();
        assert_eq!(first.len(), BUFFER / (HEAD + 200));
        for cut in [1, HEAD, HEAD + 3, bytes.len() - 1] {
            assert!(decode_snapshots(&bytes[..cut]).is_none(), "{cut}");
        }
    }
}
