/* Objects on flash by get and put, with a cache in RAM; no pages, no faults. For measurements: see
 * heap/crates/direct/src/lib.rs. Any thread may call anything; calls for one object are ordered by
 * the caller. After a failure, -1, a line on standard error tells the reason.
 */
#ifndef DURAMEN_DIRECT_H
#define DURAMEN_DIRECT_H

#include <stddef.h>
#include <stdint.h>

/* Comes first, once. Objects have numbers below `objects`, and lengths within these bounds; objects
 * of one length take less RAM. 0, or -1. */
int direct_open(const char *flash_file, uint64_t flash_bytes, uint64_t ram_bytes, uint32_t objects,
                size_t object_bytes_min, size_t object_bytes_max);

/* Writes an object, which has no content yet or one of the same length. 0, or -1. */
int direct_put(uint32_t object, const void *bytes, size_t length);

/* Reads an object of exactly this length. 1; 0: it does not exist; or -1. */
int direct_get(uint32_t object, void *into, size_t length);

/* Frees an object; its number may be used again. 0, or -1. */
int direct_remove(uint32_t object);

struct direct_stats {
    uint64_t flash_written_bytes;
    uint64_t flash_relocated_bytes; /* of that: by the collector */
    uint64_t written_objects;       /* that left the cache for flash */
    uint64_t from_cache, from_flash;
};
void direct_stats(struct direct_stats *stats);

#endif
