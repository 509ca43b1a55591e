/* random.h: random numbers that are the same on every machine. */
#ifndef TESSERA_CLI_RANDOM_H
#define TESSERA_CLI_RANDOM_H

#include <stdint.h>

typedef struct random_source {
    uint64_t state; /* any value is a good seed */
} random_source;

uint64_t random_bits(random_source *source);
int64_t random_below(random_source *source, int64_t limit); /* 0 .. limit-1 */
float random_uniform(random_source *source);                /* [0, 1) */
float random_normal(random_source *source);

void random_fill_uniform(random_source *source, float *data, int64_t count); /* [0, 1) */

#endif
