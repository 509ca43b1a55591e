/* options.c: one table of options, one parser. */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"

typedef struct option {
    unsigned bit; /* OPTION_ */
    const char *name, *short_name;
    const char *value; /* what it takes, as help shows it; in brackets: it need not; NULL: nothing */
    const char *help;
} option;

static const option option_table[] = {
    {OPTION_OUTPUT, "--output", "-o", "FILE", "where the result goes; written whole or not at all"},
    {OPTION_TRANSPOSE_A, "--transpose-a", NULL, NULL, "A is stored transposed"},
    {OPTION_TRANSPOSE_B, "--transpose-b", NULL, NULL, "B is stored transposed"},
    {OPTION_PRECISION, "--precision", NULL, "P", "ieee, fp32 or tf32"},
    {OPTION_THREADS, "--threads", NULL, "N", "CPU threads, 1 to 1024 (default: all cores)"},
    {OPTION_DEVICE, "--device", NULL, "D", "auto (default), cpu, cuda or cuda:N"},
    {OPTION_BATCH, "--batch", NULL, "N", "how many products of this shape (default: 1)"},
    {OPTION_INVARIANT, "--batch-invariant", NULL, NULL, "rows of C have the same bits in any batch"},
    {OPTION_KERNEL, "--kernel", NULL, "NAME", "force a kernel that `tessera info` lists"},
    {OPTION_SEED, "--seed", NULL, "N", "seed of random matrices or products (default: 1)"},
    {OPTION_QUICK, "--quick", NULL, NULL, "small matrices only"},
    {OPTION_SECONDS, "--seconds", NULL, "S", "time to spend on each measurement (default: 1)"},
    {OPTION_TOTAL_SECONDS, "--seconds", NULL, "S", "time to spend in all (default: 60)"},
    {OPTION_RECORD, "--record", NULL, NULL, "tune for the products that PROGRAM makes"},
    {OPTION_JSON, "--json", NULL, NULL, "print JSON instead of a table"},
    {OPTION_REPORT, "--report", NULL, "[FILE]", "a certificate in Markdown, to FILE or standard output"},
    {OPTION_LIBRARY, "--library", NULL, "FILE", "check this BLAS instead, a shared library"},
};

enum { OPTION_TOTAL = sizeof option_table / sizeof option_table[0] };

int precisions_chosen(const options *chosen, tsr_precision precisions[3]) {
    precisions[0] = chosen->precision_given ? chosen->precision : TSR_IEEE;
    precisions[1] = TSR_FP32;
    precisions[2] = TSR_TF32;
    return chosen->precision_given ? 1 : 3;
}

int parse_count(int64_t *count, const char *name, const char *text, int64_t least, int64_t most) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < least || value > most)
        return misuse("%s is '%s': it must be a whole number from %lld to %lld", name, text, (long long)least,
                      (long long)most);
    *count = value;
    return EXIT_OK;
}

static int parse_precision(options *chosen, const char *name, const char *text) {
    for (tsr_precision p = TSR_FP32; p <= TSR_TF32; p++) {
        if (strcmp(text, tsr_precision_name(p)) == 0) {
            chosen->precision = p;
            chosen->precision_given = true;
            return EXIT_OK;
        }
    }
    return misuse("%s is '%s': it must be ieee, fp32 or tf32", name, text);
}

static int parse_device(options *chosen, const char *name, const char *text) {
    chosen->device_index = 0;
    if (strcmp(text, "auto") == 0) {
        chosen->device = CHOOSE_AUTO;
    } else if (strcmp(text, "cpu") == 0) {
        chosen->device = CHOOSE_CPU;
    } else if (strcmp(text, "cuda") == 0) {
        chosen->device = CHOOSE_CUDA;
    } else if (strncmp(text, "cuda:", 5) == 0) {
        int64_t index = 0;
        int status = parse_count(&index, "the number after --device cuda:", text + 5, 0, 1023);
        if (status) return status;
        chosen->device = CHOOSE_CUDA;
        chosen->device_index = (int)index;
    } else {
        return misuse("%s is '%s': it must be auto, cpu, cuda or cuda:N", name, text);
    }
    return EXIT_OK;
}

static int parse_seconds(options *chosen, const char *name, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value <= 0 || value > 86400)
        return misuse("%s is '%s': it must be a number of seconds above 0, at most 86400", name, text);
    chosen->seconds = value;
    return EXIT_OK;
}

static int set_option(options *chosen, const option *which, const char *value) {
    int64_t count = 0;
    int status = EXIT_OK;
    switch (which->bit) {
    case OPTION_OUTPUT: chosen->output = value; break;
    case OPTION_TRANSPOSE_A: chosen->transpose_a = true; break;
    case OPTION_TRANSPOSE_B: chosen->transpose_b = true; break;
    case OPTION_PRECISION: return parse_precision(chosen, which->name, value);
    case OPTION_THREADS:
        status = parse_count(&count, which->name, value, 1, 1024);
        chosen->threads = (int)count;
        break;
    case OPTION_DEVICE: return parse_device(chosen, which->name, value);
    case OPTION_BATCH: return parse_count(&chosen->batch, which->name, value, 0, INT64_MAX);
    case OPTION_INVARIANT: chosen->batch_invariant = true; break;
    case OPTION_KERNEL: chosen->kernel = value; break;
    case OPTION_SEED:
        status = parse_count(&count, which->name, value, 0, INT64_MAX);
        chosen->seed = (uint64_t)count;
        break;
    case OPTION_QUICK: chosen->quick = true; break;
    case OPTION_TOTAL_SECONDS:
    case OPTION_SECONDS: return parse_seconds(chosen, which->name, value);
    case OPTION_JSON: chosen->json = true; break;
    case OPTION_RECORD: chosen->record = true; break;
    case OPTION_REPORT:
        chosen->report = true;
        chosen->report_file = value;
        break;
    case OPTION_LIBRARY: chosen->library = value; break;
    }
    return status;
}

/* The option a word spells, "--name", "--name=value" or a short name; *value is what follows the '=', or NULL. */
static const option *find_option(unsigned accepted, const char *word, const char **value) {
    const char *equals = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    *value = equals ? equals + 1 : NULL;
    for (int i = 0; i < OPTION_TOTAL; i++) {
        const option *o = &option_table[i];
        if (!(o->bit & accepted)) continue;
        if (strlen(o->name) == length && strncmp(o->name, word, length) == 0) return o;
        if (o->short_name && strcmp(o->short_name, word) == 0) return o;
    }
    return NULL;
}

/* "-5" is a number gone wrong, which the subcommand names better than "unknown option" would. */
static bool is_option(const char *word) { return word[0] == '-' && word[1] && !(word[1] >= '0' && word[1] <= '9'); }

int options_parse(options *chosen, unsigned accepted, int count, char **words, bool *help) {
    *chosen = (options){.arguments = words, .precision = TSR_FP32, .batch = 1, .seed = 1};
    chosen->seconds = accepted & OPTION_TOTAL_SECONDS ? 60 : 1;
    *help = false;
    bool only_arguments = false;
    for (int i = 0; i < count; i++) {
        char *word = words[i];
        if (only_arguments || !is_option(word)) {
            words[chosen->argument_count++] = word;
            if (accepted & OPTION_PROGRAM) only_arguments = true;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            only_arguments = true;
            continue;
        }
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            *help = true;
            return EXIT_OK;
        }
        const char *value;
        const option *which = find_option(accepted, word, &value);
        if (!which) return misuse("unknown option %s", word);
        if (!which->value && value) return misuse("%s takes no value", which->name);
        bool optional = which->value && which->value[0] == '[';
        if (optional && !value && i + 1 < count && !is_option(words[i + 1])) value = words[++i];
        if (which->value && !value && !optional) {
            if (i + 1 == count) return misuse("%s needs a value: %s", word, which->value);
            value = words[++i];
        }
        int status = set_option(chosen, which, value);
        if (status) return status;
    }
    return EXIT_OK;
}

void options_print_help(unsigned accepted) {
    for (int i = 0; i < OPTION_TOTAL; i++) {
        const option *o = &option_table[i];
        if (!(o->bit & accepted)) continue;
        char spelling[40];
        snprintf(spelling, sizeof spelling, "%s%s%s%s%s", o->short_name ? o->short_name : "", o->short_name ? ", " : "",
                 o->name, o->value ? " " : "", o->value ? o->value : "");
        printf("  %-20s %s\n", spelling, o->help);
    }
    printf("  %-20s %s\n", "-h, --help", "print this and stop");
}
