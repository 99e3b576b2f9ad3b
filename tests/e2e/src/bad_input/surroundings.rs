//! Surroundings that are short of something: space, permission, limits, or the pool itself because
//! another process has it.

use super::{Case, Fixture, LIMIT, RUN_FAILED, Stop, refusal, wrong};
use crate::process::{self, Ended};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const CASES: &[(&str, Case)] = &[
    ("full pool", full_pool),
    ("pool full of small files", full_of_files),
    ("sendfile into a full pool", sent_until_full),
    ("full file system", full_file_system),
    ("full while it restores", full_while_it_restores),
    ("read-only file system", read_only),
    ("someone else's pool", someone_else),
    ("crowd of idle connections", crowd),
    ("no permission to create", no_permission),
    ("two services", two_services),
    ("destroy in use", destroy_in_use),
    ("no dev shm", no_dev_shm),
    ("tight limits", limits),
    ("run inside run", run_inside_run),
    ("one mode asked for at once", mode_at_once),
    ("stopped service", stopped_service),
    ("driver that is handed a pool file", handed_over),
];

fn full_pool(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    for round in 0..3 {
        let fill = "dd if=/dev/zero of=/hf/fill bs=64k 2>&1; echo status $?; stat -c %s /hf/fill";
        let ended = fixture.run(&pool, &["bash", "-c", fill])?;
        if !ended.out.contains("No space left on device") || !ended.out.contains("status 1") {
            return wrong(format!(
                "round {round}: filling: {} {}",
                ended.how(),
                ended.out
            ));
        }
        fixture.intact(&pool)?;
        // What is full takes no more, and says so, but still removes.
        let more = "echo x >/hf/more; echo more $?; rm /hf/fill && echo removed; rm -f /hf/more";
        let ended = fixture.run(&pool, &["bash", "-c", more])?;
        if !ended.out.contains("removed") {
            return wrong(format!(
                "round {round}: removing: {} {}",
                ended.how(),
                ended.err
            ));
        }
        // What is removed is free for the very next call, and shown as free.
        let at_once = "dd if=/dev/zero of=/hf/big bs=1M 2>/dev/null
            rm /hf/big; free=$(stat -f -c %f /hf); [ $free -gt 12000 ] || echo $free free
            head -c 50M /dev/zero >/hf/next && cp /hf/hello /hf/small && rm /hf/next /hf/small";
        let ended = fixture.run(&pool, &["bash", "-c", at_once])?;
        if ended.code() != Some(0) || !ended.out.is_empty() {
            let (out, err) = (ended.out.trim(), ended.err.trim());
            return wrong(format!(
                "round {round}: at once: {} {out} {err}",
                ended.how()
            ));
        }
        let again = "dd if=/dev/zero of=/hf/again bs=1M count=16 2>/dev/null && rm /hf/again";
        let ended = fixture.run(&pool, &["bash", "-c", again])?;
        if ended.code() != Some(0) {
            return wrong(format!(
                "round {round}: space did not come back: {}",
                ended.how()
            ));
        }
    }
    fixture.intact(&pool)
}

fn full_of_files(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let fill = "import os, errno
n = 0
try:
    while n < 200000:
        f = os.open(f'/hf/small/{n}', os.O_CREAT | os.O_WRONLY)
        try: os.write(f, b'x' * 3000)
        finally: os.close(f)
        n += 1
except OSError as e:
    print(errno.errorcode[e.errno])
print(n > 5000)";
    if !process::on_path("python3") {
        return Err(Stop::Skip("python3 is not installed".into()));
    }
    let make = "mkdir /hf/small && python3 -c \"$0\"; ls /hf/small | wc -l";
    let ended = fixture.run(&pool, &["bash", "-c", make, fill])?;
    if !ended.out.starts_with("ENOSPC\nTrue\n") {
        return wrong(format!(
            "{}: {} {}",
            ended.how(),
            ended.out.trim(),
            ended.err.trim()
        ));
    }
    fixture.intact(&pool)?;
    let ended = fixture.run(&pool, &["bash", "-c", "rm -r /hf/small && echo ok >/hf/ok"])?;
    if ended.code() != Some(0) {
        return wrong(format!(
            "removing from a full pool: {} {}",
            ended.how(),
            ended.err.trim()
        ));
    }
    fixture.intact(&pool)
}

/// Runs the script where mounts are private; skips where that is not allowed. The script may use
/// $HOLDFAST, and ends with 99 where a mount fails.
pub fn in_private_mounts(fixture: &Fixture, script: &str) -> Result<Ended, Stop> {
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        let root = rustix::process::geteuid().is_root();
        command.args(if root { &["-m"][..] } else { &["-r", "-m"] });
        command
            .args(["bash", "-c", script])
            .current_dir(&fixture.dir);
        process::clean(&mut command, &fixture.dir);
        command.env("HOLDFAST", &fixture.holdfast);
        process::run(&mut command, LIMIT, &fixture.dir)
    };
    let probe = "mkdir -p probe && mount -t tmpfs none probe && umount probe";
    if unshare(probe)?.code() != Some(0) {
        return Err(Stop::Skip(
            "needs root, or user namespaces, for private mounts".into(),
        ));
    }
    let ended = unshare(script)?;
    match ended.code() {
        Some(99) => Err(Stop::Skip(format!(
            "a mount is not allowed: {}",
            ended.err.trim()
        ))),
        _ => Ok(ended),
    }
}

fn full_file_system(fixture: &Fixture) -> Result<(), Stop> {
    let script = "mkdir small; mount -t tmpfs -o size=1m none small || exit 99
        $HOLDFAST pool create small/pool --size 512M
        code=$?
        if [ $code = 0 ]; then
            $HOLDFAST run --pool small/pool -- dd if=/dev/zero of=/hf/f bs=64k count=64 2>err
            echo \"run $?\"; tail -n 1 err
            $HOLDFAST pool check small/pool >/dev/null; echo \"check $?\"
            exit 42
        fi
        ls -A small; exit $code";
    let ended = in_private_mounts(fixture, script)?;
    if ended.code() == Some(42) {
        // It was made, sparse: then a full file system is an error for the program, not a signal.
        let honest = ended.out.contains("run 1\n") || ended.out.contains("run 125\n");
        if honest && ended.out.contains("check 0\n") {
            return Ok(());
        }
        return wrong(format!(
            "on a full file system: {} {}",
            ended.out,
            ended.err.trim()
        ));
    }
    refusal(&ended, &[1]).map_err(|why| Stop::Wrong(format!("create: {why}")))
}

/// A restore goes on when there is room again.
fn full_while_it_restores(fixture: &Fixture) -> Result<(), Stop> {
    let script = "set -e; hf=$HOLDFAST; sum='sha256sum /hf/one /hf/two'
        mkdir small; mount -t tmpfs -o size=300m none small || exit 99
        $hf pool create source --size 256M >/dev/null
        $hf run --pool source -- sh -c 'head -c 90000000 /dev/urandom >/hf/one;
            head -c 90000000 /dev/urandom >/hf/two'
        wanted=$($hf run --pool source -- $sum); $hf save source stream >/dev/null
        mkfifo pipe; $hf receive small/copy <pipe 2>err & exec 3>pipe
        head -c 90000000 stream >&3
        until [ \"$(du -m small/copy/restore.part/data-0.seg | cut -f1)\" -gt 66 ]; do
            sleep 0.02; done
        left=$(df --output=avail -B1 small | tail -1)
        fallocate -l $((left - 20000000)) small/more
        tail -c +90000001 stream >&3 2>/dev/null || :; exec 3>&-
        code=0; wait $! || code=$?; echo \"full $code\"; cat err
        $hf pool status small/copy 2>&1 && exit 1; rm small/more
        $hf restore stream small/copy; $hf pool check small/copy
        [ \"$($hf run --pool small/copy -- $sum)\" = \"$wanted\" ] && echo same";
    let ended = in_private_mounts(fixture, script)?;
    let says = [
        "full 1\n",
        "; what was restored is in restore.part there",
        "free some space there, and restore it again: that goes on",
        "an interrupted restore had restored",
        "same\n",
    ];
    match says.iter().find(|says| !ended.out.contains(**says)) {
        None if ended.code() == Some(0) => Ok(()),
        missing => wrong(format!(
            "{missing:?} {}: {} {}",
            ended.how(),
            ended.out,
            ended.err.trim()
        )),
    }
}

fn read_only(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let mount = "mkdir -p ro; mount --bind pool ro && mount -o remount,bind,ro ro || exit 99; ";
    for (command, codes) in [
        ("exec $HOLDFAST run --pool ro -- true", &[RUN_FAILED][..]),
        ("exec $HOLDFAST serve ro", &[1]),
        ("exec $HOLDFAST pool create ro/new --size 64M", &[1]),
        ("exec $HOLDFAST pool destroy ro", &[1]),
    ] {
        let ended = in_private_mounts(fixture, &format!("{mount}{command}"))?;
        refusal(&ended, codes).map_err(|why| Stop::Wrong(format!("{command}: {why}")))?;
    }
    let ended = in_private_mounts(fixture, &format!("{mount}exec $HOLDFAST pool status ro"))?;
    if ended.code() != Some(0) {
        refusal(&ended, &[1]).map_err(|why| Stop::Wrong(format!("status: {why}")))?;
    }
    fixture.intact(&pool)
}

fn someone_else(fixture: &Fixture) -> Result<(), Stop> {
    fixture.need_root()?;
    let pool = fixture.pool("pool", "64M")?;
    let word = pool.to_string_lossy().into_owned();
    let me = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]);
        command.arg(&fixture.holdfast).args(args);
        fixture.end_of(command)
    };
    for open in [false, true] {
        if open {
            // Even if the owner made it readable and writable for all.
            for entry in fs::read_dir(&pool)? {
                let path = entry?.path();
                fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
            }
            fs::set_permissions(&pool, fs::Permissions::from_mode(0o777))?;
        }
        for (args, codes) in [
            (
                ["run", "--pool", &word, "--", "true"].as_slice(),
                &[RUN_FAILED][..],
            ),
            (&["serve", &word], &[1]),
            (&["pool", "destroy", &word], &[1]),
        ] {
            refusal(&me(args)?, codes).map_err(|why| Stop::Wrong(format!("{args:?}: {why}")))?;
        }
    }
    fixture.intact(&pool)
}

/// Connects as often as it may and says nothing. What the other side closes it opens again.
const CROWD: &str = "import resource, select, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
crowd, closed = {}, select.poll()
def connect():
    idle = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    idle.connect(sys.argv[1])
    crowd[idle.fileno()] = idle
    closed.register(idle, 0)
for i in range(1500):
    connect()
open(sys.argv[2], 'w').close()
while True:
    for number, _ in closed.poll(1000):
        closed.unregister(number)
        crowd.pop(number).close()
        connect()
";

/// Idle connections, of others and of the owner, keep nobody out.
fn crowd(fixture: &Fixture) -> Result<(), Stop> {
    fixture.need_root()?;
    if !process::on_path("python3") {
        return Err(Stop::Skip("python3 is not installed".into()));
    }
    let pool = fixture.pool("pool", "64M")?;
    let word = pool.to_string_lossy().into_owned();
    let _service = beside(fixture, &["serve", &word], || served(&pool))?;
    let idle = |user: &[&str], sign: &str| {
        let sign = fixture.path("signs").join(sign);
        let mut command = Command::new("setpriv");
        process::clean(&mut command, &fixture.dir);
        command.args(user).args(["python3", "-c", CROWD]);
        command.arg(pool.join("sock")).arg(&sign).process_group(0);
        until(command, || Ok(sign.exists()))
    };
    fs::create_dir(fixture.path("signs"))?;
    fs::set_permissions(fixture.path("signs"), fs::Permissions::from_mode(0o777))?;
    let nobody = ["--reuid=nobody", "--regid=nogroup", "--clear-groups"];
    let _others = idle(&nobody, "others")?;
    let alone = Instant::now();
    fixture.run(&pool, &["cat", "/hf/hello"])?;
    let _own = idle(&["--clear-groups"], "own")?;
    let ended = fixture.run(&pool, &["cat", "/hf/hello"])?;
    if ended.out != "hello\n" || alone.elapsed() > Duration::from_secs(10) {
        return wrong(format!("{}: {}", ended.how(), ended.err.trim()));
    }
    Ok(())
}

fn no_permission(fixture: &Fixture) -> Result<(), Stop> {
    if rustix::process::geteuid().is_root() {
        return Err(Stop::Skip("root may create anywhere".into()));
    }
    fs::create_dir(fixture.path("closed"))?;
    fs::set_permissions(fixture.path("closed"), fs::Permissions::from_mode(0o500))?;
    let path = fixture.path("closed/pool").to_string_lossy().into_owned();
    fixture.refused(&["pool", "create", &path, "--size", "64M"], &[1])?;
    fs::set_permissions(fixture.path("closed"), fs::Permissions::from_mode(0o000))?;
    fixture.refused(&["pool", "create", &path, "--size", "64M"], &[1])?;
    fixture.refused(&["run", "--pool", &path, "--", "true"], &[RUN_FAILED])?;
    fs::set_permissions(fixture.path("closed"), fs::Permissions::from_mode(0o700))?;
    Ok(())
}

/// A child that is killed and waited for at the end of its scope.
struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        process::kill_group(&self.0);
        let _ = self.0.wait();
    }
}

/// Starts `holdfast ARGS...` beside the case and waits until `ready` holds.
fn beside(
    fixture: &Fixture,
    args: &[&str],
    ready: impl Fn() -> Result<bool, Stop>,
) -> Result<Background, Stop> {
    let mut command = Command::new(&fixture.holdfast);
    process::clean(&mut command, &fixture.dir);
    command
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    until(command, ready)
}

/// Starts a command beside the case and waits until `ready` holds.
fn until(mut command: Command, ready: impl Fn() -> Result<bool, Stop>) -> Result<Background, Stop> {
    let child = Background(command.spawn()?);
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        if ready()? {
            return Ok(child);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    wrong(format!("{command:?} was not ready in time"))
}

/// Whether a service answers on the pool: a second one is refused.
fn served(pool: &Path) -> Result<bool, Stop> {
    Ok(pool.join("sock").exists())
}

fn two_services(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let word = pool.to_string_lossy().into_owned();
    let service = beside(fixture, &["serve", &word], || served(&pool))?;
    fixture.refused(&["serve", &word], &[1])?;
    let ended = fixture.run(&pool, &["cat", "/hf/hello"])?;
    if ended.out != "hello\n" {
        return wrong(format!(
            "the first service no longer serves: {}",
            ended.how()
        ));
    }
    drop(service);
    fixture.intact(&pool)
}

fn destroy_in_use(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let word = pool.to_string_lossy().into_owned();
    let mark = fixture.path("running");
    let script = format!("cd /hf; touch {}; sleep 30", mark.display());
    let args = ["run", "--pool", &word, "--", "bash", "-c", &script];
    let running = beside(fixture, &args, || Ok(mark.exists()))?;
    fixture.refused(&["pool", "destroy", &word], &[1])?;
    fixture.refused(&["pool", "create", &word, "--size", "64M"], &[1])?;
    let ended = fixture.run(&pool, &["cat", "/hf/hello"])?;
    if ended.out != "hello\n" {
        return wrong("the pool in use was touched");
    }
    drop(running);
    fixture.intact(&pool)?;
    fixture.done(&["pool", "destroy", &word])?;
    if pool.exists() {
        wrong("destroy left the directory")
    } else {
        Ok(())
    }
}

/// The run works all the same, or is refused in one sentence.
fn works_or_refuses(ended: &Ended, what: &str) -> Result<(), Stop> {
    match ended.code() {
        Some(0) if ended.out == "hello\n" => Ok(()),
        _ => refusal(ended, &[RUN_FAILED]).map_err(|why| Stop::Wrong(format!("{what}: {why}"))),
    }
}

fn no_dev_shm(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    // The pool itself may lie there, so it stays writable through a mount of its own.
    let script = "mkdir keep; mount --bind pool keep || exit 99
        mount -o remount,bind,ro /dev/shm || exit 99
        exec $HOLDFAST run --pool keep -- cat /hf/hello";
    let ended = in_private_mounts(fixture, script)?;
    works_or_refuses(&ended, "with /dev/shm read-only")?;
    fixture.intact(&pool)
}

fn limits(fixture: &Fixture) -> Result<(), Stop> {
    if !process::on_path("prlimit") {
        return Err(Stop::Skip("prlimit is not installed".into()));
    }
    let pool = fixture.pool("pool", "64M")?;
    let word = pool.to_string_lossy().into_owned();
    for limit in [
        "--memlock=0",
        "--nofile=24",
        "--nofile=8",
        "--as=60000000",
        "--stack=200000",
        "--fsize=1000000",
        "--fsize=1000000:",
    ] {
        let mut command = Command::new("prlimit");
        command.arg(limit).arg(&fixture.holdfast);
        command.args(["run", "--pool", &word, "--", "cat", "/hf/hello"]);
        works_or_refuses(&fixture.end_of(command)?, limit)?;
        fixture.intact(&pool)?;
    }
    // Enough for the program and session memory, but not for the pool.
    let narrow = "(ulimit -v 6800000; exec cat /hf/hello); echo $?";
    let ended = fixture.run(&pool, &["bash", "-c", narrow])?;
    if ended.out != "125\n" || !ended.err.contains("raise `ulimit -v`") {
        return wrong(format!("addresses: {:?} {}", ended.out, ended.err));
    }
    let mut command = Command::new("prlimit");
    command.arg("--fsize=1000000").arg(&fixture.holdfast);
    command.args(["pool", "create", "limited", "--size", "64M"]);
    refusal(&fixture.end_of(command)?, &[1]).map_err(|why| Stop::Wrong(format!("fsize: {why}")))
}

/// What a program of a run sees of a run that it starts itself.
fn run_inside_run(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let other = fixture.pool("other", "64M")?;
    let (pool, other) = (pool.to_string_lossy(), other.to_string_lossy());
    let me = fixture.holdfast.to_string_lossy();
    let again = format!("{me} run --pool {pool}");
    let works = format!(
        "cd /hf/d && {again} -- bash -c 'pwd; cat /hf/hello; echo new >made; exit 7'
        echo $?; cat made; {again} -- {again} -- cat /hf/hello
        {again} -- no-such-program 2>/dev/null; echo $?
        {again} --report {report} -- cat /hf/hello; grep -c served {report}",
        report = fixture.path("report").display(),
    );
    let ended = fixture.run(Path::new(&*pool), &["bash", "-c", &works])?;
    let expected = "/hf/d\nhello\n7\nnew\nhello\n127\nhello\n1\n";
    if ended.out != expected || !ended.err.is_empty() {
        return wrong(format!("{}: {:?} {}", ended.how(), ended.out, ended.err));
    }
    let modes = ["--consistency strict", "--at /elsewhere", ""];
    for (pool_of_inner, more) in [(&pool, modes[0]), (&pool, modes[1]), (&other, modes[2])] {
        let inner = format!("exec {me} run --pool {pool_of_inner} {more} -- echo it ran");
        let ended = fixture.run(Path::new(&*pool), &["bash", "-c", &inner])?;
        refusal(&ended, &[RUN_FAILED]).map_err(|why| Stop::Wrong(format!("{inner}: {why}")))?;
    }
    fixture.intact(Path::new(&*pool))
}

/// Programs that begin together and ask for the same consistency all get it, whichever of them is
/// the first; one that asks for another meanwhile is refused.
/// What the pool did not take is read again: the offset of the other file is where the copy ends.
fn sent_until_full(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    std::fs::write(fixture.path("long"), vec![b'x'; 100 << 20])?;
    let program = r#"
import os
source, target = os.open("long", os.O_RDONLY), os.open("/hf/copy", os.O_WRONLY | os.O_CREAT)
try:
    while os.sendfile(target, source, None, 3 << 20): pass
except OSError as e: print(e.errno)
there = os.fstat(target).st_size
print(os.lseek(source, 0, os.SEEK_CUR) == there, there > 1 << 20)
os.unlink("/hf/copy")
"#;
    let ended = fixture.run(&pool, &["python3", "-c", program])?;
    match ended.out.as_str() {
        "28\nTrue True\n" => fixture.intact(&pool),
        said => wrong(format!("{}: {said:?} {}", ended.how(), ended.err)),
    }
}

/// A loop device, or another file system, would take the placeholder behind the descriptor for the
/// file. /dev/null stands for the driver: the call must not reach it.
fn handed_over(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let program = r#"
import fcntl, os, struct
null, ours = os.open("/dev/null", os.O_RDWR), os.open("/hf/hello", os.O_RDWR | os.O_CREAT)
set_fd, change_fd, configure, clone, clone_range = 0x4c00, 0x4c06, 0x4c0a, 0x40049409, 0x4020940d
def errno(number, argument):
    try: return fcntl.ioctl(null, number, argument)
    except OSError as e: return e.errno
for fd in ours, null:
    config = struct.pack("II", fd, 4096) + bytes(296)
    print(errno(set_fd, fd), errno(change_fd, fd), errno(configure, config), errno(clone, fd) == 18,
          errno(clone_range, struct.pack("qqqq", fd, 0, 0, 0)) == 18)
"#;
    let ended = fixture.run(&pool, &["python3", "-c", program])?;
    match ended.out.as_str() {
        "22 22 22 True True\n25 25 25 False False\n" => fixture.intact(&pool),
        said => wrong(format!("{}: {said:?} {}", ended.how(), ended.err)),
    }
}

fn mode_at_once(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let me = format!(
        "{} run --pool {}",
        fixture.holdfast.display(),
        pool.display()
    );
    for round in 0..8 {
        let mode = ["strict", "sync", "posix"][round % 3];
        let together = format!(
            "for i in 1 2 3 4 5 6; do
                 {me} --consistency {mode} -- cat /hf/hello & pids+=($!)
             done
             for pid in ${{pids[@]}}; do wait $pid || echo status $?; done"
        );
        let mut command = Command::new("bash");
        command.args(["-c", &together]);
        let ended = fixture.end_of(command)?;
        if ended.out != "hello\n".repeat(6) || !ended.err.is_empty() {
            return wrong(format!("{mode}: {:?} {}", ended.out, ended.err));
        }
    }
    let other = format!("{me} --consistency strict -- true; echo status $?");
    let ended = fixture.run(&pool, &["env", "-i", "bash", "-c", &other])?;
    if ended.out != format!("status {RUN_FAILED}\n") {
        return wrong(format!("another mode meanwhile: {:?}", ended.out));
    }
    fixture.intact(&pool)
}

/// A service that does not answer is told from one that is not there.
fn stopped_service(fixture: &Fixture) -> Result<(), Stop> {
    let pool = fixture.pool("pool", "64M")?;
    let word = pool.to_string_lossy().into_owned();
    let service = beside(fixture, &["serve", &word], || served(&pool))?;
    fixture.done(&["pool", "status", &word])?;
    let signal = |signal| {
        let pid = rustix::process::Pid::from_child(&service.0);
        rustix::process::kill_process(pid, signal).map_err(std::io::Error::from)
    };
    signal(rustix::process::Signal::STOP)?;
    let begun = Instant::now();
    fixture.refused(&["pool", "status", &word], &[1])?;
    let args = ["run", "--pool", &word, "--", "echo", "it ran"];
    fixture.refused(&args, &[RUN_FAILED])?;
    if begun.elapsed() > Duration::from_secs(20) {
        return wrong(format!("it took {:?}", begun.elapsed()));
    }
    signal(rustix::process::Signal::CONT)?;
    fixture.done(&["pool", "status", &word])?;
    drop(service);
    fixture.intact(&pool)
}
