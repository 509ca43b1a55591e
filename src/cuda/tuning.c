/* tuning.c: the file of a GPU's constants, "name value" lines:
 *
 *   tessera-tuning 1              the format
 *   library 0.1.0
 *   gpu NVIDIA H200
 *   capability 90                 that kernels were chosen for
 *   multiprocessors 132
 *   bytes_per_cycle 16            every constant of cost_table.c that is not 0, in any order
 *   ...
 */
#include "cuda/tuning.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/context.h"
#include "cuda/cost.h"

#define FORMAT "tessera-tuning 1"

/* A program with more rights than its user (setuid) ignores the environment. */
static size_t print_path(const cuda_device *device, tsr_text *text) {
    const char *given = secure_getenv("TESSERA_TUNING"), *cache = secure_getenv("XDG_CACHE_HOME");
    const char *home = secure_getenv("HOME");
    if (given) {
        tsr_text_add(text, "%s", given);
        return text->length;
    }
    if (cache && *cache == '/')
        tsr_text_add(text, "%s", cache);
    else if (home && *home == '/')
        tsr_text_add(text, "%s/.cache", home);
    else
        return 0;
    tsr_text_add(text, "/tessera/");
    for (const char *c = device->name; *c; c++) tsr_text_add(text, "%c", isalnum((unsigned char)*c) ? *c : '-');
    tsr_text_add(text, "-%d.tuning", device->planned_capability);
    return text->length;
}

static void print_head(const cuda_device *device, tsr_text *text) {
    tsr_text_add(text, FORMAT "\nlibrary %s\ngpu %s\ncapability %d\nmultiprocessors %d\n", tsr_version(), device->name,
                 device->planned_capability, device->multiprocessors);
}

/* The number of a constant that exists on this device; -1: none. */
static int find_constant(const cuda_device *device, const char *name) {
    for (int i = 0; cost_constant_name(i); i++)
        if (strcmp(cost_constant_name(i), name) == 0) return *cost_constant(device->costs, i) > 0 ? i : -1;
    return -1;
}

/* Numbers have a point, whatever the program's language: from here on for this thread, until numbers_end. */
typedef struct number_locale {
    locale_t plain, former;
} number_locale;

static number_locale numbers_begin(void) {
    const locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    return (number_locale){plain, plain ? uselocale(plain) : (locale_t)0};
}

static void numbers_end(number_locale numbers) {
    if (!numbers.plain) return;
    uselocale(numbers.former);
    freelocale(numbers.plain);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* Reads the constants into `values`. What is wrong goes into `why`, behind the number of its line. */
static bool read_lines(const cuda_device *device, FILE *file, double *values, char *why, size_t size) {
    char head[512], line[256], name[128], *end;
    tsr_text text = {head, sizeof head, 0};
    print_head(device, &text);
    const char *expected = head;
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        const size_t length = strcspn(line, "\n");
        if (line[length] != '\n')
            return snprintf(why, size, "%d: '%s' is %s", number, line, feof(file) ? "cut short" : "no line"), false;
        line[length] = '\0';
        if (*expected) { /* a line of the head */
            const size_t wanted = strcspn(expected, "\n");
            if (length != wanted || memcmp(line, expected, wanted))
                return snprintf(why, size, "%d: '%s' is not '%.*s'", number, line, (int)wanted, expected), false;
            expected += wanted + 1;
            continue;
        }
        char *space = strchr(line, ' ');
        const double value = space ? strtod(space + 1, &end) : 0;
        if (!space || space - line >= (int)sizeof name || end == space + 1 || *end || !isfinite(value) || value <= 0)
            return snprintf(why, size, "%d: '%s' is no name and number above 0", number, line), false;
        snprintf(name, sizeof name, "%.*s", (int)(space - line), line);
        const int i = find_constant(device, name);
        if (i < 0) return snprintf(why, size, "%d: there is no constant '%s'", number, name), false;
        const double built_in = *cost_constant(device->costs, i);
        if (value < 0x1p-20 * built_in || value > 0x1p20 * built_in)
            return snprintf(why, size, "%d: '%s' is too far from the built-in %.4g", number, line, built_in), false;
        values[i] = value;
    }
    if (ferror(file)) return snprintf(why, size, " %s", strerror(errno)), false;
    if (*expected) return snprintf(why, size, " it ends before '%.*s'", (int)strcspn(expected, "\n"), expected), false;
    for (int i = 0; cost_constant_name(i); i++)
        if (*cost_constant(device->costs, i) > 0 && !(values[i] > 0))
            return snprintf(why, size, " it lacks %s", cost_constant_name(i)), false;
    return true;
}

/* All of the constants, or none. */
static bool read_file(const cuda_device *device, const char *path, double *values, char *why, size_t size) {
    struct stat about;
    const int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is no such file: do not wait for it */
    FILE *file = opened >= 0 ? fdopen(opened, "r") : NULL;
    if (!file || fstat(opened, &about) || !S_ISREG(about.st_mode)) {
        snprintf(why, size, " %s", file ? "it is not a file" : strerror(errno));
        if (file) fclose(file);
        if (!file && opened >= 0) close(opened);
        return false;
    }
    const number_locale numbers = numbers_begin();
    const bool all = read_lines(device, file, values, why, size);
    numbers_end(numbers);
    fclose(file);
    return all;
}

tsr_status tuning_load(cuda_device *device) {
    char path[4096], why[320];
    tsr_text text = {path, sizeof path, 0};
    device->costs = cost_table(device);
    int count = 0;
    while (cost_constant_name(count)) count++;
    double *values = calloc((size_t)count, sizeof *values);
    if (!device->costs || !values) {
        free(values);
        free(device->costs);
        device->costs = NULL;
        return tsr_fail(TSR_OUT_OF_MEMORY, "no memory for the cost model of a GPU");
    }
    snprintf(device->tuning, sizeof device->tuning, "built in, measured on %s", cost_measured_on(device->costs));
    const bool given = secure_getenv("TESSERA_TUNING");
    const size_t length = print_path(device, &text);
    if (length && length < sizeof path && (given || access(path, F_OK) == 0)) {
        if (read_file(device, path, values, why, sizeof why)) {
            for (int i = 0; i < count; i++)
                if (values[i] > 0) *cost_constant(device->costs, i) = values[i];
            snprintf(device->tuning, sizeof device->tuning, "%.600s", path);
        } else {
            const size_t used = strlen(device->tuning);
            snprintf(device->tuning + used, sizeof device->tuning - used, "; refused %.240s:%s", path, why);
        }
    }
    free(values);
    return TSR_OK;
}

/* ---- For `tessera tune` ------------------------------------------------------------------------------------------ */

size_t tsr_tuning_path(const tsr_context *context, char *buffer, size_t size) {
    tsr_text text = {buffer, buffer ? size : 0, 0};
    if (text.size) buffer[0] = '\0';
    return context && context->cuda ? print_path(&context->cuda->device, &text) : 0;
}

size_t tsr_tuning_print(const tsr_context *context, char *buffer, size_t size) {
    tsr_text text = {buffer, buffer ? size : 0, 0};
    if (text.size) buffer[0] = '\0';
    if (!context || !context->cuda) return 0;
    const cuda_device *device = &context->cuda->device;
    print_head(device, &text);
    const number_locale numbers = numbers_begin();
    for (int i = 0; cost_constant_name(i); i++) {
        const double value = *cost_constant(device->costs, i);
        if (value > 0) tsr_text_add(&text, "%s %.4g\n", cost_constant_name(i), value);
    }
    numbers_end(numbers);
    return text.length;
}

tsr_status tsr_tuning_set(tsr_context *context, const char *name, double value) {
    if (!context) return tsr_fail(TSR_INVALID_ARGUMENT, "context is NULL");
    if (!name) return tsr_fail(TSR_INVALID_ARGUMENT, "name is NULL");
    if (!context->cuda) return tsr_fail(TSR_UNSUPPORTED, "context is not on CUDA: it has no constants to be tuned");
    const int i = find_constant(&context->cuda->device, name);
    if (i < 0) return tsr_fail(TSR_INVALID_ARGUMENT, "name is '%s': tsr_tuning_print lists the constants", name);
    if (!isfinite(value) || value <= 0) return tsr_fail(TSR_INVALID_ARGUMENT, "value is %g: it must be above 0", value);
    *cost_constant(context->cuda->device.costs, i) = value;
    return TSR_OK;
}

/* ---- Notes of products ------------------------------------------------------------------------------------------- */

enum { MOST_NOTED = 4096 }; /* of a process */

static pthread_mutex_t noted_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t noted[2 * MOST_NOTED]; /* hashes of what was written; 0: none. Under noted_lock */
static int noted_count;

/* Whether it is new; then it is known from now on. */
static bool note(const char *line) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (; *line; line++) hash = (hash ^ (unsigned char)*line) * 1099511628211u;
    hash |= 1;
    pthread_mutex_lock(&noted_lock);
    size_t at = hash % (2 * MOST_NOTED);
    while (noted[at] && noted[at] != hash) at = (at + 1) % (2 * MOST_NOTED);
    const bool is_new = !noted[at] && noted_count < MOST_NOTED;
    if (is_new) {
        noted[at] = hash;
        noted_count++;
    }
    pthread_mutex_unlock(&noted_lock);
    return is_new;
}

bool tuning_records(void) {
    const char *path = secure_getenv("TESSERA_RECORD");
    return path && *path;
}

void tuning_record(const tsr_context *context, const tsr_problem *p) {
    char line[400];
    tsr_text text = {line, sizeof line, 0};
    const int64_t batch = p->c_items ? 1 : p->batch; /* with pointers of their own they are queued one by one */
    tsr_text_add(&text, "%s %lld %lld %lld %lld", tsr_precision_name(context->options.precision), (long long)batch,
                 (long long)p->m, (long long)p->n, (long long)p->k);
    const tsr_operand c = result_as_addend(&p->c), *all[] = {&p->a, &p->b, &c};
    for (int i = 0; i < 3; i++)
        tsr_text_add(&text, " %lld %lld %lld", (long long)all[i]->row_stride, (long long)all[i]->col_stride,
                     (long long)all[i]->batch_stride);
    tsr_text_add(&text, "\n");
    const char *path = secure_getenv("TESSERA_RECORD");
    if (!path || !note(line)) return;
    struct stat about;
    const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666); /* no wait for a pipe */
    if (file < 0) return; /* the product matters more than the note */
    if (fstat(file, &about) == 0 && S_ISREG(about.st_mode)) {
        const ssize_t written = write(file, line, text.length); /* whole, beside those of other processes */
        (void)written;
    }
    close(file);
}
