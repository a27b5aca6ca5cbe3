/* The index of a Web cache after HashCache [Badam11 §5.5]: an array of sets of 128 bytes, of 16 elements each; no pointers. An element is
 * a fingerprint, its place in the order of use, and where the cached thing lies. With objects of 128 bytes memory holds only sets that
 * are used, where with pages it holds 31 neighbours with each.
 *
 * With --checkpoint the index outlives the program; --restore goes on with it.
 */
#include "tool.h"

enum { ELEMENTS = 16, LOCKS = 1024 };

static long flag_sets = 100000, flag_working_sets, flag_fill = 8, flag_find_working_sets;
static const char *flag_checkpoint = "", *flag_restore = "";

/* `location` is the number of the cached thing, from which everything else follows: so damage is noticed. 0: no element. */
struct element {
    uint32_t location;
    uint32_t fingerprint : 24;
    uint32_t age : 8; /* 0: used last */
};

struct set {
    struct element elements[ELEMENTS];
};

static char *sets;
static size_t stride;
static pthread_mutex_t locks[LOCKS];

/* One to one, so that the index can be filled in order of its sets. */
static uint32_t hash_of(uint32_t location) {
    uint32_t x = location;
    x = (x ^ x >> 16) * 0x85ebca6b;
    x = (x ^ x >> 13) * 0xc2b2ae35;
    return x ^ x >> 16;
}

static uint32_t location_of(uint32_t hash) {
    uint32_t x = hash;
    x = (x ^ x >> 16) * 0x7ed1b41d;
    x ^= x >> 13 ^ x >> 26;
    x *= 0xa5cb9243;
    return x ^ x >> 16;
}

static size_t set_of(uint32_t hash) {
    return (size_t)((uint64_t)hash * (uint64_t)flag_sets >> 32);
}

static uint32_t fingerprint_of(uint32_t location) {
    return mixed(location) & 0xffffff;
}

/* The element with this number, of those that the index was filled with: in order of sets. */
static uint32_t filled_with(uint64_t number) {
    return location_of((uint32_t)((number << 32) / ((uint64_t)flag_sets * (uint64_t)flag_fill)));
}

/* The element becomes the one that was used last. */
static void use(struct set *set, unsigned nth) {
    unsigned before = set->elements[nth].age;
    for (unsigned i = 0; i < ELEMENTS; i++)
        if (set->elements[i].location != 0 && set->elements[i].age < before) set->elements[i].age++;
    set->elements[nth].age = 0;
}

/* The set, locked, and looked over: whatever it holds was put there. */
static struct set *open_set(size_t number) {
    struct set *set = (struct set *)(sets + number * stride);
    pthread_mutex_lock(&locks[number % LOCKS]);
    for (unsigned i = 0; i < ELEMENTS; i++) {
        const struct element *element = &set->elements[i];
        if (element->location == 0) continue;
        if (set_of(hash_of(element->location)) != number || fingerprint_of(element->location) != element->fingerprint)
            die("set %zu holds an element that was never put there", number);
    }
    return set;
}

static void close_set(size_t number) {
    pthread_mutex_unlock(&locks[number % LOCKS]);
}

/* The location that the index knows for something with this hash and fingerprint; 0: none. */
static uint32_t look_up(uint32_t hash, uint32_t fingerprint) {
    size_t number = set_of(hash);
    struct set *set = open_set(number);
    uint32_t found = 0;
    for (unsigned i = 0; i < ELEMENTS && found == 0; i++)
        if (set->elements[i].location != 0 && set->elements[i].fingerprint == fingerprint) {
            found = set->elements[i].location;
            if (set->elements[i].age != 0) use(set, i);
        }
    close_set(number);
    return found;
}

/* In the place of the one that was not used for longest, if the set is full. */
static void insert(uint32_t location) {
    size_t number = set_of(hash_of(location));
    struct set *set = open_set(number);
    unsigned place = 0;
    for (unsigned i = 0; i < ELEMENTS; i++) {
        const struct element *element = &set->elements[i];
        if (element->location == location || element->location == 0) {
            place = i;
            break;
        }
        if (element->age > set->elements[place].age) place = i;
    }
    if (set->elements[place].location != location) {
        set->elements[place] = (struct element){.location = location, .fingerprint = fingerprint_of(location), .age = ELEMENTS};
    }
    use(set, place);
    close_set(number);
}

static void touch(struct worker *worker) {
    if ((long)random_below(&worker->random, 100) < flag_writes) {
        uint32_t location = (uint32_t)random_next(&worker->random);
        if (location != 0) insert(location);
        worker->writes++;
        return;
    }
    uint64_t set = random_below(&worker->random, (uint64_t)flag_sets);
    if (flag_working_sets > 0) { /* as far from each other as can be */
        uint64_t nth = random_below(&worker->random, (uint64_t)flag_working_sets);
        set = (uint64_t)((unsigned __int128)nth * (uint64_t)flag_sets / (uint64_t)flag_working_sets);
    }
    uint64_t number = set * (uint64_t)flag_fill + random_below(&worker->random, (uint64_t)flag_fill);
    uint32_t location = filled_with(number);
    worker->hits += look_up(hash_of(location), fingerprint_of(location)) == location;
}

/* Of a hundred lookups in so many sets, how many have to be read from flash or swap, once memory is warm. */
static double misses(long working_sets, struct measured *measured) {
    flag_working_sets = working_sets;
    flag_writes = 0;
    uint64_t lookups = (uint64_t)working_sets * 4 < 20000 ? 20000 : (uint64_t)working_sets * 4;
    repeat(touch, 3 * lookups, (uint64_t)working_sets, measured); /* a set that was seen once is not worth keeping yet */
    repeat(touch, lookups, (uint64_t)working_sets + 1, measured);
    const struct counts *a = &measured->after, *b = &measured->before;
    return 100.0 * (double)(a->from_flash - b->from_flash + a->major_faults - b->major_faults) / (double)lookups;
}

/* [Badam11 Figure 6]: doubles the working set until it does not fit, then halves the step four times. */
static long find_working_sets(struct measured *measured) {
    long fits = 0, step = 128;
    while (fits + step <= flag_sets && misses(fits + step, measured) < 1) {
        fits += step;
        step = fits;
    }
    for (int nth = 0; nth < 4; nth++) {
        step /= 2;
        if (step > 0 && fits + step <= flag_sets && misses(fits + step, measured) < 1) fits += step;
    }
    return fits;
}

#ifndef PLAIN_MALLOC
static double restored_seconds, checkpoint_seconds;

static void restore(void) {
    uint64_t begun = now_ns();
    if (ssd_restore(flag_restore) != SSD_OK) die("restoring %s: %s", flag_restore, ssd_error_message());
    sets = ssd_root(0);
    stride = (size_t)ssd_root(1);
    flag_sets = (long)ssd_root(2);
    flag_fill = (long)ssd_root(3);
    restored_seconds = (double)(now_ns() - begun) / 1e9;
}

static void checkpoint(void) {
    uint64_t begun = now_ns();
    ssd_set_root(0, sets);
    ssd_set_root(1, (void *)stride);
    ssd_set_root(2, (void *)flag_sets);
    ssd_set_root(3, (void *)flag_fill);
    if (ssd_checkpoint(flag_checkpoint) != SSD_OK) die("the checkpoint: %s", ssd_error_message());
    checkpoint_seconds = (double)(now_ns() - begun) / 1e9;
}
#endif

int main(int argc, char **argv) {
    static const struct flag flags[] = {
        {"--sets", "sets of 128 bytes (default 100000)", &flag_sets, NULL, 1, UINT32_MAX},
        {"--fill", "elements that are inserted first, for each set (default 8)", &flag_fill, NULL, 1, 1000},
        {"--working-sets", "lookups go to so many sets alone, far from each other (default: to all)", &flag_working_sets, NULL, 1, UINT32_MAX},
        {"--find-working-sets", "1: find the most sets of which lookups miss memory in less than one of a hundred (default 0)",
         &flag_find_working_sets, NULL, 0, 1},
        {"--checkpoint", "a file: the index is left there for a later life", NULL, &flag_checkpoint, 0, 0},
        {"--restore", "a file: goes on with the index that was left there", NULL, &flag_restore, 0, 0},
    };
    read_flags(argc, argv, "The index of a Web cache: lookups, and inserts (--writes) in place of what was used least lately.", flags,
               sizeof flags / sizeof *flags);
    if (flag_working_sets > flag_sets) die("--working-sets is more than --sets");
    open_memory((uint64_t)flag_sets * sizeof(struct set));
    for (size_t i = 0; i < LOCKS; i++) pthread_mutex_init(&locks[i], NULL);
    uint64_t begun = now_ns();
    if (flag_restore[0] == '\0') {
        sets = new_array((size_t)flag_sets, sizeof(struct set), &stride);
        uint64_t all = (uint64_t)flag_sets * (uint64_t)flag_fill;
        if (all > UINT32_MAX) die("an index of at most 2^32 elements is filled, not of %ld times %ld", flag_sets, flag_fill);
        for (uint64_t number = 0; number < all; number++)
            if (filled_with(number) != 0) insert(filled_with(number));
    }
#ifndef PLAIN_MALLOC
    else restore();
#endif
    double filling = (double)(now_ns() - begun) / 1e9;
    static struct measured measured;
    long most = 0;
    if (flag_find_working_sets) most = find_working_sets(&measured);
    else run(touch, &measured);
    char more[512];
    int used = snprintf(more, sizeof more, "\"sets\":%ld,\"working_sets\":%ld,\"working_sets_most\":%ld,\"fill_seconds\":%.3f,", flag_sets,
                        flag_working_sets, most, filling);
#ifndef PLAIN_MALLOC
    if (flag_checkpoint[0] != '\0') checkpoint();
    struct stat file = {0};
    stat(flag_checkpoint[0] != '\0' ? flag_checkpoint : flag_restore, &file);
    snprintf(more + used, sizeof more - (size_t)used, "\"restore_seconds\":%.6f,\"checkpoint_seconds\":%.6f,\"checkpoint_bytes\":%ld,",
             restored_seconds, checkpoint_seconds, (long)file.st_size);
#else
    (void)used;
    if (flag_checkpoint[0] != '\0' || flag_restore[0] != '\0') die("--checkpoint and --restore need the library");
#endif
    print_result("hashcache", &measured, more);
    return 0;
}
