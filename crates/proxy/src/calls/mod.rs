//! The calls that are made for others, one function for each.
//!
//! Invariants: a number out of range, a path with a NUL, a buffer that does not fit are refused
//! here, and whatever else is wrong by the client; a call that changes or reads what has an owner
//! is made as an actor that the process's rights allow.

mod answers;
mod data;
mod keys;
mod maps;
mod names;
mod pipes;
mod process;
mod sockets;
mod tokens;

use crate::channel::Channel;
use crate::member::Member;
use crate::proxy::have_hung_up;
use holdfast_client::abi::PATH_MAX;
use holdfast_client::served::wire::*;
use holdfast_client::{Base, Caller, Client, Error, OfdLink, Result};
use holdfast_pmem::{ConstBuf, MutBuf};
use std::sync::Arc;

/// Bytes of one text.
const TEXT_MAX: usize = 64 * 1024;

/// One call.
struct Call<'a> {
    channel: &'a Arc<Channel>,
    index: usize,
    member: &'a Arc<Member>,
    client: &'a Client,
    head: &'a Head,
    args: &'a [u64],
    texts: [Vec<u8>; 2],
}

/// What is answered: words, and how many bytes the buffer has.
#[derive(Default)]
struct Reply {
    words: [u64; 12],
    len: usize,
}

/// The answer to a call in the name of a process that is not there.
pub fn nobody() -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[0] = error_word(&Error::NoPlace);
    words
}

/// Makes a call and says how it ended.
pub fn answer(
    channel: &Arc<Channel>,
    index: usize,
    member: &Arc<Member>,
    head: &Head,
    words: &[u64; WORDS],
) -> [u64; WORDS] {
    let mut answer = [0; WORDS];
    let _under_way = member.shared.begin_call();
    // Nobody may find later what a dead process asked for and had not begun.
    if have_hung_up(&[&member.socket])[0] {
        return nobody();
    }
    match make(channel, index, member, head, words) {
        Ok(reply) => {
            if let Some(answers) = member.answers() {
                answers.renew(|| member.shared.pool.gives_leases());
            }
            answer[1] = reply.len as u64;
            answer[2..2 + reply.words.len()].copy_from_slice(&reply.words);
        }
        // What ended the wait was not the caller's.
        Err(Error::Interrupted) if !channel.is_cancelled(index) => answer[0] = WAITS,
        Err(error) => {
            answer[0] = error_word(&error);
            if let Error::Outside(path) | Error::OutsideSecond(path) = &error {
                let to = channel.memory.target(buffer_at(index), path.len());
                let put = to.map(|mut to| to.write(path));
                answer[1] = put.and_then(|put| put.ok()).unwrap_or(0) as u64;
            }
        }
    }
    answer
}

fn make(
    channel: &Arc<Channel>,
    index: usize,
    member: &Arc<Member>,
    head: &Head,
    words: &[u64; WORDS],
) -> Result<Reply> {
    let op = Op::from_raw(head.op).ok_or(Error::Invalid)?;
    let texts = texts(channel, index, head)?;
    match op {
        Op::Enter => return process::enter(member, &texts[0]),
        Op::Adopt => return process::adopt(member, &texts[0], (words[HEAD], words[HEAD + 1])),
        _ => {}
    }
    let place = member.place();
    let client = place.as_ref().ok_or(Error::NoPlace)?;
    let call = Call {
        channel,
        index,
        member,
        client,
        head,
        args: &words[HEAD..],
        texts,
    };
    call.make(op)
}

/// The texts of a request, copied out of its buffer.
fn texts(channel: &Channel, index: usize, head: &Head) -> Result<[Vec<u8>; 2]> {
    let lens = head.lens.map(|len| len as usize);
    let too_long = lens[..2].iter().any(|len| *len > TEXT_MAX);
    if too_long || lens.iter().sum::<usize>() > BUFFER {
        return Err(Error::Invalid);
    }
    let copy = |skip: usize, len: usize| -> Result<Vec<u8>> {
        let mut text = vec![0; len];
        let from = channel.memory.source(buffer_at(index) + skip as u64, len);
        let copied = from.ok_or(Error::Invalid)?.read(&mut text);
        copied.map_err(Error::Fault)?;
        Ok(text)
    };
    Ok([copy(0, lens[0])?, copy(lens[0], lens[1])?])
}

/// Whether a call is about keys and values, or about snapshots, of which these are a part.
fn is_about_keys(op: Op) -> bool {
    matches!(
        op,
        Op::KvOpen
            | Op::KvList
            | Op::KvGet
            | Op::KvRest
            | Op::KvChange
            | Op::KvName
            | Op::ViewBegin
            | Op::ScanBegin
            | Op::ScanNext
            | Op::ScanCount
            | Op::KvDrop
            | Op::KvRemove
            | Op::KvRename
            | Op::KvSwap
            | Op::SnapshotList
    )
}

impl Call<'_> {
    fn make(&self, op: Op) -> Result<Reply> {
        match op {
            Op::Open
            | Op::Mkdir
            | Op::Mknod
            | Op::Symlink
            | Op::Link
            | Op::Unlink
            | Op::Rmdir
            | Op::Rename
            | Op::Readlink
            | Op::Access
            | Op::Chdir
            | Op::Fchdir
            | Op::ChdirOutside
            | Op::CwdInside
            | Op::Getcwd
            | Op::PathOf => self.names(op),
            Op::Chmod
            | Op::Chown
            | Op::Utimens
            | Op::Truncate
            | Op::Stat
            | Op::Statfs
            | Op::Getxattr
            | Op::Setxattr
            | Op::Listxattr
            | Op::Removexattr
            | Op::Fstat
            | Op::Fchmod
            | Op::Fchown
            | Op::Futimens => self.attributes(op),
            Op::Read
            | Op::Write
            | Op::Lseek
            | Op::CopyRange
            | Op::Ftruncate
            | Op::Fallocate
            | Op::Fsync
            | Op::SyncRange
            | Op::Sync
            | Op::Getdents
            | Op::WithinLimit
            | Op::FileLimit
            | Op::Lock
            | Op::Flock => self.data(op),
            Op::PlaceSocket => self.place_socket(),
            Op::SocketAt => self.socket_at(),
            Op::OpenPipe => self.open_pipe(),
            Op::TakePipe => self.take_pipe(),
            Op::SendToken => self.send_token(),
            Op::ReceiveToken => self.receive_token(),
            Op::SettleToken => self.settle_token(),
            Op::MapLend | Op::MapFile | Op::MapMore | Op::MapLess | Op::MapStored | Op::MapSync => {
                self.maps(op)
            }
            Op::Answers => self.find_answers(),
            op if is_about_keys(op) => self.keys(op),
            _ => self.process(op),
        }
    }

    /// Calls `f` with the rights that the call is made with.
    fn as_caller<T>(&self, f: impl FnOnce(&Caller<'_>) -> Result<T>) -> Result<T> {
        let rights = self.member.rights();
        let actor = rights.actor(self.head).ok_or(Error::NotPermitted)?;
        f(&Caller {
            uid: actor.uid,
            gid: actor.gid,
            groups: actor.groups,
            umask: self.client.creation_mask(),
            privileged: actor.privileged,
            ids: None,
        })
    }

    fn arg(&self, index: usize) -> u64 {
        self.args.get(index).copied().unwrap_or(0)
    }

    fn arg_u32(&self, index: usize) -> Result<u32> {
        u32::try_from(self.arg(index)).map_err(|_| Error::Invalid)
    }

    /// A path, in the text with this number.
    fn path(&self, index: usize) -> Result<&[u8]> {
        let path = &self.texts[index][..];
        if path.len() >= PATH_MAX {
            return Err(Error::NameTooLong);
        }
        match path.contains(&0) {
            true => Err(Error::Invalid),
            false => Ok(path),
        }
    }

    /// The description that an argument names.
    fn ofd(&self, index: usize) -> Result<OfdLink> {
        self.member.description(self.client, self.arg_u32(index)?)
    }

    /// Where a walk starts.
    fn base(&self, index: usize) -> Result<Base> {
        match word_base(self.arg(index)).ok_or(Error::Invalid)? {
            Base::Ofd(handle) => {
                let ofd = self.member.description(self.client, handle.raw())?;
                Ok(Base::Ofd(ofd))
            }
            base => Ok(base),
        }
    }

    /// Room for at most `len` bytes of an answer.
    fn room(&self, len: u64) -> Result<MutBuf<'_>> {
        let len = usize::try_from(len).unwrap_or(BUFFER).min(BUFFER);
        let room = self.channel.memory.target(buffer_at(self.index), len);
        room.ok_or(Error::Invalid)
    }

    /// What follows the texts in the buffer, where the other side may go on storing.
    fn bytes(&self) -> Result<ConstBuf<'_>> {
        let [first, second, len] = self.head.lens.map(u64::from);
        let at = buffer_at(self.index) + first + second;
        let bytes = self.channel.memory.source(at, len as usize);
        bytes.ok_or(Error::Invalid)
    }
}

impl Reply {
    /// Nothing but success.
    fn done(result: Result<()>) -> Result<Reply> {
        result.map(|()| Reply::default())
    }

    /// One number.
    fn number(number: u64) -> Reply {
        let mut reply = Reply::default();
        reply.words[0] = number;
        reply
    }

    /// So many bytes of the buffer.
    fn bytes(len: usize) -> Reply {
        Reply {
            len,
            ..Reply::number(len as u64)
        }
    }

    fn words(words: &[u64]) -> Reply {
        let mut reply = Reply::default();
        for (to, word) in reply.words.iter_mut().zip(words) {
            *to = *word;
        }
        reply
    }
}
