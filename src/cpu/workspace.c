/* workspace.c: memory for packed panels. Fresh pages cost more to touch than a panel costs to pack, so the last block
 * returned is kept for the next call; cpu_trim, a larger demand or the end of the library frees it. */
#include "workspace.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "cpu.h"

static struct cpu_workspace *_Atomic kept;

struct cpu_workspace *cpu_workspace_take(size_t size) {
    struct cpu_workspace *workspace = atomic_exchange(&kept, NULL);
    if (workspace && workspace->size >= size) return workspace;
    free(workspace);
    const size_t align = _Alignof(struct cpu_workspace);
    const size_t rounded = (size + align - 1) / align * align;
    workspace = aligned_alloc(align, sizeof *workspace + rounded);
    if (workspace) workspace->size = rounded;
    return workspace;
}

void cpu_workspace_return(struct cpu_workspace *workspace) {
    struct cpu_workspace *none = NULL;
    if (!atomic_compare_exchange_strong(&kept, &none, workspace)) free(workspace);
}

void cpu_trim(void) { free(atomic_exchange(&kept, NULL)); }

static __attribute__((destructor)) void free_kept(void) { cpu_trim(); }
