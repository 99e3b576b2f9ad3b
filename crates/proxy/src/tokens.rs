//! Tokens, which stand for pool files in messages (SCM_RIGHTS) of those whom we serve.
//!
//! Invariants: a token is one more description of our placeholder, an empty file that is sealed:
//! who has it can keep and lose it, and nothing else. As many as one user may have on their way,
//! and no more, are kept from the others.

use holdfast_client::{Client, Error, OfdLink, Result};
use holdfast_pmem::{RecordLocks, record_locks};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use std::sync::{Mutex, PoisonError};

/// On their way at a time.
const TOKENS_MAX: usize = 128;

pub struct Tokens {
    placeholder: OwnedFd,
    /// The keys of those that may be on their way.
    sent: Mutex<Vec<u64>>,
}

impl Tokens {
    pub fn new() -> Result<Tokens, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let placeholder = rustix::fs::memfd_create("holdfast-token", flags)?;
        rustix::fs::fchmod(&placeholder, Mode::RUSR | Mode::WUSR)?;
        let seals = SealFlags::SEAL | SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK;
        rustix::fs::fcntl_add_seals(&placeholder, seals)?;
        Ok(Tokens {
            placeholder,
            sent: Mutex::default(),
        })
    }

    fn locks(&self) -> Result<RecordLocks> {
        RecordLocks::new(self.placeholder.as_fd()).map_err(Error::Memory)
    }

    /// What a message carries for a description of `client`, and its key. `TableFull`: there are as
    /// many as one user may have.
    pub fn make(&self, client: &Client, ofd: OfdLink) -> Result<(OwnedFd, u64)> {
        let locks = self.locks()?;
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.len() >= TOKENS_MAX {
            for key in sent.iter() {
                client.settle(*key, &locks)?;
            }
            sent.retain(|key| client.is_on_its_way(*key));
        }
        if sent.len() >= TOKENS_MAX {
            return Err(Error::TableFull);
        }
        let path = format!("/proc/self/fd/{}", self.placeholder.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let token = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        let key = client.send(ofd, &locks, random()?, |key, byte| {
            rustix::fs::seek(&token, SeekFrom::Start(key)).map_err(failed)?;
            record_locks::hold_by_description(token.as_fd(), byte).map_err(failed)?;
            Ok(key)
        })?;
        sent.push(key);
        Ok((token, key))
    }

    /// A token with this key was closed.
    pub fn settle(&self, client: &Client, key: u64) -> Result<()> {
        client.settle(key, &self.locks()?)
    }
}

fn failed(_: Errno) -> Error {
    Error::TableFull
}

/// What nobody can guess.
pub fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    let none = rustix::rand::GetRandomFlags::empty();
    match rustix::rand::getrandom(&mut bytes[..], none) {
        Ok(8) => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(Error::TableFull),
    }
}
