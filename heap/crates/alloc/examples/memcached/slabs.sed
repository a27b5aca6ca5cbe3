# memcached's slabs, 11 lines: chunks are objects of their own (ssd_oalloc); with -DSLABS_BY_PAGES they lie beside each other (ssd_malloc).
/^#include "memcached.h"/a\
#include <duramen_alloc.h>\
#ifdef SLABS_BY_PAGES\
#define new_slab(count, size) ssd_calloc(count, size)\
#define from_chunk_to_chunk(size) (size)\
#else\
#define new_slab(count, size) ssd_oalloc(count, size)\
#define from_chunk_to_chunk(size) ssd_stride(size)\
#endif
/^static void split_slab_page_into_freelist(char/,/^}/s/ptr += p->size;/ptr += from_chunk_to_chunk(p->size);/
/^static int do_slabs_newslab(.*{$/,/^}/{
s/memory_allocate((size_t)len)/new_slab(p->perslab, p->size)/
s/memset(ptr, 0, (size_t)len);/mem_malloced += len;/
}
