//! A volume as the one file of a FUSE file system, for loop devices and for programs.
//!
//! Invariants: the file system is unmounted when the export ends, and what was written is durable
//! then; a file that was made for it is removed; others than the user and root are refused.

mod place;
mod served;

use crate::args::Export;
use crate::failure::Failure;
use crate::publish::{Clients, publish};
use crate::signals::Signals;
use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use holdfast::Volume;
use place::Place;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{configure_io_flusher_behavior, geteuid};
use served::Served;
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Requests are answered by so many threads at most.
const THREADS_MAX: usize = 8;
/// How long programs may take to close the file before we say that they have it open.
const CLOSING: Duration = Duration::from_millis(500);

/// Exports the volume until a signal comes or somebody unmounts it.
pub fn serve(args: &Export, volume: Volume, file: &Path, signals: Signals) -> Result<(), Failure> {
    // Memory that is needed to write to the volume must not wait for a write to the volume. Only
    // root may say so.
    let _ = configure_io_flusher_behavior(true);
    let place = Arc::new(Place::take(file)?);
    let clients = Clients::default();
    let mounted = mount((&volume, &clients), place.path());
    let mut session = mounted.inspect_err(|_| place.leave())?;
    let shown = place.path().display().to_string();
    let _published = publish(args, &volume, ("fuse", shown), &clients);
    let unmounter = session.unmount_callable();
    let _ = writeln!(io::stdout(), "{}", place.path().display());
    let end = {
        let (place, volume) = (place.clone(), volume.clone());
        move || end_at_signal(signals, unmounter, &place, &volume)
    };
    thread::spawn(end);
    let served = session.run();
    let flushed = volume.flush();
    place.leave();
    served.map_err(|e| Failure::io("the FUSE file system", &e))?;
    Ok(flushed?)
}

/// Mounts the file system. Root, whose loop devices want it, is let in if that is allowed.
fn mount((volume, clients): (&Volume, &Clients), path: &Path) -> Result<Session<Served>, Failure> {
    let mut config = Config::default();
    let access = match volume.writes() {
        true => MountOption::RW,
        false => MountOption::RO,
    };
    config.mount_options = vec![MountOption::FSName("holdfast".into()), access];
    let threads = thread::available_parallelism().map_or(2, |n| n.get());
    config.n_threads = Some(threads.clamp(2, THREADS_MAX));
    let new = |config: &Config| {
        let served = Served::new(volume.clone(), clients.clone());
        Session::new(served, path, config)
    };
    if !geteuid().is_root() {
        config.acl = SessionACL::RootAndOwner;
        match new(&config) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied && has_device() => {
                eprintln!("holdfast: root, and so a loop device, cannot open the file.");
                eprintln!("Fix: put a line user_allow_other into /etc/fuse.conf");
            }
            mounted => return mounted.map_err(|e| cannot_mount(path, &e)),
        }
    }
    config.acl = SessionACL::Owner;
    new(&config).map_err(|e| cannot_mount(path, &e))
}

const DEVICE: &str = "/dev/fuse";

/// Whether this user can use FUSE.
fn has_device() -> bool {
    let mut device = std::fs::OpenOptions::new();
    device.read(true).write(true).open(DEVICE).is_ok()
}

pub fn cannot_mount(path: &Path, error: &io::Error) -> Failure {
    if !Path::new(DEVICE).exists() {
        return Failure::new(format!("there is no FUSE here: no {DEVICE}"))
            .fix("as root: modprobe fuse; in a container: pass the device /dev/fuse to it");
    }
    if !has_device() {
        return Failure::new(format!("this user may not open {DEVICE}"))
            .fix(format!("run it as root, or as root: chmod 666 {DEVICE}"));
    }
    let text = error.to_string();
    let why = match error.kind() {
        io::ErrorKind::NotFound => "there is no fusermount3",
        _ => text.lines().next().unwrap_or_default().trim(),
    };
    let failure = Failure::new(format!("cannot mount on {}: {why}", path.display()));
    failure.fix("run it as root, or install fusermount3 (package fuse3) and own the file")
}

/// Ends the session when a signal comes; at a second one, ends the process.
fn end_at_signal(
    mut signals: Signals,
    unmounter: SessionUnmounter,
    place: &Place,
    volume: &Volume,
) {
    signals.wait_for_end();
    let path = place.path();
    detach(unmounter, path);
    place.leave();
    thread::sleep(CLOSING);
    // Still here: the session is over, and the process with it, when the last has closed it.
    eprintln!("holdfast: {} is still in use.", path.display());
    eprintln!(
        "Fix: umount what is on it, losetup -d its loop device, or signal again to cut it off"
    );
    signals.wait_for_end();
    let lost = match volume.flush() {
        Ok(()) => Failure::new("the export ended while it was in use"),
        Err(e) => e.into(),
    };
    std::process::exit(lost.say().into());
}

/// Takes the file system off the file, even if it is in use.
fn detach(mut unmounter: SessionUnmounter, path: &Path) {
    if unmounter.unmount().is_err() {
        let _ = unmount(path, UnmountFlags::DETACH);
    }
}

/// The path without symbolic links and dots, of a file that exists.
fn whole(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize()
}
