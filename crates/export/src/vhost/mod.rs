//! A volume as the disk of a virtual machine: vhost-user-blk.
//!
//! Invariants: one front-end at a time is served, and others wait; what was written is durable
//! when the export ends.

mod device;
mod disk;
mod poll;
mod queue;
mod request;
mod socket;
#[cfg(test)]
mod tests;

use crate::args::{Export, QUEUES_MAX};
use crate::failure::Failure;
use crate::publish::{Clients, publish};
use crate::signals::Signals;
use holdfast::Volume;
use queue::{Gate, Memory, Queues};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket::Socket;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::thread;
use vhost::vhost_user::{Error, Listener};
use vhost_user_backend::VhostUserDaemon;
use vm_memory::GuestMemoryMmap;

/// Exports the volume until a signal comes.
pub fn serve(
    args: &Export,
    volume: Volume,
    path: &Path,
    mut signals: Signals,
) -> Result<(), Failure> {
    // The library that serves connections keeps some descriptors of each.
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, all);
    let socket = Socket::bind(path)?;
    let gate = Gate::default();
    let clients = Clients::default();
    let connections = Connections {
        volume: volume.clone(),
        clients: clients.clone(),
        // As many as a virtual machine on this host may have processors, but one in any case.
        queues: args
            .queues
            .unwrap_or_else(|| threads().clamp(4, QUEUES_MAX)),
        gate: gate.clone(),
    };
    let listener = Listener::from(socket.listener()?);
    thread::spawn(move || connections.serve_all(listener));
    let shown = ("vhost-user", path.display().to_string());
    let _published = publish(args, &volume, shown, &clients);
    let _ = writeln!(io::stdout(), "{}", path.display());
    signals.wait_for_end();
    // No request is served from here on: one that was begun is done.
    let _shut = gate.write().unwrap_or_else(PoisonError::into_inner);
    let flushed = volume.flush();
    socket.remove();
    Ok(flushed?)
}

fn threads() -> u16 {
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    u16::try_from(threads).unwrap_or(QUEUES_MAX)
}

struct Connections {
    volume: Volume,
    clients: Clients,
    queues: u16,
    gate: Gate,
}

impl Connections {
    fn serve_all(&self, mut listener: Listener) {
        loop {
            if let Err(e) = self.serve_one(&mut listener) {
                eprintln!("holdfast: a connection ended: {e}.");
                // Whatever it was, it must not keep a processor busy.
                thread::sleep(std::time::Duration::from_millis(100));
            }
        }
    }

    /// From a connection to its end.
    fn serve_one(&self, listener: &mut Listener) -> Result<(), vhost_user_backend::Error> {
        let memory = Memory::new(GuestMemoryMmap::new());
        let (volume, gate) = (self.volume.clone(), self.gate.clone());
        let queues = Queues::new(volume, self.queues, memory.clone(), gate);
        let name = "vhost-user".to_string();
        let mut daemon = VhostUserDaemon::new(name, Arc::new(queues), memory)?;
        daemon.start(listener)?;
        self.clients.arrive();
        let ended = daemon.wait();
        self.clients.leave();
        match ended {
            // The front-end is gone.
            Err(vhost_user_backend::Error::HandleRequest(
                Error::Disconnected | Error::PartialMessage | Error::SocketBroken(_),
            )) => Ok(()),
            ended => ended,
        }
    }
}
