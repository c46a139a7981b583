// Ping-pong with MPI_Send and MPI_Recv between two pinned processes: half a round trip in nanoseconds.
// usage: mpirun -np 2 mpi CPU CPU SIZE...
#define _GNU_SOURCE
#include <mpi.h>
#include <string.h>
#include "common.h"

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 4) die("usage: mpi CPU CPU SIZE...");
    pin(atoi(argv[1 + rank]));
    for (int arg = 3; arg < argc; arg++) {
        int size = atoi(argv[arg]), chunks = 200, each = 100, warm = 20;
        char *buffer = calloc(1, (size_t)size);
        // A single round trip is near the cost of reading the clock: time them by the hundred.
        for (int chunk = 0; chunk < warm + chunks; chunk++) {
            double started = now_ns();
            for (int i = 0; i < each; i++) {
                if (rank == 0) {
                    MPI_Send(buffer, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
                    MPI_Recv(buffer, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                } else {
                    MPI_Recv(buffer, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                    MPI_Send(buffer, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
                }
            }
            if (chunk >= warm) sample(chunk - warm, (now_ns() - started) / 2 / each);
        }
        if (rank == 0) printf("%d %.1f\n", size, median(chunks));
        free(buffer);
    }
    MPI_Finalize();
    return 0;
}
