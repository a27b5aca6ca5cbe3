/* What a page costs that comes by userfaultfd and goes by process_madvise, with no library around it: the least that `duramen_alloc`
 * could cost for an object that it has in RAM. Pages are touched at random and leave 32 at a time.
 */
#define _GNU_SOURCE
#include "tool.h"

#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

enum { PAGE = 4096, BATCH = 32 };

static long flag_pages = 1 << 18;
static char *arena, *content;
static int faults = -1, self = -1;
static __thread struct iovec batch[BATCH];
static __thread unsigned in_batch;

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    struct uffdio_copy copy = {.dst = (uintptr_t)info->si_addr & ~(uintptr_t)(PAGE - 1), .src = (uintptr_t)content, .len = PAGE};
    if (ioctl(faults, UFFDIO_COPY, &copy) != 0 && errno != EEXIST) _exit(1);
}

static void touch(struct worker *worker) {
    /* Each thread has pages of its own, which no other one takes away. */
    uint64_t number = random_below(&worker->random, (uint64_t)(flag_pages / flag_threads)) * (uint64_t)flag_threads + worker->number;
    char *page = arena + number * PAGE;
    *(volatile char *)page += 1;
    worker->writes++;
    batch[in_batch++] = (struct iovec){page, PAGE};
    if (in_batch < BATCH) return;
    if (syscall(SYS_process_madvise, self, batch, BATCH, MADV_DONTNEED, 0) < 0) die("process_madvise: %s", strerror(errno));
    in_batch = 0;
}

int main(int argc, char **argv) {
    static const struct flag flags[] = {
        {"--pages", "pages that are touched at random (default 262144)", &flag_pages, NULL, 1024, 1l << 30},
    };
    read_flags(argc, argv, "Pairs of a fault and its page's eviction, by the kernel alone.", flags, sizeof flags / sizeof *flags);
    faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_SIGBUS};
    size_t bytes = (size_t)flag_pages * PAGE;
    arena = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (faults < 0 || self < 0 || ioctl(faults, UFFDIO_API, &api) != 0 || arena == MAP_FAILED) {
        fprintf(stderr, "this kernel cannot do it: %s\n", strerror(errno));
        return 77;
    }
    struct uffdio_register range = {.range = {(uintptr_t)arena, bytes}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(faults, UFFDIO_REGISTER, &range) != 0) die("registering: %s", strerror(errno));
    content = must_have(calloc(1, PAGE));
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGBUS, &action, NULL);
    static struct measured measured;
    flag_memory = "pages";
    run(touch, &measured);
    print_result("pairs", &measured, "");
    return 0;
}
