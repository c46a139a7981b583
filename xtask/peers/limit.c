// What the machine itself can do: two pinned threads bounce a cache line, or two of which one is the flag; one copies
// blocks that the other last read.
// usage: limit CPU CPU SIZE...     prints "line 8 NS", "line 64 NS" (one way) and "copy SIZE NS" (the copy alone)
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include "common.h"

// More blocks than a core's own caches hold, fewer than the shared one does.
enum { ROTATING = 256, CHUNKS = 100, EACH = 200, COPIES = 5000 };

static _Alignas(128) atomic_uint ping;
static _Alignas(128) atomic_uint pong;
static _Alignas(128) atomic_ullong ping_payload[8];
static _Alignas(128) atomic_ullong pong_payload[8];
static int two_lines;
static char *blocks, *source;
static size_t size;
static int other_cpu;
static volatile uint64_t sink;

static void await(atomic_uint *word, unsigned value) {
    while (atomic_load_explicit(word, memory_order_acquire) != value) {}
}

static void say(atomic_uint *word, atomic_ullong *payload, unsigned value) {
    for (int i = 0; two_lines && i < 8; i++) atomic_store_explicit(&payload[i], value, memory_order_relaxed);
    atomic_store_explicit(word, value, memory_order_release);
}

static void hear(atomic_uint *word, atomic_ullong *payload, unsigned value) {
    await(word, value);
    uint64_t sum = 0;
    for (int i = 0; two_lines && i < 8; i++) sum += atomic_load_explicit(&payload[i], memory_order_relaxed);
    sink = sum;
}

static void *bounce(void *unused) {
    pin(other_cpu);
    for (unsigned i = 1; i <= CHUNKS * EACH; i++) {
        hear(&ping, ping_payload, i);
        say(&pong, pong_payload, i);
    }
    return unused;
}

static void *read_all(void *unused) {
    pin(other_cpu);
    for (unsigned i = 1; i <= COPIES; i++) {
        await(&ping, i);
        uint64_t sum = 0;
        const char *block = blocks + (i % ROTATING) * size;
        for (size_t at = 0; at < size; at += 8) sum += *(const uint64_t *)(block + at);
        sink = sum;
        atomic_store_explicit(&pong, i, memory_order_release);
    }
    return unused;
}

static void with(void *(*other)(void *), void (*own)(void)) {
    pthread_t thread;
    atomic_store(&ping, 0);
    atomic_store(&pong, 0);
    if (pthread_create(&thread, NULL, other, NULL)) die("pthread_create");
    own();
    pthread_join(thread, NULL);
}

static void own_bounce(void) {
    unsigned i = 0;
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        double started = now_ns();
        for (int n = 0; n < EACH; n++) {
            i++;
            say(&ping, ping_payload, i);
            hear(&pong, pong_payload, i);
        }
        sample(chunk, (now_ns() - started) / 2 / EACH);
    }
}

static void own_copy(void) {
    for (unsigned i = 1; i <= COPIES; i++) {
        double started = now_ns();
        memcpy(blocks + (i % ROTATING) * size, source + (i % 8) * size, size);
        sample((int)i - 1, now_ns() - started);
        atomic_store_explicit(&ping, i, memory_order_release);
        await(&pong, i);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) die("usage: limit CPU CPU SIZE...");
    pin(atoi(argv[1]));
    other_cpu = atoi(argv[2]);
    for (two_lines = 0; two_lines < 2; two_lines++) {
        with(bounce, own_bounce);
        printf("line %d %.1f\n", two_lines ? 64 : 8, median(CHUNKS));
    }
    for (int arg = 3; arg < argc; arg++) {
        size = (size_t)atol(argv[arg]);
        if (posix_memalign((void **)&blocks, 4096, ROTATING * size) || posix_memalign((void **)&source, 4096, 8 * size))
            die("memory");
        memset(blocks, 0, ROTATING * size);
        memset(source, 1, 8 * size);
        with(read_all, own_copy);
        printf("copy %zu %.1f\n", size, median(COPIES));
        free(blocks);
        free(source);
    }
    return 0;
}
