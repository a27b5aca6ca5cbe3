/* A packet cache, as network accelerators have [Badam11 §5.3]: packets are found by the SHA-1 of their contents; the least recently used
 * ones leave. The index and the order of use are in malloc's memory; each packet is an object of its own. Built with -DDIRECT, packets
 * are put and got by direct calls instead (Figure 5(a)).
 *
 * A packet that is found is compared with what was looked for, byte by byte.
 */
#include "tool.h"

enum { HASH_BYTES = 20, SHARDS = 64, PACKET_BYTES_MOST = 64 << 10 };

static long flag_packets = 20000, flag_least = 100, flag_most = 1500;

/* ---- SHA-1 (FIPS 180-4) ---- */

static uint32_t rotated(uint32_t word, int by) {
    return word << by | word >> (32 - by);
}

static void sha1_block(uint32_t state[5], const unsigned char *block) {
    uint32_t w[80];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 80; i++) w[i] = rotated(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (int i = 0; i < 80; i++) {
        uint32_t f, k;
        if (i < 20) f = (b & c) | (~b & d), k = 0x5a827999;
        else if (i < 40) f = b ^ c ^ d, k = 0x6ed9eba1;
        else if (i < 60) f = (b & c) | (b & d) | (c & d), k = 0x8f1bbcdc;
        else f = b ^ c ^ d, k = 0xca62c1d6;
        uint32_t next = rotated(a, 5) + f + e + k + w[i];
        e = d, d = c, c = rotated(b, 30), b = a, a = next;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
}

static void sha1(const unsigned char *bytes, size_t length, unsigned char hash[HASH_BYTES]) {
    uint32_t state[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    size_t done = 0;
    for (; length - done >= 64; done += 64) sha1_block(state, bytes + done);
    unsigned char last[128] = {0};
    size_t left = length - done, blocks = left < 56 ? 1 : 2;
    memcpy(last, bytes + done, left);
    last[left] = 0x80;
    for (int i = 0; i < 8; i++) last[blocks * 64 - 1 - (size_t)i] = (unsigned char)((uint64_t)length * 8 >> (8 * i));
    for (size_t i = 0; i < blocks; i++) sha1_block(state, last + 64 * i);
    for (int i = 0; i < HASH_BYTES; i++) hash[i] = (unsigned char)(state[i / 4] >> (8 * (3 - i % 4)));
}

struct entry {
    unsigned char hash[HASH_BYTES];
    uint32_t length;
#ifdef DIRECT
    uint32_t packet; /* the object's number */
#else
    unsigned char *packet;
#endif
    struct entry *next; /* in its bucket */
    struct entry *newer, *older;
};

/* A part of the cache, by the hash: its own buckets and order of use, and a lock. */
struct shard {
    pthread_mutex_t lock;
    struct entry **buckets;
    size_t buckets_count, entries, most;
    size_t spare; /* number of an object that left; `most`: none */
    struct entry *newest, *oldest;
    uint64_t evicted;
};

static struct shard shards[SHARDS];

static struct shard *shard_of(const unsigned char *hash) {
    return &shards[hash[0] % SHARDS];
}

static struct entry **bucket_of(struct shard *shard, const unsigned char *hash) {
    uint64_t number;
    memcpy(&number, hash + 1, sizeof number);
    return &shard->buckets[number % shard->buckets_count];
}

/* ---- a packet as an object ---- */

#ifdef DIRECT

static void open_objects(uint64_t data_bytes) {
    if (flag_flash[0] == '\0') die("--flash FILE is needed");
    uint64_t each = ((uint64_t)flag_packets + SHARDS - 1) / SHARDS;
    if (direct_open(flag_flash, flash_bytes(data_bytes), (uint64_t)flag_ram_mb << 20, (uint32_t)(SHARDS * each), (size_t)flag_least,
                    (size_t)flag_most) != 0)
        exit(1);
}

/* A shard's packets have numbers of their own; the one of a packet that left is `spare`. */
static void make_object(struct shard *shard, struct entry *entry, const unsigned char *packet) {
    size_t number = shard->entries < shard->spare ? shard->entries : shard->spare;
    entry->packet = (uint32_t)((size_t)(shard - shards) * shard->most + number);
    if (direct_put(entry->packet, packet, entry->length) != 0) exit(1);
}

static int is_object(const struct entry *entry, const unsigned char *packet) {
    static __thread unsigned char copy[PACKET_BYTES_MOST];
    int found = direct_get(entry->packet, copy, entry->length);
    if (found < 0) exit(1);
    return found && memcmp(copy, packet, entry->length) == 0;
}

static void drop_object(struct shard *shard, struct entry *entry) {
    shard->spare = entry->packet % shard->most;
    if (direct_remove(entry->packet) != 0) exit(1);
}

#else

static void open_objects(uint64_t data_bytes) {
    open_memory(data_bytes);
}

static void make_object(struct shard *shard, struct entry *entry, const unsigned char *packet) {
    (void)shard;
    entry->packet = new_object(entry->length);
    memcpy(entry->packet, packet, entry->length);
}

static int is_object(const struct entry *entry, const unsigned char *packet) {
    return memcmp(entry->packet, packet, entry->length) == 0;
}

static void drop_object(struct shard *shard, struct entry *entry) {
    (void)shard;
    delete_object(entry->packet);
}

#endif

/* ---- the cache ---- */

static void open_cache(void) {
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *shard = &shards[i];
        pthread_mutex_init(&shard->lock, NULL);
        shard->most = ((size_t)flag_packets + SHARDS - 1) / SHARDS;
        shard->spare = shard->most;
        shard->buckets_count = shard->most + 1;
        shard->buckets = must_have(calloc(shard->buckets_count, sizeof *shard->buckets));
    }
}

static void unlink_use(struct shard *shard, struct entry *entry) {
    *(entry->newer != NULL ? &entry->newer->older : &shard->newest) = entry->older;
    *(entry->older != NULL ? &entry->older->newer : &shard->oldest) = entry->newer;
}

static void link_use(struct shard *shard, struct entry *entry) {
    entry->newer = NULL;
    entry->older = shard->newest;
    *(shard->newest != NULL ? &shard->newest->newer : &shard->oldest) = entry;
    shard->newest = entry;
}

static struct entry *find(struct shard *shard, const unsigned char *hash) {
    struct entry *entry = *bucket_of(shard, hash);
    while (entry != NULL && memcmp(entry->hash, hash, HASH_BYTES) != 0) entry = entry->next;
    return entry;
}

static void evict_oldest(struct shard *shard) {
    struct entry *entry = shard->oldest;
    struct entry **at = bucket_of(shard, entry->hash);
    while (*at != entry) at = &(*at)->next;
    *at = entry->next;
    unlink_use(shard, entry);
    shard->entries--;
    shard->evicted++;
    drop_object(shard, entry);
    free(entry);
}

/* True: the packet is in the cache, and is what was looked for. */
static int get(const unsigned char *hash, const unsigned char *packet, size_t length) {
    struct shard *shard = shard_of(hash);
    pthread_mutex_lock(&shard->lock);
    struct entry *entry = find(shard, hash);
    if (entry != NULL) {
        if (entry->length != length || !is_object(entry, packet)) die("a packet is not what it was");
        unlink_use(shard, entry);
        link_use(shard, entry);
    }
    pthread_mutex_unlock(&shard->lock);
    return entry != NULL;
}

static void put(const unsigned char *hash, const unsigned char *packet, size_t length) {
    struct shard *shard = shard_of(hash);
    pthread_mutex_lock(&shard->lock);
    if (find(shard, hash) == NULL) {
        while (shard->entries >= shard->most) evict_oldest(shard);
        struct entry *entry = must_have(calloc(1, sizeof *entry));
        memcpy(entry->hash, hash, HASH_BYTES);
        entry->length = (uint32_t)length;
        make_object(shard, entry, packet);
        struct entry **bucket = bucket_of(shard, hash);
        entry->next = *bucket;
        *bucket = entry;
        link_use(shard, entry);
        shard->entries++;
    }
    pthread_mutex_unlock(&shard->lock);
}

/* ---- the load ---- */

static _Atomic uint64_t packets_made;
static __thread unsigned char content[PACKET_BYTES_MOST + 8];

/* The packet with this number, and its length: as random as any, but always the same. */
static size_t make_packet(uint64_t number) {
    uint64_t state = mixed(number + 1);
    size_t length = (size_t)flag_least + random_below(&state, (uint64_t)(flag_most - flag_least) + 1);
    for (size_t at = 0; at < length; at += 8) {
        uint64_t word = random_next(&state);
        memcpy(content + at, &word, sizeof word);
    }
    return length;
}

static void touch(struct worker *worker) {
    unsigned char hash[HASH_BYTES];
    if ((long)random_below(&worker->random, 100) < flag_writes) {
        size_t length = make_packet(packets_made++);
        sha1(content, length, hash);
        put(hash, content, length);
        worker->writes++;
        return;
    }
    uint64_t newest = packets_made, among = (uint64_t)flag_packets < newest ? (uint64_t)flag_packets : newest;
    size_t length = make_packet(newest - 1 - random_below(&worker->random, among));
    sha1(content, length, hash);
    worker->hits += (uint64_t)get(hash, content, length);
}

int main(int argc, char **argv) {
    static const struct flag flags[] = {
        {"--packets", "packets that the cache holds (default 20000)", &flag_packets, NULL, SHARDS, 1l << 32},
        {"--least", "bytes of the shortest packet (default 100)", &flag_least, NULL, 1, PACKET_BYTES_MOST},
        {"--most", "bytes of the longest packet (default 1500)", &flag_most, NULL, 1, PACKET_BYTES_MOST},
    };
    read_flags(argc, argv, "A cache of packets by their SHA-1: lookups, and inserts (--writes), each of which evicts one.", flags,
               sizeof flags / sizeof *flags);
    if (flag_least > flag_most) die("--least is more than --most");
    unsigned char hash[HASH_BYTES];
    sha1((const unsigned char *)"abc", 3, hash);
    if (memcmp(hash, "\xa9\x99\x3e\x36\x47\x06\x81\x6a\xba\x3e\x25\x71\x78\x50\xc2\x6c\x9c\xd0\xd8\x9d", HASH_BYTES) != 0)
        die("this SHA-1 is none");
    open_objects((uint64_t)flag_packets * (uint64_t)(flag_most + 64));
    open_cache();
    uint64_t begun = now_ns();
    while (packets_made < (uint64_t)flag_packets) {
        size_t length = make_packet(packets_made++);
        sha1(content, length, hash);
        put(hash, content, length);
    }
    double filling = (double)(now_ns() - begun) / 1e9;
    static struct measured measured;
    run(touch, &measured);
    uint64_t entries = 0, evicted = 0;
    for (size_t i = 0; i < SHARDS; i++) entries += shards[i].entries, evicted += shards[i].evicted;
    char more[256];
    snprintf(more, sizeof more,
             "\"packets\":%" PRIu64 ",\"evicted\":%" PRIu64 ",\"least\":%ld,\"most\":%ld,\"fill_seconds\":%.3f,", entries, evicted,
             flag_least, flag_most, filling);
    print_result("packets", &measured, more);
    return 0;
}
