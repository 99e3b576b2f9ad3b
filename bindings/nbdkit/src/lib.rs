//! A plugin of nbdkit: one volume of a pool, as a network block device.
//!
//! Invariants: the process opens the volume once, and all connections use that handle, so a flush
//! of one connection covers the completed writes of all; what was trimmed reads as zeroes.
#![forbid(unsafe_code)]

mod parameters;
mod reply;

use holdfast::{Volume, Written, Zeroes};
use holdfast_status::Published;
use nbdkit::{Error, ExtentHandle, ExtentType, Flags, FuaFlags, Result, Server};
use parameters::Parameters;
use reply::{NOT_FAST, failed, failed_to_start};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// One answer has at most so many extents: a client asks again for what lies behind them.
const EXTENTS_MAX: usize = 4096;

static PARAMETERS: Mutex<Parameters> = Mutex::new(Parameters::NONE);
static SERVED: Mutex<Option<Served>> = Mutex::new(None);

/// What this process serves.
struct Served {
    volume: Volume,
    clients: Arc<AtomicU64>,
    _published: Option<Published>,
}

/// A client's connection.
struct Connection {
    volume: Volume,
    clients: Arc<AtomicU64>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.clients.fetch_sub(1, Relaxed);
    }
}

impl Connection {
    fn flush_if(&self, flags: Flags) -> holdfast::Result<()> {
        match flags.contains(Flags::FUA) {
            true => self.volume.flush(),
            false => Ok(()),
        }
    }
}

impl Server for Connection {
    fn name() -> &'static str {
        "holdfast"
    }

    fn longname() -> Option<&'static str> {
        Some("Holdfast volumes")
    }

    fn version() -> Option<&'static str> {
        Some(env!("CARGO_PKG_VERSION"))
    }

    fn description() -> Option<&'static str> {
        Some("A volume of a Holdfast pool")
    }

    fn config_help() -> Option<&'static str> {
        Some(parameters::HELP)
    }

    fn config(key: &str, value: &str) -> Result<()> {
        locked(&PARAMETERS).set(key, value)
    }

    fn config_complete() -> Result<()> {
        locked(&PARAMETERS).complete()
    }

    fn after_fork() -> Result<()> {
        let parameters = locked(&PARAMETERS);
        parameters.end_with_parent()?;
        let volume = parameters.open().map_err(|e| failed_to_start(&e))?;
        let clients = Arc::default();
        *locked(&SERVED) = Some(Served {
            _published: parameters.publish(&volume, &clients),
            volume,
            clients,
        });
        Ok(())
    }

    fn unload() {
        *locked(&SERVED) = None;
    }

    fn open(_readonly: bool) -> Result<Box<dyn Server>> {
        match &*locked(&SERVED) {
            Some(served) => {
                served.clients.fetch_add(1, Relaxed);
                Ok(Box::new(Connection {
                    volume: served.volume.clone(),
                    clients: served.clients.clone(),
                }))
            }
            None => Err(Error::new(reply::ESHUTDOWN, "the volume is closed")),
        }
    }

    fn get_size(&self) -> Result<i64> {
        let size = i64::try_from(self.volume.size());
        size.map_err(|_| Error::new(reply::EOVERFLOW, "the volume is too large for nbdkit"))
    }

    fn can_write(&self) -> Result<bool> {
        Ok(self.volume.writes())
    }

    fn can_flush(&self) -> Result<bool> {
        Ok(true)
    }

    fn can_fua(&self) -> Result<FuaFlags> {
        Ok(FuaFlags::Native)
    }

    fn can_trim(&self) -> Result<bool> {
        Ok(self.volume.writes())
    }

    fn can_zero(&self) -> Result<bool> {
        Ok(self.volume.writes())
    }

    fn can_fast_zero(&self) -> Result<bool> {
        Ok(self.volume.writes())
    }

    fn can_multi_conn(&self) -> Result<bool> {
        Ok(true)
    }

    fn can_extents(&self) -> Result<bool> {
        Ok(true)
    }

    fn is_rotational(&self) -> Result<bool> {
        Ok(false)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.volume.read(buf, offset).map_err(failed)
    }

    fn write_at(&self, buf: &[u8], offset: u64, flags: Flags) -> Result<()> {
        let durable = match flags.contains(Flags::FUA) {
            true => Written::AtReturn,
            false => Written::AtFlush,
        };
        self.volume.write(buf, offset, durable).map_err(failed)
    }

    fn flush(&self) -> Result<()> {
        self.volume.flush().map_err(failed)
    }

    fn trim(&self, count: u32, offset: u64, flags: Flags) -> Result<()> {
        let trimmed = self.volume.trim(offset, count.into());
        trimmed.and_then(|()| self.flush_if(flags)).map_err(failed)
    }

    fn zero(&self, count: u32, offset: u64, flags: Flags) -> Result<()> {
        let zeroes = match flags.contains(Flags::MAY_TRIM) {
            true => Zeroes::Hole,
            // Blocks are written, which is no faster than a write.
            false if flags.contains(Flags::FAST_ZERO) => return Err(NOT_FAST.error()),
            false => Zeroes::Blocks,
        };
        let zeroed = self.volume.write_zeroes(offset, count.into(), zeroes);
        zeroed.and_then(|()| self.flush_if(flags)).map_err(failed)
    }

    fn extents(
        &self,
        count: u32,
        offset: u64,
        flags: Flags,
        extents: &mut ExtentHandle,
    ) -> Result<()> {
        let sector = self.volume.sector().bytes();
        let end = (offset + u64::from(count)).min(self.volume.size());
        let extents_max = match flags.contains(Flags::REQ_ONE) {
            true => 1,
            false => EXTENTS_MAX,
        };
        // nbdkit cuts off what lies before the request.
        let mut at = offset - offset % sector;
        for _ in 0..extents_max {
            if at >= end {
                break;
            }
            let found = self.volume.extent(at).map_err(failed)?;
            let kind = match found.hole {
                true => ExtentType::HoleZero,
                false => ExtentType::Allocated,
            };
            // Somebody may trim here meanwhile: then the extent of data is empty.
            let next = found.end.max(at + sector).min(self.volume.size());
            extents.add(at, next - at, kind)?;
            at = next;
        }
        Ok(())
    }
}

/// What a panic would leave is as good as what was there before: each change is one store.
fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

nbdkit::plugin!(Connection {
    after_fork,
    can_extents,
    can_fast_zero,
    can_flush,
    can_fua,
    can_multi_conn,
    can_trim,
    can_write,
    can_zero,
    config,
    config_complete,
    extents,
    flush,
    is_rotational,
    trim,
    unload,
    write_at,
    zero
});
