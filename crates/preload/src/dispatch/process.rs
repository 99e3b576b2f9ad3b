//! This process's state of its session.
//!
//! Invariants: it is set up once before the program runs and freed only if another takes its place
//! (`leaving`); credentials are a snapshot, of the first time that they are needed, which is before
//! the program changes them; it is replaced whole whenever that happens; ids in it are the pool's.

use super::nr;
use super::pool::Pool;
use crate::calls;
use crate::sys::{self, Fd};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::*};
use holdfast_client::id_map::{IdMap, OVERFLOW};
use holdfast_client::{Caller, IdMaps, MapSettings, Stat, TraceSettings};

/// Environment variables that every program of the session gets.
pub const VARIABLES: usize = 3;

/// Descriptors that Holdfast keeps open in every process.
pub const INTERNAL: usize = 7;

/// Ids as of the last change.
struct Credentials {
    fs_uid: u32,
    fs_gid: u32,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    privileged: bool,
    /// Whether the real user is root in its namespace.
    root: bool,
    /// The user namespace, where its ids are not the pool's.
    ids: Option<IdMaps>,
}

/// The process.
pub struct Process {
    pub client: Pool,
    /// Absolute path under which the pool appears.
    pub at: Box<[u8]>,
    /// The kernel's working directory while that of the process is in the pool: a removed one.
    pub parking_fd: u32,
    /// Where the kernel's pipes and sockets with a name in the pool are.
    pub special_dir: Box<[u8]>,
    /// Path of the running program if it lies in the pool.
    pub exe: Option<Box<[u8]>>,
    /// What descriptors of pool files duplicate.
    pub base_fd: u32,
    /// The data segment, for mappings.
    pub data_fd: u32,
    /// Session memory and the other segments.
    pub segments: [u32; 3],
    /// `--keep-mapped`.
    pub keep_mapped: bool,
    /// What `--map` asked for.
    pub map: Option<MapSettings>,
    /// What `--trace` asked for.
    pub trace: Option<TraceSettings>,
    /// Our environment variables, as `NAME=value` with NUL.
    pub env: [Box<[u8]>; VARIABLES],
    internal: [u32; INTERNAL],
    /// Whether the program may look at them.
    shown: AtomicBool,
    pid: AtomicU32,
    /// Null until somebody needs them: many programs touch no file of the pool.
    credentials: AtomicPtr<Credentials>,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());

/// The process, once `install` ran.
#[inline]
pub fn process() -> Option<&'static Process> {
    let p = PROCESS.load(Acquire);
    // SAFETY: null or leaked by `publish`, and only shared from then on. `Retired` ends it, when
    // the only thread is in no call that may still have this reference.
    unsafe { p.as_ref() }
}

/// Everything that `Process::new` needs besides what it asks the kernel.
pub struct Parts {
    pub client: Pool,
    pub at: Box<[u8]>,
    pub parking_fd: u32,
    pub special_dir: Box<[u8]>,
    pub exe: Option<Box<[u8]>>,
    pub base_fd: u32,
    pub data_fd: u32,
    pub segments: [u32; 3],
    pub keep_mapped: bool,
    pub map: Option<MapSettings>,
    pub trace: Option<TraceSettings>,
    pub env: [Box<[u8]>; VARIABLES],
    /// All of our descriptors.
    pub internal: [u32; INTERNAL],
}

/// Makes `parts` the process; only called once, before the program's first instruction.
pub fn install(parts: Parts) -> &'static Process {
    publish(Process::of(parts)).0
}

/// Makes `parts` the process in the place of `old`, of the only thread.
pub fn replace(old: &Process, parts: Parts) -> Retired {
    let new = Process::of(parts);
    new.shown.store(old.shown.load(Relaxed), Relaxed);
    let credentials = old.credentials.load(Acquire);
    new.credentials.store(credentials, Release);
    Retired(publish(new).1)
}

/// A process whose place another has taken. With it goes what it has mapped.
#[derive(Debug)]
pub struct Retired(*mut Process);

impl Drop for Retired {
    fn drop(&mut self) {
        // SAFETY: `publish` leaked the box, and nobody else frees it: there is one of these for a
        // process that is replaced, which happens once, since the new one has nothing mapped.
        // New calls find the other one, there is no other thread, and whoever drops this has
        // ended the call that replaced it (`dispatch::serve`).
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// From here on calls find `process`; the one that they found before, or null.
fn publish(process: Process) -> (&'static Process, *mut Process) {
    let process = Box::into_raw(Box::new(process));
    let before = PROCESS.swap(process, AcqRel);
    // SAFETY: a box that was just leaked.
    (unsafe { &*process }, before)
}

impl Process {
    fn of(parts: Parts) -> Process {
        let mut internal = parts.internal;
        internal.sort_unstable();
        let process = Process {
            client: parts.client,
            at: parts.at,
            parking_fd: parts.parking_fd,
            special_dir: parts.special_dir,
            exe: parts.exe,
            base_fd: parts.base_fd,
            data_fd: parts.data_fd,
            segments: parts.segments,
            keep_mapped: parts.keep_mapped,
            map: parts.map,
            trace: parts.trace,
            env: parts.env,
            internal,
            shown: AtomicBool::new(false),
            pid: AtomicU32::new(sys::getpid()),
            credentials: AtomicPtr::new(core::ptr::null_mut()),
        };
        process.client.set_creation_mask(kernel_umask());
        process
    }
}

fn call(nr: usize, a: usize) -> isize {
    // SAFETY: only used for calls that touch no memory.
    unsafe { sys::raw(nr, [a, a, 0, 0, 0, 0]) }
}

/// The umask, which can only be read by setting it; nobody else runs.
fn kernel_umask() -> u32 {
    let mask = call(nr::UMASK, 0o77);
    call(nr::UMASK, mask as usize);
    mask as u32
}

const CAP_VERSION_3: u32 = 0x2008_0522;
const CAP_DAC_OVERRIDE: u32 = 1;

/// Effective capabilities, as `capabilities` counts them, and those that may become so.
const EFFECTIVE: usize = 0;
const PERMITTED: usize = 1;
/// CAP_DAC_OVERRIDE, CAP_SETGID, CAP_SETUID: a process that has one of them may act as anybody.
const ANYBODY: u32 = 1 << 1 | 1 << 6 | 1 << 7;

/// Whether programs that it executes keep the capability.
fn ambient(capability: u32) -> bool {
    const PR_CAP_AMBIENT: usize = 47;
    const IS_SET: usize = 1;
    // SAFETY: only asks; touches no memory.
    unsafe {
        sys::raw(
            nr::PRCTL,
            [PR_CAP_AMBIENT, IS_SET, capability as usize, 0, 0, 0],
        ) == 1
    }
}

/// Whether file permissions bind the process: the effective capabilities tell.
fn privileged() -> bool {
    capabilities(EFFECTIVE) & (1 << CAP_DAC_OVERRIDE) != 0
}

/// The first capabilities of one set.
fn capabilities(set: usize) -> u32 {
    let header = [CAP_VERSION_3, 0];
    let mut data = [0u32; 6];
    let args = [
        header.as_ptr() as usize,
        data.as_mut_ptr() as usize,
        0,
        0,
        0,
        0,
    ];
    // SAFETY: version 3 fills two structs of three words.
    let ret = unsafe { sys::raw(nr::CAPGET, args) };
    if ret == 0 { data[set] } else { 0 }
}

/// Real, effective and saved user, and the same of the group.
pub fn ids() -> [[u32; 3]; 2] {
    [nr::GETRESUID, nr::GETRESGID].map(three)
}

/// Real, effective and saved id.
fn three(number: usize) -> [u32; 3] {
    let mut ids = [0u32; 3];
    let at = ids.as_mut_ptr() as usize;
    // SAFETY: the kernel writes three words.
    unsafe { sys::raw(number, [at, at + 4, at + 8, 0, 0, 0]) };
    ids
}

fn groups() -> Vec<u32> {
    let count = call(nr::GETGROUPS, 0).max(0) as usize;
    let mut list = alloc::vec![0u32; count];
    // SAFETY: the kernel writes at most `count` ids.
    let got = unsafe {
        sys::raw(
            nr::GETGROUPS,
            [count, list.as_mut_ptr() as usize, 0, 0, 0, 0],
        )
    };
    list.truncate(got.max(0) as usize);
    list
}

/// What /proc/self/ns/user of the first namespace is.
const FIRST_NAMESPACE: u64 = 0xefff_fffd;

/// The ids of the caller's user namespace; `None`: they are the pool's.
fn id_maps() -> Option<IdMaps> {
    if sys::stat_path(c"/proc/self/ns/user").is_some_and(|st| st.ino == FIRST_NAMESPACE) {
        return None;
    }
    let read = |path| {
        let mut text = alloc::vec![0; ID_MAP];
        let file = Fd::open(path, 0, 0)?;
        let mut len = 0;
        while let Some(n @ 1..) = text.get_mut(len..).and_then(|rest| file.read(rest)) {
            len += n;
        }
        text.truncate(len);
        Some(text)
    };
    IdMaps::parse(
        &read(b"/proc/self/uid_map\0")?,
        &read(b"/proc/self/gid_map\0")?,
    )
}

/// More bytes than the 340 lines of such a map have.
const ID_MAP: usize = 340 * 36;

impl Credentials {
    /// As the kernel says, in a namespace with `ids`. Ids that it does not show there are as they
    /// were: entering a namespace changes none.
    fn now(ids: Option<IdMaps>, before: Option<&Credentials>) -> Credentials {
        let map = |map: fn(&IdMaps) -> &IdMap, id, before: Option<u32>| match &ids {
            None => id,
            Some(ids) => map(ids).outside(id).or(before).unwrap_or(OVERFLOW),
        };
        let user = |id, before| map(|ids| &ids.users, id, before);
        let group = |id, before| map(|ids| &ids.groups, id, before);
        // An id that no user has: the kernel answers the current one and changes nothing.
        let (fs_uid, fs_gid) = (
            call(nr::SETFSUID, u32::MAX as usize) as u32,
            call(nr::SETFSGID, u32::MAX as usize) as u32,
        );
        let (uid, gid) = (call(nr::GETUID, 0) as u32, call(nr::GETGID, 0) as u32);
        let hidden = before.map_or(&[][..], |c| &c.groups);
        let hidden = hidden.iter().filter(|id| !is_shown(&ids, **id));
        let shown = groups();
        let shown = shown.iter().filter_map(|id| match &ids {
            None => Some(*id),
            Some(ids) => ids.groups.outside(*id),
        });
        Credentials {
            fs_uid: user(fs_uid, before.map(|c| c.fs_uid)),
            fs_gid: group(fs_gid, before.map(|c| c.fs_gid)),
            uid: user(uid, before.map(|c| c.uid)),
            gid: group(gid, before.map(|c| c.gid)),
            groups: shown.chain(hidden.copied()).collect(),
            privileged: privileged(),
            root: uid == 0,
            ids,
        }
    }

    /// Whether the namespace was entered and its ids are not known yet.
    fn waits_for_ids(&self) -> bool {
        let empty = |ids: &IdMaps| ids.users.is_empty() || ids.groups.is_empty();
        self.ids.as_ref().is_some_and(empty)
    }
}

/// Whether the kernel shows this group in the namespace.
fn is_shown(ids: &Option<IdMaps>, id: u32) -> bool {
    ids.as_ref()
        .is_none_or(|ids| ids.groups.inside(id).is_some())
}

impl Process {
    /// Calls `f` with the credentials of the caller. What is kept here is the owner's of this
    /// memory; those of a child that runs in it the kernel tells.
    fn with_credentials<T>(&self, f: impl FnOnce(&Credentials) -> T) -> T {
        if self.borrowed() {
            return f(&Credentials::now(id_maps(), Some(self.last())));
        }
        if self.last().waits_for_ids() {
            self.look_at_namespace();
        }
        f(self.last())
    }

    #[inline]
    fn last(&self) -> &Credentials {
        // SAFETY: null or a leaked box; replaced values are never freed.
        let known = unsafe { self.credentials.load(Acquire).as_ref() };
        known.unwrap_or_else(|| self.first())
    }

    #[cold]
    fn first(&self) -> &Credentials {
        let new = Box::into_raw(Box::new(Credentials::now(self.id_maps(), None)));
        let null = core::ptr::null_mut();
        let known = match self
            .credentials
            .compare_exchange(null, new, AcqRel, Acquire)
        {
            Ok(_) => new,
            Err(known) => {
                // SAFETY: nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
                known
            }
        };
        // SAFETY: a leaked box, never freed.
        unsafe { &*known }
    }

    /// The ids of the namespace of the owner of this memory.
    fn id_maps(&self) -> Option<IdMaps> {
        let known = self.client.has_place();
        if known && self.client.has_ids_of_pool() {
            return None;
        }
        let ids = id_maps();
        if known && ids.is_none() {
            self.client.note_ids_of_pool();
        }
        ids
    }

    /// Before the credentials change, or a child can be in this memory with others.
    pub fn know_credentials(&self) {
        self.last();
        self.client.know_leases();
    }

    fn set_credentials(&self, credentials: Credentials) {
        let new = Box::into_raw(Box::new(credentials));
        self.credentials.store(new, Release);
    }

    /// The caller may be in another user namespace than before, or its ids were written.
    pub fn look_at_namespace(&self) {
        if !self.borrowed() {
            let ids = id_maps();
            let waits = |ids: &IdMaps| ids.users.is_empty() || ids.groups.is_empty();
            if !self.last().waits_for_ids() || !ids.as_ref().is_some_and(waits) {
                self.set_credentials(Credentials::now(ids, Some(self.last())));
            }
        }
    }

    /// What the caller sees of an object of the pool.
    #[inline]
    pub fn shown(&self, stat: Stat) -> Stat {
        match &self.last().ids {
            None if !self.borrowed() => stat,
            _ => self.shown_elsewhere(stat),
        }
    }

    #[cold]
    fn shown_elsewhere(&self, mut stat: Stat) -> Stat {
        self.with_credentials(|c| {
            if let Some(ids) = &c.ids {
                stat.uid = ids.users.shown(stat.uid);
                stat.gid = ids.groups.shown(stat.gid);
            }
        });
        stat
    }

    /// The pool's ids for a new owner and group. `None`: the caller's namespace has none for it.
    pub fn owner(&self, uid: Option<u32>, gid: Option<u32>) -> Option<(Option<u32>, Option<u32>)> {
        self.with_credentials(|c| {
            let Some(ids) = &c.ids else {
                return Some((uid, gid));
            };
            let outside = |map: &IdMap, id: Option<u32>| match id {
                None => Some(None),
                Some(id) => map.outside(id).map(Some),
            };
            Some((outside(&ids.users, uid)?, outside(&ids.groups, gid)?))
        })
    }

    /// Calls `f` with the rights of the process.
    pub fn with_caller<T>(&self, f: impl FnOnce(&Caller) -> T) -> T {
        let umask = self.client.creation_mask();
        self.with_credentials(|c| {
            f(&Caller {
                uid: c.fs_uid,
                gid: c.fs_gid,
                groups: &c.groups,
                umask,
                privileged: c.privileged,
                ids: c.ids.as_ref(),
            })
        })
    }

    /// Calls `f` with the rights of the real user, as access(2) asks.
    pub fn with_real_caller<T>(&self, f: impl FnOnce(&Caller) -> T) -> T {
        let umask = self.client.creation_mask();
        self.with_credentials(|c| {
            f(&Caller {
                uid: c.uid,
                gid: c.gid,
                groups: &c.groups,
                umask,
                privileged: c.root,
                ids: c.ids.as_ref(),
            })
        })
    }

    /// The program changed its ids: look again. Old snapshots stay, other threads may read them.
    pub fn refresh_credentials(&self, keeps_groups: bool) {
        if self.borrowed() {
            return;
        }
        let before = self.last();
        let ids = before.ids.clone();
        let before = keeps_groups.then_some(before);
        self.set_credentials(Credentials::now(ids, before));
    }

    /// A proxy makes calls with the rights that it knows of: those that were given up go there,
    /// too. In another user namespace the process is to it what it was before.
    pub fn tell_credentials(&self) {
        let Pool::Served(served) = &self.client else {
            return;
        };
        self.with_credentials(|c| {
            if c.ids.is_none() {
                let [users, groups] = ids();
                served.narrow(
                    users,
                    groups,
                    &c.groups,
                    capabilities(PERMITTED) & ANYBODY != 0,
                );
            }
        });
    }

    /// Whether the process has nothing mapped, or rights by which it may, or may take them again:
    /// it is the pool's owner, or may act as anybody. In another user namespace it keeps what it
    /// was given.
    pub fn may_map(&self) -> bool {
        let Pool::Mapped(_) = &self.client else {
            return true;
        };
        let owner = self.owner_of_pool();
        owner.is_some_and(|owner| three(nr::GETRESUID).contains(&owner))
            || capabilities(PERMITTED) & ANYBODY != 0
            || self.with_credentials(|c| c.ids.is_some())
    }

    /// Whether the program that it executes will have such rights: execve(2) takes the saved id
    /// away, and from whoever is not root the capabilities that are not ambient.
    pub fn may_map_after_exec(&self) -> bool {
        let ([real, effective, _], owner) = (three(nr::GETRESUID), self.owner_of_pool());
        [real, effective]
            .iter()
            .any(|id| *id == 0 || Some(*id) == owner)
            || (0..u32::BITS)
                .any(|capability| ANYBODY >> capability & 1 != 0 && ambient(capability))
            || self.with_credentials(|c| c.ids.is_some())
    }

    fn owner_of_pool(&self) -> Option<u32> {
        sys::stat_fd(self.data_fd as usize).map(|stat| stat.uid)
    }

    pub fn pid(&self) -> u32 {
        self.pid.load(Relaxed)
    }

    /// In a forked child.
    pub fn set_pid(&self, pid: u32) {
        self.pid.store(pid, Relaxed);
    }

    /// Whether the caller is a child that runs in its parent's memory.
    pub fn borrowed(&self) -> bool {
        crate::process::in_shared_child()
    }

    /// Whether the descriptor is one of ours.
    #[inline]
    pub fn is_internal(&self, fd: u32) -> bool {
        fd >= self.internal[0] && self.internal.contains(&fd)
    }

    /// Whether the descriptor is one of ours and the program is not to know of it.
    #[inline]
    pub fn hides(&self, fd: u32) -> bool {
        self.is_internal(fd) && !self.shown.load(Relaxed)
    }

    /// The program may look at our descriptors, but not close them or put others in their place.
    pub fn show_own(&self) {
        self.shown.store(true, Relaxed);
    }

    pub fn internal_sorted(&self) -> [u32; INTERNAL] {
        self.internal
    }

    /// Calls on `fd` no longer need a look, unless another process with this memory needs one.
    pub fn unmark(&self, fd: u32) {
        if !crate::process::is_shared() && !self.is_internal(fd) {
            calls::unmark_fd(fd);
        }
    }
}
