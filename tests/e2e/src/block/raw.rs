//! As much of a client as it takes to do what no proper client does.
//!
//! Invariant: it waits for an answer only so long, so a server that is silent is an error.

use super::PATIENCE;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
/// No zeroes behind what the server says of the export; and the newstyle that everybody speaks.
const FLAGS: u32 = 3;
const EXPORT_NAME: u32 = 1;

pub struct Client {
    pub stream: UnixStream,
    cookie: u64,
}

/// A connection on which the server has said who it is, and nothing else has happened.
pub fn greeted(socket: &Path) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    match greeting.starts_with(b"NBDMAGICIHAVEOPT") {
        true => Ok(stream),
        false => Err(io::Error::other(format!(
            "a strange greeting: {greeting:?}"
        ))),
    }
}

impl Client {
    /// A connection that is ready for requests.
    pub fn connect(socket: &Path) -> io::Result<Client> {
        let mut stream = greeted(socket)?;
        stream.write_all(&FLAGS.to_be_bytes())?;
        stream.write_all(&option(EXPORT_NAME, 0))?;
        stream.read_exact(&mut [0; 10])?;
        Ok(Client { stream, cookie: 0 })
    }

    /// Sends the head of a request.
    pub fn request(&mut self, kind: u16, offset: u64, len: u32) -> io::Result<()> {
        self.cookie += 1;
        let mut head = Vec::from(REQUEST.to_be_bytes());
        head.extend(0u16.to_be_bytes());
        head.extend(kind.to_be_bytes());
        head.extend(self.cookie.to_be_bytes());
        head.extend(offset.to_be_bytes());
        head.extend(len.to_be_bytes());
        self.stream.write_all(&head)
    }

    /// The error of the answer to the last request.
    pub fn reply(&mut self) -> io::Result<u32> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        let (magic, rest) = head.split_at(4);
        let (error, cookie) = rest.split_at(4);
        if magic != REPLY.to_be_bytes() || cookie != self.cookie.to_be_bytes() {
            return Err(io::Error::other(format!("no answer: {head:?}")));
        }
        Ok(u32::from_be_bytes([error[0], error[1], error[2], error[3]]))
    }

    pub fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<u32> {
        self.request(WRITE, offset, bytes.len() as u32)?;
        self.stream.write_all(bytes)?;
        self.reply()
    }

    pub fn read(&mut self, len: usize, offset: u64) -> io::Result<Vec<u8>> {
        self.request(READ, offset, len as u32)?;
        match self.reply()? {
            0 => {
                let mut bytes = vec![0; len];
                self.stream.read_exact(&mut bytes)?;
                Ok(bytes)
            }
            error => Err(io::Error::other(format!("a read failed: {error}"))),
        }
    }

    /// A write of a mebibyte, of which little arrives.
    pub fn send_part_of_a_write(&mut self) -> io::Result<()> {
        self.request(WRITE, 0, 1 << 20)?;
        self.stream.write_all(&[0xee; 1000])
    }
}

/// The head of an option.
pub fn option(number: u32, len: u32) -> Vec<u8> {
    let mut head = Vec::from(b"IHAVEOPT");
    head.extend(number.to_be_bytes());
    head.extend(len.to_be_bytes());
    head
}
