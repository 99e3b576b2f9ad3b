//! `--nbd`: the volume as a network block device, served by nbdkit with our plugin.
//!
//! Invariants: what is printed is the address of a server that answers; when this process ends, so
//! does nbdkit, and the volume is free.

use crate::address::Address;
use crate::args::Export;
use crate::failure::Failure;
use crate::greeting::Greeting;
use crate::nbdkit::{self, Server};
use crate::signals::Signals;
use holdfast::Pool;
use std::io::Write;
use std::time::Duration;

/// How often nbdkit is asked whether it answers already.
const NAP: Duration = Duration::from_millis(5);

/// Serves the volume until a signal ends it.
pub fn export(args: &Export, pool: Pool, address: &str) -> Result<(), Failure> {
    let address = Address::parse(address)?;
    let (program, plugin) = (nbdkit::program()?, nbdkit::plugin()?);
    let sector = crate::open(&pool, args)?.sector();
    address.check()?;
    let words = nbdkit::words(args, &address, &plugin, sector)?;
    let mut signals = Signals::with_children()?;
    let mut server = Server::start(&program, &words)?;
    let served = serve(&mut server, &address, &mut signals, pool);
    // What has this name now is the server's: nobody listened there before.
    let socket = address.file();
    server.end();
    address.remove(socket);
    served
}

/// `pool` keeps the pool's service from ending before nbdkit has joined it.
fn serve(
    server: &mut Server,
    address: &Address,
    signals: &mut Signals,
    pool: Pool,
) -> Result<(), Failure> {
    let mut greeting = Greeting::default();
    while !greeting.arrives(address) {
        server.runs()?;
        if signals.end() {
            return Ok(());
        }
        signals.wait(Some(NAP));
    }
    drop(pool);
    server.is_ready();
    // Whoever has closed our standard output does not want to know.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{address}").and_then(|()| out.flush());
    drop(out);
    while !signals.end() {
        server.runs()?;
        signals.wait(None);
    }
    Ok(())
}
