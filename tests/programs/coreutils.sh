#!/usr/bin/env bash
# The file programs of coreutils: each does its work in the tree and shows what it sees of it.
# modes: posix sync strict dax-test
set -eu
cd "$1"
mkdir -p a/b/c d; mkdir -m 2750 setgid; mkdir -m 1777 sticky
printf 'one\ntwo\nthree\n' >f; touch empty; touch -d '2020-02-03 04:05:06.123456789' f
stat -c '%n %s %a %F %h %Y %y' f; stat -c '%n %s %F %h' empty
cp f a/f; cp -p f a/preserved; cp -r a a2; cp -l f hard; cp -s "$PWD/f" soft
stat -c '%n %y %a' a/preserved
mv a/f a/b/moved; mv a2 d/; mv -T d e; mv -n f e/; mv e/f f
ln -s moved a/b/link; ln -sf ../f a/link; ln -f f hard2; readlink a/link
realpath --relative-to=. a/b/../link soft a/b/link; readlink -f a/b/link; cat a/link a/b/link
rm hard; rm -r e/a2/b; rm -f nonexistent; rmdir a/b/c
for bad in 'rmdir e' 'rmdir f' 'rm e' 'mkdir e' 'mv e f' 'cat none' 'cat f/x' 'ln f e/a2/f' \
    'touch none/x' 'cp none f' 'readlink f'; do
    $bad 2>err || echo "$bad: $?"
    sed 's/.*: //' err
done
chmod 640 f; chmod u+s,g+s f; stat -c '%a %A' f; chmod -R g-rwx a
stat -c '%a %n' a a/b a/b/moved setgid sticky
mkdir setgid/below; stat -c '%a' setgid/below; (umask 0; mkdir u0; : >u0/f; stat -c '%a' u0 u0/f)
head -n 1 f; tail -n 1 f; tail -c 4 f; head -c -4 f; wc f; sort -r f; tac f
seq 1 2000 >n; split -l 300 -d n part.; cat part.* | cmp - n; ls part.*
seq 1 2000 | tail -n +1990 | tee t1 t2 | tail -n 2; tee -a t1 <f >/dev/null; cksum t1 t2
printf 'b\na\nb\na\n' >u; sort u | uniq -c | awk '{print $1, $2}'; csplit -s n 500 1000
cat xx0? | cmp - n; rm xx0?
truncate -s 10000 sparse; truncate -s +5 sparse; truncate -s -3 n; stat -c '%s' sparse n
dd if=/dev/zero of=dd bs=1k count=10 seek=3 2>/dev/null; stat -c '%s' dd
printf XY | dd of=dd bs=1 seek=5 conv=notrunc 2>/dev/null; od -An -c -j 4 -N 4 dd; stat -c '%s' dd
install -D -m 750 f i/j/k; stat -c '%a' i/j/k; mkfifo -m 600 p; stat -c '%F %a' p
# Only the pool's owner opens pipes of the pool.
[[ -n ${HF_SERVED-} ]] || { (echo through >p) & cat p; wait; }
md5sum f n dd sparse | sha256sum; sum dd; cut -c1 f; tr a-z A-Z <f; paste f u; nl f; fold -w 2 f
rev f
shred -n 1 -s 100 t2; rm t2; expand f >/dev/null; base64 f | base64 -d | cmp - f
od -An -tx1 f | head -n 1
for t in '-r f' '! -e t2' '-p p' '-L soft' 'f -ef soft' '-d a' '-s f' '-k sticky' '-g setgid' \
    '! -s empty'; do
    [ $t ]
done
touch -r a/preserved ref; stat -c '%y' ref; touch -h -d @1 soft; stat -c '%Y' soft
touch -m -d @5 ref; stat -c '%Y' ref
ls -1AF; ls -l a/b | awk 'NR > 1 { print $1, $2, $5, $9, $10, $11 }'; du --apparent-size f n
ls -R i
df . | awk 'NR == 2 { exit !($2 > 0 && $4 > 0) }'; sync f; sync -d f; sync
stat -f -c '%l' . >/dev/null
ln f x; ln f y; stat -c '%h' f; rm x; unlink y; link f z; stat -c '%h' z
[ "$(stat -c %i f)" = "$(stat -c %i z)" ]
mktemp -p . XXXXXX >m; test -f "$(cat m)"; rm "$(cat m)" m; mkdir "$(printf 'n%.0s' {1..255})"
mkdir "$(printf 'n%.0s' {1..256})" 2>&1 | sed 's/.*: //'
touch -- 'a b' $'new\nline' '-dash' 'é' $'tab\t'; ls -1b -- *' '* *dash* *line *tab*; rm -- -dash
ls -1 | wc -l
