#!/usr/bin/env bash
# find by every property that does not depend on the time of day, with -exec and -delete.
set -eu
cd "$1"
mkdir -p a/{1..5}/{x,y}; touch a/{1..5}/x/f{1..40}; truncate -s 5000 a/3/x/f7; ln -s x a/1/s
touch -d @1000000000 a/3/x/f7; ln a/3/x/f7 a/4/hard; chmod 600 a/2/x/f2; mkfifo a/5/p
find a | sort | md5sum; find a -type d | wc -l; find a -type l -o -type p | sort
find a -size +4k | sort; find a -perm 600; find a -links 2 -type f | sort
find a -samefile a/4/hard | sort
find a -name 'f1*' -path '*/5/*' | sort; find a -maxdepth 2 -mindepth 2 | sort
find a -empty -type d | sort
find a/1 -name 'f1?' -exec stat -c '%n %s' {} + | sort; find a -newer a/3/x/f7 -type p | wc -l
find a -L -name x 2>/dev/null | wc -l || true
find -L a/1 -name f1 | sort; find a -name 'f?' -delete; find a -type f | wc -l
find a -depth -name y -exec rmdir {} \;; find a -printf '%y %m %P\n' | sort | head -n 20
find a -regex '.*/f3[0-5]' -print0 | xargs -0 rm; find a -type f | sort | md5sum
find a -inum "$(stat -c %i a/4/hard)" | sort
