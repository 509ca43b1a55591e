/* workspace.c: memory for packed panels. Fresh pages cost more to touch than a panel costs to pack, so the last block
 * returned is kept for the next call; cpu_trim, a larger demand or the end of the library frees it.
 *
 * Where there may be enough for a huge page, Linux is asked for one: kernels walk through panels all the time, with one
 * address to look up instead of hundreds, and a block of B that is in one piece spreads evenly over the sets of a cache.
 */
#include "workspace.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cpu.h"

enum { HUGE_PAGE = 2 << 20, WORTH_A_HUGE_PAGE = HUGE_PAGE / 4 };

static struct cpu_workspace *_Atomic kept;

struct cpu_workspace *cpu_workspace_take(size_t size) {
    struct cpu_workspace *workspace = atomic_exchange(&kept, NULL);
    if (workspace && workspace->size >= size) return workspace;
    free(workspace);
    const size_t align = size < WORTH_A_HUGE_PAGE ? _Alignof(struct cpu_workspace) : HUGE_PAGE;
    const size_t bytes = (sizeof *workspace + size + align - 1) / align * align;
    workspace = aligned_alloc(align, bytes);
    if (!workspace) return NULL;
    if (align == HUGE_PAGE) madvise(workspace, bytes, MADV_HUGEPAGE); /* refused, small ones do */
    workspace->size = bytes - sizeof *workspace;
    return workspace;
}

void cpu_workspace_return(struct cpu_workspace *workspace) {
    struct cpu_workspace *none = NULL;
    if (!atomic_compare_exchange_strong(&kept, &none, workspace)) free(workspace);
}

void cpu_trim(void) { free(atomic_exchange(&kept, NULL)); }

static __attribute__((destructor)) void free_kept(void) { cpu_trim(); }
