/* copier.h: threads that copy matrices into the pinned ring and out of it, a transfer block at a time. No GPU is named
 * here. */
#ifndef TESSERA_OFFLOAD_COPIER_H
#define TESSERA_OFFLOAD_COPIER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The tests make these small, so that small products fill the ring. */
#ifndef OFFLOAD_BLOCK_BYTES
#define OFFLOAD_BLOCK_BYTES (4 << 20) /* of a transfer block */
#endif
#ifndef OFFLOAD_LEAST_PART
#define OFFLOAD_LEAST_PART (1 << 14) /* floats that are worth a thread of their own */
#endif

enum { TRANSFER_BLOCK = OFFLOAD_BLOCK_BYTES / (int)sizeof(float) }; /* floats */

/* Slots of the ring, each of one transfer block: to the GPU, and back. */
enum { RING_IN = 8, RING_OUT = 8, RING_BYTES = (RING_IN + RING_OUT) * OFFLOAD_BLOCK_BYTES };

enum { COPIER_MOST_THREADS = 32, COPIER_COPIES = 2 * (RING_IN + RING_OUT) /* posted at a time */ };

/* A matrix whose elements are numbered along runs: its rows, or its columns where those are contiguous. */
typedef struct copy_matrix {
    float *data;
    int64_t run_length, run_stride, step; /* elements of a run; from one run, and one element, to the next */
} copy_matrix;

bool runs_are_columns(int64_t row_stride, int64_t col_stride);
copy_matrix copy_matrix_of(float *data, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride);

/* Elements `first` to `end` of a matrix, to or from a slot. Each thread copies one part, always the same part of a
 * slot, so that this part stays in its own cache. */
typedef struct copy {
    copy_matrix matrix;
    float *slot; /* where element `first` lies */
    int64_t first, end, part_size;
    bool to_ring;
    _Atomic uint64_t untaken; /* the copy's number << 32 | a bit for each part that nobody has taken yet */
    atomic_int left;          /* parts not copied yet */
} copy;

/* Initialised to zero, but for `threads`. */
typedef struct copier {
    int threads;                /* that copy and do nothing else, at most; or 0 */
    atomic_int joined;          /* those that have begun */
    copy copies[COPIER_COPIES]; /* a ring */
    _Atomic int64_t posted;
    atomic_bool over; /* there will be no more */
} copier;

/* For the driving thread, which alone posts copies. Returns the copy's number; waits while the copy before it in its
 * place is not done. */
int64_t copier_post(copier *copier, copy_matrix matrix, int64_t first, int64_t end, float *slot, bool to_ring);
bool copier_is_done(const copier *copier, int64_t number);

/* For the driving thread while it waits: copies a part if too few threads do nothing else, otherwise pauses. */
void copier_help(copier *copier);

/* What thread `member`, 1 or more, does until copier_end. */
void copier_work(copier *copier, int member);
void copier_end(copier *copier);

#endif
