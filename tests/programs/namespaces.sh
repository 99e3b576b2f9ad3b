#!/usr/bin/env bash
# needs: unshare stat python3
# Owners as programs see them that enter a user namespace amid their work: the shell before and
# after knows other ids than they do, and children of theirs know theirs.
set -eu
cd "$1"
# Where nobody may make one, this says nothing, on tmpfs as well.
unshare --user --map-root-user true 2>/dev/null || exit 0
echo a >a
mkdir d
((EUID != 0)) || chown 7:8 a
show() { stat -c '%n %u %g' a d; }
show
export -f show
unshare --user --map-root-user bash -c 'show; (show); bash -c show; echo in >in; stat -c "%u" in'
show
unshare --user bash -c 'show; stat -c "%u" . | sed s/0/zero/'
stat -c '%n %u' in
python3 - <<'PYTHON'
import ctypes, os

libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER = 0x10000000


def owners(when):
    print(when, [(os.stat(name).st_uid, os.stat(name).st_gid) for name in ("a", "d")], flush=True)


owners("before")
# A child that enters one, and executes a program there.
if os.fork() == 0:
    assert libc.unshare(CLONE_NEWUSER) == 0
    owners("entered")
    os.execvp("stat", ["stat", "-c", "%n %u %g", "a"])
os.wait()
# One whose parent has not looked at any file since its exec.
os.spawnvp(os.P_WAIT, "unshare", ["unshare", "--user", "stat", "-c", "%n %u %g", "a"])
owners("after")
PYTHON
