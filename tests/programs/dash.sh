#!/usr/bin/env bash
# dash: a POSIX script with functions, redirections, a pipeline, here-documents and background jobs.
# needs: dash
set -eu
cd "$1"
cat >s <<'END'
set -eu
f() { echo "f $1" >>log; return "$1"; }
f 0; f 3 || echo "rc $?"
i=0; while [ $i -lt 100 ]; do i=$((i + 1)); echo $i >>n; done
while read -r a; do [ "$a" -gt 98 ] && echo "$a"; done <n || true
exec 3>three; echo x >&3; (echo y >&3); exec 3>&-; cat three
cat <<X | tr a-z A-Z >upper
here $i
X
cat upper; sleep 0.01 & wait; (umask 027; mkdir m; : >m/f); ls -ld m m/f | cut -c1-10
[ -s n ] && [ ! -s none ] && test n -nt /etc/passwd && echo tests
mv n n2; cd m; cd ..; pwd -P | sed 's,.*/,,'
set -- *; echo "$# $1"; trap 'rm -f n2' EXIT
END
dash s; ls; dash -c 'read -r x <log; echo "$x"; kill -0 $$'
