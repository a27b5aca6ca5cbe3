/* duramen_alloc: a heap on an SSD, with ordinary pointers and a hard budget of RAM.
 *
 * Objects lie packed in a log on flash; those in use are pages at addresses that never change, those used lately are cached in RAM.
 * A page that is not there comes by a fault, which this library serves in a signal handler on the thread that faulted.
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
 * Threads.  Any thread may call any function at any time, but ssd_restore and ssd_close, for which the program must be quiet. Objects
 * are ordinary memory: threads that share one need locks as for any memory. What one thread frees and another one is handed out is ordered
 * by the library; ThreadSanitizer does not see that, nor the library's own accesses (suppress called_from_lib:libduramen_alloc.so, and set
 * report_signal_unsafe=0); races of the program on objects it does see.
 *
 * Costs.  An access to a page that is in the page buffer costs what it costs in any memory. Else the page comes by a fault: some
 * microseconds from the RAM cache, a read of the device (512 bytes or more) from flash; where RAM is full, others leave for it, and dirty
 * ones are written to flash by the way, many at once. When flash takes writes more slowly than the program makes them, faults wait. The
 * first write to a page that was only read is a fault of its own.
 *
 * Signals.  By userfaultfd (Linux 5.11 or newer) the library takes SIGBUS over in ssd_oalloc's or ssd_malloc's first call, or in
 * ssd_restore; SIGSEGV stays the program's. By mprotect (older kernels) it takes SIGSEGV. A signal that is not the library's goes to the
 * handler that was there before, so install yours earlier; or install it later and call ssd_handle_fault from it. Do not block the signal
 * in a thread that touches objects: the kernel kills the process then. A handler of the program must not touch objects or call this
 * library (but ssd_handle_fault): it may have interrupted malloc, or the library itself. Threads need 16 KiB of stack below the frame
 * that touches an object.
 *
 * System calls.  The kernel does not bring pages. A system call that is given an address of an object (read(2), write(2), ...) fails with
 * EFAULT, or does less (write(2) returns how much), if a page of it is not in RAM, or was not written to before and the call would write to
 * it. It never sees or leaves wrong data. Use ssd_pin around such calls, or a buffer of your own.
 *
 * fork.  A child has no objects: touching one kills it (SIGSEGV), and functions of this library fail with SSD_EFORKED, ssd_init too. fork
 * followed by exec, posix_spawn and system(3) are fine.
 *
 * Limits.  One heap for each process. Flash: 1 MiB to 2 TiB. An object of ssd_oalloc: 1 GiB; an array: 2^32 - 1 of them; a block of
 * ssd_malloc: 4 TiB. An object takes whole pages of addresses, of which there are 2^30 unless address_bytes says otherwise, and 4 bytes of RAM
 * for each 128 bytes or more; ssd_malloc's memory 4 bytes of RAM for each page and one bit for each 16 bytes.
 *
 * Errors.  Functions return SSD_OK or one of the numbers below, or NULL (with errno = ENOMEM); ssd_error and ssd_error_message say more, for the
 * calling thread. Where flash fails while a page is being brought, no function is there to return it: the library writes one line to
 * standard error ("duramen_alloc: the object at ... cannot be brought: ..."), and the thread gets the signal that its access caused: SIGBUS
 * (by mprotect: SIGSEGV). No object ever has another content than was written to it.
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
    SSD_EPOINTER = -5,    /* nothing begins at this address; nothing was changed */
    SSD_EDOUBLEFREE = -6, /* freed already; nothing was changed */
    SSD_EKERNEL = -7,     /* this kernel cannot do it, or refused; with faults = SSD_FAULTS_PROTECT it may */
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
    SSD_FAULTS_PROTECT = 2    /* mprotect and SIGSEGV: at most vm.max_map_count / 4 pages (about 64 MiB) in the page buffer */
};

/* Sizes are in bytes. Set what you do not use to 0. */
struct ssd_options {
    const char *flash_file;     /* a file, made if it is not there, or a partition; locked by this process */
    uint64_t flash_bytes;       /* how long it is to be; 0: as long as it is. 85 % can be allocated, 40 % with checkpoints in between, headers
                                 * of 24 bytes for each object or page included */
    uint64_t ram_bytes;         /* what this library may use, all in all; at least about 5 MiB, and 1/24 of the data */
    uint64_t page_buffer_bytes; /* of that, for pages that the program sees; 0: 1/24, at most 25 MiB */
    uint64_t address_bytes;     /* addresses to reserve, a page or more for each object of ssd_oalloc; 0: 4 TiB */
    uint32_t faults;            /* enum ssd_faults */
    uint32_t reserved[7];       /* 0 */
};

/* Opens the flash file, locks it and reserves addresses: milliseconds. What is on it stays until the first allocation, so that ssd_restore
 * may come before. SSD_EINVAL, SSD_ENOMEM (ram_bytes is too small), SSD_EBUSY, SSD_EDEVICE, SSD_EKERNEL, SSD_ESTATE, SSD_EFORKED: it may be
 * called again. */
int ssd_init(const struct ssd_options *options);

/* `count` objects of `size` bytes, all zero, each at the beginning of pages of its own. From one to the next it is ssd_stride(size)
 * bytes, not `size`. Several at once are an array, which is freed as a whole by its first element's address.
 * Cost: a lock for each size, no fault, no I/O; every few thousand objects a table in RAM, for which cached objects leave. It waits while a
 * checkpoint is made. NULL: SSD_EINVAL, SSD_ENOSPC (flash), SSD_ENOMEM (RAM for tables, or addresses), SSD_ESTATE, SSD_EFORKED. */
void *ssd_oalloc(size_t count, size_t size);

/* Bytes from one element of an array of ssd_oalloc to the next: `size` rounded up to whole pages. */
size_t ssd_stride(size_t size);

/* As malloc, calloc and realloc; aligned to 16. Here a page, not an object, is what is cached and written. Cost: one lock for all threads and
 * a search among free blocks, no fault; ssd_calloc writes zeros to all of it, and ssd_realloc copies if the block does not fit or is less
 * than half used: both by faults. ssd_realloc takes single objects of ssd_oalloc as well, no arrays (SSD_EPOINTER). Errors as of ssd_oalloc;
 * the block stays as it is. */
void *ssd_malloc(size_t size);
void *ssd_calloc(size_t count, size_t size);
void *ssd_realloc(void *block, size_t size);

/* Frees what any of the functions above returned. NULL: nothing. SSD_EPOINTER, SSD_EDOUBLEFREE: nothing was changed. Cost: a lock, a system call
 * if its page is in RAM, no I/O; of an array or a large block: so much for each page of it that is in RAM, and less for the others. The
 * addresses of a freed array or large block mean nothing any more: freed again they are SSD_EPOINTER, or something new. */
int ssd_free(void *object);

/* Bytes that may be used at `object` (of an array: of the element that begins there): at least what was asked for; 0: nothing begins there. No
 * fault, no I/O. */
size_t ssd_usable_size(const void *object);

/* Keeps these bytes' pages in RAM until ssd_unpin with the same arguments, readable, and writable if `write` is not 0: for system
 * calls. At most half of the page buffer can be pinned (SSD_EINVAL). Cost: for each page a look-up, or what bringing it costs; errors of the
 * device are returned. Pins of a page are counted. SSD_EPOINTER: nothing is allocated there; or it is not pinned. */
int ssd_pin(const void *object, size_t size, int write);
int ssd_unpin(const void *object, size_t size);

/* Makes all objects last, in the flash file and in a file at `path`, which replaces a former one in one step. After this, whatever
 * happens to the process, ssd_restore(path) brings back this very state. Nothing is allocated or freed meanwhile (callers wait);
 * objects that other threads write to meanwhile are in it as before or as after, each page for itself. Cost: everything dirty is written to
 * flash, then the object tables (4 bytes of each object of at least 128 bytes, or page) and 16 bytes of each 128 KiB of flash to the file;
 * four syncs. So that it holds at most half of flash, live objects are copied out of sparse blocks first; with at most 40 % allocated this is
 * always done, and writes after it find room, however many they are. What is not needed by the checkpoint before is free after it. An error (SSD_EDEVICE, SSD_ENOSPC): the checkpoint before holds.
 * SSD_EINVAL: `path`, or `path`.new where it is written first, is the flash file, no regular file (a link, a device, a directory), or holds
 * something that is no checkpoint; nothing was changed. */
int ssd_checkpoint(const char *path);

/* Goes on from a checkpoint: after ssd_init with the same flash file, before anything is allocated. All objects are where they were;
 * they are read when they are used. Cost: reading that file, by four threads, about as fast as the device reads. If it fails, nothing was
 * changed; call ssd_init again before anything else. SSD_ECHECKPOINT, SSD_EVERSION, SSD_EADDRESS (the addresses are taken: restore earlier, or
 * in another process), SSD_ENOMEM (ram_bytes is too small for its tables), SSD_EDEVICE. */
int ssd_restore(const char *path);

/* Sixteen addresses that a checkpoint keeps, by numbers 0 to 15: by these a later life finds its objects. NULL: none was set. They need not be
 * addresses: any number of their size is kept. */
int ssd_set_root(unsigned number, void *object);
void *ssd_root(unsigned number);

/* Counts since ssd_init or ssd_restore; sizes in bytes. It takes each of the cache's locks for a moment and looks at each 128 KiB of flash: not
 * for inner loops. */
struct ssd_stats {
    uint64_t ram_budget_bytes;
    uint64_t pages_shown_bytes;    /* pages in the page buffer */
    uint64_t page_table_bytes;     /* page tables under them */
    uint64_t cache_bytes;          /* RAM object cache */
    uint64_t cached_objects;
    uint64_t table_bytes;          /* object tables, and what else grows with what is allocated */
    uint64_t fixed_bytes;          /* of the budget: page buffer, write buffers */
    uint64_t allocated_bytes;
    uint64_t allocations;
    uint64_t faults;               /* pages that came: the next three together */
    uint64_t from_cache;
    uint64_t from_flash;
    uint64_t fresh;                /* never written before */
    uint64_t write_faults;         /* first writes to pages that had been read */
    uint64_t evicted_pages;        /* pages that left the page buffer */
    uint64_t evicted_dirty_pages;  /* of these: written to */
    uint64_t evicted_objects;      /* objects that left the cache */
    uint64_t written_objects;      /* objects that went to flash */
    uint64_t flash_written_bytes;  /* all that was written to flash */
    uint64_t flash_relocated_bytes;/* of that: by the collector */
    uint64_t flash_capacity_bytes;
    uint64_t flash_live_bytes;
    uint64_t flash_held_bytes;     /* kept for the last checkpoint alone */
    uint64_t fault_kind;           /* enum ssd_faults */
    uint64_t page_tables_leaving_bytes; /* page tables given back, which the kernel may not have freed yet: beside the budget */
};
int ssd_stats(struct ssd_stats *stats);

/* Gives up what no checkpoint holds: memory, addresses, the flash file. No other thread uses this library or its memory any more. */
int ssd_close(void);

/* For a handler of the program's own, installed after the library's (SIGBUS, or SIGSEGV by mprotect): 1 = it was the library's fault
 * and is served, return from the handler; 0 = it is the program's. */
int ssd_handle_fault(void *info, void *context);

/* The calling thread's last failure: its number and what happened, in words; valid until its next failure. */
int ssd_error(void);
const char *ssd_error_message(void);

#ifdef __cplusplus
}
#endif

#endif
