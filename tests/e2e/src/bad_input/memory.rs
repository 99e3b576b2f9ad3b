//! A pool on a disk that is several times as large as the memory that its programs and its service
//! may use: everything works, nobody is killed, and a small read does not fetch a lot.

use super::{Case, Fixture, Stop, wrong};
use crate::process;
use std::fs;
use std::process::Command;

pub const CASES: &[(&str, Case)] = &[("larger than memory", larger_than_memory)];

/// The host cannot make the surroundings.
const UNFIT: i32 = 99;

/// Runs `inside.sh` in a memory cgroup, with a directory on a disk.
const OUTSIDE: &str = r#"
case $(stat -f -c %T /var/tmp) in ext2/ext3 | xfs | btrfs) ;; *) exit 99 ;; esac
g=/sys/fs/cgroup/memory limit=memory.limit_in_bytes events=memory.oom_control
[ -e $g/memory.usage_in_bytes ] || { g=/sys/fs/cgroup limit=memory.max events=memory.events; }
g=$g/holdfast-test-$$
mkdir $g 2>/dev/null || exit 99
disk=$(mktemp -d /var/tmp/holdfast-test.XXXXXX)
end() {
    rm -rf $disk
    for i in $(seq 100); do rmdir $g 2>/dev/null && return; sleep 0.1; done
}
trap end EXIT
{ echo 128M >$g/$limit; } 2>/dev/null || exit 99
(echo $BASHPID >$g/cgroup.procs && exec bash inside.sh $disk)
code=$?
grep -q '^oom_kill 0' $g/$events || { echo "killed for want of memory" >&2; exit 1; }
exit $code
"#;

const INSIDE: &str = r#"
set -e
$HOLDFAST pool create $1/pool --size 1G >/dev/null
run() { $HOLDFAST run --pool $1/pool --at /hf -- "${@:2}"; }
run $1 python3 files.py write
run $1 python3 files.py read
seq 1 40000 | awk '{ printf "%d\t%04000d\n", $1 * 7919 % 100003, $1 }' >$1/pairs
$HOLDFAST kv $1/pool numbers load <$1/pairs
for i in 1 20000 40000; do
    line=$(sed -n ${i}p $1/pairs)
    [ "$($HOLDFAST kv $1/pool numbers get ${line%%$'\t'*})" = "${line#*$'\t'}" ]
done
$HOLDFAST kv $1/pool numbers dump | sort -S 16M -T $1 | cmp - <(sort -S 16M -T $1 $1/pairs)
run $1 python3 files.py change
$HOLDFAST pool check $1/pool >/dev/null
"#;

/// Each word of the file is its own number.
const FILES: &str = r#"
import array, os, random, sys
PIECE, COUNT = 1 << 20, 512
random.seed(1)
def words(at, n): return array.array('Q', range(at // 8, (at + n) // 8)).tobytes()
def fetched():
    lines = dict(line.split(': ') for line in open('/proc/self/io'))
    return int(lines['read_bytes'])
def check(at, data):
    if data != words(at, len(data)): sys.exit(f'wrong bytes at {at}')
fd = os.open('/hf/f', os.O_RDWR | os.O_CREAT)
if sys.argv[1] == 'write':
    for i in range(COUNT): os.write(fd, words(i * PIECE, PIECE))
    os.fsync(fd)
elif sys.argv[1] == 'read':
    for size in 4096, 65536, PIECE:
        at = random.randrange(8) * 16 * PIECE
        os.lseek(fd, at, os.SEEK_SET)
        for i in range(at, at + 192 * PIECE, size): check(i, os.read(fd, size))
    for size in 4096, 16384:
        before = fetched()
        for i in range(2000):
            at = random.randrange(COUNT * PIECE // size) * size
            check(at, os.pread(fd, size, at))
        # A few reads find out through the mapping how slow the disk is, and each such fault fetches
        # what the disk reads ahead, often 8 MiB. Were all to do so it would be 12 GB.
        if fetched() - before > 3 * 2000 * size + (128 << 20):
            sys.exit(f'{fetched() - before} bytes fetched for 2000 reads of {size}')
else:
    places = random.sample(range(COUNT * 256), 20000)
    for at in places: os.pwrite(fd, words((at + 1) * 4096, 4096), at * 4096)
    os.fsync(fd)
    for at in places:
        if os.pread(fd, 4096, at * 4096) != words((at + 1) * 4096, 4096):
            sys.exit(f'lost what was written to block {at}')
"#;

fn larger_than_memory(fixture: &Fixture) -> Result<(), Stop> {
    fixture.need_root()?;
    if !process::on_path("python3") {
        return Err(Stop::Skip("python3 is not installed".into()));
    }
    fs::write(fixture.path("inside.sh"), INSIDE)?;
    fs::write(fixture.path("files.py"), FILES)?;
    let mut command = Command::new("bash");
    let outside = format!(
        "export HOLDFAST='{}'\n{OUTSIDE}",
        fixture.holdfast.display()
    );
    command.args(["-c", &outside]);
    let ended = fixture.end_of(command)?;
    match ended.code() {
        Some(0) => Ok(()),
        Some(UNFIT) => Err(Stop::Skip(
            "needs a memory cgroup, and /var/tmp on a disk".into(),
        )),
        _ => wrong(format!("{}: {}", ended.how(), ended.tail().join("; "))),
    }
}
