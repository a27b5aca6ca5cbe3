/* Threads count in objects of which a few are in RAM, and allocate and free beside it, while checkpoints are made: every count is found
 * again, in the objects and in the last checkpoint. argv[1]: a folder; argv[2]: userfault or protect; argv[3]: thousands of steps of each
 * thread. Ends with 77 where the kernel cannot do that.
 *
 * Under ThreadSanitizer the accesses of this program are watched, not the library's own: it is written in Rust, and its locks are not
 * seen. Where they order accesses of two threads (an object is freed by one and then handed out to another), this program says so. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *);
void __tsan_release(void *);
#else
#define __tsan_acquire(at) ((void)(at))
#define __tsan_release(at) ((void)(at))
#endif

enum { THREADS = 8, OBJECTS = 2500, ALL = THREADS + 1 };

/* 8 + 1 words of 8 bytes: one that all threads count in, and one of each thread. */
struct object {
    _Atomic uint64_t shared;
    uint64_t own[THREADS];
};

static char flash[4096], saved[4096];
static enum ssd_faults kind;
static char *objects;
static size_t stride;
static unsigned steps;
/* What each thread has counted, object by object; `counted` is how many steps it has done. */
static uint32_t tallies[THREADS][OBJECTS];
static _Atomic uint64_t counted[THREADS];
static _Atomic int stop;
static char handed_out; /* names the order of ssd_free before ssd_oalloc */

static void start(void) {
    struct ssd_options options = {.flash_file = flash, .flash_bytes = 64 << 20, .ram_bytes = 5 << 20, .address_bytes = 4ull << 30, .faults = kind};
    int code = ssd_init(&options);
    if (code == SSD_EKERNEL) {
        printf("skipped: %s\n", ssd_error_message());
        exit(77);
    }
    CHECK(code == SSD_OK);
}

static struct object *at(size_t nth) { return (struct object *)(objects + nth * stride); }

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void *count(void *argument) {
    size_t me = (size_t)argument;
    uint64_t state = me + 1;
    unsigned char *mine = NULL;
    for (unsigned step = 0; step < steps; step++) {
        size_t nth = next(&state) % OBJECTS;
        struct object *object = at(nth);
        CHECK(object->own[me] == tallies[me][nth]);
        atomic_fetch_add_explicit(&object->shared, 1, memory_order_relaxed);
        object->own[me]++;
#ifdef RACE
        at(0)->own[0]++; /* several threads' at once: ThreadSanitizer must say so */
#endif
        tallies[me][nth]++;
        atomic_fetch_add_explicit(&counted[me], 1, memory_order_release);
        if (step % 16 == 0) { /* a new one is zeros, whoever had it before */
            if (mine != NULL) {
                CHECK(mine[0] == (unsigned char)me && mine[99] == (unsigned char)me);
                __tsan_release(&handed_out);
                CHECK(ssd_free(mine) == SSD_OK);
            }
            mine = ssd_oalloc(1, 100);
            CHECK(mine != NULL);
            __tsan_acquire(&handed_out);
            for (int i = 0; i < 100; i++) CHECK(mine[i] == 0);
            memset(mine, (int)me, 100);
        }
    }
    __tsan_release(&handed_out);
    CHECK(mine == NULL || ssd_free(mine) == SSD_OK);
    return NULL;
}

static uint64_t all_counted(void) {
    uint64_t all = 0;
    for (size_t i = 0; i < THREADS; i++) all += atomic_load_explicit(&counted[i], memory_order_acquire);
    return all;
}

/* What had been counted before the last checkpoint began, and when it was made. */
static uint64_t before, after, checkpoints;

static void *save(void *unused) {
    (void)unused;
    do {
        before = all_counted();
        CHECK(ssd_checkpoint(saved) == SSD_OK);
        after = all_counted();
        checkpoints++;
    } while (!atomic_load(&stop));
    return NULL;
}

/* Counts in all objects: by everybody in the shared words, and in those of the threads. */
static void sums(uint64_t *shared, uint64_t *own) {
    *shared = *own = 0;
    for (size_t nth = 0; nth < OBJECTS; nth++) {
        *shared += atomic_load(&at(nth)->shared);
        for (size_t i = 0; i < THREADS; i++) *own += at(nth)->own[i];
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    snprintf(flash, sizeof flash, "%s/flash", argv[1]);
    snprintf(saved, sizeof saved, "%s/checkpoint", argv[1]);
    kind = strcmp(argv[2], "protect") == 0 ? SSD_FAULTS_PROTECT : SSD_FAULTS_USERFAULT;
    steps = 1000 * (unsigned)atoi(argv[3]);
    start();
    stride = ssd_stride(sizeof(struct object));
    objects = ssd_oalloc(OBJECTS, sizeof(struct object));
    CHECK(objects != NULL && ssd_set_root(0, objects) == SSD_OK);
    pthread_t all[ALL];
    for (size_t i = 0; i < THREADS; i++) CHECK(pthread_create(&all[i], NULL, count, (void *)i) == 0);
    CHECK(pthread_create(&all[THREADS], NULL, save, NULL) == 0);
    for (size_t i = 0; i < THREADS; i++) CHECK(pthread_join(all[i], NULL) == 0);
    atomic_store(&stop, 1);
    CHECK(pthread_join(all[THREADS], NULL) == 0);
    uint64_t shared, own;
    sums(&shared, &own);
    CHECK(shared == (uint64_t)THREADS * steps && own == shared);
    for (size_t nth = 0; nth < OBJECTS; nth++)
        for (size_t i = 0; i < THREADS; i++) CHECK(at(nth)->own[i] == tallies[i][nth]);
    struct ssd_stats stats;
    CHECK(ssd_stats(&stats) == SSD_OK && stats.evicted_dirty_pages > 1000 && checkpoints > 0);
    CHECK(ssd_close() == SSD_OK);
    /* An object is in a checkpoint as it was at one moment while that was made. A step counts a word twice before it is told of, so a
     * thread may be one step ahead of what it told. */
    start();
    CHECK(ssd_restore(saved) == SSD_OK && ssd_root(0) == objects);
    sums(&shared, &own);
    CHECK(shared >= before && shared <= after + THREADS && own >= before && own <= after + THREADS);
    CHECK(ssd_close() == SSD_OK);
    printf("ok: %lu faults, %lu checkpoints\n", (unsigned long)stats.faults, (unsigned long)checkpoints);
    return 0;
}
