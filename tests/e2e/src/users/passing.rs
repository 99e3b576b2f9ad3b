//! Descriptors of pool files in messages between users: who gets one has what it was opened for,
//! whatever the name permits.

use super::{Shared, as_user};
use crate::bad_input::{Fixture, Stop, wrong};
use crate::process;
use std::process::Stdio;

/// Each side sends the other an open file that only it may open, and reads what it gets; a file
/// that is open for reading cannot be written by that.
const EITHER: &str = r#"
import errno, os, socket, sys, time
side = socket.socket(socket.AF_UNIX)
if sys.argv[1] == "first":
    os.umask(0)
    side.bind("/hf/s")
    side.listen()
    side, _ = side.accept()
else:
    while True:
        try:
            side.connect("/hf/s")
            break
        except OSError as e:
            assert e.errno in (errno.ENOENT, errno.ECONNREFUSED), e
            time.sleep(0.01)
own = f"/hf/{sys.argv[1]}"
with open(os.open(own, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
    f.write(f"of the {sys.argv[1]}")
fd = os.open(own, os.O_RDONLY)
socket.send_fds(side, [b"x"], [fd])
os.close(fd)
os.unlink(own)
[got] = socket.recv_fds(side, 10, 1)[1]
def errno_of(call):
    try:
        return call()
    except OSError as e:
        return errno.errorcode[e.errno]
print(os.read(got, 20).decode(), errno_of(lambda: os.write(got, b"x")))
"#;

pub fn passing(fixture: &Fixture) -> Result<(), Stop> {
    let script = fixture.path("either.py");
    std::fs::write(&script, EITHER)?;
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 777 /hf", "")?;
    for [first, second] in [["3001", "3002"], ["3002", "3001"], ["3002", "3003"]] {
        let mut command = as_user(first);
        command.arg(&shared.fixture.holdfast);
        command.args(["run", "--pool"]).arg(&shared.pool);
        command.args(["--", "timeout", "60", "python3"]);
        command.arg(&script).arg("first");
        process::clean(&mut command, &shared.fixture.dir);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.spawn()?;
        let second_script = format!("python3 {} second", script.display());
        shared.expect(second, &second_script, "of the first EBADF\n")?;
        let out = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&out.stdout);
        if !out.status.success() || said != "of the second EBADF\n" {
            return wrong(format!(
                "{first} got {said:?} from {second}: {}",
                out.status
            ));
        }
        shared.expect(first, "rm /hf/s", "")?;
    }
    shared.end()
}
