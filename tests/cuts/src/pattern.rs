//! Content that says where it belongs: each aligned word of eight bytes names the file, the version
//! that wrote it and its own offset. No byte of it is zero, so a hole is told from content.

/// Files and versions are numbered below this.
pub const NUMBER_MAX: u32 = 1 << 14;
const OFFSET_MASK: u64 = (1 << 22) - 1;

/// Who wrote a word, and for which place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub file: u32,
    pub version: u32,
    pub offset: u64,
}

/// The bytes that `version` of `file` has from `at`.
pub fn fill(file: u32, version: u32, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 16);
    let first = at / 8;
    let mut index = first;
    while bytes.len() < len + 8 {
        bytes.extend(word(file, version, index));
        index += 1;
    }
    let skip = (at % 8) as usize;
    bytes[skip..skip + len].to_vec()
}

fn word(file: u32, version: u32, index: u64) -> [u8; 8] {
    let low = u64::from(file % NUMBER_MAX)
        | u64::from(version % NUMBER_MAX) << 14
        | (index & OFFSET_MASK) << 28;
    let word = low | check(low) << 50;
    std::array::from_fn(|i| 0x80 | (word >> (7 * i) & 0x7f) as u8)
}

fn check(low: u64) -> u64 {
    low.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58
}

/// Who wrote the word around byte `at` of these bytes, which begin at offset 0 of their file; None
/// if it is no word of ours.
pub fn origin(bytes: &[u8], at: usize) -> Option<Origin> {
    let start = at / 8 * 8;
    let word = bytes.get(start..start + 8)?;
    if word.iter().any(|byte| byte & 0x80 == 0) {
        return None;
    }
    let word = (0..8).fold(0, |all, i| all | u64::from(word[i] & 0x7f) << (7 * i));
    let low = word & ((1 << 50) - 1);
    (check(low) == word >> 50).then_some(Origin {
        file: (low as u32) % NUMBER_MAX,
        version: (low >> 14) as u32 % NUMBER_MAX,
        offset: (low >> 28 & OFFSET_MASK) * 8,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_says_where_it_belongs() {
        let whole = fill(7, 9, 0, 5000);
        assert!(whole.iter().all(|&byte| byte != 0));
        assert_eq!(fill(7, 9, 1003, 777), whole[1003..1780]);
        let origin = origin(&whole, 4099).expect("a word of ours");
        assert_eq!((origin.file, origin.version, origin.offset), (7, 9, 4096));
    }

    #[test]
    fn zeroes_noise_and_an_end_are_nobodys() {
        assert_eq!(origin(&[0; 16], 3), None);
        assert_eq!(origin(&[0x81; 16], 3), None);
        assert_eq!(origin(&fill(1, 1, 0, 15), 9), None);
    }
}
