#!/usr/bin/env bash
# bash: redirections of every kind, descriptors kept open over other work, here-documents,
# process substitution, subshells that share an offset, noclobber, traps and exec.
set -eu
cd "$1"
exec 3<>rw; echo first >&3; echo second >&3; exec 4<rw; read -r l <&4; echo "$l"; read -r l <&4
echo "$l"
exec 3>&- 4<&-; cat rw; cat <<END >here
a $((1 + 1)) b
END
cat <<'END' >>here
$literal
END
cat here; cat <<<string >str; cat str; (echo sub; (echo subsub) >&2) >out 2>err; cat out err
{ echo 1; echo 2 >&2; } &>both; cat both; { echo a; echo b; } >shared; { head -c 2; cat; } <shared
exec 5>share; (echo child >&5); echo parent >&5; bash -c 'echo exec >&5'; exec 5>&-; cat share
exec 6<shared 7<&6; read -r x <&6; read -r y <&7; echo "$x $y"; exec 6<&- 7<&-
set -C; (echo no >here) 2>/dev/null || echo clobber
echo forced >|here; set +C; cat here
for i in 1 2 3; do echo "$i"; done | while read -r n; do echo "$n" >>loop; done; cat loop
diff <(sort loop) <(sort -r loop) | head -n 2 || true
mapfile -t lines <loop; echo "${#lines[@]} ${lines[2]}"; source <(echo 'sourced=yes')
echo "$sourced"
cat >script <<'END'
#!/bin/bash
echo "args $# $1"; trap 'echo bye >>log' EXIT; exec 8>&1 >log; echo logged; exec >&8; cat log
END
chmod +x script; ./script arg; cat log; umask 077; : >private; stat -c %a private; umask 022
while IFS= read -r -u 9 line; do printf '<%s>' "$line"; done 9<loop; echo
(cd /; ls -d "$1/loop" >/dev/null; echo seen); pushd . >/dev/null; mkdir -p q/r; cd q/r; cd ..
basename "$PWD"
cd "$1"; rm rw; [[ ! -e rw ]]; echo x >gone; exec 3<gone; rm gone; cat <&3; exec 3<&-
printf '%s\n' *.none q* s*; shopt -s nullglob globstar; echo **; coproc cat
echo co >&"${COPROC[1]}"
read -r -u "${COPROC[0]}" l; echo "$l"; echo "$(<loop)" | tr '\n' ' '; test -t 0 || echo notty
exec {COPROC[1]}>&-; wait
for i in $(seq 1 50); do echo "$i" >>par & done; wait; sort -n -o par par; md5sum par; wc -l <par
# Children of whoever is served need descriptors beyond the program's own.
ulimit ${HF_SERVED:+-S} -n 64
for f in $(seq 10 40); do eval "exec $f>many.$f"; done; echo at40 >&40; cat many.40
ls many.* | wc -l
# A number that was a file here, and is one of the host's when the next program begins.
python3 - <<'END'
import os
file = os.open("loop", os.O_RDONLY)
os.close(file)
host = os.open("/etc/passwd", os.O_RDONLY)
assert host == file
os.set_inheritable(host, True)
os.execv("/bin/sh", ["sh", "-c", f"head -c 5 <&{host}"])
END
