/* What can go wrong, as a program in C sees it: each with a number and words, nothing silently wrong. argv[1]: a folder; argv[2]:
 * userfault or protect. Ends with 77 where the kernel cannot do that. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* The number, and a word of the message. */
#define FAILS(call, number, word)                                                                        \
    do {                                                                                                 \
        CHECK((call) == (number) && ssd_error() == (number));                                            \
        CHECK(strstr(ssd_error_message(), word) != NULL);                                                \
    } while (0)

enum { OBJECTS = 3000, BYTES = 2048 };

static char dir[3000], flash[4096], saved[4096];
static enum ssd_faults kind;
static int fault_signal;

static const char *in_dir(char *into, const char *name) {
    snprintf(into, 4096, "%s/%s", dir, name);
    return into;
}

static int init(const char *file, uint64_t flash_bytes, uint64_t ram_bytes) {
    struct ssd_options options = {.flash_file = file, .flash_bytes = flash_bytes, .ram_bytes = ram_bytes, .faults = kind};
    int code = ssd_init(&options);
    if (code == SSD_EKERNEL) {
        printf("skipped: %s\n", ssd_error_message());
        exit(77);
    }
    return code;
}

/* Runs this program in another process, as argv[3] says: how it ended. What it says on standard error goes to a file. */
static int life(const char *name) {
    char said_at[4096];
    in_dir(said_at, "said");
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct rlimit nothing = {0, 0};
        setrlimit(RLIMIT_CORE, &nothing);
        int said = open(said_at, O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (said < 0 || dup2(said, 2) != 2) _exit(2);
        char *arguments[] = {(char *)"trouble", dir, (char *)(kind == SSD_FAULTS_PROTECT ? "protect" : "userfault"), (char *)name, NULL};
        execv("/proc/self/exe", arguments);
        _exit(2);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static void budgets(void) {
    FAILS(init(flash, 64 << 20, 1 << 20), SSD_ENOMEM, "too small");
    FAILS(init(flash, 0, 0), SSD_ENOMEM, "too small");
    char small[4096], nowhere[4096];
    FAILS(init(in_dir(small, "small"), 300000, 6 << 20), SSD_EINVAL, "too few");
    FAILS(init(dir, 64 << 20, 6 << 20), SSD_EDEVICE, dir); /* the error names the path */
    FAILS(init(in_dir(nowhere, "none/flash"), 64 << 20, 6 << 20), SSD_EDEVICE, "No such file");
    struct ssd_options options = {.flash_file = flash, .flash_bytes = 64 << 20, .ram_bytes = 6 << 20, .faults = 7};
    FAILS(ssd_init(&options), SSD_EINVAL, "faults");
    options = (struct ssd_options){.flash_file = flash, .reserved = {1}};
    FAILS(ssd_init(&options), SSD_EINVAL, "reserved");
    /* After all that it works. Object tables are RAM: there is not enough for more objects than this. */
    CHECK(init(flash, 256 << 20, 5 << 20) == SSD_OK);
    FAILS(init(flash, 64 << 20, 6 << 20), SSD_ESTATE, "already");
    char *array = ssd_oalloc(1 << 20, 128);
    CHECK(array == NULL && ssd_error() == SSD_ENOMEM && errno == ENOMEM && strstr(ssd_error_message(), "too small") != NULL);
    CHECK((array = ssd_oalloc(1000, 128)) != NULL);
    array[999 * ssd_stride(128)] = 1;
    FAILS(ssd_pin(array, 900 * ssd_stride(128), 0), SSD_EINVAL, "at most half");
    CHECK(ssd_close() == SSD_OK);
}

static void full_by_allocation(void) {
    CHECK(init(flash, 64 << 20, 6 << 20) == SSD_OK);
    static char *blocks[1000];
    size_t count = 0;
    while (count < 1000 && (blocks[count] = ssd_malloc(1 << 20)) != NULL) blocks[count++][0] = 1;
    CHECK(count > 20 && count < 1000 && ssd_error() == SSD_ENOSPC && errno == ENOMEM);
    CHECK(strstr(ssd_error_message(), "no room on flash") != NULL);
    char *object = blocks[0];
    CHECK(ssd_realloc(object, 4 << 20) == NULL && ssd_error() == SSD_ENOSPC && object[0] == 1);
    CHECK(ssd_free(blocks[1]) == SSD_OK && ssd_oalloc(100, 1000) != NULL);
    CHECK(ssd_close() == SSD_OK);
}

static void pointers(void) {
    CHECK(init(flash, 64 << 20, 6 << 20) == SSD_OK);
    int local;
    char *object = ssd_oalloc(1, 128), *array = ssd_oalloc(10, 128), *block = ssd_malloc(200), *next = ssd_malloc(200);
    CHECK(object != NULL && array != NULL && block != NULL && next != NULL);
    void *heap = malloc(10);
    void *bad[] = {&local, heap, object + 1, object + 64, object + 4096 * 100, array + ssd_stride(128), block + 16, next + 8, (void *)8};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FAILS(ssd_free(bad[i]), SSD_EPOINTER, "not the address of an object");
        CHECK(ssd_usable_size(bad[i]) == 0 || bad[i] == array + ssd_stride(128));
        CHECK(ssd_realloc(bad[i], 10) == NULL && ssd_error() == SSD_EPOINTER);
    }
    CHECK(ssd_realloc(array, 2000) == NULL && ssd_error() == SSD_EPOINTER && strstr(ssd_error_message(), "array") != NULL);
    free(heap);
    FAILS(ssd_pin(&local, 1, 0), SSD_EPOINTER, "not lie in memory of this library");
    FAILS(ssd_unpin(object, 128), SSD_EPOINTER, "not pinned");
    memset(object, 1, 128);
    memset(block, 2, 200);
    CHECK(ssd_free(object) == SSD_OK && ssd_free(block) == SSD_OK && ssd_free(array) == SSD_OK);
    FAILS(ssd_free(object), SSD_EDOUBLEFREE, "freed already");
    FAILS(ssd_free(block), SSD_EDOUBLEFREE, "freed already");
    FAILS(ssd_free(array), SSD_EPOINTER, "nothing is allocated there"); /* its addresses are given up */
    CHECK(ssd_realloc(object, 256) == NULL && ssd_realloc(block, 256) == NULL);
    memset(next, 3, 200);
    for (int i = 0; i < 200; i++) CHECK(next[i] == 3);
    struct ssd_stats stats;
    CHECK(ssd_free(next) == SSD_OK && ssd_stats(&stats) == SSD_OK && stats.allocated_bytes == 0);
    FAILS(ssd_stats(NULL), SSD_EINVAL, "NULL");
    FAILS(ssd_set_root(16, NULL), SSD_EINVAL, "there are 16");
    CHECK(ssd_close() == SSD_OK);
}

static uint32_t crc32c(const unsigned char *bytes, size_t count) {
    uint32_t crc = ~0u;
    while (count-- > 0) {
        crc ^= *bytes++;
        for (int i = 0; i < 8; i++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
    }
    return ~crc;
}

static unsigned char *contents(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    unsigned char *all = malloc(*bytes);
    CHECK(all != NULL && fread(all, 1, *bytes, file) == *bytes && fclose(file) == 0);
    return all;
}

static void put(const char *path, const unsigned char *all, size_t bytes) {
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && fwrite(all, 1, bytes, file) == bytes && fclose(file) == 0);
}

/* Whatever is restored in vain: the library is closed then, the flash file is as it was, and it may be tried again. */
static int try(const char *path) {
    CHECK(init(flash, 0, 6 << 20) == SSD_OK);
    return ssd_restore(path);
}

static void damaged(const char *copy, unsigned char *all, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 1 + bytes / 200) {
        all[at] ^= (unsigned char)(1 << at % 8);
        put(copy, all, bytes);
        FAILS(try(copy), SSD_ECHECKPOINT, at < 8 ? "holds no checkpoint" : "damaged");
        all[at] ^= (unsigned char)(1 << at % 8);
        put(copy, all, at);
        FAILS(try(copy), SSD_ECHECKPOINT, "checkpoint");
    }
}

static void checkpoints(void) {
    char copy[4096], nowhere[4096], other[4096], older[4096];
    in_dir(copy, "copy"), in_dir(other, "other"), in_dir(older, "older");
    CHECK(init(flash, 16 << 20, 6 << 20) == SSD_OK);
    char *object = ssd_oalloc(1, 128);
    object[0] = 77;
    FAILS(ssd_restore(saved), SSD_ESTATE, "before anything is allocated");
    FAILS(ssd_checkpoint(NULL), SSD_EINVAL, "NULL");
    FAILS(ssd_checkpoint(in_dir(nowhere, "none/checkpoint")), SSD_EDEVICE, "writing the checkpoint");
    CHECK(ssd_set_root(1, object) == SSD_OK && ssd_checkpoint(older) == SSD_OK && ssd_checkpoint(saved) == SSD_OK);
    CHECK(ssd_close() == SSD_OK);
    FAILS(try(older), SSD_ECHECKPOINT, "there is a later one");
    FAILS(try(in_dir(nowhere, "none")), SSD_ECHECKPOINT, "No such file");
    put(other, (const unsigned char *)"a text", 6);
    FAILS(try(other), SSD_ECHECKPOINT, "holds no checkpoint");
    size_t bytes;
    unsigned char *all = contents(saved, &bytes);
    damaged(copy, all, bytes);
    /* Of another version of the library: older, newer. */
    for (uint32_t format = 2; format <= 4; format += 2) {
        memcpy(all + 8, &format, 4);
        uint32_t crc = crc32c(all, 4092);
        memcpy(all + 4092, &crc, 4);
        put(copy, all, bytes);
        FAILS(try(copy), SSD_EVERSION, "format");
    }
    free(all);
    /* Too little RAM for what it tells of, and addresses that are taken. */
    CHECK(init(flash, 0, 1 << 20) == SSD_ENOMEM);
    char *taken = mmap((char *)((uintptr_t)object & ~(uintptr_t)4095) - 4096, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(taken != MAP_FAILED);
    FAILS(try(saved), SSD_EADDRESS, "taken in this process");
    CHECK(munmap(taken, 8192) == 0);
    /* Another process uses the flash file. */
    CHECK(try(saved) == SSD_OK && ssd_root(1) == object && object[0] == 77);
    int status = life("second");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(ssd_close() == SSD_OK);
}

static void fill(char *array, char with) {
    for (size_t i = 0; i < OBJECTS; i++) memset(array + i * ssd_stride(BYTES), with, BYTES);
}

/* Flash that is full because a checkpoint holds it. */
static void full(void) {
    CHECK(init(flash, 12 << 20, 5 << 20) == SSD_OK);
    char *array = ssd_oalloc(OBJECTS, BYTES);
    CHECK(array != NULL);
    fill(array, 1);
    CHECK(ssd_set_root(0, array) == SSD_OK && ssd_checkpoint(saved) == SSD_OK);
    for (char with = 2; with < 20; with++) fill(array, with);
}

/* Flash that cannot be read. */
static void unreadable(void) {
    CHECK(init(flash, 12 << 20, 5 << 20) == SSD_OK);
    char *array = ssd_oalloc(OBJECTS, BYTES);
    CHECK(array != NULL);
    fill(array, 1);
    CHECK(truncate(flash, 4096) == 0);
    for (size_t i = 0; i < OBJECTS; i++) CHECK(array[i * ssd_stride(BYTES)] == 1);
}

/* Flash that cannot be written to: what is in RAM can still be used, a checkpoint says so, and writes beyond what RAM holds end it. */
static void unwritable(void) {
    CHECK(init(flash, 12 << 20, 5 << 20) == SSD_OK);
    char *array = ssd_oalloc(OBJECTS, BYTES);
    CHECK(array != NULL);
    array[0] = 1;
    CHECK(ssd_set_root(0, array) == SSD_OK && ssd_checkpoint(saved) == SSD_OK);
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    struct rlimit nothing = {4096, 4096};
    CHECK(setrlimit(RLIMIT_FSIZE, &nothing) == 0);
    array[0] = 2;
    FAILS(ssd_checkpoint(saved), SSD_EDEVICE, "too large");
    CHECK(array[0] == 2);
    for (char with = 3; with < 20; with++) fill(array, with);
}

/* A process whose access cannot be served gets the signal and a line; its last checkpoint holds. */
static void ends(const char *name, const char *word) {
    int status = life(name);
    char said_at[4096];
    size_t bytes;
    unsigned char *said = contents(in_dir(said_at, "said"), &bytes);
    fprintf(stderr, "%.*s", (int)bytes, said);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == fault_signal);
    CHECK(memmem(said, bytes, "cannot be brought", 17) != NULL && memmem(said, bytes, word, strlen(word)) != NULL);
    free(said);
}

static void devices(void) {
    ends("full", "flash is full");
    CHECK(init(flash, 0, 5 << 20) == SSD_OK && ssd_restore(saved) == SSD_OK);
    char *array = ssd_root(0);
    for (size_t i = 0; i < OBJECTS; i++) CHECK(array[i * ssd_stride(BYTES)] == 1 && array[i * ssd_stride(BYTES) + BYTES - 1] == 1);
    CHECK(ssd_close() == SSD_OK);
    ends("unwritable", "too large");
    CHECK(init(flash, 0, 5 << 20) == SSD_OK && ssd_restore(saved) == SSD_OK);
    array = ssd_root(0);
    CHECK(array[0] == 1 && array[5 * ssd_stride(BYTES)] == 0 && ssd_close() == SSD_OK);
    ends("unreadable", "");
}

static sigjmp_buf back;
static volatile sig_atomic_t foreign, ours;
static void *volatile foreign_at;

/* A program's own handler, installed after the library's. */
static void later(int signal, siginfo_t *info, void *context) {
    (void)signal;
    if (ssd_handle_fault(info, context)) {
        ours++;
        return;
    }
    foreign++;
    foreign_at = info->si_addr;
    siglongjmp(back, 1);
}

static void handler_installed_later(void) {
    CHECK(init(flash, 64 << 20, 6 << 20) == SSD_OK);
    char *array = ssd_oalloc(1000, 128);
    CHECK(array != NULL);
    struct sigaction action = {.sa_sigaction = later, .sa_flags = SA_SIGINFO | SA_NODEFER}, before[2];
    CHECK(sigaction(SIGSEGV, &action, &before[0]) == 0 && sigaction(SIGBUS, &action, &before[1]) == 0);
    for (int i = 0; i < 1000; i++) array[i * ssd_stride(128)] = (char)i;
    for (int i = 0; i < 1000; i++) CHECK(array[i * ssd_stride(128)] == (char)i);
    CHECK(ours >= 1000 && foreign == 0);
    volatile char *nowhere = (volatile char *)4096;
    if (sigsetjmp(back, 1) == 0) *nowhere = 1;
    CHECK(foreign == 1 && foreign_at == nowhere);
    CHECK(sigaction(SIGSEGV, &before[0], NULL) == 0 && sigaction(SIGBUS, &before[1], NULL) == 0);
    CHECK(ssd_close() == SSD_OK);
}

int main(int argc, char **argv) {
    CHECK(argc >= 3);
    snprintf(dir, sizeof dir, "%s", argv[1]);
    in_dir(flash, "flash"), in_dir(saved, "checkpoint");
    kind = strcmp(argv[2], "protect") == 0 ? SSD_FAULTS_PROTECT : SSD_FAULTS_USERFAULT;
    fault_signal = kind == SSD_FAULTS_PROTECT ? SIGSEGV : SIGBUS;
    if (argc == 4) {
        if (strcmp(argv[3], "second") == 0) FAILS(init(flash, 0, 6 << 20), SSD_EBUSY, "in use by another process");
        else if (strcmp(argv[3], "full") == 0) full();
        else if (strcmp(argv[3], "unreadable") == 0) unreadable();
        else unwritable();
        return 0;
    }
    budgets();
    full_by_allocation();
    pointers();
    checkpoints();
    devices();
    handler_installed_later();
    printf("ok\n");
    return 0;
}
