# fio with its mmap engine: random reads, then random writes with a sync at the end.
part() { # rw size
    fio --name=part --filename=data --size=$((8 * N))m --ioengine=mmap --bs=4k --rw="$1" \
        --io_size=$((16 * N))m --end_fsync=1 --thread --output=out.json --output-format=json
    awk -F'[:,]' '/"io_bytes"/ { sum += $2 } END { print sum }' out.json
}

prepare() { head -c $((8388608 * N)) /dev/urandom >data; }

work() {
    part randread
    part randwrite
}
