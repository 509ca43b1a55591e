/* api.c: the public calls. Arguments are checked here, once; engines receive a valid tsr_problem. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#define HAS_SINGLE_THREADED
#endif

#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "plan.h"

/* ---- Status and text --------------------------------------------------------------------------------------------- */

static _Thread_local char last_error[512];

tsr_status tsr_fail(tsr_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

const char *tsr_last_error(void) { return last_error; }

const char *tsr_status_name(tsr_status status) {
    switch (status) {
    case TSR_OK: return "TSR_OK";
    case TSR_INVALID_ARGUMENT: return "TSR_INVALID_ARGUMENT";
    case TSR_OUT_OF_MEMORY: return "TSR_OUT_OF_MEMORY";
    case TSR_UNSUPPORTED: return "TSR_UNSUPPORTED";
    case TSR_NO_DEVICE: return "TSR_NO_DEVICE";
    case TSR_DEVICE_ERROR: return "TSR_DEVICE_ERROR";
    }
    return "unknown status";
}

const char *tsr_precision_name(tsr_precision precision) {
    switch (precision) {
    case TSR_FP32: return "fp32";
    case TSR_IEEE: return "ieee";
    case TSR_TF32: return "tf32";
    }
    return "unknown precision";
}

#define STRING_OF(x) #x
#define VERSION_STRING(major, minor, patch) STRING_OF(major) "." STRING_OF(minor) "." STRING_OF(patch)

const char *tsr_version(void) { return VERSION_STRING(TSR_VERSION_MAJOR, TSR_VERSION_MINOR, TSR_VERSION_PATCH); }

int tsr_has_cuda(void) { return TESSERA_HAS_CUDA; }

void tsr_text_add(tsr_text *text, const char *format, ...) {
    size_t used = text->length < text->size ? text->length : text->size;
    va_list arguments;
    va_start(arguments, format);
    int added = vsnprintf(text->at ? text->at + used : NULL, text->at ? text->size - used : 0, format, arguments);
    va_end(arguments);
    if (added > 0) text->length += (size_t)added;
}

size_t tsr_info_print(char *buffer, size_t size) {
    tsr_text text = {buffer, buffer ? size : 0, 0};
    if (text.size) buffer[0] = '\0';
    tsr_text_add(&text, "tessera: %s\n", tsr_version());
    cpu_info_print(&text);
    cuda_info_print(&text);
    return text.length;
}

/* ---- Context ----------------------------------------------------------------------------------------------------- */

static tsr_status check_options(const tsr_options *o) {
    if (o->device != TSR_DEVICE_CPU && o->device != TSR_DEVICE_CUDA)
        return tsr_fail(TSR_INVALID_ARGUMENT, "options.device is %d, which is no tsr_device", (int)o->device);
    if (o->precision != TSR_FP32 && o->precision != TSR_IEEE && o->precision != TSR_TF32)
        return tsr_fail(TSR_INVALID_ARGUMENT, "options.precision is %d, which is no tsr_precision", (int)o->precision);
    if (o->threads < 0 || o->threads > 1024)
        return tsr_fail(TSR_INVALID_ARGUMENT, "options.threads is %d; it must be 1 to 1024, or 0 for all cores",
                        o->threads);
    if (o->device_index < -1)
        return tsr_fail(TSR_INVALID_ARGUMENT,
                        "options.device_index is %d; it must be 0 or more, or -1 for the current one", o->device_index);
    if (o->kernel && strlen(o->kernel) >= sizeof((tsr_context *)0)->kernel_name)
        return tsr_fail(TSR_INVALID_ARGUMENT, "options.kernel is no kernel's name: tsr_info_print lists them");
    return TSR_OK;
}

tsr_status tsr_context_create(tsr_context **context, const tsr_options *options) {
    if (!context) return tsr_fail(TSR_INVALID_ARGUMENT, "context is NULL");
    *context = NULL;
    tsr_options chosen = TSR_OPTIONS_DEFAULT;
    if (options) chosen = *options;
    tsr_status status = check_options(&chosen);
    if (status) return status;

    tsr_context *made = calloc(1, sizeof *made);
    if (!made) return tsr_fail(TSR_OUT_OF_MEMORY, "no memory for a context");
    if (!chosen.threads) chosen.threads = cpu_default_threads();
    if (chosen.kernel) {
        strcpy(made->kernel_name, chosen.kernel);
        chosen.kernel = made->kernel_name;
    }
    if (chosen.device == TSR_DEVICE_CUDA)
        status = cuda_context_create(&made->cuda, &chosen);
    else
        status = cpu_kernels_choose(made, &chosen);
    made->options = chosen;
    if (status) {
        free(made);
        return status;
    }
    *context = made;
    return TSR_OK;
}

void tsr_context_destroy(tsr_context *context) {
    if (!context) return;
    if (context->cuda) cuda_context_destroy(context->cuda);
    free(context);
}

tsr_status tsr_stats_read(tsr_context *context, tsr_stats *stats) {
    if (!context) return tsr_fail(TSR_INVALID_ARGUMENT, "context is NULL");
    if (!stats) return tsr_fail(TSR_INVALID_ARGUMENT, "stats is NULL");
    stats->products = atomic_load(&context->products);
    stats->split_products = atomic_load(&context->split_products);
    stats->marked_panels = atomic_load(&context->marked_panels);
    stats->fallback_tiles = atomic_load(&context->fallback_tiles);
    return context->cuda ? cuda_stats_read(context, stats) : TSR_OK;
}

tsr_status tsr_trim(tsr_context *context) {
    if (!context) return tsr_fail(TSR_INVALID_ARGUMENT, "context is NULL");
    if (context->cuda) return cuda_trim(context);
    cpu_trim();
    return TSR_OK;
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

static tsr_status check_packed(const tsr_operand *o, const char *name, const tsr_context *context, tsr_side side,
                               int64_t batch) {
    const tsr_packed *p = o->packed;
    if (!p) return TSR_OK;
    if (p->context != context) return tsr_fail(TSR_INVALID_ARGUMENT, "%s.packed was made by another context", name);
    if (p->side != side)
        return tsr_fail(TSR_INVALID_ARGUMENT, "%s.packed was packed for the %s side", name,
                        p->side == TSR_LEFT ? "left" : "right");
    const tsr_operand *s = &p->source;
    if (s->rows != o->rows || s->cols != o->cols || s->row_stride != o->row_stride || s->col_stride != o->col_stride ||
        (o->data && s->data != o->data))
        return tsr_fail(TSR_INVALID_ARGUMENT, "%s.packed was packed from another matrix: data, shape or strides differ",
                        name);
    if (operand_is_only_packed(o) && batch > 1 && o->batch_stride)
        return tsr_fail(TSR_INVALID_ARGUMENT,
                        "%s.batch_stride is %lld: tsr_pack_at packed one matrix, which a batch can only share (0)",
                        name, (long long)o->batch_stride);
    return TSR_OK;
}

/* Of what is only packed, the memory that is read is the panels'. */
static void cover_panels(matrix_span *s, const tsr_operand *o) {
    if (!operand_is_only_packed(o) || span_is_empty(s)) return;
    const int64_t floats = (int64_t)(o->packed->bytes / sizeof(float));
    *s = (matrix_span){s->name, s->data, {1, floats, 1}, {floats, 1, 0}, 0, floats - 1};
}

/* The matrices of a product, as their spans are numbered. */
enum { SPAN_A, SPAN_B, SPAN_C, SPAN_ADDEND, SPANS };

/* Everything about shapes and strides of A, B and C; pointers come in check_pointers, when there are any. */
static tsr_status check_shapes(tsr_problem *p, matrix_span spans[SPANS], const tsr_context *context, int64_t batch,
                               const tsr_operand *a, const tsr_operand *b, const tsr_result *c) {
    if (!context) return tsr_fail(TSR_INVALID_ARGUMENT, "context is NULL");
    if (!a) return tsr_fail(TSR_INVALID_ARGUMENT, "a is NULL");
    if (!b) return tsr_fail(TSR_INVALID_ARGUMENT, "b is NULL");
    if (!c) return tsr_fail(TSR_INVALID_ARGUMENT, "c is NULL");
    if (batch < 0) return tsr_fail(TSR_INVALID_ARGUMENT, "batch is %lld: it must not be negative", (long long)batch);
    const tsr_operand c_matrix = result_as_addend(c);
    tsr_status status;
    if ((status = span_make(&spans[SPAN_A], "a", a, batch)) ||
        (status = span_make(&spans[SPAN_B], "b", b, batch)) ||
        (status = span_make(&spans[SPAN_C], "c", &c_matrix, batch)))
        return status;
    if (a->cols != b->rows)
        return tsr_fail(TSR_INVALID_ARGUMENT, "a.cols (%lld) must equal b.rows (%lld)", (long long)a->cols,
                        (long long)b->rows);
    if (c->rows != a->rows)
        return tsr_fail(TSR_INVALID_ARGUMENT, "c.rows (%lld) must equal a.rows (%lld)", (long long)c->rows,
                        (long long)a->rows);
    if (c->cols != b->cols)
        return tsr_fail(TSR_INVALID_ARGUMENT, "c.cols (%lld) must equal b.cols (%lld)", (long long)c->cols,
                        (long long)b->cols);
    if (!span_is_injective(&spans[SPAN_C]))
        return tsr_fail(TSR_INVALID_ARGUMENT, "c's strides (%lld, %lld, batch %lld) let elements of c share an address",
                        (long long)c->row_stride, (long long)c->col_stride, (long long)c->batch_stride);
    if ((status = check_packed(a, "a", context, TSR_LEFT, batch)) ||
        (status = check_packed(b, "b", context, TSR_RIGHT, batch)))
        return status;
    cover_panels(&spans[SPAN_A], a);
    cover_panels(&spans[SPAN_B], b);
    *p = (tsr_problem){a->rows, b->cols, a->cols, batch, 1, 0, *a, *b, *c, {0}};
    return TSR_OK;
}

/* Sets the factors and the addend of a product whose shapes are checked. Without terms it reads neither A nor B, with
 * beta = 0 no addend. */
static tsr_status check_sum(tsr_problem *p, matrix_span spans[SPANS], float alpha, float beta, const tsr_operand *addend) {
    p->alpha = alpha;
    p->beta = beta;
    if (is_zero(alpha)) p->k = 0;
    if (is_zero(beta)) return TSR_OK;
    if (!addend) return tsr_fail(TSR_INVALID_ARGUMENT, "addend is NULL; that is allowed where beta is 0");
    tsr_status status = span_make(&spans[SPAN_ADDEND], "addend", addend, p->batch);
    if (status) return status;
    if (addend->rows != p->c.rows || addend->cols != p->c.cols)
        return tsr_fail(TSR_INVALID_ARGUMENT,
                        "addend is %lld x %lld, but c is %lld x %lld: to broadcast it, set a stride to 0",
                        (long long)addend->rows, (long long)addend->cols, (long long)p->c.rows, (long long)p->c.cols);
    p->addend = *addend;
    return TSR_OK;
}

static tsr_status check_workspace(const tsr_launch *launch, const char *what, size_t needed) {
    if (!launch || !launch->workspace) return TSR_OK;
    if (launch->workspace_size < needed)
        return tsr_fail(TSR_INVALID_ARGUMENT, "launch.workspace_size is %zu; this %s needs %zu bytes",
                        launch->workspace_size, what, needed);
    if ((uintptr_t)launch->workspace % 256)
        return tsr_fail(TSR_INVALID_ARGUMENT, "launch.workspace is not aligned to 256 bytes");
    return TSR_OK;
}

static tsr_status check_pointers(const tsr_problem *p, const matrix_span spans[SPANS], const tsr_launch *launch,
                                 size_t workspace) {
    if (!p->m || !p->n || !p->batch) return TSR_OK;
    const bool adds = !is_zero(p->beta);
    for (int i = p->k ? SPAN_A : SPAN_C; i <= (adds ? SPAN_ADDEND : SPAN_C); i++) {
        if (!spans[i].data) return tsr_fail(TSR_INVALID_ARGUMENT, "%s.data is NULL", spans[i].name);
        if ((uintptr_t)spans[i].data % sizeof(float))
            return tsr_fail(TSR_INVALID_ARGUMENT, "%s.data is not aligned to a float (4 bytes)", spans[i].name);
    }
    for (int i = SPAN_A; p->k && i <= SPAN_B; i++)
        if (span_may_overlap(&spans[SPAN_C], &spans[i]))
            return tsr_fail(TSR_INVALID_ARGUMENT, "c overlaps %s: the result needs memory of its own", spans[i].name);
    if (adds && !span_is_same(&spans[SPAN_C], &spans[SPAN_ADDEND]) &&
        span_may_overlap(&spans[SPAN_C], &spans[SPAN_ADDEND]))
        return tsr_fail(TSR_INVALID_ARGUMENT,
                        "c overlaps addend: the result needs memory of its own, or that of the whole addend");
    return check_workspace(launch, "product", workspace);
}

tsr_status tsr_gemm_add(tsr_context *context, int64_t batch, float alpha, const tsr_operand *a, const tsr_operand *b,
                        float beta, const tsr_operand *addend, const tsr_result *c, const tsr_launch *launch) {
    tsr_plan plan;
    matrix_span spans[SPANS];
    tsr_status status;
    if ((status = check_shapes(&plan.problem, spans, context, batch, a, b, c)) ||
        (status = check_sum(&plan.problem, spans, alpha, beta, addend)))
        return status;
    plan.context = context;
    if ((status = plan_make(&plan)) || (status = check_pointers(&plan.problem, spans, launch, plan_workspace(&plan))))
        return status;
    return plan_execute(&plan, &plan.problem, launch);
}

tsr_status tsr_gemm_batch(tsr_context *context, int64_t batch, float alpha, const tsr_operand *a, const tsr_operand *b,
                          float beta, const tsr_result *c, const tsr_launch *launch) {
    if (!c) return tsr_fail(TSR_INVALID_ARGUMENT, "c is NULL");
    const tsr_operand addend = result_as_addend(c);
    return tsr_gemm_add(context, batch, alpha, a, b, beta, &addend, c, launch);
}

tsr_status tsr_gemm_host(tsr_context *context, int64_t batch, float alpha, const tsr_operand *a, const tsr_operand *b,
                         float beta, const tsr_result *c, double *share) {
    double unwanted;
    if (!share) share = &unwanted;
    *share = 0;
    tsr_problem p;
    matrix_span spans[SPANS];
    tsr_status status = check_shapes(&p, spans, context, batch, a, b, c);
    if (status) return status;
    const tsr_operand addend = result_as_addend(c);
    if ((status = check_sum(&p, spans, alpha, beta, &addend)) || (status = check_pointers(&p, spans, NULL, 0)))
        return status;
    if (context->cuda) return cuda_offload(context, &p, share);
    *share = 1;
    return tsr_gemm_batch(context, batch, alpha, a, b, beta, c, NULL);
}

/* Counting without a locked instruction, where no other thread can count at the same time, takes a tenth off the
 * smallest products. */
static void count_product(tsr_context *context) {
#ifdef HAS_SINGLE_THREADED
    if (__libc_single_threaded) {
        const uint_fast64_t products = atomic_load_explicit(&context->products, memory_order_relaxed);
        atomic_store_explicit(&context->products, products + 1, memory_order_relaxed);
        return;
    }
#endif
    atomic_fetch_add_explicit(&context->products, 1, memory_order_relaxed);
}

tsr_status tsr_gemm(tsr_context *context, float alpha, const tsr_operand *a, const tsr_operand *b, float beta,
                    const tsr_result *c, const tsr_launch *launch) {
    if (context && a && b && c && !launch && cpu_multiply_small(context, alpha, a, b, beta, c)) {
        count_product(context);
        return TSR_OK;
    }
    return tsr_gemm_batch(context, 1, alpha, a, b, beta, c, launch);
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

tsr_status tsr_plan_create(tsr_plan **plan, tsr_context *context, int64_t batch, const tsr_operand *a,
                           const tsr_operand *b, const tsr_result *c) {
    if (!plan) return tsr_fail(TSR_INVALID_ARGUMENT, "plan is NULL");
    *plan = NULL;
    tsr_plan draft;
    matrix_span spans[SPANS];
    tsr_status status = check_shapes(&draft.problem, spans, context, batch, a, b, c);
    if (status) return status;
    draft.context = context;
    if ((status = plan_make(&draft))) return status;
    tsr_plan *made = malloc(sizeof *made);
    if (!made) return tsr_fail(TSR_OUT_OF_MEMORY, "no memory for a plan");
    *made = draft;
    *plan = made;
    return TSR_OK;
}

void tsr_plan_destroy(tsr_plan *plan) { free(plan); }

size_t tsr_plan_workspace(const tsr_plan *plan) { return plan ? plan_workspace(plan) : 0; }

double tsr_plan_seconds(const tsr_plan *plan) { return plan ? plan_seconds(plan) : 0; }

int tsr_plan_is_split(const tsr_plan *plan) { return plan && plan_is_split(plan); }

size_t tsr_plan_print(const tsr_plan *plan, char *buffer, size_t size) {
    tsr_text text = {buffer, buffer ? size : 0, 0};
    if (text.size) buffer[0] = '\0';
    if (plan) plan_print(plan, &text);
    return text.length;
}

tsr_status tsr_plan_execute_add(const tsr_plan *plan, float alpha, const float *a, const float *b, float beta,
                                const tsr_operand *addend, float *c, const tsr_launch *launch) {
    if (!plan) return tsr_fail(TSR_INVALID_ARGUMENT, "plan is NULL");
    tsr_problem given = plan->problem, p;
    given.a.data = a;
    given.b.data = b;
    given.c.data = c;
    matrix_span spans[SPANS];
    tsr_status status;
    if ((status = check_shapes(&p, spans, plan->context, given.batch, &given.a, &given.b, &given.c)) ||
        (status = check_sum(&p, spans, alpha, beta, addend)) ||
        (status = check_pointers(&p, spans, launch, plan_workspace(plan))))
        return status;
    return plan_execute(plan, &p, launch);
}

tsr_status tsr_plan_execute(const tsr_plan *plan, float alpha, const float *a, const float *b, float beta, float *c,
                            const tsr_launch *launch) {
    if (!plan) return tsr_fail(TSR_INVALID_ARGUMENT, "plan is NULL");
    tsr_operand addend = result_as_addend(&plan->problem.c);
    addend.data = c;
    return tsr_plan_execute_add(plan, alpha, a, b, beta, &addend, c, launch);
}

/* ---- Packed operands --------------------------------------------------------------------------------------------- */

/* reads: the matrix is looked at, so that it must be there. */
static tsr_status check_pack(tsr_packed **packed, const tsr_context *context, tsr_side side, const tsr_operand *operand,
                             bool reads) {
    if (!packed) return tsr_fail(TSR_INVALID_ARGUMENT, "packed is NULL");
    *packed = NULL;
    if (!context) return tsr_fail(TSR_INVALID_ARGUMENT, "context is NULL");
    if (!operand) return tsr_fail(TSR_INVALID_ARGUMENT, "operand is NULL");
    if (side != TSR_LEFT && side != TSR_RIGHT)
        return tsr_fail(TSR_INVALID_ARGUMENT, "side is %d: it must be TSR_LEFT or TSR_RIGHT", (int)side);
    matrix_span s;
    tsr_status status = span_make(&s, "operand", operand, 1);
    if (status) return status;
    if (reads && !span_is_empty(&s) && !operand->data) return tsr_fail(TSR_INVALID_ARGUMENT, "operand.data is NULL");
    if ((uintptr_t)operand->data % sizeof(float))
        return tsr_fail(TSR_INVALID_ARGUMENT, "operand.data is not aligned to a float (4 bytes)");
    return TSR_OK;
}

/* Finds packed->bytes, which must be within the address space. */
static tsr_status size_panels(tsr_packed *packed) {
    packed->bytes = cpu_pack_size(packed->context, packed->side, packed->source.rows, packed->source.cols);
    if (packed->bytes) return TSR_OK;
    return tsr_fail(TSR_OUT_OF_MEMORY, "the packed form of operand exceeds the address space");
}

static tsr_status pack_on_cpu(tsr_packed *packed) {
    tsr_status status = size_panels(packed);
    if (status) return status;
    packed->panels = aligned_alloc(64, packed->bytes);
    if (!packed->panels) return tsr_fail(TSR_OUT_OF_MEMORY, "no memory for %zu bytes of packed operand", packed->bytes);
    cpu_pack(packed, 1);
    return TSR_OK;
}

tsr_status tsr_pack(tsr_packed **packed, tsr_context *context, tsr_side side, const tsr_operand *operand,
                    const tsr_launch *launch) {
    tsr_status status = check_pack(packed, context, side, operand, true);
    if (!status && context->cuda) status = check_workspace(launch, "operand", cuda_pack_size(context, side, operand));
    if (status) return status;
    tsr_packed *made = calloc(1, sizeof *made);
    if (!made) return tsr_fail(TSR_OUT_OF_MEMORY, "no memory for a packed operand");
    made->context = context;
    made->side = side;
    made->source = *operand;
    made->source.packed = NULL;
    status = context->cuda ? cuda_pack(made, launch) : pack_on_cpu(made);
    if (status) {
        free(made);
        return status;
    }
    *packed = made;
    return TSR_OK;
}

void tsr_packed_destroy(tsr_packed *packed) {
    if (!packed) return;
    if (packed->context->cuda)
        cuda_packed_destroy(packed);
    else
        free(packed->panels);
    free(packed);
}

/* In memory of the caller's the panels come first, so that what an operand's data point at is in use, and then this. */
static size_t packed_bytes(void) { return (sizeof(tsr_packed) + 63) / 64 * 64; }

size_t tsr_pack_size(const tsr_context *context, tsr_side side, int64_t rows, int64_t cols) {
    if (!context || rows < 0 || cols < 0) return 0;
    if (context->cuda) return cuda_pack_size(context, side, &(tsr_operand){.rows = rows, .cols = cols});
    const size_t panels = cpu_pack_size(context, side, rows, cols);
    return panels ? panels + packed_bytes() : 0;
}

tsr_status tsr_pack_at(tsr_packed **packed, void *memory, tsr_context *context, tsr_side side, float factor,
                       const tsr_operand *operand) {
    tsr_status status = check_pack(packed, context, side, operand, !is_zero(factor));
    if (status) return status;
    if (context->cuda)
        return tsr_fail(TSR_UNSUPPORTED,
                        "context is one of CUDA: pack into memory of your own on the CPU, or tsr_pack");
    if (!memory || (uintptr_t)memory % 64)
        return tsr_fail(TSR_INVALID_ARGUMENT, "memory is %s", memory ? "not aligned to 64 bytes" : "NULL");
    tsr_packed draft = {.context = context, .side = side, .source = *operand, .panels = memory};
    draft.source.packed = NULL;
    if ((status = size_panels(&draft))) return status;
    cpu_pack(&draft, factor);
    draft.source.data = memory;
    *packed = (tsr_packed *)((char *)memory + draft.bytes);
    **packed = draft;
    return TSR_OK;
}
