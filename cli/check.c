/* check.c: `tessera check`, the numerical contract of tessera.h put to the test on this machine. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "certificate.h"
#include "command.h"
#include "output.h"
#include "progress.h"

/* ---- As a table, row by row -------------------------------------------------------------------------------------- */

/* ieee and fp32 are held to the bound of each element, tf32 to the limit of the whole. */
static void print_row(const grading *g, int family_index) {
    outcome o = outcome_of_family(g, family_index);
    if (!o.products) return;
    bool tf32 = g->precision == TSR_TF32, failed = o.broken || o.unrepeatable;
    char bound[16] = "-", limit[16] = "-";
    snprintf(tf32 ? limit : bound, sizeof bound, tf32 ? "%.2e" : "%.0f", tf32 ? o.worst.tf32_limit : o.worst.bound);
    progress_print("%-9s %-18s %8d  %8.3g %6s  %8.2e %8s  %6.3f  %s\n", tsr_precision_name(g->precision),
                   families[family_index].name, o.products, o.worst.worst, bound, o.worst.relative, limit, o.used,
                   failed ? "FAILED" : "pass");
    if (failed) progress_print("FAILED: %s\n", g->failures[family_index]);
}

static void print_attention(const grading *g, int family_index) {
    const attention_outcome *o = &g->attention[family_index];
    progress_print("%-9s %-18s %8d  %8s %6s  %8.2e %8s  %6.3f  %s\n", tsr_precision_name(g->precision),
                   attention_families[family_index].name, o->calls, o->result ? o->result : "-", "", o->relative, "",
                   o->used, o->failure[0] ? "FAILED" : "pass");
    if (o->failure[0]) progress_print("FAILED: %s\n", o->failure);
}

static void print_heading(const char *whom) {
    printf("tessera %s checks %s\n\n"
           "Of each family, the product that comes nearest to what is allowed. error: worst |C - AB| of an\n"
           "element in units of 2^-24 (|A||B|), of which ieee and fp32 may have K+2; relative: Frobenius\n"
           "norm of C - AB over that of AB.\n\n"
           "%-9s %-18s %8s  %8s %6s  %8s %8s  %6s\n",
           tsr_version(), whom, "precision", "family", "products", "error", "bound", "relative", "limit", "used");
}

static void print_verdict(const grading *gradings, int count) {
    int products = 0, calls = 0, broken = 0, unrepeatable = 0;
    for (int i = 0; i < count; i++) {
        outcome all = outcome_of_all(&gradings[i]);
        attention_outcome attention = attention_of_all(&gradings[i]);
        char name[64], grade = grade_of(&gradings[i]);
        engine_name(name, &gradings[i]);
        progress_print("grade of %s at %s: %c, %s\n", name, tsr_precision_name(gradings[i].precision), grade,
                       grade_meaning(grade));
        products += all.products;
        calls += attention.calls;
        broken += all.broken + attention.broken;
        unrepeatable += all.unrepeatable + attention.unrepeatable;
    }
    char what[64];
    int length = snprintf(what, sizeof what, "%d products", products);
    if (calls) snprintf(what + length, sizeof what - (size_t)length, " and %d attentions", calls);
    if (broken)
        progress_print("verdict: FAILED, %d of %s break the contract\n", broken, what);
    else if (unrepeatable)
        progress_print("verdict: FAILED, %d of %s have other bits when computed again\n", unrepeatable, what);
    else
        progress_print("verdict: pass, all %s keep the contract, with the same bits twice\n", what);
}

/* ---- As a certificate -------------------------------------------------------------------------------------------- */

static int deliver(const certificate *c, output_file *file) {
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (!memory) return fail("no memory for the certificate");
    if (c->asked->json)
        certificate_print_json(memory, c);
    else
        certificate_print_markdown(memory, c);
    int status = fclose(memory) ? fail("no memory for the certificate") : EXIT_OK;
    if (!status && c->asked->report_file) {
        output_write(file, text, size);
        status = output_commit(file);
        if (!status) print_verdict(c->gradings, c->count);
        if (!status) progress_print("certificate: %s\n", c->asked->report_file);
    } else if (!status) {
        progress_erase();
        fwrite(text, 1, size, stdout);
    }
    free(text);
    return status;
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

/* What is graded: a library, or engines of ours, each at each of its precisions. */
typedef struct subjects {
    library library;
    device *devices;
    int device_count;
    grading *gradings;
    int count;
    int per_engine; /* gradings that follow each other and share an engine */
} subjects;

static void subjects_close(subjects *s) {
    for (int i = 0; i < s->device_count; i++) device_close(&s->devices[i]);
    free(s->devices);
    free(s->gradings);
}

/* The one engine that is chosen; a certificate is for all there are, unless one is chosen. GPUs that cannot be used are
 * left out: `auto` then takes the CPU, which is there already. */
static int open_engines(subjects *s, const options *chosen) {
    bool every = (chosen->report || chosen->json) && chosen->device == CHOOSE_AUTO && !chosen->kernel;
    int total = every ? 1 + device_gpu_count() : 1, status = EXIT_OK;
    s->devices = calloc((size_t)total, sizeof *s->devices);
    if (!s->devices) return fail("no memory for %d engines", total);
    for (int i = 0; i < total && !status; i++) {
        options one = *chosen;
        if (every) {
            one.device = i ? CHOOSE_AUTO : CHOOSE_CPU;
            one.device_index = i - 1;
        }
        device *d = &s->devices[s->device_count];
        if ((status = device_open(d, &one, INFINITY, 0))) break;
        if (every && i && d->made_from.device != TSR_DEVICE_CUDA)
            device_close(d);
        else
            s->device_count++;
    }
    return status;
}

static int subjects_open(subjects *s, const options *chosen) {
    tsr_precision precisions[3] = {chosen->precision};
    *s = (subjects){.per_engine = chosen->library ? 1 : precisions_chosen(chosen, precisions)};
    int status = chosen->library ? library_open(&s->library, chosen->library, chosen->threads)
                                 : open_engines(s, chosen);
    if (!status) {
        s->count = s->per_engine * (chosen->library ? 1 : s->device_count);
        s->gradings = calloc((size_t)s->count, sizeof *s->gradings);
        if (!s->gradings) status = fail("no memory for %d results", s->count);
    }
    for (int i = 0; i < s->count && !status; i++) {
        s->gradings[i].precision = precisions[i % s->per_engine];
        if (chosen->library)
            s->gradings[i].library = &s->library;
        else
            s->gradings[i].device = &s->devices[i / s->per_engine];
    }
    if (status) subjects_close(s);
    return status;
}

static scope scope_of(const grading *g, const options *chosen) {
    if (chosen->quick) return QUICK;
    return g->device && g->device->made_from.device == TSR_DEVICE_CUDA ? GPU : FULL;
}

static int grade_all(subjects *s, const options *chosen, bool table) {
    int steps = 0, status = EXIT_OK;
    for (int first = 0; first < s->count; first += s->per_engine)
        steps += FAMILY_TOTAL * shapes_within(scope_of(&s->gradings[first], chosen)) +
                 (chosen->library ? 0 : ATTENTION_FAMILY_TOTAL) *
                     attention_shapes_within(scope_of(&s->gradings[first], chosen));
    progress_begin(steps);
    for (int first = 0; first < s->count && !status; first += s->per_engine) {
        grading *gradings = s->gradings + first;
        for (int f = 0; f < FAMILY_TOTAL && !status; f++) {
            status = grade_family(gradings, s->per_engine, f, scope_of(gradings, chosen), chosen->seed);
            for (int i = 0; i < s->per_engine && !status && table; i++) print_row(&gradings[i], f);
        }
        if (table && !status && !chosen->library)
            progress_print("\n%-9s %-18s %8s  %8s %6s  %8s %8s  %6s\n", "precision", "attention", "calls", "nearest",
                           "", "relative", "", "used");
        for (int f = 0; f < ATTENTION_FAMILY_TOTAL && !status && !chosen->library; f++) {
            status = grade_attention(gradings, s->per_engine, f, scope_of(gradings, chosen), chosen->seed);
            for (int i = 0; i < s->per_engine && !status && table; i++) print_attention(&gradings[i], f);
        }
    }
    return status;
}

static int run_check(const options *chosen) {
    if (chosen->argument_count) return misuse("unexpected argument '%s'", chosen->arguments[0]);
    if (chosen->library && !*chosen->library) return misuse("--library is empty: give the path of a shared library");
    if (chosen->library && (chosen->kernel || chosen->device != CHOOSE_AUTO))
        return misuse("--library is checked as it is: --device and --kernel are for Tessera's own engines");
    if (chosen->report_file && !*chosen->report_file) return misuse("--report's file has no name");
    bool document = chosen->report || chosen->json;
    output_file file;
    /* A file that cannot be written is noticed before the work. */
    int status = chosen->report_file ? output_create(&file, chosen->report_file, 0) : EXIT_OK;
    if (status) return status;
    subjects s;
    if ((status = subjects_open(&s, chosen))) {
        if (chosen->report_file) output_discard(&file);
        return status;
    }
    if (!document) print_heading(chosen->library ? s.library.description : s.devices[0].name);
    status = grade_all(&s, chosen, !document);
    certificate c = {.gradings = s.gradings, .count = s.count, .asked = chosen};
    if (!status && document) {
        status = deliver(&c, &file);
    } else if (!status) {
        progress_print("\n");
        print_verdict(s.gradings, s.count);
    } else if (chosen->report_file) {
        output_discard(&file);
    }
    for (int i = 0; i < s.count && !status; i++)
        if (grade_of(&s.gradings[i]) != 'A') status = EXIT_FAILED;
    subjects_close(&s);
    return status;
}

const command check_command = {
    .name = "check",
    .arguments = "",
    .summary = "check the numerical contract here, against float64; or grade another BLAS by it",
    .description =
        "Multiplies matrices of every family the contract speaks of (uniform, normal, integers, exponents to\n"
        "2^20 and 2^60, graded, small beside large, cancelling, zeros, subnormals, the ends of the range, NaN\n"
        "and Inf, alpha and beta) in several sizes and all four layouts, each twice, and compares with\n"
        "float64. ieee and fp32 must keep |C - AB| <= (K+2) 2^-24 (|A||B|) in every element; tf32 must have no\n"
        "larger relative error than the product of its rounded operands, summed in float32. Without\n"
        "--precision all three are checked. Attention and its gradients are held to their own bounds, which\n"
        "are the same at every precision.\n"
        "\n"
        "The grade: A, everything kept; B, but for bits that differ when computed again; C, but for special\n"
        "values; D, on well-scaled data alone; F, not even there. Exit code 1 where it is not A.\n"
        "\n"
        "--report      a certificate of all engines of this machine, or of the --device given; --json has more\n"
        "              detail. Otherwise `--device auto` takes the GPU where there is one\n"
        "--library     grades the sgemm_ or cblas_sgemm of another library, held to fp32's contract or that of\n"
        "              the --precision given; --threads reaches OpenBLAS, BLIS, MKL and what uses OpenMP\n",
    .options = OPTION_DEVICE | OPTION_PRECISION | OPTION_THREADS | OPTION_INVARIANT | OPTION_KERNEL | OPTION_SEED |
               OPTION_QUICK | OPTION_JSON | OPTION_REPORT | OPTION_LIBRARY,
    .run = run_check,
};
