//! What each user has open of the descriptions that all programs of the pool share.
//!
//! Invariant: no user but the pool's owner and root has more than a part of them, so none can keep
//! the others from opening files.

use holdfast_client::{Error, OfdLink, Result};
use rustix::process::geteuid;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// As many as a user whom a proxy serves may have.
const FILES_MAX: u32 = 256 * 1024;

#[derive(Default)]
struct Open {
    by: HashMap<OfdLink, u32>,
    counts: HashMap<u32, u32>,
}

/// Of all users but those whose own the files are anyway.
#[derive(Default)]
pub struct Shares(Mutex<Open>);

impl Shares {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(user: u32) -> bool {
        user != 0 && user != geteuid().as_raw()
    }

    /// `open` opens something for the user, unless that has enough open already (ENFILE).
    pub fn take<E: From<Error>>(
        &self,
        user: u32,
        open: impl FnOnce() -> std::result::Result<OfdLink, E>,
    ) -> std::result::Result<OfdLink, E> {
        if !Shares::counts(user) {
            return open();
        }
        self.begin(user, FILES_MAX)?;
        let opened = open();
        let mut all = self.open();
        match &opened {
            Ok(opened) => drop(all.by.insert(*opened, user)),
            Err(_) => all.end(user),
        }
        opened
    }

    fn begin(&self, user: u32, most: u32) -> Result<()> {
        let mut all = self.open();
        let count = all.counts.entry(user).or_default();
        if *count >= most {
            return Err(Error::TableFull);
        }
        *count += 1;
        Ok(())
    }

    /// It is closed.
    pub fn give_back(&self, open: OfdLink) {
        let mut all = self.open();
        if let Some(user) = all.by.remove(&open) {
            all.end(user);
        }
    }
}

impl Open {
    fn end(&mut self, user: u32) {
        if let Some(count) = self.counts.get_mut(&user) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.counts.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 3001;

    fn opened(raw: u32) -> Result<OfdLink> {
        OfdLink::from_raw(raw).ok_or(Error::NotFound)
    }

    #[test]
    fn a_user_has_so_many_and_others_have_their_own() {
        let shares = Shares::default();
        for raw in 1..=3 {
            shares.take(USER, || opened(raw)).unwrap();
        }
        assert!(shares.begin(USER, 3).is_err());
        assert!(shares.begin(USER + 1, 3).is_ok());
        shares.give_back(opened(2).unwrap());
        shares.give_back(opened(2).unwrap());
        assert!(shares.begin(USER, 3).is_ok());
        assert!(shares.begin(USER, 3).is_err());
    }

    #[test]
    fn what_could_not_be_opened_and_what_is_roots_does_not_count() {
        let shares = Shares::default();
        assert!(shares.take(USER, || opened(0)).is_err());
        for raw in 1..9 {
            shares.take(0, || opened(raw)).unwrap();
            shares.give_back(opened(raw).unwrap());
        }
        let all = shares.open();
        assert!(all.counts.is_empty() && all.by.is_empty());
    }
}
