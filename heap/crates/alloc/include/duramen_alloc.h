/* duramen_alloc: a heap on an SSD, with ordinary pointers and a hard budget of RAM.
 *
 * Objects lie packed in a log on flash. Objects in use are pages at addresses that never change;
 * recently used ones are cached in RAM. A missing page comes by a fault, which this library serves
 * in a signal handler on the faulting thread.
 *
 *     struct ssd_options options = {
 *         .flash_file = "/mnt/ssd/heap", .flash_bytes = 64ull << 30, .ram_bytes = 4ull << 30 };
 *     if (ssd_init(&options) != SSD_OK) die(ssd_error_message());
 *     struct node *node = ssd_oalloc(1, sizeof *node);
 *     ...
 *     ssd_free(node);
 *
 * Build with `cc program.c $(pkg-config --cflags --libs duramen_alloc)`.
 *
 * Threads.  Any thread may call any function at any time, except ssd_restore and ssd_close, during
 * which no other thread may use the library or its memory. Objects are ordinary memory: threads
 * that share one need locks as for any memory. The library orders a free by one thread before the
 * reuse by another; ThreadSanitizer does not see that, nor the library's own accesses (suppress
 * called_from_lib:libduramen_alloc.so, and set report_signal_unsafe=0); it does see races of the
 * program on objects.
 *
 * Costs.  An access to a page in the page buffer costs the same as in any memory. Other pages come
 * by a fault: some microseconds from the RAM cache, a read of the device (512 bytes or more) from
 * flash. If RAM is full, other pages are evicted, and dirty ones are written to flash at the same
 * time, many at once. When flash takes writes more slowly than the program makes them, faults wait.
 * The first write to a page that was only read is a separate fault.
 *
 * Signals.  With userfaultfd (Linux 5.11 or newer) the library takes SIGBUS over in the first call
 * of ssd_oalloc or ssd_malloc, or in ssd_restore; SIGSEGV stays the program's. With mprotect (older
 * kernels) it takes SIGSEGV. A foreign signal goes to the previous handler, so install yours
 * earlier; or install it later and call ssd_handle_fault from it. Do not block the signal in a
 * thread that touches objects: the kernel then kills the process. A handler of the program must not
 * touch objects or call this library (except ssd_handle_fault): it may have interrupted malloc, or
 * the library itself. A handler that gets a failed access (see Errors) may leave by siglongjmp: no
 * function of the library is left half done, because the functions return such errors. Threads need
 * 16 KiB of stack below the frame that touches an object.
 *
 * System calls.  The kernel does not bring pages into RAM. A system call that gets an address of an
 * object (read(2), write(2), ...) fails with EFAULT, or does less (write(2) returns how much), if a
 * page of it is not in RAM, or if the call would write to a page that was not written to before.
 * Use ssd_pin around such calls, or a buffer of your own. Without it a call through the page cache
 * never reads or leaves wrong data. But one whose device reads or writes the object by itself
 * (O_DIRECT, AIO, io_uring) may lose what it reads, and must have it.
 *
 * pthread_cond_wait, sem_wait and their kin are system calls on the condition variable or the
 * semaphore: glibc ends the program if one fails with EFAULT. Keep these, and mutexes that threads
 * wait for, outside of objects, or pin them.
 *
 * madvise(MADV_DONTNEED) and its kin give pages an earlier content, or zeros: do not use them here.
 *
 * Core dumps have no objects (with mprotect: those in the page buffer).
 *
 * fork.  A child has no objects: touching one kills it (SIGSEGV), and functions of this library
 * fail with SSD_EFORKED, ssd_init too. fork followed by exec, posix_spawn and system(3) are fine.
 *
 * Limits.  One heap per process. Flash: 1 MiB to 2 TiB. An object of ssd_oalloc: 1 GiB; an array:
 * 2^32 - 1 objects; a block of ssd_malloc: 4 TiB. An object takes whole pages of addresses, 2^30 in
 * total unless address_bytes sets another number, and 4 bytes of RAM for each 128 bytes or more;
 * memory of ssd_malloc takes 4 bytes of RAM for each page and one bit for each 16 bytes.
 *
 * Errors.  Functions return SSD_OK or one of the numbers below, or NULL (with errno = ENOMEM);
 * ssd_error and ssd_error_message give details, for the calling thread. If flash fails while a page
 * that the program touches is being brought into RAM, no function can return the error: the library
 * writes one line to standard error ("duramen_alloc: the object at ... cannot be brought: ..."),
 * and the thread gets the signal of its access: SIGBUS (with mprotect: SIGSEGV). The content of an
 * object is always the content that was written to it.
 */
#ifndef DURAMEN_ALLOC_H
#define DURAMEN_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ssd_code {
    SSD_OK = 0,
    SSD_ESTATE = -1,      /* called too early or too late: not initialized, or running already */
    SSD_EINVAL = -2,      /* an argument is out of its range */
    SSD_ENOMEM = -3,      /* the budget of RAM, or the addresses reserved, do not allow it */
    SSD_ENOSPC = -4,      /* no room on flash: free objects, or use a larger file */
    SSD_EPOINTER = -5,    /* no object begins at this address; nothing was changed */
    SSD_EDOUBLEFREE = -6, /* freed already; nothing was changed */
    SSD_EKERNEL = -7,     /* this kernel lacks the call, or refused; try SSD_FAULTS_PROTECT */
    SSD_EADDRESS = -8,    /* the checkpoint's addresses are taken in this process */
    SSD_ECHECKPOINT = -9, /* no checkpoint, a damaged one, or not the last one of this flash file */
    SSD_EVERSION = -10,   /* made by another version of this library */
    SSD_EFORKED = -11,    /* in a child of the process that called ssd_init */
    SSD_EBUSY = -12,      /* another process uses the flash file */
    SSD_EDEVICE = -13     /* the flash file or device failed */
};

enum ssd_faults {
    SSD_FAULTS_BEST = 0,      /* userfaultfd if the kernel has it */
    SSD_FAULTS_USERFAULT = 1, /* userfaultfd or nothing */
    SSD_FAULTS_PROTECT = 2    /* mprotect, SIGSEGV: at most vm.max_map_count / 4 pages (64 MiB) */
};

/* Sizes are in bytes. Set unused fields to 0. */
struct ssd_options {
    const char *flash_file;     /* a file, created if missing, or a partition; it is locked */
    uint64_t flash_bytes;       /* length of the file; 0: its present length. 85 % can be allocated,
                                 * 40 % with checkpoints in between, including headers of 24 bytes
                                 * for each object or page */
    uint64_t ram_bytes;         /* RAM in total; at least about 5 MiB, and 1/24 of the data */
    uint64_t page_buffer_bytes; /* of that, for shown pages; 0: 1/24, at most 25 MiB. At least four
                                 * pages for each thread that touches objects */
    uint64_t address_bytes;     /* reserved addresses, a page or more per object; 0: 4 TiB */
    uint32_t faults;            /* enum ssd_faults */
    uint32_t reserved[7];       /* 0 */
};

/* Opens the flash file, locks it and reserves addresses: milliseconds. Its data stays until the
 * first allocation that succeeds, so ssd_restore may come before; other functions too: nothing is
 * allocated then, so addresses are SSD_EPOINTER and counts are 0. After SSD_EINVAL, SSD_ENOMEM
 * (ram_bytes is too small), SSD_EBUSY, SSD_EDEVICE, SSD_EKERNEL, SSD_ESTATE or SSD_EFORKED it may
 * be called again. */
int ssd_init(const struct ssd_options *options);

/* Allocates `count` objects of `size` bytes, all zero, each at the beginning of pages of its own,
 * ssd_stride(size) bytes apart, not `size`. Several objects are an array, which is freed as a whole
 * by the address of its first element. Cost: a lock for each size, no fault, no I/O; every few
 * thousand objects a table in RAM, for which cached objects are evicted. It waits while a
 * checkpoint is made. An object of fewer than 128 bytes that is used again is written to: perhaps a
 * read of flash. NULL: SSD_EINVAL, SSD_ENOSPC (flash), SSD_ENOMEM (RAM for tables, or addresses),
 * SSD_ESTATE, SSD_EDEVICE, SSD_EFORKED; SSD_EKERNEL if the kernel has no memory for the first
 * allocation, which can be tried again. */
void *ssd_oalloc(size_t count, size_t size);

/* Bytes from one element of an array of ssd_oalloc to the next: `size` rounded up to pages. */
size_t ssd_stride(size_t size);

/* As malloc, calloc and realloc; aligned to 16. Here the unit of caching and writing is a page, not
 * an object. Cost: one lock for all threads and a search among free blocks, no fault; ssd_calloc
 * writes zeros to all of the block, and ssd_realloc copies if the block does not fit or is less
 * than half used: both by faults. ssd_realloc also takes single objects of ssd_oalloc, but no
 * arrays (SSD_EPOINTER). Errors as of ssd_oalloc; the block is then unchanged. */
void *ssd_malloc(size_t size);
void *ssd_calloc(size_t count, size_t size);
void *ssd_realloc(void *block, size_t size);

/* Frees the result of any of the functions above. NULL: no effect. SSD_EPOINTER, SSD_EDOUBLEFREE:
 * nothing was changed. Cost: a lock, a system call if its page is in RAM, no I/O; for an array or a
 * large block: the same for each page of it in RAM, and less for the other pages. It waits while a
 * checkpoint is made, and while an allocation that found too little RAM evicts. The addresses of
 * a freed array or large block are invalid, and so may be those of any other freed object: freed
 * again they are SSD_EPOINTER, or a new object. */
int ssd_free(void *object);

/* Usable bytes at `object` (of an array: of the element that begins there): at least the requested
 * size; 0: no object begins there. No fault, no I/O. */
size_t ssd_usable_size(const void *object);

/* Keeps the pages of these bytes in RAM until ssd_unpin with the same arguments, readable, and
 * writable if `write` is not 0: for system calls. At most half of the page buffer can be pinned
 * (SSD_EINVAL). Cost: for each page a look-up, or a fault; errors of the device are returned. Pins
 * of a page are counted. SSD_EPOINTER: nothing is allocated there; or it is not pinned. */
int ssd_pin(const void *object, size_t size, int write);
int ssd_unpin(const void *object, size_t size);

/* Makes all objects durable, in the flash file and in a file at `path`, which replaces a former
 * checkpoint in one step. After this, whatever happens to the process, ssd_restore(path) restores
 * this state. Nothing is allocated or freed meanwhile (callers wait); an object that another thread
 * writes to meanwhile is stored as before or after the write, each page for itself. Cost: all dirty
 * data is written to flash, then the object tables (4 bytes for each object of at least 128 bytes,
 * or page) and 16 bytes for each 128 KiB of flash to the file; four syncs. So that it holds at most
 * half of flash, live objects are first copied out of sparse blocks; with at most 40 % allocated
 * this is always done, and later writes find room, however many they are. Flash that only the
 * previous checkpoint needs is free afterwards. An error (SSD_EDEVICE, SSD_ENOSPC): the previous
 * checkpoint stays valid. SSD_ESTATE: nothing has been allocated since ssd_init: an empty heap
 * replaces no checkpoint. SSD_EINVAL: `path`, or `path`.new, to which it is written first, is the
 * flash file, is no regular file (a link, a device, a directory), or holds other data than a
 * checkpoint; nothing was changed. A checkpoint of another heap is replaced too: give each flash
 * file its own path. */
int ssd_checkpoint(const char *path);

/* Continues from a checkpoint: call it after ssd_init with the same flash file, before the first
 * allocation. All objects are at their former addresses; they are read on use. Cost: reading that
 * file, by four threads, about as fast as the device reads. If it fails, nothing was changed; call
 * ssd_init again before anything else. SSD_ECHECKPOINT, SSD_EVERSION, SSD_EADDRESS (the addresses
 * are taken: restore earlier, or in another process), SSD_ENOMEM (ram_bytes is too small for its
 * tables), SSD_EDEVICE. */
int ssd_restore(const char *path);

/* Sixteen addresses that a checkpoint stores, with numbers 0 to 15: by these a later life finds its
 * objects. NULL: none was set. They need not be addresses: any number of this size is stored.
 * ssd_restore replaces all of them. */
int ssd_set_root(unsigned number, void *object);
void *ssd_root(unsigned number);

/* Counts since ssd_init or ssd_restore; sizes in bytes. ssd_stats takes each of the cache's locks
 * for a moment and reads the state of each 128 KiB of flash: not for inner loops. */
struct ssd_stats {
    uint64_t ram_budget_bytes;
    uint64_t pages_shown_bytes;    /* pages in the page buffer */
    uint64_t page_table_bytes;     /* page tables under them */
    uint64_t cache_bytes;          /* RAM object cache */
    uint64_t cached_objects;
    uint64_t table_bytes;          /* object tables, and others that grow with allocations */
    uint64_t fixed_bytes;          /* of the budget: page buffer, write buffers */
    uint64_t allocated_bytes;
    uint64_t allocations;
    uint64_t faults;               /* pages shown: the sum of the next three */
    uint64_t from_cache;
    uint64_t from_flash;
    uint64_t fresh;                /* never written before */
    uint64_t write_faults;         /* first writes to pages that had been read */
    uint64_t evicted_pages;        /* pages evicted from the page buffer */
    uint64_t evicted_dirty_pages;  /* of these: dirty */
    uint64_t evicted_objects;      /* objects evicted from the cache */
    uint64_t written_objects;      /* objects written to flash */
    uint64_t flash_written_bytes;  /* bytes written to flash */
    uint64_t flash_relocated_bytes;/* of that: by the collector */
    uint64_t flash_capacity_bytes;
    uint64_t flash_live_bytes;
    uint64_t flash_held_bytes;     /* held for the last checkpoint alone */
    uint64_t fault_kind;           /* enum ssd_faults */
    uint64_t page_tables_leaving_bytes; /* returned page tables that may not be free yet:
                                         * beside the budget */
};
int ssd_stats(struct ssd_stats *stats);

/* Closes the library: releases memory, addresses and the flash file. Objects that no checkpoint
 * holds are lost. No other thread may use this library or its memory any more. */
int ssd_close(void);

/* For a handler of the program that was installed after the library's (SIGBUS, or SIGSEGV with
 * mprotect): 1 = it was the library's fault and is served, return from the handler; 0 = it is the
 * program's. */
int ssd_handle_fault(void *info, void *context);

/* The calling thread's last failure: its number, and a text; valid until its next failure. */
int ssd_error(void);
const char *ssd_error_message(void);

#ifdef __cplusplus
}
#endif

#endif
