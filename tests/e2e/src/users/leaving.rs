//! Daemons that are started as root and give that up without executing another program.

use super::{Shared, as_user};
use crate::bad_input::{Fixture, Stop, wrong};
use crate::process;
use std::path::Path;
use std::process::Stdio;

/// What every script here begins with. `gives_up` is done by the process that becomes 3002.
const BEGIN: &str = r#"
import ctypes, fcntl, mmap, os, sys, threading, time
def mapped():
    spans = [line.split()[0] for line in open("/proc/self/maps")
             if ".seg" in line or "holdfast-session" in line]
    return len(spans)
def gives_up():
    os.setgroups([3002]); os.setresgid(3002, 3002, 3002); os.setresuid(3002, 3002, 3002)
def refused(do):
    try: do()
    except PermissionError: return "refused"
    return "let"
"#;

fn python(fixture: &Fixture, name: &str, text: &str) -> Result<String, Stop> {
    let path = fixture.path(name);
    std::fs::write(&path, format!("{BEGIN}{text}"))?;
    Ok(format!("python3 {}", path.display()))
}

/// From then on nothing of the pool is mapped, and nothing of others is in its memory; what was
/// open is, and everything else is as for any program of that user.
pub fn gives_up(fixture: &Fixture) -> Result<(), Stop> {
    for owner in ["0", "3001"] {
        let shared = Shared::new(fixture, owner)?;
        let make = "chmod 1777 /hf; mkdir -m 777 /hf/d; mkdir -m 700 /hf/private
            echo xyzzy-content >/hf/private/xyzzy-name; echo public >/hf/public
            printf own >/hf/mine; chmod 600 /hf/mine; echo xyzzy-gone >/hf/g; rm /hf/g";
        shared.expect(owner, make, "")?;
        let text = r#"
mine = os.open("/hf/mine", os.O_RDWR)
log = open("/hf/log", "w"); log.write("one\n"); log.flush()
gone = open("/hf/gone", "w+"); gone.write("gone"); gone.flush(); os.unlink("/hf/gone")
copy = os.dup2(mine, 100)
os.chdir("/hf/d"); os.umask(0o027)
before = mapped()
gives_up()
print(before > 0, mapped(), os.getcwd())
for fd in range(2000):
    try: where = os.readlink(f"/proc/{os.getpid()}/fd/{fd}")
    except OSError: continue
    if ".seg" in where or "session" in where: print("open:", where)
print(os.pread(mine, 9, 0), os.pwrite(copy, b"X", 1), os.read(copy, 9), os.read(mine, 9))
gone.seek(0); print(gone.read(), os.fstat(gone.fileno()).st_nlink)
log.write("two\n"); log.flush(); os.fsync(log.fileno()); print(open("/hf/log").read().split())
print(refused(lambda: open("/hf/mine")), refused(lambda: os.listdir("/hf/private")),
      refused(lambda: open("/hf/public", "a")), open("/hf/public").read().strip())
open("x", "w").write("theirs"); st = os.stat("/hf/d/x")
print(st.st_uid, st.st_gid, oct(st.st_mode))
ctypes.CDLL(None).prctl(4, 1) # PR_SET_DUMPABLE, or its memory is root's
found = 0
for line in open("/proc/self/maps"):
    span, rights, *rest = line.split(maxsplit=5)
    if rights[0] != "r" or "[v" in line: continue
    start, end = (int(x, 16) for x in span.split("-"))
    with open("/proc/self/mem", "rb", 0) as mem:
        mem.seek(start)
        try: memory = mem.read(end - start)
        except OSError: continue
    found += memory.translate(bytes([*range(1, 256), 0])).count(b"yz{{z.")
print(found)
thread = threading.Thread(target=lambda: open("t", "w").write("thread"))
thread.start(); thread.join()
sys.stdout.flush()
if os.fork() == 0:
    print(open("t").read(), open("/hf/d/x").read(), mapped(), flush=True); os._exit(0)
os.wait(); sys.stdout.flush()
os.execlp("bash", "bash", "-c", "id -u; cat x <&100; pwd; cat /hf/mine 2>/dev/null || echo refused")
"#;
        let expected = "True 0 /hf/d\nb'own' 1 b'oXn' b''\ngone 0\n['one', 'two']\n\
            refused refused refused public\n3002 3002 0o100640\n0\nthread theirs 0\n3002\n\
            theirs/hf/d\nrefused\n";
        let script = python(fixture, "gives-up.py", text)?;
        shared.expect("0", &format!("{script} 2>&1"), expected)?;
        shared.expect(owner, "cat /hf/mine /hf/log; rm -rf /hf/d", "oXnone\ntwo\n")?;
        shared.end()?;
        std::fs::remove_dir_all(fixture.path("theirs"))?;
    }
    Ok(())
}

/// Its locks stay its own, and end with it; also if it executes another program.
pub fn keeps_locks(fixture: &Fixture) -> Result<(), Stop> {
    let goes_on = "gives_up()";
    let executes = r#"
os.set_inheritable(a.fileno(), True); os.set_inheritable(b.fileno(), True)
if len(sys.argv) == 1:
    os.execlp("setpriv", "setpriv", "--reuid=3002", "--regid=3002", "--clear-groups",
              sys.executable, sys.argv[0], str(a.fileno()), str(b.fileno()))
"#;
    // What it may execute has no right any more, and is not there.
    let fails = r#"
ctypes.CDLL(None).prctl(8, 1); gives_up() # PR_SET_KEEPCAPS
try: os.execv("/none", ["none"])
except FileNotFoundError: mapped = lambda: False
"#;
    for way in [goes_on, executes, fails] {
        keeps_locks_if(fixture, way)?;
        std::fs::remove_dir_all(fixture.path("theirs"))?;
    }
    Ok(())
}

fn keeps_locks_if(fixture: &Fixture, way: &str) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    shared.expect(
        "3001",
        "chmod 777 /hf; touch /hf/a /hf/b; chmod 666 /hf/a /hf/b",
        "",
    )?;
    let text = r#"
if len(sys.argv) > 1: a, b = (open(int(fd), "r+") for fd in sys.argv[1:])
else:
    a, b = open("/hf/a", "r+"), open("/hf/b", "r+")
    fcntl.lockf(a, fcntl.LOCK_EX, 5, 3); fcntl.flock(b, fcntl.LOCK_EX)
WAY
if mapped(): print("mapped")
open("/hf/ready", "w").close()
while os.path.exists("/hf/ready"): time.sleep(0.01)
fcntl.lockf(a, fcntl.LOCK_UN, 5, 3); fcntl.lockf(a, fcntl.LOCK_EX, 1, 20)
open("/hf/ready", "w").close()
while os.path.exists("/hf/ready"): time.sleep(0.01)
"#;
    let asks = r#"
def busy(do):
    try: do()
    except BlockingIOError: return "busy"
    return "free"
a, b = open("/hf/a", "r+"), open("/hf/b", "r+")
both = fcntl.LOCK_EX | fcntl.LOCK_NB
def look():
    while not os.path.exists("/hf/ready"): time.sleep(0.01)
    print(*(busy(lambda: fcntl.lockf(a, both, n, at)) for n, at in [(3, 0), (9, 0), (9, 20)]),
          busy(lambda: fcntl.flock(b, both)))
    fcntl.lockf(a, fcntl.LOCK_UN); os.unlink("/hf/ready")
look(); look(); fcntl.lockf(a, fcntl.LOCK_EX); fcntl.flock(b, fcntl.LOCK_EX)
"#;
    let mut command = as_user("0");
    command
        .arg(&fixture.holdfast)
        .args(["run", "--pool"])
        .arg(&shared.pool);
    let script = python(fixture, "holds.py", &text.replace("WAY", way))?;
    command.args(["--", "bash", "-c", &script]);
    process::clean(&mut command, &fixture.dir);
    let holder = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let script = python(fixture, "asks.py", asks)?;
    shared.expect(
        "3003",
        &script,
        "free busy free busy\nfree free busy busy\n",
    )?;
    let said = holder.wait_with_output()?;
    if !said.status.success() || !said.stdout.is_empty() {
        return wrong(format!("{way}: who holds the locks said {said:?}"));
    }
    shared.end()
}

/// Who can take root again has the pool mapped; so has, to the end, who has threads, maps a file of
/// the pool, or was to keep it. Permissions count all the same.
pub fn stays_mapped(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    let make = "chmod 755 /hf; echo secret >/hf/secret; chmod 600 /hf/secret; echo x >/hf/public";
    shared.expect("3001", make, "")?;
    let secret = r#"refused(lambda: open("/hf/secret"))"#;
    let text = format!(
        r#"
os.setegid(3002); os.seteuid(3002); print(mapped() > 0, {secret})
os.seteuid(0); os.setegid(0); print(mapped() > 0, {secret})
os.setreuid(0, 3002); print(mapped() > 0, {secret}); os.seteuid(0)
gives_up(); print(mapped() > 0, {secret})
"#
    );
    let expected = "True refused\nTrue let\nTrue refused\nFalse refused\n";
    shared.expect("0", &python(fixture, "takes-again.py", &text)?, expected)?;
    let shares = "pid = ctypes.CDLL(None).syscall(56, 0x411, 0, 0, 0, 0) # CLONE_FILES
if pid == 0: time.sleep(0.3); os._exit(0)";
    for (what, end, last) in [
        (
            "t = threading.Thread(target=time.sleep, args=(0.1,)); t.start()",
            "t.join()",
            "",
        ),
        (shares, "os.waitpid(pid, 0)", ""),
        (
            "m = mmap.mmap(os.open('/hf/public', os.O_RDONLY), 0, prot=mmap.PROT_READ)",
            "print(m[:1])",
            "b'x'\n",
        ),
    ] {
        let text = format!("{what}\ngives_up(); print(mapped() > 0, {secret})\n{end}\n");
        let script = python(fixture, "stays.py", &text)?;
        shared.expect("0", &script, &format!("True refused\n{last}"))?;
    }
    let text = format!("gives_up(); print(mapped() > 0, {secret})");
    let script = python(fixture, "kept.py", &text)?;
    let mut command = as_user("0");
    command
        .arg(&fixture.holdfast)
        .args(["run", "--keep-mapped", "--pool"]);
    command
        .arg(&shared.pool)
        .args(["--", "bash", "-c", &script]);
    process::clean(&mut command, &fixture.dir);
    let said = fixture.end_of(command)?;
    if said.out != "True refused\n" {
        return wrong(format!("--keep-mapped: {} {}", said.out, said.err));
    }
    shared.end()
}

/// Serves files below a directory, with a way of making workers, and says what clients get.
const SERVES: &str = r#"
import http.client, signal, socket, subprocess
top, mpm = sys.argv[1:]
for dir in ["www", "log"]: os.mkdir(f"{top}/{dir}")
files = {"small": b"small\n", "large": bytes(range(256)) * 4000, "secret": b"secret"}
for name, content in files.items(): open(f"{top}/www/{name}", "wb").write(content)
os.chmod(f"{top}/www/secret", 0o600)
with socket.socket() as s:
    s.bind(("127.0.0.1", 0)); port = s.getsockname()[1]
open("conf", "w").write(f"""ServerRoot {top}
ServerName localhost
Listen 127.0.0.1:{port}
PidFile {top}/log/pid
ErrorLog {top}/log/error
Mutex pthread
LoadModule mpm_{mpm}_module /usr/lib/apache2/modules/mod_mpm_{mpm}.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
User #3002
Group #3002
DocumentRoot {top}/www
EnableMMAP On
""")
server = subprocess.Popen(["apache2", "-f", os.path.abspath("conf"), "-DFOREGROUND"],
                          start_new_session=True) # It kills its process group.
def get(name):
    for n in range(500):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/" + name)
            answer = connection.getresponse(); content = answer.read()
            connection.close()
            return answer.status, content == files.get(name)
        except ConnectionRefusedError: time.sleep(0.02)
def workers():
    mine = subprocess.run(["pgrep", "-P", str(server.pid)], capture_output=True, text=True)
    return [pid for pid in mine.stdout.split() if os.stat(f"/proc/{pid}").st_uid == 3002]
def look():
    print([get(name) for name in ["small", "large", "secret", "none"] * 5], len(workers()) > 0)
    for pid in workers():
        # Some may just have ended.
        try: maps = open(f"/proc/{pid}/maps").read()
        except OSError: continue
        if ".seg" in maps: print("mapped")
look()
server.send_signal(signal.SIGUSR1); time.sleep(1); look()
server.terminate(); print(server.wait())
print(os.stat(f"{top}/log/error").st_uid, "resuming normal" in open(f"{top}/log/error").read())
"#;

/// Apache httpd, whose workers give up root: what it answers is what it answers on tmpfs, before
/// and after it reads its configuration anew, and none of its workers has the pool mapped.
pub fn web_server(fixture: &Fixture) -> Result<(), Stop> {
    if !["/usr/sbin/apache2", "/usr/lib/apache2/modules"]
        .iter()
        .all(|path| Path::new(path).exists())
    {
        return Err(Stop::Skip("needs apache2 (apache2-bin)".into()));
    }
    let shared = Shared::new(fixture, "0")?;
    let script = python(fixture, "serves.py", SERVES)?;
    for mpm in ["prefork", "event"] {
        let there = fixture.path(&format!("on-tmpfs-{mpm}"));
        std::fs::create_dir(&there)?;
        let begin = format!(
            "cd {}; chmod 755 .; export PATH=$PATH:/usr/sbin",
            there.display()
        );
        let mut direct = as_user("0");
        direct.args(["bash", "-c", &format!("{begin}; {script} $PWD {mpm}")]);
        let expected = fixture.end_of(direct)?;
        if expected.code() != Some(0) || !expected.out.contains("(200, True)") {
            let (out, err) = (expected.out.trim(), expected.err.trim());
            return wrong(format!("apache2 on tmpfs: {} {out} {err}", expected.how()));
        }
        shared.expect("0", "rm -rf /hf/*; chmod 755 /hf", "")?;
        shared.expect("0", &format!("{begin}; {script} /hf {mpm}"), &expected.out)?;
    }
    shared.end()
}

/// A handler gives up root while a call of the pool's waits below it; the next such call unmaps.
const IN_A_CALL: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>
static int restarts;
static void give_up(int s) { setresuid(3002, 3002, 3002); }
static int mapped(void) {
    char line[4096]; int n = 0; FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) n += strstr(line, ".seg") != NULL;
    fclose(maps); return n > 0;
}
int main(void) {
    int fd = open("/hf/lock", O_RDWR | O_CREAT, 0666);
    struct flock whole = { .l_type = F_WRLCK };
    fcntl(fd, F_SETLK, &whole); flock(fd, LOCK_EX); mkfifo("/hf/fifo", 0666);
    for (int way = 0; way < 3; way++) {
        fflush(stdout);
        if (!fork()) {
            int other = open("/hf/lock", O_RDWR);
            signal(SIGALRM, give_up); siginterrupt(SIGALRM, 1); ualarm(100000, 0);
            int ret = way == 0 ? fcntl(fd, F_SETLKW, &whole)
                : way == 1 ? flock(other, LOCK_EX) : open("/hf/fifo", O_RDONLY);
            printf("%d %s %d ", ret, strerrorname_np(errno), mapped());
            give_up(0); printf("%d\n", mapped());
            return 0;
        }
        int status; wait(&status); if (status) printf("status %x\n", status);
    }
}
"#;

/// What is in its way: a call that waits, a low limit of descriptors, a program that the library
/// does not see.
pub fn hindered(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "0")?;
    shared.expect("0", "chmod 1777 /hf; echo text >/hf/f", "")?;
    let source = fixture.path("in-a-call.c");
    std::fs::write(&source, IN_A_CALL)?;
    let script = format!("gcc -w -o in-a-call {} && ./in-a-call", source.display());
    let said = "-1 EINTR 1 0\n".repeat(3);
    shared.expect(
        "0",
        &format!("cd {}; {script}", fixture.dir.display()),
        &said,
    )?;
    let text = "gives_up(); print(mapped(), open('/hf/f').read().strip())";
    let drops = python(fixture, "drops.py", text)?;
    shared.expect("0", &format!("ulimit -n 900; {drops}"), "0 text\n")?;
    let becomes = "setpriv --reuid=3002 --regid=3002 --clear-groups";
    let looks = python(
        fixture,
        "looks.py",
        "print(mapped(), open('/hf/f').read().strip())",
    )?;
    shared.expect(
        "0",
        &format!("ulimit -n 256; {becomes} {looks}"),
        "0 text\n",
    )?;
    let text = r#"
for fd in range(2000):
    try: where = os.readlink(f"/proc/self/fd/{fd}")
    except OSError: continue
    if ".seg" in where or "session" in where: print("open:", where)
print(os.getuid() != 0, mapped(), open('/hf/f').read().strip())
"#;
    let looks = python(fixture, "executed.py", text)?.replace("python3 ", "");
    let python3 = "$(python3 -c 'import sys; print(sys.executable)')";
    let busybox = format!(
        "command -v busybox >/dev/null || {{ echo True 0 text; exit; }}
        busybox su -s {python3} nobody {looks} 2>/dev/null"
    );
    shared.expect("0", &busybox, "True 0 text\n")?;
    shared.end()
}

/// What its parent had written to files that it has closed is there, though the service is killed
/// as soon as all have ended, and with it the proxy that had them open.
pub fn leaves_nothing_behind(fixture: &Fixture) -> Result<(), Stop> {
    let text = r#"
for n in range(20):
    fd = os.open(f"/hf/{n}", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
    os.write(fd, b"a" * 100); os.fsync(fd); os.write(fd, b"b" * 100)
if os.fork() == 0:
    if len(sys.argv) == 1: gives_up(); os.write(fd, b"c" * 100); os._exit(0)
    os.dup2(fd, 1)
    os.execlp("setpriv", "setpriv", "--reuid=3002", "--regid=3002", "--clear-groups", "printf",
              "%0100d", "1")
os.wait()
"#;
    let script = python(fixture, "closes.py", text)?;
    for (round, executes) in (0..6).map(|n| (n / 2, ["", " executes"][n as usize % 2])) {
        let mut shared = Shared::new(fixture, "0")?;
        shared.expect("0", &format!("chmod 1777 /hf; {script}{executes}"), "")?;
        std::thread::sleep(std::time::Duration::from_millis(100 * round));
        shared.kill()?;
        let sizes = "stat -c %s /hf/* | sort | uniq -c | tr -s ' '";
        shared.expect("0", sizes, " 19 200\n 1 300\n")?;
        shared.end()?;
        std::fs::remove_dir_all(fixture.path("theirs"))?;
    }
    Ok(())
}
