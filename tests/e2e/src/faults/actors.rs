//! Who takes part in a round: the pool with its service, and the writers. Whatever is started
//! here is killed and waited for when its handle is dropped.

use super::PATIENCE;
use super::shared::COUNTER;
use crate::process::{self, Ended};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Far longer than the service lets a stopped program run here: locks are held for microseconds,
/// and it needs a processor to finish.
const HELP_MAX: Duration = Duration::from_millis(200);

/// A pool, or a plain directory where the test itself is tested.
pub struct Fixture {
    dir: PathBuf,
    mode: String,
    holdfast: Option<PathBuf>,
    /// Where programs see the tree.
    at: PathBuf,
}

impl Fixture {
    pub fn new(dir: &Path, mode: &str, holdfast: Option<&Path>) -> Result<Self, String> {
        fs::create_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let at = if holdfast.is_some() {
            "/hf".into()
        } else {
            dir.join("tree")
        };
        let fixture = Fixture {
            dir: dir.into(),
            mode: mode.into(),
            holdfast: holdfast.map(Into::into),
            at,
        };
        fixture.create()?;
        Ok(fixture)
    }

    fn pool(&self) -> PathBuf {
        self.dir.join("pool")
    }

    fn create(&self) -> Result<(), String> {
        let Some(holdfast) = &self.holdfast else {
            return fs::create_dir(&self.at).map_err(|e| e.to_string());
        };
        let mut command = Command::new(holdfast);
        process::clean(&mut command, &self.dir);
        command
            .args(["pool", "create", "--size", "512M"])
            .arg(self.pool());
        self.expect(&mut command, "pool create")
    }

    /// Puts a fresh pool in the place of one in which a round went wrong. With HF_KEEP the old
    /// one stays for a look.
    pub fn renew(&self) -> Result<(), String> {
        if self.holdfast.is_none() {
            return Ok(());
        }
        let pool = self.pool();
        let result = if std::env::var_os("HF_KEEP").is_some() {
            let taken = |n: &u32| !self.dir.join(format!("bad-{n}")).exists();
            let number = (0..).find(taken).unwrap_or_default();
            fs::rename(&pool, self.dir.join(format!("bad-{number}")))
        } else {
            fs::remove_dir_all(&pool)
        };
        result.map_err(|e| format!("{}: {e}", pool.display()))?;
        self.create()
    }

    /// Runs the command; anything but success in time is an error in words.
    fn expect(&self, command: &mut Command, what: &str) -> Result<(), String> {
        let ended = process::run(command, PATIENCE, &self.dir).map_err(|e| e.to_string())?;
        if ended.code() == Some(0) {
            Ok(())
        } else {
            Err(complaint(what, &ended))
        }
    }

    /// `hf-e2e WORDS...` as a program on the pool.
    fn program(&self, words: &[String]) -> Result<Command, String> {
        let me = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut command = match &self.holdfast {
            None => Command::new(me),
            Some(holdfast) => {
                let mut command = Command::new(holdfast);
                command
                    .arg("run")
                    .arg("--pool")
                    .arg(self.pool())
                    .arg("--at")
                    .arg(&self.at);
                command.args(["--consistency", &self.mode, "--"]).arg(me);
                command
            }
        };
        process::clean(&mut command, &self.dir);
        command.args(words);
        Ok(command)
    }

    /// What is wrong if the pool does not lie on this medium.
    pub fn must_be_on(&self, medium: &str) -> Result<(), String> {
        let Some(holdfast) = &self.holdfast else {
            return Err("a plain directory has no medium".into());
        };
        let mut command = Command::new(holdfast);
        process::clean(&mut command, &self.dir);
        command.args(["pool", "status"]).arg(self.pool());
        let ended =
            process::run(&mut command, PATIENCE, &self.dir).map_err(|e| format!("status: {e}"))?;
        let found = ended.out.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            words.next().filter(|word| *word == "medium")?;
            words.next()
        });
        match found {
            Some(found) if found == medium => Ok(()),
            found => Err(format!("the pool lies on {found:?}, not on `{medium}`")),
        }
    }

    /// Starts a writer in the directory `dir` of the tree.
    pub fn writer(&self, dir: &str, id: u64, seed: u64) -> Result<Writer, String> {
        self.writer_with(dir, id, seed, COUNTER)
    }

    /// The same with a counter of its own: nobody waits for a lock that the program itself takes.
    pub fn writer_apart(&self, dir: &str, id: u64, seed: u64) -> Result<Writer, String> {
        self.writer_with(dir, id, seed, &format!("{COUNTER}.{id}"))
    }

    fn writer_with(&self, dir: &str, id: u64, seed: u64, counter: &str) -> Result<Writer, String> {
        let at = self.at.join(dir);
        let sync = if self.mode == "posix" { "yes" } else { "no" };
        let words = [
            "write",
            &at.to_string_lossy(),
            &id.to_string(),
            &seed.to_string(),
            sync,
            counter,
        ];
        let mut command = self.program(&words.map(String::from))?;
        let err = self.dir.join(format!("writer-{id}.err"));
        let err_file = File::create(&err).map_err(|e| e.to_string())?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(err_file)
            .process_group(0);
        let mut child = command.spawn().map_err(|e| format!("holdfast run: {e}"))?;
        let progress = Arc::new(Watched::default());
        let out = child.stdout.take().ok_or("no pipe from the writer")?;
        let watcher = Arc::clone(&progress);
        std::thread::spawn(move || watcher.follow(BufReader::new(out)));
        Ok(Writer {
            child,
            id,
            seed,
            progress,
            err,
            killed: false,
        })
    }

    /// The judgement over a round, by a process of its own.
    pub fn judge(&self, dir: &str, writers: &[Writer]) -> Vec<String> {
        let at = self.at.join(dir);
        let mut words = vec![
            "verify".into(),
            at.to_string_lossy().into(),
            self.mode.clone(),
        ];
        words.extend(
            writers
                .iter()
                .map(|w| format!("{}:{}:{}", w.id, w.seed, w.acked())),
        );
        let result = self
            .program(&words)
            .and_then(|mut c| self.expect(&mut c, "verify"));
        result.err().into_iter().collect()
    }

    /// `pool check`, which must find nothing.
    pub fn check(&self) -> Vec<String> {
        let Some(holdfast) = &self.holdfast else {
            return Vec::new();
        };
        let mut command = Command::new(holdfast);
        process::clean(&mut command, &self.dir);
        command.args(["pool", "check"]).arg(self.pool());
        self.expect(&mut command, "pool check")
            .err()
            .into_iter()
            .collect()
    }

    /// A service in the foreground that says READY=1 as to systemd; None where there is no pool.
    pub fn serve(&self) -> Result<Option<Service>, Vec<String>> {
        if self.holdfast.is_none() {
            return Ok(None);
        }
        let service = self.serve_unready().map_err(|e| vec![e])?;
        match service.wait_until_ready() {
            Ok(()) => Ok(Some(service)),
            Err(e) => Err(vec![e]),
        }
    }

    /// The same, not waited for.
    pub fn serve_unready(&self) -> Result<Service, String> {
        let holdfast = self
            .holdfast
            .as_ref()
            .ok_or("there is no service on a plain directory")?;
        let notify = self.dir.join("notify");
        let _ = fs::remove_file(&notify);
        let socket = UnixDatagram::bind(&notify).map_err(|e| format!("notify socket: {e}"))?;
        socket
            .set_read_timeout(Some(PATIENCE))
            .map_err(|e| e.to_string())?;
        let err = self.dir.join("serve.err");
        let err_file = File::create(&err).map_err(|e| e.to_string())?;
        let mut command = Command::new(holdfast);
        process::clean(&mut command, &self.dir);
        command
            .arg("serve")
            .arg(self.pool())
            .env("NOTIFY_SOCKET", &notify);
        command
            .stdout(Stdio::null())
            .stderr(err_file)
            .process_group(0);
        let child = command
            .spawn()
            .map_err(|e| format!("holdfast serve: {e}"))?;
        Ok(Service { child, socket, err })
    }
}

fn complaint(what: &str, ended: &Ended) -> String {
    let lines: Vec<String> = ended
        .tail()
        .into_iter()
        .map(|line| format!("\n  {line}"))
        .collect();
    format!("{what}: {}{}", ended.how(), lines.concat())
}

/// A service that we started.
pub struct Service {
    child: Child,
    socket: UnixDatagram,
    err: PathBuf,
}

impl Service {
    fn wait_until_ready(&self) -> Result<(), String> {
        let mut message = [0; 256];
        match self.socket.recv(&mut message) {
            Ok(len) if message[..len].starts_with(b"READY=1") => Ok(()),
            Ok(len) => Err(format!(
                "serve says {:?}",
                String::from_utf8_lossy(&message[..len])
            )),
            Err(e) => {
                let said = fs::read_to_string(&self.err).unwrap_or_default();
                Err(format!("serve is not ready: {e}; {}", said.trim()))
            }
        }
    }

    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end, as systemd does, and waits.
    pub fn stop(mut self) -> Vec<String> {
        send(self.child.id(), Signal::TERM);
        let said = |err: &Path| fs::read_to_string(err).unwrap_or_default();
        match process::wait(&mut self.child, PATIENCE) {
            Ok(Some(status)) if status.success() => Vec::new(),
            Ok(Some(status)) => vec![format!("serve: {status}; {}", said(&self.err).trim())],
            Ok(None) => vec!["serve does not end after SIGTERM".into()],
            Err(e) => vec![format!("serve: {e}")],
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        process::kill_group(&self.child);
        let _ = self.child.wait();
    }
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
}

/// What a writer has said so far.
#[derive(Default)]
struct Progress {
    pid: Option<u32>,
    acked: u64,
    /// When the latest steps were acknowledged.
    times: Vec<Instant>,
    error: Option<String>,
    ended: bool,
}

#[derive(Default)]
struct Watched {
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Watched {
    fn follow(&self, out: impl BufRead) {
        for line in out.lines().map_while(Result::ok) {
            let mut progress = self.progress.lock().expect("nobody panics with this lock");
            match line.split_once(' ') {
                Some(("P", pid)) => progress.pid = pid.parse().ok(),
                Some(("A", step)) => {
                    progress.acked = step.parse().unwrap_or(progress.acked);
                    progress.times.push(Instant::now());
                }
                _ => progress.error = Some(line),
            }
            self.changed.notify_all();
        }
        self.progress
            .lock()
            .expect("nobody panics with this lock")
            .ended = true;
        self.changed.notify_all();
    }

    /// Waits until the condition holds or nothing more can come; false if it never held.
    fn wait(&self, limit: Duration, holds: impl Fn(&Progress) -> bool) -> bool {
        let progress = self.progress.lock().expect("nobody panics with this lock");
        let go_on = |p: &mut Progress| !holds(p) && !p.ended;
        let waited = self.changed.wait_timeout_while(progress, limit, go_on);
        waited.is_ok_and(|(progress, _)| holds(&progress))
    }
}

/// A program that works on the pool until it is killed or its input ends.
pub struct Writer {
    child: Child,
    pub id: u64,
    pub seed: u64,
    progress: Arc<Watched>,
    err: PathBuf,
    killed: bool,
}

impl Writer {
    pub fn acked(&self) -> u64 {
        self.look(|progress| progress.acked)
    }

    fn look<T>(&self, at: impl Fn(&Progress) -> T) -> T {
        at(&self
            .progress
            .progress
            .lock()
            .expect("nobody panics with this lock"))
    }

    /// Waits for this many acknowledged steps; says what is wrong if they do not come.
    pub fn wait_for_steps(&mut self, steps: u64) -> Vec<String> {
        if self
            .progress
            .wait(PATIENCE, |progress| progress.acked >= steps)
        {
            return Vec::new();
        }
        let (acked, ended) = self.look(|progress| (progress.acked, progress.ended));
        let how = if ended { "ended" } else { "hangs" };
        let id = self.id;
        vec![format!(
            "writer {id} {how} after step {acked}, expected {steps}{}",
            self.said()
        )]
    }

    /// From that moment to the next acknowledged step.
    pub fn pause_after(&self, moment: Instant) -> Duration {
        self.look(|progress| {
            let next = progress.times.iter().find(|time| **time > moment);
            next.map_or(Duration::ZERO, |time| *time - moment)
        })
    }

    /// Kills the program itself; if it has not said its number yet, what started it.
    pub fn kill(&mut self) -> bool {
        self.killed = true;
        match self.look(|progress| progress.pid) {
            Some(pid) => send(pid, Signal::KILL),
            None => drop(self.child.kill()),
        }
        true
    }

    /// Stops the program, as Ctrl-Z and SIGSTOP do.
    pub fn stop(&self) {
        if let Some(pid) = self.look(|progress| progress.pid) {
            send(pid, Signal::STOP);
        }
    }

    /// Lets it go on; says what is wrong if it was not stopped all the time.
    pub fn go_on(&mut self) -> Vec<String> {
        let Some(pid) = self.look(|progress| progress.pid) else {
            return Vec::new();
        };
        // It may be finishing what others needed.
        let begun = Instant::now();
        let is_stopped = || process::state(pid) == Some('T');
        while !is_stopped() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let wrong = (!is_stopped()).then(|| format!("writer {} went on though stopped", self.id));
        let more = self.acked() + 1;
        // A signal that comes while the service lets it finish something is lost, so it is sent
        // until the program has been seen running for longer than that takes.
        let begun = Instant::now();
        let mut running = begun;
        while (running.elapsed() < HELP_MAX || self.acked() < more) && begun.elapsed() < PATIENCE {
            if is_stopped() {
                send(pid, Signal::CONT);
                running = Instant::now();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        wrong.into_iter().chain(self.wait_for_steps(more)).collect()
    }

    /// Ends the writer and says what was wrong with its end. `may_fail`: EIO is an answer.
    pub fn end(&mut self, may_fail: bool) -> Vec<String> {
        drop(self.child.stdin.take());
        let ended = process::wait(&mut self.child, PATIENCE);
        // The program may outlive what started it; its end of the pipe tells.
        let silent = self.progress.wait(PATIENCE, |progress| progress.ended);
        match ended {
            Ok(Some(_)) if !silent => {
                vec![format!(
                    "writer {} outlives its run{}",
                    self.id,
                    self.said()
                )]
            }
            Ok(Some(_)) if self.killed => Vec::new(),
            Ok(Some(status)) => self.judge_end(status, may_fail),
            Ok(None) => vec![format!("writer {} hangs{}", self.id, self.said())],
            Err(e) => vec![format!("writer {}: {e}", self.id)],
        }
    }

    fn judge_end(&self, status: ExitStatus, may_fail: bool) -> Vec<String> {
        match status.code() {
            Some(0) => Vec::new(),
            Some(5) if may_fail => Vec::new(),
            _ => vec![format!("writer {}: {status}{}", self.id, self.said())],
        }
    }

    fn said(&self) -> String {
        let error = self.look(|progress| progress.error.clone());
        let error = error
            .map(|line| format!("; it said: {line}"))
            .unwrap_or_default();
        let stderr = fs::read_to_string(&self.err).unwrap_or_default();
        let stderr: Vec<&str> = stderr.lines().take(5).collect();
        if stderr.is_empty() {
            error
        } else {
            format!("{error}; stderr: {}", stderr.join(" / "))
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(pid) = self.look(|progress| if progress.ended { None } else { progress.pid }) {
            send(pid, Signal::KILL);
        }
        process::kill_group(&self.child);
        let _ = self.child.wait();
    }
}
