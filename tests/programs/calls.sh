#!/usr/bin/env bash
# A thousand random walks through the calls of files, with arguments good and bad (calls.c): every
# result, errno, byte and attribute that they meet. HF_WALKS="FIRST COUNT CALLS" walks others.
# needs: gcc
# seconds: 600
# unstable: w*
# unmounted: FUSE has ways of its own with times of files that are read ahead, and no seals
set -eu
here=$(dirname "$(readlink -f "$0")")
cd "$1"
gcc -O1 -w -o walks "$here/calls.c"
# Where a proxy makes the calls they take longer.
[[ -n ${HF_SERVED-} ]] && walks=250 || walks=1000
read -r first count calls <<<"${HF_WALKS:-1 $walks 300}"
./walks "$first" "$count" "$calls"
chmod -R u+rwX w[0-9]*
rm -rf w[0-9]* walks
