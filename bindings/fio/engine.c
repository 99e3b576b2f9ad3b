// SPDX-License-Identifier: GPL-2.0-only
/* An I/O engine of fio: jobs on volumes of a Holdfast pool, in fio's own process.
 *
 *   fio --ioengine=external:/usr/local/lib/holdfast/libholdfast_fio.so --pool=DIR --volume=NAME ...
 *
 * Invariants: a request is one call of the library, made by the job's own thread; all threads of a
 * process use one handle of a volume, so that a flush covers what every one of them has written.
 *
 * It is built against the source of the fio that loads it, whose structures have no stable layout.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "fio.h"
#include "optgroup.h"

#include <holdfast.h>

/* What a job says. The first member cannot be an option's. */
struct options {
	void *pad;
	char *pool;
	char *volume;
};

static struct fio_option options[] = {
	{
		.name = "pool",
		.lname = "Holdfast pool",
		.help = "The directory of the pool",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct options, pool),
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "volume",
		.lname = "Holdfast volume",
		.help = "The name of the volume in the pool",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct options, volume),
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{ .name = NULL },
};

/* A volume that threads of this process have open. */
struct opened {
	struct opened *next;
	pid_t process;
	unsigned users;
	bool writes;
	char *pool;
	char *name;
	hf_volume *volume;
};

static struct opened *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void say(const char *what)
{
	const char *why = hf_error(), *fix = hf_error_fix();

	log_err("fio: holdfast: %s: %s.\n", what, why ? why : "it failed");
	if (fix)
		log_err("Fix: %s\n", fix);
}

/* 0, or a negative errno that was said. */
static int open_volume(const char *path, const char *name, bool writes, hf_volume **volume)
{
	hf_pool *pool;
	int r = hf_pool_open(path, 0, &pool);

	if (r < 0) {
		say(path);
		return r;
	}
	r = hf_volume_open(pool, name, writes ? 0 : HF_READ_ONLY, volume);
	if (r < 0)
		say(name);
	/* The volume keeps what it needs of it. */
	hf_pool_close(pool);
	if (r == -EBUSY)
		log_err("Fix: with several jobs on one volume, add --thread\n");
	return r;
}

static struct opened *find(const char *pool, const char *name, bool writes)
{
	struct opened *one;

	for (one = all; one; one = one->next)
		/* What was open when this process was forked is its parent's. */
		if (one->process == getpid() && (one->writes || !writes) &&
		    !strcmp(one->pool, pool) && !strcmp(one->name, name))
			return one;
	return NULL;
}

static struct opened *use(const char *pool, const char *name, bool writes)
{
	struct opened *one;

	pthread_mutex_lock(&lock);
	one = find(pool, name, writes);
	if (!one) {
		one = calloc(1, sizeof(*one));
		if (one && open_volume(pool, name, writes, &one->volume) < 0) {
			free(one);
			one = NULL;
		}
		if (one) {
			one->process = getpid();
			one->writes = writes;
			one->pool = strdup(pool);
			one->name = strdup(name);
			one->next = all;
			all = one;
		}
	}
	if (one)
		one->users++;
	pthread_mutex_unlock(&lock);
	return one;
}

static void leave(struct opened *one)
{
	struct opened **place = &all;

	pthread_mutex_lock(&lock);
	if (--one->users == 0) {
		while (*place != one)
			place = &(*place)->next;
		*place = one->next;
		hf_volume_close(one->volume);
		free(one->pool);
		free(one->name);
		free(one);
	}
	pthread_mutex_unlock(&lock);
}

/* In fio itself, before the jobs begin: how large the volume is. */
static int setup(struct thread_data *td)
{
	struct options *o = td->eo;
	hf_volume *volume;
	uint64_t size;
	int r;

	if (!o->pool || !o->volume) {
		log_err("fio: holdfast: the job does not say which volume it is about.\n");
		log_err("Fix: add --pool=DIRECTORY --volume=NAME behind --ioengine\n");
		return 1;
	}
	if (!td->files_index) {
		add_file(td, o->volume, 0, 0);
		td->o.nr_files = td->o.nr_files ?: 1;
		td->o.open_files++;
	}
	r = open_volume(o->pool, o->volume, false, &volume);
	if (r < 0)
		return 1;
	r = hf_volume_size(volume, &size);
	hf_volume_close(volume);
	if (r < 0) {
		say(o->volume);
		return 1;
	}
	td->files[0]->real_file_size = size;
	return 0;
}

static int init(struct thread_data *td)
{
	struct options *o = td->eo;

	td->io_ops_data = use(o->pool, o->volume, td_write(td) || td_trim(td));
	return !td->io_ops_data;
}

static void cleanup(struct thread_data *td)
{
	if (td->io_ops_data)
		leave(td->io_ops_data);
	td->io_ops_data = NULL;
}

static enum fio_q_status queue(struct thread_data *td, struct io_u *io_u)
{
	struct opened *one = td->io_ops_data;
	hf_volume *volume = one->volume;
	size_t len = io_u->xfer_buflen;
	ssize_t r;

	fio_ro_check(td, io_u);
	switch (io_u->ddir) {
	case DDIR_READ:
		r = hf_volume_read(volume, io_u->xfer_buf, len, io_u->offset);
		break;
	case DDIR_WRITE:
		r = hf_volume_write(volume, io_u->xfer_buf, len, io_u->offset,
				    td->o.sync_io ? HF_DURABLE : 0);
		break;
	case DDIR_TRIM:
		r = hf_volume_trim(volume, io_u->offset, len);
		break;
	case DDIR_SYNC:
	case DDIR_DATASYNC:
		r = hf_volume_flush(volume);
		break;
	default:
		r = -EINVAL;
	}
	if (r < 0) {
		io_u->error = -r;
		td_verror(td, io_u->error, "holdfast");
	}
	return FIO_Q_COMPLETED;
}

/* The volume is open for as long as the job. */
static int nothing(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

struct ioengine_ops ioengine = {
	.name = "holdfast",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_SYNCIO | FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_RAWIO,
	.setup = setup,
	.init = init,
	.cleanup = cleanup,
	.queue = queue,
	.open_file = nothing,
	.close_file = nothing,
	.invalidate = nothing,
	.options = options,
	.option_struct_size = sizeof(struct options),
};
