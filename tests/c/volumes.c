/* Volumes through holdfast.h. volumes POOL: the pool exists and has no volume. */
#include <holdfast.h>

#include "check.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (8u << 20)

static char piece[SIZE / 8], back[SIZE / 8];

static int note(void *arg, const char *name, uint64_t size, uint64_t allocated)
{
    CHECK(size == SIZE && allocated <= SIZE);
    strcat((char *)arg, name);
    return 0;
}

static int all_are(char byte, size_t len)
{
    size_t i;
    for (i = 0; i < len; i++)
        if (back[i] != byte)
            return 0;
    return 1;
}

static void refusals(hf_pool *pool, hf_volume *volume)
{
    hf_volume *other;
    uint64_t size;
    CHECK(hf_volume_create(pool, "disk", SIZE, 512) == -EEXIST);
    CHECK(hf_volume_create(pool, "odd", SIZE, 1024) == -EINVAL);
    CHECK(hf_volume_create(pool, "odd", 1000, 512) == -EINVAL);
    CHECK(hf_volume_create(pool, NULL, SIZE, 512) == -EINVAL);
    CHECK(hf_volume_open(pool, "none", 0, &other) == -ENOENT);
    CHECK(hf_volume_open(pool, "disk", HF_CREATE, &other) == -EINVAL);
    CHECK(hf_volume_open(pool, "disk", 0, &other) == -EBUSY);
    CHECK(hf_volume_delete(pool, "disk") == -EBUSY);
    CHECK(hf_volume_resize(pool, "disk", SIZE / 2) == -EBUSY);
    CHECK(hf_volume_write(volume, piece, 100, 0, 0) == -EINVAL);
    CHECK(hf_volume_write(volume, piece, 512, SIZE, 0) == -EINVAL);
    CHECK(hf_volume_write(volume, piece, 512, 0, HF_CREATE) == -EINVAL);
    CHECK(hf_volume_write(volume, NULL, 512, 0, 0) == -EINVAL);
    CHECK(hf_volume_read(volume, back, 512, SIZE - 256) == -EINVAL);
    CHECK(hf_volume_trim(volume, 0, SIZE + 512) == -EINVAL);
    CHECK(hf_volume_size(NULL, &size) == -EINVAL && hf_volume_size(volume, NULL) == -EINVAL);
    CHECK(hf_volume_read(volume, NULL, 0, 0) == 0 && hf_volume_write(volume, NULL, 0, 0, 0) == 0);
}

static void requests(hf_volume *volume)
{
    memset(piece, 7, sizeof piece);
    CHECK(hf_volume_write(volume, piece, sizeof piece, 512, 0) == (ssize_t)sizeof piece);
    CHECK(hf_volume_write(volume, piece, 4096, SIZE - 4096, HF_DURABLE) == 4096);
    CHECK(hf_volume_flush(volume) == 0);
    CHECK(hf_volume_read(volume, back, sizeof back, 512) == (ssize_t)sizeof back);
    CHECK(all_are(7, sizeof back));
    CHECK(hf_volume_trim(volume, 512, sizeof piece) == 0);
    CHECK(hf_volume_read(volume, back, sizeof back, 512) == (ssize_t)sizeof back);
    CHECK(all_are(0, sizeof back));
    CHECK(hf_volume_zero(volume, SIZE - 4096, 512) == 0);
    CHECK(hf_volume_read(volume, back, 1024, SIZE - 4096) == 1024);
    CHECK(all_are(0, 512) && back[512] == 7);
}

/* A child of fork opens the volume again. */
static void children(hf_pool *pool, hf_volume *volume)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        hf_volume *own;
        CHECK(hf_volume_read(volume, back, 512, 0) == -ECHILD);
        CHECK(hf_volume_open(pool, "disk", 0, &own) == -EBUSY);
        CHECK(hf_volume_open(pool, "disk", HF_READ_ONLY, &own) == 0);
        CHECK(hf_volume_read(own, back, 512, SIZE - 512) == 512 && all_are(7, 512));
        CHECK(hf_volume_write(own, piece, 512, 0, 0) == -EBADF);
        hf_volume_close(own);
        hf_volume_close(volume);
        hf_pool_close(pool);
        exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(hf_volume_read(volume, back, 512, SIZE - 512) == 512 && all_are(7, 512));
}

int main(int argc, char **argv)
{
    hf_pool *pool, *view;
    hf_volume *volume, *then;
    uint64_t size = 0;
    char names[100] = "";
    if (argc != 2)
        return 2;
    CHECK(hf_pool_open(argv[1], 0, &pool) == 0);
    CHECK(hf_volume_create(pool, "disk", SIZE, 512) == 0);
    CHECK(hf_volume_list(pool, note, names) == 0 && strcmp(names, "disk") == 0);
    CHECK(hf_volume_open(pool, "disk", 0, &volume) == 0);
    CHECK(hf_volume_size(volume, &size) == 0 && size == SIZE);
    CHECK(hf_volume_sector(volume) == 512);
    requests(volume);
    refusals(pool, volume);
    children(pool, volume);
    if (hf_snapshot_create(pool, "one") == 0) {
        CHECK(hf_volume_trim(volume, 0, SIZE) == 0);
        CHECK(hf_snapshot_open(pool, "one", &view) == 0);
        CHECK(hf_volume_open(view, "disk", 0, &then) == -EROFS);
        CHECK(hf_volume_open(view, "disk", HF_READ_ONLY, &then) == 0);
        CHECK(hf_volume_read(then, back, 512, SIZE - 512) == 512 && all_are(7, 512));
        CHECK(hf_volume_read(volume, back, 512, SIZE - 512) == 512 && all_are(0, 512));
        hf_volume_close(then);
        hf_pool_close(view);
        CHECK(hf_snapshot_delete(pool, "one") == 0);
    }
    hf_volume_close(volume);
    CHECK(hf_volume_read(volume, back, 512, 0) == -EINVAL);
    CHECK(hf_volume_resize(pool, "disk", SIZE / 2) == 0);
    CHECK(hf_volume_open(pool, "disk", 0, &volume) == 0);
    CHECK(hf_volume_size(volume, &size) == 0 && size == SIZE / 2);
    hf_volume_close(volume);
    CHECK(hf_volume_delete(pool, "disk") == 0 && hf_volume_delete(pool, "disk") == -ENOENT);
    CHECK(hf_volume_create_with(pool, "disk", SIZE, 1024, HF_ATOMIC) == -EINVAL);
    CHECK(hf_volume_create_with(pool, "disk", SIZE, 512, HF_CREATE) == -EINVAL);
    CHECK(hf_volume_create_with(pool, "disk", SIZE, 512, HF_CHECKSUM) == 0);
    CHECK(hf_volume_open(pool, "disk", 0, &volume) == 0);
    CHECK(hf_volume_size(volume, &size) == 0 && size == SIZE);
    requests(volume);
    hf_volume_close(volume);
    CHECK(hf_volume_resize(pool, "disk", SIZE / 2) == -EOPNOTSUPP);
    CHECK(hf_volume_resize(pool, "disk", SIZE * 2) == 0);
    CHECK(hf_volume_delete(pool, "disk") == 0);
    hf_pool_close(pool);
    puts("all as it should be");
    return 0;
}
