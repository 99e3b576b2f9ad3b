# Another user's export, for that user and for root. Runs in a mount namespace of its own, where
# everybody may use FUSE.
set -euo pipefail
nobody=(setpriv --reuid nobody --regid nogroup --clear-groups)
stranger=(setpriv --reuid 12345 --clear-groups)
mkdir dev home
chown nobody home
mount -t tmpfs none dev
mknod -m 666 dev/fuse c 10 229
mount --bind dev/fuse /dev/fuse
echo user_allow_other >conf
[[ -e /etc/fuse.conf ]] && mount --bind conf /etc/fuse.conf
cd home

export=
trap '[[ -z $export ]] || kill "$export" 2>/dev/null || :' EXIT
begin() {
    : >ready
    "${nobody[@]}" "$hf" export pool disk --fuse file >ready 2>said &
    export=$!
    for ((i = 0; i < 400; i++)); do [[ -s ready ]] && return; sleep 0.05; done
    cat said
    exit 1
}

"${nobody[@]}" "$hf" pool create pool --size 128M
"${nobody[@]}" "$hf" volume pool create disk --size 64M
begin
head -c 1M /dev/urandom >bytes
"${nobody[@]}" dd if=bytes of=file conv=notrunc,fsync
"${nobody[@]}" cmp -n 1M bytes file
for reader in head stat; do
    if "${stranger[@]}" "$reader" file >/dev/null; then exit 3; fi
done
if [[ -e /etc/fuse.conf ]]; then
    loop=$(losetup --find --show file)
    mkfs.ext4 -q -F "$loop"
    e2fsck -fn "$loop"
    losetup -d "$loop"
fi
kill "$export"
wait "$export"
[[ ! -e file && ! -s said ]]

# Where users cannot let root in, that is said.
if [[ -e /etc/fuse.conf ]]; then
    : >../conf
    begin
    grep -q '^Fix: put a line user_allow_other' said
    "${nobody[@]}" head -c 1 file
    if head -c 1 file; then exit 4; fi
    kill "$export"
    wait "$export"
fi
echo done
