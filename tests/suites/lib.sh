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
[[ -n ${HOLDFAST:-} || $baseline == yes ]] || {
    echo "suite: HOLDFAST is not set (or give --baseline for plain tmpfs)" >&2
    exit 2
}
scratch=$(mktemp -d "${HF_WORK:-/dev/shm}/suite.XXXXXX") || exit 1
chmod 0755 "$scratch" # some cases change user and must still get here
trap 'rm -rf "$scratch"' EXIT
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

make_pool() { # name
    [[ $baseline == yes ]] && return
    local log=$scratch/create.log
    "$HOLDFAST" pool create "$scratch/$1" --size "${HF_POOL_SIZE:-1G}" >"$log" 2>&1 && return
    cat "$log"
    fail "pool create $1"
    finish
}

# Runs a command on pool $1 with further options for `holdfast run` in the array run_options.
run_options=()
on_pool() { # pool command...
    local pool=$scratch/$1 report=$scratch/$1.report
    shift
    if [[ $baseline == yes ]]; then timeout -k 5 "${HF_LIMIT:-300}" "$@"; return; fi
    timeout -k 5 "${HF_LIMIT:-300}" "$HOLDFAST" run --pool "$pool" --at "$at" \
        --report "$report" "${run_options[@]}" -- "$@"
}

# The run counts only if Holdfast served it: report counters, and nothing at the path on the host.
check_served() { # pool
    [[ $baseline == yes ]] && return
    local served
    served=$(grep -o '"served" *: *[0-9]*' "$scratch/$1.report" 2>/dev/null | grep -o '[0-9]*$')
    if ((${served:-0} > 0)); then pass; else fail "$1: the report shows no served call"; fi
    if [[ -e $at ]]; then fail "$1: $at exists on the host"; else pass; fi
}

check_pool() { # pool
    [[ $baseline == yes ]] && return
    local log=$scratch/check.log status
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
