// Measures the round trip of 64 bytes in shared memory between two pinned processes that sleep
// until an eventfd wakes them.
// usage: asleep CPU CPU     prints "asleep 64 NS"
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include "common.h"

enum { ROUNDS = 5000, WARM = 500, SIZE = 64 };

static char *shared;
static volatile char sink[SIZE];

static void wait_and_read(int fd, int offset) {
    uint64_t count;
    if (read(fd, &count, sizeof count) != sizeof count) die("read");
    memcpy((void *)sink, shared + offset, SIZE);
}

static void write_and_wake(int fd, int offset, int round) {
    const uint64_t one = 1;
    memset(shared + offset, round, SIZE);
    if (write(fd, &one, sizeof one) != sizeof one) die("write");
}

int main(int argc, char **argv) {
    if (argc < 3) die("usage: asleep CPU CPU");
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int there = eventfd(0, EFD_CLOEXEC), back = eventfd(0, EFD_CLOEXEC);
    if (shared == MAP_FAILED || there < 0 || back < 0) die("memory and descriptors");
    pid_t child = fork();
    if (child < 0) die("fork");
    // Both hold both descriptors, so neither notices when the other ends.
    limit_time();
    pin(atoi(argv[child ? 1 : 2]));
    for (int i = 0; i < WARM + ROUNDS; i++) {
        if (child) {
            double started = now_ns();
            write_and_wake(there, 0, i);
            wait_and_read(back, 1024);
            if (i >= WARM) sample(i - WARM, now_ns() - started);
        } else {
            wait_and_read(there, 0);
            write_and_wake(back, 1024, i);
        }
    }
    if (child) {
        printf("asleep %d %.1f\n", SIZE, median(ROUNDS));
        waitpid(child, NULL, 0);
    }
    return 0;
}
