//! Pipes with a name in the pool, between users: both sides meet whoever they are, and who may only
//! write to the name reads nothing by it.

use super::{Shared, as_user};
use crate::bad_input::{Fixture, Stop, wrong};
use crate::process;
use std::process::{Child, Stdio};

/// Opens for writing what may only be written, and tries to read by that.
const WRITER: &str = r#"
import errno, os, time
def errno_of(call):
    try:
        return call()
    except OSError as e:
        return errno.errorcode[e.errno]
while True:
    try:
        fd = os.open("/hf/p", os.O_WRONLY | os.O_NONBLOCK)
        break
    except OSError as e:
        assert e.errno == errno.ENXIO
        time.sleep(0.01)
print(errno_of(lambda: os.read(fd, 1)), os.write(fd, b"once"))
for path in "/hf/p", f"/proc/self/fd/{fd}":
    for flags in os.O_RDONLY, os.O_RDWR:
        print(errno_of(lambda: os.open(path, flags | os.O_NONBLOCK)))
"#;

fn reads(shared: &Shared<'_>, user: &str) -> Result<Child, Stop> {
    let mut command = as_user(user);
    command.arg(&shared.fixture.holdfast);
    command.args(["run", "--pool"]).arg(&shared.pool);
    command.args(["--", "timeout", "60", "cat", "/hf/p"]);
    process::clean(&mut command, &shared.fixture.dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command.spawn()?)
}

fn has_read(child: Child, expected: &str) -> Result<(), Stop> {
    let out = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&out.stdout);
    match out.status.success() && said == expected {
        true => Ok(()),
        false => wrong(format!("{}, read {said:?}, not {expected:?}", out.status)),
    }
}

pub fn pipes(fixture: &Fixture) -> Result<(), Stop> {
    std::fs::write(fixture.path("writer.py"), WRITER)?;
    let writer = format!("python3 {}", fixture.path("writer.py").display());
    let shared = Shared::new(fixture, "3001")?;
    shared.expect("3001", "chmod 777 /hf", "")?;
    for maker in ["3001", "3002"] {
        shared.expect(maker, "mkfifo -m 600 /hf/p", "")?;
        shared.expect(maker, "chmod 666 /hf/p", "")?;
        for [reader, writer] in [
            ["3001", "3002"],
            ["3002", "3001"],
            ["3002", "3003"],
            ["3003", "3003"],
        ] {
            let child = reads(&shared, reader)?;
            let text = format!("{writer} to {reader}");
            shared.expect(writer, &format!("echo {text} >/hf/p"), "")?;
            has_read(child, &format!("{text}\n"))?;
        }
        shared.expect(maker, "chmod 622 /hf/p", "")?;
        let child = reads(&shared, maker)?;
        let refused = "EBADF 4\nEACCES\nEACCES\nEACCES\nEACCES\n";
        shared.expect("3003", &writer, refused)?;
        has_read(child, "once")?;
        shared.expect(maker, "rm /hf/p", "")?;
    }
    shared.end()
}
