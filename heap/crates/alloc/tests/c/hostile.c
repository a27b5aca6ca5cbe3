/* Programs that are not kind to a library in their process. argv[1]: a folder; argv[2]: userfault or protect; argv[3]: which of
 * them. Ends with 77 where the kernel cannot do it. A program that waits for ever is ended from outside. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OBJECTS = 4000, BYTES = 2048 };

static char flash[4096], saved[4096], plain[4096];
static enum ssd_faults kind;

static int try_init(uint64_t flash_bytes, uint64_t ram_bytes) {
    struct ssd_options options = {
        .flash_file = flash, .flash_bytes = flash_bytes, .ram_bytes = ram_bytes, .faults = kind, .page_buffer_bytes = 1 << 20};
    return ssd_init(&options);
}

static void init(void) {
    int code = try_init(64 << 20, 6 << 20);
    if (code == SSD_EKERNEL) {
        printf("skipped: %s\n", ssd_error_message());
        exit(77);
    }
    CHECK(code == SSD_OK);
}

/* Objects of which a quarter is in RAM: each knows its number in its first and last word. */
static char *array;

static uint64_t *word(size_t object, size_t nth) { return (uint64_t *)(array + object * ssd_stride(BYTES)) + nth; }

static void make_objects(void) {
    init();
    CHECK((array = ssd_oalloc(OBJECTS, BYTES)) != NULL);
    for (size_t i = 0; i < OBJECTS; i++) *word(i, 0) = *word(i, BYTES / 8 - 1) = i;
}

static void check_objects(void) {
    for (size_t i = 0; i < OBJECTS; i++) CHECK(*word(i, 0) == i && *word(i, BYTES / 8 - 1) == i);
}

static uint64_t roll(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Reads and writes objects for ever: each access may be a fault that reads flash. */
static void *touch(void *seed) {
    uint64_t state = (uintptr_t)seed;
    for (;;) {
        size_t object = roll(&state) % OBJECTS;
        volatile uint64_t *at = word(object, 0);
        if (roll(&state) % 2) *at = object;
        else if (*at != object) abort();
        if (roll(&state) % 64 == 0) pthread_testcancel();
    }
    return NULL;
}

static void *touch_asynchronously(void *seed) {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    return touch(seed);
}

static void *call_asynchronously(void *seed) {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (;;) if (ssd_free(ssd_malloc(500 + (uintptr_t)seed % 100)) != SSD_OK) abort();
    return NULL;
}

static void *call(void *seed) {
    for (;;) {
        void *object = ssd_malloc(3000 + (uintptr_t)seed % 100);
        if (object == NULL || ssd_usable_size(object) < 3000 || ssd_free(object) != SSD_OK || ssd_checkpoint(saved) != SSD_OK) abort();
        pthread_testcancel();
    }
    return NULL;
}

/* A thread that was cancelled while it served a fault, or within a function, kept what it held, and others waited for ever. The library as it
 * is shipped ended the program, because its panics did not unwind; and a cancellation that was under way when a function began arrived in it. */
static void cancel(void) {
    make_objects();
    uint64_t state = 1;
    for (int round = 0; round < 30; round++) {
        void *(*ways[4])(void *) = {touch, touch_asynchronously, call, call_asynchronously};
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, ways[i], (void *)(uintptr_t)(round * 8 + i + 1)) == 0);
        usleep((useconds_t)(roll(&state) % 3000));
        for (int i = 0; i < 4; i++) CHECK(pthread_cancel(threads[i]) == 0);
        for (int i = 0; i < 4; i++) {
            void *result;
            CHECK(pthread_join(threads[i], &result) == 0);
            /* Of a thread that is cancelled when it allows that again, some versions of glibc say NULL. */
            CHECK(result == PTHREAD_CANCELED || (i % 2 == 1 && result == NULL));
        }
        if (round % 10 == 0) check_objects();
    }
    check_objects();
    CHECK(ssd_checkpoint(saved) == SSD_OK && ssd_free(array) == SSD_OK);
}

static sigjmp_buf back;
static volatile sig_atomic_t jumps, may_jump;

static void jump(int signal) {
    (void)signal;
    if (!may_jump) return;
    jumps++;
    siglongjmp(back, 1);
}

/* A handler of the program that jumps away interrupts the thread at any moment: one that serves a fault too. */
static void jumping(void) {
    make_objects();
    struct sigaction action = {.sa_handler = jump};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 700}, {0, 700}}, never = {{0, 0}, {0, 0}};
    volatile uint64_t seed = 1;
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    sigsetjmp(back, 1);
    seed += 1;
    uint64_t state = seed;
    may_jump = 1;
    while (jumps < 400) {
        size_t object = roll(&state) % OBJECTS;
        volatile uint64_t *at = word(object, 0);
        if (object % 2) *at = object;
        else if (*at != object) abort();
    }
    may_jump = 0;
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    check_objects();
    CHECK(ssd_checkpoint(saved) == SSD_OK && ssd_free(array) == SSD_OK);
}

static int child_says(void) {
    struct ssd_stats stats;
    int code = ssd_free(array);
    if (code != SSD_EFORKED || ssd_malloc(10) != NULL || ssd_checkpoint(saved) != SSD_EFORKED) return 1;
    if (ssd_stats(&stats) != SSD_EFORKED || try_init(64 << 20, 6 << 20) != SSD_EFORKED || ssd_close() != SSD_EFORKED) return 2;
    return ssd_usable_size(array) == 0 ? 0 : 3;
}

/* A child that lives on kept the lock of the flash file when its parent had ended: nobody could open it. */
static void forking(void) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t parent = fork();
    CHECK(parent >= 0);
    if (parent == 0) {
        make_objects();
        CHECK(ssd_set_root(0, array) == SSD_OK && ssd_checkpoint(saved) == SSD_OK);
        pthread_t others[2];
        for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&others[i], NULL, i ? touch : call, (void *)(i + 1)) == 0);
        for (int i = 0; i < 20; i++) {
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) _exit(child_says());
            int status;
            CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
        for (int i = 0; i < 2; i++) CHECK(pthread_cancel(others[i]) == 0 && pthread_join(others[i], NULL) == 0);
        check_objects();
        CHECK(ssd_checkpoint(saved) == SSD_OK);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            char byte; /* lives until the test has seen enough */
            close(ends[1]);
            _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
        }
        _exit(0);
    }
    close(ends[0]);
    int status;
    CHECK(waitpid(parent, &status, 0) == parent);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) exit(77);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    init();
    CHECK(ssd_restore(saved) == SSD_OK && (array = ssd_root(0)) != NULL);
    check_objects();
    /* Before anything is allocated the lock is held as well, and given up as well. */
    CHECK(ssd_close() == SSD_OK);
    init();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(ssd_close() == SSD_EFORKED && try_init(64 << 20, 6 << 20) == SSD_EFORKED ? 0 : 1);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(ssd_restore(saved) == SSD_OK);
    check_objects();
    close(ends[1]);
}

static long from_file(const char *path, const char *line) {
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    char text[512];
    long found = 0;
    while (fgets(text, sizeof text, file) != NULL) {
        if (line == NULL) found++;
        else if (strncmp(text, line, strlen(line)) == 0) found = atol(text + strlen(line));
    }
    fclose(file);
    return found;
}

static void churn(void) {
    for (uint64_t round = 0, state = 7; round < 20000; round++) {
        size_t object = roll(&state) % OBJECTS;
        if (round % 2) *word(object, 0) = object;
        else CHECK(*word(object, 0) == object);
    }
    check_objects();
}

/* With its memory locked, the kernel gives no page back: the program was ended by an assertion. */
static void locking(void) {
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) {
        printf("skipped: mlockall: %s\n", strerror(errno));
        exit(77);
    }
    long before = from_file("/proc/self/status", "VmRSS:");
    make_objects();
    churn();
    long resident = from_file("/proc/self/status", "VmRSS:");
    /* The budget, stacks of a few threads (they are locked, and so filled), and no more. */
    CHECK(resident - before < 64 * 1024);
    CHECK(munlockall() == 0 && ssd_close() == SSD_OK);
    make_objects();
    CHECK(mlockall(MCL_CURRENT) == 0);
    churn();
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    churn();
    CHECK(from_file("/proc/self/maps", NULL) < 4000); /* a mapping for each page that ever came would be 8000 */
    CHECK(munlockall() == 0 && ssd_checkpoint(saved) == SSD_OK);
    check_objects();
}

/* SIGTERM is blocked in every thread of the program, to be read from a descriptor: a thread of the library took it, and it ended. */
static void signal_descriptor(void) {
    make_objects();
    CHECK(ssd_checkpoint(saved) == SSD_OK);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    int descriptor = signalfd(-1, &set, SFD_CLOEXEC);
    CHECK(descriptor >= 0);
    for (int i = 0; i < 50; i++) {
        struct signalfd_siginfo info;
        int signal = i % 2 ? SIGTERM : SIGUSR1;
        CHECK(kill(getpid(), signal) == 0);
        usleep(100);
        CHECK(read(descriptor, &info, sizeof info) == (ssize_t)sizeof info && info.ssi_signo == (uint32_t)signal);
    }
    check_objects();
}

enum { PAGE = 4096, PAGES = 1500, READERS = 2 };
static char *pages;
static atomic_int stop;

static void *checkpoints(void *nothing) {
    while (!atomic_load(&stop)) {
        if (ssd_checkpoint(saved) != SSD_OK) abort();
        usleep(200);
    }
    return nothing;
}

static void *read_directly(void *which) {
    int file = open(plain, O_RDONLY | O_DIRECT), cached = open(plain, O_RDONLY);
    if (file < 0) file = open(plain, O_RDONLY);
    CHECK(file >= 0 && cached >= 0);
    for (int i = (int)(uintptr_t)which; i < PAGES; i += READERS) {
        char *page = pages + (size_t)i * PAGE;
        page[0] = 1; /* dirty, so that a checkpoint has something to do */
        CHECK(ssd_pin(page, PAGE, 1) == SSD_OK);
        if (i % 4 < 2) usleep(50); /* a checkpoint passes by */
        CHECK(pread(i % 4 ? file : cached, page, PAGE, (off_t)i * PAGE) == PAGE);
        CHECK(ssd_unpin(page, PAGE) == SSD_OK);
    }
    close(file), close(cached);
    return NULL;
}

/* What the kernel or a device wrote into pages that were pinned for that was lost if a checkpoint was made meanwhile. */
static void direct(void) {
    int file = open(plain, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0);
    static uint64_t page[PAGE / 8];
    for (uint64_t i = 0; i < PAGES; i++) {
        for (size_t at = 0; at < PAGE / 8; at++) page[at] = i << 32 | at;
        CHECK(write(file, page, PAGE) == PAGE);
    }
    CHECK(fsync(file) == 0 && close(file) == 0);
    init();
    CHECK((pages = ssd_oalloc(PAGES, PAGE)) != NULL && ssd_stride(PAGE) == PAGE);
    pthread_t checkpointer, readers[READERS];
    CHECK(pthread_create(&checkpointer, NULL, checkpoints, NULL) == 0);
    for (uintptr_t i = 0; i < READERS; i++) CHECK(pthread_create(&readers[i], NULL, read_directly, (void *)i) == 0);
    for (int i = 0; i < READERS; i++) CHECK(pthread_join(readers[i], NULL) == 0);
    atomic_store(&stop, 1);
    CHECK(pthread_join(checkpointer, NULL) == 0);
    for (uint64_t i = 0; i < PAGES; i++) {
        uint64_t *found = (uint64_t *)(pages + i * PAGE);
        for (size_t at = 0; at < PAGE / 8; at++) CHECK(found[at] == (i << 32 | at));
    }
    /* A pinned object that is freed is not pinned any more: all of the buffer can be pinned again, as often as one likes. */
    for (int i = 0; i < 300; i++) {
        char *object = ssd_oalloc(1, PAGE), *block = ssd_malloc(2 << 20), *many = ssd_oalloc(10, PAGE);
        CHECK(ssd_pin(object, PAGE, 1) == SSD_OK && ssd_pin(block, 100, 1) == SSD_OK && ssd_pin(many, 10 * PAGE, 0) == SSD_OK);
        CHECK(ssd_free(object) == SSD_OK && ssd_free(block) == SSD_OK && ssd_free(many) == SSD_OK);
        CHECK(ssd_unpin(many, PAGE) == SSD_EPOINTER && ssd_pin(object, PAGE, 1) == SSD_EPOINTER);
    }
}

static void *ask_for_much(void *nothing) {
    /* More than there is flash for, and more than there is RAM for tables for, though there is flash. */
    while (!atomic_load(&stop)) CHECK(ssd_malloc(60 << 20) == NULL && ssd_oalloc(330000, 128) == NULL);
    return nothing;
}

/* Sizes near each limit: an error with a number, or memory; and what fails leaves nothing behind and disturbs nobody. */
static void limits(void) {
    struct ssd_options options = {.flash_file = flash, .flash_bytes = 64 << 20, .ram_bytes = 6 << 20, .faults = kind};
    struct ssd_options wrong[] = {options, options, options, options, options, options};
    wrong[0].address_bytes = UINT64_MAX, wrong[1].ram_bytes = UINT64_MAX, wrong[2].flash_bytes = UINT64_MAX;
    wrong[3].page_buffer_bytes = UINT64_MAX, wrong[4].ram_bytes = 1ull << 62, wrong[5].address_bytes = 1ull << 60;
    for (int i = 0; i < 6; i++) {
        int code = ssd_init(&wrong[i]);
        if (code == SSD_EKERNEL) printf("skipped: %s\n", ssd_error_message()), exit(77);
        CHECK(code == SSD_EINVAL || code == SSD_ENOMEM);
    }
    init();
    char *small = ssd_malloc(100);
    CHECK(small != NULL);
    const size_t sizes[] = {0,        1,           4,           4096,          4097,          32768,         32769,     (1 << 20) - 1,
                            1 << 20,  16 << 20,    54 << 20,    64 << 20,      1ul << 30,     (1ul << 30) + 1, 1ul << 31, 1ul << 32,
                            1ul << 41, 1ul << 42,  (1ul << 42) + 1, 1ul << 47, 1ul << 63,     SIZE_MAX / 2,  SIZE_MAX - 4095, SIZE_MAX - 15,
                            SIZE_MAX};
    const size_t many = sizeof sizes / sizeof *sizes;
    for (size_t i = 0; i < many; i++) {
        void *block = ssd_malloc(sizes[i]);
        CHECK(block != NULL ? ssd_free(block) == SSD_OK : ssd_error() < 0);
        CHECK((block = ssd_realloc(small, sizes[i])) != NULL || ssd_error() < 0);
        if (block != NULL) small = block;
        ssd_stride(sizes[i]);
        CHECK(sizes[i] <= 1 << 20 || ssd_pin(small, sizes[i], 1) != SSD_OK);
        for (size_t j = 0; j < many; j++) {
            void *object = ssd_oalloc(sizes[i], sizes[j]);
            CHECK(object != NULL ? ssd_free(object) == SSD_OK : ssd_error() < 0);
            if (sizes[i] > 1 << 20 || sizes[j] > 1 << 20) {
                object = ssd_calloc(sizes[i], sizes[j]);
                CHECK(object == NULL ? ssd_error() < 0 : ssd_free(object) == SSD_OK);
            }
        }
    }
    CHECK(ssd_stride(SIZE_MAX) == 0 && ssd_stride((1ul << 30) + 1) == 0 && ssd_stride(1ul << 30) == 1ul << 30);
    pthread_t other;
    CHECK(pthread_create(&other, NULL, ask_for_much, NULL) == 0);
    for (int i = 0; i < 20000; i++) {
        void *block = ssd_malloc(100), *object = ssd_oalloc(1, 100);
        CHECK(block != NULL && object != NULL && ssd_free(block) == SSD_OK && ssd_free(object) == SSD_OK);
    }
    atomic_store(&stop, 1);
    CHECK(pthread_join(other, NULL) == 0);
    struct ssd_stats stats;
    CHECK(ssd_free(small) == SSD_OK && ssd_stats(&stats) == SSD_OK && stats.allocated_bytes == 0);
    /* All that can be had, several times: nothing leaks. */
    for (int i = 0; i < 20; i++) {
        void *most = ssd_malloc(50 << 20);
        CHECK(most != NULL && ssd_free(most) == SSD_OK);
    }
}

static _Atomic(void *) shared;
static atomic_int freed;
static pthread_barrier_t barrier;
enum { ROUNDS = 1500, RACERS = 3 };

static void *race(void *which) {
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&barrier);
        void *object = atomic_load(&shared);
        if ((uintptr_t)which == 0) ssd_usable_size(object);
        int code = ssd_free(object);
        if (code == SSD_OK) atomic_fetch_add(&freed, 1);
        else CHECK(code == SSD_EDOUBLEFREE || code == SSD_EPOINTER);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

/* Two threads free one object at the same time: one of them is told that it was freed already, and nothing else happens. */
static void double_frees(void) {
    init();
    CHECK(pthread_barrier_init(&barrier, NULL, RACERS + 1) == 0);
    pthread_t racers[RACERS];
    for (uintptr_t i = 0; i < RACERS; i++) CHECK(pthread_create(&racers[i], NULL, race, (void *)i) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        char *object = round % 4 == 0   ? ssd_malloc(1 << 20)
                       : round % 4 == 1 ? ssd_oalloc(20, 1000)
                       : round % 4 == 2 ? ssd_malloc(5000)
                                        : ssd_oalloc(1, 1000);
        CHECK(object != NULL);
        object[0] = 1;
        atomic_store(&freed, 0);
        atomic_store(&shared, object);
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        CHECK(atomic_load(&freed) == 1);
    }
    for (int i = 0; i < RACERS; i++) CHECK(pthread_join(racers[i], NULL) == 0);
    struct ssd_stats stats;
    CHECK(ssd_stats(&stats) == SSD_OK && stats.allocated_bytes == 0);
    void *most = ssd_malloc(50 << 20);
    CHECK(most != NULL && ssd_free(most) == SSD_OK);
}

static volatile sig_atomic_t ours, foreign;
static void later(int signal, siginfo_t *info, void *context) {
    (void)signal;
    if (ssd_handle_fault(info, context)) {
        ours++;
        return;
    }
    foreign++;
    siglongjmp(back, 1);
}

/* A handler that was installed after the library's was replaced by the one from before both when the library was closed. */
static void closing(void) {
    int signal = kind == SSD_FAULTS_PROTECT ? SIGSEGV : SIGBUS;
    struct sigaction before, now, action = {.sa_sigaction = later, .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(sigaction(signal, NULL, &before) == 0);
    make_objects();
    CHECK(ssd_close() == SSD_OK && sigaction(signal, NULL, &now) == 0);
    CHECK(now.sa_sigaction == before.sa_sigaction); /* nobody came later: as it was */
    for (int life = 0; life < 3; life++) {
        make_objects();
        CHECK(life > 0 || sigaction(signal, &action, NULL) == 0);
        check_objects();
        CHECK(ours > 0 && foreign == life);
        CHECK(ssd_close() == SSD_OK && sigaction(signal, NULL, &now) == 0 && now.sa_sigaction == later);
        if (sigsetjmp(back, 1) == 0) raise(signal); /* no heap is there: it is the program's */
        CHECK(foreign == life + 1);
        ours = 0;
    }
    CHECK(sigaction(signal, &before, NULL) == 0);
    make_objects();
    check_objects();
    CHECK(ours == 0 && ssd_close() == SSD_OK);
}

static pthread_key_t cache;
static atomic_int ended;
static void free_cache(void *object) {
    CHECK(ssd_free((char *)object + 1) == SSD_EPOINTER && strlen(ssd_error_message()) > 10);
    CHECK(ssd_free(object) == SSD_OK);
    atomic_fetch_add(&ended, 1);
}

static void *use_cache(void *fails) {
    char *object = ssd_oalloc(1, 100);
    CHECK(object != NULL && pthread_setspecific(cache, object) == 0);
    if (fails) CHECK(ssd_free(object + 1) == SSD_EPOINTER);
    return NULL;
}

/* A thread frees its data in a destructor, where a function fails: the text of an error before had its own destructor, and the
   program was aborted. */
static void ending(void) {
    init();
    CHECK(pthread_key_create(&cache, free_cache) == 0);
    for (uintptr_t fails = 0; fails < 2; fails++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, use_cache, (void *)fails) == 0 && pthread_join(thread, NULL) == 0);
    }
    CHECK(atomic_load(&ended) == 2 && ssd_close() == SSD_OK);
}

static volatile sig_atomic_t inside, jumped_out;
static void leave(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    if (inside) jumped_out++;
    siglongjmp(back, 1);
}

/* Whether a call of the library, or with 0 a read, ends by itself, not by a jump of the handler. */
#define ENDS(is_call, what) (sigsetjmp(back, 1) == 0 ? (inside = (is_call), (what), inside = 0, 1) : (inside = 0))

/* Flash fails, and the program's handler jumps out of the fault. An object shorter than 128 bytes was filled with zeros under a lock: the
 * next checkpoint waited for ever, and then every allocation. A function of the library never faults: it returns the error. */
static void leaving(void) {
    enum { SMALL = 100000, BLOCKS = 300 };
    struct sigaction action = {.sa_sigaction = leave, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGBUS, &action, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);
    init();
    static char *small[SMALL], *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) CHECK((blocks[i] = ssd_malloc(10000)) != NULL && memset(blocks[i], 1, 10000));
    for (int i = 0; i < SMALL; i++) CHECK((small[i] = ssd_oalloc(1, 64)) != NULL && (small[i][0] = 1));
    CHECK(truncate(flash, 8192) == 0);
    volatile int refused = 0, not_copied = 0, not_read = 0, got = 0;
    /* Objects that were evicted first; each shares its unit with one that stays. */
    for (volatile int i = 0; i < 2000; i += 2) CHECK(ENDS(1, ssd_free(small[i])));
    for (volatile int i = 0; i < 14000 && refused < 100; i++) { /* new ones come first */
        char *volatile again = NULL;
        CHECK(ENDS(1, again = ssd_oalloc(1, 64)));
        refused += again == NULL;
        CHECK(again != NULL || ssd_error() == SSD_EDEVICE);
        got += again != NULL;
    }
    for (volatile int i = 0; i < BLOCKS; i++) {
        char *volatile longer = NULL, *volatile zeros = NULL;
        CHECK(ENDS(1, longer = ssd_realloc(blocks[i], 30000)));
        CHECK(longer != NULL || ssd_error() == SSD_EDEVICE);
        CHECK(ENDS(1, zeros = ssd_calloc(1, 10000)));
        CHECK(zeros != NULL || ssd_error() == SSD_EDEVICE);
        not_copied += longer == NULL;
        not_read += !ENDS(0, (void)*(volatile char *)(longer == NULL ? blocks[i] : longer));
    }
    printf("%d refused, %d not copied, %d not read, %d given\n", refused, not_copied, not_read, got);
    CHECK(jumped_out == 0 && refused > 0 && not_copied > 0 && not_read > 0);
    CHECK(ENDS(1, ssd_checkpoint(saved)) && ENDS(1, ssd_malloc(100)) && ENDS(1, ssd_oalloc(1, 3000)) && jumped_out == 0);
}

/* A program gives up pages of a block (`madvise`), as for memory of malloc: the thread that touched them next waited for itself. Each
 * word is one that was written, or 0. */
static void advising(void) {
    enum { MANY = 1 << 20 };
    init();
    char *block = ssd_malloc(MANY);
    CHECK(block != NULL);
    for (char round = 1; round < 4; round++) {
        memset(block, round, MANY);
        CHECK(madvise(block, MANY, MADV_DONTNEED) == 0);
        if (round == 2) CHECK(ssd_checkpoint(saved) == SSD_OK);
        for (int i = 0; i < MANY; i += 512) CHECK(block[i] == 9 || (block[i] >= 0 && block[i] <= round));
        CHECK(madvise(block, MANY, MADV_DONTNEED) == 0);
        char *other = ssd_malloc(4 * MANY); /* evicts what is not there */
        CHECK(other != NULL && memset(other, 1, 4 * MANY) && ssd_free(other) == SSD_OK);
        CHECK(madvise(block, MANY, MADV_DONTNEED) == 0 && ssd_pin(block, 4096, 1) == SSD_OK);
        block[0] = 9;
        CHECK(block[0] == 9 && ssd_unpin(block, 4096) == SSD_OK);
    }
    memset(block, 7, MANY);
    for (int i = 0; i < MANY; i += 512) CHECK(block[i] == 7);
    CHECK(ssd_free(block) == SSD_OK && ssd_checkpoint(saved) == SSD_OK);
}

/* A program that was started without standard streams: a file of the library got one of their numbers, and the program's own output
 * destroyed the flash file. */
static void streams(void) {
    int out = fcntl(1, F_DUPFD_CLOEXEC, 10), error = fcntl(2, F_DUPFD_CLOEXEC, 10), taken = 0;
    for (int stream = 0; stream < 3; stream++) CHECK(close(stream) == 0);
    make_objects();
    check_objects();
    CHECK(ssd_checkpoint(saved) == SSD_OK);
    for (int stream = 0; stream < 3; stream++) taken += fcntl(stream, F_GETFD) != -1;
    CHECK(dup2(out, 1) == 1 && dup2(error, 2) == 2);
    CHECK(taken == 0);
    CHECK(ssd_close() == SSD_OK);
    init();
    CHECK(ssd_restore(saved) == SSD_OK);
    check_objects();
}

/* With `ulimit -f` below the length of the flash file, the kernel ended the program in ssd_init. */
static void file_limit(void) {
    struct rlimit before, low;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    low = before, low.rlim_cur = 24 << 20;
    CHECK(setrlimit(RLIMIT_FSIZE, &low) == 0);
    int code = try_init(64 << 20, 6 << 20);
    if (code == SSD_EKERNEL) printf("skipped: %s\n", ssd_error_message()), exit(77);
    CHECK(code == SSD_EDEVICE && strstr(ssd_error_message(), "ulimit -f") != NULL);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    make_objects();
    check_objects();
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    snprintf(flash, sizeof flash, "%s/flash", argv[1]);
    snprintf(saved, sizeof saved, "%s/checkpoint", argv[1]);
    snprintf(plain, sizeof plain, "%s/plain", argv[1]);
    kind = strcmp(argv[2], "protect") == 0 ? SSD_FAULTS_PROTECT : SSD_FAULTS_USERFAULT;
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"cancel", cancel},   {"jumping", jumping}, {"forking", forking},           {"locking", locking}, {"signals", signal_descriptor},
               {"direct", direct},   {"limits", limits},   {"double_frees", double_frees}, {"closing", closing}, {"ending", ending},
               {"leaving", leaving}, {"advising", advising}, {"streams", streams}, {"file_limit", file_limit}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(argv[3], all[i].name) != 0) continue;
        all[i].run();
        printf("ok\n");
        return 0;
    }
    fprintf(stderr, "there is no %s\n", argv[3]);
    return 2;
}
