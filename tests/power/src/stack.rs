//! Client and service of one pool in one process, the service stepped when told.
//!
//! Invariant: when `step` returns, the trees have every record that the client has written.

use crate::judge::{View, Whole};
use crate::model::Op;
use crate::quotas;
use crate::sight;
use crate::values;
use holdfast_client::mapped::{self, Segments};
use holdfast_client::{Base, Caller, Client, OfdLink, abi, inode_table, slots};
use holdfast_pmem::{ConstBuf, DirtyMap, Medium};
use holdfast_pool::format::PAGE_LEN;
use holdfast_pool::session::DIRTY_AT;
use holdfast_service::Files;
use holdfast_service::stepping::{Engine, JOURNAL_LEN, Sent, Session, begin_on_snapshot, recover};
use rustix::fd::AsFd;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

pub const ME: Caller<'static> = Caller {
    uid: 0,
    gid: 0,
    groups: &[],
    umask: 0o022,
    privileged: true,
    ids: None,
};
pub const ROOT: Base = Base::Root;
/// No story has more to do than takes a small part of this.
const DRAIN_MAX: Duration = Duration::from_secs(60);

type Done = Result<(), String>;

/// The files of a pool, as they are on `medium`.
fn files(dir: &Path, medium: Medium) -> Result<Files, String> {
    let mut files = Files::open(dir).map_err(|e| format!("open: {e}"))?;
    files.medium = medium;
    Ok(files)
}

/// Brings the pool up to date as a service does when it starts.
pub fn recovered(dir: &Path, medium: Medium) -> Result<Engine, String> {
    let files = files(dir, medium)?;
    let mut engine = Engine::open(files).map_err(|e| format!("engine: {e}"))?;
    let done = recover(&mut engine).map_err(|e| format!("recovery: {e}"))?;
    match done.rejected {
        None => Ok(engine),
        Some((seq, why)) => Err(format!("recovery refuses record {seq}: {why}")),
    }
}

/// The independent check of the pool's segments.
pub fn check(dir: &Path, medium: Medium) -> Done {
    let files = files(dir, medium)?;
    let report = holdfast_service::check(&files).map_err(|e| e.to_string())?;
    let damage: Vec<String> = report.damage().map(|d| d.to_string()).collect();
    if damage.is_empty() {
        Ok(())
    } else {
        Err(format!("check: {damage:?}"))
    }
}

pub struct Stack {
    engine: Engine,
    service: Option<Session>,
    client: Client,
    /// Session memory, meta, journal, data: the client's.
    fds: Vec<Sent>,
    held: BTreeMap<&'static str, OfdLink>,
}

/// A client of what `fds` are the descriptors of.
fn client(engine: &Engine, fds: &[Sent], journal_len: u64) -> Result<Client, String> {
    let superblock = engine.store.pool.superblock();
    let segments = Segments {
        session: fds[0].as_fd(),
        meta: (fds[1].as_fd(), superblock.meta_len),
        journal: (fds[2].as_fd(), journal_len),
        data: (fds[3].as_fd(), superblock.data_len),
        medium: match engine.store.files.medium {
            Medium::Memory => 0,
            Medium::File => 1,
            Medium::Dax => 2,
            Medium::DaxTest => 3,
        },
        cpu: 0,
    };
    let session = mapped::map(&segments).map_err(|e| format!("map: {e}"))?;
    slots::register(&session, std::process::id(), None).map_err(|e| e.to_string())?;
    Ok(Client::new(session, b""))
}

/// A new session and its first client.
fn join(engine: &mut Engine) -> Result<(Session, Client, Vec<Sent>), String> {
    let service = Session::create(engine).map_err(|e| format!("session: {e}"))?;
    let fds = service.descriptors(0).map_err(|e| e.to_string())?;
    let client = client(engine, &fds, engine.store.files.journal_len())?;
    Ok((service, client, fds))
}

impl Stack {
    /// A session on a pool that is up to date, and a client in it.
    pub fn start(mut engine: Engine) -> Result<Stack, String> {
        let (service, client, fds) = join(&mut engine)?;
        let mut stack = Stack {
            engine,
            service: Some(service),
            client,
            fds,
            held: BTreeMap::new(),
        };
        stack.step()?;
        Ok(stack)
    }

    /// The service does what there is to do, in a thread of its own.
    pub fn step(&mut self) -> Done {
        let Some(session) = &mut self.service else {
            return Ok(());
        };
        let engine = &mut self.engine;
        std::thread::scope(|s| s.spawn(|| drain(session, engine)).join()).unwrap()
    }

    /// The client, while the service stands still.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs `f` while the service is at work.
    pub fn serve<T>(&mut self, f: impl FnOnce(&Client) -> T) -> T {
        serving(&mut self.service, &mut self.engine, || f(&self.client))
    }

    /// The client leaves and the service closes the pool.
    pub fn end(mut self) -> Done {
        self.leave()
    }

    fn leave(&mut self) -> Done {
        self.step()?;
        slots::exit(self.client.session(), true);
        match self.service.take() {
            Some(session) => session
                .end(&mut self.engine)
                .map_err(|e| format!("end: {e}")),
            None => Ok(()),
        }
    }

    /// A new session, where there is none.
    fn again(&mut self) -> Done {
        let (service, client, fds) = join(&mut self.engine)?;
        (self.service, self.client, self.fds) = (Some(service), client, fds);
        self.step()
    }

    fn die(&mut self) -> Done {
        let (dir, medium) = (
            &self.engine.store.files.directory,
            self.engine.store.files.medium,
        );
        self.engine = recovered(dir, medium)?;
        self.service = None;
        self.again()
    }

    fn checkpoint(&mut self) -> Done {
        self.step()?;
        let Some(session) = &mut self.service else {
            return Ok(());
        };
        let begun = Instant::now();
        while begun.elapsed() < DRAIN_MAX {
            if session.tend_checkpoint(&mut self.engine, true) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Err("the checkpoint never ends".into())
    }

    fn snapshot(&mut self, name: &str) -> Done {
        let stopped = self.client.stop_stores().map_err(|e| e.to_string())?;
        let Some(session) = &mut self.service else {
            return Err("there is no session".into());
        };
        let engine = &mut self.engine;
        std::thread::scope(|s| s.spawn(|| drain(session, engine)).join()).unwrap()?;
        let done = session.snapshot_create(engine, name.as_bytes(), stopped.owner);
        done.map_err(|e| e.to_string())
    }

    fn forget_dirty(&self) -> Done {
        let len = self.engine.store.pool.superblock().data_len;
        let map = DirtyMap::map(self.fds[0].as_fd(), DIRTY_AT as u64, len);
        let map = map.map_err(|e| e.to_string())?;
        map.clear(0, len / PAGE_LEN);
        Ok(())
    }

    /// One call of a program.
    pub fn call(&mut self, op: &Op) -> Done {
        let done = match *op {
            Op::Checkpoint => self.checkpoint(),
            Op::WriteBack => self.write_back(),
            Op::Rejoin => self.rejoin(),
            Op::Die => self.die(),
            Op::Evict => self.evict(),
            Op::RemoveExpired => self.remove_expired(),
            Op::RemoveAlone => self.remove_alone(),
            Op::Snapshot(name) => self.snapshot(name),
            Op::ForgetDirty => self.forget_dirty(),
            _ => self.do_call(op).map_err(|e| e.to_string()),
        };
        done.map_err(|e| format!("{op:?}: {e}"))
    }

    /// What the service has done every few seconds.
    fn write_back(&mut self) -> Done {
        let left = self.client.write_back().map_err(|e| e.to_string())?;
        assert_eq!(left, 0, "nobody has an inode locked");
        self.checkpoint()
    }

    /// The index in the trees says what has expired.
    fn remove_expired(&mut self) -> Done {
        self.step()?;
        let c = &self.client;
        let removed = serving(&mut self.service, &mut self.engine, || {
            c.kv_remove_expired(60_000)
        });
        removed.map_err(|e| e.to_string())
    }

    fn remove_alone(&mut self) -> Done {
        self.leave()?;
        let store = &mut self.engine.store;
        store.begin().map_err(|e| e.to_string())?;
        let now = holdfast_pmem::env::exact_now();
        loop {
            let due = store.remove_expired(now, true).map_err(|e| e.to_string())?;
            if due.is_none_or(|due| due.removed == 0) {
                break;
            }
        }
        self.again()
    }

    fn rejoin(&mut self) -> Done {
        self.leave()?;
        self.engine.store.begin().map_err(|e| e.to_string())?;
        self.again()
    }

    /// Nothing leaves of which the trees do not know everything.
    fn evict(&mut self) -> Done {
        self.step()?;
        match inode_table::drop_unused(self.client.session()) {
            0 => Err("nothing is unused".into()),
            _ => Ok(()),
        }
    }

    /// Calls that may wait until the trees know are served meanwhile.
    fn do_call(&mut self, op: &Op) -> holdfast_client::Result<()> {
        let c = &self.client;
        let mut serving = |f: &dyn Fn() -> holdfast_client::Result<()>| {
            serving(&mut self.service, &mut self.engine, f)
        };
        match *op {
            Op::Change(changes) => serving(&|| values::make(c, &ME, changes)),
            Op::Quota(whose, bytes, files) => serving(&|| quotas::set(c, whose, bytes, files)),
            Op::QuotaRemove(whose) => serving(&|| quotas::remove(c, whose)),
            Op::Expire(k, key, until) => serving(&|| values::make_expire(c, &ME, (k, key, until))),
            _ => self.do_call_alone(op),
        }
    }

    fn do_call_alone(&mut self, op: &Op) -> holdfast_client::Result<()> {
        let c = &self.client;
        let b = |path: &'static str| path.as_bytes();
        match *op {
            Op::Mkdir(path) => c.mkdir(&ME, ROOT, b(path), 0o777),
            Op::Create(path) => {
                let flags = abi::O_CREAT | abi::O_EXCL | abi::O_RDWR;
                c.release(c.open(&ME, ROOT, b(path), flags, 0o666, 0)?)
            }
            Op::Symlink(target, path) => c.symlink(&ME, b(target), ROOT, b(path)),
            Op::Link(old, new) => c.link(&ME, (ROOT, b(old)), (ROOT, b(new)), 0),
            Op::Rename(old, new) => c.rename(&ME, (ROOT, b(old)), (ROOT, b(new)), 0),
            Op::Exchange(old, new) => {
                let flags = abi::RENAME_EXCHANGE;
                c.rename(&ME, (ROOT, b(old)), (ROOT, b(new)), flags)
            }
            Op::Unlink(path) => c.unlink(&ME, ROOT, b(path)),
            Op::Rmdir(path) => c.rmdir(&ME, ROOT, b(path)),
            Op::Chown(path, uid) => c.chown(&ME, ROOT, b(path), (Some(uid), None), 0),
            Op::Chmod(path, mode) => c.chmod(&ME, ROOT, b(path), mode, 0),
            Op::Write(path, at, len, value) => {
                self.with(path, 0, |c, f| write(c, f, Some(at), &vec![value; len]))
            }
            Op::Append(path, len, value) => self.with(path, abi::O_APPEND, |c, f| {
                write(c, f, None, &vec![value; len])
            }),
            Op::Truncate(path, len) => self.with(path, 0, |c, f| c.ftruncate(f, len as i64)),
            Op::Fsync(path) => self.with(path, 0, |c, f| c.fsync(f)),
            Op::Hold(path) => {
                let file = c.open(&ME, ROOT, b(path), abi::O_RDWR, 0, 0)?;
                self.held.insert(path, file);
                Ok(())
            }
            Op::Release(path) => match self.held.remove(path) {
                Some(file) => c.release(file),
                None => Ok(()),
            },
            Op::Keyspace(path) => c.keyspace(&ME, b(path), true).map(drop),
            Op::Replace(path, len, value) => {
                let flags = abi::O_RDWR | abi::O_TRUNC;
                let file = c.open(&ME, ROOT, b(path), flags, 0, 0)?;
                write(c, file, Some(0), &vec![value; len])?;
                c.release(file)
            }
            Op::SyncAll => c.sync(),
            // Those of the service.
            _ => Ok(()),
        }
    }

    /// Does something with a file that is open already, or opened for it.
    fn with(
        &self,
        path: &str,
        flags: u32,
        f: impl FnOnce(&Client, OfdLink) -> holdfast_client::Result<()>,
    ) -> holdfast_client::Result<()> {
        let c = &self.client;
        if let Some(file) = self.held.get(path) {
            c.setfl(*file, flags)?;
            return f(c, *file);
        }
        let file = c.open(&ME, ROOT, path.as_bytes(), abi::O_RDWR | flags, 0, 0)?;
        f(c, file)?;
        c.release(file)
    }

    /// Everything that is there.
    pub fn view(&mut self) -> Result<Whole, String> {
        let quotas = self.serve(quotas::seen)?;
        let now = sight::view(&self.client)?;
        let names = self.client.snapshot_list().map_err(|e| e.to_string())?;
        let snapshot = |name: Vec<u8>| {
            let text = String::from_utf8_lossy(&name).into_owned();
            let view = self.view_on(&name).map_err(|e| format!("{text}: {e}"))?;
            Ok((text, view))
        };
        let snapshots = names.into_iter().map(|s| snapshot(s.name));
        let snapshots = snapshots.collect::<Result<_, String>>()?;
        Ok(Whole {
            now,
            snapshots,
            quotas,
        })
    }

    /// Everything in a snapshot.
    fn view_on(&self, name: &[u8]) -> Result<View, String> {
        let fds = begin_on_snapshot(&self.engine, name).map_err(|e| e.to_string())?;
        sight::view(&client(&self.engine, &fds, JOURNAL_LEN)?)
    }

    /// Directories only some of whose content counts: whoever was interrupted sets the quota again.
    pub fn complete_quotas(&mut self) -> Done {
        let completed = self.serve(quotas::complete)?;
        self.step()?;
        if completed {
            self.serve(quotas::check)
                .map_err(|e| format!("completed: {e}"))?;
            self.step()?;
        }
        Ok(())
    }

    /// Whether all that one can do with a pool can be done: new objects, changes of what was
    /// found, and the removal of everything.
    pub fn use_it(&mut self, view: &View) -> Done {
        let ops = [
            Op::Mkdir("~new"),
            Op::Create("~new/f"),
            Op::Write("~new/f", 100, 5000, 9),
            Op::Append("~new/f", 10, 8),
            Op::Link("~new/f", "~new/g"),
            Op::Rename("~new/g", "~g"),
            Op::Truncate("~g", 4000),
            Op::Fsync("~g"),
        ];
        ops.iter().try_for_each(|op| self.call(op))?;
        for (path, seen) in view.iter().filter(|(_, seen)| seen.mode >> 12 == 0o10) {
            let at = seen.bytes.len() / 2;
            let bytes = vec![7; 3000];
            let written = self.with(path, 0, |c, f| write(c, f, Some(at), &bytes));
            written.map_err(|e| format!("write {path}: {e}"))?;
            let got = sight::see(&self.client, path);
            let got = got.map_err(|e| format!("see {path}: {e}"))?.bytes;
            // Another name may have grown the file already.
            if got.get(..at).is_none() || got[at..at + 3000] != bytes {
                return Err(format!("{path}: not what was written"));
            }
        }
        let c = &self.client;
        serving(&mut self.service, &mut self.engine, || {
            values::use_them(c, &ME)
        })?;
        self.step()?;
        let all = sight::view(&self.client)?;
        for (path, seen) in all.iter().rev() {
            let (c, path) = (&self.client, path.as_bytes());
            let done = match seen.mode >> 12 {
                4 => c.rmdir(&ME, ROOT, path),
                _ => c.unlink(&ME, ROOT, path),
            };
            done.map_err(|e| format!("remove {:?}: {e}", String::from_utf8_lossy(path)))?;
        }
        self.step()?;
        if sight::view(&self.client)?.is_empty() {
            Ok(())
        } else {
            Err("not empty in the end".into())
        }
    }
}

fn write(
    c: &Client,
    file: OfdLink,
    at: Option<usize>,
    bytes: &[u8],
) -> holdfast_client::Result<()> {
    let n = match at {
        Some(at) => c.pwrite(file, ConstBuf::from(bytes), at as i64)?,
        None => c.write(file, ConstBuf::from(bytes))?,
    };
    assert_eq!(n, bytes.len(), "a short write");
    Ok(())
}

/// Runs `f` while the service is at work.
fn serving<T>(service: &mut Option<Session>, engine: &mut Engine, f: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if let Some(session) = service {
            scope.spawn(|| {
                while !done.load(Acquire) && drain(session, engine).is_ok() {
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
        }
        let value = f();
        done.store(true, Release);
        value
    })
}

/// Until there is nothing to do. What waits for the client, whose thread may get no time for a
/// while, is waited for as the service does.
fn drain(session: &mut Session, engine: &mut Engine) -> Done {
    let begun = Instant::now();
    while begun.elapsed() < DRAIN_MAX {
        let turn = session.turn(engine);
        if turn.waiting && !turn.more {
            std::thread::sleep(Duration::from_micros(50));
        } else if !turn.more && turn.applied == 0 {
            let poisoned = session.memory.is_poisoned();
            return if poisoned {
                Err("the session is poisoned".into())
            } else {
                Ok(())
            };
        }
    }
    Err("the service never comes to an end".into())
}
