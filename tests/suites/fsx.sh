#!/usr/bin/env bash
# fsx (crates.io, Rust) on the interposed path: random reads, writes, mappings, truncations,
# holes and copies of one file, every read compared with what was written. One case per
# configuration and seed. With --baseline: the same on tmpfs; with --mounted: on a pool
# that is mounted.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_tool fsx
need_mounts
ops=${HF_FSX_OPS:-20000}

# fsx itself stumbles over an fallocate of no bytes, so configurations with operations of no bytes,
# or with aligned ones (rounded down to none), do without it.
config() { # name file-length largest-operation smallest-operation alignment fallocate-weight
    cat >"$scratch/$1.toml" <<END
flen = $2
[opsize]
max = $3
min = $4
align = $5
[weights]
close_open = 1
read = 10
write = 10
mapread = 5
mapwrite = 5
invalidate = 1
truncate = 4
fsync = 1
fdatasync = 1
posix_fallocate = $6
punch_hole = 2
sendfile = 1
posix_fadvise = 1
copy_file_range = 2
END
}
config small 8192 1024 0 1 0
config usual 262144 65536 1 1 2
config large 8388608 2200000 1 1 2
config block 1048576 65536 0 4096 0

case_run() { # config seed consistency
    local name=fsx-$1-$2-$3 out=$scratch/$1-$2-$3.out status count=$ops
    [[ $1 == large ]] && count=$((ops / 10))
    mkdir -p "$scratch/artifacts"
    run_options=(--consistency "$3")
    on_pool fsx "$HF_TOOLS/bin/fsx" -f "$scratch/$1.toml" -N "$count" -S "$2" \
        -P "$scratch/artifacts" "$at/$name" >"$out" 2>&1
    status=$?
    if ((status == 0)) && grep -q 'A-OK' "$out"; then
        pass
    else
        fail "$name (exit status $status)"
        tail -n 12 "$out" | sed 's/^/    /'
    fi
}

make_pool fsx
for seed in 1 2 3; do
    for shape in small usual large block; do
        case_run "$shape" "$seed" posix
    done
done
for mode in sync strict; do
    case_run small 4 "$mode"
    case_run usual 4 "$mode"
done
check_served fsx
check_pool fsx
finish
