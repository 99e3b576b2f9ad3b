#!/usr/bin/env bash
# make decides by time stamps what is out of date, runs jobs side by side and appends with >>.
# needs: make
set -eu
cd "$1"
cat >Makefile <<'END'
all: sum
parts := $(foreach n,1 2 3 4 5 6 7 8 9,p$(n))
$(parts): p%: src
	@sed "s/x/$*/" src >$@; echo made $* >>log
sum: $(parts)
	@cat $^ | sort >$@
clean:
	rm -f $(parts) sum
.PHONY: all clean
END
echo 'x line' >src; make -s -j4; cat sum; sort log; make -q; echo current; sleep 0.02
echo 'x two' >src
make -q || echo stale
make -s -j2; cat sum; touch -d '1999-01-01' p3; make -s; sort -o log log
cat log | uniq -c | awk '{ print $1 }' | md5sum
make clean; ls; make -s -n | wc -l
printf 'include gen\nall: ; @echo $(V)\ngen: ; @echo V=3 >$@\n' >G; make -s -f G
