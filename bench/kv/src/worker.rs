//! A worker: one store, told row by row what to measure.
//!
//! Invariants: it takes one command per line from standard input and answers each with one line,
//! `ok ...` or `error ...`; rows come in the order of `ROWS` because each works on what the ones
//! before it left; what it made is gone when it ends in order.

use crate::bench::{self, Figures};
use crate::clock;
use crate::data::Data;
use crate::process;
use crate::store::{Done, Peer, Role, Site, Store};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What can be asked for.
pub const ROWS: [&str; 10] = [
    "load-sequential",
    "load-random",
    "get",
    "get-own",
    "get-other",
    "scan",
    "put",
    "batch",
    "mix",
    "reopen",
];

/// What the command line says.
#[derive(Clone)]
pub struct Plan {
    pub peer: &'static Peer,
    pub dir: PathBuf,
    pub keys: usize,
    pub value: usize,
    pub quick: bool,
    pub holdfast: PathBuf,
}

impl Plan {
    fn ops(&self, full: usize) -> usize {
        if self.quick { full / 20 } else { full }
    }

    /// The same words for another process.
    fn again(&self, role: &str) -> Done<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([role, self.peer.name]).arg(&self.dir);
        command.args([self.keys.to_string(), self.value.to_string()]);
        command.arg(if self.quick { "quick" } else { "full" });
        command.arg(&self.holdfast);
        Ok(command)
    }
}

/// Where the store of a plan is.
pub fn site(plan: &Plan, data: &Data) -> Site {
    Site {
        dir: plan.dir.clone(),
        payload: data.payload(),
        holdfast: plan.holdfast.clone(),
    }
}

/// Removes a store that is not open, and all that its peer made for it.
pub fn clear(plan: &Plan, site: &Site) -> Done<()> {
    if site.dir.exists() {
        (plan.peer.unmake)(site)?;
    }
    match fs::remove_dir_all(&site.dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Named figures of one row.
type Cell = (&'static str, Figures);

struct Worker {
    plan: Plan,
    data: Data,
    site: Site,
    store: Option<Box<dyn Store>>,
}

/// Answers commands until the end of standard input.
pub fn serve(plan: Plan) -> Done<()> {
    let data = Data::new(plan.keys, plan.value);
    let site = site(&plan, &data);
    let mut worker = Worker {
        plan,
        data,
        site,
        store: None,
    };
    for line in std::io::stdin().lock().lines() {
        let answer = match worker.command(&line?) {
            Ok(cells) => format!("ok {}", text(&cells)),
            Err(error) => format!("error {}", error.to_string().replace('\n', " ")),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    worker.clear()
}

/// `name wall=1.5 all=2;other ...`
fn text(cells: &[Cell]) -> String {
    let mut out = String::new();
    for (name, figures) in cells {
        let separator = if out.is_empty() { "" } else { ";" };
        let _ = write!(out, "{separator}{name}");
        for (figure, value) in figures {
            let _ = write!(out, " {figure}={value}");
        }
    }
    out
}

impl Worker {
    fn command(&mut self, line: &str) -> Done<Vec<Cell>> {
        let row = ROWS
            .iter()
            .find(|row| line.strip_prefix("row ") == Some(row));
        let row: &'static str = row.ok_or_else(|| format!("no such command: {line}"))?;
        match row {
            "load-sequential" => self.load(row, (0..self.plan.keys).collect()),
            "load-random" => {
                let mut cells = self.load(row, self.data.shuffled(3))?;
                cells.extend(self.space("space-loaded")?);
                Ok(cells)
            }
            "get-other" => self.other(),
            "mix" => self.mix(),
            "reopen" => self.reopen(),
            _ => Ok(vec![(row, self.simple(row)?)]),
        }
    }

    fn store(&self) -> Done<&dyn Store> {
        Ok(self.store.as_deref().ok_or("nothing was loaded")?)
    }

    fn simple(&self, row: &str) -> Done<Figures> {
        let (store, data) = (self.store()?, &self.data);
        match row {
            "get" => bench::gets(store, data, self.plan.ops(400_000)),
            "get-own" => bench::own_gets(store, data, self.plan.ops(400_000)),
            "scan" => bench::scans(store, data, self.plan.ops(10_000)),
            "put" => bench::puts(store, data, self.plan.ops(50_000), 5),
            _ => {
                let mut order = data.shuffled(6);
                order.truncate(data.keys / 2);
                bench::batches(store, data, &order)
            }
        }
    }

    /// A new store with all keys in it.
    fn load(&mut self, row: &'static str, order: Vec<usize>) -> Done<Vec<Cell>> {
        self.clear()?;
        fs::create_dir_all(&self.site.dir)?;
        (self.plan.peer.make)(&self.site)?;
        self.data.forget();
        let store = (self.plan.peer.open)(&self.site, Role::Alone)?;
        let figures = bench::batches(&*store, &self.data, &order)?;
        bench::verify(&*store, &self.data, order.into_iter().step_by(97))?;
        self.store = Some(store);
        Ok(vec![(row, figures)])
    }

    fn clear(&mut self) -> Done<()> {
        self.store = None;
        clear(&self.plan, &self.site)
    }

    /// What the files occupy, as a multiple of keys and values.
    fn space(&self, name: &'static str) -> Done<Option<Cell>> {
        if !self.plan.peer.lasting {
            return Ok(None);
        }
        let store = self.store()?;
        bench::settle(&store.helpers());
        let ratio = occupied(&self.site.dir)? as f64 / self.site.payload as f64;
        Ok(Some((name, vec![("ratio", ratio)])))
    }

    fn mix(&mut self) -> Done<Vec<Cell>> {
        let time = Duration::from_millis(if self.plan.quick { 200 } else { 2000 });
        let (reads, writes) = bench::mix(self.store()?, &self.data, time)?;
        let mut cells = vec![("mix-read", reads), ("mix-write", writes)];
        cells.extend(self.space("space-overwritten")?);
        Ok(cells)
    }

    /// Gets from another process, while this one has the store open.
    fn other(&mut self) -> Done<Vec<Cell>> {
        if !self.plan.peer.shared {
            return Ok(Vec::new());
        }
        self.store()?;
        self.store = None;
        let open = self.plan.peer.open;
        let sharing = open(&self.site, Role::Sharing)?;
        let output = self.plan.again("reader")?.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().into());
        }
        let line = String::from_utf8_lossy(&output.stdout).into_owned();
        drop(sharing);
        self.store = Some(open(&self.site, Role::Alone)?);
        let mut figures = Figures::new();
        for name in ["wall", "thread", "all", "median"] {
            let words = line.split_ascii_whitespace();
            let value = words
                .filter_map(|w| w.split_once('='))
                .find(|(figure, _)| *figure == name)
                .and_then(|(_, value)| value.parse().ok());
            figures.push((name, value.ok_or("the reader said nothing")?));
        }
        Ok(vec![("get-other", figures)])
    }

    /// Kills a writer, and whatever works for it, in the middle of its work; opens the store.
    fn reopen(&mut self) -> Done<Vec<Cell>> {
        if !self.plan.peer.lasting {
            return Ok(Vec::new());
        }
        self.store()?;
        self.store = None;
        let count = self.site.dir.with_extension("count");
        fs::write(&count, [0; 8])?;
        let mut command = self.plan.again("victim")?;
        command
            .arg(&count)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let victim = command.spawn()?;
        let killed = self.kill(victim, &count);
        let done = killed.and_then(|()| written(&count))?;
        fs::remove_file(&count)?;
        let start = (Instant::now(), clock::thread_ns());
        let store = (self.plan.peer.open)(&self.site, Role::Alone)?;
        let mut value = Vec::new();
        let there = store.get(self.data.key(0).as_ref(), &mut value)?;
        let wall = start.0.elapsed().as_nanos() as f64;
        let thread = (clock::thread_ns() - start.1) as f64;
        if !there {
            return Err("the first key is gone".into());
        }
        self.judge(&*store, done)?;
        self.store = Some(store);
        Ok(vec![("reopen", vec![("wall", wall), ("thread", thread)])])
    }

    fn kill(&self, mut victim: Child, count: &Path) -> Done<()> {
        let start = Instant::now();
        while written(count)? == 0 && start.elapsed() < Duration::from_secs(60) {
            if let Some(status) = victim.try_wait()? {
                return Err(format!("the writer to be killed ended with {status}").into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(if self.plan.quick {
            50
        } else {
            300
        }));
        let helpers = process::users(&self.site.dir);
        victim.kill()?;
        helpers.into_iter().for_each(process::kill);
        victim.wait()?;
        Ok(())
    }

    /// Whatever was acknowledged before the kill is there, and nothing that was not written.
    fn judge(&self, store: &dyn Store, done: usize) -> Done<()> {
        let order = self.data.shuffled(VICTIM);
        for &i in order.iter().take(done) {
            self.data.write(i);
        }
        if let Some(&i) = order.get(done) {
            let mut value = Vec::new();
            store.get(self.data.key(i).as_ref(), &mut value)?;
            if value == self.data.value(i, self.data.version(i) + 1) {
                self.data.write(i);
            }
        }
        let step = order.len().div_ceil(20_000);
        let all = (0..done).chain((0..order.len()).step_by(step));
        for n in all {
            let lost = |e| format!("put {n} of {done} that were acknowledged before a kill: {e}");
            bench::verify(store, &self.data, [order[n]].into_iter()).map_err(lost)?;
        }
        Ok(())
    }
}

/// The seed of the order in which a victim writes.
const VICTIM: u64 = 31;

fn written(count: &Path) -> Done<usize> {
    let mut bytes = [0; 8];
    fs::File::open(count)?.read_exact_at(&mut bytes, 0)?;
    Ok(u64::from_le_bytes(bytes) as usize)
}

/// Another process that reads. Every key was written once.
pub fn reader(plan: &Plan) -> Done<()> {
    let data = Data::new(plan.keys, plan.value);
    (0..plan.keys).for_each(|i| {
        data.write(i);
    });
    let store = (plan.peer.open)(&site(plan, &data), Role::Reader)?;
    let figures = bench::own_gets(&*store, &data, plan.ops(400_000))?;
    println!("{}", text(&[("get-other", figures)]));
    Ok(())
}

/// A writer that never stops, and notes after each put how many there were.
pub fn victim(plan: &Plan, count: &Path) -> Done<()> {
    let data = Data::new(plan.keys, plan.value);
    let store = (plan.peer.open)(&site(plan, &data), Role::Alone)?;
    let count = fs::OpenOptions::new().write(true).open(count)?;
    let mut value = Vec::new();
    let order = data.shuffled(VICTIM);
    for (n, &i) in order.iter().enumerate() {
        let key = data.key(i);
        if !store.get(key.as_ref(), &mut value)? {
            return Err(format!("key {i} is gone").into());
        }
        // How often it was written follows from what it holds.
        let now = data.which(i, &value);
        let next = now.ok_or_else(|| format!("key {i} holds what nobody wrote"))? + 1;
        store.put(key.as_ref(), data.value(i, next))?;
        count.write_all_at(&(n as u64 + 1).to_le_bytes(), 0)?;
    }
    // All are written; wait for the end.
    std::thread::sleep(Duration::from_secs(120));
    Ok(())
}

/// Bytes that the files below a directory occupy.
fn occupied(dir: &Path) -> std::io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        sum += meta.blocks() * 512;
        if meta.is_dir() {
            sum += occupied(&entry.path())?;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers;

    fn worker(peer: &'static Peer, base: &Path) -> Worker {
        let plan = Plan {
            peer,
            dir: base.join(peer.name),
            keys: 3000,
            value: 100,
            quick: true,
            holdfast: PathBuf::new(),
        };
        let data = Data::new(plan.keys, plan.value);
        let site = site(&plan, &data);
        Worker {
            plan,
            data,
            site,
            store: None,
        }
    }

    #[test]
    fn every_peer_without_a_service_goes_through_its_rows() {
        let base = std::env::temp_dir().join(format!("holdfast-bench-kv.{}", std::process::id()));
        for peer in peers::ALL.iter().filter(|p| p.name != "holdfast") {
            let mut worker = worker(peer, &base);
            // The rows that need this very program as another process are left out.
            for row in ROWS.iter().filter(|r| !["get-other", "reopen"].contains(r)) {
                let cells = worker.command(&format!("row {row}"));
                let cells = cells.unwrap_or_else(|e| panic!("{row} of {}: {e}", peer.name));
                assert!(text(&cells).contains('='), "{row} of {}", peer.name);
            }
            assert!(worker.command("row nothing").is_err());
            worker.clear().unwrap();
            assert!(!worker.site.dir.exists());
        }
        let _ = fs::remove_dir(&base);
    }

    #[test]
    fn answers_name_rows_and_figures() {
        let cells = [("a", vec![("wall", 1.5), ("all", 2.0)]), ("b", vec![])];
        assert_eq!(text(&cells), "a wall=1.5 all=2;b");
    }
}
