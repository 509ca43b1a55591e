/* random.c: splitmix64 (Steele, Lea, Flood 2014): one multiply-xor chain a number, every seed as good as another. */
#include "random.h"

#include <math.h>

uint64_t random_bits(random_source *source) {
    uint64_t z = source->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t random_below(random_source *source, int64_t limit) { return (int64_t)(random_bits(source) % (uint64_t)limit); }

float random_uniform(random_source *source) { return (float)(random_bits(source) >> 40) * 0x1p-24f; }

float random_normal(random_source *source) {
    double radius = sqrt(-2 * log(1 - (double)random_uniform(source)));
    return (float)(radius * cos(6.283185307179586 * (double)random_uniform(source)));
}

void random_fill_uniform(random_source *source, float *data, int64_t count) {
    for (int64_t i = 0; i < count; i++) data[i] = random_uniform(source);
}
