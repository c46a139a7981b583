// Measures MPI_Send and MPI_Recv between two pinned processes: half a round trip, and a stream in
// windows of 64 messages.
// usage: mpirun -np 2 mpi CPU CPU latency|rate:SIZE...
// prints "latency SIZE NS" and "rate SIZE MESSAGES_PER_SECOND"
#define _GNU_SOURCE
#include <mpi.h>
#include "common.h"

enum { EACH = 100, CHUNKS = 200, WARM = 20, WINDOW = 64 };

static int rank;

static void there(char *buffer, int size) { MPI_Send(buffer, size, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD); }

static void back(char *buffer, int size) {
    MPI_Recv(buffer, size, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void latency(char *buffer, int size) {
    // A round trip takes little more than reading the clock, so 100 are timed together.
    for (int chunk = 0; chunk < WARM + CHUNKS; chunk++) {
        double started = now_ns();
        for (int i = 0; i < EACH; i++) {
            if (rank == 0) there(buffer, size), back(buffer, size);
            else back(buffer, size), there(buffer, size);
        }
        if (chunk >= WARM) sample(chunk - WARM, (now_ns() - started) / 2 / EACH);
    }
    if (rank == 0) printf("latency %d %.1f\n", size, median(CHUNKS));
}

// Uses one buffer on each side, as the usual MPI benchmarks do.
static void stream(char *buffer, int size) {
    MPI_Request requests[WINDOW];
    char answer = 0;
    int windows = size > 4096 ? 200 : 4000, warm = windows / 10;
    double started = 0;
    for (int w = 0; w < warm + windows; w++) {
        if (w == warm) started = now_ns();
        for (int i = 0; i < WINDOW; i++) {
            if (rank == 0) MPI_Isend(buffer, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &requests[i]);
            else MPI_Irecv(buffer, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, &requests[i]);
        }
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        if (rank == 0) back(&answer, 1);
        else there(&answer, 1);
    }
    if (rank == 0) printf("rate %d %.1f\n", size, (double)windows * WINDOW * 1e9 / (now_ns() - started));
}

int main(int argc, char **argv) {
    limit_time();
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 4) die("usage: mpi CPU CPU latency|rate:SIZE...");
    pin(atoi(argv[1 + rank]));
    for (int arg = 3; arg < argc; arg++) {
        int size = atoi(strchr(argv[arg], ':') + 1);
        char *buffer = memory((size_t)size);
        (argv[arg][0] == 'l' ? latency : stream)(buffer, size);
        free(buffer);
    }
    MPI_Finalize();
    return 0;
}
