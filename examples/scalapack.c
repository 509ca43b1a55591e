/* scalapack.c: C = A*B on matrices that no one process holds, by ScaLAPACK's psgemm_ over MPI.
 *
 * The processes form a grid; each holds blocks of every matrix, dealt out in turn. psgemm_ sends blocks around and
 * calls sgemm_ for what is local, so with libtessera_blas in front those products are Tessera's:
 *
 *     mpicc scalapack.c -o scalapack -lscalapack-openmpi
 *     mpirun -np 4 tessera run -- ./scalapack 4000
 *
 * The matrices hold small integers, for which every element of C is known exactly: each process checks its own.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

void Cblacs_pinfo(int *rank, int *processes);
void Cblacs_get(int context, int what, int *value);
void Cblacs_gridinit(int *context, const char *order, int rows, int columns);
void Cblacs_gridinfo(int context, int *rows, int *columns, int *row, int *column);
void Cblacs_gridexit(int context);
int numroc_(const int *n, const int *block, const int *mine, const int *first, const int *processes);
void descinit_(int *descriptor, const int *m, const int *n, const int *block_m, const int *block_n, const int *row,
               const int *column, const int *context, const int *leading, int *info);
void psgemm_(const char *transa, const char *transb, const int *m, const int *n, const int *k, const float *alpha,
             const float *a, const int *row_a, const int *col_a, const int *a_descriptor, const float *b,
             const int *row_b, const int *col_b, const int *b_descriptor, const float *beta, float *c, const int *row_c,
             const int *col_c, const int *c_descriptor);

enum { BLOCK = 128 };

/* A(i,p) = i % 5 + p % 3 and B(p,j) = p % 3 - j % 7. */
static float a_at(int i, int p) { return (float)(i % 5 + p % 3); }
static float b_at(int p, int j) { return (float)(p % 3 - j % 7); }

/* The sum over p < n of a_at(i, p) * b_at(p, j). */
static double c_at(int n, int i, int j) {
    double sum = 0;
    for (int rest = 0; rest < 3; rest++) {
        const int count = n / 3 + (rest < n % 3);
        sum += (double)count * a_at(i, rest) * b_at(rest, j);
    }
    return sum;
}

/* Which row or column of the whole matrix is number `local` of process `mine`. */
static int global_index(int local, int mine, int processes) {
    return (local / BLOCK * processes + mine) * BLOCK + local % BLOCK;
}

int main(int count, char **words) {
    const int n = count > 1 ? atoi(words[1]) : 1000;
    int rank, processes, context, rows = 1, columns, row, column, info;
    MPI_Init(&count, &words);
    Cblacs_pinfo(&rank, &processes);
    for (int divisor = 1; divisor * divisor <= processes; divisor++)
        if (processes % divisor == 0) rows = divisor; /* the squarest grid */
    Cblacs_get(-1, 0, &context);
    Cblacs_gridinit(&context, "Row", rows, processes / rows);
    Cblacs_gridinfo(context, &rows, &columns, &row, &column);

    const int zero = 0, one = 1, block = BLOCK;
    const int my_rows = numroc_(&n, &block, &row, &zero, &rows),
              my_columns = numroc_(&n, &block, &column, &zero, &columns);
    const int leading = my_rows > 1 ? my_rows : 1;
    const size_t floats = (size_t)leading * (size_t)(my_columns > 1 ? my_columns : 1);
    float *a = malloc(floats * sizeof *a), *b = malloc(floats * sizeof *b), *c = malloc(floats * sizeof *c);
    if (!a || !b || !c) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int j = 0; j < my_columns; j++)
        for (int i = 0; i < my_rows; i++) {
            const int at_row = global_index(i, row, rows), at_column = global_index(j, column, columns);
            a[i + (size_t)j * (size_t)leading] = a_at(at_row, at_column);
            b[i + (size_t)j * (size_t)leading] = b_at(at_row, at_column);
        }
    int descriptor[9];
    descinit_(descriptor, &n, &n, &block, &block, &zero, &zero, &context, &leading, &info);

    const float alpha = 1, beta = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    const double begun = MPI_Wtime();
    psgemm_("N", "N", &n, &n, &n, &alpha, a, &one, &one, descriptor, b, &one, &one, descriptor, &beta, c, &one, &one,
            descriptor);
    MPI_Barrier(MPI_COMM_WORLD);
    const double seconds = MPI_Wtime() - begun;

    long wrong = 0, wrong_anywhere = 0;
    for (int j = 0; j < my_columns; j++)
        for (int i = 0; i < my_rows; i++)
            wrong += c[i + (size_t)j * (size_t)leading] !=
                     c_at(n, global_index(i, row, rows), global_index(j, column, columns));
    MPI_Allreduce(&wrong, &wrong_anywhere, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d x %d on %d x %d processes: %.3f s, %.1f GFLOP/s, %ld elements wrong\n", n, n, rows, columns, seconds,
               2e-9 * n * n * n / seconds, wrong_anywhere);
    free(a);
    free(b);
    free(c);
    Cblacs_gridexit(context);
    MPI_Finalize();
    return wrong_anywhere != 0;
}
