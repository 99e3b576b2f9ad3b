#!/usr/bin/env bash
# sed -i, grep -r, gawk with output files and pipes.
# needs: gawk
set -eu
cd "$1"
mkdir -p t/u; for i in 1 2 3 4 5; do seq "$i" 100 >"t/f$i"; seq 1 "$i" >"t/u/g$i"; done
sed -i 's/^9/nine/; 1d' t/f1; head -n 12 t/f1; sed -i.bak -e '$d' t/f2; ls t
sed -n '3,5w t/out' t/f3; cat t/out; sed --follow-symlinks -i 's/7/seven/' t/u/g5; cat t/u/g5
grep -rl nine t | sort; grep -c 1 t/f? t/u/*; grep -rnw 42 t | sort | head -n 3
grep -F -f t/u/g3 t/f4 | head -n 5; grep -q zzz t/f1 || echo none
gawk '{ print > ("split." $1 % 3) }
    END { close("split.0"); while ((getline l < "split.0") > 0) n++; print n }' t/f1
gawk 'BEGIN { while (("cat t/u/g4" | getline x) > 0) s += x; print s
    print "piped" | "cat > piped"; }'
cat piped; gawk -i inplace '{ print $1 * 2 }' t/u/g4; cat t/u/g4
sort -n -o t/f5 t/f5; sort -m t/u/g2 t/u/g3; sort -t. -k2 -u split.1 | tail -n 1
tr -s '1' <t/f4 | cut -c1-2 | sort | uniq -d | head -n 3; xargs -n 20 <t/f3 echo | tail -n 1
