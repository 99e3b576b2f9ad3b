#!/bin/bash
# What a guest does with the units, in two lives; each line that it says is compared.
exec >/dev/ttyS0 2>&1
export LC_ALL=C
ada() { setpriv --reuid ada --regid ada --clear-groups -- "$@"; }
state() { echo "state $1 $(systemctl show -P "$2" "$3")"; }
# Waits until a unit is that.
await() {
    for ((i = 0; i < 300; i++)); do
        [[ $(systemctl show -P ActiveState "$1") != "$2" ]] || return 0
        sleep 0.1
    done
    echo "$1 is never $2"
}

pool=/dev/shm/pool unit=holdfast-pool@pool
first() {
    printf '%s\n' 'pool = "/dev/shm/pool"' 'owner = "ada"' 'size = "64M"' \
        'keep = "/var/backups/ada/pool.hfs"' 'every = "30m"' >/var/backups/pool.toml
    install -d -o ada /var/backups/ada
    cp /var/backups/pool.toml /etc/holdfast
    systemctl start $unit
    state started ActiveState $unit
    ada holdfast run --pool $pool --at /hf -- bash -c 'seq 1000 >/hf/file; chmod 600 /hf/file'
    ada holdfast kv $pool k put key value
    echo "step pool"
    # Killed, it begins again, and what was there is there.
    systemctl kill -s KILL $unit
    await $unit activating
    await $unit active
    state again NRestarts $unit
    echo "found $(ada holdfast kv $pool k get key)"
    # Stopped and started: the pool is in memory still, and saved.
    systemctl stop $unit
    state stopped ActiveState $unit
    ada holdfast restore /var/backups/ada/pool.hfs /tmp/copy
    echo "kept $(ada holdfast kv /tmp/copy k get key)"
    systemctl start $unit
    echo "step kept"
    # What says nothing that can be done is said once.
    echo 'pool = 7' >/etc/holdfast/wrong.toml
    systemctl start holdfast-pool@wrong
    sleep 6
    state wrong ActiveState holdfast-pool@wrong
    state wrong NRestarts holdfast-pool@wrong
    echo "step wrong"
    by_socket
    # A program has the pool when the machine stops.
    ada holdfast run --pool $pool --at /hf -- \
        bash -c 'echo last >/hf/last; echo "step last"; exec sleep 1000' &
    while [[ ! $(ada holdfast run --pool $pool --at /hf -- cat /hf/last) ]]; do sleep 0.1; done
}

# The first who connects starts the service, which becomes the pool's owner.
by_socket() {
    ada holdfast pool create --size 64M /srv/ada/second >/dev/null
    local name
    name=holdfast@$(systemd-escape --path /srv/ada/second)
    systemctl start "$name.socket"
    state listening ActiveState "$name.service"
    ada holdfast run --pool /srv/ada/second --at /hf -- bash -c 'echo two >/hf/two'
    state connected ActiveState "$name.service"
    pid=$(systemctl show -P MainPID "$name.service")
    echo "owner $(stat -c %U "/proc/$pid")"
    systemctl kill -s KILL "$name.service"
    echo "found $(ada holdfast run --pool /srv/ada/second --at /hf -- cat /hf/two)"
    systemctl stop "$name.socket" "$name.service"
    [[ -e /srv/ada/second/sock ]] || echo "no socket"
    echo "step socket"
}

second() {
    cp /var/backups/pool.toml /etc/holdfast
    systemctl start $unit
    state started ActiveState $unit
    ada holdfast run --pool $pool --at /hf -- bash -c 'md5sum </hf/file
        stat -c "mode %a %U" /hf/file; echo "found $(</hf/last)"'
    echo "found $(ada holdfast kv $pool k get key)"
    of_a_user
}

# The same by the manager of a user, who needs no root for it.
of_a_user() {
    ada mkdir -p /srv/ada/.config/holdfast
    printf '%s\n' 'pool = "/srv/ada/own"' 'size = "64M"' 'keep = "/srv/ada/own.hfs"' |
        ada tee /srv/ada/.config/holdfast/own.toml >/dev/null
    systemctl start user@1000
    local manager=(ada env XDG_RUNTIME_DIR=/run/user/1000 HOME=/srv/ada systemctl --user)
    "${manager[@]}" enable --now holdfast-pool@own
    echo "of the user: $("${manager[@]}" show -P ActiveState holdfast-pool@own)"
    ada holdfast kv /srv/ada/own k put key own
    systemctl stop user@1000
    [[ -s /srv/ada/own.hfs ]] && echo "kept by the user"
    ada holdfast restore /srv/ada/own.hfs /tmp/copy
    echo "kept $(ada holdfast kv /tmp/copy k get key)"
}

read -r words </proc/cmdline
job=${words#*job=}
"${job%% *}"
echo over
systemctl poweroff
