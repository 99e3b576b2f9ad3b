//! SQLite in a separate program: transactions of one row, `synchronous=FULL`.
//!
//! Invariants: starting the program and creating the table are not timed; the table holds as many
//! rows as were acknowledged, and SQLite's integrity check passes.

use super::{Plan, Took, data};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

/// Transactions between two readings of the clock.
const STEP: usize = 20;
/// What stands in for the program where only Python has SQLite.
const PYTHON: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
for line in sys.stdin:
    line = line.strip()
    if line.startswith('.read '):
        for statement in open(line[6:]):
            db.execute(statement)
    elif line:
        for row in db.execute(line):
            print(*row, sep='|', flush=True)
"#;

/// Why there is no SQLite here, or nothing.
pub fn missing() -> Option<String> {
    let works = |command: &mut Command| {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
        quiet
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    };
    let program = works(Command::new("sqlite3").arg("--version"));
    let module = || works(Command::new("python3").args(["-c", "import sqlite3"]));
    (!program && !module()).then(|| "there is neither sqlite3 nor Python's sqlite3".into())
}

struct Shell {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start(database: &Path) -> io::Result<Shell> {
        let spawn = |command: &mut Command| {
            let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
            piped.stderr(Stdio::inherit()).spawn()
        };
        // Interactive, it writes out what it answers at once.
        let mut child = match spawn(Command::new("sqlite3").arg("-interactive").arg(database)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                spawn(Command::new("python3").args(["-c", PYTHON]).arg(database))
            }
            started => started,
        }?;
        let output = child.stdout.take();
        let output = output.ok_or_else(|| io::Error::other("no pipe"))?;
        Ok(Shell {
            child,
            output: BufReader::new(output),
        })
    }

    /// Runs lines and waits until the last has been answered.
    fn run(&mut self, lines: &str) -> io::Result<()> {
        self.ask(&format!("{lines}\nSELECT 'do'||'ne';"), "done")
    }

    /// Sends lines and waits for a line that ends in `wanted`.
    fn ask(&mut self, lines: &str, wanted: &str) -> io::Result<()> {
        let input = self.child.stdin.as_mut();
        let input = input.ok_or_else(|| io::Error::other("no pipe"))?;
        input.write_all(format!("{lines}\n").as_bytes())?;
        input.flush()?;
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            if line.trim_end().ends_with(wanted) {
                return Ok(());
            }
            line.clear();
        }
        Err(io::Error::other(format!(
            "SQLite ended before it said {wanted}"
        )))
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Inserts rows of 100 bytes, a transaction each, in a journal mode.
pub fn run(plan: &Plan, mode: &str) -> io::Result<Took> {
    let dir = plan.path(&format!("sqlite-{mode}"));
    data::fresh(&dir)?;
    let mut shell = Shell::start(&dir.join("database"))?;
    shell.run(&format!(
        "PRAGMA journal_mode={mode};\nPRAGMA synchronous=FULL;\n\
         CREATE TABLE t(id INTEGER PRIMARY KEY, place INTEGER, body BLOB);\n\
         CREATE INDEX i ON t(place);"
    ))?;
    let script = std::env::temp_dir().join(format!("holdfast-bench-{}.sql", std::process::id()));
    let insert = "INSERT INTO t(place, body) VALUES(abs(random()) % 100000, randomblob(100));\n";
    fs::write(&script, insert.repeat(STEP))?;
    let done = transactions(plan, &mut shell, &script);
    let _ = fs::remove_file(&script);
    let took = done?;
    let rows = took.ops + STEP;
    let check = "SELECT 'rows='||count(*)||' '||(SELECT * FROM pragma_integrity_check) FROM t;";
    shell.ask(check, &format!("rows={rows} ok"))?;
    drop(shell);
    fs::remove_dir_all(&dir)?;
    Ok(took)
}

fn transactions(plan: &Plan, shell: &mut Shell, script: &Path) -> io::Result<Took> {
    let some = format!(".read {}", script.display());
    shell.run(&some)?;
    let mut took = Took::default();
    let ops = plan.ops(1000);
    let before = plan.counter.read();
    let start = Instant::now();
    while took.ops < ops && (took.ops == 0 || start.elapsed() < plan.limit()) {
        let chunk = Instant::now();
        shell.run(&some)?;
        took.add(chunk.elapsed(), STEP);
    }
    took.flushed(before, plan.counter.read());
    Ok(took)
}
