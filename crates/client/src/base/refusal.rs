//! Why calls are refused, as `holdfast run --report` shows it.
//!
//! Invariant: the numbers are part of session memory (`Refusal::why`); a reason keeps its own.

/// A reason to refuse a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Why {
    Unpatchable = 0,
    AsyncIo = 1,
    DescriptorPassing = 2,
    FileHandle = 3,
    Lease = 4,
    Watch = 5,
    SocketPath = 6,
    MountPath = 7,
    Unsupported = 8,
    TooManyPieces = 9,
    ReservedDescriptor = 10,
    NoRoom = 11,
    OwnDescriptors = 12,
    ForeignPool = 13,
    SharedMapping = 14,
    NotServed = 15,
}

/// The sentence of each reason, by number.
pub const SENTENCES: &[&str] = &[
    "the call could not be patched in the program's text and ran in the kernel",
    "asynchronous I/O rings would bypass the pool",
    "a pool file cannot be taken out of a process, nor be sent where /proc is not mounted",
    "file handles of pool objects are not supported",
    "leases and directory notification are not supported on pool files",
    "watches are not supported on pool files",
    "sockets cannot be bound or reached by a path in the pool",
    "mounts, swap and quotas cannot use a path in the pool",
    "the call is not supported on pool files",
    "the mapping would need too many pieces",
    "the descriptor number is in use by Holdfast",
    "the session has no room for one more process",
    "a thread cannot have descriptors or a working directory of its own",
    "pipes and sockets in the pool of another user cannot be used",
    "files in the pool of another user are mapped for reading, as a private copy",
    "the process became another user, for whom the pool's service does nothing",
];

/// The sentence of reason `why`, whatever session memory says.
pub fn sentence(why: u32) -> &'static str {
    SENTENCES.get(why as usize).copied().unwrap_or("unknown")
}
