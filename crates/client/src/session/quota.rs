//! Quotas: what users and directories take, counted as it changes.
//!
//! Invariants:
//!  * What an object counts for follows from its entry (`Share::of`). Whoever changes an entry
//!    counts the difference, but for blocks, objects and values that are about to come: they are
//!    taken before (`take`), so that no limit is exceeded, however many processes write at once.
//!  * Values that go are the service's to take away, once the trees know.
//!  * A process that dies in between leaves the count too high, never the limit exceeded; the
//!    service corrects that while the session rests.
//!  * While nobody has a quota, one word that every write reads anyway says so.

use crate::base::error::{Error, Result};
use crate::session::{BLOCK, Session, drain};
use pmem::atomic::{AtomicU64, Ordering::*};
use pool::quota::{Taken, project_of};
use pool::session::*;

/// Whether anybody has a quota.
#[inline]
pub(crate) fn is_on(s: &Session) -> bool {
    s.header().quotas.load(Relaxed) != 0
}

/// Whose quotas an object, or the values of a keyspace, count for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Payers {
    pub uid: u32,
    pub project: u16,
}

impl Payers {
    pub fn of(e: &Inode) -> Payers {
        Payers {
            uid: e.uid.load(Relaxed),
            project: e.project.load(Relaxed),
        }
    }

    /// Their quotas, if they have any.
    fn quotas(self, s: &Session) -> impl Iterator<Item = &Quota> {
        [of_user(s, self.uid), of_project(s, self.project)]
            .into_iter()
            .flatten()
    }
}

fn of_project(s: &Session, project: u16) -> Option<&Quota> {
    let quota = at(s, usize::from(project).checked_sub(1)?)?;
    (quota.kind.load(Acquire) > QUOTA_USER).then_some(quota)
}

fn at(s: &Session, place: usize) -> Option<&Quota> {
    s.quota(place as u32).ok()
}

fn of_user(s: &Session, uid: u32) -> Option<&Quota> {
    let users = s.quota_users().ok()?;
    for n in 0..QUOTA_USERS {
        let place = users.places[(quota_hash(uid) + n) % QUOTA_USERS].load(Acquire);
        let quota = at(s, usize::from(place).checked_sub(1)?)?;
        let is_users = quota.kind.load(Acquire) == QUOTA_USER;
        if is_users && quota.id.load(Relaxed) == u64::from(uid) {
            return Some(quota);
        }
    }
    None
}

/// What an object counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    payers: Payers,
    bytes: u64,
    files: u64,
}

impl Share {
    /// As its entry has it. Inline content counts as a block.
    fn of(e: &Inode) -> Share {
        let state = e.state.load(Relaxed);
        let is_there = state & INODE_VALID != 0 && state & (INODE_GONE | INODE_VALUE) == 0;
        let inline = u64::from(state & INODE_INLINE != 0);
        Share {
            payers: Payers::of(e),
            bytes: match is_there {
                true => e.blocks.load(Relaxed).max(inline).saturating_mul(BLOCK),
                false => 0,
            },
            files: is_there.into(),
        }
    }
}

/// Before an entry changes: what it counts for, if that is counted.
#[inline]
pub(crate) fn before(s: &Session, e: &Inode) -> Option<Share> {
    is_on(s).then(|| Share::of(e))
}

/// After that.
#[inline]
pub(crate) fn after(s: &Session, e: &Inode, before: Option<Share>) {
    if let Some(before) = before {
        count(s, before, Share::of(e));
    }
}

#[cold]
fn count(s: &Session, before: Share, after: Share) {
    if before == after {
        return;
    }
    for (share, sign) in [(before, -1), (after, 1)] {
        for quota in share.payers.quotas(s) {
            add(&quota.bytes, (share.bytes as i64).wrapping_mul(sign));
            add(&quota.files, (share.files as i64).wrapping_mul(sign));
        }
    }
}

fn add(sum: &AtomicU64, change: i64) {
    if change != 0 {
        // A sum below 0 is one that a death left, and counts as 0.
        sum.fetch_add(change as u64, AcqRel);
    }
}

/// How much more fits; a sum that is too low after a death counts as nothing.
fn left(sum: &AtomicU64, limit: &AtomicU64) -> u64 {
    match limit.load(Relaxed) {
        0 => u64::MAX,
        limit => limit.saturating_sub((sum.load(Acquire) as i64).max(0) as u64),
    }
}

/// What a quota makes of a file system: its limits, and how much more fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub blocks: u64,
    pub blocks_left: u64,
    pub files: u64,
    pub files_left: u64,
}

/// Of the directory for whose quota `project` counts, if it has one.
pub(crate) fn room(s: &Session, project: u16) -> Option<Room> {
    if !is_on(s) {
        return None;
    }
    let quota = of_project(s, project)?;
    let limit = |limit: &AtomicU64| match limit.load(Relaxed) {
        0 => u64::MAX,
        limit => limit,
    };
    Some(Room {
        blocks: limit(&quota.byte_limit) / BLOCK,
        blocks_left: left(&quota.bytes, &quota.byte_limit) / BLOCK,
        files: limit(&quota.file_limit),
        files_left: left(&quota.files, &quota.file_limit),
    })
}

/// Whether any of their quotas is one of bytes.
pub(crate) fn limits_bytes(s: &Session, payers: Payers) -> bool {
    is_on(s) && payers.quotas(s).any(|q| q.byte_limit.load(Relaxed) != 0)
}

/// How many of `want` blocks still fit: at least one.
pub(crate) fn fitting(s: &Session, payers: Payers, want: u64) -> Result<u64> {
    let fits = || {
        let fits = payers
            .quotas(s)
            .map(|q| left(&q.bytes, &q.byte_limit) / BLOCK);
        fits.min().unwrap_or(want).min(want)
    };
    match fits() {
        0 if settles(s) => Some(fits())
            .filter(|fits| *fits > 0)
            .ok_or(Error::OverQuota),
        0 => Err(Error::OverQuota),
        fits => Ok(fits),
    }
}

/// Takes what is about to come, all or nothing.
pub(crate) fn take(s: &Session, payers: Payers, new: Taken) -> Result<()> {
    let nothing = Taken::default();
    match take_for(s, payers, new, nothing) {
        Err(Error::OverQuota) if settles(s) => take_for(s, payers, new, nothing),
        done => done,
    }
}

/// Waits until the trees have all values, whether some that were replaced or erased may have been
/// counted until then. What is over a quota may fit afterwards.
#[cold]
pub(crate) fn settles(s: &Session) -> bool {
    let newest = s.header().values_seq.load(Acquire);
    newest > s.applied_seq() && drain::wait_applied(s, newest).is_ok()
}

/// As `take`, where `old` goes once the trees know: it is taken still, but is not in the way.
pub(crate) fn take_for(s: &Session, payers: Payers, new: Taken, old: Taken) -> Result<()> {
    let (mut taken, mut over) = (0, false);
    for quota in payers.quotas(s) {
        let sums = [
            (&quota.bytes, &quota.byte_limit, new.bytes, old.bytes),
            (&quota.files, &quota.file_limit, new.files, old.files),
        ];
        taken += 1;
        for (sum, limit, n, gone) in sums.into_iter().filter(|(_, _, n, _)| *n > 0) {
            let now = (sum.fetch_add(n, AcqRel).wrapping_add(n) as i64).max(0) as u64;
            let limit = limit.load(Relaxed);
            // What takes no more than it replaces is not refused.
            over |= limit != 0 && n > gone && now.saturating_sub(gone) > limit;
        }
        if over {
            break;
        }
    }
    if !over {
        return Ok(());
    }
    for quota in payers.quotas(s).take(taken) {
        untake(quota, new);
    }
    Err(Error::OverQuota)
}

/// As `take`, whatever is left.
pub(crate) fn take_anyway(s: &Session, payers: Payers, new: Taken) {
    for quota in payers.quotas(s) {
        add(&quota.bytes, new.bytes as i64);
        add(&quota.files, new.files as i64);
    }
}

/// What was taken does not come after all.
pub(crate) fn put_back(s: &Session, payers: Payers, new: Taken) {
    payers.quotas(s).for_each(|quota| untake(quota, new));
}

fn untake(quota: &Quota, taken: Taken) {
    add(&quota.bytes, -(taken.bytes as i64));
    add(&quota.files, -(taken.files as i64));
}

/// So many new blocks.
pub(crate) fn blocks(n: u64) -> Taken {
    let (bytes, files) = (n.saturating_mul(BLOCK), 0);
    Taken { bytes, files }
}

/// A new object.
const OBJECT: Taken = Taken { bytes: 0, files: 1 };

/// Objects that are about to come, one each; what does not come goes back when this is dropped.
pub(crate) struct NewObject<'s> {
    s: &'s Session,
    taken: Option<Payers>,
}

impl<'s> NewObject<'s> {
    pub fn take(s: &'s Session, uid: u32, project: u16) -> Result<NewObject<'s>> {
        let payers = Payers { uid, project };
        let taken = is_on(s).then_some(payers);
        if let Some(payers) = taken {
            take(s, payers, OBJECT)?;
        }
        Ok(NewObject { s, taken })
    }

    /// It came.
    pub fn came(mut self) {
        self.taken = None;
    }
}

impl Drop for NewObject<'_> {
    fn drop(&mut self) {
        if let Some(payers) = self.taken {
            put_back(self.s, payers, OBJECT);
        }
    }
}

/// Whether the user, or the directory, has a quota.
pub(crate) fn is_limited(s: &Session, payers: Payers) -> bool {
    is_on(s) && payers.quotas(s).next().is_some()
}

/// A quota, and what is taken of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaInfo {
    pub quota: pool::quota::Quota,
    /// Bytes.
    pub bytes: u64,
    pub files: u64,
}

/// All quotas with their places, as the session has them.
pub(crate) fn all(s: &Session) -> impl Iterator<Item = (usize, QuotaInfo)> {
    (0..QUOTAS).filter_map(|place| {
        let quota = at(s, place)?;
        let (kind, id) = (quota.kind.load(Acquire), quota.id.load(Relaxed));
        let subject = match kind {
            0 => return None,
            QUOTA_USER => pool::quota::Subject::User(id as u32),
            _ => pool::quota::Subject::Directory(id),
        };
        let now = |sum: &AtomicU64| (sum.load(Acquire) as i64).max(0) as u64;
        let info = QuotaInfo {
            quota: pool::quota::Quota {
                subject,
                partial: kind == QUOTA_PARTIAL,
                bytes: quota.byte_limit.load(Relaxed),
                files: quota.file_limit.load(Relaxed),
            },
            bytes: now(&quota.bytes),
            files: now(&quota.files),
        };
        Some((place, info))
    })
}

/// The project of the directory whose quota is at `place`.
pub(crate) fn project(place: usize) -> u16 {
    project_of(place)
}
