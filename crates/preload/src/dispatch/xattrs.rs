//! Extended attributes: getxattr(2), setxattr(2), listxattr(2), removexattr(2) and their variants
//! on links and descriptors.
//!
//! Invariant: names and sizes are checked as the kernel checks them before the client is called.

use super::args::{self, EINVAL, Errno};
use super::data::object;
use super::outcome::{Outcome, Stop, count, done};
use super::place::{AT_FDCWD, DESCRIPTOR, in_pool};
use super::process::Process;
use holdfast_client::abi::{
    XATTR_CREATE, XATTR_LIST_MAX, XATTR_NAME_MAX, XATTR_REPLACE, XATTR_SIZE_MAX,
};
use holdfast_client::{Base, Target};

type Args = [usize; 6];

const ERANGE: Errno = 34;
const E2BIG: Errno = 7;

fn on_path(p: &Process, a: &Args, nofollow: bool, f: impl FnOnce(Target) -> Outcome) -> Outcome {
    in_pool(p, AT_FDCWD as usize, a[0], |base, path| {
        match (base, path) {
            (Base::Ofd(ofd), DESCRIPTOR) => f(Target::Ofd(ofd)),
            _ => f(Target::Path {
                base,
                path,
                nofollow,
            }),
        }
    })
}

fn on_fd(p: &Process, a: &Args, f: impl FnOnce(Target) -> Outcome) -> Outcome {
    f(Target::Ofd(object(p, a[0])?))
}

/// The attribute name at `addr`: 1 to 255 bytes.
fn with_name(addr: usize, f: impl FnOnce(&[u8]) -> Outcome) -> Outcome {
    let mut name = [0; XATTR_NAME_MAX + 1];
    let len = args::read_cstr(addr, &mut name).map_err(|e| match e {
        args::ENAMETOOLONG => Stop::Errno(ERANGE),
        e => Stop::Errno(e),
    })?;
    if len == 0 {
        return Err(ERANGE.into());
    }
    f(&name[..len])
}

fn get(p: &Process, a: &Args, target: Target) -> Outcome {
    with_name(a[1], |name| {
        let out = args::target(a[2], a[3].min(XATTR_SIZE_MAX));
        p.with_caller(|c| count(p.client.getxattr(c, target, name, out)))
    })
}

fn set(p: &Process, a: &Args, target: Target) -> Outcome {
    if a[4] as u32 & !(XATTR_CREATE | XATTR_REPLACE) != 0 {
        return Err(EINVAL.into());
    }
    with_name(a[1], |name| {
        if a[3] > XATTR_SIZE_MAX {
            return Err(E2BIG.into());
        }
        let value = args::source(a[2], a[3]);
        p.with_caller(|c| done(p.client.setxattr(c, target, name, value, a[4] as u32)))
    })
}

fn list(p: &Process, a: &Args, target: Target) -> Outcome {
    let out = args::target(a[1], a[2].min(XATTR_LIST_MAX));
    p.with_caller(|c| count(p.client.listxattr(c, target, out)))
}

fn remove(p: &Process, a: &Args, target: Target) -> Outcome {
    with_name(a[1], |name| {
        p.with_caller(|c| done(p.client.removexattr(c, target, name)))
    })
}

macro_rules! forms {
    ($work:ident, $path:ident, $link:ident, $fd:ident) => {
        pub fn $path(p: &Process, a: &Args) -> Outcome {
            on_path(p, a, false, |target| $work(p, a, target))
        }

        pub fn $link(p: &Process, a: &Args) -> Outcome {
            on_path(p, a, true, |target| $work(p, a, target))
        }

        pub fn $fd(p: &Process, a: &Args) -> Outcome {
            on_fd(p, a, |target| $work(p, a, target))
        }
    };
}

forms!(get, getxattr, lgetxattr, fgetxattr);
forms!(set, setxattr, lsetxattr, fsetxattr);
forms!(list, listxattr, llistxattr, flistxattr);
forms!(remove, removexattr, lremovexattr, fremovexattr);
