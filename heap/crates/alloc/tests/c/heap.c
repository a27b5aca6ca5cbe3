/* The library from C: objects, memory, errors, system calls, signals, fork, checkpoints. argv[1]: a folder; argv[2]: userfault or
 * protect. Ends with 77 where the kernel cannot do that. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static char flash[4096], saved[4096];
static enum ssd_faults kind;
static int fault_signal; /* what an access gets that is nobody's */

static void start(void) {
    struct ssd_options options = {.flash_file = flash, .flash_bytes = 64 << 20, .ram_bytes = 6 << 20};
    options.faults = kind;
    int code = ssd_init(&options);
    if (code == SSD_EKERNEL) {
        printf("skipped: %s\n", ssd_error_message());
        exit(77);
    }
    CHECK(code == SSD_OK);
}

struct node {
    struct node *next;
    uint64_t key;
    char text[100];
};

static void *worker(void *argument) {
    unsigned long seed = (unsigned long)argument;
    struct node *list = NULL;
    for (unsigned i = 0; i < 3000; i++) {
        struct node *node = ssd_oalloc(1, sizeof *node);
        CHECK(node != NULL && node->next == NULL && node->text[99] == 0);
        node->next = list;
        node->key = seed << 32 | i;
        snprintf(node->text, sizeof node->text, "%lu of %u", seed, i);
        list = node;
    }
    for (unsigned i = 3000; i-- > 0;) {
        char text[100];
        snprintf(text, sizeof text, "%lu of %u", seed, i);
        CHECK(list->key == (seed << 32 | i) && strcmp(list->text, text) == 0);
        struct node *next = list->next;
        CHECK(ssd_free(list) == SSD_OK);
        list = next;
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[4];
    for (unsigned long i = 0; i < 4; i++) CHECK(pthread_create(&all[i], NULL, worker, (void *)(i + 1)) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(all[i], NULL) == 0);
}

static void memory(void) {
    char *block = ssd_malloc(1000), *zeros = ssd_calloc(1000, 10);
    CHECK(block != NULL && zeros != NULL && (uintptr_t)block % 16 == 0 && ssd_usable_size(block) >= 1000);
    for (int i = 0; i < 10000; i++) CHECK(zeros[i] == 0);
    memset(block, 'x', 1000);
    block = ssd_realloc(block, 3 << 20);
    CHECK(block != NULL);
    for (int i = 0; i < 1000; i++) CHECK(block[i] == 'x');
    CHECK(ssd_free(block) == SSD_OK && ssd_free(zeros) == SSD_OK && ssd_free(NULL) == SSD_OK);
    CHECK(ssd_malloc((size_t)1 << 40) == NULL && ssd_error() == SSD_ENOSPC && errno == ENOMEM);
    CHECK(ssd_calloc((size_t)1 << 40, (size_t)1 << 40) == NULL && ssd_error() == SSD_EINVAL);
    CHECK(ssd_oalloc(0, 1) == NULL && ssd_error() == SSD_EINVAL && strlen(ssd_error_message()) > 0);
}

static void pointers(void) {
    int local;
    char *object = ssd_oalloc(1, 128);
    CHECK(ssd_free(&local) == SSD_EPOINTER && ssd_free(object + 1) == SSD_EPOINTER);
    CHECK(ssd_free(object) == SSD_OK && ssd_free(object) == SSD_EDOUBLEFREE);
    CHECK(strstr(ssd_error_message(), "freed already") != NULL);
}

static void system_calls(void) {
    size_t stride = ssd_stride(1000);
    char *array = ssd_oalloc(2000, 1000);
    int ends[2];
    CHECK(array != NULL && stride == 4096 && pipe(ends) == 0);
    for (int i = 0; i < 2000; i++) array[i * stride] = (char)i;
    /* The first one has left by now. */
    CHECK(write(ends[1], array, 1000) == -1 && errno == EFAULT);
    CHECK(ssd_pin(array, 1000, 0) == SSD_OK && write(ends[1], array, 1000) == 1000);
    CHECK(ssd_unpin(array, 1000) == SSD_OK && ssd_unpin(array, 1000) == SSD_EPOINTER);
    char *other = array + 700 * stride;
    CHECK(ssd_pin(other, 1000, 1) == SSD_OK && read(ends[0], other, 1000) == 1000 && ssd_unpin(other, 1000) == SSD_OK);
    /* A page that is there, and one that is not: as much as is there, or nothing. */
    static char found[5096];
    CHECK(ssd_pin(array, 1000, 0) == SSD_OK);
    ssize_t part = write(ends[1], array, sizeof found);
    CHECK(part == 4096 || (part == -1 && errno == EFAULT));
    CHECK(part == -1 || (read(ends[0], found, sizeof found) == part && memcmp(found, array, 1000) == 0));
    CHECK(ssd_unpin(array, 1000) == SSD_OK);
    /* A page that is there, but was only read: the call does not write to it, and takes nothing. */
    char *clean = array + 300 * stride;
    CHECK(write(ends[1], "123456", 6) == 6 && *clean == (char)300);
    CHECK(read(ends[0], clean, 6) == -1 && errno == EFAULT && *clean == (char)300);
    CHECK(read(ends[0], found, sizeof found) == 6 && memcmp(found, "123456", 6) == 0);
    for (int i = 1; i < 2000; i++) CHECK(array[i * stride] == (i == 700 ? 0 : (char)i));
    CHECK(ssd_pin(array, (size_t)2000 * stride, 0) == SSD_EINVAL);
    close(ends[0]);
    close(ends[1]);
    CHECK(ssd_free(array) == SSD_OK);
}

static sigjmp_buf back;
static volatile sig_atomic_t caught;
static void handler(int signal) {
    caught = signal;
    siglongjmp(back, 1);
}

/* Installed before the library's; see main. */
static void foreign_signals(void) {
    volatile int *nowhere = (volatile int *)16;
    caught = 0;
    if (sigsetjmp(back, 1) == 0) *nowhere = 1;
    CHECK(caught == SIGSEGV);
    /* A file that is shorter than its mapping. */
    char *path = saved;
    int file = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(file >= 0);
    char *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    CHECK(mapped != MAP_FAILED);
    caught = 0;
    if (sigsetjmp(back, 1) == 0) (void)*(volatile char *)mapped;
    CHECK(caught == SIGBUS);
    munmap(mapped, 4096);
    close(file);
    unlink(path);
    /* An object that was freed, and addresses where nothing is. */
    char *object = ssd_oalloc(1, 128);
    object[0] = 1;
    CHECK(ssd_free(object) == SSD_OK);
    caught = 0;
    if (sigsetjmp(back, 1) == 0) object[0] = 2;
    CHECK(caught == fault_signal);
}

static void forked(void) {
    char *object = ssd_oalloc(1, 128);
    object[0] = 'p';
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(ssd_oalloc(1, 128) == NULL && ssd_error() == SSD_EFORKED);
        CHECK(ssd_free(object) == SSD_EFORKED && ssd_checkpoint(saved) == SSD_EFORKED);
        caught = 0;
        if (sigsetjmp(back, 1) == 0) object[0] = 'c';
        CHECK(caught == SIGSEGV);
        _exit(42);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 42);
    CHECK(object[0] == 'p' && system("true") == 0 && ssd_free(object) == SSD_OK);
}

static void lives(void) {
    struct node *list = NULL;
    for (unsigned i = 0; i < 5000; i++) {
        struct node *node = ssd_oalloc(1, sizeof *node);
        *node = (struct node){.next = list, .key = i};
        list = node;
    }
    CHECK(ssd_set_root(0, list) == SSD_OK && ssd_set_root(16, list) == SSD_EINVAL);
    CHECK(ssd_checkpoint(saved) == SSD_OK);
    CHECK(ssd_restore(saved) == SSD_ESTATE);
    list->key = 0;
    CHECK(ssd_close() == SSD_OK);
    start();
    CHECK(ssd_restore(saved) == SSD_OK);
    unsigned count = 5000;
    for (struct node *node = ssd_root(0); node != NULL; node = node->next) CHECK(node->key == --count);
    CHECK(count == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    kind = strcmp(argv[2], "protect") == 0 ? SSD_FAULTS_PROTECT : SSD_FAULTS_USERFAULT;
    fault_signal = kind == SSD_FAULTS_PROTECT ? SIGSEGV : SIGBUS;
    snprintf(flash, sizeof flash, "%s/flash", argv[1]);
    snprintf(saved, sizeof saved, "%s/checkpoint", argv[1]);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_NODEFER};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    CHECK(ssd_oalloc(1, 1) == NULL && ssd_error() == SSD_ESTATE);
    struct ssd_options none = {.ram_bytes = 6 << 20};
    CHECK(ssd_init(NULL) == SSD_EINVAL && ssd_init(&none) == SSD_EINVAL);
    start();
    threads();
    memory();
    pointers();
    system_calls();
    foreign_signals();
    forked();
    struct ssd_stats stats;
    CHECK(ssd_stats(&stats) == SSD_OK && stats.faults > 0 && stats.evicted_pages > 0 && stats.fault_kind == kind);
    CHECK(stats.allocated_bytes == 0);
    lives();
    CHECK(ssd_close() == SSD_OK && ssd_close() == SSD_ESTATE);
    printf("ok\n");
    return 0;
}
