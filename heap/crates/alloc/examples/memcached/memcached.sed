# 19 lines: the flash file, by environment variables; and system calls on objects, whose pages the kernel does not bring.
/^#include "memcached.h"/a\
#include <duramen_alloc.h>
/^ssize_t tcp_read(/,/^}/s/^ *return read(\(.*\));$/\
    int pinned = ssd_pin(buf, count, 1) == SSD_OK;\
    ssize_t done = read(\1);\
    int error = errno;\
    if (pinned) ssd_unpin(buf, count);\
    errno = error;\
    return done;/
/^ssize_t tcp_sendmsg(/,/^}/s/^ *return sendmsg(\(.*\));$/\
    char pinned[IOV_MAX];\
    for (size_t i = 0; i < msg->msg_iovlen; i++)\
        pinned[i] = ssd_pin(msg->msg_iov[i].iov_base, msg->msg_iov[i].iov_len, 0) == SSD_OK;\
    ssize_t done = sendmsg(\1);\
    int error = errno;\
    for (size_t i = 0; i < msg->msg_iovlen; i++)\
        if (pinned[i]) ssd_unpin(msg->msg_iov[i].iov_base, msg->msg_iov[i].iov_len);\
    errno = error;\
    return done;/
/^ *slabs_init(settings.maxbytes,/i\
    struct ssd_options ssd = {.flash_file = getenv("SSD_FILE"), .flash_bytes = strtoull(getenv("SSD_FLASH_MB"), NULL, 10) << 20,\
                              .ram_bytes = strtoull(getenv("SSD_RAM_MB"), NULL, 10) << 20};\
    if (ssd_init(&ssd) != SSD_OK) fprintf(stderr, "%s\\n", ssd_error_message()), exit(1);
