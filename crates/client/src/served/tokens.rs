//! Descriptors of pool files in messages (SCM_RIGHTS of unix(7)): what stands for them there the
//! proxy makes.

use crate::base::error::{Error, Result};
use crate::base::types::OfdLink;
use crate::served::Served;
use crate::served::life::args;
use crate::served::wire::{Note, Op};
use pmem::RecordLocks;
use rustix::fd::OwnedFd;

impl Served {
    /// What a message carries for a description until whoever receives it calls `receive`, and its
    /// key. ENFILE: too many are on their way.
    pub fn make_token(&self, ofd: OfdLink) -> Result<(OwnedFd, u64)> {
        // What is closed here may be open with whoever receives it.
        self.quiet.clear();
        self.known.share_files();
        self.alone(|| {
            let key = self.number(Op::SendToken, &args(&[ofd.raw().into()]))?;
            match self.get()? {
                (Note::Object, [token]) => Ok((token, key)),
                _ => Err(self.give_up()),
            }
        })
    }

    /// A token needs what only the proxy has: `make_token`.
    pub fn send<T>(
        &self,
        _ofd: OfdLink,
        _placeholder: &RecordLocks,
        _random: u64,
        _make_token: impl FnOnce(u64, u64) -> Result<T>,
    ) -> Result<T> {
        Err(Error::NoDevice)
    }

    /// What a token with this offset stands for: one reference to it, for `bind` or `release`.
    pub fn receive(&self, offset: u64) -> Option<OfdLink> {
        let handle = self.number(Op::ReceiveToken, &args(&[offset])).ok()?;
        OfdLink::from_raw(handle as u32)
    }

    /// The caller has closed a descriptor of a token with this offset.
    pub fn settle(&self, offset: u64, _placeholder: &RecordLocks) -> Result<()> {
        self.tell(Op::SettleToken, &args(&[offset]))
    }
}
