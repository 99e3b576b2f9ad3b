//! Users who do not trust each other on one pool, compared with the same users on tmpfs.
//!
//! Each user has a process of their own that lives for the whole test. They are told, one at a time
//! and at random, to make a call; what is said of it on the pool must be what is said on tmpfs. The
//! pool's owner and root have it mapped, the others are served.

pub mod actor;
mod cases;
mod copying;
mod keys;
mod leases;
mod leaving;
mod lent;
mod look;
mod maps;
mod mounted;
mod passing;
mod pipes;
mod quotas;
mod requests;
mod snapshots;
mod sockets;
mod space;
mod whole;
mod work;

use crate::bad_input::{Case, Fixture, Stop, run_cases, wrong};
use crate::process;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use work::{Random, USERS};

const CASES: &[(&str, Case)] = &[
    ("tmpfs of the owner", |f| compare(f, "3001")),
    ("tmpfs of a stranger", |f| compare(f, "3009")),
];

/// `hf-e2e users`
pub fn main(names: &[&str]) -> ExitCode {
    run_cases("users", &[CASES, cases::CASES].concat(), names)
}

/// Calls of a round; each round begins in an empty tree.
const CALLS: usize = 1500;
const ROUNDS: u64 = 12;
const GROUPS: &str = "4001";

/// A user's process.
struct Actor {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Actor {
    /// Runs `program`, which does as it is told, on the pool if there is one.
    fn start(
        fixture: &Fixture,
        user: &str,
        pool: Option<&Path>,
        program: &[&OsStr],
    ) -> Result<Actor, Stop> {
        let mut command = as_user(user);
        if let Some(pool) = pool {
            command.arg(&fixture.holdfast).arg("run").arg("--pool");
            command.arg(pool).arg("--");
        }
        command.args(program);
        process::clean(&mut command, &fixture.dir);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let to = child.stdin.take().ok_or(Stop::Wrong("no pipe".into()))?;
        let from = child.stdout.take().ok_or(Stop::Wrong("no pipe".into()))?;
        let from = BufReader::new(from);
        Ok(Actor { child, to, from })
    }

    fn says(&mut self, call: &str) -> Result<String, Stop> {
        let mut said = String::new();
        let told = writeln!(self.to, "{call}").and_then(|()| self.from.read_line(&mut said));
        match told {
            Ok(1..) => Ok(said.trim_end().into()),
            Ok(0) => wrong(format!("the process ended at {call:?}")),
            Err(e) => wrong(format!("{call:?}: {e}")),
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command as a user with a group of the same number, who is also in `GROUPS` if 3001 or 3002.
pub fn as_user(user: &str) -> Command {
    let mut command = Command::new("setpriv");
    let groups = match user {
        "3001" | "3002" => format!("--groups={GROUPS}"),
        _ => "--clear-groups".into(),
    };
    command.args([format!("--reuid={user}"), format!("--regid={user}"), groups]);
    command
}

/// A pool that `owner` made, where everybody comes; its service runs until the value is dropped.
pub struct Shared<'f> {
    pub fixture: &'f Fixture,
    pub pool: PathBuf,
    service: Child,
}

impl Shared<'_> {
    pub fn new<'f>(fixture: &'f Fixture, owner: &str) -> Result<Shared<'f>, Stop> {
        Shared::with(fixture, owner, &[])
    }

    /// The same with options of `pool create`.
    pub fn with<'f>(
        fixture: &'f Fixture,
        owner: &str,
        options: &[&str],
    ) -> Result<Shared<'f>, Stop> {
        fixture.need_root()?;
        let top = fixture.path("theirs");
        fs::create_dir(&top)?;
        let number = owner.parse().ok();
        std::os::unix::fs::chown(&top, number, number)?;
        let pool = top.join("pool");
        let mut command = as_user(owner);
        command.arg(&fixture.holdfast).args(["pool", "create"]);
        command.arg(&pool).args(["--size", "256M"]).args(options);
        let made = fixture.end_of(command)?;
        if made.code() != Some(0) {
            let why = made.err.trim();
            return Err(Stop::Skip(format!("user {owner} cannot work here: {why}")));
        }
        let mut command = as_user(owner);
        command.arg(&fixture.holdfast).arg("serve").arg(&pool);
        process::clean(&mut command, &fixture.dir);
        let log = fs::File::create(fixture.path("log"))?;
        let service = command.stderr(log).spawn()?;
        let shared = Shared {
            fixture,
            pool,
            service,
        };
        shared.wait()?;
        Ok(shared)
    }

    /// The service dies; the next program's run begins another one.
    pub fn kill(&mut self) -> Result<(), Stop> {
        self.service.kill()?;
        self.service.wait()?;
        Ok(())
    }

    fn wait(&self) -> Result<(), Stop> {
        for _ in 0..1000 {
            if self.pool.join("sock").exists() {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        wrong("no service within 10 s")
    }

    /// What a script of the shell says that `user` runs on the pool.
    pub fn says(&self, user: &str, script: &str) -> Result<process::Ended, Stop> {
        let mut command = as_user(user);
        command.arg(&self.fixture.holdfast).args(["run", "--pool"]);
        command.arg(&self.pool).args(["--", "bash", "-c", script]);
        self.fixture.end_of(command)
    }

    /// The script must say this, and nothing else.
    pub fn expect(&self, user: &str, script: &str, expected: &str) -> Result<(), Stop> {
        let ended = self.says(user, script)?;
        if ended.code() == Some(0) && ended.out == expected {
            return Ok(());
        }
        let (out, err) = (ended.out.trim(), ended.err.trim());
        wrong(format!(
            "user {user}: {}, said {out:?} {err:?}, not {expected:?}",
            ended.how()
        ))
    }
}

impl Shared<'_> {
    /// Ends the service, and looks whether the pool is whole.
    pub fn end(self) -> Result<(), Stop> {
        let (fixture, pool) = (self.fixture, self.pool.clone());
        drop(self);
        let pool = pool.to_string_lossy();
        fixture.done(&["pool", "check", &pool]).map(drop)
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.service);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.service.wait();
    }
}

fn compare(fixture: &Fixture, owner: &str) -> Result<(), Stop> {
    let shared = Shared::new(fixture, owner)?;
    shared.expect(owner, "chmod 777 /hf", "")?;
    // The same modes and owners, where the kernel decides.
    let plain = PathBuf::from(format!("/dev/shm/hf-users-{}", std::process::id()));
    fs::create_dir(&plain)?;
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o777))?;
    let number = owner.parse().ok();
    std::os::unix::fs::chown(&plain, number, number)?;
    let compared = (0..ROUNDS).try_for_each(|seed| round(&shared, &plain, seed));
    let _ = fs::remove_dir_all(&plain);
    compared?;
    shared.end()
}

fn round(shared: &Shared<'_>, plain: &Path, seed: u64) -> Result<(), Stop> {
    let mut random = Random(seed);
    let mut actors = Vec::new();
    let me = std::env::current_exe()?;
    let program = [me.as_os_str(), "act".as_ref()];
    for user in USERS {
        let on_tmpfs = Actor::start(shared.fixture, user, None, &program)?;
        let on_pool = Actor::start(shared.fixture, user, Some(&shared.pool), &program)?;
        actors.push((on_tmpfs, on_pool));
    }
    let top = format!("{}/{seed}", plain.display());
    let mut told = Vec::new();
    let mut both = |(on_tmpfs, on_pool): &mut (Actor, Actor), call: [&str; 2], who: &str| {
        let (expected, said) = (on_tmpfs.says(call[0])?, on_pool.says(call[1])?);
        told.push(format!("{who}: {}: {expected}", call[1]));
        if expected == said {
            return Ok(());
        }
        let last = told.len().saturating_sub(20);
        let history = told[last..].join("\n");
        wrong(format!("seed {seed}:\n{history}\nand on the pool: {said}"))
    };
    for (index, actor) in actors.iter_mut().enumerate() {
        let who = USERS[index];
        if index == 0 {
            let calls = [format!("mkdir {top} 777"), format!("mkdir /hf/{seed} 777")];
            both(actor, calls.each_ref().map(|call| call as &str), who)?;
            let calls = [format!("chmod {top} 777"), format!("chmod /hf/{seed} 777")];
            both(actor, calls.each_ref().map(|call| call as &str), who)?;
        }
        let calls = [format!("chdir {top}"), format!("chdir /hf/{seed}")];
        both(actor, calls.each_ref().map(|call| call as &str), who)?;
    }
    for _ in 0..CALLS {
        let index = random.below(actors.len());
        let call = work::call(&mut random, index == 0);
        // A working directory that leads out of the tree would compare the host with the pool.
        let call = match call.as_str() {
            "chdir .." => format!("chdir {}", ["/hf", &seed.to_string()].join("/")),
            call => call.into(),
        };
        let elsewhere = call.replace(&format!("/hf/{seed}"), &top);
        both(&mut actors[index], [&elsewhere, &call], USERS[index])?;
    }
    Ok(())
}
