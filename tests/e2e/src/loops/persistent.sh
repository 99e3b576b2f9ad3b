#!/bin/busybox sh
# The first and only process of a guest with persistent memory; `job=` says what it does with it.
/bin/busybox --install -s /bin
export PATH=/tools:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /root /tmp
mount -t tmpfs tmpfs /dev/shm
# Each needs those before it.
for module in libnvdimm nd_btt nd_pmem nd_e820; do
    insmod "/modules/$module.ko"
done
while [ ! -e /dev/pmem0 ]; do
    sleep 0.1
done
pool=/mnt/pool

fill() { # changes, each durable before its number is said
    /tools/mke2fs -q -t ext4 -b 4096 /dev/pmem0
    mount -t ext4 -o dax=always /dev/pmem0 /mnt
    holdfast pool create $pool --size 64M
    holdfast volume $pool create disk --size 8M
    for mode in none pt pt-batch pmap pmap-cache fd pkey auto; do
        said=$(holdfast volume $pool poke disk --protect $mode 2>/dev/null)
        echo "poke $mode $? ${said##*kept by }"
    done
    holdfast run --pool $pool -- dash -c '
        number=0
        while [ $number -lt 2000 ]; do
            seq $number $((number + 3000)) | dd of=/hf/$number conv=fsync 2>/dev/null || break
            holdfast kv /mnt/pool keys put $number "value $number" || break
            echo "durable $number"
            number=$((number + 1))
        done'
}

check() {
    mount -t ext4 -o dax=always /dev/pmem0 /mnt
    holdfast pool status $pool | head -n 1
    holdfast run --pool $pool -- dash -c 'cd /hf; for file in [0-9]*; do
        echo "file $file $(md5sum <$file)"
    done'
    holdfast kv $pool keys scan | sed 's/^/pair /'
    holdfast pool check $pool >/dev/null
    echo "check $?"
    umount /mnt
}

calls() { # directory, how it is run
    dir=$1
    shift
    "$@" dash -c "mkdir -p $dir; exec mapping-ops 1 12 300 $dir $dir uncut"
}

map() {
    /tools/mke2fs -q -t ext4 -b 4096 /dev/pmem0
    mount -t ext4 -o dax=always /dev/pmem0 /mnt
    holdfast pool create $pool --size 64M
    calls /mnt/work env >/tmp/plain
    rm -r /mnt/work
    run="holdfast run --pool $pool --report /tmp/report --map=min=4K"
    calls /mnt/work $run -- >/tmp/mapped
    echo "hits $(sed 's/.*"hits":\([0-9]*\).*/\1/' /tmp/report)"
    cmp /tmp/plain /tmp/mapped && echo mapped same
    calls /hf/work $run -- >/tmp/pool
    cmp /tmp/plain /tmp/pool && echo pool same
}

# What came before may end without a line break.
echo
job=$(sed 's/.*job=\([a-z]*\).*/\1/' /proc/cmdline)
$job
echo over
poweroff -f
