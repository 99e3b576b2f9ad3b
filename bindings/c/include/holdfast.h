/* Holdfast: keys, values and volumes in a pool, from C and C++.
 *
 * Results are 0 or a count; an error is a negative errno, and hf_error() describes it.
 * Every function may be called from any thread. A handle that is NULL, was closed, or is of
 * another kind gives -EINVAL, and closing it does nothing. Handles made from another handle stay
 * usable after that one is closed: a keyspace outlives its pool's handle, a scan its keyspace's.
 *
 * A key has 1 to 1024 bytes; a value may be empty, or as large as the pool has room for. Both may
 * hold any bytes. Keys are ordered as by memcmp; a key comes before longer ones that begin with it.
 * A pointer to no bytes (a length of 0) may be NULL.
 */
#ifndef HOLDFAST_H
#define HOLDFAST_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hf_pool hf_pool;
typedef struct hf_keyspace hf_keyspace;
typedef struct hf_batch hf_batch;
typedef struct hf_scan hf_scan;
typedef struct hf_lent hf_lent;
typedef struct hf_reader hf_reader;
typedef struct hf_writer hf_writer;
typedef struct hf_volume hf_volume;

#define HF_CREATE 0x1u   /* open: create it if it does not exist */
#define HF_DURABLE 0x2u  /* put, erase, commit, volume write: durable when the call returns */
#define HF_VOLATILE 0x4u /* put, erase, commit: may be lost, out of order, when power is lost */
#define HF_REVERSE 0x8u  /* scan: from the last key to the first */
#define HF_READ_ONLY 0x10u /* volume: open for reading only */
#define HF_ATOMIC 0x20u    /* new volume: each sector is written as a whole or not at all, and a write
                              is durable when it returns */
#define HF_CHECKSUM 0x40u  /* new volume: as HF_ATOMIC, and other bytes than were written are -EIO */
#define HF_REPLACE 0x80u   /* keyspace rename: drop the keyspace that has the new name */

/* Pools. A process serves the pool and is started if there is none: the program `holdfast`, found
 * as ../bin/holdfast beside the library, else named by the environment variable HOLDFAST, else on
 * the PATH. With the environment variable HOLDFAST_SLOW (docs/slow.md) the pool is as slow as that
 * says; words that it does not know are EINVAL. */
int hf_pool_open(const char *path, unsigned flags, hf_pool **out); /* HF_CREATE */
int hf_pool_sync(hf_pool *);                                       /* all earlier changes durable */
void hf_pool_close(hf_pool *);
/* Makes room for size bytes of data, in whole 2 MiB, while the pool is in use: -EBUSY if that is less
 * than it has, or more than it can have meanwhile (docs/limits.md); -ENOSPC. Its owner and root may. */
int hf_pool_grow(hf_pool *, uint64_t size);

/* A view of the pool as it is now: a handle of the same kind that never changes and through which
 * nothing can be changed (-EROFS); only keys that are files show what the files hold when they are
 * read, and one that came some milliseconds ago may be missing. A view that is held for long while
 * much changes may be given up, and then returns -ESTALE. */
int hf_pool_view(hf_pool *, hf_pool **out);

/* Snapshots of the whole pool: files, keys and values. hf_snapshot_open gives a view of one, which
 * stays valid while it is open. */
int hf_snapshot_create(hf_pool *, const char *name); /* -EEXIST */
int hf_snapshot_open(hf_pool *, const char *name, hf_pool **out);
int hf_snapshot_delete(hf_pool *, const char *name); /* -ENOENT; -EBUSY while it is in use */
/* As hf_snapshot_delete; -EEXIST if there is one that has the new name. */
int hf_snapshot_rename(hf_pool *, const char *name, const char *new_name);
/* Calls fn for each, oldest first, until fn returns a value other than 0, which is returned. */
typedef int (*hf_snapshot_fn)(void *arg, const char *name, int64_t time_ns);
int hf_snapshot_list(hf_pool *, hf_snapshot_fn fn, void *arg);

/* Quotas: what may be taken by a user, by a directory with all below it, or by a keyspace
 * (docs/quotas.md). Who reaches one gets -EDQUOT. These are for the pool's owner and root; -EACCES for others. */
#define HF_QUOTA_USER 1u      /* name: the user's number, in decimal */
#define HF_QUOTA_DIRECTORY 2u /* name: the path of the directory from the root of the pool */
#define HF_QUOTA_KEYSPACE 3u  /* name: the keyspace's */
typedef struct hf_quota {
    unsigned kind;
    int complete; /* 0: not all that is below the directory counts; setting it again completes it */
    const char *name;
    uint64_t bytes, files; /* the limits; 0: none */
    uint64_t bytes_taken, files_taken;
} hf_quota; /* later versions may append to it */
/* Limits bytes and files (0: not), in place of an earlier quota, durably. -EINVAL: neither, no such kind
 * or number, or a directory above or below has one; -ENOENT: no such directory or keyspace;
 * -ENOSPC: the pool has as many quotas as it may have. */
int hf_quota_set(hf_pool *, unsigned kind, const char *name, uint64_t bytes, uint64_t files);
int hf_quota_remove(hf_pool *, unsigned kind, const char *name); /* durably; -ENOENT: it has none */
/* Calls fn for each, by kind and name, as hf_snapshot_list does; the quota is valid during the call. */
typedef int (*hf_quota_fn)(void *arg, const hf_quota *quota);
int hf_quota_list(hf_pool *, hf_quota_fn fn, void *arg);

/* Keyspaces: named sets of keys; each is also a directory of the pool. */
int hf_keyspace_open(hf_pool *, const char *name, unsigned flags, hf_keyspace **out);
void hf_keyspace_close(hf_keyspace *);
typedef int (*hf_name_fn)(void *arg, const char *name);
int hf_keyspace_list(hf_pool *, hf_name_fn fn, void *arg);
/* Removes a keyspace and all its keys at once, durably. Handles of it find no key any more, and what
 * they change is -ENOENT. Views and snapshots keep it. -ENOENT; -ENOTEMPTY: it has directories. */
int hf_keyspace_drop(hf_pool *, const char *name);
/* Gives a keyspace another name, durably; handles of it stay valid. -EEXIST: something has that name;
 * with HF_REPLACE a keyspace that has it is dropped at the same moment. */
int hf_keyspace_rename(hf_pool *, const char *name, const char *new_name, unsigned flags);
/* How many keys there are, exactly: looks at every key, and at no value. */
ssize_t hf_keyspace_count(hf_keyspace *);

/* The value is copied as far as it fits; the result is its full length. -ENOENT: no such key. */
ssize_t hf_get(hf_keyspace *, const void *key, size_t key_len, void *buf, size_t cap);
int hf_put(hf_keyspace *, const void *key, size_t key_len, const void *val, size_t val_len,
           unsigned flags);
int hf_erase(hf_keyspace *, const void *key, size_t key_len, unsigned flags); /* 0 if missing too */
int hf_remove(hf_keyspace *, const void *key, size_t key_len, unsigned flags); /* 1: it existed */
/* Erases all keys in [from, to); NULL: from the first, to the last. */
int hf_erase_range(hf_keyspace *, const void *from, size_t from_len, const void *to, size_t to_len,
                   unsigned flags);

/* Changes that are made only if the value of the key is `expected` (of a put, NULL: only if it has
 * none), as one with regard to all other processes: 1 if it was made, 0 if not. Unless `len` is
 * NULL, *len is the full length of the value that the key has afterwards, or -ENOENT, and `buf` gets
 * as much of it as fits. */
int hf_put_if(hf_keyspace *, const void *key, size_t key_len, const void *expected,
              size_t expected_len, const void *val, size_t val_len, unsigned flags, void *buf,
              size_t cap, ssize_t *len);
int hf_erase_if(hf_keyspace *, const void *key, size_t key_len, const void *expected,
                size_t expected_len, unsigned flags, void *buf, size_t cap, ssize_t *len);

/* Values that expire. A time is nanoseconds since 1970 by CLOCK_REALTIME; 0 is never. From that time
 * on the key is not there for anybody, and the pool's service frees its space by itself. The next
 * put of the key says anew whether it expires. -EFBIG: the value has more than 64 MiB, or free space
 * is in too many pieces for it. */
#define HF_NEVER ((int64_t)0)
int64_t hf_expires_after(uint64_t milliseconds); /* that long from now */
int hf_put_until(hf_keyspace *, const void *key, size_t key_len, const void *val, size_t val_len,
                 int64_t expires, unsigned flags);
int hf_batch_put_until(hf_batch *, const void *key, size_t key_len, const void *val, size_t val_len,
                       int64_t expires);
int hf_put_if_until(hf_keyspace *, const void *key, size_t key_len, const void *expected,
                    size_t expected_len, const void *val, size_t val_len, int64_t expires,
                    unsigned flags, void *buf, size_t cap, ssize_t *len); /* as hf_put_if */
/* Says anew when a key expires. -ENOENT: no such key. */
int hf_expire(hf_keyspace *, const void *key, size_t key_len, int64_t expires, unsigned flags);
/* When a key expires; -ENOENT: no such key. */
int hf_expires(hf_keyspace *, const void *key, size_t key_len, int64_t *expires);
/* Changes that are made only if the key expires: at the time `at`, or, if that is HF_NEVER, at any;
 * as one with regard to all other processes: 1 if it was made, 0 if not. Unless `present` is NULL,
 * *present is when the key expires afterwards, or -ENOENT. */
int hf_put_if_expires(hf_keyspace *, const void *key, size_t key_len, int64_t at, const void *val,
                      size_t val_len, int64_t expires, unsigned flags, int64_t *present);
int hf_erase_if_expires(hf_keyspace *, const void *key, size_t key_len, int64_t at, unsigned flags,
                        int64_t *present);
int hf_expire_if(hf_keyspace *, const void *key, size_t key_len, int64_t at, int64_t expires,
                 unsigned flags, int64_t *present);

/* Batches: changes that all happen or none does, possibly to several keyspaces of a pool. */
int hf_batch_begin(hf_keyspace *, hf_batch **out);
int hf_batch_keyspace(hf_batch *, hf_keyspace *); /* for the changes that follow; -EXDEV */
int hf_batch_put(hf_batch *, const void *key, size_t key_len, const void *val, size_t val_len);
int hf_batch_erase(hf_batch *, const void *key, size_t key_len);
int hf_batch_erase_range(hf_batch *, const void *from, size_t from_len, const void *to,
                         size_t to_len);
int hf_batch_commit(hf_batch *, unsigned flags); /* all or nothing; frees the batch */
void hf_batch_abort(hf_batch *);

/* Scans in key order, of the keyspace as it was when the scan was opened. */
int hf_scan_open(hf_keyspace *, const void *from, size_t from_len, const void *to, size_t to_len,
                 hf_scan **out); /* [from, to) in byte order; NULL = open end */
int hf_scan_open_flags(hf_keyspace *, const void *from, size_t from_len, const void *to,
                       size_t to_len, unsigned flags, hf_scan **out); /* HF_REVERSE */
int hf_scan_prefix(hf_keyspace *, const void *prefix, size_t prefix_len, unsigned flags,
                   hf_scan **out); /* HF_REVERSE */
int hf_scan_next(hf_scan *, const void **key, size_t *key_len, const void **val,
                 size_t *val_len); /* 1, 0 at the end; valid until the next call */
int hf_scan_expires(hf_scan *, int64_t *expires); /* of the value that hf_scan_next gave last */
void hf_scan_close(hf_scan *);

/* Values of a view without a copy: *val is the value in the pool's own memory, if it is large and
 * in one piece, else a copy of it. It can be read until hf_lent_close. What was read is the value
 * if hf_lent_check returns 0 afterwards; -ESTALE: the view was given up meanwhile. */
int hf_lend(hf_keyspace *of_a_view, const void *key, size_t key_len, const void **val,
            size_t *val_len, hf_lent **out);
int hf_lent_check(hf_lent *);
void hf_lent_close(hf_lent *);

/* Large values piece by piece. A value written this way appears as a whole when it is finished; a
 * reader keeps the value that it opened, whatever happens to the key. */
int hf_writer_open(hf_keyspace *, const void *key, size_t key_len, hf_writer **out);
int hf_writer_open_until(hf_keyspace *, const void *key, size_t key_len, int64_t expires,
                         hf_writer **out); /* -EFBIG from 64 MiB on, as hf_put_until */
int hf_writer_write(hf_writer *, const void *buf, size_t len);
int hf_writer_finish(hf_writer *, unsigned flags); /* frees the writer */
void hf_writer_abort(hf_writer *);
int hf_reader_open(hf_keyspace *, const void *key, size_t key_len, hf_reader **out);
ssize_t hf_reader_read(hf_reader *, void *buf, size_t len, uint64_t offset); /* 0: at the end */
void hf_reader_close(hf_reader *);

/* Volumes: block devices; each is also a file of the pool, by whose path its name goes. Offsets and
 * lengths are multiples of the sector, 512 or 4096 bytes, and inside the volume, else -EINVAL and
 * nothing is changed. One handle at a time writes to a volume: opening it for more is -EBUSY, and so
 * are resize and delete; any number of handles read. A handle is of use in the process that opened
 * it. */
int hf_volume_create(hf_pool *, const char *name, uint64_t size, unsigned sector); /* -EEXIST */
int hf_volume_create_with(hf_pool *, const char *name, uint64_t size, unsigned sector,
                          unsigned flags); /* HF_ATOMIC, HF_CHECKSUM */
int hf_volume_open(hf_pool *, const char *name, unsigned flags, hf_volume **out); /* HF_READ_ONLY,
                                                                    required for a snapshot's */
void hf_volume_close(hf_volume *);
int hf_volume_size(hf_volume *, uint64_t *size);
int hf_volume_sector(hf_volume *); /* its bytes */
ssize_t hf_volume_read(hf_volume *, void *buf, size_t len, uint64_t offset); /* len, or an error */
ssize_t hf_volume_write(hf_volume *, const void *buf, size_t len, uint64_t offset,
                        unsigned flags); /* len, or an error; HF_DURABLE: as FUA */
int hf_volume_flush(hf_volume *);        /* all writes that are complete are durable */
int hf_volume_trim(hf_volume *, uint64_t offset, uint64_t len); /* gives space back; reads as 0 */
int hf_volume_zero(hf_volume *, uint64_t offset, uint64_t len); /* keeps the space */
int hf_volume_resize(hf_pool *, const char *name, uint64_t size);
int hf_volume_delete(hf_pool *, const char *name);
typedef int (*hf_volume_fn)(void *arg, const char *name, uint64_t size, uint64_t allocated);
int hf_volume_list(hf_pool *, hf_volume_fn fn, void *arg);

/* The last error of the calling thread as a sentence, and its remedy or NULL; each is valid until
 * the thread's next call that fails. */
const char *hf_error(void);
const char *hf_error_fix(void);

const char *hf_version(void);

#ifdef __cplusplus
}
#endif

#endif
