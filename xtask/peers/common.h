// What the small peer programs share: time, pinning, the median.
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

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

static void sample(int at, double ns) { samples[at] = ns; }

static int by_value(const void *a, const void *b) {
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

static double median(int count) {
    qsort(samples, (size_t)count, sizeof *samples, by_value);
    return samples[count / 2];
}
