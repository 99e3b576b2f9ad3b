//! Sockets with a name in the pool, between users: who may write to the name reaches the socket,
//! whoever bound it, and nobody is led to another's.

use super::{Shared, as_user};
use crate::bad_input::{Fixture, Stop};
use crate::process;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

/// Tells each that connects who the kernel says it is, as often as the second argument says.
const SERVER: &str = r#"
import os, socket, struct, sys, threading
# It ends with the test at the latest, which holds the other side.
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
path, count = sys.argv[1], int(sys.argv[2])
os.umask(0)
s = socket.socket(socket.AF_UNIX)
s.bind(path)
s.listen()
print(s.getsockname(), flush=True)
for _ in range(count):
    c, _ = s.accept()
    who = c.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    c.send(str(struct.unpack("3i", who)[1]).encode())
    c.close()
"#;

/// What was told, or why nothing was.
const CLIENT: &str = r#"
import errno, socket, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
    print(s.recv(9).decode())
except OSError as e:
    print(errno.errorcode[e.errno])
"#;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Closes its standard input.
        let _ = self.0.wait();
    }
}

fn serve(shared: &Shared<'_>, user: &str, path: &str, count: &str) -> Result<Server, Stop> {
    let mut command = as_user(user);
    command
        .arg(&shared.fixture.holdfast)
        .args(["run", "--pool"]);
    command.arg(&shared.pool).args(["--", "python3"]);
    command
        .arg(shared.fixture.path("server.py"))
        .args([path, count]);
    process::clean(&mut command, &shared.fixture.dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = Server(command.spawn()?);
    let out = server.0.stdout.take().map(BufReader::new);
    let out = out.ok_or_else(|| Stop::Wrong("no pipe".into()))?;
    match out.lines().next() {
        Some(Ok(name)) if name == path => Ok(server),
        said => Err(Stop::Wrong(format!("user {user} bound {path}: {said:?}"))),
    }
}

pub fn sockets(fixture: &Fixture) -> Result<(), Stop> {
    std::fs::write(fixture.path("server.py"), SERVER)?;
    std::fs::write(fixture.path("client.py"), CLIENT)?;
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 777 /hf", "")?;
    let client = fixture.path("client.py");
    let told = |user: &str, path: &str, expected: &str| {
        let script = format!("python3 {} {path}", client.display());
        shared.expect(user, &script, &format!("{expected}\n"))
    };
    for (user, path) in [("3001", "/hf/s-3001"), ("3002", "/hf/s-3002")] {
        let mut server = serve(&shared, user, path, "4")?;
        for other in ["3001", "3002", "3003"] {
            told(other, path, other)?;
        }
        shared.expect(user, &format!("chmod 700 {path}"), "")?;
        for other in ["3001", "3002", "3003"] {
            let expected = if other == user { other } else { "EACCES" };
            told(other, path, expected)?;
        }
        server.0.wait()?;
        shared.expect(user, &format!("chmod 777 {path}"), "")?;
        for other in ["3001", "3002", "3003"] {
            told(other, path, "ECONNREFUSED")?;
        }
    }
    forged(&shared, &told)?;
    let _ = std::fs::remove_dir_all("/tmp/.holdfast-3002");
    shared.end()
}

/// A user puts something else where the socket lay that others are led to.
fn forged(
    shared: &Shared<'_>,
    told: &dyn Fn(&str, &str, &str) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let place = Path::new("/tmp/.holdfast-3002");
    let _ = std::fs::remove_dir_all(place);
    let _server = serve(shared, "3002", "/hf/led", "100")?;
    told("3003", "/hf/led", "3003")?;
    let theirs = |script: &str| {
        let mut command = as_user("3002");
        command.args(["bash", "-c", script, "bash"]);
        command.arg(place).arg(&shared.pool);
        shared.fixture.end_of(command)
    };
    // The service's socket is the owner's, and everybody may connect to it.
    let script = r#"cd "$1"; for f in *[0-9]; do [ -S $f ] && ln -sf "$2/sock" $f; done; ls -l"#;
    let ended = theirs(script)?;
    if !ended.out.contains("/sock") {
        return Err(Stop::Wrong(format!("nothing was forged: {}", ended.out)));
    }
    told("3003", "/hf/led", "ECONNREFUSED")?;
    told("3001", "/hf/led", "ECONNREFUSED")
}
