/* amx_tile.h: the tile instructions of amx.c, as functions or macros. There are eight tiles of 16 rows of 64 bytes.
 *
 *     tile_load(t, from)    tile t = 1024 bytes at `from`
 *     tile_store(t, to, row_bytes)    and back, rows of 16 floats so many bytes apart
 *     tile_zero(t)
 *     tile_dot(c, a, b)     tile c += tile a * tile b: 16 rows of 32 bf16 by 16 rows of 16 pairs, 16 x 16 floats
 *
 * t, c, a and b are digits. With TESSERA_AMX_MODEL defined, plain C does what the instructions do, to the last bit: a
 * library built so runs the whole AMX path on any machine, for tests.
 */
#ifndef TESSERA_CPU_AMX_TILE_H
#define TESSERA_CPU_AMX_TILE_H

#include <stdint.h>

enum { TILE_BYTES = 1024, TILE_ROWS = 16, TILE_ROW_BYTES = 64, TILES = 8 };

/* What LDTILECFG reads and STTILECFG writes; palette 0: tiles are not in use. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

#ifdef TESSERA_AMX_MODEL

#include <math.h>
#include <string.h>

static _Thread_local union {
    float sums[TILE_ROWS][16];
    uint16_t bf16[TILE_ROWS][32];
} tiles[TILES];

/* AMX takes subnormals for zeros, and makes none. */
static inline float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

static inline float from_bf16(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return flush(value);
}

static inline void tile_load(int t, const void *from) { memcpy(&tiles[t], from, TILE_BYTES); }

static inline void tile_zero(int t) { memset(&tiles[t], 0, TILE_BYTES); }

static inline void tile_store(int t, void *to, int64_t row_bytes) {
    for (int i = 0; i < TILE_ROWS; i++) memcpy((char *)to + i * row_bytes, tiles[t].sums[i], TILE_ROW_BYTES);
}

/* Even and odd places form two chains of fused multiply-adds from zero; these are added, and their sum to the
 * tile's. */
static inline void tile_dot(int c, int a, int b) {
    float left[TILE_ROWS][32], right[16][32];
    for (int i = 0; i < 16; i++)
        for (int p = 0; p < 32; p++) {
            left[i][p] = from_bf16(tiles[a].bf16[i][p]);
            right[i][p] = from_bf16(tiles[b].bf16[i][p]);
        }
    for (int i = 0; i < TILE_ROWS; i++) {
        float even[16] = {0}, odd[16] = {0};
        for (int p = 0; p < 16; p++)
            for (int j = 0; j < 16; j++) {
                even[j] = flush(fmaf(left[i][2 * p], right[p][2 * j], even[j]));
                odd[j] = flush(fmaf(left[i][2 * p + 1], right[p][2 * j + 1], odd[j]));
            }
        for (int j = 0; j < 16; j++) tiles[c].sums[i][j] = flush(flush(tiles[c].sums[i][j]) + flush(even[j] + odd[j]));
    }
}

static inline void tile_config_load(const struct tile_config *config) { (void)config; }
static inline void tile_config_store(struct tile_config *config) { config->palette = 0; }
static inline void tile_release(void) {}

#else

/* The operands that the text does not name say which memory is read and written: compilers' own intrinsics leave that
 * out, and some lose stores to a buffer that is loaded right after. */
#define tile_load(t, from)                                                  \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"(64L), \
                     "m"(*(const char(*)[TILE_BYTES])(const void *)(from)))
#define tile_store(t, to, row_bytes) \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"((int64_t)(row_bytes)) : "memory")
#define tile_zero(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define tile_dot(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

static inline void tile_config_load(const struct tile_config *config) {
    __asm__ volatile("ldtilecfg %0" ::"m"(*config));
}
static inline void tile_config_store(struct tile_config *config) { __asm__ volatile("sttilecfg %0" : "=m"(*config)); }
static inline void tile_release(void) { __asm__ volatile("tilerelease" ::); }

#endif

#endif
