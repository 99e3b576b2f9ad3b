//! The files that processes in one memory have mapped shared.
//!
//! Invariants:
//!  * A process names a mapping by its index here; so it can give back only what it took, and gets
//!    a file to store to only if the description was open for that.
//!  * What is mapped is counted here alone, and taken back when the last process leaves the memory.
//!    If the proxy dies, the files stay lent until the session ends.

use holdfast_client::{Client, Error, MapPin, OfdLink, Result};
use rustix::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Files that one memory may have mapped at a time: as many mappings as the kernel allows.
const FILES_MAX: usize = 65_530;

#[derive(Clone, Copy)]
struct Mapped {
    pin: MapPin,
    may_write: bool,
    /// Mappings of it.
    count: u32,
}

#[derive(Default)]
pub struct Maps {
    files: Mutex<Vec<Mapped>>,
    /// Processes in this memory.
    processes: Mutex<u32>,
}

impl Maps {
    fn all(&self) -> MutexGuard<'_, Vec<Mapped>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn processes(&self) -> MutexGuard<'_, u32> {
        self.processes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// One more process runs in this memory.
    pub fn enter(&self) {
        *self.processes() += 1;
    }

    /// The process of `client` ends, or has another memory now. With the last one all mappings go.
    pub fn leave(&self, client: &Client) {
        let mut processes = self.processes();
        *processes -= 1;
        if *processes > 0 {
            return;
        }
        for mapped in self.all().drain(..) {
            for _ in 0..mapped.count {
                // The process has gone: nobody is told of what has no room.
                let _ = client.map_take_back(mapped.pin, false);
            }
        }
    }

    /// Lends the file of a description: the index of the mapping, and the file's number.
    pub fn lend(&self, client: &Client, ofd: OfdLink, prot: u32) -> Result<(u32, u64)> {
        let (pin, may_write) = client.map_lend(ofd, prot)?;
        let mut all = self.all();
        let same = |m: &Mapped| m.pin == pin && m.may_write == may_write;
        let index = all
            .iter()
            .position(same)
            .or_else(|| all.iter().position(|m| m.count == 0))
            .or_else(|| (all.len() < FILES_MAX).then_some(all.len()));
        let Some(index) = index else {
            drop(all);
            client.map_take_back(pin, false)?;
            return Err(Error::NoMemory);
        };
        if index == all.len() {
            all.push(Mapped {
                pin,
                may_write,
                count: 0,
            });
        }
        let mapped = &mut all[index];
        let count = if same(mapped) { mapped.count } else { 0 };
        *mapped = Mapped {
            pin,
            may_write,
            count: count + 1,
        };
        Ok((index as u32, pin.ino))
    }

    fn mapped(&self, index: u32) -> Result<Mapped> {
        let mapped = self.all().get(index as usize).copied();
        mapped.filter(|m| m.count > 0).ok_or(Error::Invalid)
    }

    /// What is mapped.
    pub fn pin(&self, index: u32) -> Result<MapPin> {
        self.mapped(index).map(|mapped| mapped.pin)
    }

    /// The file to map.
    pub fn file(&self, client: &Client, index: u32, writes: bool) -> Result<OwnedFd> {
        let mapped = self.mapped(index)?;
        match mapped.may_write || !writes {
            true => client.lent_file(mapped.pin, writes),
            false => Err(Error::Denied),
        }
    }

    /// One more mapping of the same file.
    pub fn add(&self, client: &Client, index: u32) -> Result<()> {
        let mut all = self.all();
        let mapped = all.get_mut(index as usize).filter(|m| m.count > 0);
        let mapped = mapped.ok_or(Error::Invalid)?;
        let count = mapped.count.checked_add(1).ok_or(Error::NoMemory)?;
        client.map_lend_again(mapped.pin)?;
        mapped.count = count;
        Ok(())
    }

    /// One mapping less.
    pub fn remove(&self, client: &Client, index: u32, stored: bool) -> Result<()> {
        let mut all = self.all();
        let mapped = all.get_mut(index as usize).filter(|m| m.count > 0);
        let mapped = mapped.ok_or(Error::Invalid)?;
        mapped.count -= 1;
        let (pin, may_write) = (mapped.pin, mapped.may_write);
        // It may be written back now.
        drop(all);
        client.map_take_back(pin, stored && may_write)
    }

    /// A child has the same mappings, in a memory of its own.
    pub fn inherit(&self, parent: &Maps, child: &Client) -> Result<()> {
        // While it is counted there nobody takes it back.
        let inherited = parent.all();
        let mut own = self.all();
        for mapped in inherited.iter() {
            own.push(Mapped {
                count: 0,
                ..*mapped
            });
            for _ in 0..mapped.count {
                child.map_lend_again(mapped.pin)?;
                if let Some(last) = own.last_mut() {
                    last.count += 1;
                }
            }
        }
        Ok(())
    }
}
