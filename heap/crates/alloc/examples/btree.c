/* A B+tree whose nodes are objects of their own [Badam11 §5.4]: at most 25 keys in a node, 328 bytes with keys of 4 bytes and 1.8 KB
 * with keys of 64. What differs from a tree in malloc's memory is new_object and delete_object (tool.h).
 *
 * A tree of --keys keys is filled by one thread; then threads look keys up and replace their values, which changes no node but the leaf's
 * value: one store of eight bytes.
 */
#include "tool.h"

#include <stdatomic.h>

enum { KEYS_MOST = 25, KEY_BYTES_MOST = 64, LEVELS_MOST = 24 };

static long flag_keys = 200000, flag_key_bytes = 8, flag_random_order, flag_check;

/* A node: this, then KEYS_MOST keys, then their values (a leaf) or KEYS_MOST + 1 children. */
struct node {
    uint16_t keys;
    uint16_t is_leaf;
    uint32_t unused;
    struct node *next; /* the leaf behind this one */
};

static struct node *root;
static size_t key_bytes, slots_at;

static unsigned char *key_of(struct node *node, unsigned nth) {
    return (unsigned char *)(node + 1) + nth * key_bytes;
}

/* Values of a leaf. */
static _Atomic uint64_t *value_of(struct node *leaf, unsigned nth) {
    return (_Atomic uint64_t *)((char *)leaf + slots_at) + nth;
}

/* Child `nth` holds keys from key nth - 1 on, up to but without key nth. */
static struct node **child_of(struct node *inner, unsigned nth) {
    return (struct node **)((char *)inner + slots_at) + nth;
}

static struct node *new_node(int is_leaf) {
    struct node *node = new_object(slots_at + (KEYS_MOST + 1) * sizeof(uint64_t));
    node->is_leaf = (uint16_t)is_leaf;
    return node;
}

/* Keys that are not more than `key`. */
static unsigned not_above(struct node *node, const unsigned char *key) {
    unsigned low = 0, high = node->keys;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (memcmp(key_of(node, middle), key, key_bytes) <= 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

static _Atomic uint64_t *find(const unsigned char *key) {
    struct node *node = root;
    while (!node->is_leaf) node = *child_of(node, not_above(node, key));
    unsigned nth = not_above(node, key);
    if (nth == 0 || memcmp(key_of(node, nth - 1), key, key_bytes) != 0) return NULL;
    return value_of(node, nth - 1);
}

/* Puts a key at `nth` of a node with room, with its value (a leaf) or the child behind it. */
static void put(struct node *node, unsigned nth, const unsigned char *key, uint64_t value, struct node *child) {
    unsigned behind = node->keys - nth;
    memmove(key_of(node, nth + 1), key_of(node, nth), behind * key_bytes);
    memcpy(key_of(node, nth), key, key_bytes);
    if (node->is_leaf) {
        memmove((void *)value_of(node, nth + 1), (void *)value_of(node, nth), behind * sizeof value);
        *value_of(node, nth) = value;
    } else {
        memmove(child_of(node, nth + 2), child_of(node, nth + 1), behind * sizeof child);
        *child_of(node, nth + 1) = child;
    }
    node->keys++;
}

/* Moves the keys from `middle` on to a new node, which is returned; `up` becomes the key that tells them apart. At the end of the tree,
 * where ascending keys come, only the last key moves, so that leaves are full. */
static struct node *split(struct node *node, unsigned at, unsigned char *up) {
    unsigned middle = at == KEYS_MOST ? KEYS_MOST - 1 : KEYS_MOST / 2;
    struct node *right = new_node(node->is_leaf);
    unsigned skipped = node->is_leaf ? 0 : 1; /* an inner node's middle key goes up and stays in neither */
    unsigned moved = node->keys - middle - skipped;
    memcpy(up, key_of(node, middle), key_bytes);
    memcpy(key_of(right, 0), key_of(node, middle + skipped), moved * key_bytes);
    if (node->is_leaf) {
        memcpy((void *)value_of(right, 0), (void *)value_of(node, middle), moved * sizeof(uint64_t));
        right->next = node->next;
        node->next = right;
    } else {
        memcpy(child_of(right, 0), child_of(node, middle + 1), (moved + 1) * sizeof(struct node *));
    }
    right->keys = (uint16_t)moved;
    node->keys = (uint16_t)middle;
    return right;
}

/* Inserts a key that is not there. */
static void insert(const unsigned char *key, uint64_t value) {
    struct node *path[LEVELS_MOST];
    unsigned depth = 0;
    struct node *node = root;
    while (!node->is_leaf) {
        if (depth == LEVELS_MOST) die("the tree is deeper than %d levels", LEVELS_MOST);
        path[depth++] = node;
        node = *child_of(node, not_above(node, key));
    }
    unsigned char rising[KEY_BYTES_MOST], up[KEY_BYTES_MOST];
    memcpy(rising, key, key_bytes);
    struct node *child = NULL;
    for (;;) {
        unsigned at = not_above(node, rising);
        if (node->keys < KEYS_MOST) {
            put(node, at, rising, value, child);
            return;
        }
        struct node *right = split(node, at, up);
        struct node *into = memcmp(rising, up, key_bytes) < 0 ? node : right;
        put(into, not_above(into, rising), rising, value, child);
        memcpy(rising, up, key_bytes);
        child = right;
        if (depth == 0) {
            struct node *top = new_node(0);
            *child_of(top, 0) = node;
            put(top, 0, rising, 0, child);
            root = top;
            return;
        }
        node = path[--depth];
    }
}

/* The key with this number: big-endian, so that they ascend; longer ones go on with bytes of its own. */
static void make_key(uint64_t number, unsigned char *key) {
    size_t length = key_bytes < 8 ? key_bytes : 8;
    for (size_t i = 0; i < length; i++) key[i] = (unsigned char)(number >> (8 * (length - 1 - i)));
    for (size_t i = 8; i < key_bytes; i++) key[i] = (unsigned char)(mixed(number) >> (i % 8 * 8));
}

/* A value says whose it is, and how often it was replaced. */
static void touch(struct worker *worker) {
    uint64_t number = random_below(&worker->random, (uint64_t)flag_keys);
    unsigned char key[KEY_BYTES_MOST];
    make_key(number, key);
    _Atomic uint64_t *value = find(key);
    if (value == NULL) die("key %" PRIu64 " is not found", number);
    if ((long)random_below(&worker->random, 100) < flag_writes) {
        atomic_fetch_add_explicit(value, 1, memory_order_relaxed);
        worker->writes++;
    }
    if (*value >> 24 != number) die("key %" PRIu64 " has the value of key %" PRIu64, number, (uint64_t)(*value >> 24));
    worker->hits++;
}

/* All leaves, one after another: every key once, in order. */
static void check(void) {
    struct node *leaf = root;
    while (!leaf->is_leaf) leaf = *child_of(leaf, 0);
    uint64_t number = 0;
    for (; leaf != NULL; leaf = leaf->next)
        for (unsigned nth = 0; nth < leaf->keys; nth++, number++) {
            unsigned char key[KEY_BYTES_MOST];
            make_key(number, key);
            if (memcmp(key, key_of(leaf, nth), key_bytes) != 0 || *value_of(leaf, nth) >> 24 != number)
                die("key %" PRIu64 " is not where it should be", number);
        }
    if (number != (uint64_t)flag_keys) die("%" PRIu64 " keys of %ld are there", number, flag_keys);
}

static uint64_t delete_tree(struct node *node) {
    uint64_t deleted = 1;
    if (!node->is_leaf)
        for (unsigned nth = 0; nth <= node->keys; nth++) deleted += delete_tree(*child_of(node, nth));
    delete_object(node);
    return deleted;
}

int main(int argc, char **argv) {
    static const struct flag flags[] = {
        {"--keys", "keys in the tree (default 200000)", &flag_keys, NULL, 1, 1l << 38},
        {"--key-bytes", "bytes of a key, from 4 to 64 (default 8)", &flag_key_bytes, NULL, 4, KEY_BYTES_MOST},
        {"--random-order", "1: keys are inserted in no order (default 0)", &flag_random_order, NULL, 0, 1},
        {"--check", "1: look at all keys at the end, and delete the tree (default 0)", &flag_check, NULL, 0, 1},
    };
    read_flags(argc, argv, "A B+tree: lookups, and replaced values.", flags, sizeof flags / sizeof *flags);
    if (flag_key_bytes == 4 && flag_keys > UINT32_MAX) die("with keys of 4 bytes there are at most 2^32");
    key_bytes = (size_t)flag_key_bytes;
    slots_at = (sizeof(struct node) + KEYS_MOST * key_bytes + 7) / 8 * 8;
    size_t node_bytes = slots_at + (KEYS_MOST + 1) * sizeof(uint64_t);
    open_memory((uint64_t)flag_keys * 2 * node_bytes / KEYS_MOST);
    root = new_node(1);
    uint64_t begun = now_ns();
    uint64_t step = 1; /* prime to the number of keys */
    if (flag_random_order)
        for (step = (uint64_t)((double)flag_keys * 0.618) | 1; step > 1; step -= 2) {
            uint64_t a = (uint64_t)flag_keys, b = step;
            while (b != 0) {
                uint64_t left = a % b;
                a = b;
                b = left;
            }
            if (a == 1) break;
        }
    for (uint64_t i = 0, number = 0; i < (uint64_t)flag_keys; i++, number = (number + step) % (uint64_t)flag_keys) {
        unsigned char key[KEY_BYTES_MOST];
        make_key(number, key);
        insert(key, number << 24);
    }
    double filling = (double)(now_ns() - begun) / 1e9;
    static struct measured measured;
    run(touch, &measured);
    uint64_t nodes = 0;
    if (flag_check) {
        check();
        nodes = delete_tree(root);
    }
    char more[256];
    snprintf(more, sizeof more, "\"keys\":%ld,\"key_bytes\":%ld,\"node_bytes\":%zu,\"fill_seconds\":%.3f,\"deleted_nodes\":%" PRIu64 ",",
             flag_keys, flag_key_bytes, node_bytes, filling, nodes);
    print_result("btree", &measured, more);
    return 0;
}
