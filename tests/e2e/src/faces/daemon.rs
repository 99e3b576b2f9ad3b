//! `holdfast serve` as systemd runs it: it is passed a socket that listens already, and says when
//! it is ready.

use super::new_pool;
use crate::bad_input::{Case, Fixture, Stop, wrong};
use crate::process::{self, Ended};
use std::fs;
use std::process::Command;

pub const CASES: &[(&str, Case)] = &[
    ("a service that is passed its socket", activated),
    ("unit files", units),
    ("services of other versions", versions),
];

/// Keeps the socket, starts services with it as systemd does, and runs programs in between.
const SYSTEMD: &str = r#"
import os, signal, socket, subprocess, sys, time

holdfast, pool = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(pool + "/sock")
listener.listen()
notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notified.bind(pool + ".notify")
notified.settimeout(20)

def start(*sockets):
    pid = os.fork()
    if pid == 0:
        for n, fd in enumerate([os.dup(s.fileno()) for s in sockets]):
            os.dup2(fd, 3 + n)
        os.closerange(3 + len(sockets), 100)
        for n in range(len(sockets)):
            os.set_inheritable(3 + n, True)
        env = dict(os.environ, LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(sockets)),
                   NOTIFY_SOCKET=pool + ".notify", HOLDFAST_LOG="off")
        os.execve(holdfast, ["holdfast", "serve", pool], env)
    return pid

def program(script):
    run = [holdfast, "run", "--pool", pool, "--", "bash", "-c", script]
    return subprocess.run(run, capture_output=True, text=True, timeout=60).stdout

# Who comes before the service waits for it.
early = subprocess.Popen([holdfast, "run", "--pool", pool, "--", "sh", "-c", "echo early >/hf/f"])
time.sleep(0.2)
for n in range(3):
    pid = start(listener)
    print(notified.recv(100).decode(), early.wait(60), end=" ")
    print(program(f"cat /hf/f; echo {n} >/hf/f"), end="")
    # By a filter of its system calls.
    with open(f"/proc/{pid}/status") as status:
        print([line.split()[1] for line in status if line.startswith(("NoNewPrivs", "Seccomp:"))])
    # It serves on when its users have gone.
    print(program("echo still there"), end="")
    os.kill(pid, signal.SIGTERM)
    print(os.waitpid(pid, 0)[1], os.path.exists(pool + "/sock"))
# A service that dies amid a program is started again by the next who asks.
pid = start(listener)
notified.recv(100)
running = subprocess.Popen([holdfast, "run", "--pool", pool, "--", "sh", "-c",
                            "sleep 0.5; echo after >/hf/f; cat /hf/f"], stdout=subprocess.PIPE)
time.sleep(0.2)
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
pid = start(listener)
print(running.communicate(timeout=60)[0].decode(), end="")
os.kill(pid, signal.SIGTERM)
os.waitpid(pid, 0)
# Nobody can connect any more: the service does not spin. It takes SIGTERM as before.
pid = start(listener)
notified.recv(100)
listener.shutdown(socket.SHUT_RDWR)
time.sleep(1)
with open(f"/proc/{pid}/stat") as stat:
    ticks = sum(int(n) for n in stat.read().rsplit(")", 1)[1].split()[11:13])
print(ticks < os.sysconf("SC_CLK_TCK") / 4)
os.kill(pid, signal.SIGTERM)
print(os.waitpid(pid, 0)[1])
listener.listen()
# Another socket, and one too many.
other = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
other.bind(pool + ".other")
other.listen()
print(os.waitpid(start(other), 0)[1] >> 8, os.waitpid(start(listener, other), 0)[1] >> 8)
"#;

fn activated(fixture: &Fixture) -> Result<(), Stop> {
    if !process::on_path("python3") {
        return Err(Stop::Skip("python3 is not installed".into()));
    }
    let pool = new_pool(fixture, "pool")?;
    let mut command = Command::new("python3");
    command
        .args(["-c", SYSTEMD])
        .arg(&fixture.holdfast)
        .arg(&pool);
    let ended: Ended = fixture.end_of(command)?;
    let confined = "['1', '2']\nstill there\n0 True\n";
    let rounds = ["early", "0", "1"].map(|n| format!("READY=1 0 {n}\n{confined}"));
    let expected = rounds.concat() + "after\nTrue\n0\n1 1\n";
    let refusals = [
        "the socket that was passed to the service is not",
        "2 sockets were passed",
    ];
    if ended.out != expected || !refusals.iter().all(|refusal| ended.err.contains(refusal)) {
        return wrong(format!("{}: {}\n{}", ended.how(), ended.out, ended.err));
    }
    fixture.done(&["pool", "check", &pool])?;
    Ok(())
}

/// What is installed is what systemd understands, where it can be asked.
fn units(fixture: &Fixture) -> Result<(), Stop> {
    let prefix = fixture.holdfast.parent().and_then(|bin| bin.parent());
    let Some(units) = prefix.map(|prefix| prefix.join("lib/systemd/system")) else {
        return wrong("the command is not installed");
    };
    if !units.exists() {
        return Err(Stop::Skip("this copy was not installed".into()));
    }
    if !process::on_path("systemd-analyze") {
        return Err(Stop::Skip("systemd-analyze is not installed".into()));
    }
    for manager in ["system", "user"] {
        let units = units.with_file_name(manager);
        let text = fs::read_to_string(units.join("holdfast-pool@.service"))?;
        let target = match manager {
            "system" => "\nWantedBy=multi-user.target\n",
            _ => "\nWantedBy=default.target\n",
        };
        // Of the other manager's lines, and of what stands for others, nothing is left.
        let whole = text.ends_with(target) && text.contains("\nNoNewPrivileges=yes\n");
        let bound = text.contains("\nCapabilityBoundingSet=") == (manager == "system");
        if !whole || !bound || text.lines().any(|line| line.starts_with('@')) {
            return wrong(format!("the unit of the {manager} manager is {text}"));
        }
    }
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no", "holdfast@dev-shm-pool.service"]);
    command.args(["holdfast@dev-shm-pool.socket", "holdfast-pool@name.service"]);
    // Variables of the command itself, because the tests' environment is a clean one.
    let mut wrapped = Command::new("env");
    wrapped.arg(format!("SYSTEMD_UNIT_PATH={}:", units.display()));
    wrapped.arg(command.get_program()).args(command.get_args());
    let ended = fixture.end_of(wrapped)?;
    let about_us = ended.err.lines().filter(|line| line.contains("holdfast"));
    match about_us.collect::<Vec<_>>() {
        said if said.is_empty() => Ok(()),
        said => wrong(said.join("; ")),
    }
}

/// Answers in the protocol of another version, as such a service would; then asks a real service in
/// one.
const VERSIONS: &str = r#"
import os, socket, struct, subprocess, sys, threading

holdfast, pool = sys.argv[1:]
def said(*words):
    end = subprocess.run([holdfast, *words], capture_output=True, text=True, timeout=60)
    print(words[0], end.returncode, end.stdout + end.stderr, end="")

def answer(listener, version):
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        client.recv(4096)
        client.send(struct.pack("<IHxxI", 0x4E414648, version, 71) + bytes(600 - 12))
        client.close()

for version in (2, 99):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(pool + "/sock")
    listener.listen()
    threading.Thread(target=answer, args=(listener, version), daemon=True).start()
    said("run", "--pool", pool, "--", "true")
    said("kv", pool, "keyspace", "get", "key")
    said("pool", "status", pool)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    os.unlink(pool + "/sock")

script = """
import socket, struct, sys
asks = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asks.settimeout(20)
asks.connect(sys.argv[1] + "/sock")
asks.send(struct.pack("<IHH", 0x51524648, 99, 2) + bytes(280))
magic, version, errno = struct.unpack("<IHxxI", asks.recv(4096)[:12])
print(hex(magic), 0 < version < 99, errno)
"""
said("run", "--pool", pool, "--", "python3", "-c", script, pool)
# What a program of a run that began before an upgrade hands to the next one.
library = os.path.dirname(holdfast) + "/../lib/libholdfast_preload.so"
env = {"LD_AUDIT": library, "HOLDFAST_SESSION": "4:3:4096:", "PATH": "/usr/bin:/bin"}
end = subprocess.run(["ls"], env=env, capture_output=True, text=True, timeout=60)
print("ls", end.returncode, end.stdout + end.stderr, end="")
"#;

fn versions(fixture: &Fixture) -> Result<(), Stop> {
    if !process::on_path("python3") {
        return Err(Stop::Skip("python3 is not installed".into()));
    }
    let pool = new_pool(fixture, "pool")?;
    let mut command = Command::new("python3");
    command.args(["-c", VERSIONS]);
    command.arg(&fixture.holdfast).arg(&pool);
    let ended: Ended = fixture.end_of(command)?;
    let mut expected = String::new();
    for (number, age, fix) in [
        (
            2,
            "older",
            "end the programs on the pool, and restart its service where one stays (holdfast \
             serve, systemctl restart)",
        ),
        (
            99,
            "newer",
            "start this program again, from the installation that the service is of",
        ),
    ] {
        for (command, status) in [("run", 125), ("kv", 1), ("pool", 1)] {
            expected += &format!(
                "{command} {status} holdfast: the pool's service is of a version of Holdfast that \
                 is {age} than this program (protocol {number}, not 8).\nFix: {fix}\n"
            );
        }
    }
    expected += "run 0 0x4e414648 True 71\nls 125 holdfast: this run began with another version \
        of Holdfast, which is no longer installed here\nFix: end the run, and start the program \
        again with holdfast run\n";
    super::expect("what is said", &(ended.out + &ended.err), &expected)
}
