/* tune.c: `tessera tune`, the constants of the cost model for the GPU of this machine.
 *
 * Random products, or those of a program, are timed on every kernel. The constants are fitted to these times. Then
 * other products tell how often the plan chooses the fastest kernel, before and now. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "command.h"
#include "device.h"
#include "fit.h"
#include "json.h"
#include "output.h"
#include "progress.h"
#include "random.h"
#include "run.h"

enum { MOST_KERNELS = 64, MOST_CONSTANTS = 512, MOST_SAMPLES = 12288, MOST_PRODUCTS = 2048, REPEATS = 5 };
enum { MOST_CALLS = 20 }; /* of a product in a graph */
enum { EXPLORED = 3 };    /* plans of a product on a kernel */

static const size_t most_bytes = (size_t)256 << 20; /* of a matrix */
static const double graph_seconds = 1e-4;           /* that a graph should take at least */
static const double hopeless = 8, slow = 2;         /* times the fastest, by estimate and measured: no more samples */
static const double longest_product = 5e-3;         /* seconds, by estimate */

typedef struct product {
    tsr_precision precision;
    int64_t batch;
    tsr_operand a, b;
    tsr_result c;
} product;

/* A context for each kernel, and for each precision by the constants before (0) and now (1). */
typedef struct kernel_context {
    char name[64];
    tsr_precision strictest; /* that the kernel keeps */
    tsr_context *context;
} kernel_context;

typedef struct sample {
    tsr_plan *plan;
    double seconds, weight;
} sample;

typedef struct tuner {
    device d;
    kernel_context kernels[MOST_KERNELS];
    int kernel_count;
    tsr_context *choices[2][3];
    char *names[MOST_CONSTANTS]; /* of the constants */
    double values[MOST_CONSTANTS];
    int constant_count;
    char *text; /* what the names point into */
    sample samples[MOST_SAMPLES];
    int sample_count;
    product recorded[MOST_PRODUCTS];
    int recorded_count;
    const float *a, *b;
    float *c, *workspace;
    size_t bytes; /* of each of a, b and c; the workspace has thrice as many */
    random_source numbers;
    int measured, verified; /* products */
    double within[2],
        excess[2]; /* before and now: verified within 5 % of the fastest, and sums of what they take more */
} tuner;

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* A random number from `least` to `most`, on a logarithmic scale. */
static int64_t drawn(tuner *t, double least, double most) {
    return llround(least * pow(most / least, (double)random_uniform(&t->numbers)));
}

static void exchange(int64_t *x, int64_t *y) {
    const int64_t former = *x;
    *x = *y, *y = former;
}

/* rows x cols, stored transposed or not, with so many floats behind each line. */
static tsr_operand drawn_operand(tuner *t, int64_t rows, int64_t cols, int64_t padding) {
    const bool transposed = random_below(&t->numbers, 2);
    const int64_t line = (transposed ? rows : cols) + padding, lines = transposed ? cols : rows;
    return (tsr_operand){.rows = rows,
                         .cols = cols,
                         .row_stride = transposed ? 1 : line,
                         .col_stride = transposed ? line : 1,
                         .batch_stride = line * lines};
}

/* The kinds of bench/gpu/sweep.py. */
static product drawn_product(tuner *t) {
    int64_t batch = 1, m = drawn(t, 32, 8192), n = drawn(t, 32, 8192), k = drawn(t, 32, 8192);
    switch (random_below(&t->numbers, 6)) {
    case 0: break;
    case 1: m = drawn(t, 2, 64), n = drawn(t, 128, 16384), k = drawn(t, 128, 16384); break;
    case 2: m = 1, n = drawn(t, 64, 30000), k = drawn(t, 64, 30000); break;
    case 3: k = drawn(t, 1, 96); break;
    case 4: batch = drawn(t, 4, 2000), m = drawn(t, 8, 512), n = drawn(t, 8, 512), k = drawn(t, 8, 512); break;
    default: m = drawn(t, 1, 1024), n = drawn(t, 64, 384), k = drawn(t, 2048, 7168);
    }
    if (random_below(&t->numbers, 2)) exchange(&m, &n);
    static const int64_t paddings[] = {0, 0, 0, 1, 4};
    const int64_t padding = paddings[random_below(&t->numbers, 5)];
    return (product){.precision = TSR_FP32,
                     .batch = batch,
                     .a = drawn_operand(t, m, k, padding),
                     .b = drawn_operand(t, k, n, padding),
                     .c = {.rows = m, .cols = n, .row_stride = n, .col_stride = 1, .batch_stride = m * n}};
}

/* Bytes from the first element to the last; INFINITY where strides go backwards. */
static double span(int64_t batch, int64_t rows, int64_t cols, int64_t row, int64_t col, int64_t item) {
    if (row < 0 || col < 0 || item < 0 || !batch || !rows || !cols) return INFINITY;
    return sizeof(float) * ((double)(batch - 1) * (double)item + (double)(rows - 1) * (double)row +
                            (double)(cols - 1) * (double)col + 1);
}

static bool fits(const tuner *t, const product *p) {
    const tsr_operand *a = &p->a, *b = &p->b;
    const tsr_result *c = &p->c;
    const double most = (double)t->bytes;
    return span(p->batch, a->rows, a->cols, a->row_stride, a->col_stride, a->batch_stride) <= most &&
           span(p->batch, b->rows, b->cols, b->row_stride, b->col_stride, b->batch_stride) <= most &&
           span(p->batch, c->rows, c->cols, c->row_stride, c->col_stride, c->batch_stride) <= most;
}

/* A line that the library wrote for TESSERA_RECORD; false: it is none. */
static bool parse_recorded(product *p, const char *line) {
    char precision[16];
    long long x[13];
    const int found = sscanf(line, "%15s %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld", precision,
                             &x[0], &x[1], &x[2], &x[3], &x[4], &x[5], &x[6], &x[7], &x[8], &x[9], &x[10], &x[11],
                             &x[12]);
    if (found != 14) return false;
    *p = (product){.batch = x[0],
                   .a = {.rows = x[1], .cols = x[3], .row_stride = x[4], .col_stride = x[5], .batch_stride = x[6]},
                   .b = {.rows = x[3], .cols = x[2], .row_stride = x[7], .col_stride = x[8], .batch_stride = x[9]},
                   .c = {.rows = x[1], .cols = x[2], .row_stride = x[10], .col_stride = x[11], .batch_stride = x[12]}};
    while (p->precision < TSR_TF32 && strcmp(precision, tsr_precision_name(p->precision))) p->precision++;
    return true;
}

/* Runs the program and reads which products it made. */
static int record(tuner *t, char **words) {
    const int file = program_report("TESSERA_RECORD");
    if (file < 0) return fail("cannot make a file in memory for the program's products");
    const int ended = program_wait(words);
    unsetenv("TESSERA_RECORD");
    if (ended < 0) return fail("cannot start a process: %s", strerror(errno));
    if (!WIFEXITED(ended) || WEXITSTATUS(ended))
        return fail("%s %s %d: nothing is tuned", words[0], WIFEXITED(ended) ? "ended with" : "was killed by signal",
                    WIFEXITED(ended) ? WEXITSTATUS(ended) : WTERMSIG(ended));
    FILE *lines = fdopen(file, "r");
    char line[512];
    while (lines && fgets(line, sizeof line, lines) && t->recorded_count < MOST_PRODUCTS)
        if (parse_recorded(&t->recorded[t->recorded_count], line)) t->recorded_count++;
    if (lines) fclose(lines);
    if (!t->recorded_count)
        return fail("%s made no product on a GPU by Tessera (a program that calls a BLAS: --record tessera run "
                    "--device cuda -- PROGRAM)",
                    words[0]);
    return EXIT_OK;
}

/* ---- Constants --------------------------------------------------------------------------------------------------- */

static void set_in(tsr_context *context, const tuner *t) {
    for (int i = 0; i < t->constant_count; i++) tsr_tuning_set(context, t->names[i], t->values[i]);
}

static void set_everywhere(tuner *t) {
    for (int i = 0; i < t->kernel_count; i++) set_in(t->kernels[i].context, t);
    for (int i = 0; i < 3; i++) set_in(t->choices[1][i], t);
}

/* The constants that serve, by their names. What is before them in the text is no constant's name. */
static int read_constants(tuner *t) {
    const size_t size = tsr_tuning_print(t->d.context, NULL, 0) + 1;
    char *rest = t->text = malloc(size);
    if (!rest) return fail("no memory for %zu bytes of text", size);
    tsr_tuning_print(t->d.context, rest, size);
    for (char *line; (line = strsep(&rest, "\n")) && t->constant_count < MOST_CONSTANTS;) {
        char *space = strchr(line, ' ');
        if (!space) continue;
        *space = '\0';
        t->names[t->constant_count] = line;
        t->values[t->constant_count] = strtod(space + 1, NULL);
        if (!tsr_tuning_set(t->d.context, line, t->values[t->constant_count])) t->constant_count++;
    }
    return EXIT_OK;
}

/* fit_problem's `estimate`: constant i in every context, then the estimates of all samples. */
static void estimate(void *model, int i, double value, double *seconds) {
    tuner *t = model;
    for (int k = 0; i >= 0 && k < t->kernel_count; k++) tsr_tuning_set(t->kernels[k].context, t->names[i], value);
    for (int s = 0; seconds && s < t->sample_count; s++) seconds[s] = tsr_plan_seconds(t->samples[s].plan);
}

static int compare_doubles(const void *left, const void *right) {
    const double x = *(const double *)left, y = *(const double *)right;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return count ? values[count / 2] : 0;
}

static int fit_constants(tuner *t) {
    double *seconds = malloc(2 * sizeof *seconds * (size_t)(t->sample_count + 1));
    if (!seconds) return fail("no memory for %d measurements", t->sample_count);
    double *weights = seconds + t->sample_count;
    for (int s = 0; s < t->sample_count; s++) seconds[s] = t->samples[s].seconds, weights[s] = t->samples[s].weight;
    fit_problem f = {t->constant_count, t->sample_count, t->values, seconds, weights, estimate, t};
    const int status = fit(&f);
    free(seconds);
    set_everywhere(t);
    return status;
}

/* The median of how far estimates are from measurements, of kernels that are not slow: 0.1 is 10 %. */
static double deviation(const tuner *t) {
    double *errors = malloc(sizeof *errors * (size_t)(t->sample_count + 1));
    int count = 0;
    for (int s = 0; errors && s < t->sample_count; s++)
        if (t->samples[s].weight > 1 / (slow * slow))
            errors[count++] = fabs(log(tsr_plan_seconds(t->samples[s].plan) / t->samples[s].seconds));
    const double result = errors ? median(errors, count) : 0;
    free(errors);
    return result;
}

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

/* A way to compute a product, being timed. */
typedef struct runner {
    tsr_plan *plan;
    bool allowed; /* for the precision */
    void *graph;
    int calls;
    double times[REPEATS], seconds;
} runner;

/* The plan splits from these lengths of k on. */
static bool is_allowed(const kernel_context *kernel, const product *p) {
    const bool splits = !strncmp(kernel->name, "split_", 6) || !strncmp(kernel->name, "direct_", 7);
    const int64_t least_k = !splits ? 0 : strstr(kernel->name, "sm80") ? 128 : 64;
    if (p->a.cols < least_k) return false;
    if (kernel->strictest == TSR_IEEE) return true;
    return p->precision == TSR_TF32 || kernel->strictest == p->precision;
}

/* Plans with some constants changed at random: the plan cuts k in other ways then, and what these cost is learned. */
static tsr_plan *plan_on(tuner *t, tsr_context *context, const product *p, bool explore) {
    enum { CHANGED = 24 };
    int changed[CHANGED];
    tsr_plan *plan = NULL;
    for (int i = 0; i < CHANGED && explore; i++) {
        changed[i] = (int)random_below(&t->numbers, t->constant_count);
        tsr_tuning_set(context, t->names[changed[i]],
                       t->values[changed[i]] * exp(0.5 * (double)random_normal(&t->numbers)));
    }
    if (tsr_plan_create(&plan, context, p->batch, &p->a, &p->b, &p->c)) plan = NULL;
    for (int i = 0; i < CHANGED && explore; i++) tsr_tuning_set(context, t->names[changed[i]], t->values[changed[i]]);
    if (plan && tsr_plan_workspace(plan) <= 3 * t->bytes) return plan;
    tsr_plan_destroy(plan);
    return NULL;
}

/* Whether two plans run the same kernels in the same grids: their texts agree from the engine to the reason. */
static bool are_same(const tsr_plan *x, const tsr_plan *y) {
    char texts[2][2048];
    const tsr_plan *const plans[] = {x, y};
    for (int i = 0; i < 2; i++) {
        tsr_plan_print(plans[i], texts[i], sizeof texts[i]);
        char *reason = strstr(texts[i], "\nreason: ");
        if (reason) *reason = '\0';
    }
    return strcmp(strstr(texts[0], "\nengine: "), strstr(texts[1], "\nengine: ")) == 0;
}

/* The number of the runner whose plan is the same; `count` if there is none. */
static int find_same(const runner *runners, int count, const tsr_plan *plan) {
    int i = 0;
    while (i < count && !are_same(runners[i].plan, plan)) i++;
    return i;
}

static double fastest(const runner *runners, int count, bool any) {
    double least = INFINITY;
    for (int i = 0; i < count; i++)
        if ((any || runners[i].allowed) && runners[i].seconds < least) least = runners[i].seconds;
    return least;
}

static int replay(tuner *t, runner *r, double *seconds) {
    const int status = device_replay(&t->d, r->graph, seconds);
    *seconds /= r->calls;
    return status;
}

/* Times them in turns. Those that turn out slow are timed once. */
static int time_runners(tuner *t, runner *runners, int count) {
    const tsr_launch launch = {.stream = t->d.stream, .workspace = t->workspace, .workspace_size = 3 * t->bytes};
    int status = EXIT_OK;
    for (int i = 0; i < count && !status; i++) {
        runner *r = &runners[i];
        r->calls = (int)fmin(MOST_CALLS, ceil(graph_seconds / fmax(tsr_plan_seconds(r->plan), 1e-7)));
        if ((status = device_capture(&t->d, &r->graph, r->calls, r->plan, t->a, t->b, t->c, &launch)) ||
            (status = replay(t, r, &r->seconds)) || (status = replay(t, r, &r->seconds)))
            return status;
    }
    const double limit = slow * fastest(runners, count, true);
    for (int repeat = 0; repeat < REPEATS; repeat++)
        for (int i = 0; i < count; i++)
            if (runners[i].seconds < limit && (status = replay(t, &runners[i], &runners[i].times[repeat])))
                return status;
    for (int i = 0; i < count; i++)
        if (runners[i].seconds < limit) runners[i].seconds = median(runners[i].times, REPEATS);
    return EXIT_OK;
}

/* A product's times become samples; the plans are theirs then. */
static void keep_samples(tuner *t, runner *runners, int count) {
    const double least = fastest(runners, count, true);
    for (int i = 0; i < count && t->sample_count < MOST_SAMPLES; i++) {
        const double share = least / runners[i].seconds;
        t->samples[t->sample_count++] = (sample){runners[i].plan, runners[i].seconds, share * share};
        runners[i].plan = NULL;
    }
    t->measured++;
}

/* How often the plan's choice, before and now (chosen[0], chosen[1]), is within 5 % of the fastest, and how much slower
 * it is in all. */
static void judge(tuner *t, const runner *runners, int count, const int chosen[2]) {
    const double least = fastest(runners, count, false);
    for (int i = 0; i < 2; i++) {
        const double excess = runners[chosen[i]].seconds / least - 1;
        t->within[i] += excess <= 0.05;
        t->excess[i] += excess;
    }
    t->verified++;
}

static int measure(tuner *t, const product *p, bool verify) {
    runner runners[MOST_KERNELS * EXPLORED + 2] = {0};
    int count = 0;
    double least = INFINITY;
    for (int i = 0; i < t->kernel_count; i++) {
        const kernel_context *kernel = &t->kernels[i];
        const bool allowed = is_allowed(kernel, p);
        if (verify && !allowed) continue;
        const int first = count;
        for (int others = 0; others < (verify ? 1 : EXPLORED); others++) {
            tsr_plan *plan = plan_on(t, kernel->context, p, others);
            if (!plan) break;
            if (find_same(runners + first, count - first, plan) == count - first) {
                least = fmin(least, tsr_plan_seconds(plan));
                runners[count++] = (runner){.plan = plan, .allowed = allowed};
            } else
                tsr_plan_destroy(plan);
        }
    }
    int kept = 0, status = EXIT_OK;
    for (int i = 0; i < count; i++)
        if (tsr_plan_seconds(runners[i].plan) < hopeless * least)
            runners[kept++] = runners[i];
        else
            tsr_plan_destroy(runners[i].plan);
    count = kept;
    int chosen[2] = {0};
    bool complete = count > 0;
    for (int i = 0; verify && i < 2; i++) {
        tsr_plan *plan = plan_on(t, t->choices[i][p->precision], p, false);
        complete &= plan != NULL;
        chosen[i] = plan ? find_same(runners, count, plan) : 0;
        if (plan && chosen[i] == count)
            runners[count++] = (runner){.plan = plan, .allowed = true};
        else
            tsr_plan_destroy(plan);
    }
    if (complete && least < longest_product && !(status = time_runners(t, runners, count))) {
        if (verify)
            judge(t, runners, count, chosen);
        else
            keep_samples(t, runners, count);
    }
    for (int i = 0; i < count; i++) {
        device_forget(runners[i].graph);
        tsr_plan_destroy(runners[i].plan);
    }
    return status;
}

/* Measures products for `seconds`; at least one. */
static int measure_for(tuner *t, double seconds, int most_samples, bool verify, const char *what) {
    const double end = device_clock() + seconds;
    progress_step("%s", what);
    progress_expect(seconds);
    int status = EXIT_OK;
    for (int i = 0; !status && t->sample_count <= most_samples && (device_clock() < end || !i); i++) {
        /* Half of what is measured, and all of what is verified, is the program's. */
        const bool recorded = t->recorded_count && (verify || i % 2);
        const product p = recorded ? t->recorded[random_below(&t->numbers, t->recorded_count)] : drawn_product(t);
        if (fits(t, &p)) status = measure(t, &p, verify);
    }
    return status;
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

static int add_kernel(void *to, const char *name) {
    tuner *t = to;
    static const tsr_precision strictest_first[] = {TSR_IEEE, TSR_FP32, TSR_TF32};
    tsr_options chosen = t->d.made_from;
    kernel_context *kernel = &t->kernels[t->kernel_count];
    chosen.kernel = name;
    for (int i = 0; i < 3 && !kernel->context && t->kernel_count < MOST_KERNELS; i++) {
        chosen.precision = kernel->strictest = strictest_first[i];
        if (tsr_context_create(&kernel->context, &chosen)) kernel->context = NULL;
    }
    if (!kernel->context) return EXIT_OK; /* another GPU's */
    snprintf(kernel->name, sizeof kernel->name, "%s", name);
    t->kernel_count++;
    return EXIT_OK;
}

static int open_contexts(tuner *t) {
    int status = device_kernels("cuda", add_kernel, t);
    for (int i = 0; i < 6 && !status; i++) {
        tsr_options chosen = t->d.made_from;
        chosen.precision = (tsr_precision)(i % 3);
        const tsr_status made = tsr_context_create(&t->choices[i / 3][i % 3], &chosen);
        if (made) status = fail_status("cannot compute on this GPU", made);
    }
    return status;
}

/* Matrices of uniform numbers, as large as an eighth of the memory allows. */
static int allocate(tuner *t) {
    enum { BLOCK = 4 << 20 };
    t->bytes = most_bytes;
    while (t->bytes > BLOCK && !device_has_room(&t->d, 12.0 * (double)t->bytes)) t->bytes /= 2;
    float *host = malloc(BLOCK), *data[2] = {NULL};
    if (!host) return fail("no memory for %d bytes", BLOCK);
    random_fill_uniform(&t->numbers, host, BLOCK / (int64_t)sizeof *host);
    int status = EXIT_OK;
    for (int i = 0; i < 2 && !status; i++) {
        status = device_output(&t->d, &data[i], NULL, t->bytes);
        for (size_t at = 0; at < t->bytes && !status; at += BLOCK)
            status = device_send(&t->d, data[i] + at / sizeof *host, host, BLOCK);
    }
    t->a = data[0], t->b = data[1];
    if (!status) status = device_output(&t->d, &t->c, NULL, t->bytes);
    if (!status) status = device_output(&t->d, &t->workspace, NULL, 3 * t->bytes);
    free(host);
    return status;
}

static void close_tuner(tuner *t) {
    for (int i = 0; i < t->sample_count; i++) tsr_plan_destroy(t->samples[i].plan);
    for (int i = 0; i < t->kernel_count; i++) tsr_context_destroy(t->kernels[i].context);
    for (int i = 0; i < 6; i++) tsr_context_destroy(t->choices[i / 3][i % 3]);
    const float *const all[] = {t->a, t->b, t->c, t->workspace};
    for (int i = 0; i < 4; i++) device_release(&t->d, all[i]);
    device_close(&t->d);
    free(t->text);
    free(t);
}

/* The folders of a file that the library looks for. */
static void make_folders(char *path) {
    for (char *slash = path; (slash = strchr(slash + 1, '/'));) {
        *slash = '\0';
        mkdir(path, 0777); /* the file's own failure will tell */
        *slash = '/';
    }
}

static int create_output(const tuner *t, const options *chosen, char *path, size_t size, output_file *output) {
    if (chosen->output)
        snprintf(path, size, "%s", chosen->output);
    else {
        const size_t length = tsr_tuning_path(t->d.context, path, size);
        if (!length || length >= size)
            return fail("there is no place for the file: neither TESSERA_TUNING nor XDG_CACHE_HOME nor HOME names one; "
                        "use --output");
        make_folders(path);
    }
    return output_create(output, path, 0);
}

static int write_constants(const tuner *t, output_file *output) {
    const size_t size = tsr_tuning_print(t->choices[1][0], NULL, 0) + 1;
    char *text = malloc(size);
    if (!text) return fail("no memory for %zu bytes of text", size);
    tsr_tuning_print(t->choices[1][0], text, size);
    output_write(output, text, size - 1);
    free(text);
    return output_commit(output);
}

static void print_results(const tuner *t, const char *path, bool json) {
    const double count = t->verified ? t->verified : 1, off = deviation(t);
    if (json) {
        printf("{\n  \"device\": ");
        json_string(stdout, t->d.name, strlen(t->d.name));
        printf(",\n  \"file\": ");
        json_string(stdout, path, strlen(path));
        printf(",\n  \"recorded\": %d,\n  \"measured\": %d,\n  \"deviation\": %.4f,\n  \"verified\": %d",
               t->recorded_count, t->measured, off, t->verified);
        for (int i = 0; i < 2; i++)
            printf(",\n  \"%s\": {\"within_5_percent\": %.4f, \"mean_excess\": %.4f}", i ? "now" : "before",
                   t->within[i] / count, t->excess[i] / count);
        printf(",\n  \"constants\": {");
        for (int i = 0; i < t->constant_count; i++)
            printf("%s\n    \"%s\": %.4g", i ? "," : "", t->names[i], t->values[i]);
        printf("\n  }\n}\n");
        return;
    }
    printf("%s\nestimates are off by %.1f %%, median of %d products on %d kernels\n", t->d.name, 100 * off, t->measured,
           t->kernel_count);
    for (int i = 0; i < 2; i++)
        printf("%-7s %5.1f %% of %d other choices within 5 %% of the fastest kernel, mean %.1f %% slower than it\n",
               i ? "now:" : "before:", 100 * t->within[i] / count, t->verified, 100 * t->excess[i] / count);
    printf("written: %s\n%s", path,
           t->excess[1] > t->excess[0]
               ? "They choose worse than the former ones: tune for longer, or remove the file.\n"
               : "");
}

static int tune(tuner *t, const options *chosen) {
    char path[4096];
    output_file output;
    int status;
    if ((status = open_contexts(t)) || (status = read_constants(t)) || (status = allocate(t)) ||
        (status = create_output(t, chosen, path, sizeof path, &output)))
        return status;
    progress_begin(3);
    if (!(status = measure_for(t, 0.3 * chosen->seconds, MOST_SAMPLES / 2, false, "measuring")) &&
        !(status = fit_constants(t)) &&
        !(status = measure_for(t, 0.4 * chosen->seconds, MOST_SAMPLES - 1, false, "measuring again")) &&
        !(status = fit_constants(t)))
        status = measure_for(t, 0.3 * chosen->seconds, MOST_SAMPLES, true, "checking the choices");
    progress_end();
    if (status)
        output_discard(&output);
    else
        status = write_constants(t, &output);
    if (!status) print_results(t, path, chosen->json);
    return status;
}

static int run_tune(const options *chosen) {
    if (!chosen->record && chosen->argument_count)
        return misuse("unexpected argument '%s': a program needs --record", chosen->arguments[0]);
    if (chosen->record && !chosen->argument_count) return misuse("--record needs a program");
    if (chosen->device == CHOOSE_CPU) return misuse("--device is cpu: only a GPU is tuned");
    if (!device_gpu_count()) return fail("there is no GPU to tune: `tessera info` says why");
    tuner *t = calloc(1, sizeof *t);
    if (!t) return fail("no memory for the measurements");
    t->numbers.state = chosen->seed;
    char **words = chosen->arguments;
    if (chosen->record) words[chosen->argument_count] = NULL;
    int status = chosen->record ? record(t, words) : EXIT_OK;
    options cuda = *chosen;
    cuda.device = CHOOSE_CUDA;
    if (!status) status = device_open(&t->d, &cuda, 0, 0);
    if (!status) status = tune(t, chosen);
    close_tuner(t);
    return status;
}

const command tune_command = {
    .name = "tune",
    .arguments = "[--record PROGRAM [ARGUMENT ...]]",
    .summary = "fit the estimates to this machine's GPU, so that plans choose the fastest kernels",
    .description =
        "Times random products on every kernel of the GPU, fits the constants of the cost model to the times, and\n"
        "tells by other products how often the plan now chooses the fastest kernel. The constants go to a file that\n"
        "the library reads from then on: the one that TESSERA_TUNING names, else one for this GPU in\n"
        "$XDG_CACHE_HOME/tessera or ~/.cache/tessera. Remove it to have the built-in table back. With --record it\n"
        "runs PROGRAM first and tunes for the products that it makes. Let nothing else use the GPU meanwhile.\n",
    .options = OPTION_TOTAL_SECONDS | OPTION_RECORD | OPTION_OUTPUT | OPTION_DEVICE | OPTION_SEED | OPTION_JSON |
               OPTION_PROGRAM,
    .run = run_tune,
};
