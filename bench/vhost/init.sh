#!/bin/busybox sh
# The first and only process of the guest of bench/vhost/run: `rounds=` and `seconds=` say how much
# it measures. The disks are vda to vdc; each round begins with another one.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs tmp /dev/shm
# Each needs those before it.
modules='virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk'
for module in $modules; do
    insmod "/modules/$module.ko"
done
for word in $(cat /proc/cmdline); do
    case $word in
    rounds=* | seconds=*) export "$word" ;;
    esac
done

# Jobs of one fio, one after the other: a start of fio costs an emulated processor a second.
jobs() { # disks in their order
    printf '[global]\nioengine=libaio\ndirect=1\nthread\ntime_based\nruntime=%s\n' "$seconds"
    printf 'stonewall\nnorandommap\n'
    for row in randread-4k-1 randwrite-4k-1 randread-4k-32 randwrite-4k-32 \
        randread-256k-1 randwrite-256k-1 randread-256k-8 randwrite-256k-8; do
        for disk in "$@"; do
            rest=${row#*-}
            printf '[%s/%s]\nfilename=/dev/%s\n' "$row" "$disk" "$disk"
            printf 'rw=%s\nbs=%s\niodepth=%s\n' "${row%%-*}" "${rest%-*}" "${rest#*-}"
        done
    done
}

# The firmware has left its line open.
echo
round=1
while [ "$round" -le "$rounds" ]; do
    case $((round % 3)) in
    1) jobs vda vdb vdc ;;
    2) jobs vdb vdc vda ;;
    0) jobs vdc vda vdb ;;
    esac >/jobs
    # Of a job's line: its name, and the requests per second of reads and writes.
    fio --output-format=terse /jobs | awk -F';' -v round=$round '
        /^3;/ { split($3, name, "/"); print "did", round, name[1], name[2], $8 + $49 }'
    round=$((round + 1))
done
echo over
poweroff -f
