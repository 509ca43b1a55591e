/* copier.c: copies by several threads. The driving thread posts them; threads take parts by a compare-and-swap. */
#include "offload/copier.h"

#include <assert.h>
#include <sched.h>
#include <string.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "cpu/team.h"
#include "problem.h"

/* The tests put a copy that stalls now and then in its place. */
#ifndef OFFLOAD_MEMCPY
#define OFFLOAD_MEMCPY memcpy
#endif

enum { SPINS = 1000 };       /* looks for something to copy before the thread yields its core */
enum { ENOUGH_THREADS = 4 }; /* that copy: then the driving thread does not */
enum { LINE = 16 };          /* floats of a cache line */
static_assert(COPIER_MOST_THREADS <= 32, "untaken parts are the bits of half a word");

bool runs_are_columns(int64_t row_stride, int64_t col_stride) { return row_stride == 1 && col_stride != 1; }

copy_matrix copy_matrix_of(float *data, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
    return runs_are_columns(row_stride, col_stride) ? (copy_matrix){data, rows, col_stride, row_stride}
                                                    : (copy_matrix){data, cols, row_stride, col_stride};
}

/* Past the caches, for what is not read again soon: an ordinary store would read the line first. */
static void copy_past_caches(float *to, const float *from, int64_t count) {
#ifdef __SSE__
    for (; count && (uintptr_t)to % 16; count--) *to++ = *from++;
    for (; count >= 16; count -= 16, to += 16, from += 16) {
        const __m128 x0 = _mm_loadu_ps(from), x1 = _mm_loadu_ps(from + 4);
        const __m128 x2 = _mm_loadu_ps(from + 8), x3 = _mm_loadu_ps(from + 12);
        _mm_stream_ps(to, x0);
        _mm_stream_ps(to + 4, x1);
        _mm_stream_ps(to + 8, x2);
        _mm_stream_ps(to + 12, x3);
    }
#endif
    OFFLOAD_MEMCPY(to, from, (size_t)count * sizeof *to);
}

static void copy_run(const copy *c, float *in_matrix, float *in_slot, int64_t count) {
    const int64_t step = c->matrix.step;
    if (step == 1 && c->to_ring)
        OFFLOAD_MEMCPY(in_slot, in_matrix, (size_t)count * sizeof(float));
    else if (step == 1)
        copy_past_caches(in_matrix, in_slot, count);
    else if (c->to_ring)
        for (int64_t i = 0; i < count; i++) in_slot[i] = in_matrix[i * step];
    else
        for (int64_t i = 0; i < count; i++) in_matrix[i * step] = in_slot[i];
}

static void copy_part(copy *c, int part) {
    const copy_matrix *x = &c->matrix;
    int64_t at = c->first + part * c->part_size;
    const int64_t end = min64(at + c->part_size, c->end);
    for (int64_t count; at < end; at += count) {
        const int64_t run = at / x->run_length, within = at % x->run_length;
        count = min64(end - at, x->run_length - within);
        copy_run(c, x->data + run * x->run_stride + within * x->step, c->slot + (at - c->first), count);
    }
#ifdef __SSE__
    _mm_sfence(); /* stores past the caches are not ordered with the others */
#endif
    atomic_fetch_sub_explicit(&c->left, 1, memory_order_release);
}

/* Takes and copies a part of copy `number`, of those in `wanted`. False where none of them is left, or the copy is over
 * and its place has been given to another. A part that was taken keeps the place from being given away. */
static bool help_copy(copier *all, int64_t number, uint32_t wanted) {
    copy *c = &all->copies[number % COPIER_COPIES];
    uint64_t untaken = atomic_load_explicit(&c->untaken, memory_order_acquire);
    uint32_t part;
    do {
        const uint32_t candidates = (uint32_t)untaken & wanted;
        if (untaken >> 32 != (uint32_t)number || !candidates) return false;
        part = candidates & (~candidates + 1);
    } while (!atomic_compare_exchange_weak_explicit(&c->untaken, &untaken, untaken & ~(uint64_t)part,
                                                    memory_order_acquire, memory_order_acquire));
    copy_part(c, __builtin_ctz(part));
    return true;
}

/* The same of the oldest copy that has one left. */
static bool help_any_copy(copier *all, uint32_t wanted) {
    const int64_t posted = atomic_load_explicit(&all->posted, memory_order_acquire);
    for (int64_t number = posted > COPIER_COPIES ? posted - COPIER_COPIES : 0; number < posted; number++)
        if (help_copy(all, number, wanted)) return true;
    return false;
}

/* A place is given away only when its copy is done. */
bool copier_is_done(const copier *all, int64_t number) {
    const int64_t posted = atomic_load_explicit(&all->posted, memory_order_relaxed);
    return posted > number + COPIER_COPIES ||
           !atomic_load_explicit(&all->copies[number % COPIER_COPIES].left, memory_order_acquire);
}

/* Its own parts first, then those of others. */
void copier_work(copier *all, int member) {
    const uint32_t own = 1u << (member - 1);
    atomic_fetch_add_explicit(&all->joined, 1, memory_order_relaxed);
    for (int idle = 0; !atomic_load_explicit(&all->over, memory_order_acquire);) {
        if (help_any_copy(all, own) || help_any_copy(all, UINT32_MAX))
            idle = 0;
        else if (++idle < SPINS)
            cpu_pause();
        else
            sched_yield();
    }
}

void copier_end(copier *all) { atomic_store_explicit(&all->over, true, memory_order_release); }

/* Only if needed: while the driving thread copies a part, its commands to the GPU are late. */
void copier_help(copier *all) {
    const bool enough = atomic_load_explicit(&all->joined, memory_order_relaxed) >= ENOUGH_THREADS;
    if (enough || !help_any_copy(all, UINT32_MAX)) cpu_pause();
}

int64_t copier_post(copier *all, copy_matrix matrix, int64_t first, int64_t end, float *slot, bool to_ring) {
    const int64_t number = atomic_load_explicit(&all->posted, memory_order_relaxed);
    copy *c = &all->copies[number % COPIER_COPIES];
    while (atomic_load_explicit(&c->left, memory_order_acquire)) copier_help(all);
    c->matrix = matrix;
    c->slot = slot;
    c->first = first;
    c->end = end;
    c->to_ring = to_ring;
    int64_t parts = min64(max64(1, all->threads), ceil_div(end - first, OFFLOAD_LEAST_PART));
    c->part_size = round_up(ceil_div(end - first, parts), LINE);
    parts = ceil_div(end - first, c->part_size);
    atomic_store_explicit(&c->left, (int)parts, memory_order_relaxed);
    atomic_store_explicit(&c->untaken, (uint64_t)number << 32 | (uint32_t)((1ull << parts) - 1), memory_order_release);
    atomic_store_explicit(&all->posted, number + 1, memory_order_release);
    return number;
}
