#!/usr/bin/env bash
# Installs the Debian package, uses it, and removes it again, on a copy of the root file system that
# nothing leaves: an overlay whose changes are in memory, in a mount namespace, behind chroot.
#   deb.sh PACKAGE SCRATCH        as root; says one line for each thing that is as it should be
# Exit status 77: this cannot be tried here.
# Invariant: nothing but `dpkg` and `holdfast` runs inside, and /proc alone is the machine's.
set -euo pipefail
if [[ ${1:-} != --inside ]]; then
    package=$(readlink -f "$1") scratch=$(readlink -f "$2")
    exec unshare -m --propagation private bash "$0" --inside "$package" "$scratch"
fi
package=$2 scratch=$3
# What others have mounted for a while: a mount here would keep it in use after their end.
findmnt -rno TARGET,SOURCE,FSTYPE | awk '$2 ~ "^/dev/loop" || $3 ~ "^fuse" { print $1 }' |
    xargs -r umount -l
mount -t tmpfs tmpfs "$scratch" || exit 77
upper=$scratch/upper root=$scratch/root
mkdir "$upper" "$scratch/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$upper,workdir=$scratch/work" "$root" || exit 77
# Whatever is mounted here stays on top of the copy's directories.
mount -t proc proc "$root/proc" 2>/dev/null || mount --rbind /proc "$root/proc" || exit 77
for dir in /dev /run /tmp /var/tmp; do mount -t tmpfs tmpfs "$root$dir"; done
mkdir -m 1777 "$root/dev/shm"
chmod 1777 "$root/tmp" "$root/var/tmp"
for device in null zero urandom random full tty; do
    touch "$root/dev/$device" && mount --bind "/dev/$device" "$root/dev/$device"
done
cp "$package" "$root/tmp/holdfast.deb"
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C "$@"; }
as() { # user home command...
    local user=$1 home=$2
    shift 2
    inside HOME="$home" setpriv --reuid "$user" --regid 65534 --clear-groups "$@"
}
if inside sh -c 'command -v holdfast' >/dev/null; then
    echo 'this machine has holdfast already' >&2
    exit 77
fi

inside dpkg --install /tmp/holdfast.deb >/dev/null 2>"$scratch/said" ||
    { cat "$scratch/said" >&2; exit 1; }
inside dpkg --verify holdfast
echo 'installed'
inside install -d -o 65534 /dev/shm/home
as 65534 /dev/shm/home holdfast pool create /dev/shm/pool --size 64M
as 65534 /dev/shm/home holdfast run --pool /dev/shm/pool -- sh -c 'echo by a program >/hf/f'
inside HOME=/dev/shm/home holdfast run --pool /dev/shm/pool -- cat /hf/f
as 65534 /dev/shm/home holdfast kv /dev/shm/pool users put ada 1815
as 65534 /dev/shm/home holdfast kv /dev/shm/pool users get ada && echo
as 65534 /dev/shm/home holdfast pool check /dev/shm/pool | grep -o clean
inside ldconfig -p | grep -o 'libholdfast.so.0 (libc6,x86-64)'
[[ -z $(find "$upper/etc" -newer "$root/tmp/holdfast.deb" ! -type d ! -name ld.so.cache) ]] &&
    echo 'nothing to configure'
inside dpkg --purge holdfast >/dev/null 2>"$scratch/said" || { cat "$scratch/said" >&2; exit 1; }
as 65534 /dev/shm/home ls /dev/shm/pool | grep -x meta.seg
# What dpkg and its triggers keep for themselves is not ours; nor may our name be in it. A run takes
# away what keeps a directory's name free, also that of a run outside (a device 0,0 in an overlay).
left=$(cd "$upper" && find . ! -type d ! -path './var/lib/dpkg/*' ! -path './var/cache/man/*' \
    ! -path ./etc/ld.so.cache ! -path './var/cache/ldconfig/*' ! -path './var/log/*' \
    ! \( -path ./hf -type c \))
directories=$(cd "$upper" && find . -mindepth 1 -type d | while read -r dir; do
    [[ -d /$dir ]] || printf '%s\n' "$dir"
done)
echo "left: $left$directories"
if inside dpkg --status holdfast >/dev/null 2>&1; then echo 'dpkg still knows it'; fi
