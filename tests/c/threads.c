/* One pool, one keyspace handle, many threads; then many processes, before and after a fork.
 * threads POOL */
#include <holdfast.h>

#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, STEPS = 300 };
static hf_pool *pool;
static hf_keyspace *ks;

static void *work(void *arg)
{
    int me = *(int *)arg, n;
    char key[32], val[32], back[32];
    for (n = 0; n < STEPS; n++) {
        hf_keyspace *own;
        int key_len = sprintf(key, "t%d-%d", me, n), val_len = sprintf(val, "%d", n * me);
        CHECK(hf_put(ks, key, (size_t)key_len, val, (size_t)val_len, n % 2 ? HF_DURABLE : 0) == 0);
        CHECK(hf_get(ks, key, (size_t)key_len, back, sizeof back) == val_len);
        CHECK(memcmp(back, val, (size_t)val_len) == 0);
        CHECK(hf_keyspace_open(pool, "threads", 0, &own) == 0);
        CHECK(hf_get(own, key, (size_t)key_len, back, sizeof back) == val_len);
        if (n == 0) {
            /* A keyspace that this thread opened goes into a batch with one of another thread. */
            hf_batch *batch;
            CHECK(hf_batch_begin(ks, &batch) == 0 && hf_batch_keyspace(batch, own) == 0);
            CHECK(hf_batch_put(batch, key, (size_t)key_len, val, (size_t)val_len) == 0);
            CHECK(hf_batch_commit(batch, HF_DURABLE) == 0);
        }
        hf_keyspace_close(own);
        CHECK(hf_get(own, key, (size_t)key_len, back, sizeof back) == -EINVAL);
    }
    return NULL;
}

/* A child's child, and its child: each one younger than the calls of its parent. */
static void generations(int more)
{
    char key[16], buf[8];
    int status, len = sprintf(key, "g%d", more);
    pid_t child;
    CHECK(hf_put(ks, key, (size_t)len, "young", 5, HF_DURABLE) == 0);
    CHECK(hf_get(ks, key, (size_t)len, buf, sizeof buf) == 5);
    if (more == 0)
        return;
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        generations(more - 1);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(hf_get(ks, "g0", 2, buf, sizeof buf) == 5);
}

/* A child uses the handles that it was born with, while its parent goes on. */
static void inherited(void)
{
    int n, status;
    char key[16], buf[8];
    hf_scan *scan;
    CHECK(hf_scan_open(ks, NULL, 0, NULL, 0, &scan) == 0);
    for (n = 0; n < 4; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            const void *k, *v;
            size_t k_len, v_len;
            int len = sprintf(key, "i%d", n);
            CHECK(hf_put(ks, key, (size_t)len, "child", 5, HF_DURABLE) == 0);
            CHECK(hf_get(ks, key, (size_t)len, buf, sizeof buf) == 5);
            CHECK(hf_get(ks, "parent", 6, buf, sizeof buf) >= -ENOENT);
            /* What was begun before is its parent's. */
            CHECK(hf_scan_next(scan, &k, &k_len, &v, &v_len) < 0);
            hf_scan_close(scan);
            hf_keyspace_close(ks);
            hf_pool_close(pool);
            _exit(0);
        }
        CHECK(hf_put(ks, "parent", 6, "1", 1, n % 2 ? HF_DURABLE : 0) == 0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(hf_get(ks, key, (size_t)sprintf(key, "i%d", n), buf, sizeof buf) == 5);
        CHECK(hf_get(ks, "parent", 6, buf, sizeof buf) == 1);
    }
    hf_scan_close(scan);
    /* The service that the library started is nobody's child. */
    CHECK(wait(&status) == -1 && errno == ECHILD);
}

static void processes(const char *path)
{
    int n, status;
    for (n = 0; n < 3; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            hf_pool *own;
            hf_keyspace *mine;
            char key[16], buf[8];
            int len = sprintf(key, "p%d", n);
            CHECK(hf_pool_open(path, 0, &own) == 0);
            CHECK(hf_keyspace_open(own, "threads", 0, &mine) == 0);
            CHECK(hf_put(mine, key, (size_t)len, "1", 1, HF_DURABLE) == 0);
            CHECK(hf_get(mine, "t1-7", 4, buf, sizeof buf) == 1);
            hf_keyspace_close(mine);
            hf_pool_close(own);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        {
            char key[16], buf[8];
            int len = sprintf(key, "p%d", n);
            CHECK(hf_get(ks, key, (size_t)len, buf, sizeof buf) == 1);
        }
    }
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int numbers[THREADS], n;
    if (argc != 2)
        return 2;
    CHECK(hf_pool_open(argv[1], 0, &pool) == 0);
    CHECK(hf_keyspace_open(pool, "threads", HF_CREATE, &ks) == 0);
    for (n = 0; n < THREADS; n++) {
        numbers[n] = n;
        CHECK(pthread_create(&threads[n], NULL, work, &numbers[n]) == 0);
    }
    for (n = 0; n < THREADS; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    processes(argv[1]);
    inherited();
    generations(3);
    hf_keyspace_close(ks);
    hf_pool_close(pool);
    puts("all as it should be");
    return 0;
}
