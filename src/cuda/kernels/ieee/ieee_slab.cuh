/* ieee_slab.cuh: how operands come to shared memory, for the ieee kernels that compute C by tiles.
 *
 * Operands are read in place with any strides. They pass through shared memory in slabs of SLAB terms of k, in a ring
 * of STAGES slabs, k-major whatever their layout in global memory:
 *
 *     a slab of A: [SLAB][TILE_M + 4]      a slab of B: [SLAB][TILE_N + 4]      (+4 floats: see copy_part)
 *
 * A slab is used in PARTS steps. During each, a part of a later slab is on its way, by cp.async from sm_80 on.
 *
 * Short names: a "line" is an index of m for A and of n for B, so that both operands are the same thing.
 */
#pragma once

#include "cuda/kernels/ieee/ieee_order.cuh"
#include "cuda/kernels/ptx.cuh"

/* ---- One operand ------------------------------------------------------------------------------------------------- */

/* How an operand is read. */
enum reading {
    READ_VECTORS,    /* lines are contiguous and 16-byte aligned: four lines at a time */
    READ_TERMS,      /* terms of k are contiguous: eight neighbouring threads take eight terms of one line */
    READ_LINES,      /* lines are contiguous: neighbouring threads take neighbouring lines */
    READ_TERMS_EDGE, /* the same two in a tile at the matrix's edge */
    READ_LINES_EDGE,
    READ_SINGLES, /* any strides */
    READ_ANY      /* one of these, known at run time only */
};

/* One operand of one segment: LINES lines of it, as one thread copies them. Strides of members are in bytes. Lines
 * beyond the matrix are not read: what stands in their place reaches only results that are never stored. */
template <int LINES, int SLAB, int PARTS, int THREADS> struct operand_tile {
    static constexpr int PITCH = LINES + 4;
    static constexpr int LANE_TERMS = 8; /* READ_TERMS: 8 threads along k, the others along lines */

    reading how;
    const char *next;       /* what this thread copies next */
    int64_t pass_stride;    /* from one pass of the block's threads over the slab to the next */
    int64_t slab_stride;    /* what remains to the next slab after the last pass */
    uint32_t shared_offset; /* where its first element goes in a slab */
    uint32_t to;            /* where its next element goes */
    int lines_left;         /* from this thread's first line to the end of the matrix */
    int lines_ahead;        /* READ_TERMS_EDGE: from the line it copies next */

    static __device__ __forceinline__ reading choose(const float *first, int64_t line_stride, int64_t k_stride,
                                                     int lines) {
        const bool inside = lines >= LINES;
        if (line_stride == 1 && k_stride % 4 == 0 && lines % 4 == 0 && (uintptr_t)first % 16 == 0) return READ_VECTORS;
        if (line_stride == 1) return inside ? READ_LINES : READ_LINES_EDGE;
        if (k_stride == 1) return inside ? READ_TERMS : READ_TERMS_EDGE;
        return READ_SINGLES;
    }

    /* Prepares to copy whole slabs from `first` on: line 0 of the tile, term 0 of the first slab. */
    __device__ __forceinline__ void begin(const float *first, int64_t line_stride, int64_t k_stride, int lines) {
        const int thread = threadIdx.x;
        int line, term;
        line_stride *= 4;
        k_stride *= 4;
        slab_stride = 0;
        if (how == READ_VECTORS) {
            line = thread % (LINES / 4) * 4;
            term = thread / (LINES / 4);
            pass_stride = k_stride * (THREADS * 4 / LINES);
        } else if (how == READ_LINES || how == READ_LINES_EDGE) {
            line = thread % 32;
            term = thread / 32;
            pass_stride = k_stride * (THREADS / 32);
        } else if (how == READ_TERMS || how == READ_TERMS_EDGE) {
            line = thread / LANE_TERMS;
            term = thread % LANE_TERMS;
            pass_stride = line_stride * (THREADS / LANE_TERMS);
            slab_stride = SLAB * k_stride - LINES * line_stride;
        } else {
            line = thread % LINES;
            term = thread / LINES;
            pass_stride = k_stride * (THREADS / LINES);
        }
        lines_left = lines - line;
        shared_offset = (term * PITCH + line) * 4;
        /* Vectors past the edge need no test: they are the last one again. */
        if (how == READ_VECTORS) line = min(line, lines - 4);
        next = (const char *)first + line * line_stride + term * k_stride;
    }

    __device__ __forceinline__ void begin_slab(uint32_t slab) {
        to = slab + shared_offset;
        lines_ahead = lines_left;
    }
    __device__ __forceinline__ void finish_slab(void) { next += slab_stride; }

    /* What a thread copies of one of PARTS parts of a slab. */
    template <reading HOW> static constexpr int COPIES = SLAB / PARTS *LINES / THREADS / (HOW == READ_VECTORS ? 4 : 1);

    /* Copy `i` of a part, if `more`. Copies, parts and slabs come in order, and finish_part behind a part's last copy.
     * Shared-memory banks: neighbouring lines lie in neighbouring banks; with READ_TERMS a warp writes 8 terms of 4
     * lines, and the pitch of LINES + 4 floats puts these into 32 different banks. */
    template <reading HOW> __device__ __forceinline__ void copy(int i, int more) {
        if constexpr (HOW == READ_VECTORS) {
            /* where tiles are small, many blocks read the same lines */
            cp_async_if<16, LINES <= 64>(to + i * (THREADS * 4 / LINES * PITCH * 4), next, more);
            next += pass_stride;
        } else if constexpr (HOW == READ_TERMS || HOW == READ_TERMS_EDGE) {
            constexpr int PASS_LINES = THREADS / LANE_TERMS, ALONG = SLAB / LANE_TERMS;
            static_assert(LINES % (PASS_LINES * PARTS) == 0, "every part has whole passes");
            const int pass = i / ALONG, term = i % ALONG * LANE_TERMS;
            cp_async_if<4>(to + (pass * PASS_LINES + term * PITCH) * 4, next + term * 4,
                           HOW == READ_TERMS ? more : more & (lines_ahead > 0));
            if (i % ALONG == ALONG - 1) next += pass_stride, lines_ahead -= PASS_LINES;
        } else if constexpr (HOW == READ_LINES || HOW == READ_LINES_EDGE) {
            constexpr int TERMS = THREADS / 32, ALONG = LINES / 32;
            static_assert(SLAB % (TERMS * PARTS) == 0, "every part has whole passes");
            const int pass = i / ALONG, line = i % ALONG * 32;
            cp_async_if<4>(to + (pass * TERMS * PITCH + line) * 4, next + line * 4,
                           HOW == READ_LINES ? more : more & (line < lines_left));
            if (i % ALONG == ALONG - 1) next += pass_stride;
        } else {
            static_assert(HOW == READ_SINGLES && SLAB % (THREADS / LINES * PARTS) == 0, "every part has whole passes");
            cp_async_if<4>(to + i * (THREADS / LINES * PITCH * 4), next, more & (lines_left > 0));
            next += pass_stride;
        }
    }

    template <reading HOW> __device__ __forceinline__ void finish_part(void) {
        to += HOW == READ_TERMS || HOW == READ_TERMS_EDGE ? LINES / PARTS * 4 : SLAB / PARTS * PITCH * 4;
    }

    /* A whole part. */
    template <reading HOW> __device__ __forceinline__ void copy_part(int more) {
        if constexpr (HOW != READ_ANY) {
#pragma unroll
            for (int i = 0; i < COPIES<HOW>; ++i) copy<HOW>(i, more);
            finish_part<HOW>();
        } else if (how == READ_VECTORS)
            copy_part<READ_VECTORS>(more);
        else if (how == READ_TERMS)
            copy_part<READ_TERMS>(more);
        else if (how == READ_LINES)
            copy_part<READ_LINES>(more);
        else if (how == READ_TERMS_EDGE)
            copy_part<READ_TERMS_EDGE>(more);
        else if (how == READ_LINES_EDGE)
            copy_part<READ_LINES_EDGE>(more);
        else
            copy_part<READ_SINGLES>(more);
    }

    /* Copies `terms` terms, strides in floats, to the last of `rows` rows of shared memory; those before become
     * zero. */
    static __device__ __forceinline__ void copy_terms(uint32_t shared, const float *first, int64_t line_stride,
                                                      int64_t k_stride, int lines, int terms, int rows) {
        const reading how = choose(first, line_stride, k_stride, lines);
        if (how == READ_VECTORS)
            copy_terms_by<4, LINES / 4>(shared, first, line_stride, k_stride, lines, terms, rows);
        else if (k_stride == 1)
            copy_terms_by<1, THREADS / LANE_TERMS>(shared, first, line_stride, k_stride, lines, terms, rows);
        else
            copy_terms_by<1, 32>(shared, first, line_stride, k_stride, lines, terms, rows);
    }

    /* A thread copies FLOATS lines at a time; LINE_THREADS threads lie along the lines, the others along k. */
    template <int FLOATS, int LINE_THREADS>
    static __device__ __forceinline__ void copy_terms_by(uint32_t shared, const float *first, int64_t line_stride,
                                                         int64_t k_stride, int lines, int terms, int rows) {
        constexpr int TERM_THREADS = THREADS / LINE_THREADS;
        constexpr bool ALONG_K = TERM_THREADS == LANE_TERMS && FLOATS == 1; /* neighbours take neighbouring terms */
        const int thread = threadIdx.x;
        const int line = (ALONG_K ? thread / TERM_THREADS : thread % LINE_THREADS) * FLOATS;
        const int first_row = ALONG_K ? thread % TERM_THREADS : thread / LINE_THREADS;
        const float *from = first + line * line_stride + (first_row - (rows - terms)) * k_stride;
        shared += (first_row * PITCH + line) * 4;
#pragma unroll 2
        for (int row = first_row; row < rows; row += TERM_THREADS) {
#pragma unroll
            for (int i = 0; i < LINES; i += LINE_THREADS * FLOATS)
                cp_async_or_zero<FLOATS * 4>(shared + i * 4, from + i * line_stride,
                                             row >= rows - terms && line + i < lines);
            from += TERM_THREADS * k_stride;
            shared += TERM_THREADS * PITCH * 4;
        }
    }
};

/* ---- Both operands ----------------------------------------------------------------------------------------------- */

/* The slabs of one segment, from begin and fill on: the one in use and those on their way. All threads of the block
 * call these functions together. */
template <int TILE_M, int TILE_N, int SLAB, int PARTS, int STAGES, int THREADS> struct slab_queue {
    using a_tile = operand_tile<TILE_M, SLAB, PARTS, THREADS>;
    using b_tile = operand_tile<TILE_N, SLAB, PARTS, THREADS>;
    static constexpr int A_SLAB = SLAB * a_tile::PITCH, STAGE = A_SLAB + SLAB * b_tile::PITCH; /* floats */
    static constexpr int SHARED_BYTES = STAGES * STAGE * 4;
    static constexpr int STEP = SLAB / PARTS; /* terms */
    static_assert(IEEE_RUN % SLAB == 0, "a segment is whole slabs, except at the end of k");

    static constexpr bool BEGINS_SUMS = false; /* for ieee_mma_sm90.cu */

    a_tile a;
    b_tile b;
    uint32_t memory;
    int slabs;  /* in all */
    int part;   /* of the slab in use: the step that comes next */
    int stage;  /* of the slab in use */
    int coming; /* the slab being copied */
    int more;   /* whether there is one */

    /* The remainder of k after whole slabs comes first, so that the main loop copies only whole slabs. Steps without a
     * term of the remainder are skipped. */
    __device__ __forceinline__ void begin(const ieee_args &args, const segment &seg, const extent &rows,
                                          const extent &cols, float *shared) {
        const int64_t batch = blockIdx.z;
        const int a_lines = args.m - rows.first, b_lines = args.n - cols.first;
        const int64_t a_line = args.a.row_stride, a_k = args.a.col_stride;
        const int64_t b_line = args.b.col_stride, b_k = args.b.row_stride;
        const float *a_first = args.a.data + batch * args.a.batch_stride + rows.first * a_line + seg.k_begin * a_k;
        const float *b_first = args.b.data + batch * args.b.batch_stride + cols.first * b_line + seg.k_begin * b_k;
        a.how = a_tile::choose(a_first, a_line, a_k, a_lines);
        b.how = b_tile::choose(b_first, b_line, b_k, b_lines);
        /* Two fewer pairs to compile: vectors of one operand and lines of the other become lines of both. */
        if (a.how == READ_VECTORS && b.how == READ_LINES && a_lines >= TILE_M) a.how = READ_LINES;
        if (b.how == READ_VECTORS && a.how == READ_LINES && b_lines >= TILE_N) b.how = READ_LINES;

        const int ragged = seg.terms % SLAB;
        memory = shared_address(shared);
        slabs = (seg.terms + SLAB - 1) / SLAB;
        a.begin(a_first + ragged * a_k, a_line, a_k, a_lines);
        b.begin(b_first + ragged * b_k, b_line, b_k, b_lines);
        part = coming = 0;
        wait_for_previous_kernel(a.next, b.next); /* only now: where to copy from was computed while it ended */
        allow_next_kernel();
        if (ragged) {
            part = (SLAB - ragged) / STEP;
            const int used = SLAB - part * STEP;
            const uint32_t a_shared = memory + part * STEP * a_tile::PITCH * 4;
            const uint32_t b_shared = memory + (A_SLAB + part * STEP * b_tile::PITCH) * 4;
            a_tile::copy_terms(a_shared, a_first, a_line, a_k, a_lines, ragged, used);
            b_tile::copy_terms(b_shared, b_first, b_line, b_k, b_lines, ragged, used);
            cp_async_commit();
            coming = 1;
        }
    }

    /* Fills all stages but the last, and of the last the parts of the skipped steps: the main loop copies the rest.
     * Then waits for the first slab. */
    template <reading A, reading B> __device__ __forceinline__ void fill(void) {
#pragma unroll 1
        for (; coming < STAGES - 1; ++coming) {
            if (coming < slabs) {
                begin_slab(coming);
#pragma unroll 1
                for (int i = 0; i < PARTS; ++i) {
                    a.template copy_part<A>(1);
                    b.template copy_part<B>(1);
                }
                a.finish_slab();
                b.finish_slab();
            }
            cp_async_commit();
        }
        more = coming < slabs;
        begin_slab(coming);
#pragma unroll 1
        for (int i = 0; i < part; ++i) {
            a.template copy_part<A>(more);
            b.template copy_part<B>(more);
        }
        /* Recomputing these would make the main loops longer. */
        forget_origin(a.pass_stride, b.pass_stride, a.slab_stride, b.slab_stride);
        cp_async_wait<STAGES - 2>(); /* the last one's group stays open */
        __syncthreads();
        stage = 0;
    }

    __device__ __forceinline__ void begin_slab(int to_stage) {
        a.begin_slab(memory + to_stage * (STAGE * 4));
        b.begin_slab(memory + to_stage * (STAGE * 4) + A_SLAB * 4);
    }

    /* Where the slab in use is. */
    __device__ __forceinline__ uint32_t a_slab(void) const { return memory + stage * (STAGE * 4); }
    __device__ __forceinline__ uint32_t b_slab(void) const { return a_slab() + A_SLAB * 4; }

    __device__ __forceinline__ int steps(void) const { return slabs * PARTS - part; }

    /* Copies a part of the slab that is coming: once in each step of the slab in use. */
    template <reading A, reading B> __device__ __forceinline__ void copy_part(void) {
        a.template copy_part<A>(more);
        b.template copy_part<B>(more);
        ++part;
    }

    /* The same, one copy at a time: COPIES calls, then finish_part. */
    template <reading A, reading B>
    static constexpr int COPIES = a_tile::template COPIES<A> + b_tile::template COPIES<B>;

    template <reading A, reading B> __device__ __forceinline__ void copy(int i) {
        if (i < a_tile::template COPIES<A>)
            a.template copy<A>(i, more);
        else
            b.template copy<B>(i - a_tile::template COPIES<A>, more);
    }

    template <reading A, reading B> __device__ __forceinline__ void finish_part(void) {
        a.template finish_part<A>();
        b.template finish_part<B>();
        ++part;
    }

    /* Once all steps of the slab in use have begun and nobody will read it again, goes on to the next slab and returns
     * true. */
    __device__ __forceinline__ bool next_slab(void) {
        if (part < PARTS) return false;
        cp_async_commit();
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        part = 0;
        more = ++coming < slabs;
        a.finish_slab();
        b.finish_slab();
        begin_slab(stage); /* the slab just used up makes room */
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        return true;
    }

    /* All copies have arrived, and the block's threads are done with the slabs. */
    static __device__ __forceinline__ void end(void) {
        cp_async_wait<0>();
        __syncthreads();
    }
};
