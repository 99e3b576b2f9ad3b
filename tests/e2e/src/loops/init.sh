#!/bin/busybox sh
# The first and only process of a guest whose disk is a volume; `job=` says what it does with it.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
# Each needs those before it.
modules='virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk'
for module in $modules; do
    insmod "/modules/$module.ko"
done

write() { # files, each durable before its number is said
    /tools/mke2fs -q -t ext4 /dev/vda
    mount -t ext4 /dev/vda /mnt
    number=0
    while [ $number -lt 2000 ]; do
        seq $number $((number + 3000)) | dd of=/mnt/$number conv=fsync 2>/dev/null || break
        echo "durable $number"
        number=$((number + 1))
    done
}

check() {
    mount -t ext4 /dev/vda /mnt
    for file in /mnt/[0-9]*; do
        echo "file ${file##*/} $(md5sum <"$file")"
    done
    umount /mnt
}

look() {
    cd /sys/block/vda
    echo "is $(cat serial) $(cat size) $(cat queue/logical_block_size) $(cat ro) $(ls mq | wc -l)"
    echo "may $(cat queue/discard_max_bytes) $(cat queue/write_zeroes_max_bytes)"
    echo "cache $(cat cache_type)"
    echo "write through" >cache_type
    echo "cache $(cat cache_type)"
    seq 1 100000 | dd of=/dev/vda bs=4096 count=64 iflag=fullblock 2>/dev/null
    sync
    echo 3 >/proc/sys/vm/drop_caches
    echo "begins $(seq 1 100000 | head -c 262144 | cmp -n 262144 - /dev/vda && echo well)"
    blkdiscard /dev/vda
    echo 3 >/proc/sys/vm/drop_caches
    echo "then $(dd if=/dev/vda bs=4096 count=64 2>/dev/null | tr -d '\0' | wc -c)"
}

# The firmware has left its line open.
echo
for word in $(cat /proc/cmdline); do
    case $word in
    job=*) "${word#job=}" ;;
    esac
done
echo over
poweroff -f
