/* Load for memcached by its text protocol: gets and sets of random keys, each value checked. One connection for each thread. */
#include "tool.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

enum { VALUE_MOST = 1 << 20 };

static long flag_port = 11211, flag_keys = 10000, flag_least = 4, flag_most = 4096, flag_fill = 1;

static __thread int connection = -1;
static __thread char *buffer;
static __thread size_t filled, taken;
static _Atomic uint64_t misses;

static void open_connection(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)flag_port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    connection = socket(AF_INET, SOCK_STREAM, 0);
    int on = 1;
    if (connection < 0 || connect(connection, (struct sockaddr *)&address, sizeof address) != 0)
        die("connecting to port %ld: %s", flag_port, strerror(errno));
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    buffer = must_have(malloc(VALUE_MOST + 4096));
}

static void send_all(const char *bytes, size_t length) {
    while (length > 0) {
        ssize_t sent = send(connection, bytes, length, MSG_NOSIGNAL);
        if (sent <= 0) die("sending: %s", strerror(errno));
        bytes += sent, length -= (size_t)sent;
    }
}

/* `length` bytes of the answer. */
static char *receive(size_t length) {
    if (taken == filled) taken = filled = 0;
    while (filled - taken < length) {
        ssize_t got = recv(connection, buffer + filled, VALUE_MOST + 4096 - filled, 0);
        if (got <= 0) die("receiving: %s", got == 0 ? "the server has gone" : strerror(errno));
        filled += (size_t)got;
    }
    taken += length;
    return buffer + taken - length;
}

/* A line of the answer, without its end. */
static char *receive_line(void) {
    size_t length = 1;
    for (;; length++) {
        char *line = receive(length);
        if (line[length - 1] == '\n' && length > 1) {
            line[length - 2] = '\0';
            return line;
        }
        taken -= length;
    }
}

/* A key's value: its length and content are of the key and of nothing else. */
static size_t make_value(uint64_t key, char *value) {
    uint64_t state = mixed(key + 1);
    size_t length = (size_t)flag_least + random_below(&state, (uint64_t)(flag_most - flag_least) + 1);
    for (size_t at = 0; at < length; at += 8) {
        uint64_t word = random_next(&state);
        memcpy(value + at, &word, length - at < 8 ? length - at : 8);
    }
    return length;
}

static void set(uint64_t key) {
    static __thread char value[VALUE_MOST + 128];
    size_t length = make_value(key, value + 64);
    char head[64];
    int head_length = snprintf(head, sizeof head, "set key:%" PRIu64 " 0 0 %zu\r\n", key, length);
    memcpy(value + 64 - head_length, head, (size_t)head_length);
    memcpy(value + 64 + length, "\r\n", 2);
    send_all(value + 64 - head_length, (size_t)head_length + length + 2);
    const char *answer = receive_line();
    if (strcmp(answer, "STORED") != 0) die("set: %s", answer);
}

/* False: the server has not got it. */
static int get(uint64_t key) {
    static __thread char value[VALUE_MOST];
    char head[64];
    int head_length = snprintf(head, sizeof head, "get key:%" PRIu64 "\r\n", key);
    send_all(head, (size_t)head_length);
    const char *answer = receive_line();
    if (strcmp(answer, "END") == 0) return 0;
    uint64_t named;
    size_t length, wanted = make_value(key, value);
    if (sscanf(answer, "VALUE key:%" SCNu64 " 0 %zu", &named, &length) != 2 || named != key || length != wanted)
        die("get of key %" PRIu64 ": %s", key, answer);
    if (memcmp(receive(length + 2), value, length) != 0) die("key %" PRIu64 " has another value than it was given", key);
    answer = receive_line();
    if (strcmp(answer, "END") != 0) die("get: %s", answer);
    return 1;
}

static void touch(struct worker *worker) {
    if (connection < 0) open_connection();
    uint64_t key = random_below(&worker->random, (uint64_t)flag_keys);
    if ((long)random_below(&worker->random, 100) < flag_writes) {
        set(key);
        worker->writes++;
    } else if (get(key)) worker->hits++;
    else misses++;
}

static _Atomic uint64_t next_key;

static void fill(struct worker *worker) {
    if (connection < 0) open_connection();
    (void)worker;
    set(next_key++);
}

int main(int argc, char **argv) {
    static const struct flag flags[] = {
        {"--port", "of memcached on this machine (default 11211)", &flag_port, NULL, 1, 65535},
        {"--keys", "keys (default 10000)", &flag_keys, NULL, 1, 1l << 40},
        {"--least", "bytes of the shortest value (default 4)", &flag_least, NULL, 0, VALUE_MOST},
        {"--most", "bytes of the longest value (default 4096)", &flag_most, NULL, 0, VALUE_MOST},
        {"--fill", "0: the keys are there already (default 1)", &flag_fill, NULL, 0, 1},
    };
    read_flags(argc, argv, "Gets and sets (--writes) of memcached on this machine.", flags, sizeof flags / sizeof *flags);
    if (flag_least > flag_most) die("--least is more than --most");
    static struct measured filling, measured;
    if (flag_fill) repeat(fill, (uint64_t)flag_keys, 3, &filling);
    run(touch, &measured);
    char more[256];
    snprintf(more, sizeof more, "\"keys\":%ld,\"least\":%ld,\"most\":%ld,\"misses\":%" PRIu64 ",\"fill_seconds\":%.3f,", flag_keys, flag_least,
             flag_most, (uint64_t)misses, filling.seconds);
    print_result("memcached", &measured, more);
    return 0;
}
