// Functions that the peer programs share: time, pinning, namespaces, memory, median, time limit.
// Programs print lines "WHAT SIZE VALUE": latency in nanoseconds one way, rate in messages/s.
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double samples[1 << 20];

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) die("sched_setaffinity");
}

// Enters the network namespace at `path`; "-" stays in the present one.
__attribute__((unused)) static void enter(const char *path) {
    if (path[0] == '-') return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET)) die(path);
    close(fd);
}

static void sample(int at, double ns) { samples[at] = ns; }

static int by_value(const void *a, const void *b) {
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

static double median(int count) {
    qsort(samples, (size_t)count, sizeof *samples, by_value);
    return count % 2 ? samples[count / 2] : (samples[count / 2 - 1] + samples[count / 2]) / 2;
}

// Allocates memory and writes to it: memory never written to is one shared page of zeros.
__attribute__((unused)) static char *memory(size_t size) {
    char *bytes = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    if (!bytes) die("memory");
    memset(bytes, 0x5a, size);
    return bytes;
}

// Ends this process after a minute. No measurement takes so long; its peer has ended.
static void limit_time(void) { alarm(60); }
