#!/usr/bin/busybox sh
# The first process of a guest that runs systemd, until it is that.
box=/usr/bin/busybox
$box mount -t proc proc /proc
$box mount -t sysfs sys /sys
$box mount -t devtmpfs dev /dev
modules='virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk'
for module in $modules; do
    $box insmod "/modules/$module.ko"
done
if $box grep -q job=first /proc/cmdline; then
    /tools/mke2fs -F -q -t ext4 /dev/vda
fi
$box mount -t ext4 /dev/vda /disk
$box umount /dev /sys /proc
exec /lib/systemd/systemd
