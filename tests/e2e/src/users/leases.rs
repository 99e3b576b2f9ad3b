//! What processes of other users keep of what they were told: never what is not so any more.

use super::Shared;
use crate::bad_input::{Fixture, Stop, wrong};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Programs on the pool that change something, and programs that look at it, one after the other.
/// Two look: one of user 3002, who is served and keeps answers, and one of root, which has the pool
/// mapped and acts as user 3002, so nobody tells it anything. They must see the same.
const PROGRAM: &str = r#"
import os, random, struct, subprocess, sys
role = sys.argv[1]
def attempt(call):
    try: return call()
    except OSError as e: return -e.errno
def attributes(path, **how):
    s = os.stat(path, **how)
    return (s.st_ino, oct(s.st_mode), s.st_nlink, s.st_size, s.st_uid, s.st_mtime_ns, s.st_ctime_ns)
def changes():
    names = ["f", "d/f", "d/e/g", "d/new", "moved"]
    random.seed(int(sys.argv[2])); os.umask(0); os.chdir("/hf/w")
    def change():
        name, other, what = random.choice(names), random.choice(names), random.randrange(16)
        if what < 3: open(name, "ab").write(b"x" * random.randrange(1, 9000))
        elif what == 3: os.truncate(name, random.randrange(20000))
        elif what == 4: os.unlink(name)
        elif what == 5: os.rename(name, other)
        elif what == 6: os.link(name, other)
        elif what == 7: os.chmod(name, random.choice([0o644, 0o600, 0o666]))
        elif what == 8: os.chmod("d", random.choice([0o777, 0o700, 0o711]))
        elif what == 9: os.utime(name, ns=(random.randrange(10**18), random.randrange(10**18)))
        elif what == 10: os.path.islink("link") and os.unlink("link"); os.symlink(name, "link")
        elif what == 11: os.rename("d", "z"); os.rename("z", "d")
        elif what == 12: os.makedirs("d/e", exist_ok=True); open("d/f", "w").write("else")
        elif what == 13: open(name, "r+b").write(os.urandom(8))
        elif what == 14:
            entry = lambda tag, rights, who=2**32 - 1: struct.pack("<HHI", tag, rights, who)
            rights = random.randrange(8)
            entries = entry(1, 6) + entry(2, rights, 3002) + entry(4, 4)
            entries += entry(16, 7) + entry(32, 4)
            os.setxattr(name, "system.posix_acl_access", struct.pack("<I", 2) + entries)
        else: os.removexattr(name, "system.posix_acl_access")
    for line in sys.stdin:
        attempt(change); print(flush=True)
def looks():
    if role == "truth": os.setgroups([3002]); os.setegid(3002); os.seteuid(3002)
    os.chdir("/hf/w"); here = os.open(".", os.O_RDONLY); kept = {}; late = {}
    def look():
        seen = []
        for path in ("f", "d/f", "d/e/g", "link", "d/new", "moved", "d/../f", "d"):
            seen.append(attempt(lambda: attributes(path)))
            seen.append(attempt(lambda: attributes("/hf/w/" + path, follow_symlinks=False)))
            seen.append(attempt(lambda: attributes(path, dir_fd=here)))
            for how in (os.R_OK, os.W_OK, os.X_OK):
                seen.append(os.access(path, how, effective_ids=True))
            seen.append(attempt(lambda: open(path, "rb").read()))
            for name in ("system.posix_acl_access", "security.selinux"):
                seen.append(attempt(lambda: os.getxattr(path, name)))
                seen.append(attempt(lambda: os.getxattr(path, name, follow_symlinks=False)))
        seen.append(attempt(lambda: sorted(os.listdir("d"))))
        seen.append(attempt(lambda: sorted(attributes(e.path) for e in os.scandir("d"))))
        # What is open stays what it is, whatever becomes of its name, and may grow at its end.
        for path in ("f", "d/f"):
            if path not in kept:
                fd = attempt(lambda: os.open(path, os.O_RDONLY))
                if fd > 2: kept[path] = fd
            if path in kept:
                fd = kept[path]
                s = os.fstat(fd); seen.append((s.st_nlink, s.st_size, s.st_ctime_ns))
                seen.append((os.read(fd, 5000), os.read(fd, 50000)))
                if random.randrange(6) == 0: os.lseek(fd, random.randrange(100), 0)
        # What was opened is read after it was changed.
        for path in ("f", "d/f"):
            fd = late.pop(path, None)
            if fd is None:
                fd = attempt(lambda: os.open(path, os.O_RDONLY))
                if fd >= 0: late[path] = fd
            else:
                seen.append((os.read(fd, 10), os.lseek(fd, 0, 1)))
                seen.append(attempt(lambda: os.lseek(fd, -5, 2)))
                seen.append((os.read(fd, 50), os.read(fd, 50000), os.fstat(fd).st_size))
                os.close(fd)
        return seen
    for line in sys.stdin:
        random.seed(line); first = look()
        random.seed(line); print(repr((first, look())), flush=True)
def judges():
    hf, pool, rounds = sys.argv[2], sys.argv[3], int(sys.argv[4])
    def start(user, *how, before=()):
        groups = "--clear-groups"
        words = [*before, "setpriv", "--reuid", user, "--regid", user, groups]
        words += [hf, "run", "--pool", pool, "--"]
        pipe = subprocess.PIPE
        return subprocess.Popen([*words, *how], stdin=pipe, stdout=pipe, text=True)
    me = ["python3", "-c", open(sys.argv[0]).read()]
    changers = [start("3001", *me, "change", "1"), start("3003", *me, "change", "2")]
    if len(sys.argv) > 5:
        # The command may be installed there.
        hidden = """keep=$0; case $keep in /dev/shm/?*) mount --bind "$keep" /mnt; esac
            mount -t tmpfs none /dev/shm
            case $keep in /dev/shm/?*) mkdir -p "$keep"; mount --bind /mnt "$keep"; esac
            exec "$@" """
        place = os.path.dirname(os.path.dirname(hf))
        how = ["sh", "-ec", hidden, place, *me, "change", "3"]
        changers = [start("0", *how, before=("unshare", "-m"))]
    lookers = [start("3002", *me, "look"), start("0", *me, "truth")]
    def ask(who, text):
        who.stdin.write(text + "\n"); who.stdin.flush(); return who.stdout.readline()
    for n in range(rounds):
        ask(random.choice(changers), "")
        known, truth = [ask(looker, str(n)) for looker in lookers]
        if known != truth or not truth.strip():
            for one, other in zip(eval(known), eval(truth)):
                for a, b in zip(one, other):
                    if a != b: print("round", n, "known", str(a)[:200], "but it is", str(b)[:200])
            sys.exit(1)
    for p in [*changers, *lookers]: p.stdin.close(); p.wait()
    print("the same")
{"change": changes, "look": looks, "truth": looks, "judge": judges}[role]()
"#;

fn judged(fixture: &Fixture, owner: &str, rounds: &str, hidden: &[&str]) -> Result<(), Stop> {
    let shared = Shared::new(fixture, owner)?;
    shared.expect(owner, "chmod 1777 /hf; mkdir -m 777 /hf/w", "")?;
    let program = fixture.path("leases.py");
    std::fs::write(&program, PROGRAM)?;
    let mut judge = Command::new("python3");
    judge.arg(&program).arg("judge").arg(&fixture.holdfast);
    judge.arg(&shared.pool).arg(rounds).args(hidden);
    let ended = fixture.end_of(judge)?;
    if ended.out != "the same\n" {
        return wrong(format!("{}: {} {}", ended.how(), ended.out, ended.err));
    }
    let pool = std::fs::metadata(shared.pool.join("meta.seg"))?;
    shared.end()?;
    none_is_left(&format!(
        "holdfast-leases.{:x}.{:x}.",
        pool.dev(),
        pool.ino()
    ))
}

/// Of a session that is over, whose proxies may still be ending.
fn none_is_left(theirs: &str) -> Result<(), Stop> {
    let is_there = || -> std::io::Result<bool> {
        let names = std::fs::read_dir("/dev/shm")?.flatten();
        let mut names = names.map(|entry| entry.file_name());
        Ok(names.any(|name| name.to_string_lossy().starts_with(theirs)))
    };
    for _ in 0..100 {
        if !is_there()? {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    wrong(format!("/dev/shm/{theirs}... is left"))
}

/// What the owner and another user change is seen at once by who keeps answers.
pub fn follow(fixture: &Fixture) -> Result<(), Stop> {
    judged(fixture, "3001", "400", &[])
}

/// So is what a program changes that cannot reach the words of the leases.
pub fn reach_all(fixture: &Fixture) -> Result<(), Stop> {
    judged(fixture, "0", "60", &["hidden"])
}
