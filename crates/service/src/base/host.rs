//! The file system under a pool: what it can promise beyond the kind of medium.
//!
//! Invariants: it is examined again each time, and nothing about it is stored; what cannot be found
//! out raises no doubt, because the medium alone already promises no more than it proves.

use holdfast_pmem::Medium;
use holdfast_pool::session::{
    PROTECTED_FIELD, PROTECTED_FIFOS, PROTECTED_REGULAR, PROTECTED_SYMLINKS,
};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{Mode, OFlags};
use std::os::fd::AsRawFd;

/// Types of file systems that keep their files on another machine, or leave them to a process.
const REMOTE: [&str; 13] = [
    "nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "afs", "coda", "lustre", "gpfs",
    "vboxsf", "fuseblk",
];
/// Options with which a file system does not have its device write out what it caches.
const UNORDERED: [&str; 5] = [
    "nobarrier",
    "barrier=0",
    "barrier=none",
    "fsync_mode=nobarrier",
    "volatile",
];

/// How the host protects directories that everybody may write to: `PROTECTED_*` of session memory.
/// What cannot be read is taken to be as most distributions have it.
pub fn protected() -> u32 {
    let read = |name: &str, usual: u32| {
        let text = std::fs::read_to_string(format!("/proc/sys/fs/protected_{name}"));
        let value = text.ok().and_then(|text| text.trim().parse().ok());
        value.unwrap_or(usual).min(PROTECTED_FIELD)
    };
    PROTECTED_SYMLINKS * read("symlinks", 1).min(1)
        + PROTECTED_REGULAR * read("regular", 2)
        + PROTECTED_FIFOS * read("fifos", 1)
}

/// One sentence, without its full stop, when an fsync on the file system of `file` may not survive
/// the loss of power; `None` on memory, of which nobody expects it.
pub fn doubt(file: BorrowedFd<'_>, medium: Medium) -> Option<String> {
    if !medium.survives_power_loss() {
        return None;
    }
    let mount = Mount::of(file)?;
    mount.doubt().or_else(|| device_doubt(file))
}

/// A line of `/proc/self/mountinfo`, as far as it matters.
struct Mount {
    kind: String,
    /// Those of this mount and those of the file system.
    options: Vec<String>,
}

impl Mount {
    fn of(file: BorrowedFd<'_>) -> Option<Mount> {
        let info = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
        let info = std::fs::read_to_string(info).ok()?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        mounts
            .lines()
            .find(|line| line.split(' ').next() == Some(id.trim()))
            .and_then(Mount::parse)
    }

    fn parse(line: &str) -> Option<Mount> {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let kind = system.next()?.to_owned();
        let lists = [mount.split(' ').nth(5)?, system.nth(1).unwrap_or("")];
        let options = lists.iter().flat_map(|list| list.split(','));
        Some(Mount {
            kind,
            options: options.map(str::to_owned).collect(),
        })
    }

    fn doubt(&self) -> Option<String> {
        let kind = &self.kind;
        if REMOTE.contains(&kind.as_str()) || kind == "fuse" || kind.starts_with("fuse.") {
            let what = "whether an fsync survives the loss of power depends on its server";
            return Some(format!("the pool is on {kind}: {what}"));
        }
        let unordered = |option: &&String| UNORDERED.contains(&option.as_str());
        if let Some(option) = self.options.iter().find(unordered) {
            let what = "an fsync may not survive the loss of power";
            return Some(format!(
                "the pool is on {kind} mounted with {option}: {what}"
            ));
        }
        if kind == "overlay" {
            let what = "the pool lasts only as long as the container or the upper layer";
            return Some(format!("the pool is on an overlay: {what}"));
        }
        None
    }
}

/// A doubt about the block device that has the file, when it is known to lie in memory.
fn device_doubt(file: BorrowedFd<'_>) -> Option<String> {
    let device = rustix::fs::fstat(file).ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let entry = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let name = entry.file_name()?.to_str()?;
    let numbered = |prefix: &str| {
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let behind = std::fs::read_to_string(entry.join("loop/backing_file"));
    let in_memory = numbered("ram")
        || numbered("zram")
        || behind.is_ok_and(|path| is_in_memory(path.trim_end_matches('\n')));
    in_memory
        .then(|| format!("the pool is on {name}, which lies in memory: nothing survives there"))
}

fn is_in_memory(path: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty());
    file.is_ok_and(|file| Medium::detect(file.as_fd()) == Medium::Memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubt_of(line: &str) -> Option<String> {
        Mount::parse(line).unwrap().doubt()
    }

    #[test]
    fn mounts_that_cannot_promise_are_told_from_those_that_can() {
        for fine in [
            "29 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard",
            "29 1 254:0 / / rw - ext4 /dev/vda rw,barrier=1",
            "31 29 0:27 / /b rw,relatime - btrfs /dev/vdb rw,nodatacow,space_cache=v2",
            "31 29 8:1 /a /b rw master:3 propagate_from:1 - xfs /dev/sda1 rw,attr2,noquota",
        ] {
            assert_eq!(doubt_of(fine), None, "{fine}");
        }
        for (poor, word) in [
            ("31 29 0:50 / /n rw - nfs4 h:/export rw,vers=4.2", "nfs4"),
            (
                "31 29 0:50 / /n rw - fuse.sshfs h: rw,user_id=0",
                "fuse.sshfs",
            ),
            ("31 29 0:50 / /n rw - 9p tag rw,trans=virtio", "9p"),
            ("31 29 0:50 / /n rw - cifs //h/s rw", "cifs"),
            (
                "31 29 0:50 / / rw - overlay overlay rw,lowerdir=/a",
                "overlay",
            ),
            ("31 29 0:50 / / rw - overlay o rw,volatile", "volatile"),
            (
                "31 29 8:1 / /x rw - ext4 /dev/sda1 rw,nobarrier",
                "nobarrier",
            ),
            (
                "31 29 8:1 / /x rw - ext3 /dev/sda1 rw,barrier=0",
                "barrier=0",
            ),
        ] {
            let doubt = doubt_of(poor);
            assert!(doubt.is_some_and(|d| d.contains(word)), "{poor}");
        }
    }

    #[test]
    fn lines_that_are_cut_short_are_passed_over() {
        let line = "31 29 8:1 / /x rw - ext4 /dev/sda1 rw,nobarrier";
        for end in 0..line.len() {
            let _ = Mount::parse(&line[..end]).map(|mount| mount.doubt());
        }
    }
}
