/* Snapshots through holdfast.h. snapshots POOL: the pool exists and has no snapshot "one". */
#include <holdfast.h>

#include "check.h"

#include <errno.h>
#include <string.h>

static int note(void *arg, const char *name, int64_t time_ns)
{
    CHECK(time_ns > 1700000000LL * 1000000000);
    strcat((char *)arg, name);
    strcat((char *)arg, " ");
    return 0;
}

int main(int argc, char **argv)
{
    hf_pool *pool, *one;
    hf_keyspace *ks, *then;
    hf_reader *reader;
    char buf[8], names[100] = "";
    if (argc != 2)
        return 2;
    CHECK(hf_pool_open(argv[1], 0, &pool) == 0);
    CHECK(hf_keyspace_open(pool, "kept", HF_CREATE, &ks) == 0);
    CHECK(hf_put(ks, "k", 1, "before", 6, 0) == 0);
    CHECK(hf_snapshot_create(pool, "one") == 0 && hf_snapshot_create(pool, "one") == -EEXIST);
    CHECK(hf_put(ks, "k", 1, "after", 5, 0) == 0);
    CHECK(hf_snapshot_create(pool, "two") == 0);
    CHECK(hf_snapshot_list(pool, note, names) == 0 && strcmp(names, "one two ") == 0);
    CHECK(hf_snapshot_open(pool, "none", &one) == -ENOENT);
    CHECK(hf_snapshot_open(pool, "one", &one) == 0);
    CHECK(hf_keyspace_open(one, "kept", 0, &then) == 0);
    CHECK(hf_get(then, "k", 1, buf, 8) == 6 && memcmp(buf, "before", 6) == 0);
    CHECK(hf_get(ks, "k", 1, buf, 8) == 5 && memcmp(buf, "after", 5) == 0);
    CHECK(hf_put(then, "k", 1, "", 0, 0) == -EROFS);
    CHECK(hf_reader_open(then, "k", 1, &reader) == 0);
    CHECK(hf_reader_read(reader, buf, 8, 2) == 4 && memcmp(buf, "fore", 4) == 0);
    hf_reader_close(reader);
    hf_keyspace_close(then);
    hf_pool_close(one);
    CHECK(hf_snapshot_rename(pool, "one", "two") == -EEXIST);
    CHECK(hf_snapshot_rename(pool, "none", "some") == -ENOENT);
    CHECK(hf_snapshot_rename(pool, "one", "some") == 0 && hf_snapshot_rename(pool, "some", "one") == 0);
    CHECK(hf_snapshot_delete(pool, "one") == 0 && hf_snapshot_delete(pool, "one") == -ENOENT);
    names[0] = 0;
    CHECK(hf_snapshot_list(pool, note, names) == 0 && strcmp(names, "two ") == 0);
    CHECK(hf_snapshot_delete(pool, "two") == 0);
    CHECK(hf_pool_grow(pool, 1 << 20) == -EINVAL && hf_pool_grow(pool, 16 << 20) == -EBUSY);
    CHECK(hf_pool_grow(pool, 1ULL << 30) == 0 && hf_pool_grow(pool, 1ULL << 30) == 0);
    CHECK(hf_snapshot_create(pool, "") < 0 && hf_snapshot_create(pool, NULL) == -EINVAL);
    hf_keyspace_close(ks);
    hf_pool_close(pool);
    puts("all as it should be");
    return 0;
}
