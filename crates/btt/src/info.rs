//! The info block of an arena, which has the arena's geometry.
//!
//! Invariant: an info block that `decode` returns has the checksum of its bytes; whether its
//! numbers make sense is for `layout` to say.

/// Bytes of an info block.
pub const LEN: usize = 4096;
const SIGNATURE: &[u8; 16] = b"BTT_ARENA_INFO\0\0";
/// Major and minor version: UEFI's. That of Linux before UEFI had one is 1.1, and is the same.
const VERSION: (u16, u16) = (2, 0);
const MAJORS: [u16; 2] = [1, 2];

/// The numbers of an info block. Offsets are from the arena's beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    pub uuid: [u8; 16],
    /// Of the namespace that it was made in; zeroes if it is for any.
    pub parent: [u8; 16],
    pub flags: u32,
    pub version: (u16, u16),
    /// Bytes and number of the sectors that users see.
    pub sector: u32,
    pub sectors: u32,
    /// Bytes and number of the blocks that they are in.
    pub block: u32,
    pub blocks: u32,
    /// Lanes, each with a free block.
    pub lanes: u32,
    /// To the next arena; 0: there is none.
    pub next: u64,
    pub data: u64,
    pub map: u64,
    pub flog: u64,
    pub copy: u64,
}

impl Info {
    /// One without geometry.
    pub fn new(uuid: [u8; 16]) -> Info {
        Info {
            uuid,
            parent: [0; 16],
            flags: 0,
            version: VERSION,
            sector: 0,
            sectors: 0,
            block: 0,
            blocks: 0,
            lanes: 0,
            next: 0,
            data: 0,
            map: 0,
            flog: 0,
            copy: 0,
        }
    }

    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = Vec::with_capacity(LEN);
        bytes.extend(SIGNATURE);
        bytes.extend(self.uuid);
        bytes.extend(self.parent);
        bytes.extend(self.flags.to_le_bytes());
        bytes.extend(self.version.0.to_le_bytes());
        bytes.extend(self.version.1.to_le_bytes());
        let (sector, block) = ([self.sector, self.sectors], [self.block, self.blocks]);
        for number in [sector, block, [self.lanes, LEN as u32]].as_flattened() {
            bytes.extend(number.to_le_bytes());
        }
        for number in [self.next, self.data, self.map, self.flog, self.copy] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.resize(LEN - 8, 0);
        bytes.extend(checksum(&bytes).to_le_bytes());
        let mut whole = [0; LEN];
        whole.copy_from_slice(&bytes);
        whole
    }

    /// `None`: this is no info block, or one that was torn.
    pub fn decode(bytes: &[u8; LEN]) -> Option<Info> {
        let (body, sum) = bytes.split_last_chunk::<8>()?;
        let whole = u64::from_le_bytes(*sum) == checksum(body);
        whole.then(|| Info::read(bytes))?
    }

    /// As the bytes say, whatever their checksum does.
    pub fn read(bytes: &[u8; LEN]) -> Option<Info> {
        let mut rest = &bytes[..];
        if take::<16>(&mut rest)? != *SIGNATURE {
            return None;
        }
        let (uuid, parent) = (take(&mut rest)?, take(&mut rest)?);
        let flags = word(&mut rest)?;
        let version = (half(&mut rest)?, half(&mut rest)?);
        let (sector, sectors) = (word(&mut rest)?, word(&mut rest)?);
        let (block, blocks) = (word(&mut rest)?, word(&mut rest)?);
        let (lanes, _len) = (word(&mut rest)?, word(&mut rest)?);
        let info = Info {
            uuid,
            parent,
            flags,
            version,
            sector,
            sectors,
            block,
            blocks,
            lanes,
            next: long(&mut rest)?,
            data: long(&mut rest)?,
            map: long(&mut rest)?,
            flog: long(&mut rest)?,
            copy: long(&mut rest)?,
        };
        MAJORS.contains(&version.0).then_some(info)
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, behind) = rest.split_first_chunk::<N>()?;
    *rest = behind;
    Some(*first)
}

fn half(rest: &mut &[u8]) -> Option<u16> {
    take(rest).map(u16::from_le_bytes)
}

fn word(rest: &mut &[u8]) -> Option<u32> {
    take(rest).map(u32::from_le_bytes)
}

fn long(rest: &mut &[u8]) -> Option<u64> {
    take(rest).map(u64::from_le_bytes)
}

/// Fletcher's sum of 64 bits over words of 32, in which the sum's own place counts as zeroes.
fn checksum(body: &[u8]) -> u64 {
    let (mut low, mut high) = (0_u32, 0_u64);
    let words = body.chunks_exact(4).map(|word| {
        let word = word.try_into().unwrap_or_default();
        u32::from_le_bytes(word)
    });
    for word in words.chain([0, 0]) {
        low = low.wrapping_add(word);
        high = high.wrapping_add(low.into());
    }
    high << 32 | u64::from(low)
}
