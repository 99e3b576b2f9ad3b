//! Which paths lie in the pool.
//!
//! Invariants: the decision is by spelling only (`.`, `..` and repeated slashes are understood,
//! symbolic links of the host are not followed); a path that passes the directory at which the pool
//! appears lies in the pool from there on.

/// Components of an absolute, normalised path such as `/hf` or `/srv/data`.
fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|c| !c.is_empty())
}

/// If the absolute `path` enters the pool that appears at `at`, what follows from there (without
/// leading slashes; empty for the root itself).
pub fn inside<'p>(at: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    if let Some(rest) = plain(at, path) {
        return Some(rest);
    }
    if !path.windows(2).any(|w| w == b"//" || w == b"/.") {
        return None;
    }
    walk(at, path)
}

/// The common case: `path` starts with `at` literally.
fn plain<'p>(at: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(at)?;
    match rest.first() {
        None => Some(rest),
        Some(b'/') => Some(trim(rest)),
        Some(_) => None,
    }
}

fn trim(mut path: &[u8]) -> &[u8] {
    while let [b'/', rest @ ..] = path {
        path = rest;
    }
    path
}

fn walk<'p>(at: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let wanted = components(at).count();
    let (mut depth, mut matched) = (0, 0);
    let mut rest = trim(path);
    while !rest.is_empty() {
        let end = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
        let (name, tail) = rest.split_at(end);
        rest = trim(tail);
        match name {
            b"." => {}
            b".." => {
                depth = usize::saturating_sub(depth, 1);
                matched = matched.min(depth);
            }
            _ => {
                if matched == depth && components(at).nth(depth) == Some(name) {
                    matched += 1;
                }
                depth += 1;
            }
        }
        if matched == wanted && depth == wanted {
            return Some(rest);
        }
    }
    None
}

/// Whether a relative path could reach `at` from a working directory of the host: its spelling
/// holds a component of `at` or climbs.
pub fn may_reach(at: &[u8], relative: &[u8]) -> bool {
    components(relative).any(|c| components(at).any(|a| a == c))
}

/// What a path of the kernel's per-process directories names.
pub fn descriptor_link(path: &[u8], pid: u32) -> Option<u32> {
    match path {
        b"/dev/stdin" => return Some(0),
        b"/dev/stdout" => return Some(1),
        b"/dev/stderr" => return Some(2),
        _ => {}
    }
    if let Some(n) = path.strip_prefix(b"/dev/fd/") {
        return number(n);
    }
    number(own_directory(path, pid)?.strip_prefix(b"/fd/")?)
}

/// What follows the kernel's directory for process `pid`.
fn own_directory(path: &[u8], pid: u32) -> Option<&[u8]> {
    let rest = path.strip_prefix(b"/proc/")?;
    let slash = rest.iter().position(|b| *b == b'/')?;
    let (who, tail) = rest.split_at(slash);
    let own = who == b"self" || who == b"thread-self" || number(who) == Some(pid);
    own.then_some(tail)
}

/// A link in there that leads to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Cwd,
    Root,
    Descriptor(u32),
}

/// A path that goes on behind such a link: the link, and what follows (from `/` on for the root).
pub fn behind_link(path: &[u8], pid: u32) -> Option<(Link, &[u8])> {
    let tail = own_directory(path, pid)?;
    if let Some(rest) = tail.strip_prefix(b"/root") {
        return (rest.first() == Some(&b'/')).then_some((Link::Root, rest));
    }
    let (link, rest) = match tail.strip_prefix(b"/cwd") {
        Some(rest) => (Link::Cwd, rest),
        None => {
            let tail = tail.strip_prefix(b"/fd/")?;
            let end = tail.iter().position(|b| *b == b'/')?;
            (Link::Descriptor(number(&tail[..end])?), &tail[end..])
        }
    };
    let rest = rest.strip_prefix(b"/")?;
    Some((
        link,
        if trim(rest).is_empty() {
            b"."
        } else {
            trim(rest)
        },
    ))
}

fn number(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() || digits.len() > 9 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0, |n, d| n * 10 + u32::from(d - b'0')))
}
