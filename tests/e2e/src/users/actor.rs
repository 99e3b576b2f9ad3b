//! `hf-e2e act`: makes the calls that it is told to, one a line, and says what came of each.
//!
//! Invariant: what it says of one call does not depend on when or where it was made: no times, no
//! inode numbers, nothing of the host.

use rustix::fd::OwnedFd;
use rustix::fs::{self, Access, AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::process::ExitCode;

type Said = Result<String, Errno>;

/// Open files, by the numbers that the test gives them.
type Files = BTreeMap<String, OwnedFd>;

pub fn main() -> ExitCode {
    let mut files = Files::new();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let said = match act(&mut files, &words) {
            Ok(said) => format!("ok {said}"),
            Err(errno) => format!("errno {}", errno.raw_os_error()),
        };
        if writeln!(out, "{said}").and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

fn number(word: &str) -> Result<u32, Errno> {
    u32::from_str_radix(word, 8).map_err(|_| Errno::INVAL)
}

fn id(word: &str) -> Option<u32> {
    word.parse().ok()
}

fn mode(word: &str) -> Result<Mode, Errno> {
    number(word).map(Mode::from_raw_mode)
}

fn done(result: Result<(), Errno>) -> Said {
    result.map(|()| String::new())
}

fn act(files: &mut Files, words: &[&str]) -> Said {
    match *words {
        ["mkdir", path, bits] => done(fs::mkdir(path, mode(bits)?)),
        ["mknod", path, bits] => done(fs::mknodat(
            CWD,
            path,
            fs::FileType::RegularFile,
            mode(bits)?,
            0,
        )),
        ["rmdir", path] => done(fs::rmdir(path)),
        ["unlink", path] => done(fs::unlink(path)),
        ["symlink", target, path] => done(fs::symlink(target, path)),
        ["link", old, new] => done(fs::link(old, new)),
        ["rename", old, new] => done(fs::rename(old, new)),
        ["exchange", old, new] => done(fs::renameat_with(
            CWD,
            old,
            CWD,
            new,
            fs::RenameFlags::EXCHANGE,
        )),
        ["readlink", path] => {
            let target = fs::readlink(path, Vec::new())?;
            Ok(target.to_string_lossy().into_owned())
        }
        ["list", path] => list(path),
        ["chdir", path] => done(rustix::process::chdir(path)),
        ["open", number, path, flags, bits] => {
            let flags = OFlags::from_bits_retain(self::number(flags)?) | OFlags::CLOEXEC;
            let file = fs::open(path, flags, mode(bits)?)?;
            files.insert(number.into(), file);
            Ok(String::new())
        }
        _ => on_attributes(files, words),
    }
}

fn on_attributes(files: &mut Files, words: &[&str]) -> Said {
    match *words {
        ["stat", path] => fs::stat(path).map(shown),
        ["lstat", path] => fs::lstat(path).map(shown),
        ["chmod", path, bits] => done(fs::chmod(path, mode(bits)?)),
        ["chown", path, user, group] => done(fs::chown(
            path,
            id(user).map(Uid::from_raw),
            id(group).map(Gid::from_raw),
        )),
        ["access", path, bits] => {
            let access = Access::from_bits_truncate(number(bits)?);
            done(fs::access(path, access))
        }
        ["faccess", path, bits] => {
            let access = Access::from_bits_truncate(number(bits)?);
            done(fs::accessat(CWD, path, access, AtFlags::EACCESS))
        }
        ["truncate", path, len] => {
            let file = fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            done(fs::ftruncate(file, number(len)?.into()))
        }
        ["touch", path] => done(fs::utimensat(CWD, path, &times(true), AtFlags::empty())),
        ["date", path] => done(fs::utimensat(CWD, path, &times(false), AtFlags::empty())),
        ["setxattr", path, name, value] => done(fs::setxattr(
            path,
            name,
            value.as_bytes(),
            fs::XattrFlags::empty(),
        )),
        ["getxattr", path, name] => {
            let mut value = [0u8; 256];
            let len = fs::getxattr(path, name, &mut value[..])?;
            Ok(String::from_utf8_lossy(&value[..len]).into_owned())
        }
        ["rmxattr", path, name] => done(fs::removexattr(path, name)),
        ["setacl", path, kind, entries] => {
            let value = list_value(entries).ok_or(Errno::INVAL)?;
            let flags = fs::XattrFlags::empty();
            done(fs::setxattr(path, list_name(kind), &value, flags))
        }
        ["getacl", path, kind] => {
            let mut value = [0u8; 256];
            let len = fs::getxattr(path, list_name(kind), &mut value[..])?;
            Ok(format!("{:?}", &value[..len]))
        }
        ["rmacl", path, kind] => done(fs::removexattr(path, list_name(kind))),
        ["umask", bits] => {
            let old = rustix::process::umask(mode(bits)?);
            Ok(format!("{:o}", old.bits()))
        }
        ["seteuid", user] => done(set_effective(id(user), None)),
        ["setegid", group] => done(set_effective(None, id(group))),
        ["groups", ref groups @ ..] => {
            let groups: Vec<Gid> = groups
                .iter()
                .filter_map(|g| id(g).map(Gid::from_raw))
                .collect();
            done(rustix::thread::set_thread_groups(&groups))
        }
        _ => on_files(files, words),
    }
}

/// The attribute that is an access control list.
fn list_name(kind: &str) -> &'static str {
    match kind {
        "access" => "system.posix_acl_access",
        _ => "system.posix_acl_default",
    }
}

/// The kernel's form of a list of tag:rights:id.
fn list_value(entries: &str) -> Option<Vec<u8>> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for entry in entries.split(',') {
        let mut words = entry.split(':').map(str::parse);
        let mut next = || -> Option<u32> { words.next()?.ok() };
        let (tag, rights, id) = (next()?, next()?, next()?);
        value.extend_from_slice(&(tag as u16).to_le_bytes());
        value.extend_from_slice(&(rights as u16).to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    Some(value)
}

fn on_files(files: &mut Files, words: &[&str]) -> Said {
    let file =
        |files: &Files, number: &str| files.get(number).map(rustix::fd::AsFd::as_fd).is_some();
    if let [_, number, ..] = *words
        && !file(files, number)
    {
        return Err(Errno::BADF);
    }
    let open = |number: &str| &files[number];
    match *words {
        ["close", number] => {
            drop(files.remove(number));
            Ok(String::new())
        }
        ["read", number] => {
            let mut bytes = [0u8; 64];
            let len = rustix::io::read(open(number), &mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
        }
        ["write", number, text] => {
            let len = rustix::io::write(open(number), text.as_bytes())?;
            Ok(len.to_string())
        }
        ["seek", number] => fs::seek(open(number), fs::SeekFrom::Start(0)).map(|at| at.to_string()),
        ["fstat", number] => fs::fstat(open(number)).map(shown),
        ["fchmod", number, bits] => done(fs::fchmod(open(number), mode(bits)?)),
        ["fchown", number, user, group] => done(fs::fchown(
            open(number),
            id(user).map(Uid::from_raw),
            id(group).map(Gid::from_raw),
        )),
        ["ftruncate", number, len] => done(fs::ftruncate(open(number), self::number(len)?.into())),
        ["fchdir", number] => done(rustix::process::fchdir(open(number))),
        ["flock", number, how] => done(fs::flock(open(number), operation(how))),
        ["lock", number, how] => done(fs::fcntl_lock(open(number), operation(how))),
        _ => Err(Errno::INVAL),
    }
}

/// Never one that waits: the test waits for each answer.
fn operation(how: &str) -> FlockOperation {
    match how {
        "shared" => FlockOperation::NonBlockingLockShared,
        "exclusive" => FlockOperation::NonBlockingLockExclusive,
        _ => FlockOperation::NonBlockingUnlock,
    }
}

fn set_effective(user: Option<u32>, group: Option<u32>) -> Result<(), Errno> {
    // The saved ids are the real ones, and stay.
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    match (user, group) {
        (Some(user), _) => rustix::thread::set_thread_res_uid(uid, Uid::from_raw(user), uid),
        (_, Some(group)) => rustix::thread::set_thread_res_gid(gid, Gid::from_raw(group), gid),
        _ => Err(Errno::INVAL),
    }
}

fn times(now: bool) -> fs::Timestamps {
    let time = fs::Timespec {
        tv_sec: 1,
        tv_nsec: if now { fs::UTIME_NOW } else { 0 },
    };
    fs::Timestamps {
        last_access: time,
        last_modification: time,
    }
}

fn shown(stat: fs::Stat) -> String {
    let size = match fs::FileType::from_raw_mode(stat.st_mode) {
        fs::FileType::Directory => 0,
        _ => stat.st_size,
    };
    let nlink = stat.st_nlink;
    format!(
        "{:o} {} {} {nlink} {size}",
        stat.st_mode, stat.st_uid, stat.st_gid
    )
}

fn list(path: &str) -> Said {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = fs::open(path, flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in fs::Dir::read_from(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names.join(","))
}
