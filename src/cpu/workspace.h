/* workspace.h: memory for packed panels, kept from one call to the next. */
#ifndef TESSERA_CPU_WORKSPACE_H
#define TESSERA_CPU_WORKSPACE_H

#include <stddef.h>

struct cpu_workspace {
    size_t size;
    _Alignas(64) float panels[]; /* `size` bytes */
};

/* At least `size` bytes; NULL where there is no memory. Give it back with cpu_workspace_return. */
struct cpu_workspace *cpu_workspace_take(size_t size);
void cpu_workspace_return(struct cpu_workspace *workspace);

#endif
