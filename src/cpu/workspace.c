/* workspace.c: memory for packed blocks. Touching fresh pages costs more than packing into them, so the last block of
 * memory returned is kept for the next call; cpu_trim, a larger demand or the end of the library frees it.
 *
 * Where it is large enough, Linux is asked for huge pages: kernels read packed panels all the time, with one page-table
 * entry instead of hundreds, and a block of B that is contiguous in physical memory spreads evenly over the sets of a
 * cache.
 */
#include "cpu/workspace.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cpu/cpu.h"

enum { LINE_BYTES = 64, HUGE_PAGE = 2 << 20, WORTH_A_HUGE_PAGE = HUGE_PAGE / 4 };

static float *_Atomic kept; /* malloc knows its size */

/* The whole huge pages in a block of memory. */
static void ask_for_huge_pages(float *memory, size_t bytes) {
    const uintptr_t begin = ((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    const uintptr_t end = ((uintptr_t)memory + bytes) / HUGE_PAGE * HUGE_PAGE;
    if (begin < end) madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* if refused, small pages do */
}

float *cpu_workspace_take(size_t size, size_t limit) {
    float *workspace = atomic_exchange(&kept, NULL);
    if (workspace && malloc_usable_size(workspace) >= size) return workspace;
    free(workspace);
    const size_t lines = (size + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    const size_t pages = (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    const bool in_pages = size >= WORTH_A_HUGE_PAGE && (!limit || pages <= limit);
    const size_t bytes = in_pages ? pages : lines;
    workspace = aligned_alloc(in_pages ? HUGE_PAGE : LINE_BYTES, bytes);
    if (workspace) ask_for_huge_pages(workspace, bytes);
    return workspace;
}

void cpu_workspace_return(float *workspace) {
    float *none = NULL;
    if (!atomic_compare_exchange_strong(&kept, &none, workspace)) free(workspace);
}

void cpu_trim(void) { free(atomic_exchange(&kept, NULL)); }

static __attribute__((destructor)) void free_kept(void) { cpu_trim(); }
