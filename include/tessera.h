/* tessera.h: float32 matrix multiplication, C = alpha*A*B + beta*C, or + beta*S with a matrix S of its own.
 *
 * The whole public interface of libtessera. C11, usable from C++. Everything here may be called from any number of
 * threads at once; only creating and destroying an object must not race with its use.
 *
 * THE NUMERICAL CONTRACT
 *
 *   precision   what is computed                                  what is promised
 *   TSR_IEEE    products and sums in IEEE float32 or wider,       |C - AB| <= (K+2) 2^-24 (|A||B|), each element;
 *               in any order                                      subnormals kept; NaN and Inf as IEEE says
 *   TSR_FP32    float32-accurate, free to use matrix engines      the same bound and the same NaN, Inf and subnormal
 *               on split operands                                 results for every input: what a fast path cannot
 *                                                                 carry is recomputed as TSR_IEEE, on the device
 *   TSR_TF32    operands rounded to 11 significant bits,          normwise: relative Frobenius error no larger than
 *               float32 accumulation                              TF32's; NaN and Inf as IEEE says
 *
 * The bound is for C = AB and holds as long as nothing underflows: a product below 2^-126 may lose up to 2^-150 more,
 * as in any float32 arithmetic. With alpha and beta the error is at most (K+4) 2^-24 (|alpha| |A||B| + |beta C|).
 * With beta = 0 C (or S) is not read, with alpha = 0 neither A nor B is. Same inputs, same machine, same precision,
 * same number of threads, same tuning file (`tessera tune`: it may change kernels, and so bits): the same bits, every
 * time. docs/internals/numerics.md derives the bounds.
 *
 * With options.batch_invariant a row of C depends on its row of A, on B, alpha, beta and its row of the addend alone:
 * not on m, the row's place, its neighbours, the batch, strides or threads. The bits of a NaN are not promised.
 */
#ifndef TESSERA_H
#define TESSERA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC visibility push(default) /* the functions below are all that the library exports */
#endif

#define TSR_VERSION_MAJOR 0
#define TSR_VERSION_MINOR 1
#define TSR_VERSION_PATCH 0

/* ---- Status ------------------------------------------------------------------------------------------------------ */

typedef enum tsr_status {
    TSR_OK = 0,
    TSR_INVALID_ARGUMENT = 1, /* the message names the argument */
    TSR_OUT_OF_MEMORY = 2,    /* on the host or on the device; nothing was written */
    TSR_UNSUPPORTED = 3,      /* this build, machine or device cannot do it */
    TSR_NO_DEVICE = 4,        /* no such CUDA device, or no usable driver */
    TSR_DEVICE_ERROR = 5      /* the CUDA driver reported an error; the message carries its text */
} tsr_status;

/* "TSR_OK" and so on; "unknown status" for a number that is none. Never NULL. */
const char *tsr_status_name(tsr_status status);

/* One sentence about the last call on this thread that did not return TSR_OK: what was wrong, in which argument, and
 * what to do. Empty before any failure. Valid until the next failing call on this thread. Never NULL. */
const char *tsr_last_error(void);

/* "0.1.0", and whether the library was built with the CUDA engine (1) or without (0). */
const char *tsr_version(void);
int tsr_has_cuda(void);

/* ---- Context ----------------------------------------------------------------------------------------------------- */

typedef enum tsr_device {
    TSR_DEVICE_CPU = 0, /* operands in host memory */
    TSR_DEVICE_CUDA = 1 /* operands in memory the GPU can read: device, managed or pinned */
} tsr_device;

typedef enum tsr_precision {
    TSR_FP32 = 0, /* the default */
    TSR_IEEE = 1,
    TSR_TF32 = 2
} tsr_precision;

/* "fp32", "ieee" or "tf32"; "unknown precision" for a number that is none. Never NULL. */
const char *tsr_precision_name(tsr_precision precision);

/* What a context is made of. Start from TSR_OPTIONS_DEFAULT and set what differs. */
typedef struct tsr_options {
    tsr_device device;
    int device_index; /* CUDA: which GPU; -1: the caller's current context, else GPU 0's primary one */
    tsr_precision precision;
    int threads;          /* CPU: 1..1024; 0: as many as the process has cores to run on */
    size_t max_workspace; /* most bytes a call may take beyond its operands; 0: no limit */
    const char *kernel;   /* force one kernel by its name in tsr_info_print; NULL: the plan chooses */
    int batch_invariant;  /* 1: a row of C has the same bits whatever other rows and products come with it; 0: only if
                           * TESSERA_BATCH_INVARIANT in the environment is 1 */
} tsr_options;

#define TSR_OPTIONS_DEFAULT \
    { TSR_DEVICE_CPU, -1, TSR_FP32, 0, 0, NULL, 0 }

typedef struct tsr_context tsr_context;

/* options may be NULL for the defaults. On failure *context is NULL. Destroying NULL is allowed. */
tsr_status tsr_context_create(tsr_context **context, const tsr_options *options);
void tsr_context_destroy(tsr_context *context);

/* The most CPU threads that a call uses: options.threads, or what 0 stands for there. */
int tsr_context_threads(const tsr_context *context);

/* ---- Operands ---------------------------------------------------------------------------------------------------- */

typedef struct tsr_packed tsr_packed;

/* A matrix to read: element (i, j) is data[i*row_stride + j*col_stride]. A transpose is two strides exchanged, a slice
 * is a larger stride, a reversed view has a negative one, a broadcast one of zero. Strides count floats, not bytes. */
typedef struct tsr_operand {
    const float *data;
    int64_t rows, cols;
    int64_t row_stride, col_stride;
    int64_t batch_stride;     /* from one product's matrix to the next; 0: every product shares this one */
    const tsr_packed *packed; /* from tsr_pack of this same matrix, or NULL; of use where all products share it */
} tsr_operand;

/* A matrix to write. No two of its elements may share an address, nor may it overlap an operand. */
typedef struct tsr_result {
    float *data;
    int64_t rows, cols;
    int64_t row_stride, col_stride;
    int64_t batch_stride;
} tsr_result;

/* The stream a call runs on, and its workspace. NULL means all zero: the default stream, workspace from the library. */
typedef struct tsr_launch {
    void *stream;          /* CUDA: a CUstream / cudaStream_t of the context's device */
    void *workspace;       /* at least tsr_plan_workspace bytes, 256-byte aligned, on the plan's device; or NULL */
    size_t workspace_size; /* bytes at workspace */
} tsr_launch;

/* ---- Multiplying ------------------------------------------------------------------------------------------------- */

/* C = alpha*A*B + beta*C. On the CPU it is done when the call returns. On CUDA it has been queued on launch->stream:
 * the call does not synchronise, and may be captured into a CUDA graph. Make the context before capturing, and keep it
 * as long as the graph. */
tsr_status tsr_gemm(tsr_context *context, float alpha, const tsr_operand *a, const tsr_operand *b, float beta,
                    const tsr_result *c, const tsr_launch *launch);

/* The same for `batch` products, the i-th at data + i*batch_stride of each matrix. */
tsr_status tsr_gemm_batch(tsr_context *context, int64_t batch, float alpha, const tsr_operand *a, const tsr_operand *b,
                          float beta, const tsr_result *c, const tsr_launch *launch);

/* The same for `batch` products whose matrices lie anywhere: a, b and c have the shapes and strides of each, and the
 * i-th has its data at a_data[i], b_data[i] and c_data[i]. These arrays are in host memory, on CUDA, too, and are not
 * needed after the call. data, batch_stride and packed of a, b and c are not looked at. That C overlaps neither operand
 * is checked for each product; no result may overlap another product's matrices. On CUDA evenly spaced matrices are one
 * batch; others are products one after the other, eight of them to a launch on Hopper. */
tsr_status tsr_gemm_pointers(tsr_context *context, int64_t batch, float alpha, const tsr_operand *a,
                             const float *const *a_data, const tsr_operand *b, const float *const *b_data, float beta,
                             const tsr_result *c, float *const *c_data, const tsr_launch *launch);

/* C = alpha*A*B + beta*S for `batch` products: S, the addend, is read with strides of its own, and C is only written.
 * Strides of 0 broadcast: a bias for each column has row_stride 0. S may be C itself (the same data and strides), but
 * may not overlap it otherwise. With beta = 0 it is not looked at, and may be NULL. Its packed form is never used. */
tsr_status tsr_gemm_add(tsr_context *context, int64_t batch, float alpha, const tsr_operand *a, const tsr_operand *b,
                        float beta, const tsr_operand *addend, const tsr_result *c, const tsr_launch *launch);

/* The same as tsr_gemm_batch for matrices in ordinary host memory, done when the call returns, on any context. On CUDA
 * they are copied to the GPU and back in blocks while it multiplies, and may be larger than its memory. Where the
 * GPU fails in the middle the CPU computes what is missing: the result is right, and *share, unless NULL, is how much
 * of C the context's own device has computed, 0 to 1. Below 1, tsr_last_error says why. */
tsr_status tsr_gemm_host(tsr_context *context, int64_t batch, float alpha, const tsr_operand *a, const tsr_operand *b,
                         float beta, const tsr_result *c, double *share);

/* Seconds that tsr_gemm_host is estimated to take, copies included, in the sense of tsr_plan_seconds. Data pointers are
 * not looked at. 0 where it cannot be planned; tsr_last_error says why. */
double tsr_gemm_host_seconds(tsr_context *context, int64_t batch, const tsr_operand *a, const tsr_operand *b,
                             float beta, const tsr_result *c);

/* ---- Plans: decide once, execute often --------------------------------------------------------------------------- */

typedef struct tsr_plan tsr_plan;

/* Plans the product of matrices with these shapes and strides; data pointers are not looked at and may be NULL. The
 * context must outlive the plan. */
tsr_status tsr_plan_create(tsr_plan **plan, tsr_context *context, int64_t batch, const tsr_operand *a,
                           const tsr_operand *b, const tsr_result *c);
void tsr_plan_destroy(tsr_plan *plan);

/* Bytes of workspace an execution takes; 0 where it needs none. */
size_t tsr_plan_workspace(const tsr_plan *plan);

/* Seconds an execution is estimated to take: on CUDA on an otherwise idle GPU, on the CPU with the plan's threads on
 * idle cores, memory warm. One cost model is behind it and behind every choice the library makes, so estimates of two
 * plans, on different devices too, can be compared. */
double tsr_plan_seconds(const tsr_plan *plan);

/* 1 where it takes a split (matrix engine) path, as tsr_stats counts them; else 0. */
int tsr_plan_is_split(const tsr_plan *plan);

/* Writes the plan as text of the form "name: value\n", NUL-terminated, cut to `size`; returns the length it would have
 * whole, as snprintf does. */
size_t tsr_plan_print(const tsr_plan *plan, char *text, size_t size);

/* Executes on these matrices, whose shapes, strides and packed forms are the plan's. Those were checked when it was
 * made; an execution checks the pointers (not NULL, aligned, C apart from A and B) and the workspace. */
tsr_status tsr_plan_execute(const tsr_plan *plan, float alpha, const float *a, const float *b, float beta, float *c,
                            const tsr_launch *launch);

/* The same with an addend, as in tsr_gemm_add. A plan does not depend on the addend: each execution has its own,
 * with strides of its own. */
tsr_status tsr_plan_execute_add(const tsr_plan *plan, float alpha, const float *a, const float *b, float beta,
                                const tsr_operand *addend, float *c, const tsr_launch *launch);

/* ---- Tuning: the constants behind estimates on a GPU ------------------------------------------------------------- */

/* A context on CUDA reads its GPU's constants from a file when it is made: the one that TESSERA_TUNING in the
 * environment names (empty: none), else one for this GPU in $XDG_CACHE_HOME/tessera or ~/.cache/tessera. `tessera tune`
 * writes it. Without such a file, or if it cannot be used, the context has the table of the nearest GPU that was
 * measured; tsr_plan_print and tsr_info_print say which table is in use, and why. In the manner of tsr_plan_print,
 * tsr_tuning_path writes the file's path, empty where there can be none, and tsr_tuning_print this context's constants
 * as such a file has them. */
size_t tsr_tuning_path(const tsr_context *context, char *path, size_t size);
size_t tsr_tuning_print(const tsr_context *context, char *text, size_t size);

/* Sets one of the constants in this context, while no other call uses it. tsr_plan_seconds follows, for plans that were
 * made before, too; their kernels stay. */
tsr_status tsr_tuning_set(tsr_context *context, const char *name, double value);

/* ---- Packed operands: pay for an operand's packing once ---------------------------------------------------------- */

typedef enum tsr_side { TSR_LEFT = 0 /* the operand is A */, TSR_RIGHT = 1 /* it is B */ } tsr_side;

/* Packs `operand` for use on one side of products in this context, at its precision. To use it, set operand.packed in
 * any later call with the same matrix: data, shape and strides. The matrix itself must stay where it is, unchanged:
 * what the packed form cannot carry is read from it. On CUDA packing is queued on launch->stream, and
 * launch->workspace, unless NULL, is where the packed form is kept: tsr_pack_size bytes, which stay the caller's; use
 * on another stream must be ordered after it by the caller. The context must outlive the packed operand, and that must
 * outlive every plan, graph and queued product that uses it. */
tsr_status tsr_pack(tsr_packed **packed, tsr_context *context, tsr_side side, const tsr_operand *operand,
                    const tsr_launch *launch);
void tsr_packed_destroy(tsr_packed *packed);

/* Bytes that the packed form of a matrix takes; 0 where there is none (CUDA, in a context that does not split operands)
 * or where no memory could hold it. */
size_t tsr_pack_size(const tsr_context *context, tsr_side side, int64_t rows, int64_t cols);

/* Packs factor*operand into the caller's memory, on the CPU: tsr_pack_size bytes, 64-byte aligned, which must not move.
 * The matrix is not needed afterwards (with factor = 0 it is not even read): to use the packed form set operand.packed,
 * and operand.data to `memory`. It lives as long as the memory; tsr_packed_destroy is not for it. */
tsr_status tsr_pack_at(tsr_packed **packed, void *memory, tsr_context *context, tsr_side side, float factor,
                       const tsr_operand *operand);

/* Reads elements back from a packed operand on the CPU, rows x cols from (row, col) on, into a row-major block without
 * gaps. Takes no memory. */
tsr_status tsr_packed_read(const tsr_packed *packed, int64_t row, int64_t col, int64_t rows, int64_t cols, float *to);

/* ---- Attention: O = softmax(scale Q K^T + mask) V, and its gradients --------------------------------------------- */

/* A matrix for each head of each item of a batch: element (b, h, i, j) is
 * data[b*batch_stride + h*head_stride + i*row_stride + j*col_stride]. Strides count floats; what is only read may have
 * strides of 0. */
typedef struct tsr_heads {
    const float *data;
    int64_t batch_stride, head_stride, row_stride, col_stride;
} tsr_heads;

typedef struct tsr_heads_result {
    float *data;
    int64_t batch_stride, head_stride, row_stride, col_stride;
} tsr_heads_result;

/* What is attended to, and how. Start from all zero and set what differs. */
typedef struct tsr_attention_problem {
    int64_t batch, heads;
    int64_t kv_heads;           /* a divisor of heads: heads h*heads/kv_heads and on share key-value head h */
    int64_t queries, keys, dim; /* dim: 1..256 */
    tsr_heads q;                /* batch x heads x queries x dim */
    tsr_heads k, v;             /* batch x kv_heads x keys x dim */
    tsr_heads mask;             /* batch x heads x queries x keys, added to the scores; data NULL: none */
    float scale;                /* of the scores, usually 1/sqrt(dim) */
    int causal;                 /* not 0: query i sees keys 0 to i only */
    float dropout;              /* the share of weights that become 0, to 2^-16; the others grow by 1/(1 - dropout) */
    uint64_t seed, offset;      /* which weights: a counter-based generator's; same numbers, same weights */
} tsr_attention_problem;

/* On every engine a score is off by at most |scale| ((dim+16) 2^-24 |q||k| + dim 2^-25 max|q| max|k|) and four
 * roundings of its own, a sum of n terms by (n+16) 2^-24 of their magnitudes. docs/internals/numerics.md has the bound
 * of each result.
 *
 * Writes O (batch x heads x queries x dim) and, unless lse is NULL, the logarithm of each query's sum of exponentials
 * (batch x heads x queries x 1), which the backward pass needs. A query that sees no key, or only keys masked by -Inf,
 * gets zeros in O and +Inf in lse. */
tsr_status tsr_attention(tsr_context *context, const tsr_attention_problem *problem, const tsr_heads_result *o,
                         const tsr_heads_result *lse, const tsr_launch *launch);

/* What the backward pass reads and writes. A gradient whose data is NULL is not wanted. */
typedef struct tsr_attention_gradients {
    tsr_heads o, lse;        /* as tsr_attention wrote them */
    tsr_heads grad_o;        /* of the loss by O */
    tsr_heads_result grad_q; /* by Q, K and V: written, not added to */
    tsr_heads_result grad_k, grad_v;
} tsr_attention_gradients;

tsr_status tsr_attention_backward(tsr_context *context, const tsr_attention_problem *problem,
                                  const tsr_attention_gradients *gradients, const tsr_launch *launch);

/* Bytes of workspace that tsr_attention (backward = 0) or tsr_attention_backward (1) takes: launch->workspace may bring
 * them. Data pointers are not looked at. */
size_t tsr_attention_workspace(tsr_context *context, const tsr_attention_problem *problem, int backward);

/* ---- What is here, and what happened ----------------------------------------------------------------------------- */

/* Writes what this machine and build offer (engines, instruction sets, GPUs, kernels) as text, in the manner of
 * tsr_plan_print. */
size_t tsr_info_print(char *text, size_t size);

/* Counts since the context was created. On CUDA, reading them waits until the context's device has done what is
 * queued. */
typedef struct tsr_stats {
    uint64_t products;       /* products executed, each of a batch counted; attention is not */
    uint64_t split_products; /* of those, how many were packed and split for a matrix engine */
    uint64_t marked_panels;  /* operand panels that the split cannot carry, by themselves or beside the other's */
    uint64_t fallback_tiles; /* tiles of results that were recomputed as TSR_IEEE, in whole or in part */
} tsr_stats;

tsr_status tsr_stats_read(tsr_context *context, tsr_stats *stats);

/* Gives back the workspace memory kept for later calls: to the device, or to the system. */
tsr_status tsr_trim(tsr_context *context);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
