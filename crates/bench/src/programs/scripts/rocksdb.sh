# RocksDB's db_bench: a load in random order with synced writes, then reads.
prepare() { :; }

work() {
    db_bench --db=store --benchmarks=fillrandom --num=$((1000 * N)) --sync=1 --seed=1 >out 2>&1
    db_bench --db=store --benchmarks=readrandom --use_existing_db=1 --num=$((1000 * N)) \
        --seed=1 >>out 2>&1
    grep -c 'micros/op' out
}
