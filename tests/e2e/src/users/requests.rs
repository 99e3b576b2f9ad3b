//! Requests that no program of ours makes: another user's own, at the pool's socket.

use super::{Shared, as_user};
use crate::bad_input::{Fixture, Stop, wrong};

/// Asks for all that changes a pool, as `docs/spec/session.md` has it.
const ASKS: &str = r#"
import socket, struct, sys
def ask(kind, flags=0, number=0):
    asks = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asks.settimeout(10)
    asks.connect(sys.argv[1] + "/sock")
    request = bytearray(544)
    struct.pack_into("<IHHI", request, 0, 0x51524648, int(sys.argv[2]), kind, flags)
    if kind == 7:
        struct.pack_into("<Q", request, 16, number)
    else:
        request[12:14] = bytes([1, kind == 6])
        request[32:33], request[288:289] = b"s", b"t" if kind == 6 else b"\0"
    asks.send(request)
    return struct.unpack_from("<I", asks.recv(512), 8)[0]
print(*[ask(int(kind), 0, 1 << 33) for kind in sys.argv[3:]])
"#;
const EACCES: i32 = 13;
const EAGAIN: i32 = 11;
/// The version of the requests.
const PROTOCOL: &str = "8";

/// What a command refuses to another user, the service refuses, too.
pub fn requests(fixture: &Fixture) -> Result<(), Stop> {
    let shared = Shared::new(fixture, "3001")?;
    let mut owner = as_user("3001");
    owner.arg(&fixture.holdfast).arg("snapshot");
    owner.arg(&shared.pool).args(["create", "s"]);
    let made = fixture.end_of(owner)?;
    if made.code() != Some(0) {
        return wrong(format!("{} {}", made.how(), made.err));
    }
    let segment = shared.pool.join("data-0.seg");
    let before = std::fs::metadata(&segment)?.len();
    let mut other = as_user("3002");
    other.args(["/usr/bin/python3", "-c", ASKS]);
    other.arg(&shared.pool).args([PROTOCOL, "3", "4", "6", "7"]);
    let ended = fixture.end_of(other)?;
    let expected = format!("{EACCES} {EACCES} {EACCES} {EACCES}\n");
    if ended.out != expected || std::fs::metadata(&segment)?.len() != before {
        return wrong(format!("{} {:?} {}", ended.how(), ended.out, ended.err));
    }
    // The same request of the owner is understood: stores were not stopped for a snapshot.
    let mut owner = as_user("3001");
    owner.args(["/usr/bin/python3", "-c", ASKS]);
    owner.arg(&shared.pool).args([PROTOCOL, "3"]);
    let ended = fixture.end_of(owner)?;
    if ended.out != format!("{EAGAIN}\n") {
        return wrong(format!("the owner: {} {:?}", ended.how(), ended.out));
    }
    let mut owner = as_user("3001");
    owner.arg(&fixture.holdfast).arg("snapshot");
    owner.arg(&shared.pool).arg("list");
    let listed = fixture.end_of(owner)?.out;
    if !listed.ends_with("  s\n") || listed.lines().count() != 1 {
        return wrong(listed);
    }
    shared.end()
}
