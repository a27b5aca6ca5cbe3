/* Random reads and writes of a large array [Badam11 §5.1, Figure 3]: by ssd_oalloc, ssd_malloc, malloc (which swaps, if memory is short),
 * a mapped file, or as plain reads of the device, which is what all the others can reach at best.
 *
 * Each element holds its number and a count of its writes, so that a wrong element is noticed.
 */
#define _GNU_SOURCE
#include "tool.h"

#include <stdatomic.h>
#include <sys/mman.h>

static long flag_size = 128, flag_data_mb = 64, flag_fill = 1;
static const char *flag_write_steps = "";
static char *array;
static size_t stride, elements;
static int device = -1;
static __thread char *page;

struct element {
    uint64_t number;
    _Atomic uint64_t writes;
};

static void touch(struct worker *worker) {
    size_t number = random_below(&worker->random, elements);
    int is_write = (long)random_below(&worker->random, 100) < flag_writes;
    struct element *element = (struct element *)(array + number * stride);
    if (is_write) {
        atomic_fetch_add_explicit(&element->writes, 1, memory_order_relaxed);
        worker->writes++;
    }
    if (element->number != number) die("element %zu says that it is element %" PRIu64, number, element->number);
}

/* What a miss costs at least: so many bytes, rounded to sectors. */
static void read_device(struct worker *worker) {
    size_t bytes = ((size_t)flag_size + 511) / 512 * 512;
    uint64_t sectors = ((uint64_t)flag_data_mb << 20) / 512 - bytes / 512;
    if (page == NULL && posix_memalign((void **)&page, 4096, bytes) != 0) die("no memory");
    off_t at = (off_t)(random_below(&worker->random, sectors) * 512);
    if (pread(device, page, bytes, at) != (ssize_t)bytes) die("reading the device: %s", strerror(errno));
}

static void open_file(int direct) {
    if (flag_flash[0] == '\0') die("--flash FILE is needed with --memory %s", flag_memory);
    device = open(flag_flash, O_RDWR | O_CREAT | (direct ? O_DIRECT : 0), 0600);
    off_t bytes = (off_t)flag_data_mb << 20;
    if (device < 0 || (lseek(device, 0, SEEK_END) < bytes && ftruncate(device, bytes) != 0))
        die("%s: %s", flag_flash, strerror(errno));
}

static void map_file(void) {
    open_file(0);
    size_t bytes = (size_t)flag_data_mb << 20;
    array = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, device, 0);
    if (array == MAP_FAILED) die("mapping %s: %s", flag_flash, strerror(errno));
    if (madvise(array, bytes, MADV_RANDOM) != 0) die("madvise: %s", strerror(errno));
    stride = (size_t)flag_size;
}

int main(int argc, char **argv) {
    static const struct flag flags[] = {
        {"--size", "bytes of an element (default 128)", &flag_size, NULL, sizeof(struct element), 1 << 20},
        {"--data-mb", "MiB of elements (default 64)", &flag_data_mb, NULL, 1, 1l << 30},
        {"--write-steps", "percents like 0,50,100: measures with each of them, one line of JSON each", NULL, &flag_write_steps, 0, 0},
        {"--fill", "0: the mapped file or device is filled already (default 1)", &flag_fill, NULL, 0, 1},
    };
    read_flags(argc, argv, "Random reads and writes of a large array. --memory also knows mmap (of --flash) and device (plain reads).",
               flags, sizeof flags / sizeof *flags);
    elements = ((size_t)flag_data_mb << 20) / (size_t)flag_size;
    static struct measured filled, measured;
    void (*operation)(struct worker *) = touch;
    if (strcmp(flag_memory, "device") == 0) {
        open_file(1);
        memory_kind = OTHER;
        operation = read_device;
    } else if (strcmp(flag_memory, "mmap") == 0) {
        memory_kind = OTHER;
        map_file();
    } else {
        open_memory((uint64_t)flag_data_mb << 20);
        array = new_array(elements, (size_t)flag_size, &stride);
        flag_fill = 1;
    }
    uint64_t begun = now_ns();
    if (array != NULL && flag_fill)
        for (size_t number = 0; number < elements; number++) ((struct element *)(array + number * stride))->number = number;
    if (memory_kind == OTHER && array != NULL && msync(array, (size_t)flag_data_mb << 20, MS_SYNC) != 0) die("msync: %s", strerror(errno));
    filled.seconds = (double)(now_ns() - begun) / 1e9;
    const char *step = flag_write_steps;
    do {
        char *end = (char *)step;
        if (*step != '\0') flag_writes = strtol(step, &end, 10);
        if (*step != '\0' && (end == step || flag_writes < 0 || flag_writes > 100 || (*end != '\0' && *end != ',')))
            die("--write-steps are percents with commas between them, not %s", flag_write_steps);
        step = *end == ',' ? end + 1 : end;
        run(operation, &measured);
        char more[256];
        snprintf(more, sizeof more, "\"size\":%ld,\"elements\":%zu,\"write_percent\":%ld,\"fill_seconds\":%.3f,", flag_size, elements,
                 flag_writes, filled.seconds);
        print_result("array", &measured, more);
        fflush(stdout);
    } while (*step != '\0');
    return 0;
}
