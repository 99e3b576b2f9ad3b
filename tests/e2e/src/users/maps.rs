//! Files that several users have mapped shared: what one stores, calls, cuts and grows, all see as
//! on tmpfs, and it is there afterwards.

use super::work::Random;
use super::{Actor, Shared};
use crate::bad_input::{Fixture, Stop, wrong};
use std::path::Path;

/// Makes the calls that it is told to, one a line, on three files, and says what came of each.
const ACTOR: &str = r#"
import mmap, os, sys
files = [os.open(f"{sys.argv[1]}/{n}", os.O_RDWR) for n in range(3)]
maps = {}
def act(what, n, at, text):
    fd = files[n]
    size = os.fstat(fd).st_size
    there = n in maps and at + len(text) <= min(len(maps[n]), -(-size // 4096) * 4096)
    if what == "write":
        return os.pwrite(fd, text, at)
    if what == "read":
        return os.pread(fd, 20, at)
    if what == "cut":
        return os.ftruncate(fd, at)
    if what == "fill":
        return os.posix_fallocate(fd, at, 5000)
    if what == "punch":
        import ctypes
        off = ctypes.c_long
        return ctypes.CDLL(None).fallocate(fd, 3, off(at), off(5000))
    if what == "map":
        # The file stays mapped where it was.
        if size:
            maps[n] = mmap.mmap(fd, size)
        else:
            maps.pop(n, None)
        return size
    if what == "unmap":
        return maps.pop(n).close() if n in maps else None
    if what == "store" and there:
        maps[n][at:at + len(text)] = text
        return at
    if what == "load" and there:
        return maps[n][at:at + 20]
    if what == "peek" and at < size:
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as m:
            return m[at:at + 20]
    if what == "sync" and n in maps:
        return maps[n].flush()
    if what == "fsync":
        return os.fsync(fd)
for line in sys.stdin:
    what, n, at, text = line.split()
    try:
        said = act(what, int(n), int(at), text.encode())
    except (OSError, ValueError, IndexError) as e:
        said = repr(e)
    print(said, flush=True)
"#;

const USERS: &[&str] = &["0", "3001", "3002", "3003"];
const CALLS: usize = 2500;
const ROUNDS: u64 = 4;

/// One call of somebody.
fn call(r: &mut Random) -> (usize, String) {
    let (who, file) = (r.below(USERS.len()), r.below(3));
    let what = match r.below(20) {
        0..=1 => "map",
        2 => "unmap",
        3..=6 => "store",
        7..=9 => "load",
        10..=12 => "write",
        13..=14 => "read",
        15 => "cut",
        16 => ["fill", "punch"][r.below(2)],
        17 => ["sync", "fsync"][r.below(2)],
        _ => "peek",
    };
    let at = match r.below(3) {
        0 => r.below(15) * 4096,
        1 => r.below(60 << 10),
        _ => r.below(9000),
    };
    let text = format!("{:x}", r.below(usize::MAX)).repeat(1 + r.below(40) * r.below(2));
    (who, format!("{what} {file} {at} {text}"))
}

pub fn maps(fixture: &Fixture) -> Result<(), Stop> {
    let script = fixture.path("maps.py");
    std::fs::write(&script, ACTOR)?;
    for options in [&[][..], &["--consistency", "strict"], &["--medium", "file"]] {
        let shared = Shared::with(fixture, "3001", options)?;
        let plain = format!("/dev/shm/hf-maps-{}", std::process::id());
        std::fs::create_dir(&plain)?;
        let make = |at: &str| format!("chmod 777 {at}; cd {at}; touch 0 1 2; chmod 666 0 1 2");
        shared.expect("3001", &make("/hf"), "")?;
        let mut on_tmpfs = std::process::Command::new("sh");
        on_tmpfs.args(["-c", &make(&plain)]).status()?;
        let compared = (0..ROUNDS).try_for_each(|seed| round(&shared, &script, &plain, seed));
        let _ = std::fs::remove_dir_all(&plain);
        compared?;
        shared.end()?;
        std::fs::remove_dir_all(fixture.path("theirs"))?;
    }
    none_is_left()
}

/// No file is lent any more.
fn none_is_left() -> Result<(), Stop> {
    for entry in std::fs::read_dir("/dev/shm")? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = std::os::unix::fs::MetadataExt::uid(&entry.metadata()?);
        if owner == 3001 && name.starts_with("holdfast-lent.") {
            return wrong(format!("{name} is left"));
        }
    }
    Ok(())
}

fn round(shared: &Shared<'_>, script: &Path, plain: &str, seed: u64) -> Result<(), Stop> {
    let mut random = Random(seed);
    let mut actors = Vec::new();
    for user in USERS {
        let on = |pool, at: &str| {
            let program = ["python3".as_ref(), script.as_os_str(), at.as_ref()];
            Actor::start(shared.fixture, user, pool, &program)
        };
        actors.push((on(None, plain)?, on(Some(&shared.pool), "/hf")?));
    }
    let mut told: Vec<String> = Vec::new();
    for _ in 0..CALLS {
        let (who, call) = call(&mut random);
        let (on_tmpfs, on_pool) = &mut actors[who];
        let expected = on_tmpfs.says(&call)?;
        let said = on_pool.says(&call);
        let user = USERS[who];
        told.push(format!("{user}: {call:.60}: {expected}"));
        if !matches!(&said, Ok(said) if *said == expected) {
            let history = told[told.len().saturating_sub(30)..].join("\n");
            let (Ok(said) | Err(Stop::Wrong(said) | Stop::Skip(said))) = said;
            return wrong(format!("seed {seed}:\n{history}\nand on the pool: {said}"));
        }
    }
    // They are killed, with all that they have mapped.
    drop(actors);
    for n in 0..3 {
        let sum = format!("sha1sum </hf/{n}");
        let want = shared.says("0", &format!("sha1sum <{plain}/{n}"))?.out;
        for user in ["3001", "3002"] {
            shared.expect(user, &sum, &want)?;
        }
    }
    Ok(())
}
