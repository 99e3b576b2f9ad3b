//! Random calls on files of two users inside and outside of a directory with a quota, each judged
//! by a model: EDQUOT and EXDEV exactly where the rules say so, short writes of exactly what fits,
//! and after each call just what is there counts.

mod common;

use common::{Fixture, ROOT, User};
use holdfast_client::abi::{O_CREAT, O_EXCL, O_RDWR};
use holdfast_client::{Base, Caller, Error};
use holdfast_pmem::ConstBuf;
use holdfast_pool::quota::{Quota, Subject};
use std::collections::{BTreeMap, BTreeSet};

const BLOCK: u64 = 4096;
const EDQUOT: i32 = 122;
const EXDEV: i32 = 18;
const OTHER: Caller<'static> = Caller {
    uid: 1000,
    gid: 1000,
    groups: &[],
    umask: 0o022,
    privileged: false,
    ids: None,
};
/// The second and the third are the directory with a quota and what is below.
const DIRS: [&str; 3] = ["plain", "limited", "limited/below"];

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Name {
    dir: usize,
    file: u64,
}

impl Name {
    fn some(rng: &mut Rng) -> Name {
        Name {
            dir: rng.below(3) as usize,
            file: rng.below(5),
        }
    }

    fn path(self) -> Vec<u8> {
        format!("{}/{}", DIRS[self.dir], self.file).into_bytes()
    }

    fn is_below(self) -> bool {
        self.dir > 0
    }
}

#[derive(Default)]
struct File {
    uid: u32,
    /// It counts for the directory: it was made there, or had a name there when the quota was set.
    counts: bool,
    blocks: BTreeSet<u64>,
}

/// Blocks and files; 0: no limit.
type Limits = (u64, u64);

#[derive(Default)]
struct Model {
    names: BTreeMap<Name, u64>,
    files: BTreeMap<u64, File>,
    next: u64,
    of_user: Option<Limits>,
    of_directory: Option<Limits>,
}

impl Model {
    /// What the user takes, and the directory.
    fn taken(&self) -> [(u64, u64); 2] {
        let mut taken = [(0, 0), (0, 2)];
        for file in self.files.values() {
            for (sum, counts) in taken.iter_mut().zip([file.uid == 1000, file.counts]) {
                sum.0 += u64::from(counts) * file.blocks.len() as u64;
                sum.1 += u64::from(counts);
            }
        }
        taken
    }

    /// How many blocks and files still fit for such a file.
    fn left(&self, uid: u32, below: bool) -> (u64, u64) {
        let [user, directory] = self.taken();
        let mut left = (u64::MAX, u64::MAX);
        let quotas = [
            (self.of_user, user, uid == 1000),
            (self.of_directory, directory, below),
        ];
        for (limits, taken, counts) in quotas {
            let Some((blocks, files)) = limits.filter(|_| counts) else {
                continue;
            };
            for (left, limit, taken) in [
                (&mut left.0, blocks, taken.0),
                (&mut left.1, files, taken.1),
            ] {
                *left = match limit {
                    0 => *left,
                    limit => (*left).min(limit.saturating_sub(taken)),
                };
            }
        }
        left
    }

    /// A file counts for the directory once it has a name there, until the quota is removed.
    fn mark(&mut self) {
        let is_on = self.of_directory.is_some();
        for (id, file) in &mut self.files {
            let is_below = |(name, i): (&Name, &u64)| i == id && name.is_below();
            file.counts = is_on && (file.counts || self.names.iter().any(is_below));
        }
    }

    fn forget(&mut self, name: Name) {
        if let Some(id) = self.names.remove(&name)
            && !self.names.values().any(|i| *i == id)
        {
            self.files.remove(&id);
        }
    }

    /// Whether nothing may go from the one name to the other.
    fn is_across(&self, old: Name, new: Name) -> bool {
        self.of_directory.is_some() && old.is_below() != new.is_below()
    }
}

fn same(done: Result<(), Error>, errno: Option<i32>, what: &str) {
    assert_eq!(done.err().map(|e| e.errno()), errno, "{what}");
}

fn create(user: &User, model: &mut Model, rng: &mut Rng) {
    let name = Name::some(rng);
    if model.names.contains_key(&name) {
        return;
    }
    let who = [&ROOT, &OTHER][rng.below(2) as usize];
    let flags = O_CREAT | O_EXCL | O_RDWR;
    let file = user
        .client
        .open(who, Base::Root, &name.path(), flags, 0o666, 0);
    let over = model.left(who.uid, name.is_below()).1 == 0;
    let done = file.and_then(|file| user.release(file));
    same(done, over.then_some(EDQUOT), "create");
    if !over {
        let counts = name.is_below() && model.of_directory.is_some();
        let (uid, blocks) = (who.uid, BTreeSet::new());
        let file = File {
            uid,
            counts,
            blocks,
        };
        model.files.insert(model.next, file);
        model.names.insert(name, model.next);
        model.next += 1;
    }
}

/// What fits is written, up to the first block for which there is no room.
fn write(user: &User, model: &mut Model, rng: &mut Rng) {
    let name = Name::some(rng);
    let Some(id) = model.names.get(&name).copied() else {
        return;
    };
    let (first, len) = (rng.below(12), 1 + rng.below(9));
    let file = &model.files[&id];
    let mut left = model.left(file.uid, file.counts).0;
    let has = &mut model.files.get_mut(&id).unwrap().blocks;
    let mut fits = 0;
    for block in first..first + len {
        if !has.contains(&block) {
            if left == 0 {
                break;
            }
            left -= 1;
            has.insert(block);
        }
        fits += 1;
    }
    let file = user
        .client
        .open(&ROOT, Base::Root, &name.path(), O_RDWR, 0, 0)
        .unwrap();
    let bytes = vec![7; (len * BLOCK) as usize];
    let done = user.pwrite(file, ConstBuf::from(&bytes[..]), (first * BLOCK) as i64);
    user.release(file).unwrap();
    let want = match fits {
        0 => Err(EDQUOT),
        fits => Ok((fits * BLOCK) as usize),
    };
    assert_eq!(done.map_err(|e| e.errno()), want, "{len} blocks at {first}");
}

fn truncate(user: &User, model: &mut Model, rng: &mut Rng) {
    let (name, len) = (Name::some(rng), rng.below(12));
    let Some(id) = model.names.get(&name) else {
        return;
    };
    let file = model.files.get_mut(id).unwrap();
    file.blocks.retain(|block| *block < len);
    let len = (len * BLOCK) as i64;
    user.truncate(&ROOT, Base::Root, &name.path(), len).unwrap();
}

/// rename(2) or link(2).
fn name_anew(user: &User, model: &mut Model, rng: &mut Rng) {
    let (old, new) = (Name::some(rng), Name::some(rng));
    let Some(id) = model.names.get(&old).copied() else {
        return;
    };
    let (from, to) = (old.path(), new.path());
    let (from, to) = ((Base::Root, &from[..]), (Base::Root, &to[..]));
    if rng.below(3) == 0 {
        let counts = new.is_below() && model.of_directory.is_some();
        let refused = (model.files[&id].counts != counts).then_some(EXDEV);
        if !model.names.contains_key(&new) {
            same(user.link(&ROOT, from, to, 0), refused, "link");
            if refused.is_none() {
                model.names.insert(new, id);
            }
        }
        return;
    }
    let refused = model.is_across(old, new).then_some(EXDEV);
    same(user.rename(&ROOT, from, to, 0), refused, "rename");
    // Two names of one file both stay.
    if refused.is_none() && model.names.get(&new) != Some(&id) {
        model.forget(new);
        model.names.insert(new, id);
        model.names.remove(&old);
    }
}

fn limit(user: &User, model: &mut Model, rng: &mut Rng) {
    let limits = (rng.below(40), rng.below(9));
    let (subject, quota) = match rng.below(2) {
        0 => (Subject::User(1000), &mut model.of_user),
        _ => {
            let directory = user.quota_directory(&ROOT, DIRS[1].as_bytes());
            (directory.unwrap(), &mut model.of_directory)
        }
    };
    if rng.below(4) == 0 {
        let done = user.quota_remove(subject);
        assert_eq!(done.is_ok(), quota.take().is_some());
        model.mark();
    } else {
        *quota = Some(limits);
        model.mark();
        let done = user.quota_set(Quota {
            subject,
            partial: false,
            bytes: limits.0 * BLOCK,
            files: limits.1,
        });
        done.unwrap();
    }
}

fn change(user: &User, model: &mut Model, rng: &mut Rng) {
    match rng.below(20) {
        0..4 => create(user, model, rng),
        4..10 => write(user, model, rng),
        10..12 => truncate(user, model, rng),
        12..15 => name_anew(user, model, rng),
        15 | 16 => {
            let name = Name::some(rng);
            if model.names.contains_key(&name) {
                user.unlink(&ROOT, Base::Root, &name.path()).unwrap();
                model.forget(name);
            }
        }
        17 => {
            let (name, uid) = (Name::some(rng), [0, 1000][rng.below(2) as usize]);
            if let Some(id) = model.names.get(&name) {
                model.files.get_mut(id).unwrap().uid = uid;
                let done = user.chown(&ROOT, Base::Root, &name.path(), (Some(uid), None), 0);
                done.unwrap();
            }
        }
        _ => limit(user, model, rng),
    }
}

fn compare(user: &User, model: &Model) {
    for info in user.quotas().unwrap() {
        let [of_user, of_directory] = model.taken();
        let (limits, taken) = match info.quota.subject {
            Subject::User(_) => (model.of_user, of_user),
            Subject::Directory(_) => (model.of_directory, of_directory),
        };
        assert!(!info.quota.partial);
        assert_eq!((info.bytes / BLOCK, info.files), taken);
        let told = (info.quota.bytes / BLOCK, info.quota.files);
        assert_eq!(Some(told), limits);
    }
}

#[test]
fn each_call_is_refused_or_not_as_the_rules_say() {
    for seed in 1..9 {
        let mut fixture = Fixture::new(64 << 20);
        let (mut model, mut rng) = (Model::default(), Rng(seed));
        for session in 0..3 {
            let user = fixture.user();
            if session == 0 {
                for dir in DIRS {
                    user.mkdir(&ROOT, Base::Root, dir.as_bytes(), 0o777)
                        .unwrap();
                    user.chmod(&ROOT, Base::Root, dir.as_bytes(), 0o777, 0)
                        .unwrap();
                }
            }
            compare(&user, &model);
            for _ in 0..400 {
                change(&user, &mut model, &mut rng);
                compare(&user, &model);
            }
            drop(user);
            fixture.stop();
            fixture.check();
            fixture.start();
        }
    }
}
