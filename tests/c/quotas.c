/* Quotas through holdfast.h. quotas POOL: the pool exists and has none. */
#include <holdfast.h>

#include "check.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

static hf_quota seen[4];
static char names[4][32];

static char large[5000];

static int note(void *arg, const hf_quota *quota)
{
    int *count = arg;
    CHECK(*count < 4 && strlen(quota->name) < 32);
    seen[*count] = *quota;
    strcpy(names[(*count)++], quota->name);
    return 0;
}

static int stop(void *arg, const hf_quota *quota)
{
    (void)arg;
    return quota->kind == HF_QUOTA_USER ? 7 : 0;
}

int main(int argc, char **argv)
{
    hf_pool *pool, *view;
    hf_keyspace *keys;
    int count = 0;
    if (argc != 2)
        return 2;
    CHECK(hf_pool_open(argv[1], 0, &pool) == 0);
    CHECK(hf_quota_list(pool, note, &count) == 0 && count == 0);
    CHECK(hf_quota_set(pool, HF_QUOTA_USER, "4242", 1 << 20, 0) == 0);
    CHECK(hf_quota_set(pool, HF_QUOTA_USER, "4242", 2 << 20, 9) == 0);
    CHECK(hf_quota_set(pool, HF_QUOTA_DIRECTORY, "/", 0, 100) == 0);
    CHECK(hf_quota_list(pool, note, &count) == 0 && count == 2);
    CHECK(seen[0].kind == HF_QUOTA_USER && strcmp(names[0], "4242") == 0 && seen[0].complete);
    CHECK(seen[0].bytes == 2 << 20 && seen[0].files == 9);
    CHECK(seen[0].bytes_taken == 0 && seen[0].files_taken == 0);
    CHECK(seen[1].kind == HF_QUOTA_DIRECTORY && strcmp(names[1], "/") == 0 && seen[1].complete);
    CHECK(seen[1].bytes == 0 && seen[1].files == 100 && seen[1].files_taken >= 1);
    CHECK(hf_quota_list(pool, stop, NULL) == 7);
    CHECK(hf_quota_set(pool, HF_QUOTA_DIRECTORY, "none", 1 << 20, 0) == -ENOENT);
    CHECK(hf_quota_remove(pool, HF_QUOTA_USER, "4243") == -ENOENT);
    CHECK(hf_quota_set(pool, HF_QUOTA_USER, "4242", 0, 0) == -EINVAL);
    CHECK(hf_quota_set(pool, HF_QUOTA_USER, "ada", 1, 0) == -EINVAL);
    CHECK(hf_quota_set(pool, HF_QUOTA_USER, "4294967295", 1, 0) == -EINVAL);
    CHECK(hf_quota_set(pool, HF_QUOTA_USER, NULL, 1, 0) == -EINVAL);
    CHECK(hf_quota_set(pool, 0, "4242", 1, 0) == -EINVAL);
    CHECK(hf_quota_set(pool, 99, "4242", 1, 0) == -EINVAL);
    CHECK(hf_quota_list(pool, NULL, NULL) == -EINVAL);
    CHECK(hf_quota_list(NULL, note, &count) == -EINVAL);
    CHECK(hf_pool_view(pool, &view) == 0);
    CHECK(hf_quota_set(view, HF_QUOTA_USER, "1", 1, 0) == -EROFS);
    hf_pool_close(view);
    CHECK(hf_quota_remove(pool, HF_QUOTA_DIRECTORY, "/") == 0);
    CHECK(hf_quota_remove(pool, HF_QUOTA_USER, "4242") == 0);
    CHECK(hf_keyspace_open(pool, "keys", HF_CREATE, &keys) == 0);
    CHECK(hf_put(keys, "k", 1, "value", 5, 0) == 0);
    CHECK(hf_quota_set(pool, HF_QUOTA_KEYSPACE, "none", 1 << 20, 0) == -ENOENT);
    CHECK(hf_quota_set(pool, HF_QUOTA_KEYSPACE, "keys", 4096, 3) == 0);
    count = 0;
    CHECK(hf_quota_list(pool, note, &count) == 0 && count == 1);
    CHECK(seen[0].kind == HF_QUOTA_KEYSPACE && strcmp(names[0], "keys") == 0);
    CHECK(seen[0].bytes_taken == 6 && seen[0].files_taken == 2);
    CHECK(hf_put(keys, "large", 5, large, sizeof large, 0) == -EDQUOT && hf_error() != NULL);
    CHECK(hf_put(keys, "l", 1, "value", 5, 0) == 0);
    CHECK(hf_put(keys, "m", 1, "value", 5, 0) == -EDQUOT);
    CHECK(hf_put(keys, "l", 1, "longer value", 12, 0) == 0);
    CHECK(hf_quota_remove(pool, HF_QUOTA_KEYSPACE, "keys") == 0);
    CHECK(hf_put(keys, "large", 5, large, sizeof large, 0) == 0);
    hf_keyspace_close(keys);
    count = 0;
    CHECK(hf_quota_list(pool, note, &count) == 0 && count == 0);
    hf_pool_close(pool);
    puts("all as it should be");
    return 0;
}
