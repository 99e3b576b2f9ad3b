#!/bin/busybox sh
# The first and only process of a guest whose persistent memory has a block translation table;
# `job=` says what it does with it.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in libnvdimm nd_btt nd_pmem nd_e820; do
    insmod "/modules/$module.ko"
done
device=/dev/pmem0s

appears() {
    tries=0
    while [ ! -e "$1" ] && [ $tries -lt 100 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
}

sum() { # of the whole device, around the caches
    dd if=$device bs=1M iflag=direct 2>/dev/null | md5sum
}

judge() { # what is there, and what is there after some sectors were written
    appears $device
    echo "size $(blockdev --getsize64 $device) $(blockdev --getss $device)"
    echo "found $(sum)"
    sector=1
    while [ $sector -lt 9000 ]; do
        dd if=/dev/urandom of=$device bs=4096 count=3 seek=$sector conv=notrunc,fsync 2>/dev/null
        sector=$((sector + 211))
    done
    echo "left $(sum)"
}

format() { # a table of the kernel's making; then rounds of writes until the end
    appears /dev/pmem0
    bus=/sys/bus/nd
    echo namespace0.0 >$bus/drivers/nd_pmem/unbind
    cat /proc/sys/kernel/random/uuid >$bus/devices/btt0.0/uuid
    echo 4096 >$bus/devices/btt0.0/sector_size
    echo namespace0.0 >$bus/devices/btt0.0/namespace
    echo btt0.0 >$bus/drivers/nd_pmem/bind
    appears $device
    echo "size $(blockdev --getsize64 $device) $(blockdev --getss $device)"
    round=1
    while [ $round -lt 2000 ]; do
        octal=$(printf %o $((round % 255 + 1)))
        tr '\0' "\\$octal" </dev/zero 2>/dev/null |
            dd of=$device bs=4096 count=100 seek=$((round * 37 % 900)) iflag=fullblock \
                conv=notrunc,fsync 2>/dev/null
        echo "round $round"
        round=$((round + 1))
    done
}

# What came before may end without a line break.
echo
job=$(sed 's/.*job=\([a-z]*\).*/\1/' /proc/cmdline)
$job
echo over
poweroff -f
