//! Shared mappings: files that are lent to the caller.

use super::{Call, Reply};
use crate::connection;
use holdfast_client::Result;
use holdfast_client::served::wire::{Note, Op};
use holdfast_client::{Error, OfdLink};
use rustix::fd::AsFd;

impl Call<'_> {
    pub(super) fn maps(&self, op: Op) -> Result<Reply> {
        let (client, maps) = (self.client, &self.channel.maps);
        match op {
            Op::MapLend => self.map_lend(self.ofd(0)?),
            Op::MapFile => {
                let file = maps.file(client, self.arg_u32(0)?, self.arg(1) != 0)?;
                let sent = connection::send(self.member, &Note::Object.encode(), &[file.as_fd()]);
                Reply::done(sent.map_err(|_| Error::TableFull))
            }
            Op::MapMore => Reply::done(maps.add(client, self.arg_u32(0)?)),
            Op::MapLess => {
                let stored = self.arg(1) != 0;
                Reply::done(maps.remove(client, self.arg_u32(0)?, stored))
            }
            Op::MapStored => Reply::done(client.map_stored(maps.pin(self.arg_u32(0)?)?)),
            Op::MapSync => {
                let pin = maps.pin(self.arg_u32(0)?)?;
                Reply::done(client.msync(pin, self.arg(1), self.arg(2)))
            }
            _ => Err(Error::Invalid),
        }
    }

    fn map_lend(&self, ofd: OfdLink) -> Result<Reply> {
        let maps = &self.channel.maps;
        let (index, ino) = maps.lend(self.client, ofd, self.arg_u32(1)?)?;
        Ok(Reply::words(&[index.into(), ino]))
    }
}
