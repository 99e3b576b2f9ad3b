//! The messages between a client and the service on the pool's socket.
//!
//! Invariants: a request and its answer are each one packet of fixed length, little-endian; a
//! message with another magic, version or length is refused; unknown bits are zero. File
//! descriptors travel with the message. `docs/spec/session.md` states every field.

/// Bytes of a request.
pub const REQUEST_LEN: usize = 544;
/// Bytes of the longest name in a request.
pub const NAME_LEN: usize = 255;
const AT_NAME: usize = 32;
const AT_TO: usize = 288;
/// Bytes of an answer.
pub const ANSWER_LEN: usize = 512;
/// Bytes of the sentence in an answer.
pub const TEXT_LEN: usize = ANSWER_LEN - ANSWER_HEAD;
/// Descriptors beside a successful answer to `Request::Attach`: session memory, meta (read-only),
/// journal and data, in this order; the first one only if the client has none of that
/// memory.
pub const FDS: usize = 4;

const ANSWER_HEAD: usize = 136;
const REQUEST_MAGIC: u32 = 0x5152_4648;
const ANSWER_MAGIC: u32 = 0x4e41_4648;
/// In every version, bytes 4 and 5 of both messages are its number.
pub const VERSION: u16 = 8;
/// The `errno` of an answer that only says that another one follows (EINPROGRESS): the service is
/// at work. One comes every second.
pub const BUSY: u32 = 115;

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Join the session of this user. With `adopt`, the session memory that outlived an earlier
    /// service comes beside the message.
    Attach {
        /// A session memory descriptor comes with the message.
        adopt: bool,
        /// The inode number of session memory that the client has a descriptor of; 0: none. If it
        /// is that of the session, no other descriptor of it is sent.
        known: u64,
    },
    /// How the pool is doing.
    Status,
    /// Keep the present as a snapshot.
    SnapshotCreate {
        name: Name,
        /// Who holds `Header::stores_lock`, as lock words name it; else nothing is done.
        owner: u32,
    },
    /// Remove a snapshot and free what it alone has.
    SnapshotDelete { name: Name },
    /// Begin a session on a snapshot: descriptors as for `Attach`.
    SnapshotAttach { name: Name },
    /// Call a snapshot something else.
    SnapshotRename { name: Name, to: Name },
    /// Give the pool room for so many bytes of data, more than it has.
    Grow { size: u64 },
}

/// A name in a request: 1 to `NAME_LEN` bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name {
    len: u8,
    bytes: [u8; NAME_LEN],
}

impl Name {
    /// The name, if it has a possible length.
    pub fn new(name: &[u8]) -> Option<Name> {
        let mut bytes = [0; NAME_LEN];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        let len = name.len() as u8;
        (len > 0).then_some(Name { len, bytes })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl core::fmt::Debug for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", core::str::from_utf8(self.as_bytes()))
    }
}

/// What the service says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// 0, or why not, as a positive errno; then `text` says it in a sentence.
    pub errno: u32,
    /// Process id of the service.
    pub service_pid: u32,
    /// Counts the services that this session has had.
    pub generation: u32,
    /// 0 posix, 1 sync, 2 strict.
    pub consistency: u32,
    /// 0 memory, 1 file, 2 dax.
    pub medium: u32,
    /// Sessions that are open.
    pub sessions: u32,
    /// Live processes of them.
    pub processes: u32,
    /// Connections and live processes that keep the service from ending.
    pub users: u32,
    /// Users beside the owner and root whose programs are served.
    pub others: u32,
    /// Bytes of session memory.
    pub session_len: u64,
    /// Bytes of the meta segment.
    pub meta_len: u64,
    /// Bytes of the journal segment.
    pub journal_len: u64,
    /// Bytes to map of the data segment, which grows while it is in use. 0: the caller is served.
    pub data_room: u64,
    /// Everything up to here is in the trees.
    pub applied_seq: u64,
    /// Stray stores into the pool's data that were stopped since the service began, or the session
    /// that it took over.
    pub strays: u64,
    /// Copies that stopped in the present session because the medium has lost bytes.
    pub media_errors: u64,
    /// In the present session: mappings that were handed out again, their bytes, and pages that
    /// were mapped ahead, and huge pages that were made.
    pub mapped: [u64; 4],
    /// The sentence that goes with `errno`; without one, why nothing can be changed, or who keeps
    /// others waiting.
    pub text: Text,
}

/// At most `TEXT_LEN` bytes of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    len: usize,
    bytes: [u8; TEXT_LEN],
}

impl Default for Text {
    fn default() -> Self {
        Text {
            len: 0,
            bytes: [0; TEXT_LEN],
        }
    }
}

impl Request {
    /// The message.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let (kind, flags): (u16, u32) = match self {
            Request::Attach { adopt, .. } => (1, u32::from(*adopt)),
            Request::Status => (2, 0),
            Request::SnapshotCreate { owner, .. } => (3, *owner),
            Request::SnapshotDelete { .. } => (4, 0),
            Request::SnapshotAttach { .. } => (5, 0),
            Request::SnapshotRename { .. } => (6, 0),
            Request::Grow { .. } => (7, 0),
        };
        let mut out = [0; REQUEST_LEN];
        put(&mut out, 0, &REQUEST_MAGIC.to_le_bytes());
        put(&mut out, 4, &VERSION.to_le_bytes());
        put(&mut out, 6, &kind.to_le_bytes());
        put(&mut out, 8, &flags.to_le_bytes());
        if let Request::Attach { known: number, .. } | Request::Grow { size: number } = self {
            put(&mut out, 16, &number.to_le_bytes());
        }
        if let Request::SnapshotCreate { name, .. }
        | Request::SnapshotDelete { name }
        | Request::SnapshotAttach { name }
        | Request::SnapshotRename { name, .. } = self
        {
            out[12] = name.len;
            put(&mut out, AT_NAME, &name.bytes);
        }
        if let Request::SnapshotRename { to, .. } = self {
            out[13] = to.len;
            put(&mut out, AT_TO, &to.bytes);
        }
        out
    }

    /// The request in `bytes`, or `None` for anything that `encode` does not make.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let bytes: &[u8; REQUEST_LEN] = bytes.try_into().ok()?;
        let kind = u16::from_le_bytes([bytes[6], bytes[7]]);
        let request = match kind {
            1 => Request::Attach {
                adopt: u32_at(bytes, 8)? & 1 == 1,
                known: u64_at(bytes, 16)?,
            },
            2 => Request::Status,
            3 => Request::SnapshotCreate {
                name: name_at(bytes, 12, AT_NAME)?,
                owner: u32_at(bytes, 8)?,
            },
            4 => Request::SnapshotDelete {
                name: name_at(bytes, 12, AT_NAME)?,
            },
            5 => Request::SnapshotAttach {
                name: name_at(bytes, 12, AT_NAME)?,
            },
            6 => Request::SnapshotRename {
                name: name_at(bytes, 12, AT_NAME)?,
                to: name_at(bytes, 13, AT_TO)?,
            },
            7 => Request::Grow {
                size: u64_at(bytes, 16)?,
            },
            _ => return None,
        };
        (request.encode() == *bytes).then_some(request)
    }
}

impl Answer {
    /// A refusal: why, as errno and as a sentence, which is cut when too long.
    pub fn refusal(errno: i32, sentence: &str) -> Answer {
        let answer = Answer {
            errno: errno.unsigned_abs().max(1),
            ..Answer::default()
        };
        answer.with_text(sentence)
    }

    /// The same with a sentence, which is cut to what there is room for.
    pub fn with_text(mut self, sentence: &str) -> Answer {
        let mut len = sentence.len().min(TEXT_LEN);
        while !sentence.is_char_boundary(len) {
            len -= 1;
        }
        self.text = Text::default();
        self.text.bytes[..len].copy_from_slice(&sentence.as_bytes()[..len]);
        self.text.len = len;
        self
    }

    /// Why the service refused, or why the session it gives can only read; else empty.
    pub fn text(&self) -> &str {
        core::str::from_utf8(&self.text.bytes[..self.text.len]).unwrap_or("the service refused")
    }

    /// The message.
    pub fn encode(&self) -> [u8; ANSWER_LEN] {
        let mut out = [0; ANSWER_LEN];
        put(&mut out, 0, &ANSWER_MAGIC.to_le_bytes());
        put(&mut out, 4, &VERSION.to_le_bytes());
        let words = [
            self.errno,
            self.service_pid,
            self.generation,
            self.consistency,
            self.medium,
            self.sessions,
            self.processes,
            self.text.len as u32,
        ];
        for (i, word) in words.iter().enumerate() {
            put(&mut out, 8 + 4 * i, &word.to_le_bytes());
        }
        let longs = [
            self.session_len,
            self.meta_len,
            self.journal_len,
            self.data_room,
            self.applied_seq,
        ];
        for (i, long) in longs.iter().enumerate() {
            put(&mut out, 40 + 8 * i, &long.to_le_bytes());
        }
        put(&mut out, 80, &self.users.to_le_bytes());
        put(&mut out, 84, &self.others.to_le_bytes());
        put(&mut out, 88, &self.strays.to_le_bytes());
        put(&mut out, 96, &self.media_errors.to_le_bytes());
        for (i, long) in self.mapped.iter().enumerate() {
            put(&mut out, 104 + 8 * i, &long.to_le_bytes());
        }
        put(&mut out, ANSWER_HEAD, &self.text.bytes);
        out
    }

    /// The answer in `bytes`, or `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<Answer> {
        let bytes: &[u8; ANSWER_LEN] = bytes.try_into().ok()?;
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if u32_at(bytes, 0)? != ANSWER_MAGIC || version != VERSION {
            return None;
        }
        let mut text = Text {
            len: u32_at(bytes, 36)? as usize,
            ..Text::default()
        };
        if text.len > TEXT_LEN {
            return None;
        }
        text.bytes.copy_from_slice(&bytes[ANSWER_HEAD..]);
        Some(Answer {
            errno: u32_at(bytes, 8)?,
            service_pid: u32_at(bytes, 12)?,
            generation: u32_at(bytes, 16)?,
            consistency: u32_at(bytes, 20)?,
            medium: u32_at(bytes, 24)?,
            sessions: u32_at(bytes, 28)?,
            processes: u32_at(bytes, 32)?,
            session_len: u64_at(bytes, 40)?,
            meta_len: u64_at(bytes, 48)?,
            journal_len: u64_at(bytes, 56)?,
            data_room: u64_at(bytes, 64)?,
            applied_seq: u64_at(bytes, 72)?,
            users: u32_at(bytes, 80)?,
            others: u32_at(bytes, 84)?,
            strays: u64_at(bytes, 88)?,
            media_errors: u64_at(bytes, 96)?,
            mapped: [
                u64_at(bytes, 104)?,
                u64_at(bytes, 112)?,
                u64_at(bytes, 120)?,
                u64_at(bytes, 128)?,
            ],
            text,
        })
    }
}

/// The version of a service that answered in another one than this.
pub fn other_version(answer: &[u8]) -> Option<u16> {
    let version = u16::from_le_bytes(*answer.get(4..)?.first_chunk()?);
    (u32_at(answer, 0)? == ANSWER_MAGIC && version != VERSION).then_some(version)
}

/// The name at `at`, which has its length at `len_at`.
fn name_at(bytes: &[u8; REQUEST_LEN], len_at: usize, at: usize) -> Option<Name> {
    Name::new(bytes.get(at..at + usize::from(bytes[len_at]))?)
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn requests_come_back_and_nothing_else_is_accepted() {
        for request in [
            Request::Attach {
                adopt: false,
                known: 0,
            },
            Request::Attach {
                adopt: true,
                known: 5,
            },
            Request::Status,
            Request::SnapshotCreate {
                name: Name::new(b"a name").unwrap(),
                owner: 7,
            },
            Request::SnapshotDelete {
                name: Name::new(&[b'x'; NAME_LEN]).unwrap(),
            },
            Request::SnapshotAttach {
                name: Name::new(b"x").unwrap(),
            },
            Request::SnapshotRename {
                name: Name::new(b"x").unwrap(),
                to: Name::new(&[b'y'; NAME_LEN]).unwrap(),
            },
            Request::Grow { size: 1 << 40 },
        ] {
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes), Some(request));
            assert_eq!(Request::decode(&bytes[1..]), None);
            for at in 0..bytes.len() {
                let mut bad = bytes;
                bad[at] ^= 0x80;
                let found = Request::decode(&bad);
                // Another owner, memory or name is a request, too.
                assert!(
                    found.is_none_or(|f| f != request && f.encode() == bad),
                    "{at}"
                );
                assert!(
                    found.is_none() || matches!(at, 8..14 | 16..24 | AT_NAME..),
                    "byte {at}"
                );
            }
        }
    }

    #[test]
    fn answers_come_back() {
        let answer = Answer {
            service_pid: 1,
            generation: 2,
            consistency: 1,
            medium: 2,
            sessions: 3,
            processes: 4,
            users: 10,
            session_len: 5,
            meta_len: 6,
            journal_len: 7,
            data_room: 8,
            applied_seq: 9,
            strays: 11,
            media_errors: 12,
            mapped: [13, 14, 15, 16],
            ..Answer::default()
        };
        assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        let refusal = Answer::refusal(13, "no");
        assert_eq!(Answer::decode(&refusal.encode()).unwrap().text(), "no");
    }

    #[test]
    fn hostile_answers_never_panic() {
        let mut bytes = Answer::refusal(5, &"x".repeat(1000)).encode();
        assert_eq!(Answer::decode(&bytes).unwrap().text().len(), TEXT_LEN);
        bytes[36] = 0xff;
        bytes[37] = 0xff;
        assert_eq!(Answer::decode(&bytes), None);
        let mut bytes = Answer::refusal(5, "abc").encode();
        bytes[ANSWER_HEAD] = 0xff;
        assert_eq!(
            Answer::decode(&bytes).unwrap().text(),
            "the service refused"
        );
        assert_eq!(Answer::decode(&bytes[..40]), None);
        assert_eq!(other_version(&bytes), None);
        bytes[4] += 1;
        assert_eq!(Answer::decode(&bytes), None);
        assert_eq!(other_version(&bytes), Some(VERSION + 1));
        assert_eq!(other_version(&bytes[..6]), Some(VERSION + 1));
        assert_eq!(other_version(&bytes[..5]), None);
    }
}
