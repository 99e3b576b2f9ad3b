//! Lent files through deaths, snapshots and attacks: nothing stored is lost, and nobody gets at
//! more than the file.

use super::{Shared, as_user};
use crate::bad_input::{Fixture, Stop, wrong};
use crate::process;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

/// Has a file mapped and stores to it: says so, and ends when its input does.
const HOLDER: &str = r#"
import mmap, os, sys
fd = os.open("/hf/f", os.O_RDWR)
m = mmap.mmap(fd, 8192)
m[5000:5006] = b"stored"
print("there", flush=True)
for line in sys.stdin:
    m[6000:6006] = line.encode()[:6]
    if line == "synced\n":
        m.flush()
    print("there", flush=True)
"#;

/// A process that has a file mapped.
struct Holder {
    child: Child,
    from: BufReader<std::process::ChildStdout>,
}

impl Holder {
    fn start(shared: &Shared<'_>, user: &str) -> Result<Holder, Stop> {
        let script = shared.fixture.path("holder.py");
        std::fs::write(&script, HOLDER)?;
        let mut command = as_user(user);
        command.arg(&shared.fixture.holdfast);
        command.args(["run", "--pool"]).arg(&shared.pool);
        command.args(["--", "python3"]).arg(&script);
        process::clean(&mut command, &shared.fixture.dir);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn()?;
        let out = child.stdout.take().ok_or(Stop::Wrong("no pipe".into()))?;
        let mut holder = Holder {
            child,
            from: BufReader::new(out),
        };
        holder.is_there()?;
        Ok(holder)
    }

    fn is_there(&mut self) -> Result<(), Stop> {
        let mut said = String::new();
        match self.from.read_line(&mut said)? {
            0 => wrong("it cannot map the file"),
            _ => Ok(()),
        }
    }

    fn store(&mut self, text: &str) -> Result<(), Stop> {
        let to = self.child.stdin.as_mut();
        let to = to.ok_or(Stop::Wrong("no pipe".into()))?;
        writeln!(to, "{text}")?;
        self.is_there()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

const MAKE: &str = "head -c 8192 /dev/zero >/hf/f; chmod 666 /hf/f";
const SEE: &str = "head -c 5006 /hf/f | tail -c 6; tail -c +6001 /hf/f | head -c 6";

pub fn lent(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", MAKE, "")?;
    snapshot(&shared)?;
    proxy_dies(&shared)?;
    service_dies(&shared)?;
    attack(&shared)?;
    without_privilege(&shared)?;
    comes_first(&shared)?;
    elsewhere(&shared)?;
    cannot_be(&shared)?;
    all_die(&shared)?;
    shared.end()
}

fn shell(fixture: &Fixture, script: &str) -> Result<(), Stop> {
    let mut command = Command::new("bash");
    command.args(["-c", script]);
    fixture.end_of(command).map(drop)
}

/// A snapshot has what was stored before it, and nothing that was stored later.
fn snapshot(shared: &Shared<'_>) -> Result<(), Stop> {
    let mut holder = Holder::start(shared, "3002")?;
    holder.store("before")?;
    let of_owner = |args: &[&str], more: &[&str]| {
        let mut command = as_user("3001");
        command.arg(&shared.fixture.holdfast).args(args);
        command.arg(&shared.pool).args(more);
        shared.fixture.end_of(command)
    };
    of_owner(&["snapshot"], &["create", "s"])?;
    holder.store("later.")?;
    shared.expect("3003", SEE, "storedlater.")?;
    let see = ["--snapshot", "s", "--", "bash", "-c", SEE];
    let ended = of_owner(&["run", "--pool"], &see)?;
    if ended.out != "storedbefore" {
        return wrong(format!("the snapshot: {:?} {}", ended.out, ended.err));
    }
    drop(holder);
    let ended = of_owner(&["run", "--pool"], &see)?;
    if ended.out != "storedbefore" {
        return wrong(format!("the snapshot: {:?} {}", ended.out, ended.err));
    }
    of_owner(&["snapshot"], &["delete", "s"]).map(drop)
}

/// What was stored before a proxy was killed is seen by whoever looks after it.
fn proxy_dies(shared: &Shared<'_>) -> Result<(), Stop> {
    let mut holder = Holder::start(shared, "3002")?;
    holder.store("proxy1")?;
    shell(shared.fixture, "pkill -9 -u 3001 -x holdfast-proxy")?;
    shared.expect("3001", SEE, "storedproxy1")?;
    drop(holder);
    shared.expect("3003", SEE, "storedproxy1")
}

/// The file goes on being lent under the next service.
fn service_dies(shared: &Shared<'_>) -> Result<(), Stop> {
    let mut holder = Holder::start(shared, "3002")?;
    holder.store("first.")?;
    let kill = format!("pkill -9 -u 3001 -f 'serve .*{}'", shared.pool.display());
    shell(shared.fixture, &kill)?;
    shared.expect("3001", SEE, "storedfirst.")?;
    holder.store("second")?;
    for user in ["3001", "3003", "0"] {
        shared.expect(user, SEE, "storedsecond")?;
    }
    let change = "printf third. | dd of=/hf/f bs=1 seek=6000 conv=notrunc status=none";
    shared.expect("3001", change, "")?;
    shared.expect("3002", SEE, "storedthird.")?;
    drop(holder);
    shared.expect("3003", SEE, "storedthird.")
}

/// What was synced is there also if nobody lives to write it back.
fn all_die(shared: &Shared<'_>) -> Result<(), Stop> {
    shared.expect("3001", "chmod 666 /hf/f", "")?;
    let mut holder = Holder::start(shared, "3002")?;
    holder.store("synced")?;
    let pool = shared.pool.display();
    let kill = format!(
        "pkill -9 -u 3001 -f 'serve .*{pool}'; pkill -9 -u 3001 -x holdfast-proxy
         pkill -9 -u 3002 -f '{}'",
        shared.fixture.path("holder.py").display()
    );
    shell(shared.fixture, &kill)?;
    shared.expect("3001", SEE, "storedsynced")
}

/// Neither a user who may not open the file, nor one who may only read it, gets more than that
/// from the lent file; cutting and growing it by its descriptor harms nobody else.
fn attack(shared: &Shared<'_>) -> Result<(), Stop> {
    shared.expect("3001", "chmod 664 /hf/f", "")?;
    let holder = Holder::start(shared, "3001")?;
    let reads = r#"python3 - <<'P'
import ctypes, glob, mmap, os
names = glob.glob("/dev/shm/holdfast-lent.*")
names = [name for name in names if os.stat(name).st_uid == 3001]
print(len(names))
for how in os.O_RDONLY, os.O_RDWR:
    for name in names:
        try:
            os.open(name, how)
            print("opened", name)
        except PermissionError:
            pass
fd = os.open("/hf/f", os.O_RDONLY)
m = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
print(m[5000:5006].decode())
at = None
for line in open("/proc/self/maps"):
    if "holdfast-lent" in line:
        at = line.split()[0]
try:
    os.open(f"/proc/self/map_files/{at}", os.O_RDWR)
    print("opened the mapping")
except OSError:
    pass
libc = ctypes.CDLL(None)
start = int(at.split("-")[0], 16)
print(libc.mprotect(ctypes.c_void_p(start), 4096, 3))
P"#;
    shared.expect("3003", reads, "1\nstored\n-1\n")?;
    drop(holder);
    shared.expect("3001", "chmod 666 /hf/f", "")
}

/// A process that has the pool mapped and gave its rights up reads what is in the file all the
/// same.
fn without_privilege(shared: &Shared<'_>) -> Result<(), Stop> {
    let holder = Holder::start(shared, "3002")?;
    // A process with threads keeps the mapping.
    let script = r#"python3 - <<'P'
import os, threading
threading.Thread(target=int).start()
os.setgroups([])
os.setresgid(3003, 3003, 3003)
os.setresuid(3003, 3003, 3003)
with open("/hf/g", "r+b", 0) as f:
    print(f.read(4).decode())
    f.seek(0)
    f.write(b"more")
    print(os.pread(f.fileno(), 4, 0).decode())
P
cat /hf/g"#;
    let reader = r#"python3 - <<'P'
import mmap, os, time
fd = os.open("/hf/g", os.O_RDONLY)
m = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
open("/hf/ready", "w").close()
while os.path.exists("/hf/ready"):
    time.sleep(0.01)
fd = os.open("/hf/g", os.O_RDWR)
w = mmap.mmap(fd, 0)
print(w[:4].decode())
w[:4] = b"last"
P"#;
    let make = "printf data >/hf/g; chmod 666 /hf/g; chmod 777 /hf";
    shared.expect("3001", make, "")?;
    let mut command = as_user("3002");
    command
        .arg(&shared.fixture.holdfast)
        .args(["run", "--pool"]);
    command.arg(&shared.pool).args(["--", "bash", "-c", reader]);
    process::clean(&mut command, &shared.fixture.dir);
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let wait = "until test -e /hf/ready; do sleep 0.01; done";
    shared.expect("3001", wait, "")?;
    shared.expect("0", script, "data\nmore\nmore")?;
    shared.expect("3001", "rm -f /hf/ready", "")?;
    let out = child.wait_with_output()?.stdout;
    if out != b"more\n" {
        return wrong(format!(
            "who maps it sees {:?}",
            String::from_utf8_lossy(&out)
        ));
    }
    drop(holder);
    shared.expect("3003", "cat /hf/g", "last")
}

/// A private mapping of the owner, and one by a program with an odd umask, keep nobody from a file
/// that others may write; one of a killed program does not stay.
fn comes_first(shared: &Shared<'_>) -> Result<(), Stop> {
    let owner = r#"python3 - <<'P'
import mmap, os, signal, sys, time
os.umask(0o777)
fd = os.open("/hf/first", os.O_RDWR | os.O_CREAT)
os.fchmod(fd, 0o666)
os.ftruncate(fd, 8192)
m = mmap.mmap(fd, 8192, flags=mmap.MAP_PRIVATE)
s = mmap.mmap(fd, 8192)
s[:5] = b"owner"
open("/hf/is-there", "w").close()
while os.path.exists("/hf/is-there"):
    time.sleep(0.01)
print(m[:5], s[10:15], flush=True)
s[20:26] = b"killed"
os.kill(os.getpid(), signal.SIGKILL)
P
true"#;
    let other = r#"python3 - <<'P'
import mmap, os, time
while not os.path.exists("/hf/is-there"):
    time.sleep(0.01)
m = mmap.mmap(os.open("/hf/first", os.O_RDWR), 8192)
print(m[:5].decode())
m[10:15] = b"other"
os.unlink("/hf/is-there")
P"#;
    shared.expect("3001", "chmod 777 /hf", "")?;
    let _others_came = Holder::start(shared, "3003")?;
    let mut command = as_user("3001");
    command
        .arg(&shared.fixture.holdfast)
        .args(["run", "--pool"]);
    command
        .arg(&shared.pool)
        .args(["--", "timeout", "60", "bash", "-c", owner]);
    process::clean(&mut command, &shared.fixture.dir);
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    shared.expect(
        "3002", other, "owner
",
    )?;
    let out = child.wait_with_output()?.stdout;
    if out
        != b"b'owner' b'other'
"
    {
        return wrong(format!("the owner saw {:?}", String::from_utf8_lossy(&out)));
    }
    shared.expect("3003", "tail -c +21 /hf/first | head -c 6", "killed")
}

/// Who sees another /dev/shm lends nothing there, and reads what the pool has.
fn elsewhere(shared: &Shared<'_>) -> Result<(), Stop> {
    let script = r#"mount -t tmpfs none /dev/shm && python3 -c '
import mmap, os
fd = os.open("/hf/first", os.O_RDWR)
m = mmap.mmap(fd, 8192)
m[:5] = b"hides"
' && ls /dev/shm | wc -l"#;
    let hides = shared.fixture.path("hides.sh");
    std::fs::write(&hides, script)?;
    let hides = format!("unshare -m bash {}", hides.display());
    if !shared.pool.starts_with("/dev/shm") {
        shared.expect(
            "0", &hides, "0
",
        )?;
        shared.expect("3002", "head -c 5 /hf/first", "hides")?;
    }
    Ok(())
}

/// What its owner has mapped already and others may only read cannot be lent, and they are told.
fn cannot_be(shared: &Shared<'_>) -> Result<(), Stop> {
    shared.expect("3001", "chmod 644 /hf/f", "")?;
    let holder = Holder::start(shared, "3001")?;
    let script = r#"python3 - <<'P'
import mmap, os
try:
    mmap.mmap(os.open("/hf/f", os.O_RDONLY), 0, prot=mmap.PROT_READ)
except OSError as e:
    print(e.strerror)
P"#;
    shared.expect("3003", script, "No such device\n")?;
    drop(holder);
    shared.expect("3003", script, "")
}
