//! What a run has counted, as its proxy tells it.
//!
//! Invariant: `decode` accepts what `encode` makes, and never panics.

use alloc::vec::Vec;

/// Calls of all processes of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub served: u64,
    pub passed: u64,
    pub refused: u64,
    /// Call, reason, and how often.
    pub refusals: Vec<(u32, u32, u64)>,
    /// Programs that the library could not enter.
    pub uninstrumented: Vec<Vec<u8>>,
}

impl Report {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for sum in [self.served, self.passed, self.refused] {
            out.extend_from_slice(&sum.to_le_bytes());
        }
        out.extend_from_slice(&(self.refusals.len() as u64).to_le_bytes());
        for (call, why, count) in &self.refusals {
            out.extend_from_slice(&call.to_le_bytes());
            out.extend_from_slice(&why.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
        }
        for path in &self.uninstrumented {
            out.extend_from_slice(&(path.len() as u64).to_le_bytes());
            out.extend_from_slice(path);
        }
        out
    }

    /// The same read back.
    pub fn decode(bytes: &[u8]) -> Option<Report> {
        let mut rest = bytes;
        let mut report = Report {
            served: take_u64(&mut rest)?,
            passed: take_u64(&mut rest)?,
            refused: take_u64(&mut rest)?,
            ..Report::default()
        };
        for _ in 0..take_u64(&mut rest)? {
            let pair = take_u64(&mut rest)?;
            let count = take_u64(&mut rest)?;
            report
                .refusals
                .push((pair as u32, (pair >> 32) as u32, count));
        }
        while !rest.is_empty() {
            let len = take_u64(&mut rest)?.try_into().ok()?;
            let (path, tail) = rest.split_at_checked(len)?;
            report.uninstrumented.push(path.to_vec());
            rest = tail;
        }
        Some(report)
    }
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let (word, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back() {
        let report = Report {
            served: 1,
            passed: 2,
            refused: 3,
            refusals: alloc::vec![(4, 5, 6), (7, 8, 9)],
            uninstrumented: alloc::vec![b"/bin/x".to_vec(), Vec::new()],
        };
        let bytes = report.encode();
        assert_eq!(Report::decode(&bytes), Some(report));
        for cut in 0..bytes.len() {
            let _ = Report::decode(&bytes[..cut]);
        }
        assert_eq!(Report::decode(&[0xff; 40]), None);
    }
}
