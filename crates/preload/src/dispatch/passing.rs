//! Descriptors of pool files in messages (SCM_RIGHTS of unix(7)) between programs of a session:
//! sendmsg, sendmmsg, recvmsg, recvmmsg; and pidfd_getfd, which takes none.
//!
//! Invariants: what the kernel carries for a pool file is a token (`Client::send`), which becomes a
//! descriptor of that file when a program of the session receives it. Whoever else receives it can
//! neither read nor write it. A message without such descriptors is left as it is.

use super::args::{self, EINVAL, Errno};
use super::data::ours;
use super::outcome::{Outcome, Stop, Why};
use super::process::Process;
use super::{fds, nr, special};
use crate::sys::{self, Fd};
use crate::waiting;
use alloc::vec::Vec;
use holdfast_client::OfdLink;
use holdfast_client::abi::{O_ACCMODE, O_CLOEXEC, O_WRONLY, S_IFMT, S_IFREG, SEEK_CUR, SEEK_SET};
use holdfast_pmem::{RecordLocks, record_locks};
use rustix::fd::IntoRawFd;

type Args = [usize; 6];

const EPERM: Errno = 1;
const EBADF: Errno = 9;
const ENOBUFS: Errno = 105;
const ETOOMANYREFS: Errno = 109;
const SOL_SOCKET: u32 = 1;
const SCM_RIGHTS: u32 = 1;
const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
/// `struct msghdr`: where the control messages are, and how long.
const HEADER: usize = 56;
const CONTROL_AT: usize = 32;
const CONTROL_LEN_AT: usize = 40;
/// `struct mmsghdr`, and where it has how much was sent.
const MANY: usize = 64;
const SENT_AT: usize = HEADER;
/// As the kernel, which takes no more messages at once.
const MANY_MAX: usize = 1024;
/// More than the kernel takes (net.core.optmem_max) unless somebody raised it.
const CONTROL_MAX: usize = 256 << 10;
/// `struct cmsghdr`.
const CMSG: usize = 16;

/// The control messages of a `struct msghdr`, copied.
struct Control {
    bytes: Vec<u8>,
}

impl Control {
    /// Address and length; `None`: there is no room for descriptors.
    fn place(header: usize) -> Result<Option<(usize, usize)>, Errno> {
        let at = args::read_u64(header.wrapping_add(CONTROL_AT))? as usize;
        let len = args::read_u64(header.wrapping_add(CONTROL_LEN_AT))? as usize;
        Ok((at != 0 && len > CMSG).then_some((at, len)))
    }

    fn has_room(header: usize) -> bool {
        matches!(Control::place(header), Ok(Some(_)))
    }

    fn read(header: usize) -> Result<Option<Control>, Errno> {
        let Some((at, len)) = Control::place(header)? else {
            return Ok(None);
        };
        if len > CONTROL_MAX {
            return Err(ENOBUFS);
        }
        let mut bytes = alloc::vec![0; len];
        args::source(at, len)
            .read(&mut bytes)
            .map_err(|_| args::EFAULT)?;
        Ok(Some(Control { bytes }))
    }

    /// Where descriptors are.
    fn rights(&self) -> Vec<usize> {
        let (mut found, mut at) = (Vec::new(), 0);
        while at + CMSG <= self.bytes.len() {
            let size = self.word(at) as usize | (self.word(at + 4) as usize) << 32;
            if size < CMSG || size > self.bytes.len() - at {
                break;
            }
            if (self.word(at + 8), self.word(at + 12)) == (SOL_SOCKET, SCM_RIGHTS) {
                let count = (size - CMSG) / 4;
                found.extend((0..count).map(|n| at + CMSG + n * 4));
            }
            at += size.next_multiple_of(8);
        }
        found
    }

    fn word(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.bytes[at..at + 4]);
        u32::from_le_bytes(word)
    }

    fn set_word(&mut self, at: usize, word: u32) {
        self.bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
}

/// What stands for a pool file in a message, until that was sent.
struct Token {
    fd: Fd,
    key: u64,
}

fn placeholder(p: &Process) -> Result<RecordLocks, Errno> {
    let fd = record_locks::kept_open(p.base_fd as i32).ok_or(EBADF)?;
    RecordLocks::new(fd).map_err(|_| EBADF)
}

fn make_token(p: &Process, ofd: OfdLink) -> Result<Token, Stop> {
    if let Some(served) = p.client.served() {
        let (fd, key) = served.make_token(ofd).map_err(too_many)?;
        let fd = Fd(fd.into_raw_fd() as usize);
        return Ok(Token { fd, key });
    }
    let path = alloc::format!("/proc/self/fd/{}\0", p.base_fd);
    let fd = Fd::open(path.as_bytes(), O_WRONLY as usize, 0);
    // Where there is no /proc, none can be made.
    let fd = fd.ok_or(Stop::Refused(EINVAL, Why::DescriptorPassing))?;
    let mut random = [0; 8];
    let at = random.as_mut_ptr() as usize;
    // SAFETY: the kernel fills eight bytes.
    unsafe { sys::raw(nr::GETRANDOM, [at, random.len(), 0, 0, 0, 0]) };
    let hold = |key: u64, byte: u64| {
        let args = [fd.0, key as usize, SEEK_SET as usize, 0, 0, 0];
        // SAFETY: touches no memory.
        unsafe { sys::raw(nr::LSEEK, args) };
        let held = record_locks::kept_open(fd.0 as i32);
        let held = held.map(|fd| record_locks::hold_by_description(fd, byte));
        match held {
            Some(Ok(())) => Ok(key),
            _ => Err(holdfast_client::Error::TableFull),
        }
    };
    let random = u64::from_le_bytes(random);
    let sent = p.client.send(ofd, &placeholder(p)?, random, hold);
    let key = sent.map_err(too_many)?;
    Ok(Token { fd, key })
}

fn too_many(error: holdfast_client::Error) -> Stop {
    match error {
        holdfast_client::Error::TableFull => ETOOMANYREFS.into(),
        error => error.into(),
    }
}

/// Replaces pool files in a message by tokens.
fn tokens(p: &Process, control: &mut Control) -> Result<Vec<Token>, Stop> {
    let mut tokens = Vec::new();
    for at in control.rights() {
        let token = match ours(p, control.word(at) as usize) {
            Ok(ofd) => make_token(p, ofd)?,
            Err(Stop::Native) => continue,
            Err(stop) => return Err(stop),
        };
        control.set_word(at, token.fd.0 as u32);
        tokens.push(token);
    }
    Ok(tokens)
}

/// sendmsg(fd, msghdr, flags)
pub fn sendmsg(p: &Process, a: &Args) -> Outcome {
    let native = |_| Stop::Native;
    let mut header: [u8; HEADER] = args::read_bytes(a[1]).map_err(native)?;
    let Some(mut control) = Control::read(a[1]).map_err(native)? else {
        return special::sendmsg(p, a[0], &mut header, a[2]);
    };
    let tokens = tokens(p, &mut control)?;
    if tokens.is_empty() {
        return special::sendmsg(p, a[0], &mut header, a[2]);
    }
    let bytes = control.bytes.as_ptr() as u64;
    header[CONTROL_AT..CONTROL_AT + 8].copy_from_slice(&bytes.to_le_bytes());
    let sent = match special::sendmsg(p, a[0], &mut header, a[2]) {
        Err(Stop::Native) => {
            let args = [a[0], header.as_ptr() as usize, a[2], 0, 0, 0];
            // SAFETY: the program's own call, with a copy of the header that lives until here.
            args::result(unsafe { waiting::call(nr::SENDMSG, args) })
                .map(|sent| sent as isize)
                .map_err(Stop::from)
        }
        sent => sent,
    };
    let keys: Vec<u64> = tokens.iter().map(|token| token.key).collect();
    drop(tokens);
    // They are nobody's now if they were not sent, or if whoever received them was faster than we.
    if let Ok(placeholder) = placeholder(p) {
        for key in keys {
            // What it does not find out now who sends the next ones does.
            let _ = p.client.settle(key, &placeholder);
        }
    }
    sent
}

/// sendmmsg(fd, msgvec, count, flags)
pub fn sendmmsg(p: &Process, a: &Args) -> Outcome {
    let count = (a[2] as u32 as usize).min(MANY_MAX);
    let message = |n: usize| a[1].wrapping_add(n * MANY);
    let is_plain = |n: usize| !Control::has_room(message(n)) && !special::has_path(message(n));
    if (0..count).all(is_plain) {
        return Err(Stop::Native);
    }
    for n in 0..count {
        let args = [a[0], message(n), a[3], 0, 0, 0];
        let sent = match sendmsg(p, &args) {
            // SAFETY: the program's own call.
            Err(Stop::Native) => args::result(unsafe { waiting::call(nr::SENDMSG, args) })
                .map(|sent| sent as isize)
                .map_err(Stop::from),
            other => other,
        };
        match sent {
            Ok(sent) => args::write_bytes(message(n) + SENT_AT, &(sent as u32).to_le_bytes())?,
            Err(_) if n > 0 => return Ok(n as isize),
            Err(stop) => return Err(stop),
        }
    }
    Ok(count as isize)
}

/// recvmsg(fd, msghdr, flags)
pub fn recvmsg(p: &Process, a: &Args) -> Outcome {
    if !Control::has_room(a[1]) {
        return Err(Stop::Native);
    }
    // SAFETY: the program's own call.
    let ret = unsafe { waiting::call(nr::RECVMSG, *a) };
    if ret >= 0 {
        received(p, a[1], a[2]);
    }
    Err(Stop::Passed(ret))
}

/// recvmmsg(fd, msgvec, count, flags, timeout)
pub fn recvmmsg(p: &Process, a: &Args) -> Outcome {
    let count = (a[2] as u32 as usize).min(MANY_MAX);
    let message = |n: usize| a[1].wrapping_add(n * MANY);
    if !(0..count).any(|n| Control::has_room(message(n))) {
        return Err(Stop::Native);
    }
    // SAFETY: the program's own call.
    let ret = unsafe { waiting::call(nr::RECVMMSG, *a) };
    for n in 0..ret.max(0) as usize {
        received(p, message(n), a[3]);
    }
    Err(Stop::Passed(ret))
}

/// Makes pool files of the tokens in a message that was received with these flags.
fn received(p: &Process, header: usize, flags: usize) {
    let Ok(Some(control)) = Control::read(header) else {
        return;
    };
    for at in control.rights() {
        // One for which there is no room is closed, as the kernel does with those.
        let _ = take(p, control.word(at), flags & MSG_CMSG_CLOEXEC != 0);
    }
}

/// If descriptor `fd` is a token, it becomes the file that the token stands for.
fn take(p: &Process, fd: u32, cloexec: bool) -> Result<(), Stop> {
    let number = fd as usize;
    let of_placeholder = sys::stat_fd(p.base_fd as usize).map(|st| st.dev);
    let is_like = |st: sys::Stat| {
        Some(st.dev) == of_placeholder && st.mode & S_IFMT == S_IFREG && st.size == 0
    };
    if !sys::stat_fd(number).is_some_and(is_like) || access_mode(number) != O_WRONLY {
        return Ok(());
    }
    // SAFETY: touches no memory.
    let key = unsafe { sys::raw(nr::LSEEK, [number, 0, SEEK_CUR as usize, 0, 0, 0]) };
    let Some(ofd) = p.client.receive(key as u64) else {
        return Ok(());
    };
    let flags = if cloexec { O_CLOEXEC as usize } else { 0 };
    let args = [p.base_fd as usize, number, flags, 0, 0, 0];
    // SAFETY: replaces a descriptor that the program does not know yet; touches no memory.
    let replaced = unsafe { sys::raw(nr::DUP3, args) };
    if replaced < 0 {
        return Ok(p.client.release(ofd)?);
    }
    fds::bind_new(p, fd, ofd)?;
    p.client.settle(key as u64, &placeholder(p)?)?;
    Ok(())
}

fn access_mode(fd: usize) -> u32 {
    const F_GETFL: usize = 3;
    // SAFETY: only asks for flags.
    let flags = unsafe { sys::raw(nr::FCNTL, [fd, F_GETFL, 0, 0, 0, 0]) };
    flags as u32 & O_ACCMODE
}

/// pidfd_getfd(pidfd, fd, flags): what a pool file is in another process the kernel does not know.
pub fn pidfd_getfd(p: &Process, a: &Args) -> Outcome {
    // SAFETY: the program's own call, which touches no memory.
    let fd = unsafe { sys::raw(nr::PIDFD_GETFD, *a) };
    let device = |fd: usize| sys::stat_fd(fd).map(|st| (st.dev, st.size));
    if fd < 0
        || access_mode(fd as usize) != O_ACCMODE
        || device(fd as usize) != device(p.base_fd as usize)
    {
        return Err(Stop::Passed(fd));
    }
    // SAFETY: closes a descriptor that nobody knows.
    unsafe { sys::raw(nr::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
    Err(Stop::Refused(EPERM, Why::DescriptorPassing))
}
