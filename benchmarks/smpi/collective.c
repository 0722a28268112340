/* One collective on SMPI: collective OPERATION BYTES TIMES. Bytes: to each peer (alltoall), of the vector (allreduce). */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 4) return fprintf(stderr, "usage: %s alltoall|allreduce|barrier BYTES TIMES\n", argv[0]), 2;
    int ranks, rank, bytes = atoi(argv[2]), times = atoi(argv[3]);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    size_t room = strcmp(argv[1], "alltoall") ? (size_t)bytes : (size_t)bytes * ranks;
    char *from = calloc(1, room + 1), *to = calloc(1, room + 1);
    double start = MPI_Wtime();
    for (int i = 0; i < times; i++) {
        if (!strcmp(argv[1], "alltoall")) MPI_Alltoall(from, bytes, MPI_BYTE, to, bytes, MPI_BYTE, MPI_COMM_WORLD);
        else if (!strcmp(argv[1], "allreduce")) MPI_Allreduce(from, to, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        else MPI_Barrier(MPI_COMM_WORLD);
    }
    if (!rank) printf("simulated_us %.3f\n", (MPI_Wtime() - start) * 1e6);
    MPI_Finalize();
    return 0;
}
