//! Quotas under real programs: they are stopped at the limit and go on when there is room; what is
//! counted is what is there, after kills, restarts, snapshots and restores.

use super::{Done, Fixture, kill_service, ok};
use crate::process;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes and objects below the working directory, as the files say.
const COUNT: &str = "{ find . -printf '%b %y\\n'; } | \
    awk '{ b += $1 } END { print b * 512, NR }'";
/// Maps holes for which there is not room for all, and stores to them.
const MAP: &str = "
import mmap
f = open(\"dir/mapped\", \"w+b\")
f.truncate(80 << 20)
m = mmap.mmap(f.fileno(), 80 << 20)
for i in range(0, 80 << 20, 4096):
    m[i] = 1
";
const PATIENCE: Duration = Duration::from_secs(20);

impl Fixture {
    fn quota(&self, words: &[&str]) -> Done<String> {
        let mut command = Command::new(&self.holdfast);
        command.arg("quota").arg(self.pool()).args(words);
        ok("quota", self.ended(command)?)
    }

    /// What `quota` says on its error output when it refuses something.
    fn quota_refused(&self, words: &[&str]) -> Done<String> {
        let mut command = Command::new(&self.holdfast);
        command.arg("quota").arg(self.pool()).args(words);
        let ended = self.ended(command)?;
        match ended.code() {
            Some(1 | 2) => Ok(ended.err),
            _ => Err(format!("quota {words:?}: {}", ended.how())),
        }
    }

    /// Kills the command as soon as it has begun, again and again, until it was killed half-way.
    fn interrupted(&self, words: &[&str]) -> Done {
        for n in 0..200 {
            let mut command = Command::new(&self.holdfast);
            command.arg("quota").arg(self.pool()).args(words);
            process::clean(&mut command, &self.dir.join("home"));
            let mut child = command.spawn().map_err(|e| e.to_string())?;
            std::thread::sleep(Duration::from_millis(10 + n));
            let _ = child.kill();
            let _ = child.wait();
            if self.quota(&["list"])?.contains("not complete") {
                return Ok(());
            }
        }
        Err(format!("{words:?} was never killed half-way"))
    }

    /// Bytes and objects that the first quota has taken.
    fn taken(&self) -> Done<String> {
        let listed = self.quota(&["list", "--json"])?;
        let json: serde_json::Value = serde_json::from_str(&listed).map_err(|e| e.to_string())?;
        Ok(format!(
            "{} {}\n",
            json[0]["bytes_taken"], json[0]["files_taken"]
        ))
    }

    /// A program that ends with its input.
    fn held(&self, line: &str) -> Done<Child> {
        let mut command = self.run(None);
        let line = format!("cd {} && {line}", self.dir.join("hf").display());
        command.args(["bash", "-c", &line]).current_dir(&self.dir);
        process::clean(&mut command, &self.dir.join("home"));
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().map_err(|e| e.to_string())
    }

    /// What the quota of `dir` has taken is what is below it, and so many bytes of a deleted file.
    fn du_agrees(&self, deleted: u64) -> Done {
        let begun = Instant::now();
        let number = |said: &str| said.split_whitespace().next().and_then(|n| n.parse().ok());
        loop {
            let shown: u64 = number(&self.line("du -s --block-size=1 dir")?).unwrap_or(0);
            let objects: u64 =
                number(&self.line("find dir -printf '%i\\n' | sort -u | wc -l")?).unwrap_or(0);
            let dir = self.pool().join("dir").display().to_string();
            let said = self.done(&["du", "-s", "--json", &dir])?;
            let json: serde_json::Value = serde_json::from_str(&said).map_err(|e| e.to_string())?;
            let files = objects + u64::from(deleted > 0);
            let wanted = format!("{} {files}\n", shown + deleted);
            let taken = self.taken()?;
            if json[0]["taken"] == shown && taken == wanted {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!(
                    "{taken:?} is counted, not {wanted:?}, and holdfast du says {said}"
                ));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Directory `dir` of the pool has what the quota says.
    fn counts(&self, dir: &str) -> Done {
        let begun = Instant::now();
        loop {
            let there = self.line(&format!("cd {dir} && {COUNT}"))?;
            let taken = self.taken()?;
            if taken == there {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("{taken:?} is counted, and {there:?} is there"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn line(&self, line: &str) -> Done<String> {
        ok(line, self.shell(None, line)?)
    }

    fn says(&self, line: &str, wanted: &str) -> Done {
        match self.line(line)? {
            said if said == wanted => Ok(()),
            said => Err(format!("{line}: {said:?} in place of {wanted:?}")),
        }
    }
}

/// Programs of all kinds reach the limit, say what they always say, and go on.
pub fn programs_meet_a_limit(f: &Fixture) -> Done {
    f.line("mkdir dir dir/a out && head -c 300000 /dev/urandom >dir/a/before")?;
    f.quota(&["set", "--directory", "dir", "4M", "--files", "100"])?;
    f.counts("dir")?;
    let full = "2>&1 | grep -om1 'Disk quota exceeded'";
    let quota = "Disk quota exceeded\n";
    f.says(
        &format!("dd if=/dev/zero of=dir/big bs=100K count=99 {full}"),
        quota,
    )?;
    f.counts("dir")?;
    f.says(&format!("cp /bin/bash dir/bash {full}"), quota)?;
    f.says(
        "echo x 2>/dev/null >dir/x; cat dir/a/before | wc -c",
        "300000\n",
    )?;
    f.line("rm dir/x dir/bash dir/big")?;
    f.line("cd dir && git init -q . && git config user.name n && git config user.email e")?;
    f.line("cd dir && cp a/before c && git add . && git commit -qm one && git fsck")?;
    f.line("rm -rf dir/.git && sqlite3 dir/db 'create table t(x); insert into t values(1)'")?;
    let insert = "insert into t select randomblob(1000) from \
        (with recursive n(i) as (select 1 union all select i+1 from n where i<9999) \
        select * from n)";
    f.says(
        &format!("sqlite3 dir/db '{insert}' 2>&1 | grep -cE 'full|disk I/O'"),
        "1\n",
    )?;
    f.says(
        "sqlite3 dir/db 'pragma integrity_check; select count(*) from t'",
        "ok\n1\n",
    )?;
    f.line("rm dir/db* && for i in $(seq 200); do touch dir/a/$i 2>/dev/null || break; done")?;
    f.says("find dir | wc -l", "100\n")?;
    f.line("tar cf out/all -C dir . && rm -r dir/a && tar xf out/all -C dir")?;
    f.says(
        "ln dir/a/1 out/1 2>&1 | grep -c cross; mv dir/a/1 out/ && ls dir/a/1 out/1 2>&1 | wc -l",
        "1\n2\n",
    )?;
    f.counts("dir")?;
    f.quota(&["set", "--directory", "/dir", "64M"])?;
    f.line("cp /bin/bash dir/bash && head -c 20M /dev/zero >dir/large && echo x >dir/hole")?;
    f.line("truncate -s 1G dir/hole && fallocate -p -o 0 -l 10M dir/large")?;
    f.line("head -c 5000 /dev/zero | dd of=dir/hole seek=1000 bs=4K conv=notrunc status=none")?;
    let stored = format!("python3 -c '{MAP}' 2>/dev/null; echo $?; rm dir/mapped");
    f.says(&stored, "135\n")?;
    f.counts("dir")?;
    f.quota(&["remove", "--directory", "dir"])?;
    f.line("mv dir/bash out/ && head -c 70M /dev/zero >dir/larger")?;
    equal_list(f, "")
}

/// A tree in which what files are long, what they take and what names there are differ.
const TREE: &str = "mkdir -p dir/s/t out && cd dir && seq 5 >small && : >empty && seq 90000 >big &&
    ln big s/link && ln s/link s/t/more && ln -s big short-link &&
    ln -s $(printf x%.0s {1..900}) long-link && mkfifo pipe &&
    truncate -s 50M hole && printf y | dd of=hole bs=1 seek=30M conv=notrunc status=none &&
    truncate -s 300 short-hole && fallocate -l 1M ahead &&
    head -c 512 /dev/urandom >inline && head -c 513 /dev/urandom >block &&
    head -c 20000 /dev/urandom >punched && fallocate -p -o 4096 -l 8192 punched &&
    setfattr -n user.x -v $(printf v%.0s {1..5000}) big 2>/dev/null; for i in $(seq 50); do
    mkdir -p s/$i/$i; head -c $((i * 700)) /dev/urandom >s/$i/$i/f; done";

/// A quota counts what `du` and `holdfast du` count, and beside that files which are deleted and
/// still open.
pub fn agree_with_du(f: &Fixture) -> Done {
    f.line(TREE)?;
    f.quota(&["set", "--directory", "dir", "200M"])?;
    f.du_agrees(0)?;
    f.line("rm dir/big; mv dir/s/1 dir/t1; truncate -s 100 dir/block; seq 900 >dir/small")?;
    f.line("cp -a dir/s dir/copy && rm -r dir/s/2*")?;
    f.du_agrees(0)?;
    let holder = "exec 3>dir/open && head -c 5M /dev/zero >&3 && rm dir/open && : >../held && cat";
    let mut holder = f.held(holder)?;
    while !f.dir.join("held").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    f.du_agrees(5 << 20)?;
    drop(holder.stdin.take());
    let _ = holder.wait();
    f.du_agrees(0)
}

fn equal_list(f: &Fixture, wanted: &str) -> Done {
    match f.quota(&["list"])? {
        listed if listed == wanted => Ok(()),
        listed => Err(format!("the list is {listed:?}")),
    }
}

/// Writers and services that are killed leave the count right.
pub fn kills_leave_it_right(f: &Fixture) -> Done {
    f.line("mkdir -p dir/sub; head -c 1M /dev/urandom >dir/sub/one")?;
    f.quota(&["set", "--directory", "dir", "200M"])?;
    let writer = "echo $$ >>../pids; cd dir; i=0; while true; do \
        i=$(((i+1) % 40)); case $((RANDOM % 6)) in 0) rm -f f$i;; \
        1) truncate -s $((RANDOM * 20)) f$i;; \
        2) mv -f f$i g$i 2>/dev/null;; 3) cp /bin/ls f$i;; \
        *) head -c $((RANDOM * 30)) /dev/zero >>f$i;; esac; done";
    for round in 0..6 {
        let mut writers = [f.started(None, writer)?, f.started(None, writer)?];
        std::thread::sleep(Duration::from_millis(700 + 150 * round));
        if round % 2 == 1 {
            kill_service(f)?;
            std::thread::sleep(Duration::from_millis(300));
        }
        // The programs themselves, of which the command that started them is told.
        let kill = "xargs kill -KILL <pids; rm pids";
        let mut killer = Command::new("bash");
        killer.args(["-c", kill]);
        f.ended(killer)?;
        for writer in &mut writers {
            let _ = writer.wait();
        }
        f.counts("dir")?;
        if round == 3 {
            f.take("between")?;
        }
    }
    f.line("rm -r dir/*")?;
    f.counts("dir")
}

/// What the limits are is kept with the pool: in saved pools and snapshots, too.
pub fn quotas_are_kept(f: &Fixture) -> Done {
    f.line("mkdir -p a/b; head -c 3M /dev/urandom >a/b/file; touch a/b/empty")?;
    f.quota(&["set", "--directory", "a", "5M"])?;
    f.take("s")?;
    f.line("head -c 1M /dev/urandom >a/b/more; cp a/b/file a/b/over; rm a/b/over")?;
    // What only the snapshot has does not count.
    f.line("rm a/b/file && head -c 4M /dev/urandom >a/b/new")?;
    f.counts("a")?;
    let copy = f.dir.join("copy").display().to_string();
    let stream = f.dir.join("stream").display().to_string();
    f.admin(&["save"], &[&stream])?;
    let mut command = Command::new(&f.holdfast);
    command.args(["restore", &stream, &copy]);
    ok("restore", f.ended(command)?)?;
    let mut command = Command::new(&f.holdfast);
    command.args(["quota", &copy, "list"]);
    let listed = ok("quota list", f.ended(command)?)?;
    let wanted = "/a  5M of 5M (100%), 5 files\n";
    if listed != wanted {
        return Err(format!("the restored pool has {listed:?}"));
    }
    equal_list(f, wanted)?;
    let mut command = Command::new(&f.holdfast);
    command
        .args(["run", "--pool", &copy, "--at"])
        .arg(f.dir.join("hf"));
    let line = format!("echo x >{}/a/x", f.dir.join("hf").display());
    command.args(["--", "bash", "-c", &line]);
    let ended = f.ended(command)?;
    if ended.code() == Some(0) || !ended.err.contains("quota exceeded") {
        return Err(format!("the restored pool: {}", ended.err));
    }
    let shown = "stat -f -c %b a";
    if f.line(shown)? != "1280\n" || ok(shown, f.shell(Some("s"), shown)?)? == "1280\n" {
        return Err("statfs shows the quota in the snapshot, or not in the present".into());
    }
    f.line("rm a/b/new")?;
    ok("rollback", f.snapshot(&["rollback", "s"])?)?;
    f.counts("a")?;
    wrong_words(f)
}

/// Keyspaces have quotas of their own, which are reached by the command, programs and streams.
pub fn keyspaces_have_quotas(f: &Fixture) -> Done {
    let pool = f.pool();
    let kv = |line: &str| format!("{} kv {} {line}", f.holdfast.display(), pool.display());
    let bash = |line: String| {
        let mut command = Command::new("bash");
        command.args(["-c", &line]);
        ok(&line, f.ended(command)?)
    };
    bash(kv("k put first 1"))?;
    f.quota(&["set", "--keyspace", "k", "1M"])?;
    equal_list(f, "keyspace k  6 of 1M (0%), 2 files\n")?;
    let load = "seq -f '%06g' 20000 | awk '{ print $1 \"\\t\" $1 }'";
    bash(format!("{load} | {}", kv("k load")))?;
    let values = "240006 20002\n";
    if f.taken()? != values {
        return Err(f.taken()?);
    }
    // Over and over: what replaces needs no room but for a moment.
    for _ in 0..3 {
        bash(format!("{load} | {}", kv("k load")))?;
    }
    if f.taken()? != values {
        return Err(f.taken()?);
    }
    let refused = bash(format!(
        "head -c 900000 /dev/zero | {} 2>&1; true",
        kv("k put large -")
    ))?;
    if !refused.contains("is used up") || !refused.contains("Fix: ") {
        return Err(format!("a value that is too long: {refused}"));
    }
    let full = "2>&1 | grep -om1 'Disk quota exceeded'";
    f.says(
        &format!("dd if=/dev/zero of=k/file bs=100K count=99 {full}; wc -c <k/000777"),
        "Disk quota exceeded\n6\n",
    )?;
    f.line("rm k/file && rm k/00000? && echo program >k/own && mv k/own k/000001")?;
    f.take("s")?;
    // Files and values count as they do on their own; a service that is killed counts anew.
    let taken = f.taken()?;
    kill_service(f)?;
    f.line("ls k | wc -l")?;
    if f.taken()? != taken {
        return Err(format!("{taken} before, {} after", f.taken()?));
    }
    // What only the snapshot has does not count.
    bash(kv("k drop"))?;
    if f.quota(&["list"])? != "" {
        return Err(f.quota(&["list"])?);
    }
    ok("rollback", f.snapshot(&["rollback", "s"])?)?;
    if f.taken()? != taken {
        return Err(format!("{taken} in the snapshot, {} now", f.taken()?));
    }
    f.quota(&["remove", "--keyspace", "k"])?;
    equal_list(f, "")
}

fn wrong_words(f: &Fixture) -> Done {
    for (words, says) in [
        (&["set", "--keyspace", "none", "1M"][..], "no keyspace"),
        (&["set", "--directory", "a/b", "1M"], "above or below"),
        (&["set", "--directory", "none", "1M"], "no directory"),
        (&["set", "--directory", "a/b/empty", "1M"], "no directory"),
        (&["set", "--user", "no-such-user", "1M"], "no user"),
        (&["set", "--user", "0", "0"], "0 bytes"),
        (&["set", "--user", "0"], "SIZE"),
        (&["set", "1M"], "--user"),
        (&["remove", "--user", "12345"], "no quota"),
    ] {
        let err = f.quota_refused(words)?;
        if !err.contains(says) || !err.contains("Fix: ") {
            return Err(format!("{words:?}: {err}"));
        }
    }
    Ok(())
}

/// Whoever sets or takes away the quota of a large directory may die, while programs work there:
/// doing it again completes it.
pub fn setting_is_interrupted(f: &Fixture) -> Done {
    f.line("mkdir -p dir/a/b dir/c; for i in $(seq 12000); do : >dir/a/b/$i; : >dir/c/$i; done")?;
    let busy = "echo $$ >../pids; cd dir; i=0; while true; do i=$((i+1)); \
        mkdir -p n$((i % 50))/x; head -c 5000 /dev/zero >n$((i % 50))/x/$((i % 99)); \
        mv a/b/$i c/m$i; mv -T n$(((i + 7) % 50)) a/n$i 2>/dev/null; done";
    let mut worker = f.started(None, busy)?;
    let set = ["set", "--directory", "dir", "400M"];
    f.interrupted(&set)?;
    f.quota(&set)?;
    f.line("xargs kill -KILL <../pids")?;
    let _ = worker.wait();
    if f.quota(&["list"])?.contains("not complete") {
        return Err("a quota that was set again is not complete".into());
    }
    f.counts("dir")?;
    let remove = ["remove", "--directory", "dir"];
    f.interrupted(&remove)?;
    f.quota(&remove)?;
    equal_list(f, "")?;
    // What is marked still could not be moved out.
    f.line("mkdir out && mv -T dir/a out/a && ln -t out dir/c/m*")?;
    f.quota(&["set", "--directory", "out", "400M"])?;
    f.counts("out")
}
