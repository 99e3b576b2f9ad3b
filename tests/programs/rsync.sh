#!/usr/bin/env bash
# rsync -a twice (the second copies nothing), deltas, --delete, --checksum, --inplace, hard links.
# needs: rsync
set -eu
cd "$1"
mkdir -p s/d/e; seq 1 50000 >s/big; for i in $(seq 1 60); do echo "$i" >"s/d/f$i"; done
ln -s big s/l; ln s/big s/h
chmod 640 s/d/f1; truncate -s 2M s/sparse
touch -d '2010-11-12 13:14:15.161718' s/d/f* s/big s/sparse
rsync -aH --stats s/ t/ | grep -E 'Number of (created|regular)'; diff -r s t
stat -c '%a %Y %h' t/d/f1 t/d/f2 t/h
stat -c %y t/d/f2; rsync -aHi s/ t/; echo nothing; sed -i '100s/.*/changed/' s/big; rm s/d/f3 s/h
echo new >s/new
rsync -a --no-whole-file --delete -i s/ t/ | grep -v '/$' | cut -c1-3,12- | sort; diff -r s t
echo old >t/extra
rsync -a --delete --inplace --no-whole-file --checksum s/ t/; diff -r s t; ls t
rsync -a --sparse s/sparse u; stat -c %s u
rsync -a --backup --suffix=.old --exclude 'f*' s/ v/; echo again >>s/new
rsync -a --backup --suffix=.old s/new v/; ls v; cat v/new.old
rsync -a --link-dest=../t s/ w/; stat -c %h w/big; rsync -a --remove-source-files v/ x/
find v -type f | wc -l
