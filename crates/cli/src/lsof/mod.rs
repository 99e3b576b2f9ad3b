//! `holdfast lsof`: who has which files of a pool open, mapped and locked, and who waits for whom.
//!
//! Invariants: no service is started for it, it takes no place in the session and no lock, so
//! nobody waits for it; what it shows was so while it looked, each line for itself.

mod look;
mod memory;
mod names;
mod people;
#[cfg(test)]
mod tests;

use crate::args::LsofArgs;
use crate::failure::{self, Failure, printed};
use crate::json::Json;
use crate::kv::escape;
use crate::{session, start};
use holdfast_client::abi;
use holdfast_client::attach::{self, AttachError, Attachment};
use holdfast_pmem::{Access, Medium, Region};
use holdfast_pool::Reader;
use holdfast_pool::layout::inode::{
    TYPE_BLOCK, TYPE_CHAR, TYPE_DIR, TYPE_FIFO, TYPE_MASK, TYPE_SOCKET, TYPE_SYMLINK,
};
use holdfast_pool::segment::META;
use holdfast_pool::session::INODE_VALUE;
use look::{Handle, Held, Look, Open};
pub use memory::Memory;
use memory::{Kind, Object};
use names::Names;
pub use names::stored_path;
use people::{Person, Users};
use std::collections::HashMap;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A lock that reaches to here ends nowhere.
const LAST_BYTE: u64 = i64::MAX as u64;

/// `lsof`. With paths, the status says whether anybody has any of them.
pub fn lsof(args: &LsofArgs, json: bool) -> Result<u8, Failure> {
    let shown = match attachment(&args.pool)? {
        Some(attachment) => {
            let memory = Memory::map(session::memory(&attachment)?)?;
            let wanted: Vec<_> = args.paths.iter().map(|path| normal(path)).collect();
            let mut shown = Shown::of(&memory, &trees(&attachment)?, &wanted);
            let status = attach::status(args.pool.as_os_str().as_bytes());
            shown.waiting = status.map_or(String::new(), |answer| answer.text().into());
            shown
        }
        None => Shown::default(),
    };
    let mut out = std::io::stdout().lock();
    printed(match json {
        true => writeln!(out, "{}", shown.json().render()),
        false => write!(out, "{}", shown.text()),
    })?;
    let nobody = shown.open.is_empty() && shown.held.is_empty() && !args.paths.is_empty();
    Ok(if nobody { failure::FAILED } else { failure::OK })
}

/// `None`: no service runs, so nobody has anything open.
fn attachment(pool: &Path) -> Result<Option<Attachment>, Failure> {
    if !pool.join(META).exists() {
        return Err(holdfast_service::Error::Missing { path: pool.into() }.into());
    }
    match attach::attach(pool.as_os_str().as_bytes(), None) {
        Ok(attachment) => Ok(Some(attachment)),
        Err(AttachError::NoService) => Ok(None),
        Err(AttachError::Silent) => Err(start::silent(pool).0),
        Err(e) => Err(e.into()),
    }
}

fn trees(attachment: &Attachment) -> Result<Region, Failure> {
    let (meta, len) = (attachment.meta.as_fd(), attachment.answer.meta_len as usize);
    Region::map(meta, 0, len, Access::ReadOnly, Medium::Memory)
        .map_err(|e| Failure::new(format!("the pool's trees cannot be mapped: {e}")))
}

/// A path below the pool's root, with a slash before each name and none at its end.
fn normal(path: &Path) -> Vec<u8> {
    let parts = path.as_os_str().as_bytes().split(|byte| *byte == b'/');
    let parts = parts.filter(|part| !part.is_empty() && *part != b".");
    parts.flat_map(|part| [b"/", part].concat()).collect()
}

/// A file that somebody has, and what it is called.
struct File {
    open: Open,
    path: Option<Vec<u8>>,
}

/// What is said.
#[derive(Default)]
struct Shown {
    people: Vec<Person>,
    open: Vec<File>,
    held: Vec<Held>,
    /// A path of each file that is locked.
    paths: HashMap<u64, Option<Vec<u8>>>,
    waiting: String,
}

impl Shown {
    /// Of files with these paths, or below them; without any, of all.
    fn of(memory: &Memory, meta: &Region, wanted: &[Vec<u8>]) -> Shown {
        let look = Look::at(memory);
        let numbers = look.open.iter().map(|open| open.object.ino).collect();
        let mut names = Names::of(memory, Reader::new(meta), &numbers);
        names.complete(&look.open, !wanted.is_empty());
        let users = Users::read();
        let mut shown = Shown {
            people: look
                .processes
                .iter()
                .map(|p| users.process(p.pid))
                .collect(),
            ..Shown::default()
        };
        for open in look.open {
            let paths = names.paths(&open.object, open.description.as_deref());
            let path = match wanted {
                [] => Some(paths.into_iter().next()),
                wanted => paths.into_iter().find(|path| is_in(path, wanted)).map(Some),
            };
            if let Some(path) = path {
                shown.paths.insert(open.object.ino, path.clone());
                shown.open.push(File { open, path });
            }
        }
        let held = look.held.into_iter();
        shown.held = held
            .filter(|held| shown.paths.contains_key(&held.ino))
            .collect();
        shown
    }

    fn text(&self) -> String {
        let head = [
            "COMMAND", "PID", "USER", "FD", "TYPE", "OFFSET", "SIZE", "PATH",
        ];
        let files = self.open.iter().map(|file| {
            let (who, object) = (&self.people[file.open.process], &file.open.object);
            let offset = offset(&file.open).map_or("-".into(), |offset| offset.to_string());
            let size = object.size.to_string();
            let path = path_of(object, file.path.as_deref());
            let [command, pid, user] = columns(who);
            let fd = handle(&file.open);
            [
                command,
                pid,
                user,
                fd,
                kind(object).into(),
                offset,
                size,
                path,
            ]
        });
        let locks = self.held.iter().map(|held| {
            let [command, pid, user] = columns(&self.people[held.process]);
            let [kind, mode, first, last] = lock(held);
            let path = self.paths.get(&held.ino).and_then(Option::as_deref);
            let path = path.map_or("?".into(), escape::shown) + &self.whom(held);
            [command, pid, user, kind, mode, first, last, path]
        });
        let lock_head = [
            "COMMAND", "PID", "USER", "LOCK", "MODE", "FIRST", "LAST", "PATH",
        ];
        let mut text = table(head, files.collect());
        let locks = table(lock_head, locks.collect());
        let between = if text.is_empty() || locks.is_empty() {
            ""
        } else {
            "\n"
        };
        text = text + between + &locks;
        if !self.waiting.is_empty() {
            text += &format!("\n{}\n", self.waiting);
        }
        text
    }

    /// Whom somebody waits for.
    fn whom(&self, held: &Held) -> String {
        match held.waits_for {
            None => String::new(),
            Some(None) => " (waits)".into(),
            Some(Some(holder)) => format!(" (waits for process {})", self.people[holder].pid),
        }
    }

    fn json(&self) -> Json {
        let open = self.open.iter().map(|file| {
            let mut fields = person_json(&self.people[file.open.process]);
            fields.extend(open_json(&file.open));
            fields.extend(path_json(file.path.as_deref()));
            Json::Object(fields)
        });
        let held = self.held.iter().map(|held| {
            let mut fields = person_json(&self.people[held.process]);
            fields.extend(held_json(held));
            let path = self.paths.get(&held.ino).and_then(Option::as_deref);
            fields.extend(path_json(path));
            if let Some(holder) = held.waits_for {
                let pid = holder.map_or(0, |holder| self.people[holder].pid);
                fields.push(("waits_for", Json::Number(pid.into())));
            }
            Json::Object(fields)
        });
        let mut fields = vec![
            ("open", Json::List(open.collect())),
            ("locks", Json::List(held.collect())),
        ];
        if !self.waiting.is_empty() {
            fields.push(("waiting", Json::Text(self.waiting.clone())));
        }
        Json::Object(fields)
    }
}

fn is_in(path: &[u8], wanted: &[Vec<u8>]) -> bool {
    wanted.iter().any(|wanted| {
        let rest = path.strip_prefix(&wanted[..]);
        rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    })
}

fn columns(who: &Person) -> [String; 3] {
    let pid = match who.pid {
        0 => "-".into(),
        pid => pid.to_string(),
    };
    [who.command.clone(), pid, who.user.clone()]
}

fn access(open: &Open) -> Option<&'static str> {
    let flags = open.description.as_ref()?.flags;
    match flags & abi::O_ACCMODE {
        _ if flags & abi::O_PATH != 0 => None,
        abi::O_RDONLY => Some("r"),
        abi::O_WRONLY => Some("w"),
        abi::O_RDWR => Some("u"),
        _ => None,
    }
}

fn handle(open: &Open) -> String {
    let access = access(open).unwrap_or_default();
    match open.handle {
        Handle::Directory => "cwd".into(),
        Handle::Mapping => "map".into(),
        Handle::Library => format!("lib{access}"),
        Handle::Descriptor(fd) => format!("{fd}{access}"),
    }
}

fn offset(open: &Open) -> Option<u64> {
    let is_descriptor = matches!(open.handle, Handle::Descriptor(_));
    let is_file = !matches!(kind(&open.object), "dir" | "pipe" | "sock" | "chr" | "blk");
    let description = open
        .description
        .as_ref()
        .filter(|_| is_descriptor && is_file);
    description.map(|description| description.offset)
}

fn kind(object: &Object) -> &'static str {
    match object.mode & TYPE_MASK {
        _ if object.state & INODE_VALUE != 0 => "value",
        TYPE_DIR => "dir",
        TYPE_FIFO => "pipe",
        TYPE_SOCKET => "sock",
        TYPE_SYMLINK => "link",
        TYPE_CHAR => "chr",
        TYPE_BLOCK => "blk",
        _ => "file",
    }
}

fn path_of(object: &Object, path: Option<&[u8]>) -> String {
    let deleted = names::is_removed(object);
    match (path.map(escape::shown), deleted) {
        (Some(path), false) => path,
        (Some(path), true) => path + " (deleted)",
        (None, false) => "?".into(),
        (None, true) => "(deleted)".into(),
    }
}

/// Kind, mode, first and last byte.
fn lock(held: &Held) -> [String; 4] {
    let Some(lock) = held.lock else {
        return ["call".into(), "write".into(), "-".into(), "-".into()];
    };
    let range = match lock.kind {
        Kind::Whole => ["-".into(), "-".into()],
        _ if lock.last >= LAST_BYTE => [lock.first.to_string(), "end".into()],
        _ => [lock.first.to_string(), lock.last.to_string()],
    };
    let [first, last] = range;
    [
        lock_kind(lock.kind).into(),
        mode(lock.exclusive).into(),
        first,
        last,
    ]
}

fn lock_kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Posix => "posix",
        Kind::Description => "ofd",
        Kind::Whole => "flock",
    }
}

fn mode(exclusive: bool) -> &'static str {
    if exclusive { "write" } else { "read" }
}

/// Lines with columns as wide as they need; nothing where there is no line.
fn table(head: [&str; 8], lines: Vec<[String; 8]>) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let head = head.map(String::from);
    let all = || std::iter::once(&head).chain(&lines);
    let widths: [usize; 8] =
        std::array::from_fn(|n| all().map(|line| line[n].chars().count()).max().unwrap_or(0));
    let right = |n| matches!(n, 1 | 5 | 6);
    let line = |line: &[String; 8]| {
        let cells = line.iter().zip(widths).enumerate();
        let cells = cells.map(|(n, (cell, width))| match n {
            7 => cell.clone(),
            n if right(n) => format!("{cell:>width$} "),
            _ => format!("{cell:<width$} "),
        });
        cells.collect::<String>() + "\n"
    };
    all().map(line).collect()
}

fn person_json(who: &Person) -> Vec<(&'static str, Json)> {
    vec![
        ("command", Json::Text(who.command.clone())),
        ("pid", Json::Number(who.pid.into())),
        ("user", Json::Text(who.user.clone())),
    ]
}

fn open_json(open: &Open) -> Vec<(&'static str, Json)> {
    let by = match open.handle {
        Handle::Directory => "cwd",
        Handle::Mapping => "map",
        Handle::Library => "library",
        Handle::Descriptor(_) => "descriptor",
    };
    let mut fields = vec![("by", Json::Text(by.into()))];
    if let Handle::Descriptor(fd) = open.handle {
        fields.push(("fd", Json::Number(fd.into())));
    }
    let access = access(open).map(|access| ("access", Json::Text(access.into())));
    fields.extend(access);
    fields.push(("type", Json::Text(kind(&open.object).into())));
    fields.extend(offset(open).map(|offset| ("offset", Json::Number(offset))));
    fields.extend([
        ("size", Json::Number(open.object.size)),
        ("inode", Json::Number(open.object.ino)),
        ("deleted", Json::Bool(names::is_removed(&open.object))),
    ]);
    fields
}

fn held_json(held: &Held) -> Vec<(&'static str, Json)> {
    let Some(lock) = held.lock else {
        return vec![("lock", Json::Text("call".into()))];
    };
    let mut fields = vec![
        ("lock", Json::Text(lock_kind(lock.kind).into())),
        ("mode", Json::Text(mode(lock.exclusive).into())),
    ];
    if lock.kind != Kind::Whole {
        fields.push(("first", Json::Number(lock.first)));
        let last = Some(lock.last).filter(|last| *last < LAST_BYTE);
        fields.extend(last.map(|last| ("last", Json::Number(last))));
    }
    fields
}

fn path_json(path: Option<&[u8]>) -> Option<(&'static str, Json)> {
    path.map(|path| ("path", Json::Text(escape::shown(path))))
}
