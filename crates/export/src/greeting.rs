//! What an NBD server says first. It tells that a server answers, which nbdkit does once the plugin
//! has opened the volume; it listens before.
//!
//! Invariant: the server sees a client that leaves as the protocol wants it.

use crate::address::Address;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const MAGIC: &[u8] = b"NBDMAGICIHAVEOPT";
/// The greeting has flags behind the magic words.
const LEN: usize = 18;
/// Flags of a client, and the option NBD_OPT_ABORT without data.
const GOODBYE: &[u8] = b"\0\0\0\x01IHAVEOPT\0\0\0\x02\0\0\0\0";
/// How long the server may take to answer that.
const PATIENCE: Duration = Duration::from_secs(1);

trait Stream: Read + Write {
    fn wait(&self, limit: Option<Duration>) -> io::Result<()>;
}

/// The connection on which it is expected.
#[derive(Default)]
pub struct Greeting {
    stream: Option<Box<dyn Stream>>,
}

impl Greeting {
    /// Whether it is there. Does not wait for it.
    pub fn arrives(&mut self, address: &Address) -> bool {
        let stream = match self.stream.take() {
            Some(stream) => Ok(stream),
            None => connect(address),
        };
        let Ok(mut stream) = stream else {
            return false;
        };
        let mut room = [0; LEN];
        match stream.read(&mut room) {
            Ok(LEN) if room.starts_with(MAGIC) => {
                // The answer concerns nobody.
                let _ = leave(stream);
                true
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                self.stream = Some(stream);
                false
            }
            _ => false,
        }
    }
}

fn leave(mut stream: Box<dyn Stream>) -> io::Result<()> {
    stream.wait(Some(PATIENCE))?;
    stream.write_all(GOODBYE)?;
    stream.read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A connection whose calls do not wait.
fn connect(address: &Address) -> io::Result<Box<dyn Stream>> {
    let stream: Box<dyn Stream> = match address {
        Address::Unix(path) => Box::new(UnixStream::connect(path)?),
        Address::Tcp(address) => Box::new(TcpStream::connect(address)?),
    };
    stream.wait(None)?;
    Ok(stream)
}

macro_rules! stream {
    ($stream:ty) => {
        impl Stream for $stream {
            /// At most so long, or not at all.
            fn wait(&self, limit: Option<Duration>) -> io::Result<()> {
                self.set_nonblocking(limit.is_none())?;
                self.set_read_timeout(limit)
            }
        }
    };
}

stream!(UnixStream);
stream!(TcpStream);
