//! A process: its descriptors, children and credentials.

use super::{Call, Reply};
use crate::connection;
use crate::member::Member;
use crate::run::Run;
use holdfast_client::abi::PATH_MAX;
use holdfast_client::served::wire::*;
use holdfast_client::{Base, Caller, Client, Error, OfdLink, Result, abi, slots};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The first call of a run: the process gets its place, if its user may search the pool's root.
pub fn enter(member: &Arc<Member>, at: &[u8]) -> Result<Reply> {
    if at.len() >= PATH_MAX || at.contains(&0) || member.place().is_some() {
        return Err(Error::Invalid);
    }
    let client = member.base().client(at);
    slots::register(client.session(), std::process::id(), None)?;
    let _ = member.at.set(at.into());
    let rights = member.rights();
    let (uid, gid) = rights.own();
    let head = Head {
        uid,
        gid,
        privileged: rights.is_privileged(),
        ..Head::default()
    };
    let actor = rights.actor(&head).ok_or(Error::NotPermitted)?;
    let caller = Caller {
        uid: actor.uid,
        gid: actor.gid,
        groups: actor.groups,
        umask: 0,
        privileged: actor.privileged,
        ids: None,
    };
    // Into a snapshot comes who is let into the pool.
    let may = [&client, &member.shared.pool.client(at)]
        .into_iter()
        .try_for_each(|client| client.access(&caller, Base::Root, b".", abi::X_OK, 0));
    drop(rights);
    if let Err(e) = may {
        client.exit(true);
        return Err(e);
    }
    member.settle(client)?;
    Ok(Reply::number(member.id.into()))
}

/// The first call of a process that had the pool mapped: it gets the place that it left, and what
/// it has open there.
pub fn adopt(member: &Arc<Member>, at: &[u8], place: (u64, u64)) -> Result<Reply> {
    if at.len() >= PATH_MAX || at.contains(&0) || member.place().is_some() {
        return Err(Error::Invalid);
    }
    let client = member.base().client(at);
    client.adopt(place.0, place.1)?;
    let mut count = 0;
    client.each_descriptor(&mut |_| count += 1);
    if let Err(e) = member.found(count) {
        client.exit(true);
        return Err(e);
    }
    let _ = member.at.set(at.into());
    member.knows_more();
    // It gives us what it has locked, too.
    member.locks.store(true, Relaxed);
    member.settle(client)?;
    Ok(Reply::number(member.id.into()))
}

/// `PIPE` for a pipe with a name.
fn pipe_bit(client: &Client, ofd: OfdLink) -> u32 {
    if client.is_kernels(ofd) { PIPE } else { 0 }
}

impl Call<'_> {
    pub(super) fn process(&self, op: Op) -> Result<Reply> {
        let (client, member) = (self.client, self.member);
        match op {
            Op::Resume => self.resume(),
            Op::Lookup => {
                let fd = self.arg_u32(0)?;
                let found = client.lookup(fd).map(|ofd| 1 | pipe_bit(client, ofd));
                Ok(Reply::number(found.unwrap_or(0).into()))
            }
            Op::NextDescriptor => {
                let found = client.next_descriptor(self.arg_u32(0)?);
                Ok(Reply::number(found.map_or(u64::MAX, u64::from)))
            }
            Op::Bind => self.bind(self.arg_u32(0)?, member.take(self.arg_u32(1)?)?),
            Op::Dup => {
                let (old, new) = (self.arg_u32(0)?, self.arg_u32(1)?);
                client.lookup(old).ok_or(Error::BadDescriptor)?;
                Reply::done(member.bind(client, new, || client.dup(old, new)))
            }
            Op::Unbind => {
                let was = member.unbind(client, self.arg_u32(0)?)?;
                Ok(Reply::number(was.into()))
            }
            // One that could not be bound is released already.
            Op::Release => Reply::done(match member.take(self.arg_u32(0)?) {
                Ok(ofd) => client.release(ofd),
                Err(_) => Ok(()),
            }),
            Op::Getfl => client
                .getfl(self.ofd(0)?)
                .map(|flags| Reply::number(flags.into())),
            Op::Setfl => Reply::done(client.setfl(self.ofd(0)?, self.arg_u32(1)?)),
            Op::InoOf => client.ino_of(self.ofd(0)?).map(Reply::number),
            Op::ChildPrepare => {
                let shares_memory = self.arg(0) != 0;
                let child = connection::child(self.channel, member, client, shares_memory);
                Reply::done(child)
            }
            Op::Exit => {
                // Nobody asks for the report of a run of the session: it is read when the run ends.
                if Run::is_of_session(client) {
                    member.shared.bury();
                }
                member.count(client);
                member.leave(client);
                Ok(Reply::default())
            }
            Op::Umask => {
                client.set_creation_mask(self.arg_u32(0)?);
                Ok(Reply::default())
            }
            Op::Narrow => self.narrow(),
            _ => self.counts(op),
        }
    }

    /// What a program that begins has: five words, and the numbers of its descriptors.
    fn resume(&self) -> Result<Reply> {
        let client = self.client;
        let mut fds = Vec::new();
        client.each_descriptor(&mut |fd| {
            let is_pipe = client.lookup(fd).map_or(0, |ofd| pipe_bit(client, ofd));
            fds.extend_from_slice(&(fd | is_pipe).to_le_bytes());
        });
        let mut room = self.room(fds.len() as u64)?;
        let len = room.write(&fds).map_err(Error::Fault)?;
        let words = [
            self.member.id.into(),
            client.cwd_inside().into(),
            (client.file_limit() != u64::MAX).into(),
            self.member.locks.load(Relaxed).into(),
            client.creation_mask().into(),
        ];
        Ok(Reply {
            len,
            ..Reply::words(&words)
        })
    }

    /// The process's own reference to a description becomes that of its descriptor `fd`.
    pub(super) fn bind(&self, fd: u32, ofd: OfdLink) -> Result<Reply> {
        let (client, member) = (self.client, self.member);
        let bound = member.bind(client, fd, || client.bind(fd, ofd));
        Reply::done(bound.inspect_err(|_| {
            let _ = client.release(ofd);
        }))
    }

    fn narrow(&self) -> Result<Reply> {
        let pair = |at: usize| [self.arg(at) as u32, (self.arg(at) >> 32) as u32];
        let ids = |at: usize| [pair(at)[0], pair(at)[1], self.arg(at + 1) as u32];
        let words = self.texts[0].chunks_exact(4);
        let others = words.map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
        let kept = self.arg(4) != 0;
        match self.member.narrow(ids(0), ids(2), others.collect(), kept) {
            true => Ok(Reply::default()),
            false => Err(Error::NotPermitted),
        }
    }

    fn counts(&self, op: Op) -> Result<Reply> {
        let run = &self.member.run;
        match op {
            Op::Refuse => run.refuse(self.client, self.arg_u32(0)?, self.arg_u32(1)?),
            Op::Uninstrumented => run.uninstrumented(self.client, &self.texts[0]),
            Op::Report => {
                // What the dead have counted is the run's.
                self.member.shared.bury();
                let bytes = run.report().encode();
                let len = bytes.len().min(BUFFER);
                self.room(len as u64)?
                    .write(&bytes[..len])
                    .map_err(Error::Fault)?;
                return Ok(Reply::bytes(len));
            }
            _ => return Err(Error::Invalid),
        }
        Ok(Reply::default())
    }
}
