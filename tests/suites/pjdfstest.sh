#!/usr/bin/env bash
# The POSIX suite pjdfstest (crates.io, Rust) on the interposed path, as whoever calls. With
# --baseline: the same on tmpfs, with --mounted: on a pool that is mounted; there everything must
# pass. On the interposed path tests in pjdfstest-excluded.txt are run too and must fail: a line
# there that is no longer true fails the suite.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_tool pjdfstest
need_mounts

# The suite switches between two users in some tests; every Debian has these.
second_fs=$(mktemp -d "${TMPDIR:-/tmp}/pjdfs.XXXXXX")
rubbish+=("$second_fs")
expected=$(sed -n 's/#.*//; s/^\([^ \t]\{1,\}\)[ \t].*/    "\1",/p' "$here/pjdfstest-excluded.txt")
[[ $baseline == yes || $mounted == yes ]] && expected=
cat >"$scratch/pjdfstest.toml" <<END
[features]
posix_fallocate = {}
utime_now = {}
utimensat = {}
rename_ctime = {}
[settings]
naptime = 0.01
allow_remount = false
expected_failures = [
$expected
]
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
END
make_pool pjdfs
out=$scratch/out
on_pool pjdfs env NO_COLOR=1 "$HF_TOOLS/bin/pjdfstest" -c "$scratch/pjdfstest.toml" -p "$at" \
    -s "$second_fs" >"$out" 2>&1
status=$?
sed -i 's/\x1b\[[0-9;]*m//g' "$out"
# Each case ends a line with its verdict; a reason follows on an indented line.
awk '
    /^[a-z_0-9:]+ +(ok|failed as expected)$/ { print "pass", $1; next }
    /^[a-z_0-9:]+ +skipped$/ { name = $1; want = 1; next }
    /^[a-z_0-9:]+ +PASSED UNEXPECTEDLY$/ {
        print "fail", $1, "is in pjdfstest-excluded.txt but passes"; next }
    /^[a-z_0-9:]+ +FAILED$/ { name = $1; want = 2; next }
    want { sub(/^[ \t]+/, ""); print (want == 1 ? "skip" : "fail"), name, $0; want = 0 }
' "$out" >"$scratch/verdicts"
while read -r verdict name reason; do
    case $verdict in
    pass) pass ;;
    skip) skip "pjdfstest $name ($reason)" ;;
    fail) fail "pjdfstest $name ($reason)" ;;
    esac
done <"$scratch/verdicts"
# A run that dies early must not look like a small success.
if ! grep -q '^Summary: ' "$out"; then
    fail "pjdfstest stopped after $((passed + failed + skipped)) cases, exit status $status"
    tail -n 5 "$out" | sed 's/^/    /'
elif ((status != 0 && failed == 0)); then
    fail "pjdfstest exit status $status"
fi
check_served pjdfs
check_pool pjdfs
finish
