//! Files of the pool that are sent over sockets between programs that do not know each other: runs,
//! containers, other pools, programs outside, and senders that are killed.

use super::{begin, container, pool, python, said};
use crate::bad_input::{Case, Fixture, Stop, wrong};
use std::path::Path;
use std::process::Command;

pub const CASES: &[(&str, Case)] = &[
    ("files sent between runs and containers", between_runs),
    ("files sent to strangers", to_strangers),
    ("senders that are killed", killed_senders),
];

/// Makes a file with a text, removes its name, and sends it to whoever listens at the socket.
const SEND: &str = "import os, socket, sys, time
top = sys.argv[1]
fd = os.open(top + '/sent', os.O_RDWR | os.O_CREAT, 0o600)
os.write(fd, b'a secret')
os.lseek(fd, 2, os.SEEK_SET)
os.unlink(top + '/sent')
with socket.socket(socket.AF_UNIX) as s:
    end = time.time() + 20
    while True:
        try:
            s.connect('sock')
            break
        except OSError:
            if time.time() > end: raise
            time.sleep(0.01)
    socket.send_fds(s, [b'x'], [fd])
    s.recv(1)
print('sent')";

/// Receives one file, and says what it can do with it.
const RECEIVE: &str = "import errno, os, socket
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind('sock')
    listener.listen()
    s = listener.accept()[0]
    got = socket.recv_fds(s, 10, 1)[1]
    s.close()
os.unlink('sock')
def attempt(what):
    try:
        return what()
    except OSError as e:
        return errno.errorcode[e.errno]
for fd in got:
    print(attempt(lambda: os.read(fd, 20)), attempt(lambda: os.pwrite(fd, b'A SECRET', 0)),
          attempt(lambda: os.pread(fd, 20, 0)), os.fstat(fd).st_size)
print(len(got))";

fn between_runs(fixture: &Fixture) -> Result<(), Stop> {
    let path = pool(fixture)?;
    for [sender_apart, receiver_apart] in
        [[false, false], [true, false], [false, true], [true, true]]
    {
        let place = |apart: bool| apart.then(|| container(fixture)).transpose();
        let receiver = begin(python(fixture, place(receiver_apart)?, &path, RECEIVE))?;
        let sender = begin(python(fixture, place(sender_apart)?, &path, SEND))?;
        let got = said(receiver, "the receiver")?;
        said(sender, "the sender")?;
        if got != "b'secret' 8 b'A SECRET' 8\n1\n" {
            return wrong(format!("{sender_apart} {receiver_apart}: {got}"));
        }
    }
    fixture.done(&["pool", "check", &path.to_string_lossy()])?;
    Ok(())
}

/// Who is outside, or on another pool, gets a descriptor that shows and takes nothing.
fn to_strangers(fixture: &Fixture) -> Result<(), Stop> {
    let path = pool(fixture)?;
    let other = fixture.path("other");
    fixture.done(&["pool", "create", &other.to_string_lossy(), "--size", "64M"])?;
    let outside = || {
        let mut command = Command::new("python3");
        command.args(["-c", RECEIVE]).current_dir(&fixture.dir);
        command
    };
    let receivers = [outside(), python(fixture, None, &other, RECEIVE)];
    for (receiver, who) in receivers.into_iter().zip(["outside", "another pool"]) {
        let receiver = begin(receiver)?;
        let sender = begin(python(fixture, None, &path, SEND))?;
        let got = said(receiver, who)?;
        said(sender, "the sender")?;
        if got != "EBADF EPERM EBADF 0\n1\n" {
            return wrong(format!("{who}: {got}"));
        }
    }
    Ok(())
}

/// More senders than there is room for messages die while they send. Then sending still works, and
/// what nobody can receive any more takes no space once all have ended.
fn killed_senders(fixture: &Fixture) -> Result<(), Stop> {
    let path = pool(fixture)?;
    let program = "import os, random, signal, socket, sys, time
top = sys.argv[1]
random.seed(5)
def sender(sock):
    for n in range(1000000):
        name = f'{top}/{os.getpid()}-{n}'
        fd = os.open(name, os.O_RDWR | os.O_CREAT)
        os.write(fd, b'x' * 5000)
        os.unlink(name)
        try:
            socket.send_fds(sock, [b'x'], [fd] * random.randint(1, 5))
        except BlockingIOError:
            pass
        os.close(fd)
for round in range(150):
    a, b = socket.socketpair()
    a.setblocking(False)
    pids = []
    for n in range(3):
        pid = os.fork()
        if pid == 0:
            sender(a)
        pids.append(pid)
    time.sleep(random.uniform(0.001, 0.02))
    for fd in socket.recv_fds(b, 1, 10)[1]:
        assert os.pread(fd, 10, 4995) == b'xxxxx', round
        os.close(fd)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    a.close(), b.close()
a, b = socket.socketpair()
for n in range(3000):
    socket.send_fds(a, [b'x'], [os.open(top, os.O_RDONLY)])
    [fd] = socket.recv_fds(b, 1, 1)[1]
    os.close(fd)
print('all sent')";
    let got = said(begin(python(fixture, None, &path, program))?, "the parent")?;
    if got != "all sent\n" {
        return wrong(got);
    }
    nothing_left(fixture, &path)
}

fn nothing_left(fixture: &Fixture, path: &Path) -> Result<(), Stop> {
    fixture.done(&["pool", "check", &path.to_string_lossy()])?;
    let text = path.to_string_lossy();
    let used = fixture.done(&[
        "run",
        "--pool",
        &text,
        "--",
        "df",
        "-k",
        "--output=used",
        "/hf",
    ])?;
    match used
        .out
        .split_whitespace()
        .last()
        .and_then(|n| n.parse::<u64>().ok())
    {
        Some(kib) if kib < 4096 => Ok(()),
        _ => wrong(format!("space is lost: {}", used.out)),
    }
}
