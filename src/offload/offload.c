/* offload.c: products of matrices in host memory, in pieces that keep the bus busy both ways while the GPU computes.
 *
 * C is computed in blocks of bm x bn. Where A and B fit into the GPU's memory they stay there, in panels of bm rows and
 * bn columns, of the whole depth, each sent and packed once. Panels come in the order that completes blocks of C as
 * early as can be: one of A and one of B in turns, and after each the blocks that it makes with all that are there.
 * So C is on its way back almost as long as A and B are on theirs.
 *
 *         B0 B1 B2          the order in which panels come: A0 B0 B1 A1 B2 A2
 *     A0   1  2  5          and blocks are computed: as numbered
 *     A1   3  4  6
 *     A2   7  8  9
 *
 * Where A and B do not fit, blocks follow each other row by row, each a sum over chunks of bk of depth, and chunks of A
 * and B come for each block anew. (The product is transposed beforehand where that makes A the smaller operand.)
 *
 * Three streams run at once: `in` carries panels or chunks to the GPU, `compute` packs and multiplies, `out` carries
 * blocks back. Each slot for a panel, chunk or block on the GPU has an event: what is copied into it waits until what was
 * there has been used. Ordinary memory cannot be copied by the GPU while others work, so everything passes through a ring
 * of pinned memory, a piece at a time, a piece being a range of a matrix's elements. The thread that calls directs all
 * this, and never waits where it can go on: pieces are copied into the ring and out of it by the other threads, ahead of
 * what it tells the GPU to do with them, and by itself where there are too few of those.
 *
 * C is written by the CPU alone, from pieces that have arrived whole. So when the GPU fails, it is known to the element
 * what of C is done, the rest of C is as it was, and the CPU computes that rest.
 *
 * Blocks follow from the shapes, the GPU's memory and options.max_workspace, not from what is free at the moment: the
 * same product gives the same bits. Only where not even that much is free are they made smaller.
 */
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "../plan.h" /* cuda/plan.h is another */
#include "cpu/threads.h"
#include "cuda/context.h"

enum { PIECE_BYTES = 4 << 20, PIECE = PIECE_BYTES / (int)sizeof(float) }; /* what is copied at a time */
enum { SPINS = 1000 };                            /* looks for something to copy before others may have the core */
enum { MOST_THREADS = 32, LEAST_UNIT = 1 << 14 }; /* that copy; floats that one copies */
enum { IN_PIECES = 8, OUT_PIECES = 8, STAGING_BYTES = (IN_PIECES + OUT_PIECES) * PIECE_BYTES };
enum { COPIES = 2 * (IN_PIECES + OUT_PIECES) }; /* posted at a time */
enum { ORDERS = 4 * IN_PIECES };
enum { ENOUGH_THREADS = 4 }; /* that copy: then the one that directs does nothing else */
static_assert(MOST_THREADS <= 32, "units left are bits of half a word");
enum { ALIGNMENT = 256 }; /* of slots on the GPU */

/* Panels that stay: large enough for the kernels to be at their best, small enough for blocks to be done early. The last
 * to come are of A, so that these are smaller: what they complete has no other copies to hide behind. */
enum { LEAST_BM = 512, MOST_BM = 1024, LEAST_BN = 1024, MOST_BN = 2048, PANEL_STEP = 256 };
enum { MOST_PANELS = 32 }; /* of A, and of B */

/* Chunks that do not, and the blocks they are for: so large that multiplying takes as long as copying. */
enum { BLOCK = 16384, CHUNK = 1024, CHUNK_SLOTS = 3 };

enum { MOST_C_SLOTS = 32 };
enum { SETS = 2 }; /* of panels: the next product of a batch comes while the last one is computed */
enum { MOST_SLOTS = SETS * MOST_PANELS };

/* Where the events of each kind begin. */
enum {
    PIECE_SENT = 0,                      /* a place of the ring has been copied to the GPU */
    PIECE_BACK = PIECE_SENT + IN_PIECES, /* or from it */
    A_USED = PIECE_BACK + OUT_PIECES,    /* the product that read the slot is done */
    B_USED = A_USED + MOST_SLOTS,
    COMPUTED = B_USED + MOST_SLOTS,    /* the block, by its number */
    ARRIVED = COMPUTED + MOST_C_SLOTS, /* what was queued last on `in` */
    EVENTS
};

struct cuda_offload {
    CUstream in, compute, out;
    CUevent events[EVENTS];
    float *staging; /* pinned: IN_PIECES, then OUT_PIECES */
    CUdeviceptr memory;
    size_t bytes;
    tsr_context *cpu; /* computes what a failing GPU leaves, with `staging` as its workspace */
};

/* How a product is cut, and where its parts lie in the memory taken for it. */
typedef struct cut {
    bool keeps; /* A and B in panels that stay; else in chunks that do not */
    int64_t bm, bn, bk;
    int64_t a_panels, b_panels; /* rows and columns of blocks */
    int a_slots, b_slots, c_slots;
    size_t a_bytes, b_bytes, c_bytes; /* of a matrix in its slot; behind it, in slots of A and B, its packed form */
    size_t a_packed, b_packed;        /* of that; 0 where products do without */
    size_t workspace;                 /* of the kernels */
} cut;

/* Goes through the blocks of C in order. */
typedef struct walk {
    int64_t a_panels, b_panels; /* those that have come, the one being multiplied among them */
    bool down;                  /* the last to come is of B: it is multiplied by all of A's; else the other way round */
    int64_t i, j;               /* the block */
} walk;

/* Elements `first` on of a matrix, numbered along runs (its rows, or its columns where those are contiguous), to or from
 * the ring. Each of the threads copies a unit of it, and always the same part of a place in the ring, so that this part
 * stays in its own cache: the ring is small enough, and memory has enough to do. */
typedef struct copy {
    float *matrix;
    int64_t run_length, run_stride, step; /* elements of a run; from one run, and one element, to the next */
    float *staging;                       /* where element `first` lies */
    int64_t first, end, unit;             /* unit: elements in one */
    bool to_staging;
    _Atomic uint64_t taking; /* the copy's number << 32 | a bit for each unit that nobody has taken yet */
    atomic_int left;         /* units not copied yet */
} copy;

/* What the GPU will be told, in this order, as soon as the copies it depends on are done. */
typedef struct order {
    enum { SEND, MULTIPLY, BRING_BACK } what;
    CUevent after;         /* SEND: an event to wait for first; or NULL */
    int64_t copied, count; /* SEND: the number of the copy into the ring, and its elements */
    CUdeviceptr to;
    int place;         /* of the ring */
    tsr_problem block; /* MULTIPLY */
    int a_slot, b_slot;
    bool packs_a, packs_b;
    tsr_result c; /* BRING_BACK: where the block goes */
    CUdeviceptr from;
} order;

/* A block of C on its way back, its elements in the order in which they lie on the GPU. */
typedef struct outgoing {
    tsr_result to;
    CUdeviceptr from;
    int64_t queued, copying, done; /* elements: told the GPU; arrived, being copied to C; in C */
} outgoing;

/* One product under way. */
typedef struct transfer {
    tsr_context *context;
    const cuda_driver *driver;
    struct cuda_offload *kept;
    tsr_problem p;
    cut cut;
    int copiers;         /* threads that copy and do nothing else, at most; or 0 */
    atomic_int joined;   /* those that have begun */
    copy copies[COPIES]; /* a ring */
    _Atomic int64_t copies_posted;
    atomic_bool over;     /* there will be no more */
    order orders[ORDERS]; /* another */
    int64_t orders_given, orders_done;
    int64_t blocks_ordered, pieces_ordered, chunks_ordered;
    int64_t a_sent, b_sent; /* panels of the product, one of the batch, that have been ordered */
    tsr_packed a_packed[MOST_SLOTS], b_packed[MOST_SLOTS];
    int64_t piece_orders[IN_PIECES];          /* the order that sends what is in the place */
    int64_t out_queued, out_posted, out_done; /* pieces brought back: told the GPU; posted as copies; in C */
    int64_t out_copies[OUT_PIECES];           /* their numbers */
    outgoing blocks[MOST_C_SLOTS];            /* the last of them, by number */
    int64_t block_count, block_first;         /* told the GPU to bring back; those before block_first are in C */
    CUdeviceptr workspace;
    tsr_status status; /* of the first that failed */
} transfer;

static size_t aligned(int64_t floats) {
    return ((size_t)floats * sizeof(float) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- Copies by all threads --------------------------------------------------------------------------------------- */

static bool runs_are_columns(int64_t row_stride, int64_t col_stride) { return row_stride == 1 && col_stride != 1; }

static copy copy_of(float *matrix, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
    return runs_are_columns(row_stride, col_stride)
               ? (copy){.matrix = matrix, .run_length = rows, .run_stride = col_stride, .step = row_stride}
               : (copy){.matrix = matrix, .run_length = cols, .run_stride = row_stride, .step = col_stride};
}

/* Past the caches, for what is not read again for long: a processor that stores a line the ordinary way reads it first. */
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
    memcpy(to, from, (size_t)count * sizeof *to);
}

static void copy_run(const copy *c, float *in_matrix, float *in_staging, int64_t count) {
    if (c->step == 1 && c->to_staging)
        memcpy(in_staging, in_matrix, (size_t)count * sizeof(float));
    else if (c->step == 1)
        copy_past_caches(in_matrix, in_staging, count);
    else if (c->to_staging)
        for (int64_t i = 0; i < count; i++) in_staging[i] = in_matrix[i * c->step];
    else
        for (int64_t i = 0; i < count; i++) in_matrix[i * c->step] = in_staging[i];
}

static void copy_unit(copy *c, int unit) {
    int64_t at = c->first + unit * c->unit;
    const int64_t end = min64(at + c->unit, c->end);
    for (int64_t count; at < end; at += count) {
        const int64_t run = at / c->run_length, within = at % c->run_length;
        count = min64(end - at, c->run_length - within);
        copy_run(c, c->matrix + run * c->run_stride + within * c->step, c->staging + (at - c->first), count);
    }
#ifdef __SSE__
    _mm_sfence(); /* stores past the caches are in no order with the others */
#endif
    atomic_fetch_sub_explicit(&c->left, 1, memory_order_release);
}

/* Takes and copies a unit of copy `number`, of those in `wanted`; false where none of them is left, or the copy is over
 * and its place has been given to another. A unit that was taken keeps the place from being given away. */
static bool help_copy(transfer *t, int64_t number, uint32_t wanted) {
    copy *c = &t->copies[number % COPIES];
    uint64_t taking = atomic_load_explicit(&c->taking, memory_order_acquire);
    uint32_t unit;
    do {
        const uint32_t free_units = (uint32_t)taking & wanted;
        if (taking >> 32 != (uint32_t)number || !free_units) return false;
        unit = free_units & (~free_units + 1);
    } while (!atomic_compare_exchange_weak_explicit(&c->taking, &taking, taking & ~(uint64_t)unit, memory_order_acquire,
                                                    memory_order_acquire));
    copy_unit(c, __builtin_ctz(unit));
    return true;
}

/* The same of the oldest copy that has one left. */
static bool help_any_copy(transfer *t, uint32_t wanted) {
    const int64_t posted = atomic_load_explicit(&t->copies_posted, memory_order_acquire);
    for (int64_t number = posted > COPIES ? posted - COPIES : 0; number < posted; number++)
        if (help_copy(t, number, wanted)) return true;
    return false;
}

/* For the thread that directs, which alone posts copies. A place is given away only when its copy is done. */
static bool is_copied(const transfer *t, int64_t number) {
    const int64_t posted = atomic_load_explicit(&t->copies_posted, memory_order_relaxed);
    return posted > number + COPIES || !atomic_load_explicit(&t->copies[number % COPIES].left, memory_order_acquire);
}

static void pause_briefly(void) {
#ifdef __SSE__
    _mm_pause();
#endif
}

/* What the other threads do: each its own units, and those of others when it has none. */
static void copy_for_others(transfer *t, int member) {
    const uint32_t own = 1u << (member - 1);
    atomic_fetch_add_explicit(&t->joined, 1, memory_order_relaxed);
    for (int idle = 0; !atomic_load_explicit(&t->over, memory_order_acquire);) {
        if (help_any_copy(t, own) || help_any_copy(t, UINT32_MAX))
            idle = 0;
        else if (++idle < SPINS)
            pause_briefly();
        else
            sched_yield();
    }
}

/* The thread that directs has nothing to do but wait. It copies only where that is needed: what it has to tell the GPU
 * would be late by as long as a unit takes. */
static void help_while_waiting(transfer *t) {
    const bool enough = atomic_load_explicit(&t->joined, memory_order_relaxed) >= ENOUGH_THREADS;
    if (enough || !help_any_copy(t, UINT32_MAX)) pause_briefly();
}

/* Returns the copy's number. */
static int64_t post_copy(transfer *t, copy matrix, int64_t first, int64_t end, float *staging, bool to_staging) {
    const int64_t number = atomic_load_explicit(&t->copies_posted, memory_order_relaxed);
    copy *c = &t->copies[number % COPIES];
    while (atomic_load_explicit(&c->left, memory_order_acquire)) help_while_waiting(t);
    c->matrix = matrix.matrix;
    c->run_length = matrix.run_length;
    c->run_stride = matrix.run_stride;
    c->step = matrix.step;
    c->staging = staging;
    c->first = first;
    c->end = end;
    c->to_staging = to_staging;
    int64_t units = min64(t->copiers + !t->copiers, ceil_div(end - first, LEAST_UNIT));
    c->unit = ceil_div(ceil_div(end - first, units), 16) * 16; /* whole lines of the cache */
    units = ceil_div(end - first, c->unit);
    atomic_store_explicit(&c->left, (int)units, memory_order_relaxed);
    atomic_store_explicit(&c->taking, (uint64_t)number << 32 | (uint32_t)((1ull << units) - 1), memory_order_release);
    atomic_store_explicit(&t->copies_posted, number + 1, memory_order_release);
    return number;
}

/* ---- What is kept from call to call ------------------------------------------------------------------------------ */

static void release(struct cuda_context *cuda, struct cuda_offload *kept, bool alive) {
    const cuda_driver *driver = cuda->driver;
    if (alive) {
        for (int i = 0; i < EVENTS; i++)
            if (kept->events[i]) driver->cuEventDestroy(kept->events[i]);
        if (kept->in) driver->cuStreamDestroy(kept->in);
        if (kept->compute) driver->cuStreamDestroy(kept->compute);
        if (kept->out) driver->cuStreamDestroy(kept->out);
        if (kept->staging) driver->cuMemFreeHost(kept->staging);
        if (kept->memory) driver->cuMemFree(kept->memory);
    }
    tsr_context_destroy(kept->cpu);
    free(kept);
}

void cuda_offload_release(struct cuda_context *cuda, bool alive) {
    if (cuda->offload) release(cuda, cuda->offload, alive);
    cuda->offload = NULL;
}

static tsr_status make_kept(const tsr_context *context, struct cuda_offload **made) {
    struct cuda_context *cuda = context->cuda;
    const cuda_driver *driver = cuda->driver;
    struct cuda_offload *kept = calloc(1, sizeof *kept);
    if (!kept) return tsr_fail(TSR_OUT_OF_MEMORY, "no memory to prepare copies to the GPU");
    tsr_options options = TSR_OPTIONS_DEFAULT;
    options.precision = context->options.precision;
    options.threads = context->options.threads;
    options.max_workspace = STAGING_BYTES;
    tsr_status status = tsr_context_create(&kept->cpu, &options);
    CUresult error = CUDA_SUCCESS;
    if (!status && !(error = driver->cuStreamCreate(&kept->in, CU_STREAM_NON_BLOCKING)) &&
        !(error = driver->cuStreamCreate(&kept->compute, CU_STREAM_NON_BLOCKING)))
        error = driver->cuStreamCreate(&kept->out, CU_STREAM_NON_BLOCKING);
    for (int i = 0; !status && !error && i < EVENTS; i++)
        error = driver->cuEventCreate(&kept->events[i], CU_EVENT_DISABLE_TIMING);
    if (!status && !error) error = driver->cuMemHostAlloc((void **)&kept->staging, STAGING_BYTES, 0);
    if (error) status = cuda_fail(error, "preparing copies to GPU %d", cuda->device.ordinal);
    if (status)
        release(cuda, kept, true);
    else
        *made = kept;
    return status;
}

/* At least `bytes` on the GPU. */
static CUresult take_memory(const cuda_driver *driver, struct cuda_offload *kept, size_t bytes) {
    if (kept->bytes >= bytes) return CUDA_SUCCESS;
    if (kept->memory) driver->cuMemFree(kept->memory);
    kept->memory = 0;
    kept->bytes = 0;
    const CUresult error = driver->cuMemAlloc(&kept->memory, bytes);
    if (error)
        kept->memory = 0;
    else
        kept->bytes = bytes;
    return error;
}

/* ---- How to cut -------------------------------------------------------------------------------------------------- */

/* A block's product on the GPU: matrices as they lie in their slots. */
static tsr_problem block_problem(const tsr_problem *p, int64_t m, int64_t n, int64_t k) {
    const bool a_columns = runs_are_columns(p->a.row_stride, p->a.col_stride);
    const bool b_columns = runs_are_columns(p->b.row_stride, p->b.col_stride);
    const bool c_columns = runs_are_columns(p->c.row_stride, p->c.col_stride);
    tsr_problem block = {.m = m, .n = n, .k = k, .batch = 1, .alpha = p->alpha, .beta = 1};
    block.a = (tsr_operand){NULL, m, k, a_columns ? 1 : k, a_columns ? m : 1, 0, NULL};
    block.b = (tsr_operand){NULL, k, n, b_columns ? 1 : n, b_columns ? k : 1, 0, NULL};
    block.c = (tsr_result){NULL, m, n, c_columns ? 1 : n, c_columns ? m : 1, 0};
    block.addend = (tsr_operand){NULL, m, n, block.c.row_stride, block.c.col_stride, 0, NULL};
    return block;
}

static size_t total_bytes(const cut *c) {
    return (size_t)c->a_slots * (c->a_bytes + c->a_packed) + (size_t)c->b_slots * (c->b_bytes + c->b_packed) +
           (size_t)c->c_slots * c->c_bytes + c->workspace;
}

/* Sizes and numbers of slots, and the workspace, of the cut as it stands. */
static tsr_status measure(cut *c, tsr_context *context, const tsr_problem *p) {
    c->a_panels = ceil_div(p->m, c->bm);
    c->b_panels = ceil_div(p->n, c->bn);
    const int64_t sets = min64(SETS, p->batch), chunks = ceil_div(p->k, c->bk);
    c->a_slots = (int)(c->keeps ? sets * c->a_panels : min64(CHUNK_SLOTS, chunks));
    c->b_slots = (int)(c->keeps ? sets * c->b_panels : min64(CHUNK_SLOTS, chunks));
    const int64_t blocks = c->a_panels * c->b_panels * min64(MOST_C_SLOTS, p->batch);
    c->c_slots = (int)min64(blocks, c->keeps ? MOST_C_SLOTS : CHUNK_SLOTS);
    c->a_bytes = aligned(c->bm * c->bk);
    c->b_bytes = aligned(c->bk * c->bn);
    c->c_bytes = aligned(c->bm * c->bn);
    c->a_packed = c->b_packed = 0;
    tsr_plan plan = {.context = context, .problem = block_problem(p, c->bm, c->bn, c->bk)};
    tsr_status status = plan_make(&plan);
    if (!status && c->keeps && plan_is_split(&plan)) {
        c->a_packed = cuda_pack_size(context, TSR_LEFT, &plan.problem.a);
        c->b_packed = cuda_pack_size(context, TSR_RIGHT, &plan.problem.b);
        const tsr_packed somewhere = {.panels = c};
        plan.problem.a.packed = plan.problem.b.packed = &somewhere;
        status = plan_make(&plan);
    }
    c->workspace = status ? 0 : (plan_workspace(&plan) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return status;
}

/* A fourth of the rows or columns, if that is no less than `low` and no more than `high`, in whole steps. */
static int64_t panel_of(int64_t all, int64_t low, int64_t high) {
    int64_t rows = ceil_div(all, 4);
    rows = rows < low ? low : min64(rows, high);
    if (rows < ceil_div(all, MOST_PANELS)) rows = ceil_div(all, MOST_PANELS);
    return min64(all, ceil_div(rows, PANEL_STEP) * PANEL_STEP);
}

static void halve(int64_t *x, int64_t *or_y) {
    int64_t *larger = *x >= *or_y ? x : or_y;
    *larger = ceil_div(*larger, 2);
}

/* Makes the largest of what lies on the GPU smaller. False where nothing is left to be made smaller. */
static bool shrink(cut *c) {
    const size_t a = (size_t)c->a_slots * c->a_bytes, b = (size_t)c->b_slots * c->b_bytes;
    const size_t all_c = (size_t)c->c_slots * c->c_bytes;
    if (c->bm <= 32 && c->bn <= 32 && c->bk <= 32) return false;
    if (all_c >= a && all_c >= b)
        halve(&c->bn, &c->bm);
    else if (a >= b)
        halve(&c->bm, &c->bk);
    else
        halve(&c->bn, &c->bk);
    return true;
}

static tsr_status choose_cut(cut *c, tsr_context *context, const tsr_problem *p, size_t limit) {
    tsr_status status;
    if (sizeof(float) * ((double)p->m + (double)p->n) * (double)p->k <= (double)limit) {
        *c = (cut){.keeps = true,
                   .bm = panel_of(p->m, LEAST_BM, MOST_BM),
                   .bn = panel_of(p->n, LEAST_BN, MOST_BN),
                   .bk = p->k};
        if (!measure(c, context, p) && total_bytes(c) <= limit) return TSR_OK;
    }
    *c = (cut){.bm = min64(p->m, BLOCK), .bn = min64(p->n, BLOCK), .bk = min64(p->k, CHUNK)};
    for (;;) {
        status = measure(c, context, p); /* a kernel may have room with smaller blocks alone */
        if (status && status != TSR_OUT_OF_MEMORY) return status;
        if (!status && total_bytes(c) <= limit) return TSR_OK;
        if (!shrink(c))
            return tsr_fail(TSR_OUT_OF_MEMORY, "%zu bytes on the GPU are too few for any part of this product", limit);
    }
}

/* In front of the first block. Where panels do not stay there is no point in taking turns: all of B counts as there. */
static walk walk_begin(const cut *c) { return (walk){.a_panels = 1, .b_panels = c->keeps ? 1 : c->b_panels, .j = -1}; }

/* To the next block, the first time to the first; false where there is none. */
static bool walk_on(walk *w, const cut *c) {
    if (w->down ? ++w->i < w->a_panels : ++w->j < w->b_panels) return true;
    if (w->a_panels == c->a_panels && w->b_panels == c->b_panels) return false;
    /* Of that operand comes the next panel of which less has come. */
    w->down = w->a_panels == c->a_panels ||
              (w->b_panels < c->b_panels && w->b_panels * c->a_panels <= w->a_panels * c->b_panels);
    if (w->down) {
        w->i = 0;
        w->j = w->b_panels++;
    } else {
        w->i = w->a_panels++;
        w->j = 0;
    }
    return true;
}

/* Cuts, and takes the memory for it. */
static tsr_status prepare(transfer *t) {
    struct cuda_context *cuda = t->context->cuda;
    size_t total = 0, limit = t->context->options.max_workspace;
    CUresult error = t->driver->cuDeviceTotalMem(&total, cuda->device.ordinal);
    if (error) return cuda_fail(error, "asking GPU %d for its memory", cuda->device.ordinal);
    if (!limit || limit > total / 2) limit = total / 2;
    for (;;) {
        const tsr_status status = choose_cut(&t->cut, t->context, &t->p, limit);
        if (status) return status;
        const size_t bytes = total_bytes(&t->cut);
        error = take_memory(t->driver, t->kept, bytes);
        if (error != CUDA_ERROR_OUT_OF_MEMORY)
            return error ? cuda_fail(error, "taking %zu bytes on GPU %d", bytes, cuda->device.ordinal) : TSR_OK;
        limit = bytes / 2;
    }
}

static void note(transfer *t, CUresult error, const char *doing) {
    if (error && !t->status) t->status = cuda_fail(error, "%s GPU %d", doing, t->context->cuda->device.ordinal);
}

/* ---- And back ---------------------------------------------------------------------------------------------------- */

/* The first block of which not all is queued, or NULL. */
static outgoing *next_to_queue(transfer *t) {
    for (int64_t i = t->block_first; i < t->block_count; i++) {
        outgoing *block = &t->blocks[i % MOST_C_SLOTS];
        if (block->queued < block->to.rows * block->to.cols) return block;
    }
    return NULL;
}

/* Tells the GPU to copy the block's next piece into the ring; the first of them when the block has been computed. (Not
 * before its turn: pieces of blocks before it, queued after that, would wait for it, too.) */
static void queue_piece(transfer *t, outgoing *block) {
    struct cuda_offload *kept = t->kept;
    const int place = (int)(t->out_queued++ % OUT_PIECES);
    const int64_t end = min64(block->queued + PIECE, block->to.rows * block->to.cols);
    CUresult error = CUDA_SUCCESS;
    if (!block->queued)
        error = t->driver->cuStreamWaitEvent(kept->out, kept->events[COMPUTED + (block - t->blocks)], 0);
    if (!error)
        error = t->driver->cuMemcpyDtoHAsync(kept->staging + (int64_t)(IN_PIECES + place) * PIECE,
                                             block->from + (size_t)block->queued * sizeof(float),
                                             (size_t)(end - block->queued) * sizeof(float), kept->out);
    if (!error) error = t->driver->cuEventRecord(kept->events[PIECE_BACK + place], kept->out);
    note(t, error, "copying from");
    block->queued = end;
}

/* Posts the copy of the oldest piece that has arrived to C. */
static void deliver_piece(transfer *t) {
    int64_t number = t->block_first;
    while (t->blocks[number % MOST_C_SLOTS].copying == t->blocks[number % MOST_C_SLOTS].queued) number++;
    outgoing *block = &t->blocks[number % MOST_C_SLOTS];
    const tsr_result *c = &block->to;
    const int place = (int)(t->out_posted++ % OUT_PIECES);
    const int64_t end = min64(block->copying + PIECE, c->rows * c->cols);
    t->out_copies[place] = post_copy(t, copy_of(c->data, c->rows, c->cols, c->row_stride, c->col_stride),
                                     block->copying, end, t->kept->staging + (int64_t)(IN_PIECES + place) * PIECE,
                                     false);
    block->copying = end;
}

/* Counts the oldest piece whose copy is done as being in C. */
static void count_piece(transfer *t) {
    outgoing *block = &t->blocks[t->block_first % MOST_C_SLOTS];
    const int64_t count = block->to.rows * block->to.cols;
    block->done = min64(block->done + PIECE, count);
    t->out_done++;
    if (block->done == count) t->block_first++;
}

/* Takes every step of the way back that is possible without waiting. */
static void bring_back(transfer *t) {
    while (t->out_done < t->out_posted && is_copied(t, t->out_copies[t->out_done % OUT_PIECES])) count_piece(t);
    for (outgoing *block; !t->status && t->out_queued - t->out_done < OUT_PIECES && (block = next_to_queue(t));)
        queue_piece(t, block);
    while (!t->status && t->out_posted < t->out_queued) {
        const CUresult error = t->driver->cuEventQuery(t->kept->events[PIECE_BACK + t->out_posted % OUT_PIECES]);
        if (error == CUDA_ERROR_NOT_READY) return;
        note(t, error, "waiting for copies from");
        if (!error) deliver_piece(t);
    }
}

/* Waits for an event that has been recorded, doing something useful. */
static void wait_for(transfer *t, CUevent event, const char *doing) {
    CUresult error;
    while ((error = t->driver->cuEventQuery(event)) == CUDA_ERROR_NOT_READY && !t->status) {
        bring_back(t);
        help_while_waiting(t);
    }
    if (error != CUDA_ERROR_NOT_READY) note(t, error, doing);
}

/* ---- Orders ------------------------------------------------------------------------------------------------------ */

static void carry_out_send(transfer *t, const order *o) {
    struct cuda_offload *kept = t->kept;
    CUresult error = o->after ? t->driver->cuStreamWaitEvent(kept->in, o->after, 0) : CUDA_SUCCESS;
    if (!error)
        error = t->driver->cuMemcpyHtoDAsync(o->to, kept->staging + (int64_t)o->place * PIECE,
                                             (size_t)o->count * sizeof(float), kept->in);
    if (!error) error = t->driver->cuEventRecord(kept->events[PIECE_SENT + o->place], kept->in);
    note(t, error, "copying to");
}

/* C block = alpha * A chunk * B chunk + beta * C block, on the GPU. */
static void carry_out_multiply(transfer *t, const order *o) {
    struct cuda_offload *kept = t->kept;
    CUresult error = t->driver->cuEventRecord(kept->events[ARRIVED], kept->in);
    if (!error) error = t->driver->cuStreamWaitEvent(kept->compute, kept->events[ARRIVED], 0);
    note(t, error, "ordering products on");
    if (t->status) return;
    if (o->packs_a) t->status = cuda_pack_panels(&t->a_packed[o->a_slot], kept->compute);
    if (o->packs_b && !t->status) t->status = cuda_pack_panels(&t->b_packed[o->b_slot], kept->compute);
    if (t->status) return;
    tsr_plan plan = {.context = t->context, .problem = o->block};
    t->status = plan_make(&plan);
    if (t->status) return;
    /* An edge may be planned with more workspace than the whole; then it takes its own. */
    const bool fits = plan_workspace(&plan) <= t->cut.workspace;
    const tsr_launch launch = {kept->compute, fits && t->cut.workspace ? (void *)t->workspace : NULL, t->cut.workspace};
    t->status = plan_execute(&plan, &o->block, &launch);
    if (t->status) return;
    error = t->driver->cuEventRecord(kept->events[A_USED + o->a_slot], kept->compute);
    if (!error) error = t->driver->cuEventRecord(kept->events[B_USED + o->b_slot], kept->compute);
    note(t, error, "ordering products on");
}

static void carry_out_return(transfer *t, const order *o) {
    const int64_t slot = t->block_count % MOST_C_SLOTS;
    note(t, t->driver->cuEventRecord(t->kept->events[COMPUTED + slot], t->kept->compute), "ordering copies from");
    if (t->status) return;
    t->blocks[slot] = (outgoing){o->c, o->from, 0, 0, 0};
    t->block_count++;
}

/* Carries out the oldest orders until no more than `most` are left, and those after them that need not be waited for. */
static void carry_out_orders(transfer *t, int64_t most) {
    while (!t->status && t->orders_done < t->orders_given) {
        const order *o = &t->orders[t->orders_done % ORDERS];
        bring_back(t);
        if (o->what == SEND && !is_copied(t, o->copied)) {
            if (t->orders_given - t->orders_done <= most) return;
            help_while_waiting(t);
            continue;
        }
        if (t->status) return;
        if (o->what == SEND)
            carry_out_send(t, o);
        else if (o->what == MULTIPLY)
            carry_out_multiply(t, o);
        else
            carry_out_return(t, o);
        t->orders_done++;
    }
}

static order *give_order(transfer *t) {
    carry_out_orders(t, ORDERS - 1);
    return &t->orders[t->orders_given++ % ORDERS];
}

/* Orders the matrix to be sent, a piece at a time; the first of them after an event on the GPU, unless that is NULL.
 * Copying a piece into the ring begins at once, or when its place is free. */
static void send(transfer *t, copy matrix, int64_t count, CUdeviceptr to, CUevent after) {
    for (int64_t first = 0; first < count && !t->status; first += PIECE, after = NULL) {
        const int64_t number = t->pieces_ordered++, end = min64(first + PIECE, count);
        const int place = (int)(number % IN_PIECES);
        if (number >= IN_PIECES) {
            /* What was there before is on its way when its order has been carried out, and gone when its event says so. */
            carry_out_orders(t, t->orders_given - t->piece_orders[place] - 1);
            if (!t->status) wait_for(t, t->kept->events[PIECE_SENT + place], "waiting for copies to");
            if (t->status) return;
        }
        const int64_t copied = post_copy(t, matrix, first, end, t->kept->staging + (int64_t)place * PIECE, true);
        order *o = give_order(t);
        t->piece_orders[place] = t->orders_given - 1;
        *o = (order){.what = SEND,
                     .after = after,
                     .copied = copied,
                     .count = end - first,
                     .to = to + (size_t)first * sizeof(float),
                     .place = place};
    }
}

/* ---- A block ----------------------------------------------------------------------------------------------------- */

/* The part of an operand from (row, col) on. */
static tsr_operand part_of(const tsr_operand *o, int64_t row, int64_t col, int64_t rows, int64_t cols) {
    return (tsr_operand){
        o->data + row * o->row_stride + col * o->col_stride, rows, cols, o->row_stride, o->col_stride, 0, NULL};
}

static void send_operand(transfer *t, tsr_operand o, const float *slot, CUevent used) {
    send(t, copy_of((float *)o.data, o.rows, o.cols, o.row_stride, o.col_stride), o.rows * o.cols, (CUdeviceptr)slot,
         used);
}

/* Where a matrix in its slot has its packed form; NULL where it has none. */
static const tsr_packed *packed_form(transfer *t, tsr_packed *packed, tsr_side side, const tsr_operand *o, size_t bytes,
                                     size_t packed_bytes) {
    if (!packed_bytes) return NULL;
    *packed = (tsr_packed){
        .context = t->context, .side = side, .source = *o, .panels = (char *)o->data + bytes, .bytes = packed_bytes};
    return packed;
}

/* Waits until the block has left that was in the slot of the one to be ordered now. */
static void wait_for_slot(transfer *t) {
    while (!t->status && t->blocks_ordered - t->block_first >= t->cut.c_slots) {
        carry_out_orders(t, ORDERS);
        bring_back(t);
        help_while_waiting(t);
    }
}

/* Orders all that block (w->i, w->j) of product p, number `item` of the batch, takes. */
static void order_block(transfer *t, const tsr_problem *p, const walk *w, int64_t item) {
    const cut *at = &t->cut;
    struct cuda_offload *kept = t->kept;
    const int64_t i = w->i * at->bm, j = w->j * at->bn;
    const int64_t m = min64(at->bm, p->m - i), n = min64(at->bn, p->n - j);
    const size_t a_slot_bytes = at->a_bytes + at->a_packed, b_slot_bytes = at->b_bytes + at->b_packed;
    const CUdeviceptr a_slots = kept->memory, b_slots = a_slots + (size_t)at->a_slots * a_slot_bytes;
    const CUdeviceptr c_slots = b_slots + (size_t)at->b_slots * b_slot_bytes;
    const CUdeviceptr c_memory = c_slots + (size_t)(t->blocks_ordered % at->c_slots) * at->c_bytes;
    const tsr_result to = {
        p->c.data + i * p->c.row_stride + j * p->c.col_stride, m, n, p->c.row_stride, p->c.col_stride, 0};
    t->workspace = c_slots + (size_t)at->c_slots * at->c_bytes;
    for (int64_t depth = 0; depth < p->k && !t->status; depth += at->bk) {
        const int64_t k = min64(at->bk, p->k - depth), set = item % SETS, chunk = t->chunks_ordered++ % CHUNK_SLOTS;
        const int a_slot = (int)(at->keeps ? set * at->a_panels + w->i : chunk % at->a_slots);
        const int b_slot = (int)(at->keeps ? set * at->b_panels + w->j : chunk % at->b_slots);
        const bool sends_a = !at->keeps || w->i >= t->a_sent, sends_b = !at->keeps || w->j >= t->b_sent;
        tsr_problem block = block_problem(p, m, n, k);
        block.a.data = (const float *)(a_slots + (size_t)a_slot * a_slot_bytes);
        block.b.data = (const float *)(b_slots + (size_t)b_slot * b_slot_bytes);
        block.addend.data = block.c.data = (float *)c_memory;
        block.a.packed = packed_form(t, &t->a_packed[a_slot], TSR_LEFT, &block.a, at->a_bytes, at->a_packed);
        block.b.packed = packed_form(t, &t->b_packed[b_slot], TSR_RIGHT, &block.b, at->b_bytes, at->b_packed);
        if (!depth) block.beta = p->beta;
        if (block.beta == 0) block.addend = (tsr_operand){0};
        if (sends_a) send_operand(t, part_of(&p->a, i, depth, m, k), block.a.data, kept->events[A_USED + a_slot]);
        if (sends_b) send_operand(t, part_of(&p->b, depth, j, k, n), block.b.data, kept->events[B_USED + b_slot]);
        if (!depth) wait_for_slot(t);
        if (!depth && p->beta != 0)
            send(t, copy_of(to.data, m, n, to.row_stride, to.col_stride), m * n, c_memory, NULL);
        if (t->status) return;
        t->a_sent += sends_a;
        t->b_sent += sends_b;
        *give_order(t) = (order){.what = MULTIPLY,
                                 .block = block,
                                 .a_slot = a_slot,
                                 .b_slot = b_slot,
                                 .packs_a = sends_a && at->a_packed,
                                 .packs_b = sends_b && at->b_packed};
    }
    *give_order(t) = (order){.what = BRING_BACK, .c = to, .from = c_memory};
    t->blocks_ordered++;
}

/* ---- The product ------------------------------------------------------------------------------------------------- */

static tsr_problem product_of_batch(const tsr_problem *p, int64_t item) {
    tsr_problem one = *p;
    one.a.data += item * p->a.batch_stride;
    one.b.data += item * p->b.batch_stride;
    one.c.data += item * p->c.batch_stride;
    return one;
}

/* What the thread that called does. */
static void direct(transfer *t) {
    const tsr_problem *p = &t->p;
    for (int64_t item = 0; item < p->batch && !t->status; item++) {
        const tsr_problem one = product_of_batch(p, item);
        t->a_sent = t->b_sent = 0;
        for (walk w = walk_begin(&t->cut); !t->status && walk_on(&w, &t->cut);) order_block(t, &one, &w, item);
    }
    carry_out_orders(t, 0);
    while (!t->status && t->block_first < t->blocks_ordered) {
        bring_back(t);
        help_while_waiting(t);
    }
    /* Whatever has been posted is copied to the end, so that nobody writes into C any more, and C's share is known. */
    while (t->out_done < t->out_posted) {
        if (is_copied(t, t->out_copies[t->out_done % OUT_PIECES]))
            count_piece(t);
        else
            help_while_waiting(t);
    }
    atomic_store_explicit(&t->over, true, memory_order_release);
}

static void work(int member, unsigned met, void *argument) {
    (void)met;
    if (member)
        copy_for_others(argument, member);
    else
        direct(argument);
}

static tsr_status compute_on_gpu(transfer *t) {
    t->status = prepare(t);
    if (t->status) return t->status;
    struct cpu_gang gang = {.work = work, .argument = t};
    const tsr_problem *p = &t->p;
    const double floats = (double)p->batch *
                          ((double)p->m * (double)p->k + (double)p->k * (double)p->n + (double)p->m * (double)p->n);
    const double useful = floats / LEAST_UNIT / 4 + 1;
    /* Not on every core: a thread that loses its own to somebody else keeps all the others waiting. */
    const int most = (int)min64(3 * t->context->options.threads / 4 + 1, MOST_THREADS);
    const int size = useful < most ? (int)useful : most;
    t->copiers = size - 1;
    cpu_gang_run(&gang, size);
    return t->status;
}

/* Rows i.., columns j.. of C, by the CPU, in memory that is there already. */
static tsr_status compute_part(const transfer *t, const tsr_problem *p, int64_t i, int64_t j, int64_t m, int64_t n) {
    if (!m || !n) return TSR_OK;
    const tsr_operand a = part_of(&p->a, i, 0, m, p->k), b = part_of(&p->b, 0, j, p->k, n);
    const tsr_result c = {
        p->c.data + i * p->c.row_stride + j * p->c.col_stride, m, n, p->c.row_stride, p->c.col_stride, 0};
    const tsr_launch launch = {NULL, t->kept->staging, STAGING_BYTES};
    return tsr_gemm(t->kept->cpu, p->alpha, &a, &b, p->beta, &c, &launch);
}

/* What is missing of a block of which `done` elements are in C. */
static tsr_status compute_rest(const transfer *t, const tsr_problem *p, int64_t i, int64_t j, int64_t done) {
    const int64_t m = min64(t->cut.bm, p->m - i), n = min64(t->cut.bn, p->n - j);
    tsr_status status;
    if (runs_are_columns(p->c.row_stride, p->c.col_stride)) {
        const int64_t column = done / m, row = done % m;
        if (!row) return compute_part(t, p, i, j + column, m, n - column);
        status = compute_part(t, p, i + row, j + column, m - row, 1);
        return status ? status : compute_part(t, p, i, j + column + 1, m, n - column - 1);
    }
    const int64_t row = done / n, column = done % n;
    if (!column) return compute_part(t, p, i + row, j, m - row, n);
    status = compute_part(t, p, i + row, j + column, 1, n - column);
    return status ? status : compute_part(t, p, i + row + 1, j, m - row - 1, n);
}

/* Computes on the CPU what the GPU has not delivered, in the order it would have. */
static tsr_status finish_on_cpu(transfer *t, double *share) {
    const tsr_problem *p = &t->p;
    int64_t block = 0;
    double done_by_gpu = 0;
    tsr_status status = TSR_OK;
    for (int64_t item = 0; item < p->batch && !status; item++) {
        const tsr_problem one = product_of_batch(p, item);
        for (walk w = walk_begin(&t->cut); !status && walk_on(&w, &t->cut); block++) {
            const int64_t i = w.i * t->cut.bm, j = w.j * t->cut.bn;
            const int64_t all = min64(t->cut.bm, p->m - i) * min64(t->cut.bn, p->n - j);
            const int64_t done = block < t->block_first   ? all
                                 : block < t->block_count ? t->blocks[block % MOST_C_SLOTS].done
                                                          : 0;
            done_by_gpu += (double)done;
            status = compute_rest(t, &one, i, j, done);
        }
    }
    *share = done_by_gpu / ((double)p->m * (double)p->n * (double)p->batch);
    return status;
}

static tsr_operand transposed_operand(const tsr_operand *o) {
    return (tsr_operand){o->data, o->cols, o->rows, o->col_stride, o->row_stride, o->batch_stride, NULL};
}

/* With A the smaller operand, without packed forms, and with strides along a single row or column that mislead nobody. */
static tsr_problem oriented(const tsr_problem *p) {
    tsr_problem q = *p;
    q.a.packed = q.b.packed = NULL;
    if (p->m > p->n) {
        q.m = p->n;
        q.n = p->m;
        q.a = transposed_operand(&p->b);
        q.b = transposed_operand(&p->a);
        q.c = (tsr_result){p->c.data, p->c.cols, p->c.rows, p->c.col_stride, p->c.row_stride, p->c.batch_stride};
    }
    return q;
}

/* With the lock held and the context current. */
static tsr_status offload(tsr_context *context, const tsr_problem *problem, double *share) {
    struct cuda_context *cuda = context->cuda;
    transfer t = {.context = context, .driver = cuda->driver, .p = oriented(problem)};
    tsr_status status = cuda->offload ? TSR_OK : make_kept(context, &cuda->offload);
    if (status) return status;
    t.kept = cuda->offload;
    status = compute_on_gpu(&t);
    *share = 1;
    if (!status) return TSR_OK;
    /* Nothing may still be on its way into the staging memory. On a GPU that is lost this fails, too, which is fine. */
    t.driver->cuStreamSynchronize(t.kept->in);
    t.driver->cuStreamSynchronize(t.kept->compute);
    t.driver->cuStreamSynchronize(t.kept->out);
    *share = 0;
    if (!t.out_done) return status; /* nothing has been written */
    char why[400];
    snprintf(why, sizeof why, "%s", tsr_last_error());
    status = finish_on_cpu(&t, share);
    if (!status) tsr_fail(TSR_OK, "%s", why);
    return status;
}

tsr_status cuda_offload(tsr_context *context, const tsr_problem *problem, double *share) {
    struct cuda_context *cuda = context->cuda;
    *share = 1;
    if (!problem->m || !problem->n || !problem->batch) return TSR_OK;
    if (!problem->k) return cpu_execute(&(cpu_plan){0}, problem, NULL); /* C = beta*C is not worth the way */
    bool pushed;
    *share = 0;
    tsr_status status = cuda_enter(cuda, &pushed);
    if (status) return status;
    /* One at a time: they would share the bus, and need the same memory twice. */
    pthread_mutex_lock(&cuda->offload_lock);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuda->driver->cuThreadExchangeStreamCaptureMode(&mode);
    status = offload(context, problem, share);
    cuda->driver->cuThreadExchangeStreamCaptureMode(&mode);
    pthread_mutex_unlock(&cuda->offload_lock);
    cuda_leave(cuda, pushed);
    return status;
}
