/* overlap.cuh: kernels of one call that overlap on Hopper and later, the start of one with the end of the one before
 * (launch.c, `waits` of kernels.h). A kernel that may be launched early calls wait_for_previous_kernel in every thread
 * before it touches device memory that the one before writes, or writes what that one reads; then the one before has
 * ended, and with it all that came before that. What kernels before that one wrote is there, and may be read at once;
 * but one thread of the grid at least must wait. Earlier GPUs launch one kernel after the other, and nothing is to be done. */
#ifndef TESSERA_CUDA_OVERLAP_CUH
#define TESSERA_CUDA_OVERLAP_CUH

__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next kernel's blocks may take places on the multiprocessors as soon as all of this one's have called it or ended.
 * Never before wait_for_previous_kernel. */
__device__ inline void let_next_kernel_come() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
