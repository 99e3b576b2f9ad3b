//! PostgreSQL: `pgbench` with one and with eight clients, and the shutdown of the server.
//!
//! Invariants: the server's data is in the measured directory, everything else of it elsewhere; it
//! syncs as it does by default; it does not outlive this process.

use super::{Plan, Took};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the server may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the programs are; nothing where one of them is missing.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&path)
        .filter_map(|dir| Some(fs::canonicalize(dir.join("initdb")).ok()?.parent()?.into()))
        .collect();
    for version in fs::read_dir("/usr/lib/postgresql").into_iter().flatten() {
        dirs.extend(version.ok().map(|v| v.path().join("bin")));
    }
    let all = ["initdb", "postgres", "pgbench", "pg_isready"];
    dirs.into_iter()
        .find(|dir| all.iter().all(|name| dir.join(name).exists()))
}

/// Why there is no PostgreSQL here, or nothing.
pub fn missing() -> Option<String> {
    match programs() {
        Some(_) => None,
        None => Some("initdb, postgres, pgbench and pg_isready are not installed".into()),
    }
}

/// A server that rows start when they need it.
pub struct Server {
    plan: Plan,
    running: Option<Running>,
}

struct Running {
    child: Child,
    /// Holds the socket.
    own: PathBuf,
}

impl Server {
    pub fn new(plan: Plan) -> Server {
        Server {
            plan,
            running: None,
        }
    }

    /// `row NAME`, or `prepare NAME`, which starts the server.
    pub fn command(&mut self, line: &str) -> io::Result<String> {
        match line.split_once(' ') {
            Some(("prepare", _)) => self.start().map(|()| String::new()),
            Some(("row", "pgbench-1")) => self.bench("1")?.text(),
            Some(("row", "pgbench-8")) => self.bench("8")?.text(),
            Some(("row", "postgres-stop")) => self.stop()?.text(),
            _ => Err(io::Error::other(format!("no such command: {line}"))),
        }
    }

    fn program(&self, name: &str) -> io::Result<Command> {
        let missing = || io::Error::other("PostgreSQL is not installed");
        let mut command = Command::new(programs().ok_or_else(missing)?.join(name));
        command.stdin(Stdio::null()).current_dir("/");
        Ok(command)
    }

    fn start(&mut self) -> io::Result<()> {
        if self.running.is_some() {
            return Ok(());
        }
        let data = self.plan.path("postgres");
        if fs::metadata(data.join("PG_VERSION")).is_err() {
            let mut initdb = self.program("initdb")?;
            initdb.args([
                "-U",
                "bench",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C",
                "-D",
            ]);
            finish(initdb.arg(&data))?;
        }
        let own = std::env::temp_dir().join(format!("holdfast-pg.{}", std::process::id()));
        fs::create_dir(&own)?;
        let bin = self.program("postgres")?;
        let mut server = Command::new("setpriv");
        server
            .args(["--pdeathsig", "KILL", "--"])
            .arg(bin.get_program());
        server.arg("-D").arg(&data).arg("-k").arg(&own);
        server.args(["-c", "listen_addresses=", "-c", "shared_buffers=64MB"]);
        let child = server
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .current_dir("/")
            .spawn()?;
        self.running = Some(Running { child, own });
        self.wait_until_ready()?;
        let mut init = self.pgbench(&["-i", "-q", "-s"])?;
        finish(
            init.arg(if self.plan.quick { "1" } else { "5" })
                .arg("postgres"),
        )?;
        Ok(())
    }

    fn socket(&self) -> io::Result<&Path> {
        let running = self.running.as_ref();
        Ok(&running
            .ok_or_else(|| io::Error::other("no server runs"))?
            .own)
    }

    fn wait_until_ready(&mut self) -> io::Result<()> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let mut ready = self.program("pg_isready")?;
            ready.arg("-q").arg("-h").arg(self.socket()?);
            if ready.status()?.success() {
                return Ok(());
            }
            if let Some(running) = &mut self.running
                && let Some(status) = running.child.try_wait()?
            {
                return Err(io::Error::other(format!("the server ended with {status}")));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(io::Error::other("the server did not start in time"))
    }

    fn pgbench(&self, words: &[&str]) -> io::Result<Command> {
        let mut command = self.program("pgbench")?;
        command.arg("-h").arg(self.socket()?).args(["-U", "bench"]);
        command.args(words);
        Ok(command)
    }

    /// Time per transaction of each client.
    fn bench(&mut self, clients: &str) -> io::Result<Took> {
        let seconds = if self.plan.quick { "1" } else { "5" };
        let mut command = self.pgbench(&["-n", "-c", clients, "-j", "1", "-T", seconds])?;
        let before = self.plan.counter.read();
        let text = finish(command.arg("postgres"))?;
        let after = self.plan.counter.read();
        let unread = || io::Error::other(format!("pgbench said: {}", text.replace('\n', " ")));
        let after_word = |word: &str| -> Option<f64> {
            let rest = text.split_once(word)?.1.trim_start();
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
            rest[..end.unwrap_or(rest.len())].parse().ok()
        };
        let ms = after_word("latency average =").ok_or_else(unread)?;
        let ops = after_word("actually processed:").ok_or_else(unread)? as usize;
        let mut took = Took::default();
        took.add(Duration::from_secs_f64(ms * ops as f64 / 1e3), ops);
        took.flushed(before, after);
        Ok(took)
    }

    /// Ends the server as an administrator does: it writes everything out.
    fn stop(&mut self) -> io::Result<Took> {
        let running = self.running.as_mut();
        let running = running.ok_or_else(|| io::Error::other("no server runs"))?;
        let before = self.plan.counter.read();
        let start = Instant::now();
        signal(&running.child, Signal::INT);
        while running.child.try_wait()?.is_none() {
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other("the server did not end in time"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut took = Took::default();
        took.add(start.elapsed(), 1);
        took.flushed(before, self.plan.counter.read());
        self.running = None;
        Ok(took)
    }
}

fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its own processes end with it at once, and nothing is written out.
        if matches!(self.child.try_wait(), Ok(None)) {
            signal(&self.child, Signal::QUIT);
            let start = Instant::now();
            while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < PATIENCE / 6 {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = fs::remove_dir_all(&self.own);
    }
}

/// Runs a program to its end; what it printed.
fn finish(command: &mut Command) -> io::Result<String> {
    let done = command.output()?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let name = Path::new(command.get_program()).display().to_string();
    let why = String::from_utf8_lossy(&done.stderr).replace('\n', " ");
    Err(io::Error::other(format!("{name}: {}", why.trim())))
}
