//! Real programs: each script of tests/programs runs once on tmpfs and once on a pool, at the
//! same path and in the same environment. Its exit status, its standard output and the tree that
//! it leaves must be equal; the pool's tree is read by a later run, from a service of its own.
//!
//! A script gets its directory as the first argument. Comments in its head say what it needs:
//!   `# needs: PROGRAM...`    skipped, by name, where one is missing
//!   `# modes: MODE...`       consistency modes to run in (default: posix); `dax-test`: sync, in
//!                            memory that is treated as DAX
//!   `# unstable: PATTERN...` files whose content and size may differ (`*` matches anything)
//!   `# seconds: N`           how long it may take (default: 120)
//!   `# unserved: WHY`        what in it only the pool's owner has
//!   `# unmounted: WHY`       what in it no mount has
//!
//! With `--served` a user who does not own the pool runs the scripts, in mode posix, and HF_SERVED
//! is in their environment on tmpfs, too. With `--mounted` they run, in mode posix, where the
//! kernel shows the pool's files, no program is interposed, and HF_MOUNTED is in their environment.

mod served;

use crate::dump;
use crate::outcome::{Outcomes, Verdict};
use crate::process::{self, Ended};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What the head of a script says.
struct Script {
    name: String,
    path: PathBuf,
    needs: Vec<String>,
    modes: Vec<String>,
    unserved: String,
    unmounted: String,
    unstable: Vec<String>,
    limit: Duration,
}

/// How scripts run on a pool.
struct Pools {
    holdfast: Option<PathBuf>,
    way: Way,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By its owner.
    Run,
    /// As a user who does not own it.
    Served,
    /// Where the kernel shows its files.
    Mounted,
}

impl Pools {
    fn is_served(&self) -> bool {
        self.way == Way::Served
    }

    /// A command of whoever runs the scripts.
    fn command(&self, program: &Path) -> Command {
        match self.is_served() {
            true => served::command(program),
            false => Command::new(program),
        }
    }

    /// `holdfast run` on a pool that appears at `at`: of whoever runs the scripts, with a report,
    /// or of the owner, who looks at what is left.
    fn run(
        &self,
        holdfast: &Path,
        mode: &str,
        (pool, at): (&Path, &Path),
        report: Option<&Path>,
    ) -> Command {
        let mut run = match report {
            Some(_) => self.command(holdfast),
            None => Command::new(holdfast),
        };
        run.arg("run").arg("--pool").arg(pool).arg("--at").arg(at);
        if !self.is_served() {
            run.args(["--consistency", mode]);
        }
        if let Some(report) = report {
            run.arg("--report").arg(report);
        }
        run
    }

    /// Whoever runs the scripts owns this.
    fn give(&self, path: &Path) -> io::Result<()> {
        match self.is_served() {
            true => served::give(path),
            false => Ok(()),
        }
    }
}

/// How one run ended and what it left.
struct Left {
    ended: Ended,
    tree: String,
}

/// `hf-e2e programs`
pub fn main(args: &[&str]) -> ExitCode {
    let baseline = args.contains(&"--baseline");
    let way = match (args.contains(&"--served"), args.contains(&"--mounted")) {
        (true, _) => Way::Served,
        (_, true) => Way::Mounted,
        _ => Way::Run,
    };
    let names: Vec<&str> = args
        .iter()
        .copied()
        .filter(|a| !a.starts_with("--"))
        .collect();
    let holdfast = if baseline {
        None
    } else {
        Some(process::holdfast())
    };
    let prepared = holdfast
        .transpose()
        .and_then(|h| scripts(&names).map(|s| (h, s)).map_err(|e| e.to_string()))
        .and_then(|hs| {
            process::scratch("programs")
                .map(|d| (hs, d))
                .map_err(|e| e.to_string())
        });
    let ((holdfast, scripts), work) = match prepared {
        Ok(prepared) => prepared,
        Err(why) => {
            eprintln!("programs: {why}");
            return ExitCode::from(2);
        }
    };
    let pools = Pools { holdfast, way };
    let outcomes = Outcomes::default();
    let next = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                process::own_mounts().expect("root may have mounts of its own");
                while let Some(script) = scripts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let modes = match way {
                        Way::Run => &script.modes[..],
                        Way::Served | Way::Mounted => &script.modes[..1],
                    };
                    for mode in modes {
                        let name = format!("{} ({mode})", script.name);
                        let verdict = judge(script, mode, &pools, &work);
                        outcomes.add(&name, verdict);
                    }
                }
            });
        }
    });
    if pools.is_served() {
        served::clean_up();
    }
    // Fails if something was left for a look.
    let _ = fs::remove_dir(&work);
    outcomes.finish()
}

/// The scripts with these names; all if there are none.
fn scripts(names: &[&str]) -> io::Result<Vec<Script>> {
    let dir = std::env::var_os("HF_PROGRAMS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("programs"),
        PathBuf::from,
    );
    let mut scripts = Vec::new();
    for entry in fs::read_dir(&dir)? {
        let path = entry?.path();
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let is_script = path.extension().is_some_and(|e| e == "sh");
        if is_script && (names.is_empty() || names.contains(&name.as_str())) {
            scripts.push(read_script(name, path)?);
        }
    }
    scripts.sort_by(|a, b| a.name.cmp(&b.name));
    if scripts.is_empty() {
        return Err(io::Error::other(format!(
            "no such script in {}",
            dir.display()
        )));
    }
    Ok(scripts)
}

fn read_script(name: String, path: PathBuf) -> io::Result<Script> {
    let text = fs::read_to_string(&path)?;
    let said = |key: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(key));
        lines
            .flat_map(str::split_whitespace)
            .map(String::from)
            .collect()
    };
    let mut modes = said("# modes:");
    if modes.is_empty() {
        modes.push("posix".into());
    }
    let seconds = said("# seconds:")
        .first()
        .and_then(|n| n.parse().ok())
        .unwrap_or(120);
    Ok(Script {
        name,
        path,
        needs: said("# needs:"),
        modes,
        unserved: said("# unserved:").join(" "),
        unmounted: said("# unmounted:").join(" "),
        unstable: said("# unstable:"),
        limit: Duration::from_secs(seconds),
    })
}

fn judge(script: &Script, mode: &str, pools: &Pools, work: &Path) -> Verdict {
    let why = |why: &str| (!why.is_empty()).then(|| why.to_string());
    let cannot = match pools.way {
        Way::Run => None,
        Way::Served => served::impossible()
            .map(str::to_string)
            .or(why(&script.unserved)),
        Way::Mounted => no_mounts().map(str::to_string).or(why(&script.unmounted)),
    };
    if let Some(why) = cannot {
        return Verdict::Skipped(why);
    }
    if let Some(missing) = script
        .needs
        .iter()
        .find(|program| !process::on_path(program))
    {
        return Verdict::Skipped(format!("{missing} is not installed"));
    }
    let dir = work.join(format!("{}-{mode}", script.name));
    let result = compare(script, mode, pools, &dir);
    let failures = match result {
        Ok(failures) => failures,
        Err(e) => vec![format!("the test itself failed: {e}")],
    };
    if failures.is_empty() {
        let _ = fs::remove_dir_all(&dir);
        return Verdict::Passed;
    }
    if std::env::var_os("HF_KEEP").is_none() {
        let _ = fs::remove_dir_all(&dir);
    }
    Verdict::Failed(failures)
}

/// Runs the script twice and returns what differs.
fn compare(script: &Script, mode: &str, pools: &Pools, dir: &Path) -> io::Result<Vec<String>> {
    fs::create_dir_all(dir.join("home"))?;
    pools.give(dir)?;
    pools.give(&dir.join("home"))?;
    let at = dir.join("hf");
    let base = on_tmpfs(script, pools, dir, &at)?;
    if base.ended.code() != Some(0) {
        let mut why = vec![format!("on tmpfs already: {}", base.ended.how())];
        why.extend(base.ended.tail());
        return Ok(why);
    }
    // The very same path serves again, now by the pool, or once more by tmpfs.
    fs::rename(&at, dir.join("base"))?;
    let (left, mut why) = match &pools.holdfast {
        Some(holdfast) => on_pool(script, mode, (pools, holdfast), dir, &at)?,
        None => (on_tmpfs(script, pools, dir, &at)?, Vec::new()),
    };
    if left.ended.status != base.ended.status {
        why.push(format!(
            "{}, on tmpfs {}",
            left.ended.how(),
            base.ended.how()
        ));
        why.extend(left.ended.tail());
    }
    why.extend(difference(
        "standard output",
        &base.ended.out,
        &left.ended.out,
    ));
    let stable = |tree: &str| blur(tree, &script.unstable);
    why.extend(difference("tree", &stable(&base.tree), &stable(&left.tree)));
    Ok(why)
}

/// The script in a shell that makes its directory first, with temporary files in the tree too.
fn command(mut command: Command, script: &Script, way: Way, at: &Path) -> Command {
    let dir = at.parent().unwrap_or(at);
    process::clean(&mut command, &dir.join("home"));
    match way {
        Way::Run => {}
        Way::Served => drop(command.env("HF_SERVED", "1")),
        Way::Mounted => drop(command.env("HF_MOUNTED", "1")),
    }
    let start = r#"umask 022; mkdir "$1/work" "$1/tmp" && exec bash "$2" "$1/work""#;
    command.env("TMPDIR", at.join("tmp")).current_dir(dir);
    command
        .args(["-c", start, "start"])
        .arg(at)
        .arg(&script.path);
    command
}

fn on_tmpfs(script: &Script, pools: &Pools, dir: &Path, at: &Path) -> io::Result<Left> {
    fs::create_dir(at)?;
    pools.give(at)?;
    let bash = pools.command(Path::new("bash"));
    let mut run = command(bash, script, pools.way, at);
    let ended = process::run(&mut run, script.limit, dir)?;
    Ok(Left {
        ended,
        tree: dump::tree(at)?,
    })
}

/// Why nothing can be mounted here.
fn no_mounts() -> Option<&'static str> {
    let device = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    device.err().map(|_| "this user may not open /dev/fuse")
}

/// The commands around a run, and what there is to say against it.
struct Around<'a> {
    holdfast: &'a Path,
    dir: &'a Path,
    why: Vec<String>,
}

impl Around<'_> {
    fn admin(&mut self, words: &[&str], paths: &[&Path]) -> io::Result<()> {
        let mut command = Command::new(self.holdfast);
        process::clean(&mut command, &self.dir.join("home"));
        command.args(words).args(paths);
        let ended = process::run(&mut command, Duration::from_secs(60), self.dir)?;
        self.note(&format!("holdfast {}", words.join(" ")), &ended);
        Ok(())
    }

    fn note(&mut self, what: &str, ended: &Ended) {
        if ended.code() != Some(0) {
            self.why.push(format!("{what}: {}", ended.how()));
            self.why.extend(ended.tail());
        }
    }
}

fn on_pool(
    script: &Script,
    mode: &str,
    (pools, holdfast): (&Pools, &Path),
    dir: &Path,
    at: &Path,
) -> io::Result<(Left, Vec<String>)> {
    let pool = dir.join("pool");
    let (medium, mode) = match mode {
        "dax-test" => (mode, "sync"),
        mode => ("auto", mode),
    };
    let mut around = Around {
        holdfast,
        dir,
        why: Vec::new(),
    };
    around.admin(
        &["pool", "create", "--size=1G", "--medium", medium],
        &[&pool],
    )?;
    let service = match pools.is_served() {
        true => Some(served::Service::start(holdfast, &pool, dir)?),
        false => None,
    };
    let ended = match pools.way {
        Way::Mounted => on_mount(script, &mut around, &pool, at)?,
        Way::Run | Way::Served => in_run(script, mode, pools, &mut around, at)?,
    };
    let on_host = at.symlink_metadata().is_ok();
    let mut list = pools.run(holdfast, mode, (&pool, at), None);
    process::clean(&mut list, &dir.join("home"));
    list.arg("--")
        .arg(std::env::current_exe()?)
        .arg("dump")
        .arg(at);
    let listed = process::run(&mut list, Duration::from_secs(60), dir)?;
    drop(service);
    around.admin(&["pool", "check"], &[&pool])?;
    if on_host {
        around
            .why
            .push(format!("{} exists on the host", at.display()));
    }
    around.note("listing the tree afterwards", &listed);
    let tree = listed.out;
    Ok((Left { ended, tree }, around.why))
}

/// The script in `holdfast run`.
fn in_run(
    script: &Script,
    mode: &str,
    pools: &Pools,
    around: &mut Around<'_>,
    at: &Path,
) -> io::Result<Ended> {
    let (pool, report) = (around.dir.join("pool"), around.dir.join("report"));
    let mut run = pools.run(around.holdfast, mode, (&pool, at), Some(&report));
    run.arg("--").arg("bash");
    let mut run = command(run, script, pools.way, at);
    let ended = process::run(&mut run, script.limit * 2, around.dir)?;
    around.why.extend(read_report(&report));
    Ok(ended)
}

/// The script where the kernel shows the pool's files, which are away when it has ended.
fn on_mount(script: &Script, around: &mut Around<'_>, pool: &Path, at: &Path) -> io::Result<Ended> {
    fs::create_dir(at)?;
    around.admin(&["mount"], &[pool, at])?;
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo")?;
    let here = format!(" {} ", at.display());
    let is_it = |line: &&str| line.contains(&here) && line.contains(" fuse.holdfast ");
    if mounts.lines().find(is_it).is_none() {
        around
            .why
            .push(format!("nothing is mounted at {}", at.display()));
    }
    let mut run = command(Command::new("bash"), script, Way::Mounted, at);
    let ended = process::run(&mut run, script.limit * 2, around.dir)?;
    around.admin(&["umount"], &[at])?;
    if let Err(e) = fs::remove_dir(at) {
        around.why.push(format!("{}: {e}", at.display()));
    }
    Ok(ended)
}

/// What the report says against the run: nothing served, or a program not instrumented.
fn read_report(path: &Path) -> Vec<String> {
    let json: Value = match fs::read(path).map(|bytes| serde_json::from_slice(&bytes)) {
        Ok(Ok(json)) => json,
        Ok(Err(e)) => return vec![format!("the report is not JSON: {e}")],
        Err(e) => return vec![format!("there is no report: {e}")],
    };
    let mut why = Vec::new();
    if json["served"].as_u64().is_none_or(|served| served == 0) {
        why.push(format!("the report shows no served call: {json}"));
    }
    if json["uninstrumented"]
        .as_array()
        .is_none_or(|programs| !programs.is_empty())
    {
        why.push(format!(
            "programs ran uninstrumented: {}",
            json["uninstrumented"]
        ));
    }
    why
}

/// Lines of the listing whose path matches a pattern lose the size and the content.
fn blur(tree: &str, patterns: &[String]) -> String {
    let blurred = tree.lines().map(|line| {
        let path = line.split(' ').next().unwrap_or_default();
        match line.split_once(" file ") {
            Some((start, _)) if patterns.iter().any(|p| matches(p, path)) => {
                format!("{start} file (unstable)\n")
            }
            _ => format!("{line}\n"),
        }
    });
    blurred.collect()
}

/// Whether the pattern, in which `*` stands for any text, matches the whole path.
fn matches(pattern: &str, path: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == path,
        Some((start, rest)) => path.strip_prefix(start).is_some_and(|tail| {
            (0..=tail.len())
                .filter(|&i| tail.is_char_boundary(i))
                .any(|i| matches(rest, &tail[i..]))
        }),
    }
}

/// The first lines in which two texts differ.
fn difference(what: &str, base: &str, ours: &str) -> Vec<String> {
    if base == ours {
        return Vec::new();
    }
    let (base, ours): (Vec<&str>, Vec<&str>) = (base.lines().collect(), ours.lines().collect());
    let mut lines = vec![format!("{what} differs (- tmpfs, + pool):")];
    let only = |mark: char, here: &[&str], there: &[&str]| -> Vec<String> {
        let missing = here.iter().filter(|line| !there.contains(line));
        missing
            .take(12)
            .map(|line| format!("{mark} {line}"))
            .collect()
    };
    lines.extend(only('-', &base, &ours));
    lines.extend(only('+', &ours, &base));
    if lines.len() == 1 {
        lines.push("the same lines in another order".into());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_paths() {
        assert!(matches("a/*/c", "a/b/c") && matches("*", "x") && matches("a*", "a"));
        assert!(!matches("a/*/c", "a/b/d") && !matches("a", "ab") && !matches("*.o", "a.oo"));
    }

    #[test]
    fn only_what_is_unstable_is_blurred() {
        let tree = "a 0644 0:0 links 1 file 3 0a\nb 0644 0:0 links 1 file 3 0b\n";
        let blurred = blur(tree, &["b*".into()]);
        assert_eq!(
            blurred,
            "a 0644 0:0 links 1 file 3 0a\nb 0644 0:0 links 1 file (unstable)\n"
        );
    }

    #[test]
    fn differences_are_shown() {
        assert!(difference("x", "a\n", "a\n").is_empty());
        assert_eq!(difference("x", "a\nb\n", "a\nc\n")[1..], ["- b", "+ c"]);
        assert_eq!(difference("x", "a\nb\n", "b\na\n").len(), 2);
    }
}
