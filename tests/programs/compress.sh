#!/usr/bin/env bash
# gzip, bzip2 if there, xz if there, zstd: compress, test, decompress, in place and through pipes.
# needs: gzip zstd
set -eu
cd "$1"
seq 1 200000 >f; cp f g; gzip -n f; gzip -l f.gz | tail -n 1 | awk '{ print $2 }'
zcat f.gz | cmp - g
gunzip -k f.gz; cmp f g; zstd -q -3 f -o f.zst; zstd -q -t f.zst; zstd -q -d f.zst -o h; cmp h g
zstd -q --rm h; ls; zstdcat h.zst | md5sum; zgrep -c 99 f.gz; gzip -c g | gzip -dc | cmp - g
zstd -q -T2 --long g -o l.zst; zstd -q -d -f l.zst -o g; md5sum g; rm f.gz; gzip -9 -n g
gzip -t g.gz
zstd -q --sparse -d l.zst -o s; md5sum s; rm -f ./*.zst s
