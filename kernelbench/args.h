/* args.h: what every kernel of a module takes, as its one parameter.
 * An operand is seen as `rows` rows of length k: A as it is, B transposed. Packed, row r is scaled by 2^exponents[r],
 * split into hi and lo, and grouped with others in panels of PANEL_ROWS; k is cut into blocks of SPLIT_K. Block kb of a
 * panel is a tile of hi, then a tile of lo, of stored_rows x 128 bytes each; stored_rows is PANEL_ROWS, or in the last
 * panel its number of rows rounded up to 8. Within a tile, 16-byte chunk j of row r lies at chunk j ^ (r % 8): the
 * 128-byte swizzle that wgmma reads. Missing rows and k are zero.
 *
 * An element's depth is the factor by which it lies, scaled, below fp16's smallest normal number 2^-14; 1 if it does
 * not; infinite if it does not fit at all (Inf, NaN, overflow). A panel's mark is its largest depth. */
enum { PANEL_ROWS = 128, SPLIT_K = 64, SPLIT_ROW_BYTES = 128, SPLIT_LO_SHIFT = 11 };
enum { SPLIT_SUM_K = 32 }; /* terms that tensor cores sum before the sum is promoted to float32 registers */
enum { ALL_ZERO = 63 };    /* the exponent of a row of zeros; those of others are within +-62 */

struct operand {
    const float *data; /* element (row, k) at data[row*row_stride + k*k_stride]; one of the strides is 1 */
    int64_t row_stride, k_stride, batch_stride;
    int32_t rows, k;
    uint8_t *panels;
    int64_t panels_batch_stride; /* bytes */
    int32_t *exponents;          /* [batch][rows] */
    float *marks;                /* [batch][panels] */
    float *overflows;            /* [batch][rows]: a row's largest element that did not fit at first, or 0 */
    int32_t *overflowed;         /* [batch][panels]: 1 if something did not fit at first, else 0 */
};

/* C = A*B, with C [batch][m][n]: m = a.rows, n = b.rows, k = a.k = b.k. The Hopper kernel stores the tiles of C whose
 * marks, of A and of B, multiply to at most mark_limit; only_marked: the portable kernel computes only the others. */
struct product {
    operand a, b;
    float *c;
    int32_t batch, only_marked;
    float mark_limit;
    int32_t *any_overflowed; /* 1 if any panel overflowed, else 0 */
};

/* What the host needs to know for a launch. PORTABLE_SLAB: terms in a slab of the portable kernel. Longer slabs need
 * fewer barriers; with the shorter ones two blocks fit on an SM that has only 100 KB of shared memory. */
enum { SAMPLE_ROWS = 8, PACK_ROWS = 64, PACK_BLOCKS_PER_SM = 8, PORTABLE_SLAB = TESSERA_HOPPER ? 32 : 16 };
constexpr int portable_shared(int tile) { return 2 * 2 * PORTABLE_SLAB * (tile + 4) * (int)sizeof(float); }
