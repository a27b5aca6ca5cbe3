/* What the examples share: options, where objects lie, threads that repeat an operation, and the line of JSON at the end.
 *
 * Built with -DPLAIN_MALLOC a program needs no library, and its objects come from malloc: this macro is all there is to it. Else
 * --memory chooses: opp (ssd_oalloc: an object is read, cached and written alone), mp (ssd_malloc: pages are) or malloc. Built with
 * -DDIRECT as well, a program that knows it gets and puts its objects by calls of duramen_direct.
 */
#ifndef TOOL_H
#define TOOL_H

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#ifndef PLAIN_MALLOC
#include <duramen_alloc.h>
#endif
#ifdef DIRECT
#include <duramen_direct.h>
#endif

#define MAYBE_UNUSED __attribute__((unused))

/* ---- failures ---- */

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

MAYBE_UNUSED static void *must_have(void *memory) {
    if (memory == NULL) {
#ifndef PLAIN_MALLOC
        if (ssd_error() != SSD_OK) die("no memory: %s", ssd_error_message());
#endif
        die("no memory");
    }
    return memory;
}

/* ---- options ---- */

struct flag {
    const char *name, *help;
    long *number;      /* one of these two */
    const char **text;
    long least, most;
};

static long flag_threads = 1, flag_operations = 100000, flag_warm_up, flag_writes = 50, flag_seed;
static const char *flag_flash = "";
#ifdef DIRECT
static const char *flag_memory = "direct";
#elif defined PLAIN_MALLOC
static const char *flag_memory = "malloc";
#else
static const char *flag_memory = "opp";
static long flag_page_buffer_kb, flag_faults;
#endif
#if !defined PLAIN_MALLOC || defined DIRECT
static long flag_flash_mb, flag_ram_mb = 64;
#endif

static const struct flag COMMON_FLAGS[] = {
    {"--memory", "opp, mp or malloc (default opp, if the library is there)", NULL, &flag_memory, 0, 0},
    {"--flash", "the flash file, for opp and mp; for others, where bytes written are counted", NULL, &flag_flash, 0, 0},
#if !defined PLAIN_MALLOC || defined DIRECT
    {"--flash-mb", "its length in MiB (default 4 times the data)", &flag_flash_mb, NULL, 1, 1l << 30},
    {"--ram-mb", "RAM for opp and mp, in MiB (default 64)", &flag_ram_mb, NULL, 5, 1l << 30},
#endif
#ifndef PLAIN_MALLOC
    {"--faults", "1 = by userfaultfd, 2 = by mprotect (default: the library's choice)", &flag_faults, NULL, 0, 2},
    {"--page-buffer-kb", "of that, for pages in use, in KiB (default: the library's)", &flag_page_buffer_kb, NULL, 0, 1l << 30},
#endif
    {"--threads", "threads that work at once (default 1)", &flag_threads, NULL, 1, 256},
    {"--operations", "of all threads together (default 100000)", &flag_operations, NULL, 1, 1l << 40},
    {"--warm-up", "operations before those that are measured (default 0)", &flag_warm_up, NULL, 0, 1l << 40},
    {"--writes", "percent of operations that write (default 50)", &flag_writes, NULL, 0, 100},
    {"--seed", "of the random numbers (default 0)", &flag_seed, NULL, 0, INT32_MAX},
};

static const struct flag *find_flag(const struct flag *flags, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(flags[i].name, name) == 0) return &flags[i];
    return NULL;
}

static void show_flags(const struct flag *flags, size_t count) {
    for (size_t i = 0; i < count; i++) printf("  %-18s %s\n", flags[i].name, flags[i].help);
}

/* Reads options of this program and of all; ends the program for --help and for what it does not know. */
static void read_flags(int argc, char **argv, const char *about, const struct flag *own, size_t own_count) {
    const size_t common = sizeof COMMON_FLAGS / sizeof *COMMON_FLAGS;
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0) {
            printf("%s\n\nOptions:\n", about);
            show_flags(own, own_count);
            show_flags(COMMON_FLAGS, common);
            exit(0);
        }
        const struct flag *flag = find_flag(own, own_count, argv[i]);
        if (flag == NULL) flag = find_flag(COMMON_FLAGS, common, argv[i]);
        if (flag == NULL) die("unknown option %s; see --help", argv[i]);
        if (i + 1 == argc) die("%s needs a value; see --help", argv[i]);
        if (flag->text != NULL) {
            *flag->text = argv[i + 1];
            continue;
        }
        char *end;
        errno = 0;
        *flag->number = strtol(argv[i + 1], &end, 10);
        if (errno != 0 || *end != '\0' || end == argv[i + 1] || *flag->number < flag->least || *flag->number > flag->most)
            die("%s is a number from %ld to %ld, not %s", argv[i], flag->least, flag->most, argv[i + 1]);
    }
}

/* ---- where objects lie ---- */

enum memory { MALLOC, OPP, MP, OTHER };
static enum memory memory_kind = MALLOC;

#if !defined PLAIN_MALLOC || defined DIRECT
/* Bytes of the flash file for so many bytes of data. */
static uint64_t flash_bytes(uint64_t data_bytes) {
    return flag_flash_mb != 0 ? (uint64_t)flag_flash_mb << 20 : data_bytes * 4 + (64 << 20);
}
#endif

/* Begins with the memory that was chosen, for so many bytes of data. Exit code 77: this kernel cannot do it. */
MAYBE_UNUSED static void open_memory(uint64_t data_bytes) {
    if (strcmp(flag_memory, "malloc") == 0) {
        memory_kind = MALLOC;
        return;
    }
#ifdef PLAIN_MALLOC
    (void)data_bytes;
#else
    memory_kind = strcmp(flag_memory, "opp") == 0 ? OPP : strcmp(flag_memory, "mp") == 0 ? MP : OTHER;
    if (memory_kind == OTHER) die("--memory is opp, mp or malloc, not %s", flag_memory);
    if (flag_flash[0] == '\0') die("--flash FILE is needed with --memory %s", flag_memory);
    struct ssd_options options = {
        .flash_file = flag_flash,
        .flash_bytes = flash_bytes(data_bytes),
        .ram_bytes = (uint64_t)flag_ram_mb << 20,
        .page_buffer_bytes = (uint64_t)flag_page_buffer_kb << 10,
        .faults = (uint32_t)flag_faults,
    };
    int code = ssd_init(&options);
    if (code != SSD_OK) {
        fprintf(stderr, "%s\n", ssd_error_message());
        exit(code == SSD_EKERNEL ? 77 : 1);
    }
#endif
}

/* An object of zeros, to be used at random. */
MAYBE_UNUSED static void *new_object(size_t bytes) {
#ifndef PLAIN_MALLOC
    if (memory_kind == OPP) return must_have(ssd_oalloc(1, bytes));
    if (memory_kind == MP) return must_have(ssd_calloc(1, bytes));
#endif
    return must_have(calloc(1, bytes));
}

MAYBE_UNUSED static void delete_object(void *object) {
#ifndef PLAIN_MALLOC
    if (memory_kind != MALLOC) {
        if (ssd_free(object) != SSD_OK) die("freeing %p: %s", object, ssd_error_message());
        return;
    }
#endif
    free(object);
}

/* `count` objects; from one to the next it is *stride bytes. Zeros, or memory that was never used (which malloc has from the system). */
MAYBE_UNUSED static char *new_array(size_t count, size_t bytes, size_t *stride) {
    *stride = bytes;
#ifndef PLAIN_MALLOC
    if (memory_kind == OPP) {
        *stride = ssd_stride(bytes);
        return must_have(ssd_oalloc(count, bytes));
    }
    if (memory_kind == MP) return must_have(ssd_malloc(count * bytes));
#endif
    return must_have(calloc(count, bytes));
}

/* ---- random numbers ---- */

static uint64_t mixed(uint64_t x) { /* one to one */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

MAYBE_UNUSED static uint64_t random_next(uint64_t *state) {
    return mixed(*state += 0x9e3779b97f4a7c15ull);
}

MAYBE_UNUSED static uint64_t random_below(uint64_t *state, uint64_t below) {
    return (uint64_t)((unsigned __int128)random_next(state) * below >> 64);
}

/* ---- time, and how long operations took ---- */

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

/* By powers of two, each in 16 parts: to 6 percent. */
#define LATENCY_CELLS (64 * 16)

struct latencies {
    uint64_t cells[LATENCY_CELLS];
    uint64_t count;
    double sum_ns, sum_squares;
};

static unsigned latency_cell(uint64_t ns) {
    if (ns < 16) return (unsigned)ns;
    unsigned power = 63 - (unsigned)__builtin_clzll(ns);
    return (power - 3) * 16 + (unsigned)(ns >> (power - 4) & 15);
}

static double latency_of_cell(unsigned cell) {
    if (cell < 16) return cell;
    unsigned power = cell / 16 + 3;
    return (double)((16ull + cell % 16) << (power - 4)) * (1 + 0.5 / 16);
}

static void latency_note(struct latencies *latencies, uint64_t ns) {
    latencies->cells[latency_cell(ns)]++;
    latencies->count++;
    latencies->sum_ns += (double)ns;
    latencies->sum_squares += (double)ns * (double)ns;
}

static void latency_add(struct latencies *all, const struct latencies *one) {
    for (unsigned i = 0; i < LATENCY_CELLS; i++) all->cells[i] += one->cells[i];
    all->count += one->count;
    all->sum_ns += one->sum_ns;
    all->sum_squares += one->sum_squares;
}

static double latency_at_us(const struct latencies *latencies, double part) {
    uint64_t wanted = (uint64_t)(part * (double)latencies->count), seen = 0;
    for (unsigned i = 0; i < LATENCY_CELLS; i++) {
        seen += latencies->cells[i];
        if (seen > wanted) return latency_of_cell(i) / 1000;
    }
    return 0;
}

/* ---- what was read and written ---- */

struct counts {
    uint64_t device_read, device_written; /* bytes of the whole device that holds --flash */
    uint64_t major_faults;
    uint64_t cpu_ns;
    uint64_t flash_written, flash_relocated, written_objects; /* the library's */
    uint64_t faults, from_cache, from_flash;
};

static void count_device(struct counts *counts) {
    struct stat file;
    if (flag_flash[0] == '\0' || stat(flag_flash, &file) != 0) return;
    char path[64];
    dev_t device = S_ISBLK(file.st_mode) ? file.st_rdev : file.st_dev;
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u/stat", major(device), minor(device));
    FILE *from = fopen(path, "r");
    if (from == NULL) return;
    uint64_t found[7];
    int got = fscanf(from, "%" SCNu64 "%" SCNu64 "%" SCNu64 "%" SCNu64 "%" SCNu64 "%" SCNu64 "%" SCNu64, &found[0],
                     &found[1], &found[2], &found[3], &found[4], &found[5], &found[6]);
    fclose(from);
    if (got != 7) return;
    counts->device_read = found[2] * 512;
    counts->device_written = found[6] * 512;
}

static struct counts count_all(void) {
    struct counts counts = {0};
    count_device(&counts);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    counts.major_faults = (uint64_t)usage.ru_majflt;
    counts.cpu_ns = (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000ull +
                    (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000ull;
#ifndef PLAIN_MALLOC
    struct ssd_stats stats;
    if ((memory_kind == OPP || memory_kind == MP) && ssd_stats(&stats) == SSD_OK) {
        counts.flash_written = stats.flash_written_bytes;
        counts.flash_relocated = stats.flash_relocated_bytes;
        counts.written_objects = stats.written_objects;
        counts.faults = stats.faults;
        counts.from_cache = stats.from_cache;
        counts.from_flash = stats.from_flash;
    }
#endif
#ifdef DIRECT
    struct direct_stats direct;
    direct_stats(&direct);
    counts.flash_written = direct.flash_written_bytes;
    counts.flash_relocated = direct.flash_relocated_bytes;
    counts.written_objects = direct.written_objects;
    counts.from_cache = direct.from_cache;
    counts.from_flash = direct.from_flash;
#endif
    return counts;
}

/* Resident bytes of this process, of which of a kind ("VmRSS", "VmHWM", "RssAnon"), in MiB. */
static double resident_mb(const char *kind) {
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    double found = 0;
    size_t length = strlen(kind);
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, kind, length) == 0 && line[length] == ':') found = atof(line + length + 1) / 1024;
    if (status != NULL) fclose(status);
    return found;
}

/* ---- threads that repeat an operation ---- */

struct worker {
    unsigned number;
    uint64_t random;
    uint64_t operations; /* to do */
    uint64_t writes;     /* done, of those that are counted: the operation counts */
    uint64_t hits;       /* the program's own */
    struct latencies latencies;
    void (*operation)(struct worker *);
    pthread_t thread;
};

static void *work(void *argument) {
    struct worker *worker = argument;
    for (uint64_t i = 0; i < worker->operations; i++) {
        uint64_t begun = now_ns();
        worker->operation(worker);
        latency_note(&worker->latencies, now_ns() - begun);
    }
    return NULL;
}

struct measured {
    double seconds;
    uint64_t operations, writes, hits;
    struct latencies latencies;
    struct counts before, after;
};

/* `operations` of them in all, by --threads threads. */
static void repeat(void (*operation)(struct worker *), uint64_t operations, uint64_t round, struct measured *measured) {
    size_t threads = (size_t)flag_threads;
    struct worker *workers = must_have(calloc(threads, sizeof *workers));
    memset(measured, 0, sizeof *measured);
    measured->before = count_all();
    uint64_t begun = now_ns();
    for (size_t i = 0; i < threads; i++) {
        workers[i].number = (unsigned)i;
        workers[i].random = mixed((uint64_t)flag_seed * 1000003 + round * 1009 + i + 1);
        workers[i].operations = operations / threads + (i < operations % threads);
        workers[i].operation = operation;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) die("no thread can be started");
    }
    for (size_t i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        latency_add(&measured->latencies, &workers[i].latencies);
        measured->writes += workers[i].writes;
        measured->hits += workers[i].hits;
    }
    measured->seconds = (double)(now_ns() - begun) / 1e9;
    measured->operations = operations;
    measured->after = count_all();
    free(workers);
}

/* Warms up, and measures. */
MAYBE_UNUSED static void run(void (*operation)(struct worker *), struct measured *measured) {
    if (flag_warm_up > 0) repeat(operation, (uint64_t)flag_warm_up, 1, measured);
    repeat(operation, (uint64_t)flag_operations, 2, measured);
}

/* One line; `more` is JSON members of the program's own, each followed by a comma. */
MAYBE_UNUSED static void print_result(const char *program, const struct measured *m, const char *more) {
    const struct latencies *l = &m->latencies;
    double count = l->count > 0 ? (double)l->count : 1;
    double mean = l->sum_ns / count, square = l->sum_squares / count - mean * mean;
    const struct counts *a = &m->after, *b = &m->before;
    printf("{\"program\":\"%s\",\"memory\":\"%s\",%s", program, flag_memory, more);
    printf("\"threads\":%ld,\"operations\":%" PRIu64 ",\"writes\":%" PRIu64 ",\"hits\":%" PRIu64 ",", flag_threads,
           m->operations, m->writes, m->hits);
    printf("\"seconds\":%.6f,\"per_second\":%.1f,\"mean_us\":%.3f,\"deviation_us\":%.3f,", m->seconds,
           (double)m->operations / m->seconds, mean / 1000, sqrt(square > 0 ? square : 0) / 1000);
    printf("\"p50_us\":%.3f,\"p99_us\":%.3f,\"p999_us\":%.3f,", latency_at_us(l, 0.5), latency_at_us(l, 0.99),
           latency_at_us(l, 0.999));
    printf("\"device_read_bytes\":%" PRIu64 ",\"device_written_bytes\":%" PRIu64 ",", a->device_read - b->device_read,
           a->device_written - b->device_written);
    printf("\"major_faults\":%" PRIu64 ",\"cpu_seconds\":%.6f,", a->major_faults - b->major_faults,
           (double)(a->cpu_ns - b->cpu_ns) / 1e9);
    printf("\"flash_written_bytes\":%" PRIu64 ",\"flash_relocated_bytes\":%" PRIu64 ",\"written_objects\":%" PRIu64 ",",
           a->flash_written - b->flash_written, a->flash_relocated - b->flash_relocated,
           a->written_objects - b->written_objects);
    printf("\"faults\":%" PRIu64 ",\"from_cache\":%" PRIu64 ",\"from_flash\":%" PRIu64 ",", a->faults - b->faults,
           a->from_cache - b->from_cache, a->from_flash - b->from_flash);
    printf("\"resident_mb\":%.2f,\"resident_most_mb\":%.2f}\n", resident_mb("RssAnon"), resident_mb("VmHWM"));
}

#endif
