/* Every call of holdfast.h once as it is meant and, below, as it is not.
 * interface POOL: the pool exists; this makes and leaves keyspaces in it. */
#include <holdfast.h>

#include "check.h"

#include <errno.h>
#include <string.h>

static hf_pool *pool;
static hf_keyspace *ks;

static void values(void)
{
    char buf[16];
    CHECK(hf_get(ks, "none", 4, buf, sizeof buf) == -ENOENT);
    CHECK(hf_error() && strlen(hf_error()) > 5);
    CHECK(hf_put(ks, "key", 3, "value", 5, HF_DURABLE) == 0);
    memset(buf, '-', sizeof buf);
    CHECK(hf_get(ks, "key", 3, buf, sizeof buf) == 5);
    CHECK(memcmp(buf, "value-", 6) == 0);
    memset(buf, '-', sizeof buf);
    CHECK(hf_get(ks, "key", 3, buf, 2) == 5);
    CHECK(memcmp(buf, "va-", 3) == 0);
    CHECK(hf_get(ks, "key", 3, NULL, 0) == 5);
    CHECK(hf_put(ks, "key", 3, "other", 5, 0) == 0);
    CHECK(hf_get(ks, "key", 3, buf, sizeof buf) == 5 && memcmp(buf, "other", 5) == 0);
    CHECK(hf_put(ks, "key", 3, NULL, 0, HF_VOLATILE) == 0);
    CHECK(hf_get(ks, "key", 3, buf, sizeof buf) == 0);
    CHECK(hf_put(ks, "a\0b", 3, "\0\0", 2, 0) == 0);
    CHECK(hf_get(ks, "a\0b", 3, buf, sizeof buf) == 2 && buf[0] == 0 && buf[1] == 0);
    CHECK(hf_get(ks, "a", 1, buf, sizeof buf) == -ENOENT);
    CHECK(hf_remove(ks, "a\0b", 3, 0) == 1 && hf_remove(ks, "a\0b", 3, 0) == 0);
    CHECK(hf_erase(ks, "key", 3, HF_DURABLE) == 0 && hf_erase(ks, "key", 3, 0) == 0);
    CHECK(hf_get(ks, "key", 3, buf, sizeof buf) == -ENOENT);
}

static void sizes(void)
{
    char key[1025], *big = malloc(3000000), *back = malloc(3000000);
    size_t n, lens[] = {1, 100, 511, 512, 4095, 4096, 4097, 70000, 3000000};
    CHECK(big && back);
    memset(key, 'k', sizeof key);
    for (n = 0; n < 3000000; n++)
        big[n] = (char)(n * 7 + n / 251);
    CHECK(hf_put(ks, key, 1024, "v", 1, 0) == 0 && hf_get(ks, key, 1024, back, 1) == 1);
    CHECK(hf_put(ks, key, 1025, "v", 1, 0) < 0 && hf_put(ks, key, 0, "v", 1, 0) < 0);
    CHECK(hf_get(ks, NULL, 0, back, 1) < 0);
    for (n = 0; n < sizeof lens / sizeof *lens; n++) {
        CHECK(hf_put(ks, "big", 3, big, lens[n], 0) == 0);
        memset(back, 0, 3000000);
        CHECK(hf_get(ks, "big", 3, back, 3000000) == (ssize_t)lens[n]);
        CHECK(memcmp(big, back, lens[n]) == 0);
    }
    CHECK(hf_erase(ks, "big", 3, 0) == 0 && hf_erase(ks, key, 1024, 0) == 0);
    free(big);
    free(back);
}

/* The keys of a scan, each one byte, as a text. */
static const char *keys_of(hf_scan *scan)
{
    static char text[300];
    const void *key, *val;
    size_t key_len, val_len, n = 0;
    int more;
    while ((more = hf_scan_next(scan, &key, &key_len, &val, &val_len)) == 1) {
        CHECK(key_len == 1 && val_len == 2 && n + 1 < sizeof text);
        CHECK(((const char *)val)[0] == *(const char *)key && ((const char *)val)[1] == '!');
        text[n++] = *(const char *)key;
    }
    CHECK(more == 0 && hf_scan_next(scan, &key, &key_len, &val, &val_len) == 0);
    hf_scan_close(scan);
    text[n] = 0;
    return text;
}

static void fill(void)
{
    const char *k;
    char v[2] = {0, '!'};
    CHECK(hf_erase_range(ks, NULL, 0, NULL, 0, 0) == 0);
    for (k = "dbacfe"; *k; k++) {
        v[0] = *k;
        CHECK(hf_put(ks, k, 1, v, 2, 0) == 0);
    }
}

static void conditions(void)
{
    char buf[8];
    ssize_t len;
    CHECK(hf_put_if(ks, "cas", 3, NULL, 0, "one", 3, HF_DURABLE, NULL, 0, NULL) == 1);
    CHECK(hf_put_if(ks, "cas", 3, NULL, 0, "two", 3, 0, buf, 2, &len) == 0);
    CHECK(len == 3 && memcmp(buf, "on", 2) == 0);
    CHECK(hf_put_if(ks, "cas", 3, "", 0, "two", 3, 0, NULL, 0, NULL) == 0);
    CHECK(hf_put_if(ks, "cas", 3, "one", 3, "", 0, 0, NULL, 0, &len) == 1 && len == 0);
    CHECK(hf_erase_if(ks, "cas", 3, "one", 3, 0, NULL, 0, &len) == 0 && len == 0);
    CHECK(hf_erase_if(ks, "cas", 3, NULL, 0, 0, NULL, 0, &len) == 1 && len == -ENOENT);
    CHECK(hf_put_if(ks, "", 0, NULL, 0, "x", 1, 0, NULL, 0, NULL) == -EINVAL);
}

static void expiry(void)
{
    const void *key, *val;
    size_t key_len, val_len;
    int64_t at = hf_expires_after(3600 * 1000), told = -1;
    hf_batch *b;
    hf_scan *scan;
    char buf[8];
    CHECK(hf_put_until(ks, "until", 5, "x", 1, at, HF_DURABLE) == 0);
    CHECK(hf_expires(ks, "until", 5, &told) == 0 && told == at);
    CHECK(hf_expire(ks, "until", 5, HF_NEVER, 0) == 0);
    CHECK(hf_expires(ks, "until", 5, &told) == 0 && told == HF_NEVER);
    CHECK(hf_put_if_until(ks, "until", 5, "x", 1, "yz", 2, at + 1, 0, NULL, 0, NULL) == 1);
    CHECK(hf_scan_prefix(ks, "until", 5, 0, &scan) == 0);
    CHECK(hf_scan_next(scan, &key, &key_len, &val, &val_len) == 1 && val_len == 2);
    CHECK(hf_scan_expires(scan, &told) == 0 && told == at + 1);
    hf_scan_close(scan);
    CHECK(hf_batch_begin(ks, &b) == 0 && hf_batch_put_until(b, "past", 4, "x", 1, 1) == 0);
    CHECK(hf_batch_put_until(b, "until", 5, "x", 1, at) == 0 && hf_batch_commit(b, 0) == 0);
    CHECK(hf_get(ks, "past", 4, buf, 8) == -ENOENT && hf_get(ks, "until", 5, buf, 8) == 1);
    CHECK(hf_expires(ks, "past", 4, &told) == -ENOENT && hf_expire(ks, "past", 4, at, 0) == -ENOENT);
    CHECK(hf_put_until(ks, "past", 4, "x", 1, hf_expires_after(0), 0) == 0);
    CHECK(hf_put_if(ks, "past", 4, NULL, 0, "y", 1, 0, NULL, 0, NULL) == 1);
    CHECK(hf_erase(ks, "past", 4, 0) == 0 && hf_erase(ks, "until", 5, 0) == 0);
}

static void expiry_as_condition(void)
{
    int64_t at = hf_expires_after(3600 * 1000), told = 0;
    hf_writer *w;
    char buf[8];
    CHECK(hf_writer_open_until(ks, "c", 1, at, &w) == 0 && hf_writer_write(w, "xy", 2) == 0);
    CHECK(hf_writer_finish(w, 0) == 0 && hf_get(ks, "c", 1, buf, 8) == 2);
    CHECK(hf_expires(ks, "c", 1, &told) == 0 && told == at);
    CHECK(hf_expire_if(ks, "c", 1, at + 1, at + 2, 0, &told) == 0 && told == at);
    CHECK(hf_expire_if(ks, "c", 1, at, at + 2, HF_DURABLE, &told) == 1 && told == at + 2);
    CHECK(hf_put_if_expires(ks, "c", 1, HF_NEVER, "z", 1, at, 0, NULL) == 1);
    CHECK(hf_get(ks, "c", 1, buf, 8) == 1 && buf[0] == 'z');
    CHECK(hf_erase_if_expires(ks, "c", 1, at + 2, 0, &told) == 0 && told == at);
    CHECK(hf_put_if_expires(ks, "c", 1, at, "z", 1, HF_NEVER, 0, &told) == 1 && told == HF_NEVER);
    CHECK(hf_erase_if_expires(ks, "c", 1, HF_NEVER, 0, &told) == 0 && told == HF_NEVER);
    CHECK(hf_put_until(ks, "c", 1, "x", 1, at, 0) == 0);
    CHECK(hf_erase_if_expires(ks, "c", 1, HF_NEVER, 0, &told) == 1 && told == -ENOENT);
    CHECK(hf_expire_if(ks, "c", 1, HF_NEVER, at, 0, &told) == 0 && told == -ENOENT);
    CHECK(hf_writer_open_until(ks, "c", 1, 1, &w) == 0 && hf_writer_finish(w, 0) == 0);
    CHECK(hf_get(ks, "c", 1, buf, 8) == -ENOENT);
    CHECK(hf_expire_if(NULL, "c", 1, at, at, 0, &told) == -EINVAL);
}

static void keyspaces(void)
{
    hf_keyspace *a, *b;
    CHECK(hf_keyspace_open(pool, "whole a", HF_CREATE, &a) == 0);
    CHECK(hf_keyspace_open(pool, "whole b", HF_CREATE, &b) == 0);
    CHECK(hf_put(a, "1", 1, "x", 1, 0) == 0 && hf_put(a, "2", 1, "x", 1, 0) == 0);
    CHECK(hf_keyspace_count(a) == 2 && hf_keyspace_count(b) == 0);
    CHECK(hf_keyspace_rename(pool, "whole a", "whole b", 0) == -EEXIST);
    CHECK(hf_keyspace_rename(pool, "whole a", "whole b", HF_REPLACE) == 0);
    CHECK(hf_keyspace_count(a) == 2 && hf_put(b, "1", 1, "x", 1, 0) == -ENOENT);
    CHECK(hf_keyspace_drop(pool, "whole a") == -ENOENT);
    CHECK(hf_keyspace_drop(pool, "whole b") == 0 && hf_keyspace_count(a) == 0);
    CHECK(hf_keyspace_drop(pool, NULL) == -EINVAL && hf_keyspace_count(NULL) == -EINVAL);
    hf_keyspace_close(a);
    hf_keyspace_close(b);
}

static void scans(void)
{
    hf_scan *scan;
    fill();
    CHECK(hf_scan_open(ks, NULL, 0, NULL, 0, &scan) == 0);
    CHECK(strcmp(keys_of(scan), "abcdef") == 0);
    CHECK(hf_scan_open(ks, "b", 1, "e", 1, &scan) == 0 && strcmp(keys_of(scan), "bcd") == 0);
    CHECK(hf_scan_open(ks, "bb", 2, NULL, 0, &scan) == 0 && strcmp(keys_of(scan), "cdef") == 0);
    CHECK(hf_scan_open(ks, "x", 1, NULL, 0, &scan) == 0 && strcmp(keys_of(scan), "") == 0);
    CHECK(hf_scan_open(ks, "e", 1, "b", 1, &scan) == 0 && strcmp(keys_of(scan), "") == 0);
    CHECK(hf_scan_open_flags(ks, "b", 1, "e", 1, HF_REVERSE, &scan) == 0);
    CHECK(strcmp(keys_of(scan), "dcb") == 0);
    CHECK(hf_scan_prefix(ks, "c", 1, 0, &scan) == 0 && strcmp(keys_of(scan), "c") == 0);
    CHECK(hf_scan_prefix(ks, NULL, 0, HF_REVERSE, &scan) == 0);
    CHECK(strcmp(keys_of(scan), "fedcba") == 0);
    CHECK(hf_erase_range(ks, "b", 1, "d", 1, HF_DURABLE) == 0);
    CHECK(hf_scan_open(ks, NULL, 0, NULL, 0, &scan) == 0 && strcmp(keys_of(scan), "adef") == 0);
    /* A scan shows the keyspace as it was, and outlives its handle. */
    CHECK(hf_scan_open(ks, NULL, 0, NULL, 0, &scan) == 0);
    CHECK(hf_put(ks, "b", 1, "b!", 2, 0) == 0);
    CHECK(strcmp(keys_of(scan), "adef") == 0);
}

static void batches(void)
{
    hf_batch *batch;
    hf_keyspace *second;
    hf_scan *scan;
    char buf[4];
    fill();
    CHECK(hf_keyspace_open(pool, "second", HF_CREATE, &second) == 0);
    CHECK(hf_batch_begin(ks, &batch) == 0);
    CHECK(hf_batch_put(batch, "x", 1, "x!", 2) == 0);
    CHECK(hf_batch_erase(batch, "a", 1) == 0);
    CHECK(hf_batch_erase_range(batch, "c", 1, "e", 1) == 0);
    CHECK(hf_batch_keyspace(batch, second) == 0);
    CHECK(hf_batch_put(batch, "there", 5, "1", 1) == 0);
    CHECK(hf_batch_put(batch, "", 0, "1", 1) < 0);
    CHECK(hf_get(ks, "x", 1, buf, 4) == -ENOENT && hf_get(second, "there", 5, buf, 4) < 0);
    CHECK(hf_batch_commit(batch, HF_DURABLE) == 0);
    CHECK(hf_scan_open(ks, NULL, 0, NULL, 0, &scan) == 0 && strcmp(keys_of(scan), "befx") == 0);
    CHECK(hf_get(second, "there", 5, buf, 4) == 1 && buf[0] == '1');
    CHECK(hf_batch_commit(batch, 0) == -EINVAL && hf_batch_put(batch, "k", 1, "v", 1) == -EINVAL);
    hf_batch_abort(batch);
    CHECK(hf_batch_begin(ks, &batch) == 0 && hf_batch_put(batch, "gone", 4, "", 0) == 0);
    hf_batch_abort(batch);
    hf_batch_abort(batch);
    CHECK(hf_get(ks, "gone", 4, buf, 4) == -ENOENT);
    CHECK(hf_batch_begin(ks, &batch) == 0 && hf_batch_commit(batch, 0) == 0);
    hf_keyspace_close(second);
}

static void streams(void)
{
    hf_writer *writer;
    hf_reader *reader;
    char part[1000], back[1500];
    int n;
    CHECK(hf_put(ks, "s", 1, "old", 3, 0) == 0);
    CHECK(hf_writer_open(ks, "s", 1, &writer) == 0);
    for (n = 0; n < 2500; n++) {
        memset(part, n % 120, sizeof part);
        CHECK(hf_writer_write(writer, part, sizeof part) == 0);
    }
    CHECK(hf_reader_open(ks, "s", 1, &reader) == 0);
    CHECK(hf_get(ks, "s", 1, back, 3) == 3 && memcmp(back, "old", 3) == 0);
    CHECK(hf_writer_finish(writer, HF_DURABLE) == 0);
    CHECK(hf_writer_finish(writer, 0) == -EINVAL && hf_writer_write(writer, "x", 1) == -EINVAL);
    CHECK(hf_get(ks, "s", 1, NULL, 0) == 2500000);
    CHECK(hf_reader_read(reader, back, sizeof back, 1) == 2 && memcmp(back, "ld", 2) == 0);
    hf_reader_close(reader);
    CHECK(hf_reader_open(ks, "s", 1, &reader) == 0);
    CHECK(hf_reader_read(reader, back, 1500, 2499000 - 500) == 1500);
    CHECK(back[0] == 2498 % 120 && back[499] == back[0] && back[500] == 2499 % 120);
    CHECK(hf_reader_read(reader, back, 1500, 2499999) == 1);
    CHECK(hf_reader_read(reader, back, 1500, 2500000) == 0);
    CHECK(hf_reader_read(reader, back, 1500, UINT64_MAX / 2) == 0);
    hf_reader_close(reader);
    CHECK(hf_writer_open(ks, "s", 1, &writer) == 0 && hf_writer_write(writer, "x", 1) == 0);
    hf_writer_abort(writer);
    CHECK(hf_get(ks, "s", 1, NULL, 0) == 2500000 && hf_erase(ks, "s", 1, 0) == 0);
    CHECK(hf_reader_open(ks, "s", 1, &reader) == -ENOENT);
}

static int count_name(void *arg, const char *name)
{
    if (strcmp(name, "main") == 0 || strcmp(name, "second") == 0)
        ++*(int *)arg;
    return strcmp(name, "stop") == 0 ? 7 : 0;
}

static void names(void)
{
    int n = 0;
    hf_keyspace *other;
    CHECK(hf_keyspace_list(pool, count_name, &n) == 0 && n == 2);
    CHECK(hf_keyspace_open(pool, "missing", 0, &other) == -ENOENT);
    CHECK(hf_keyspace_open(pool, "", HF_CREATE, &other) < 0);
    CHECK(hf_keyspace_open(pool, "a/b", HF_CREATE, &other) < 0);
    CHECK(hf_keyspace_open(pool, "\xff\xfe", HF_CREATE, &other) == -EINVAL);
    CHECK(hf_keyspace_open(pool, "stop", HF_CREATE, &other) == 0);
    CHECK(hf_keyspace_list(pool, count_name, &n) == 7);
    hf_keyspace_close(other);
}

static void lent_values(void)
{
    hf_pool *view;
    hf_keyspace *then;
    hf_lent *lent;
    const void *val;
    size_t len, n;
    static char big[100000];
    memset(big, 'L', sizeof big);
    CHECK(hf_put(ks, "lent", 4, big, sizeof big, 0) == 0 && hf_put(ks, "tiny", 4, "t", 1, 0) == 0);
    CHECK(hf_lend(ks, "lent", 4, &val, &len, &lent) == -EINVAL);
    CHECK(hf_pool_view(pool, &view) == 0 && hf_keyspace_open(view, "main", 0, &then) == 0);
    CHECK(hf_lend(then, "none", 4, &val, &len, &lent) == -ENOENT);
    CHECK(hf_lend(then, "lent", 4, &val, &len, NULL) == -EINVAL);
    CHECK(hf_lend(then, "tiny", 4, &val, &len, &lent) == 0 && len == 1 && *(char *)val == 't');
    CHECK(hf_lent_check(lent) == 0);
    hf_lent_close(lent);
    CHECK(hf_lend(then, "lent", 4, &val, &len, &lent) == 0 && len == sizeof big);
    CHECK(hf_put(ks, "lent", 4, "new", 3, HF_DURABLE) == 0);
    hf_keyspace_close(then);
    hf_pool_close(view);
    CHECK(memcmp(val, big, sizeof big) == 0 && hf_lent_check(lent) == 0);
    hf_lent_close(lent);
    hf_lent_close(lent);
    CHECK(hf_lent_check(lent) == -EINVAL && hf_lent_check(NULL) == -EINVAL);
    for (n = 0; n < 2; n++)
        CHECK(hf_erase(ks, n ? "lent" : "tiny", 4, 0) == 0);
}

static void views(void)
{
    hf_pool *view;
    hf_keyspace *then;
    hf_batch *batch;
    hf_writer *writer;
    hf_scan *scan;
    char buf[4];
    fill();
    CHECK(hf_pool_view(pool, &view) == 0);
    CHECK(hf_keyspace_open(view, "main", 0, &then) == 0);
    CHECK(hf_put(ks, "a", 1, "new", 3, 0) == 0 && hf_erase(ks, "b", 1, 0) == 0);
    CHECK(hf_get(then, "a", 1, buf, 4) == 2 && memcmp(buf, "a!", 2) == 0);
    CHECK(hf_scan_open(then, NULL, 0, NULL, 0, &scan) == 0);
    CHECK(strcmp(keys_of(scan), "abcdef") == 0);
    CHECK(hf_put(then, "a", 1, "", 0, 0) == -EROFS && hf_erase(then, "a", 1, 0) == -EROFS);
    CHECK(hf_erase_range(then, NULL, 0, NULL, 0, 0) == -EROFS);
    CHECK(hf_batch_begin(then, &batch) == -EROFS);
    CHECK(hf_writer_open(then, "a", 1, &writer) == -EROFS);
    CHECK(hf_snapshot_create(view, "s") == -EROFS && hf_pool_sync(view) == 0);
    CHECK(hf_keyspace_open(view, "made later", HF_CREATE, &then) == -ENOENT);
    hf_keyspace_close(then);
    hf_pool_close(view);
}

static void handles(void)
{
    hf_pool *p = pool;
    hf_keyspace *k, *stale;
    hf_scan *scan;
    char buf[4];
    CHECK(hf_keyspace_open(pool, "main", 0, &k) == 0);
    CHECK(hf_scan_open(k, NULL, 0, NULL, 0, &scan) == 0);
    stale = k;
    hf_keyspace_close(k);
    hf_keyspace_close(stale);
    CHECK(hf_get(stale, "a", 1, buf, 4) == -EINVAL && strlen(hf_error()) > 5);
    CHECK(hf_keyspace_open(pool, "main", 0, &k) == 0);
    CHECK(hf_get(stale, "a", 1, buf, 4) == -EINVAL && hf_get(k, "a", 1, buf, 4) == 3);
    hf_scan_close(scan);
    CHECK(hf_scan_next(scan, NULL, NULL, NULL, NULL) == -EINVAL);
    CHECK(hf_get((hf_keyspace *)(void *)pool, "a", 1, buf, 4) == -EINVAL);
    CHECK(hf_get((hf_keyspace *)(void *)buf, "a", 1, buf, 4) == -EINVAL);
    CHECK(hf_get(NULL, "a", 1, buf, 4) == -EINVAL && hf_put(NULL, "a", 1, "", 0, 0) == -EINVAL);
    CHECK(hf_get(k, NULL, 1, buf, 4) == -EINVAL && hf_get(k, "a", 1, NULL, 4) == -EINVAL);
    CHECK(hf_put(k, "a", 1, NULL, 4, 0) == -EINVAL && hf_put(k, "a", (size_t)-1, "", 0, 0) < 0);
    CHECK(hf_put(k, "a", 1, "", 0, 0x80) == -EINVAL);
    CHECK(hf_put(k, "a", 1, "", 0, HF_DURABLE | HF_VOLATILE) == -EINVAL);
    CHECK(hf_scan_open_flags(k, NULL, 0, NULL, 0, HF_DURABLE, &scan) == -EINVAL);
    CHECK(hf_keyspace_open(pool, NULL, 0, &k) == -EINVAL);
    CHECK(hf_keyspace_open(pool, "main", 0, NULL) == -EINVAL);
    CHECK(hf_keyspace_open(pool, "main", HF_DURABLE, &k) == -EINVAL);
    CHECK(hf_pool_open(NULL, 0, &p) == -EINVAL && hf_pool_open("/", 0, NULL) == -EINVAL);
    CHECK(hf_pool_open("/nonexistent/pool", 0, &p) == -ENOENT && hf_error_fix() != NULL);
    CHECK(hf_pool_sync(NULL) == -EINVAL && hf_snapshot_list(pool, NULL, NULL) <= 0);
    CHECK(hf_keyspace_list(pool, NULL, NULL) == -EINVAL);
    CHECK(hf_batch_begin(NULL, NULL) == -EINVAL && hf_batch_commit(NULL, 0) == -EINVAL);
    CHECK(hf_scan_next(NULL, NULL, NULL, NULL, NULL) == -EINVAL);
    CHECK(hf_reader_read(NULL, buf, 4, 0) == -EINVAL && hf_writer_write(NULL, "", 0) == -EINVAL);
    hf_pool_close(NULL), hf_keyspace_close(NULL), hf_scan_close(NULL), hf_batch_abort(NULL);
    hf_reader_close(NULL), hf_writer_abort(NULL);
    hf_keyspace_close(k);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    CHECK(strchr(hf_version(), '.') && hf_error() == NULL);
    CHECK(hf_pool_open(argv[1], 0, &pool) == 0);
    CHECK(hf_keyspace_open(pool, "main", HF_CREATE, &ks) == 0);
    values();
    sizes();
    conditions();
    expiry();
    expiry_as_condition();
    keyspaces();
    scans();
    batches();
    streams();
    names();
    views();
    lent_values();
    handles();
    CHECK(hf_pool_sync(pool) == 0);
    /* A keyspace outlives the handle of its pool. */
    hf_pool_close(pool);
    hf_pool_close(pool);
    CHECK(hf_pool_sync(pool) == -EINVAL && hf_put(ks, "last", 4, "1", 1, HF_DURABLE) == 0);
    hf_keyspace_close(ks);
    puts("all as it should be");
    return 0;
}
