//! Records: what chunks hold.
//!
//! Invariants: numbers are little-endian; a record is decoded only whole, and one that is decoded
//! has lengths that the trees allow.

use holdfast_pool::format::superblock::Consistency;
use holdfast_pool::layout::TreeId;
use holdfast_pool::tree::{KEY_MAX, VALUE_MAX};

/// Bytes of a block.
pub const BLOCK: usize = holdfast_pool::format::PAGE;
/// Blocks of one record: so many that it may be a huge page.
pub const BLOCKS_MAX: usize = 512;
/// Object counters of a state.
pub const COUNTS: usize = holdfast_pool::format::superblock::COUNTS;

/// What a stream begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The seed of the hashes of names: the same in all pools that come from one.
    pub seed: u64,
    pub consistency: Consistency,
    /// Bytes of file data that the pool has room for.
    pub size: u64,
    /// No object has this inode number or a higher one.
    pub next_ino: u64,
    /// When it was saved, in nanoseconds since 1970.
    pub time: i64,
    /// The snapshot that it continues.
    pub base: Option<Base>,
}

/// The snapshot that a stream continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    pub name: Vec<u8>,
    /// When it was taken, in nanoseconds since 1970.
    pub time: i64,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    Head(Head),
    /// A state begins: the snapshot of that name, or the present if it has none.
    State {
        name: &'a [u8],
        time: i64,
        counts: [u64; COUNTS],
    },
    /// An entry of a tree other than that of extents.
    Put {
        tree: TreeId,
        key: &'a [u8],
        value: &'a [u8],
    },
    Erase {
        tree: TreeId,
        key: &'a [u8],
    },
    /// Whole blocks of a file.
    Data {
        ino: u64,
        file_block: u64,
        bytes: &'a [u8],
    },
    /// Blocks of a file that are in use and hold zeroes.
    Zeroes {
        ino: u64,
        file_block: u64,
        blocks: u64,
    },
    /// Blocks that a file does not have any more.
    Unmap {
        ino: u64,
        file_block: u64,
        blocks: u64,
    },
    /// A value that is in blocks: its bytes follow. `expires` is 0 if it does not expire.
    Value {
        key: &'a [u8],
        mtime: i64,
        expires: i64,
        len: u64,
    },
    /// Bytes of the value that was begun last: whole blocks, but for the last ones.
    ValueData {
        bytes: &'a [u8],
    },
    /// The state is complete.
    StateEnd,
    /// The stream is.
    End,
}

const HEAD: u8 = 1;
const STATE: u8 = 2;
const PUT: u8 = 3;
const ERASE: u8 = 4;
const DATA: u8 = 5;
const ZEROES: u8 = 6;
const UNMAP: u8 = 7;
const VALUE: u8 = 8;
const VALUE_DATA: u8 = 9;
const STATE_END: u8 = 10;
const END: u8 = 11;

/// Appends what it is given.
struct Out<'o>(&'o mut Vec<u8>);

impl Out<'_> {
    fn kind(&mut self, kind: u8) -> &mut Self {
        self.0.push(kind);
        self
    }

    fn number(&mut self, n: u64) -> &mut Self {
        self.0.extend(n.to_le_bytes());
        self
    }

    fn short(&mut self, bytes: &[u8]) -> &mut Self {
        assert!(
            bytes.len() <= usize::from(u16::MAX),
            "{} bytes",
            bytes.len()
        );
        self.0.extend((bytes.len() as u16).to_le_bytes());
        self.0.extend(bytes);
        self
    }

    fn long(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend((bytes.len() as u32).to_le_bytes());
        self.0.extend(bytes);
        self
    }
}

impl Record<'_> {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Out(out);
        match self {
            Record::Head(head) => head.encode(&mut out),
            Record::State { name, time, counts } => {
                out.kind(STATE).short(name).number(*time as u64);
                for count in counts {
                    out.number(*count);
                }
            }
            Record::Put { tree, key, value } => {
                out.kind(PUT).kind(*tree).short(key).short(value);
            }
            Record::Erase { tree, key } => {
                out.kind(ERASE).kind(*tree).short(key);
            }
            Record::Data {
                ino,
                file_block,
                bytes,
            } => {
                out.kind(DATA).number(*ino).number(*file_block).long(bytes);
            }
            Record::Zeroes {
                ino,
                file_block,
                blocks,
            } => {
                out.kind(ZEROES)
                    .number(*ino)
                    .number(*file_block)
                    .number(*blocks);
            }
            Record::Unmap {
                ino,
                file_block,
                blocks,
            } => {
                out.kind(UNMAP)
                    .number(*ino)
                    .number(*file_block)
                    .number(*blocks);
            }
            Record::Value {
                key,
                mtime,
                expires,
                len,
            } => {
                out.kind(VALUE)
                    .short(key)
                    .number(*mtime as u64)
                    .number(*expires as u64)
                    .number(*len);
            }
            Record::ValueData { bytes } => {
                out.kind(VALUE_DATA).long(bytes);
            }
            Record::StateEnd => {
                out.kind(STATE_END);
            }
            Record::End => {
                out.kind(END);
            }
        }
    }

    /// The record that `bytes` begin with, which it takes from them; else what is wrong.
    pub fn decode<'b>(bytes: &mut &'b [u8]) -> Result<Record<'b>, &'static str> {
        let mut at = In(bytes);
        let record = match at.byte()? {
            HEAD => Record::Head(Head::decode(&mut at)?),
            STATE => Record::State {
                name: at.short(255)?,
                time: at.number()? as i64,
                counts: at.counts()?,
            },
            PUT => Record::Put {
                tree: at.byte()?,
                key: at.short(KEY_MAX)?,
                value: at.short(VALUE_MAX)?,
            },
            ERASE => Record::Erase {
                tree: at.byte()?,
                key: at.short(KEY_MAX)?,
            },
            DATA => Record::Data {
                ino: at.number()?,
                file_block: at.number()?,
                bytes: at.blocks()?,
            },
            ZEROES => Record::Zeroes {
                ino: at.number()?,
                file_block: at.number()?,
                blocks: at.number()?,
            },
            UNMAP => Record::Unmap {
                ino: at.number()?,
                file_block: at.number()?,
                blocks: at.number()?,
            },
            VALUE => Record::Value {
                key: at.short(KEY_MAX)?,
                mtime: at.number()? as i64,
                expires: at.number()? as i64,
                len: at.number()?,
            },
            VALUE_DATA => Record::ValueData { bytes: at.long()? },
            STATE_END => Record::StateEnd,
            END => Record::End,
            _ => return Err("a record of an unknown kind"),
        };
        *bytes = at.0;
        Ok(record)
    }
}

impl Head {
    fn encode(&self, out: &mut Out<'_>) {
        out.kind(HEAD).short(&crate::VERSION.to_le_bytes());
        out.number(self.seed).kind(self.consistency as u8);
        out.number(self.size).number(self.next_ino);
        out.number(self.time as u64);
        let name = self.base.as_ref().map_or(&[][..], |base| &base.name);
        let time = self.base.as_ref().map_or(0, |base| base.time);
        out.short(name).number(time as u64);
    }

    fn decode(at: &mut In<'_>) -> Result<Head, &'static str> {
        // What else the version has was looked at by `version_of`.
        at.short(2)?;
        let (seed, consistency) = (at.number()?, at.byte()?);
        let consistency = match consistency {
            1 => Consistency::Posix,
            2 => Consistency::Sync,
            3 => Consistency::Strict,
            _ => return Err("an unknown consistency"),
        };
        let (size, next_ino, time) = (at.number()?, at.number()?, at.number()? as i64);
        let (name, since) = (at.short(255)?, at.number()? as i64);
        let base = (!name.is_empty()).then(|| Base {
            name: name.to_vec(),
            time: since,
        });
        Ok(Head {
            seed,
            consistency,
            size,
            next_ino,
            time,
            base,
        })
    }
}

/// The version that the first record of a stream names, in whatever form the rest of it is.
pub fn version_of(bytes: &[u8]) -> Option<u16> {
    let mut at = In(bytes);
    match (at.byte(), at.short(2)) {
        (Ok(HEAD), Ok(&[low, high])) => Some(u16::from_le_bytes([low, high])),
        _ => None,
    }
}

/// Takes what it is asked for.
struct In<'b>(&'b [u8]);

const SHORT: &str = "a record that is cut off";

impl<'b> In<'b> {
    fn take(&mut self, n: usize) -> Result<&'b [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, &'static str> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u64, &'static str> {
        let bytes = self.take(8)?.first_chunk().ok_or(SHORT)?;
        Ok(u64::from_le_bytes(*bytes))
    }

    fn counts(&mut self) -> Result<[u64; COUNTS], &'static str> {
        let mut counts = [0; COUNTS];
        for count in &mut counts {
            *count = self.number()?;
        }
        Ok(counts)
    }

    fn short(&mut self, most: usize) -> Result<&'b [u8], &'static str> {
        let bytes = self.take(2)?.first_chunk().ok_or(SHORT)?;
        match usize::from(u16::from_le_bytes(*bytes)) {
            len if len > most => Err("a name, a key or a value that is too long"),
            len => self.take(len),
        }
    }

    fn long(&mut self) -> Result<&'b [u8], &'static str> {
        let bytes = self.take(4)?.first_chunk().ok_or(SHORT)?;
        match u32::from_le_bytes(*bytes) as usize {
            len if len > BLOCKS_MAX * BLOCK => Err("more bytes than one record has"),
            0 => Err("data without bytes"),
            len => self.take(len),
        }
    }

    fn blocks(&mut self) -> Result<&'b [u8], &'static str> {
        match self.long()? {
            bytes if bytes.len() % BLOCK == 0 => Ok(bytes),
            _ => Err("a part of a block"),
        }
    }
}
