/* memory_sanitizer.h: included before every file that clang compiles with its memory sanitizer (test_sanitizers.py).
 *
 * Clang 14 does not know that vmaskmovps writes, so it reports whoever reads what was stored. The smallest example,
 * which is right and is reported:
 *
 *     float *x = malloc(32);
 *     _mm256_maskstore_ps(x, _mm256_set1_epi32(-1), _mm256_set1_ps(1));
 *     if (x[0] > 0) puts("one");
 *
 * Here the store tells it which lanes were written. What is stored has been checked by then: the sanitizer reports an
 * instruction it does not know if any of its arguments was never written.
 */
#ifdef __x86_64__
#include <immintrin.h>
#include <sanitizer/msan_interface.h>

static inline __attribute__((target("avx2"))) void store_known_lanes(float *to, __m256i mask, __m256 x) {
    _mm256_maskstore_ps(to, mask, x);
    const int lanes = _mm256_movemask_ps(_mm256_castsi256_ps(mask));
    for (int lane = 0; lane < 8; lane++)
        if (lanes >> lane & 1) __msan_unpoison(to + lane, sizeof *to);
}
#define _mm256_maskstore_ps store_known_lanes
#endif
