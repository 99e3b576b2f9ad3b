//! Keys and values.
//!
//! Invariants: rights are looked at in the call that uses them, and for changes that were handed
//! over in parts in the one that makes them; nothing that the other side can still store to is
//! used, but copies.

use super::{Call, Reply};
use crate::keys::{Batch, Counted, Going, Kept, Pair, drop_kept, let_go, recount};
use holdfast_client::kv::{
    Changes, Durability, Expected, Found, Keyspace, NEVER, Right, Scan, Swapped, Times, View,
};
use holdfast_client::served::encode_snapshots;
use holdfast_client::served::pairs::{Kind, PAIR_HEAD, first_change, push_pair};
use holdfast_client::served::wire::{BUFFER, Op};
use holdfast_client::{Caller, Error, Result};
use std::mem::take;
use std::sync::Arc;

/// Values that fit are copied without asking for their length before.
const SMALL: usize = 4096;
/// Keys that one call counts.
const COUNT_MAX: u64 = 1 << 16;
/// New keyspaces are made with this mask, also where the pool is mapped.
const MASK: u32 = 0o022;

/// Room for so many bytes. `NoMemory`: there is none.
fn room_for(len: usize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    out.try_reserve_exact(len).map_err(|_| Error::NoMemory)?;
    out.resize(len, 0);
    Ok(out)
}

impl Call<'_> {
    pub(super) fn keys(&self, op: Op) -> Result<Reply> {
        match op {
            Op::KvOpen => self.kv_open(),
            Op::KvList => self.kv_list(),
            Op::KvGet => self.kv_get(),
            Op::KvRest => {
                let value = self.member.keys.value(self.arg_u32(0)?)?;
                let at = usize::try_from(self.arg(1)).map_err(|_| Error::Invalid)?;
                let rest = value.get(at..).unwrap_or_default();
                self.put(&rest[..rest.len().min(BUFFER)])
            }
            Op::KvChange => self.kv_change(),
            Op::KvName => self.kv_name(),
            Op::ViewBegin => self.view_begin(),
            Op::ScanBegin => self.scan_begin(),
            Op::ScanNext => self.scan_next(),
            Op::KvDrop => {
                let name = self.arg_u32(0)?;
                self.discard(self.member.keys.take(name)?);
                self.member.keys.free(name);
                Ok(Reply::default())
            }
            Op::SnapshotList => self.snapshot_list(),
            Op::KvRemove => {
                let name = self.path(0)?;
                Reply::done(self.as_caller(|c| self.client.kv_drop(c, name)))
            }
            Op::KvRename => {
                let (old, new, replace) = (self.path(0)?, self.path(1)?, self.arg(0) != 0);
                let client = self.client;
                Reply::done(self.as_caller(|c| client.kv_rename(c, old, new, replace)))
            }
            Op::KvSwap => self.kv_swap(),
            Op::ScanCount => self.with_scan(|going| self.count(going)),
            _ => Err(Error::Invalid),
        }
    }

    /// Answers with these bytes.
    fn put(&self, bytes: &[u8]) -> Result<Reply> {
        let mut room = self.room(bytes.len() as u64)?;
        room.write(bytes).map(Reply::bytes).map_err(Error::Fault)
    }

    fn discard(&self, counted: Counted) {
        drop_kept(&self.member.shared, self.client, counted);
    }

    /// Keeps something that takes so many bytes: its name.
    fn keep(&self, kept: Kept, bytes: usize) -> Result<u32> {
        let mut counted = Counted { kept, bytes: 0 };
        let name = recount(&self.member.shared, &mut counted, bytes)
            .and_then(|()| self.member.keys.new_name());
        match name {
            Ok(name) => {
                self.member.keys.put_back(name, counted);
                Ok(name)
            }
            Err(e) => {
                self.discard(counted);
                Err(e)
            }
        }
    }

    fn keyspace(&self, index: usize) -> Result<Keyspace> {
        self.member.keys.keyspace(self.arg_u32(index)?)
    }

    fn durability(&self, index: usize) -> Result<Durability> {
        match self.arg(index) {
            0 => Ok(Durability::Durable),
            1 => Ok(Durability::Ordered),
            2 => Ok(Durability::Volatile),
            _ => Err(Error::Invalid),
        }
    }

    fn check(&self, c: &Caller<'_>, keyspace: Keyspace, right: Right) -> Result<()> {
        self.client.kv_check(c, keyspace, right)
    }

    fn kv_open(&self) -> Result<Reply> {
        let (name, create) = (self.path(0)?, self.arg(0) != 0);
        let keyspace = self.as_caller(|c| {
            let c = Caller { umask: MASK, ..*c };
            self.client.keyspace(&c, name, create)
        })?;
        let name = self.member.keys.open(keyspace)?;
        Ok(Reply::words(&[name.into(), keyspace.ino()]))
    }

    /// From the one with this index on. They are for who may see the names in the root directory.
    fn snapshot_list(&self) -> Result<Reply> {
        self.as_caller(|c| self.client.kv_check_list(c))?;
        let all = self.client.snapshot_list()?;
        let from = usize::try_from(self.arg(0)).map_err(|_| Error::Invalid)?;
        self.put(&encode_snapshots(all.get(from..).unwrap_or_default()))
    }

    /// Names from the one with this index on, each with a NUL behind it, and whether these are all.
    fn kv_list(&self) -> Result<Reply> {
        self.as_caller(|c| self.client.kv_check_list(c))?;
        let (from, mut index, mut is_all) = (self.arg(0), 0, true);
        let mut names = Vec::new();
        self.client.keyspaces(&mut |name| {
            if index >= from {
                is_all &= names.len() + name.len() < BUFFER;
                if is_all {
                    names.extend_from_slice(name);
                    names.push(0);
                }
            }
            index += 1;
        })?;
        let mut reply = self.put(&names)?;
        reply.words[1] = is_all.into();
        Ok(reply)
    }
}

/// Reading.
impl Call<'_> {
    fn kv_get(&self) -> Result<Reply> {
        let keyspace = self.keyspace(0)?;
        let view = match self.arg_u32(1)? {
            0 => None,
            name => Some(self.member.keys.view(name)?),
        };
        let found = self.get(keyspace, view.as_deref());
        if let Some(view) = view {
            let_go(&self.member.shared, self.client, view);
        }
        found
    }

    fn get(&self, keyspace: Keyspace, view: Option<&View>) -> Result<Reply> {
        let wanted = usize::try_from(self.arg(2)).unwrap_or(usize::MAX);
        let mut small = [0; SMALL];
        let small = &mut small[..wanted.min(SMALL)];
        let Some(mut found) = self.look(keyspace, view, small)? else {
            return Ok(Reply::default());
        };
        let mut large = Vec::new();
        // It may be another one each time.
        while large.len().max(small.len()) < wanted.min(found.len as usize) {
            let size = wanted.min(found.len as usize);
            self.check_room(size)?;
            large = room_for(size)?;
            match self.look(keyspace, view, &mut large)? {
                Some(now) => found = now,
                None => return Ok(Reply::default()),
            }
        }
        let len = found.len;
        let out = if large.is_empty() { small } else { &mut large };
        let n = out.len().min(len as usize);
        let mut reply = if n <= BUFFER {
            self.put_value(&out[..n], len)?
        } else {
            large.truncate(n);
            self.keep_value(large, len)?
        };
        (reply.words[3], reply.words[4]) = (found.mtime as u64, found.expires as u64);
        Ok(reply)
    }

    /// Answers with the start of a value of length `len`.
    fn put_value(&self, start: &[u8], len: u64) -> Result<Reply> {
        let mut reply = self.put(start)?;
        reply.words[..3].copy_from_slice(&[1, len, 0]);
        Ok(reply)
    }

    /// Answers with the name under which the start of a value of length `len` is kept.
    fn keep_value(&self, start: Vec<u8>, len: u64) -> Result<Reply> {
        let n = start.len();
        let name = self.keep(Kept::Value(Arc::new(start)), n)?;
        Ok(Reply::words(&[1, len, name.into()]))
    }

    /// Answers with a value.
    fn whole(&self, value: Vec<u8>) -> Result<Reply> {
        let len = value.len() as u64;
        match value.len() <= BUFFER {
            true => self.put_value(&value, len),
            false => self.keep_value(value, len),
        }
    }

    /// Before memory is taken that may be kept.
    fn check_room(&self, len: usize) -> Result<()> {
        let kept = &self.member.shared.kept;
        let len = u32::try_from(len).map_err(|_| Error::NoMemory)?;
        kept.take(len).map_err(|_| Error::NoMemory)?;
        kept.give_back(len);
        Ok(())
    }

    /// Copies the value of the key in the request as far as there is room: its length and times.
    fn look(
        &self,
        keyspace: Keyspace,
        view: Option<&View>,
        out: &mut [u8],
    ) -> Result<Option<Times>> {
        let (client, key) = (self.client, &self.texts[0][..]);
        self.as_caller(|c| {
            self.check(c, keyspace, Right::Get)?;
            client.kv_find(Some(c), view, (keyspace, key), out)
        })
    }

    fn view_begin(&self) -> Result<Reply> {
        let keyspace = match self.arg_u32(0)? {
            0 => None,
            _ => Some(self.keyspace(0)?),
        };
        let shared = &self.member.shared;
        shared.views.take(1).map_err(|_| Error::TooManyViews)?;
        let view = match keyspace {
            None => self.client.view(),
            Some(keyspace) => self.client.view_of(keyspace),
        };
        let view = view.inspect_err(|_| shared.views.give_back(1))?;
        let name = self.keep(Kept::View(Arc::new(view)), 0)?;
        Ok(Reply::number(name.into()))
    }

    fn scan_begin(&self) -> Result<Reply> {
        let (keyspace, backward) = (self.keyspace(0)?, self.arg(2) != 0);
        let [from, to] = &self.texts;
        self.as_caller(|c| self.check(c, keyspace, Right::Scan))?;
        let to = (self.arg(3) != 0).then_some(&to[..]);
        let view = self.member.keys.view(self.arg_u32(1)?)?;
        let shared = &self.member.shared;
        if shared.scans.take(1).is_err() {
            let_go(shared, self.client, view);
            return Err(Error::TooManyViews);
        }
        let going = Going {
            scan: Scan::new(keyspace, from, to, backward),
            view,
            keyspace,
            waiting: None,
            failed: None,
        };
        let name = self.keep(Kept::Scan(Box::new(going)), 0)?;
        Ok(Reply::number(name.into()))
    }

    fn scan_next(&self) -> Result<Reply> {
        self.with_scan(|going| self.go_on(going))
    }

    /// What `f` makes of the scan that is named first.
    fn with_scan(&self, f: impl FnOnce(&mut Going) -> Result<Reply>) -> Result<Reply> {
        let (keys, name) = (&self.member.keys, self.arg_u32(0)?);
        let mut counted = keys.take(name)?;
        let Kept::Scan(going) = &mut counted.kept else {
            keys.put_back(name, counted);
            return Err(Error::BadDescriptor);
        };
        let reply = f(going);
        let waiting = going.waiting.as_ref().map_or(0, |pair| pair.1.len());
        let bytes = going.scan.held() + waiting;
        match recount(&self.member.shared, &mut counted, bytes) {
            Ok(()) => {
                keys.put_back(name, counted);
                reply
            }
            Err(e) => {
                self.discard(counted);
                keys.free(name);
                Err(e)
            }
        }
    }

    /// How many keys there are, up to a number, and whether these are all.
    fn count(&self, going: &mut Going) -> Result<Reply> {
        self.as_caller(|c| self.check(c, going.keyspace, Right::Scan))?;
        let most = self.arg(1).min(COUNT_MAX);
        let (count, is_all) = self.client.kv_count(&going.view, &mut going.scan, most)?;
        Ok(Reply::words(&[count, is_all.into()]))
    }

    /// The next pairs: whether they are the last, and the name and length of the last value if that
    /// comes apart.
    fn go_on(&self, going: &mut Going) -> Result<Reply> {
        self.as_caller(|c| self.check(c, going.keyspace, Right::Scan))?;
        if let Some(failed) = going.failed.take() {
            return Err(failed);
        }
        let room = usize::try_from(self.arg(1)).unwrap_or(BUFFER).min(BUFFER);
        let (mut bytes, mut apart, mut is_last) = (Vec::new(), None, false);
        loop {
            let next = match going.waiting.take() {
                Some(pair) => Some(pair),
                None => match self.next_pair(going) {
                    Ok(next) => next,
                    Err(e) if bytes.is_empty() => return Err(e),
                    Err(e) => {
                        going.failed = Some(e);
                        break;
                    }
                },
            };
            let Some((key, value, expires)) = next else {
                is_last = true;
                break;
            };
            let len = PAIR_HEAD + key.len() + value.len();
            if bytes.is_empty() && len > BUFFER {
                apart = Some(value);
                push_pair(&key, None, expires, &mut bytes);
                break;
            }
            if !bytes.is_empty() && bytes.len() + len > room {
                going.waiting = Some((key, value, expires));
                break;
            }
            push_pair(&key, Some(&value), expires, &mut bytes);
        }
        let mut reply = self.put(&bytes)?;
        reply.words[0] = is_last.into();
        if let Some(value) = apart {
            let len = value.len();
            let name = self.keep(Kept::Value(Arc::new(value)), len)?;
            (reply.words[1], reply.words[2]) = (name.into(), len as u64);
        }
        Ok(reply)
    }

    fn next_pair(&self, going: &mut Going) -> Result<Option<Pair>> {
        let (session, view) = (self.client.session(), &*going.view);
        loop {
            let found = going.scan.advance(session, view)?;
            let scan = &going.scan;
            let value = match found {
                None => return Ok(None),
                Some(Found::Inline) => Some(scan.value().to_vec()),
                Some(Found::Blocks(blocks)) => {
                    let mut value = room_for(blocks.len as usize)?;
                    Scan::copy(session, view, &blocks, &mut value)?;
                    Some(value)
                }
                Some(Found::File(ino)) => self.file(scan, ino)?,
            };
            // A file that went since the scan began has none.
            if let Some(value) = value {
                return Ok(Some((scan.key().to_vec(), value, scan.expires())));
            }
        }
    }

    /// The content of the file to which a scan has come.
    fn file(&self, scan: &Scan, ino: u64) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        loop {
            let (session, key) = (self.client.session(), scan.key());
            let read = self.as_caller(|c| scan.read(session, (key, ino), &mut value, Some(c)))?;
            let Some(len) = read else { return Ok(None) };
            let len = usize::try_from(len).map_err(|_| Error::NoMemory)?;
            if len <= value.len() {
                value.truncate(len);
                return Ok(Some(value));
            }
            self.check_room(len)?;
            value = room_for(len)?;
        }
    }
}

/// Changing.
impl Call<'_> {
    fn kv_change(&self) -> Result<Reply> {
        let (is_made, durability) = (self.arg(1) != 0, self.durability(2)?);
        let mut bytes = room_for(self.head.lens[2] as usize)?;
        self.bytes()?.read(&mut bytes).map_err(Error::Fault)?;
        let name = self.arg_u32(0)?;
        if name == 0 && is_made {
            let mut batch = Batch::default();
            let added = self.add(&mut batch, &bytes);
            return self.commit(batch.changes, added, durability);
        }
        let keys = &self.member.keys;
        let (name, mut counted) = match name {
            0 => (keys.new_name()?, Counted::batch()),
            name => (name, keys.take(name)?),
        };
        let Kept::Batch(batch) = &mut counted.kept else {
            keys.put_back(name, counted);
            return Err(Error::BadDescriptor);
        };
        let added = self.add(batch, &bytes);
        if is_made {
            let changes = std::mem::take(&mut batch.changes);
            self.discard(counted);
            keys.free(name);
            return self.commit(changes, added, durability);
        }
        let held = batch.changes.held() + batch.part.len();
        let is_new = self.arg(0) == 0;
        let counts = recount(&self.member.shared, &mut counted, held);
        let kept = counts.map_err(|_| Error::TooBig).and(added);
        if is_new && kept.is_err() {
            // Whoever has no name for it cannot drop it.
            self.discard(counted);
            keys.free(name);
        } else {
            keys.put_back(name, counted);
        }
        kept?;
        Ok(Reply::number(name.into()))
    }

    /// Makes a change of one key if it is as expected; else answers as a get does.
    fn kv_swap(&self) -> Result<Reply> {
        let (keyspace, durability) = (self.keyspace(0)?, self.durability(1)?);
        let (has, key) = (self.arg(2), &self.texts[0][..]);
        let mut bytes = room_for(self.head.lens[2] as usize)?;
        self.bytes()?.read(&mut bytes).map_err(Error::Fault)?;
        let split = usize::try_from(self.arg(3)).map_err(|_| Error::Invalid)?;
        let (old, new) = bytes.split_at_checked(split).ok_or(Error::Invalid)?;
        let expires = expiry(self.arg(4))?;
        let at = expiry(self.arg(5))?;
        let at = (at != NEVER).then_some(at);
        let expected = match (has & 1 != 0, has & 4 != 0) {
            (is_value, false) => Expected::Value(is_value.then_some(old)),
            (false, true) => Expected::Expiry(at),
            (true, true) => Expected::Both(old, at),
        };
        let new = (has & 2 != 0).then_some((new, expires));
        let swapped = self.as_caller(|c| {
            self.check(c, keyspace, Right::Get)?;
            self.check(c, keyspace, Right::Change)?;
            let client = self.client;
            client.kv_swap(Some(c), (keyspace, key), expected, new, durability)
        })?;
        match swapped {
            Swapped::Done => Ok(Reply::words(&[0, 0, 0, 1])),
            Swapped::Other(None) => Ok(Reply::default()),
            Swapped::Other(Some(present)) => {
                let mut reply = self.whole(present.value)?;
                reply.words[4] = present.expires as u64;
                Ok(reply)
            }
        }
    }

    fn commit(&self, changes: Changes, added: Result<()>, durability: Durability) -> Result<Reply> {
        let may = added.and_then(|()| {
            self.as_caller(|c| {
                let mut all = changes.keyspaces();
                all.try_for_each(|keyspace| self.check(c, keyspace, Right::Change))
            })
        });
        match may {
            Ok(()) => Reply::done(self.client.kv_commit(changes, durability)),
            Err(e) => {
                self.client.kv_abort(changes);
                Err(e)
            }
        }
    }

    /// Adds changes to a batch. Those before one that fails stay.
    fn add(&self, batch: &mut Batch, mut bytes: &[u8]) -> Result<()> {
        let client = self.client;
        while !bytes.is_empty() {
            let (change, rest) = first_change(bytes).ok_or(Error::Invalid)?;
            bytes = rest;
            let keyspace = self.member.keys.keyspace(change.keyspace)?;
            let (key, value, changes) = (change.key, change.value, &mut batch.changes);
            match change.kind {
                Kind::Put => {
                    let (part, expires) = (take(&mut batch.part), take(&mut batch.expires));
                    let mut whole = part;
                    let value = match whole.is_empty() {
                        true => value,
                        false => {
                            append(&mut whole, value)?;
                            &whole
                        }
                    };
                    changes.put_until(client, (keyspace, key), value, expires)?;
                }
                Kind::Until => {
                    let bytes = value.try_into().map_err(|_| Error::Invalid)?;
                    batch.expires = expiry(u64::from_le_bytes(bytes))?;
                }
                Kind::Erase => changes.erase(client, keyspace, key)?,
                Kind::EraseRange => {
                    let to = (!value.is_empty()).then_some(value);
                    changes.erase_range(keyspace, key, to)?;
                }
                Kind::Part => {
                    append(&mut batch.part, value).inspect_err(|_| batch.part = Vec::new())?
                }
            }
        }
        Ok(())
    }

    /// A file that has no name becomes the value of a key.
    fn kv_name(&self) -> Result<Reply> {
        let (keyspace, ofd, durability) = (self.keyspace(0)?, self.ofd(1)?, self.durability(2)?);
        let key = &self.texts[0];
        self.as_caller(|c| self.check(c, keyspace, Right::Change))?;
        Reply::done(self.client.kv_name(keyspace, key, ofd, durability))
    }
}

/// When something expires, as a request says it.
fn expiry(word: u64) -> Result<i64> {
    i64::try_from(word).map_err(|_| Error::Invalid)
}

/// More of a value.
fn append(value: &mut Vec<u8>, part: &[u8]) -> Result<()> {
    if (value.len() + part.len()) as u64 > Changes::VALUE_MAX {
        return Err(Error::FileTooLarge);
    }
    let room = value.try_reserve(part.len());
    room.map_err(|_| Error::NoMemory)?;
    value.extend_from_slice(part);
    Ok(())
}
