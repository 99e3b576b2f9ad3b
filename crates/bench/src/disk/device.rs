//! The file system of a directory, and the devices whose flushes are counted.
//!
//! Invariants: flushes are counted for whole devices, since partitions have no such count; a device
//! made of others is replaced by those.

use crate::error::{Error, Result};
use crate::worker::disk::counter::Counter;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The file system under a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Under {
    /// As `mount` calls it.
    pub kind: String,
    /// Names of whole devices; none where there is none or it is not known.
    pub devices: Vec<String>,
}

impl Under {
    pub fn of(dir: &Path) -> Result<Under> {
        let mounts = fs::read_to_string("/proc/self/mountinfo");
        let mounts = mounts.map_err(Error::io("/proc/self/mountinfo"))?;
        let dir = fs::canonicalize(dir).map_err(Error::io(dir.display()))?;
        let (kind, source) = mount(&mounts, &dir)
            .ok_or_else(|| Error::Failed(format!("no mount holds {}", dir.display())))?;
        let number = fs::metadata(&dir).map_err(Error::io(dir.display()))?.dev();
        let mut devices = Vec::new();
        // File systems over several devices have numbers of no device.
        let source = fs::metadata(&source)
            .ok()
            .filter(|m| m.file_type().is_block_device());
        for number in std::iter::once(number).chain(source.map(|m| m.rdev())) {
            if devices.is_empty() {
                whole(&sys(number), &mut devices);
            }
        }
        Ok(Under { kind, devices })
    }

    /// Where flushes of the devices are counted; nowhere when one of them does not count.
    pub fn counter(&self) -> Counter {
        let stat = |name: &String| PathBuf::from(format!("/sys/block/{name}/stat"));
        let counter = Counter::Devices(self.devices.iter().map(stat).collect());
        match self.devices.is_empty() || counter.read().is_none() {
            true => Counter::Nothing,
            false => counter,
        }
    }
}

/// A counter on a command line, as `Counter::parse` reads it.
pub fn word(counter: &Counter) -> String {
    let list = |files: &[PathBuf]| {
        let all: Vec<_> = files.iter().map(|f| f.display().to_string()).collect();
        all.join(",")
    };
    match counter {
        Counter::Devices(files) => format!("stat:{}", list(files)),
        Counter::Trace(file) => format!("trace:{}", file.display()),
        Counter::Nothing => "none".into(),
    }
}

/// Kind and source of the last mount that holds the directory.
fn mount(mountinfo: &str, dir: &Path) -> Option<(String, String)> {
    let held = |line: &str| -> Option<(usize, (String, String))> {
        let (place, rest) = line.split_once(" - ")?;
        let point = place.split(' ').nth(4)?.replace("\\040", " ");
        let mut words = rest.split(' ');
        let what = (words.next()?.to_owned(), words.next()?.to_owned());
        dir.starts_with(&point).then_some((point.len(), what))
    };
    let mounts = mountinfo.lines().filter_map(held);
    mounts.max_by_key(|(len, _)| *len).map(|(_, what)| what)
}

fn sys(number: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

/// Adds the whole devices of a device in sysfs.
fn whole(device: &Path, out: &mut Vec<String>) {
    let Ok(mut device) = fs::canonicalize(device) else {
        return;
    };
    if device.join("partition").exists() {
        device.pop();
    }
    let slaves = fs::read_dir(device.join("slaves")).into_iter().flatten();
    let slaves: Vec<PathBuf> = slaves.flatten().map(|entry| entry.path()).collect();
    if !slaves.is_empty() {
        return slaves.iter().for_each(|slave| whole(slave, out));
    }
    if let Some(name) = device.file_name().and_then(|name| name.to_str())
        && !out.iter().any(|known| known == name)
    {
        out.push(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_counts() {
        let text = "1 0 254:0 / / rw - ext4 /dev/vda rw\n\
            2 1 0:30 / /a\\040b rw shared:1 - xfs /dev/vdb rw\n\
            3 1 0:31 / /a rw - tmpfs tmpfs rw\n";
        let at = |dir: &str| mount(text, Path::new(dir)).unwrap().0;
        assert_eq!(at("/x/y"), "ext4");
        assert_eq!(at("/a b/c"), "xfs");
        assert_eq!(at("/a/c"), "tmpfs");
        assert_eq!(at("/ab"), "ext4");
        assert_eq!(mount("", Path::new("/")), None);
    }

    #[test]
    fn any_directory_has_a_file_system() {
        let under = Under::of(&std::env::temp_dir()).unwrap();
        assert!(!under.kind.is_empty());
        let counter = under.counter();
        assert!(counter == Counter::Nothing || counter.read().is_some());
        assert!(Under::of(Path::new("/nowhere/at/all")).is_err());
    }

    #[test]
    fn counters_travel_on_a_command_line() {
        for counter in [
            Counter::Devices(vec!["/a".into(), "/b".into()]),
            Counter::Trace("/t".into()),
            Counter::Nothing,
        ] {
            assert_eq!(Counter::parse(word(&counter).as_ref()), Some(counter));
        }
        assert_eq!(Counter::parse("disk".as_ref()), None);
    }

    #[test]
    fn partitions_and_mapped_devices_stand_for_whole_ones() {
        let dir = std::env::temp_dir().join(format!("holdfast-sys.{}", std::process::id()));
        fs::create_dir_all(dir.join("sda/sda1")).unwrap();
        fs::write(dir.join("sda/sda1/partition"), "1").unwrap();
        fs::create_dir_all(dir.join("dm-0/slaves")).unwrap();
        let link = dir.join("dm-0/slaves/sda1");
        std::os::unix::fs::symlink(dir.join("sda/sda1"), link).unwrap();
        let mut out = Vec::new();
        whole(&dir.join("dm-0"), &mut out);
        whole(&dir.join("sda"), &mut out);
        assert_eq!(out, ["sda"]);
        fs::remove_dir_all(&dir).unwrap();
    }
}
