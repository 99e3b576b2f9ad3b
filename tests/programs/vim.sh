#!/usr/bin/env bash
# vim in batch mode: edit in place with a backup and a swap file, write elsewhere, recover nothing.
# needs: vim
set -eu
edit() { vim -Nu NONE -i NONE -es "$@" </dev/null || echo "exit $?"; }
cd "$1"
seq 1 1000 >f; chmod 640 f; ln f hard; mkdir b
edit -c 'set backup backupdir=b backupcopy=auto directory=.' -c '%s/^9/nine/' \
    -c '10,20d' -c 'normal Gothe end' -c 'wq' f
md5sum f; tail -n 2 f; stat -c '%a %h' f; ls -A b; md5sum b/*
edit -c 'set backupcopy=no undofile undodir=b writebackup' -c 'g/5$/m0' \
    -c 'w! out' -c 'saveas saved' -c 'r f' -c 'x' f
md5sum out saved; ls -A .
edit -c 'args f out' -c 'argdo %s/nine/9/ge | update' -c 'qa'
md5sum f out; ls b | wc -l; rm b/*
