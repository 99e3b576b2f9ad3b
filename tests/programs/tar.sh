#!/usr/bin/env bash
# tar: create, list, extract with modes, times, links, holes and extended attributes; append; pipes.
# needs: tar setfattr getfattr
set -eu
cd "$1"
mkdir -p s/d/e; seq 1 3000 >s/f; ln s/f s/hard; ln -s d/e s/soft; chmod 750 s/d
truncate -s 3M s/sparse; echo end >>s/sparse; mkfifo s/p; touch "s/$(printf 'l%.0s' {1..150})"
setfattr -n user.colour -v blue s/f; setfattr -n user.long -v "$(printf 'v%.0s' {1..900})" s/d
chmod 600 s/hard
find s -exec touch -h -d '2001-02-03 04:05:06.789' {} +
tar -cf a.tar --sort=name s; tar -tf a.tar | md5sum; mkdir x; tar -xpf a.tar -C x
diff -r --no-dereference s/d x/s/d; cmp s/f x/s/f
stat -c '%n %a %h %Y' x/s/f x/s/d x/s/hard x/s/p
tar -cf b.tar --xattrs --sparse --sort=name s; mkdir y; tar -xpf b.tar --xattrs -C y
getfattr -d y/s/f | tail -n +2; getfattr -n user.long --only-values y/s/d | wc -c
cmp s/sparse y/s/sparse; tar -rf a.tar -C x s/f; tar -tf a.tar | grep -c 's/f$'
tar -czf c.tgz s; gzip -t c.tgz; mkdir z; tar -xzf c.tgz -C z --strip-components=1; ls z | wc -l
tar -cf - s | (mkdir w; cd w; tar -xf - ); diff -rq --no-dereference --exclude=p s w/s; echo same
tar --delete -f a.tar s/sparse; tar -tf a.tar | grep -c sparse || true
tar --diff -f b.tar; echo unchanged; rm -rf x y z w a.tar b.tar c.tgz
