/* pack.cu: float32 operands -> fp16 panels for the Hopper kernel (layout: args.h).
 *   pack_sample    takes a row's exponent e from SAMPLES of its elements, with room above for what it has not seen
 *   pack_split     splits: hi = fp16(x*2^e), lo = fp16((x*2^e - hi) * 2^11)
 *   pack_again     splits panels again in which an element did not fit, with e from the row's largest such element
 *
 * So an operand is read once, unless its sample misleads. Tile map: a pack tile is 64 rows x SPLIT_K; a block of 128
 * threads loads it as it lies in memory, in lines along whichever of rows and k is contiguous, and passes it through
 * shared memory. A thread then splits quads: four neighbours along k, 8 bytes of hi and 8 of lo. */

namespace packing {

constexpr int THREADS = 128, QUAD = 4, QUADS = SPLIT_K / QUAD; /* QUADS: of a row */
constexpr int LINE = 64, LINE_PITCH = LINE + 1;                /* a pack tile is 64 lines of 64; odd, to spread banks */
constexpr int SAMPLES = 128, SAMPLE_EXPONENT = 12; /* their largest lands in [2^12, 2^13): others may be 8 times it */
constexpr int LARGEST_EXPONENT = 14;               /* the row's largest lands in [2^14, 2^15), below fp16's 65504 */
constexpr int EXPONENT_LIMIT = 62;                 /* 2^(e of A + e of B) and its inverse stay normal floats */
constexpr float HALF_LEAST_NORMAL = 1.0f / (1 << 14), HALF_OVERFLOW = 65520; /* fp16's; it rounds that to infinity */
static_assert(PACK_ROWS == LINE && SPLIT_K == LINE, "a pack tile has as many lines whichever way they run");

/* The exponent that scales a row whose largest element is `largest` to [2^at, 2^(at + 1)). */
__device__ int exponent_for(float largest, int at) {
    const int exponent = (int)(__float_as_uint(largest) >> 23) - 127; /* a subnormal's is lower: the limit holds */
    return max(-EXPONENT_LIMIT, min(EXPONENT_LIMIT, at - exponent));
}

/* atomicMax of floats that are not negative: their bits are ordered as they are. */
__device__ void raise(float *number, float to) { atomicMax((int *)number, __float_as_int(to)); }

/* Where a pack tile, or a group of sampled rows, begins. */
struct place {
    bool in_b;
    int batch, row0, kb;
    __device__ const operand &of(const product &g) const { return in_b ? g.b : g.a; }
};

/* Place `index`: group_rows rows in one block of k, those of A first. Thread blocks with neighbouring numbers run at
 * the same time, and get what lies together in memory. */
__device__ place place_at(const product &g, int index, int group_rows, int k_blocks) {
    const int in_a = g.batch * ceil_div(g.a.rows, group_rows) * k_blocks;
    place at = {};
    at.in_b = index >= in_a;
    if (at.in_b) index -= in_a;
    const int groups = ceil_div(at.of(g).rows, group_rows);
    at.batch = index / (groups * k_blocks);
    index -= at.batch * groups * k_blocks;
    const bool across = at.of(g).row_stride == 1;
    at.kb = across ? index / groups : index % k_blocks;
    at.row0 = (across ? index % groups : index / k_blocks) * group_rows;
    return at;
}

struct pack_tile {
    float lines[LINE][LINE_PITCH];
    int exponents[PACK_ROWS];
};

/* A thread's share of a tile: 32 floats, either four neighbours of every 8th line or one of every 2nd. All are loaded
 * before the first is used. What lies past the matrix is zero. */
struct share {
    __align__(16) float x[LINE * LINE / THREADS];
    bool vectors;
    __device__ void load(const operand &o, const place &u) {
        const bool across = o.row_stride == 1; /* lines run across rows, else along k */
        const float *first = o.data + u.batch * o.batch_stride + u.row0 * o.row_stride +
                             (int64_t)u.kb * SPLIT_K * o.k_stride;
        const int64_t stride = across ? o.k_stride : o.row_stride;
        const int rows = min(PACK_ROWS, o.rows - u.row0), depth = min(SPLIT_K, o.k - u.kb * SPLIT_K);
        const int lines = across ? depth : rows, length = across ? rows : depth;
        vectors = lines == LINE && length == LINE && stride % 4 == 0 && (uintptr_t)first % 16 == 0;
        if (vectors) {
            first += threadIdx.x / 16 * stride + threadIdx.x % 16 * 4;
#pragma unroll
            for (int i = 0; i < LINE / 8; i++) *(float4 *)&x[4 * i] = *(const float4 *)(first + i * 8 * stride);
        } else {
            const int line = threadIdx.x / 64, column = threadIdx.x % 64;
            first += line * stride + column;
#pragma unroll
            for (int i = 0; i < LINE / 2; i++)
                x[i] = i * 2 + line < lines && column < length ? first[i * 2 * stride] : 0;
        }
    }
    __device__ void store(pack_tile &tile) const {
#pragma unroll
        for (int i = 0; i < LINE * LINE / THREADS; i++)
            if (vectors)
                tile.lines[i / 4 * 8 + threadIdx.x / 16][threadIdx.x % 16 * 4 + i % 4] = x[i];
            else
                tile.lines[i * 2 + threadIdx.x / 64][threadIdx.x % 64] = x[i];
    }
};

/* An element's depth with exponent e; infinite also where its row was taken for zeros. */
__device__ float depth_of(float x, int e) {
    const float scaled = fabsf(x * power_of_two(e));
    if (x == 0) return 1;
    return scaled < HALF_OVERFLOW && e != ALL_ZERO ? fmaxf(1, HALF_LEAST_NORMAL / scaled) : INFINITY;
}

/* Splits two neighbours of a row with exponent e; false where one of them is tiny or does not fit. */
__device__ bool split_pair(float x0, float x1, int e, __half2 *hi, __half2 *lo) {
    const float up = power_of_two(e), down = power_of_two(-e), lo_up = power_of_two(e + SPLIT_LO_SHIFT);
    const float least = e == ALL_ZERO ? INFINITY : HALF_LEAST_NORMAL, scaled0 = x0 * up, scaled1 = x1 * up;
    *hi = __floats2half2_rn(scaled0, scaled1);
    const float2 h = __half22float2(*hi);
    *lo = __floats2half2_rn(fmaf(-h.x, down, x0) * lo_up, fmaf(-h.y, down, x1) * lo_up);
    return ((fabsf(scaled0) >= least && fabsf(scaled0) < HALF_OVERFLOW) || x0 == 0) &
           ((fabsf(scaled1) >= least && fabsf(scaled1) < HALF_OVERFLOW) || x1 == 0);
}

/* Splits this thread's quads, of every 8th row (which are swizzled alike), and returns their largest depth. */
__device__ float split(const operand &o, const place &u, const pack_tile &tile) {
    const int quad = threadIdx.x % QUADS, first_row = threadIdx.x / QUADS;
    const panel_rows rows = panel_rows_at<PACK_ROWS>(o, u.batch, u.row0);
    uint8_t *to = rows.from + (int64_t)u.kb * 2 * rows.component_stride + first_row * SPLIT_ROW_BYTES +
                  (quad / 2 ^ first_row) * 16 + quad % 2 * 8;
    float depth = 1;
#pragma unroll 2
    for (int row = first_row; row < PACK_ROWS; row += THREADS / QUADS, to += THREADS / QUADS * SPLIT_ROW_BYTES) {
        const int e = tile.exponents[row];
        float x[QUAD];
        __half2 hi[QUAD / 2], lo[QUAD / 2];
#pragma unroll
        for (int k = 0; k < QUAD; k++)
            x[k] = o.row_stride == 1 ? tile.lines[quad * QUAD + k][row] : tile.lines[row][quad * QUAD + k];
        bool ordinary = true;
#pragma unroll
        for (int i = 0; i < QUAD / 2; i++) ordinary &= split_pair(x[2 * i], x[2 * i + 1], e, &hi[i], &lo[i]);
        if (row * SPLIT_ROW_BYTES < rows.bytes) {
            *(uint2 *)to = *(uint2 *)hi;
            *(uint2 *)(to + rows.component_stride) = *(uint2 *)lo;
        }
        if (ordinary) continue;
        for (int k = 0; k < QUAD; k++) {
            const float of_x = depth_of(x[k], e);
            depth = fmaxf(depth, of_x);
            if (of_x == INFINITY) raise(&o.overflows[(int64_t)u.batch * o.rows + u.row0 + row], fabsf(x[k]));
        }
    }
    return depth;
}

/* Packs a tile; AGAIN: only if its panel overflowed. */
template <bool AGAIN> __device__ void pack_one(const product &g, int index) {
    __shared__ pack_tile tile;
    const place u = place_at(g, index, PACK_ROWS, ceil_div(g.a.k, SPLIT_K));
    const operand &o = u.of(g);
    const int panel = u.batch * ceil_div(o.rows, PANEL_ROWS) + u.row0 / PANEL_ROWS;
    if (AGAIN && !o.overflowed[panel]) return;
    share mine;
    mine.load(o, u); /* the matrix was there before the kernel in front of this one, the exponents were not */
    if (!AGAIN) wait_for_previous_kernel();
    if (threadIdx.x < PACK_ROWS) {
        const bool there = u.row0 + threadIdx.x < o.rows;
        const int64_t row = (int64_t)u.batch * o.rows + (there ? u.row0 + threadIdx.x : 0);
        int e = there ? o.exponents[row] : 0;
        if (AGAIN && there && o.overflows[row] > 0) {
            e = exponent_for(o.overflows[row], LARGEST_EXPONENT);
            if (u.kb == 0) o.exponents[row] = e; /* the other tiles of this row find the same */
        }
        tile.exponents[threadIdx.x] = e;
    }
    mine.store(tile);
    __syncthreads();
    const float depth = split(o, u, tile);
    if (depth > 1 && (AGAIN || depth < INFINITY)) raise(&o.marks[panel], depth);
    if (!AGAIN && depth == INFINITY) o.overflowed[panel] = *g.any_overflowed = 1;
    __syncthreads(); /* the next tile takes this one's place */
}

} // namespace packing

/* Grid: batch * ceil(rows / SAMPLE_ROWS) blocks for each operand. The sample is four runs of 32, spread over k. */
extern "C" __global__ void __launch_bounds__(128) pack_sample(const __grid_constant__ product g) {
    using namespace packing;
    __shared__ float largest[SAMPLE_ROWS];
    wait_for_previous_kernel(), allow_next_kernel();
    const place at = place_at(g, blockIdx.x, SAMPLE_ROWS, 1);
    const operand &o = at.of(g);
    const bool across = o.row_stride == 1;
    const int row = across ? threadIdx.x % SAMPLE_ROWS : threadIdx.x / 16;
    const int lane = across ? threadIdx.x / SAMPLE_ROWS : threadIdx.x % 16;
    const float *first = o.data + at.batch * o.batch_stride + min(at.row0 + row, o.rows - 1) * o.row_stride;
    float x[SAMPLES / 16], most = 0;
#pragma unroll
    for (int i = 0; i < SAMPLES / 16; i++) {
        const int run = (int)((int64_t)max(0, o.k - 32) * (i / 2) / 3);
        x[i] = first[min(run + i % 2 * 16 + lane, o.k - 1) * o.k_stride];
    }
    if (threadIdx.x < SAMPLE_ROWS) largest[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SAMPLES / 16; i++) most = fmaxf(most, fabsf(x[i]));
    raise(&largest[row], most);
    __syncthreads();
    if (threadIdx.x < SAMPLE_ROWS && at.row0 + threadIdx.x < o.rows) {
        const int64_t i = (int64_t)at.batch * o.rows + at.row0 + threadIdx.x;
        most = largest[threadIdx.x];
        o.exponents[i] = most == 0 ? (int)ALL_ZERO : exponent_for(most, SAMPLE_EXPONENT);
        o.overflows[i] = 0;
    }
    if (threadIdx.x == 0 && at.row0 % PANEL_ROWS == 0) {
        const int panel = at.batch * ceil_div(o.rows, PANEL_ROWS) + at.row0 / PANEL_ROWS;
        o.marks[panel] = 1, o.overflowed[panel] = 0;
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) *g.any_overflowed = 0;
}

/* Grid: one block for each pack tile. */
extern "C" __global__ void __launch_bounds__(128, PACK_BLOCKS_PER_SM) pack_split(const __grid_constant__ product g) {
    packing::pack_one<false>(g, blockIdx.x);
}

/* Grid: as many blocks as are resident; each takes every gridDim-th pack tile. */
extern "C" __global__ void __launch_bounds__(128, PACK_BLOCKS_PER_SM) pack_again(const __grid_constant__ product g) {
    wait_for_previous_kernel(), allow_next_kernel();
    if (!*g.any_overflowed) return;
    const int groups = ceil_div(g.a.rows, PACK_ROWS) + ceil_div(g.b.rows, PACK_ROWS);
    const int tiles = g.batch * groups * ceil_div(g.a.k, SPLIT_K);
    for (int index = blockIdx.x; index < tiles; index += gridDim.x) packing::pack_one<true>(g, index);
}
