# Makes the initial memory disk of a guest that runs this machine's systemd, in ./initrd.
#   bash units_root.sh KERNEL PREFIX
# Invariant: what is in it comes from the packages below, which are installed here as they are.
set -euo pipefail
kernel=$1 prefix=$2
export LC_ALL=C

# The packages and all that they need.
todo='systemd bash coreutils util-linux grep passwd' all=' '
depends() {
    dpkg-query -W -f '${Pre-Depends}, ${Depends}\n' "$1" |
        tr ',' '\n' | sed 's/[|(:].*//; s/ //g; /^$/d'
}
is_installed() { [[ $(dpkg-query -W -f '${Status}' "$1" 2>/dev/null) == *' installed' ]]; }
while [[ $todo ]]; do
    next=
    for package in $todo; do
        if [[ $all != *" $package "* ]] && is_installed "$package"; then
            all+="$package " next+=" $(depends "$package" | tr '\n' ' ')"
        fi
    done
    todo=${next// /}
    [[ -z $todo ]] || todo=$next
done

mkdir root
for name in bin sbin lib lib64; do
    if [[ -L /$name ]]; then ln -s "usr/$name" "root/$name"; fi
done
for package in $all; do dpkg -L "$package"; done | sort -u |
    grep -vE '^/\.$|/share/(doc|man|locale|info|lintian|bug|debconf)' |
    while read -r name; do
        if [[ -d $name && ! -L $name ]]; then
            mkdir -p "root$(readlink -f "$name")"
        elif [[ -e $name || -L $name ]]; then
            mkdir -p "root$(readlink -f "${name%/*}")"
            cp -a "$name" "root$(readlink -f "${name%/*}")/${name##*/}"
        fi
    done
cp "$(command -v busybox)" root/usr/bin/busybox

# Holdfast, in a place that the guest's systemd mounts nothing over.
mkdir -p root/usr/local/bin root/usr/local/lib
cp "$prefix/bin/holdfast" root/usr/local/bin
cp -a "$prefix/lib/libholdfast_preload.so" "$prefix/lib/holdfast" root/usr/local/lib
for manager in system user; do
    mkdir -p "root/etc/systemd/$manager"
    for unit in "$prefix/lib/systemd/$manager"/holdfast*; do
        sed "s|$prefix/|/usr/local/|g" "$unit" >"root/etc/systemd/$manager/${unit##*/}"
    done
done

mkdir -p root/{proc,sys,dev,run,tmp,disk,modules,tools,etc/holdfast,srv/ada}
mkdir -p root/var/{lib,log,backups}
cp "$kernel"/*.ko root/modules
cp "$(command -v mke2fs)" root/tools
for library in $(ldd root/tools/mke2fs | grep -o '/[^ ]*'); do
    copy=root$(readlink -f "${library%/*}")/${library##*/}
    mkdir -p "${copy%/*}"
    [[ -e $copy || -L $copy ]] || cp -L "$library" "$copy"
done
printf '%s\n' root:x:0:0::/root:/bin/bash ada:x:1000:1000::/srv/ada:/bin/bash >root/etc/passwd
printf '%s\n' root:x:0: tty:x:5: ada:x:1000: >root/etc/group
printf '%s\n' 'root:*:1::::::' 'ada:*:1::::::' >root/etc/shadow
chown 1000:1000 root/srv/ada
cp /etc/pam.d/common-* root/etc/pam.d
echo guest >root/etc/hostname
: >root/etc/machine-id
# A file system of local-fs.target.
echo '/disk /var/backups none bind 0 0' >root/etc/fstab
cp init root/init
cp job root/usr/local/bin/job
chmod 755 root/init root/usr/local/bin/job
cat >root/etc/systemd/system/job.service <<UNIT
[Unit]
After=multi-user.target
[Service]
ExecStart=/usr/local/bin/job
UNIT
# What logind does for the manager of a user.
printf '%s\n' '[Service]' 'ExecStart=install -d -o %i -m 700 /run/user/%i' 'Type=oneshot' \
    RemainAfterExit=yes >root/etc/systemd/system/user-runtime-dir@.service
mkdir root/etc/systemd/system/user@.service.d
printf '%s\n' '[Service]' 'Environment=XDG_RUNTIME_DIR=/run/user/%i' \
    >root/etc/systemd/system/user@.service.d/environment.conf
mkdir root/etc/systemd/system/default.target.wants
ln -s ../job.service root/etc/systemd/system/default.target.wants
ln -s /lib/systemd/system/multi-user.target root/etc/systemd/system/default.target
for unit in serial-getty@ttyS0 getty@tty1 systemd-timesyncd; do
    ln -s /dev/null "root/etc/systemd/system/$unit.service"
done
(cd root && find . | busybox cpio -o -H newc >../initrd 2>/dev/null)
