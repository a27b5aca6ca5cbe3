/* Costs of the processor and the kernel that the library cannot avoid [Badam11 §3.7, Table 4], each by itself:
 *
 * --memory userfaultfd, mprotect: delivery of a fault as a signal. The handler shows no page; it skips the access.
 * --memory small, huge: a read of a line that is in no cache, on pages of 4 KiB (the processor must find the page's address as well) or
 * on large pages (it knows it).
 *
 * An operation is ACCESSES accesses, so that the clock costs nothing.
 */
#define _GNU_SOURCE
#include "tool.h"

#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

enum { PAGE = 4096, LINE = 64, HUGE_PAGE = 2 << 20, ACCESSES = 1024 };

static long flag_data_mb = 1024;
static char *arena;
static size_t bytes;
static _Atomic uint64_t faults;

static void *map(size_t length, int protection) {
    void *at = mmap(NULL, length, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) die("no memory: %s", strerror(errno));
    return at;
}

/* ---- delivery of a fault ---- */

/* One byte is read by an instruction of known length, which the handler skips. */
#if defined __x86_64__
static void access_byte(const char *at) {
    __asm__ volatile("movb (%0), %%al" : : "D"(at) : "rax", "memory");
}
static void skip_access(ucontext_t *context) {
    context->uc_mcontext.gregs[REG_RIP] += 2;
}
#elif defined __aarch64__
static void access_byte(const char *at) {
    __asm__ volatile("ldrb w9, [%0]" : : "r"(at) : "x9", "memory");
}
static void skip_access(ucontext_t *context) {
    context->uc_mcontext.pc += 4;
}
#else
#define NO_SKIP
static void access_byte(const char *at) {
    (void)at;
}
static void skip_access(ucontext_t *context) {
    (void)context;
}
#endif

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    atomic_fetch_add_explicit(&faults, 1, memory_order_relaxed);
    skip_access(context);
}

static void fault(struct worker *worker) {
    for (int i = 0; i < ACCESSES; i++) access_byte(arena + random_below(&worker->random, bytes / PAGE) * PAGE);
}

__attribute__((noreturn)) static void unable(const char *why) {
    fprintf(stderr, "this machine cannot do it: %s\n", why);
    exit(77);
}

static void open_faults(int by_userfaultfd) {
#ifdef NO_SKIP
    unable("the handler does not know this processor's instructions");
#endif
    arena = map(bytes, by_userfaultfd ? PROT_READ | PROT_WRITE : PROT_NONE);
    if (by_userfaultfd) {
        int descriptor = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
        struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_SIGBUS};
        struct uffdio_register range = {.range = {(uintptr_t)arena, bytes}, .mode = UFFDIO_REGISTER_MODE_MISSING};
        if (descriptor < 0 || ioctl(descriptor, UFFDIO_API, &api) != 0) unable(strerror(errno));
        if (ioctl(descriptor, UFFDIO_REGISTER, &range) != 0) die("registering: %s", strerror(errno));
    }
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(by_userfaultfd ? SIGBUS : SIGSEGV, &action, NULL);
}

/* ---- reads of lines that are in no cache ---- */

/* Each page of 4 KiB has one used line, which holds the place of the next one: a circle through all of them in random order. */
static void open_lines(int huge) {
    char *reserved = map(bytes + HUGE_PAGE, PROT_READ | PROT_WRITE);
    arena = (char *)(((uintptr_t)reserved + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (madvise(arena, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) != 0 && huge) unable(strerror(errno));
    size_t pages = bytes / PAGE;
    uint32_t *order = must_have(malloc(pages * sizeof *order));
    uint64_t state = 1;
    for (size_t i = 0; i < pages; i++) order[i] = (uint32_t)i;
    for (size_t i = pages - 1; i > 0; i--) {
        size_t other = random_below(&state, i + 1);
        uint32_t moved = order[i];
        order[i] = order[other], order[other] = moved;
    }
    for (size_t i = 0; i < pages; i++) {
        size_t next = order[(i + 1) % pages];
        size_t line = mixed(order[i]) % (PAGE / LINE), next_line = mixed(next) % (PAGE / LINE);
        *(char **)(arena + (size_t)order[i] * PAGE + line * LINE) = arena + next * PAGE + next_line * LINE;
    }
    free(order);
}

/* Bytes of this process on large pages. */
static double huge_mb(void) {
    FILE *maps = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    double found = 0;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        if (strncmp(line, "AnonHugePages:", 14) == 0) found = atof(line + 14) / 1024;
    if (maps != NULL) fclose(maps);
    return found;
}

static void follow(struct worker *worker) {
    static __thread char *at;
    if (at == NULL) at = arena + random_below(&worker->random, bytes / PAGE) * PAGE;
    if ((uintptr_t)at % PAGE == 0) at += mixed((uint64_t)(at - arena) / PAGE) % (PAGE / LINE) * LINE;
    for (int i = 0; i < ACCESSES; i++) at = *(char *volatile *)at;
}

int main(int argc, char **argv) {
    static const struct flag flags[] = {
        {"--data-mb", "MiB of addresses that are accessed at random (default 1024)", &flag_data_mb, NULL, 2, 1l << 30},
    };
    read_flags(argc, argv, "What a fault costs, and a read of RAM: --memory userfaultfd, mprotect, small or huge (pages).", flags,
               sizeof flags / sizeof *flags);
    bytes = (size_t)flag_data_mb << 20;
    void (*operation)(struct worker *) = follow;
    if (strcmp(flag_memory, "userfaultfd") == 0 || strcmp(flag_memory, "mprotect") == 0) {
        operation = fault;
        open_faults(strcmp(flag_memory, "userfaultfd") == 0);
    } else if (strcmp(flag_memory, "small") == 0 || strcmp(flag_memory, "huge") == 0) {
        open_lines(strcmp(flag_memory, "huge") == 0);
        if (strcmp(flag_memory, "huge") == 0 && huge_mb() < 0.9 * (double)flag_data_mb) unable("it has no large pages now");
    } else {
        die("--memory is userfaultfd, mprotect, small or huge, not %s", flag_memory);
    }
    static struct measured measured;
    memory_kind = OTHER;
    run(operation, &measured);
    uint64_t accesses = measured.operations * ACCESSES;
    if (operation == fault && faults < accesses) die("%" PRIu64 " accesses, but %" PRIu64 " faults", accesses, (uint64_t)faults);
    char more[128];
    snprintf(more, sizeof more, "\"accesses\":%" PRIu64 ",\"access_ns\":%.3f,", accesses,
             measured.seconds * 1e9 * (double)flag_threads / (double)accesses);
    print_result("costs", &measured, more);
    return 0;
}
