/* workspace.h: memory for packed blocks, kept from one call to the next. */
#ifndef TESSERA_CPU_WORKSPACE_H
#define TESSERA_CPU_WORKSPACE_H

#include <stddef.h>

/* At least `size` bytes, on a cache line; NULL if there is no memory. The allocation does not exceed `limit` bytes,
 * unless `limit` is 0. Return it with cpu_workspace_return. */
float *cpu_workspace_take(size_t size, size_t limit);
void cpu_workspace_return(float *workspace);

#endif
