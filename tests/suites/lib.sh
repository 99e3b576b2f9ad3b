# Common to the suites: where the programs are, how a command runs on the interposed path, and
# how a result is counted. Sourced, not run.
#   HOLDFAST  the holdfast command (absolute); without it, or with --baseline, plain tmpfs
#   HF_TOOLS  directory whose bin/ holds the suites' own programs
#   HF_WORK   scratch directory that the current user may write
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export LC_ALL=C TZ=UTC PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
: "${HF_TOOLS:=${CARGO_TARGET_DIR:-$here/../../target}/tools}"
baseline=no
[[ ${1:-} == --baseline ]] && baseline=yes
# On a pool that is mounted, without the interposed path.
mounted=no
[[ ${1:-} == --mounted ]] && mounted=yes
[[ -n ${HOLDFAST:-} || $baseline == yes ]] || {
    echo "suite: HOLDFAST is not set (or give --baseline for plain tmpfs)" >&2
    exit 2
}
scratch=$(mktemp -d "${HF_WORK:-/dev/shm}/suite.XXXXXX") || exit 1
chmod 0755 "$scratch" # some cases change user and must still get here
# What goes when the suite ends, however it ends, and where a pool is mounted until then.
rubbish=("$scratch") mounted_at=
leave() {
    [[ -z $mounted_at ]] || "$HOLDFAST" umount --lazy "$mounted_at"
    rm -rf "${rubbish[@]}"
}
trap leave EXIT
passed=0 failed=0 skipped=0

pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); printf 'FAILED %s\n' "$*"; }
skip() { skipped=$((skipped + 1)); printf 'skipped %s\n' "$*"; }
finish() {
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    ((failed == 0))
    exit
}

need_tool() { # program
    [[ -x $HF_TOOLS/bin/$1 ]] && return
    skip "$1: $HF_TOOLS/bin/$1 is not there (tests/prepare builds it)"
    finish
}

# The directory in which the program under test works: on the pool, or on the scratch tmpfs.
at=/hf
if [[ $baseline == yes ]]; then at=$scratch/tree && mkdir -p "$at"; fi
# The path of a socket has no more than 107 bytes.
if [[ $mounted == yes ]]; then
    at=$(mktemp -d /dev/shm/suite.XXXXXX) || exit 1
    rubbish+=("$at")
    chmod 0755 "$at"
fi
# Other users, as some cases are, are let in by root alone.
mount_options=()
((EUID == 0)) && mount_options=(--allow-other)

need_mounts() {
    [[ $mounted == no || (-r /dev/fuse && -w /dev/fuse) ]] && return
    skip "mounted: there is no /dev/fuse that this user may open"
    finish
}

make_pool() { # name
    [[ $baseline == yes ]] && return
    local log=$scratch/create.log
    if "$HOLDFAST" pool create "$scratch/$1" --size "${HF_POOL_SIZE:-1G}" >"$log" 2>&1; then
        [[ $mounted == no ]] && return
        mounted_at=$at
        "$HOLDFAST" mount "${mount_options[@]}" "$scratch/$1" "$at" >>"$log" 2>&1 && return
        mounted_at=
    fi
    cat "$log"
    fail "pool $1 could not be made or mounted"
    finish
}

# Runs a command on pool $1 with further options for `holdfast run` in the array run_options.
run_options=()
on_pool() { # pool command...
    local pool=$scratch/$1 report=$scratch/$1.report
    shift
    if [[ $baseline == yes || $mounted == yes ]]; then
        timeout -k 5 "${HF_LIMIT:-300}" "$@"
        return
    fi
    timeout -k 5 "${HF_LIMIT:-300}" "$HOLDFAST" run --pool "$pool" --at "$at" \
        --report "$report" "${run_options[@]}" -- "$@"
}

# The run counts only if Holdfast served it: report counters, and nothing at the path on the host.
check_served() { # pool
    [[ $baseline == yes ]] && return
    if [[ $mounted == yes ]]; then
        case $(stat -f -c %T "$at") in
        fuseblk | fuse*) pass ;;
        *) fail "$1: the files were not those of a mount" ;;
        esac
        return
    fi
    local served
    served=$(grep -o '"served" *: *[0-9]*' "$scratch/$1.report" 2>/dev/null | grep -o '[0-9]*$')
    if ((${served:-0} > 0)); then pass; else fail "$1: the report shows no served call"; fi
    if [[ -e $at ]]; then fail "$1: $at exists on the host"; else pass; fi
}

check_pool() { # pool
    [[ $baseline == yes ]] && return
    local log=$scratch/check.log status
    if [[ $mounted == yes ]]; then
        if "$HOLDFAST" umount "$at"; then pass; else fail "$1: it is not unmounted"; fi
        mounted_at=
    fi
    # A case that failed may have left a child behind, which keeps the pool in use until it ends.
    for _ in $(seq 1 30); do
        timeout 120 "$HOLDFAST" pool check "$scratch/$1" >"$log" 2>&1
        status=$?
        grep -q 'in use' "$log" || break
        sleep 0.5
    done
    if ((status == 0)); then
        pass
    else
        fail "$1: pool check exits $status"
        sed 's/^/    /' "$log"
    fi
}
