/* tf32_sm90.cu: C = alpha*A*B + beta*S in TF32 from float32 operands in place, by Hopper's own TF32 instruction.
 *
 * Operands are seen as rows along k: A as it is, B transposed. Copies by tensor map round each element to 11
 * significant bits, to nearest, on their way to shared memory; the tensor cores sum over all of k, or over a part or
 * slice of it. There are no scales: TF32 has float32's range.
 *
 * The instruction reads B from shared memory as rows of 32 terms. Where columns of B are neighbours in memory
 * (b_across), three warps turn its tiles there. A is read in the same way, but where rows of A are neighbours
 * (a_across) its tiles stay as they lie, and each thread loads its share of A into registers.
 * So that these loads find all banks, logical row (g, h) of warp w's 16, g < 8, h < 2, is row
 *
 *     32 (w/2) + 8 (w%2) + 4h + g%4 + 16 (g/4)
 *
 * of the warpgroup's 64.
 *
 * Tile map: one thread of warpgroup 0 copies, its other warps turn B; the other warpgroups multiply, 64 or 128 rows
 * each. A cluster of `parts` thread blocks shares the k of a tile: each leaves its sums in shared memory, and adds up
 * every parts-th column block of all of them, in order. With one part, blocks are persistent.
 *
 * Names: wg warpgroup, number 0 the first that multiplies; kb block of k, 32 terms; parts, slices as in tf32_args.
 * Limits: 224 registers where two warpgroups multiply (128 accumulators) and 56 in warpgroup 0, else 184 and 72; 4
 * stages of 48 KB, 6 of 32 KB or 6 of 16 KB; one thread block per SM, two of tf32_64x64.
 */
#include "cuda/kernels/kernel_list.h"
#include "cuda/kernels/split/split_wgmma.cuh"

constexpr int BLOCK_K = TF32_K, K_STEPS = BLOCK_K / 8;
constexpr int BOX_BYTES = 32 * BLOCK_K * 4; /* 32 rows of an operand, neighbours in memory, and 32 terms of k */
static_assert(BLOCK_K * 4 == SPLIT_ROW_BYTES, "the descriptors describe rows of 128 bytes, swizzled over 128 bytes");

struct tf32_tile {
    int batch, m0, n0;
    int kb_begin, kb_end;
    matrix_out c; /* where its sums go: C, or a slice of `partial` */
    float alpha, beta;
};

/* Number `index` of the tiles and slices, in ieee_reduce's order: bands of 16 tile rows, down the columns of a band. */
template <int TILE_M, int TILE_N> __device__ tf32_tile tile_number(const tf32_args &g, int index) {
    constexpr int BAND = 16;
    const int tiles = g.tiles_m * g.tiles_n, slice = index % g.slices, item = index / g.slices;
    const int tile = item % tiles, band = tile / (BAND * g.tiles_n), rows = min(BAND, g.tiles_m - band * BAND);
    const int in_band = tile - band * BAND * g.tiles_n;
    tf32_tile t;
    t.batch = item / tiles;
    t.m0 = (band * BAND + in_band % rows) * TILE_M;
    t.n0 = in_band / rows * TILE_N;
    t.kb_begin = (g.slices > 1 ? slice : g.parts > 1 ? cluster_rank() : 0) * g.k_blocks_each;
    t.kb_end = min(g.k_blocks, t.kb_begin + g.k_blocks_each);
    t.c = g.c;
    t.c.data += t.batch * g.c.batch_stride;
    t.alpha = g.alpha, t.beta = g.beta;
    if (g.slices > 1) {
        t.c = {g.partial + (int64_t)index * TILE_M * TILE_N - (int64_t)t.m0 * TILE_N - t.n0, TILE_N, 1, 0};
        t.alpha = 1, t.beta = 0;
    }
    return t;
}

/* Whether C is to be computed where these two panels meet: always, or only where a split kernel left it. */
__device__ inline bool wanted(const tf32_args &g, int batch, int row, int col) {
    if (!g.marks_a) return true;
    return g.marks_a[batch * g.marks_a_batch_stride + row / PANEL_ROWS] *
               g.marks_b[batch * g.marks_b_batch_stride + min(col, g.n - 1) / PANEL_ROWS] >
           1;
}

template <int TILE_N> __device__ bool tile_wanted(const tf32_args &g, const tf32_tile &t) {
    bool any = wanted(g, t.batch, t.m0, t.n0);
    if (TILE_N > PANEL_ROWS) any |= wanted(g, t.batch, t.m0, t.n0 + PANEL_ROWS);
    return any;
}

/* ---- Epilogue ---------------------------------------------------------------------------------------------------- */

/* Where element (row, col) of a check block lies in a warp's buffer: rows and columns are read from all banks. */
__device__ inline float *buffered(out_buffer &out, int row, int col) { return &out[row][col ^ row / 4 % 4 * 8]; }

/* Puts the sums of a check block into a warp's buffer: rows in the order of C. */
__device__ inline void put_in_order(const float *v, bool across, out_buffer &out) {
    const int lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < CHECK_COLS / 8; j++)
            *(float2 *)buffered(out, across ? g % 4 + 4 * h + g / 4 * 8 : g + 8 * h,
                                8 * j + lane % 4 * 2) = make_float2(v[4 * j + 2 * h], v[4 * j + 2 * h + 1]);
}

/* Stores a warp's check block: 8 rows from row0 on and 8 from row0 + second on, the columns from col0 on. */
__device__ inline void store_sums(const tf32_args &g, const tf32_tile &t, int row0, int second, int col0,
                                  out_buffer &out) {
    const int lane = threadIdx.x % 32;
    const bool aligned = t.beta == 0 && (uintptr_t)t.c.data % 16 == 0;
    if (aligned && t.c.col_stride == 1 && t.c.row_stride % 4 == 0 && col0 + CHECK_COLS <= g.n) {
        const int col = lane % 8 * 4;
#pragma unroll
        for (int i = 0; i < CHECK_ROWS; i += 4) {
            const int row = row0 + i % 8 + lane / 8 + i / 8 * second;
            const float4 x = *(const float4 *)buffered(out, i + lane / 8, col);
            if (row < g.m)
                *(float4 *)(t.c.data + row * t.c.row_stride + col0 + col) = make_float4(t.alpha * x.x, t.alpha * x.y,
                                                                                        t.alpha * x.z, t.alpha * x.w);
        }
    } else if (aligned && t.c.row_stride == 1 && t.c.col_stride % 4 == 0 && row0 + second + 8 <= g.m) {
        const int r = lane % 4 * 4;
        float *c = t.c.data + row0 + r % 8 + r / 8 * second;
#pragma unroll
        for (int i = 0; i < CHECK_COLS; i += 8) {
            const int col = i + lane / 4;
            const float4 x = make_float4(*buffered(out, r, col), *buffered(out, r + 1, col), *buffered(out, r + 2, col),
                                         *buffered(out, r + 3, col));
            if (col0 + col < g.n)
                *(float4 *)(c + (col0 + col) * t.c.col_stride) = make_float4(t.alpha * x.x, t.alpha * x.y,
                                                                             t.alpha * x.z, t.alpha * x.w);
        }
    } else if (col0 + lane < g.n) {
        const float *s = g.addend.data + t.batch * g.addend.batch_stride + (col0 + lane) * g.addend.col_stride;
        float *c = t.c.data + (col0 + lane) * t.c.col_stride;
#pragma unroll 1
        for (int i = 0; i < CHECK_ROWS; i += 8) {
            const int first = row0 + i / 8 * second;
            float before[8]; /* beta*S, all read before any is needed; -0 changes nothing */
#pragma unroll
            for (int r = 0; r < 8; r++)
                before[r] = t.beta != 0 && first + r < g.m ? t.beta * s[(first + r) * g.addend.row_stride] : -0.0f;
#pragma unroll
            for (int r = 0; r < 8; r++)
                if (first + r < g.m)
                    c[(first + r) * t.c.row_stride] = fmaf(t.alpha, *buffered(out, i + r, lane), before[r]);
        }
    }
}

/* ---- Turning B --------------------------------------------------------------------------------------------------- */

/* Transposes 32 x 32 floats in place, rows of 128 bytes, swizzled. A lane has a square of 4 x 4 at a time; eight lanes
 * those whose row and column differ by the same bits, which trade places among themselves, and find all banks. */
__device__ inline void turn_box(uint8_t *box) {
    const int lane = threadIdx.x % 32, across = lane % 8;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
        const int down = across ^ (lane / 8 + i);
        float x[4][4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int row = down * 4 + j;
            *(float4 *)x[j] = *(const float4 *)(box + row * SPLIT_ROW_BYTES + (across ^ row % 8) * 16);
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int row = across * 4 + j;
            *(float4 *)(box + row * SPLIT_ROW_BYTES + (down ^ row % 8) * 16) = make_float4(x[0][j], x[1][j], x[2][j],
                                                                                           x[3][j]);
        }
    }
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

/* A warpgroup multiplies HALVES x 64 rows. TURNS: each warpgroup has tiles of its own, one stores while the other
 * multiplies; else the warpgroups have a tile together, one below the other. */
template <int WGS, int HALVES, int N, int STAGES, bool TURNS> struct tf32_kernel {
    static constexpr int TILE_N = N, WARPS = WGS * 4, COL_BLOCKS = N / CHECK_COLS, BOXES_B = N / 32;
    static constexpr int TILE_M = HALVES * WG_ROWS * (TURNS ? 1 : WGS), THREADS = (WGS + 1) * WARPGROUP;
    typedef stage<TILE_M, TILE_N, 1> STAGE;
    typedef shared_layout<STAGE, STAGES, WARPS> SHARED;
    typedef float half_sums[TILE_N / 2];
    static_assert(!TURNS || (WGS == 2 && STAGES % 2 == 0), "with several parts each warpgroup has stages of its own");
    static_assert(sizeof(SHARED::stages) >= WGS * HALVES * WG_ROWS * TILE_N * sizeof(float),
                  "the warpgroups' sums take the place of stages");

    const tf32_args &g;
    SHARED &s;
    const int wg, count, first, step; /* of warpgroups that multiply; of tiles and slices */
    int previous;                     /* the stage read last, to be released; -1: none */

    __device__ tf32_kernel(const tf32_args &g, SHARED &s, int wg)
        : g(g), s(s), wg(wg), count(g.batch * g.tiles_m * g.tiles_n * g.slices), first(blockIdx.x / g.parts),
          step(gridDim.x / g.parts) {}

    __device__ void produce() {
        ring<STAGES> at;
        for (int index = first; index < count; index += step) {
            const tf32_tile t = tile_number<TILE_M, TILE_N>(g, index);
            if (!tile_wanted<TILE_N>(g, t)) continue;
            const int a_item = g.a_batched ? t.batch : 0, b_item = g.b_batched ? t.batch : 0;
#pragma unroll 1
            for (int kb = t.kb_begin; kb < t.kb_end; kb++, at.advance()) {
                STAGE &to = s.stages[at.index];
                uint64_t *full = g.b_across ? &raw()[at.index] : &s.full[at.index];
                const int k0 = kb * BLOCK_K;
                barrier_wait(&s.empty[at.index], at.phase ^ 1);
                barrier_arrive_and_expect(full, sizeof(STAGE));
                if (g.a_across)
                    for (int i = 0; i < TILE_M / 32; i++)
                        box_copy(to.a[0] + i * BOX_BYTES, &g.a, t.m0 + i * 32, k0, a_item, full);
                else
                    box_copy(to.a[0], &g.a, k0, t.m0, a_item, full);
                if (g.b_across)
                    for (int i = 0; i < BOXES_B; i++)
                        box_copy(to.b[0] + i * BOX_BYTES, &g.b, t.n0 + i * 32, k0, b_item, full);
                else
                    box_copy(to.b[0], &g.b, k0, t.n0, b_item, full);
            }
        }
    }

    /* b_across: completes when a stage has arrived; `full` when its B is turned, too. */
    static __device__ uint64_t *raw() {
        __shared__ uint64_t raw[STAGES];
        return raw;
    }

    /* b_across: warps 1 to 3 of warpgroup 0 have boxes in turn. */
    __device__ void turn_b() {
        ring<STAGES> at;
        int next = warp_number() - 1; /* box of a stage; those of the following stages count on */
        for (int index = first; index < count; index += step) {
            const tf32_tile t = tile_number<TILE_M, TILE_N>(g, index);
            if (!tile_wanted<TILE_N>(g, t)) continue;
#pragma unroll 1
            for (int kb = t.kb_begin; kb < t.kb_end; kb++, at.advance(), next -= BOXES_B) {
                if (next >= BOXES_B) continue; /* and do not wait: it might be for a later round */
                barrier_wait(&raw()[at.index], at.phase);
                for (; next < BOXES_B; next += 3) {
                    turn_box(s.stages[at.index].b[0] + next * BOX_BYTES);
                    fence_for_wgmma();
                    barrier_arrive(&s.full[at.index]);
                }
            }
        }
    }

    /* TURNS: turn[w] completes when warpgroup w may wait for the stages of its next tile: the other has seen all of its
     * own arrive. Sooner, a stage's barrier could be a whole round behind, and the wait for it return at once. */
    static __device__ uint64_t *turns() {
        __shared__ uint64_t turn[2];
        return turn;
    }

    __device__ void release_previous() {
        if (previous >= 0) barrier_arrive(&s.empty[previous]);
    }

    __device__ uint32_t address_in(int stage, int bytes) const {
        return tile_address(s.stages) + (stage * (int)sizeof(STAGE) + bytes) / 16;
    }

    /* The first block of 64 rows that this warpgroup has of a tile. */
    __device__ int first_half() const { return TURNS ? 0 : wg * HALVES; }

    /* `blocks` blocks of k, every `every`-th stage from `at` on. */
    __device__ void multiply_along(half_sums (&sums)[HALVES], ring<STAGES> at, int blocks, int every) {
#pragma unroll 1
        for (int i = 0; i < blocks; i++) {
            barrier_wait(&s.full[at.index], at.phase);
            const uint32_t a = address_in(at.index, first_half() * WG_ROWS * SPLIT_ROW_BYTES);
            const uint32_t b = address_in(at.index, sizeof(s.stages->a));
            wgmma_fence();
#pragma unroll
            for (int j = 0; j < K_STEPS; j++)
#pragma unroll
                for (int h = 0; h < HALVES; h++)
                    wgmma_tf32(sums[h], a + h * WG_ROWS * SPLIT_ROW_BYTES / 16 + 2 * j, b + 2 * j, i > 0 || j > 0);
            wgmma_commit();
            wgmma_wait<1>(); /* the products of the stage before this one are done */
            release_previous();
            previous = at.index;
            for (int j = 0; j < every; j++) at.advance();
        }
    }

    /* A thread's share of 64 x 32 of A: four elements for each step of 8 terms. */
    __device__ void load_a(uint32_t (&a)[K_STEPS][4], int stage, int half) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = lane / 4, term = lane % 4;
        const uint32_t *box = (const uint32_t *)(s.stages[stage].a[0] +
                                                 ((first_half() + half) * 2 + warp / 2) * BOX_BYTES);
        const int vector = warp % 2 * 2 + group / 4 * 4; /* of four rows, in a line of 32; the next one for h = 1 */
#pragma unroll
        for (int i = 0; i < K_STEPS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int in_step = term + j / 2 * 4, h = j % 2; /* lines of 128 bytes are swizzled alike every 8 */
                a[i][j] = box[(8 * i + in_step) * 32 + ((vector + h) ^ in_step) * 4 + group % 4];
            }
    }

    __device__ void issue(half_sums &sums, const uint32_t (&a)[K_STEPS][4], int stage, bool accumulate) {
        const uint32_t b = address_in(stage, sizeof(s.stages->a));
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < K_STEPS; i++) wgmma_tf32(sums, a[i], b + 2 * i, accumulate || i > 0);
        wgmma_commit();
    }

    /* The same with A in registers. A share of A is loaded while another is multiplied. */
    __device__ void multiply_across(half_sums (&sums)[HALVES], ring<STAGES> at, int blocks, int every) {
        static_assert(HALVES <= 2, "two shares of A, in turn");
        uint32_t even[K_STEPS][4], odd[K_STEPS][4];
        const auto advance = [&] {
            previous = at.index;
            for (int j = 0; j < every; j++) at.advance();
        };
        if (!blocks) return;
        barrier_wait(&s.full[at.index], at.phase);
        load_a(even, at.index, 0);
#pragma unroll 1
        for (int i = 0; i < blocks; i += 3 - HALVES) {
            issue(sums[0], even, at.index, i > 0);
            wgmma_wait<1>(); /* `odd` and the stage before are free */
            release_previous();
            if (HALVES == 1) {
                advance();
                if (i + 1 == blocks) break;
                barrier_wait(&s.full[at.index], at.phase);
            }
            load_a(odd, at.index, HALVES - 1);
            issue(sums[HALVES - 1], odd, at.index, HALVES == 1 || i > 0);
            wgmma_wait<1>(); /* `even` is free */
            if (HALVES == 1) release_previous();
            advance();
            if (i + 3 - HALVES >= blocks) break;
            barrier_wait(&s.full[at.index], at.phase);
            load_a(even, at.index, 0);
        }
    }

    /* Where in shared memory a warpgroup leaves its sums for the other blocks of the cluster: [half][sum][thread]. */
    __device__ float *sums_of(int wg) const {
        return (float *)s.stages + wg * HALVES * WG_ROWS * TILE_N + threadIdx.x % WARPGROUP;
    }

    /* With several parts: every thread of the cluster's calls it. */
    __device__ void share(half_sums (&sums)[HALVES]) {
        named_barrier(1, WARPS * 32); /* all warps have read the stages */
        float *mine = sums_of(wg);
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int i = 0; i < TILE_N / 2; i++) mine[(h * TILE_N / 2 + i) * WARPGROUP] = sums[h][i];
        cluster_sync();
    }

    __device__ void store_block(const tf32_tile &t, int half, int block, out_buffer &out) {
        const int warp = threadIdx.x / 32 % 4, col0 = t.n0 + block * CHECK_COLS;
        const int row0 = t.m0 + (first_half() + half) * WG_ROWS +
                         (g.a_across ? warp / 2 * 32 + warp % 2 * 8 : warp * CHECK_ROWS);
        __syncwarp();
        if (row0 < g.m && col0 < g.n && wanted(g, t.batch, t.m0, col0))
            store_sums(g, t, row0, g.a_across ? 16 : 8, col0, out);
        __syncwarp();
    }

    __device__ void store(const tf32_tile &t, const half_sums (&sums)[HALVES]) {
        out_buffer &out = s.out[threadIdx.x / 32 - 4];
#pragma unroll 1
        for (int i = 0; i < HALVES * COL_BLOCKS; i++) {
#pragma unroll
            for (int j = 0; j < HALVES * COL_BLOCKS; j++) /* registers cannot be indexed */
                if (i == j) put_in_order(sums[j / COL_BLOCKS] + j % COL_BLOCKS * 16, g.a_across, out);
            store_block(t, i / COL_BLOCKS, i % COL_BLOCKS, out);
        }
    }

    /* The sums of all blocks of the cluster, and of both warpgroups where these share k, in order. */
    __device__ void store_shared(const tf32_tile &t) {
        constexpr int SHARERS = TURNS ? WGS : 1;
        const int mine = cluster_rank() * SHARERS + (TURNS ? wg : 0);
        out_buffer &out = s.out[threadIdx.x / 32 - 4];
#pragma unroll 1
        for (int i = mine; i < HALVES * COL_BLOCKS; i += g.parts * SHARERS) {
            float v[16] = {};
#pragma unroll 1
            for (int part = 0; part < g.parts * SHARERS; part++) {
                const uint32_t from = shared_address(sums_of(TURNS ? part % SHARERS : wg) + i * 16 * WARPGROUP);
#pragma unroll
                for (int j = 0; j < 16; j++) v[j] += load_from_block(from + j * WARPGROUP * 4, part / SHARERS);
            }
            put_in_order(v, g.a_across, out);
            store_block(t, i / COL_BLOCKS, i % COL_BLOCKS, out);
        }
        cluster_sync(); /* the others have read this block's sums */
    }

    __device__ void consume() {
        int stages = 0, tiles = 0; /* before the tile at hand */
        for (int index = first; index < count; index += step) {
            const tf32_tile t = tile_number<TILE_M, TILE_N>(g, index);
            if (!tile_wanted<TILE_N>(g, t)) continue;
            const bool together = !TURNS || g.parts > 1; /* with several parts the warpgroups share k in turn */
            const int blocks = t.kb_end - t.kb_begin, begin = stages;
            stages += blocks;
            const int turn = tiles++;
            if (!together && turn % WGS != wg) continue;
            if constexpr (TURNS)
                if (!together && turn > 0) barrier_wait(&turns()[wg], (turn - 1) / 2 & 1);
            if (g.fallback_tiles && threadIdx.x % WARPGROUP == 0 && (TURNS || wg == 0))
                atomicAdd(g.fallback_tiles, 1ull);
            const int skip = TURNS && together ? wg : 0, every = TURNS && together ? WGS : 1;
            ring<STAGES> at;
            at.index = (begin + skip) % STAGES;
            at.phase = (begin + skip) / STAGES & 1;
            half_sums sums[HALVES];
            if (TURNS && blocks <= skip)
#pragma unroll
                for (int i = 0; i < HALVES * TILE_N / 2; i++) sums[i / (TILE_N / 2)][i % (TILE_N / 2)] = 0;
            previous = -1;
            if (g.a_across)
                multiply_across(sums, at, ceil_div(blocks - skip, every), every);
            else
                multiply_along(sums, at, ceil_div(blocks - skip, every), every);
            if constexpr (TURNS)
                if (!together) barrier_arrive(&turns()[1 - wg]);
            wgmma_wait<0>();
#pragma unroll
            for (int h = 0; h < HALVES; h++) hold(sums[h]);
            release_previous();
            if (g.parts > 1) {
                share(sums);
                store_shared(t);
            } else
                store(t, sums);
        }
    }

    static __device__ void run(const tf32_args &g) {
        SHARED &s = *(SHARED *)dynamic_shared<1024>();
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) {
                barrier_init(&raw()[i], 1);
                barrier_init(&s.full[i], g.b_across ? BOXES_B * 32 : 1);
                barrier_init(&s.empty[i], TURNS ? WARPGROUP : WARPS * 32); /* those that read a stage */
            }
            if constexpr (TURNS)
                for (int i = 0; i < 2; i++) barrier_init(&turns()[i], WARPGROUP);
            barrier_init_fence();
        }
        __syncthreads();
        const int wg = warp_number() / (WARPGROUP / 32);
        if (wg == 0) {
            registers_release_to<WGS == 2 ? 56 : 72>();
            tf32_kernel d(g, s, 0);
            if (threadIdx.x == 0) d.produce();
            if (threadIdx.x >= 32 && g.b_across) d.turn_b();
            __syncwarp();
            if (g.parts > 1 && tile_wanted<TILE_N>(g, tile_number<TILE_M, TILE_N>(g, d.first))) {
                cluster_sync(); /* as in share and store_shared */
                cluster_sync();
            }
        } else {
            registers_take<WGS == 2 ? 224 : 184>();
            tf32_kernel(g, s, wg - 1).consume();
        }
    }
};

typedef tf32_kernel<2, 1, 256, 4, false> wide;
typedef tf32_kernel<2, 2, 128, 6, true> in_turns;
typedef tf32_kernel<1, 1, 64, 6, false> small;

extern "C" __global__ void __launch_bounds__(wide::THREADS, 1) tf32_128x256(const __grid_constant__ tf32_args g) {
    wait_for_previous_kernel();
    allow_next_kernel();
    wide::run(g);
}

extern "C" __global__ void __launch_bounds__(in_turns::THREADS, 1) tf32_128x128(const __grid_constant__ tf32_args g) {
    wait_for_previous_kernel();
    allow_next_kernel();
    in_turns::run(g);
}

extern "C" __global__ void __launch_bounds__(small::THREADS, 2) tf32_64x64(const __grid_constant__ tf32_args g) {
    wait_for_previous_kernel();
    allow_next_kernel();
    small::run(g);
}

ASSERT_LISTED_AS(TF32_128X256, wide::TILE_M, wide::TILE_N, wide::THREADS, sizeof(wide::SHARED));
ASSERT_LISTED_AS(TF32_128X128, in_turns::TILE_M, in_turns::TILE_N, in_turns::THREADS, sizeof(in_turns::SHARED));
ASSERT_LISTED_AS(TF32_64X64, small::TILE_M, small::TILE_N, small::THREADS, sizeof(small::SHARED));
