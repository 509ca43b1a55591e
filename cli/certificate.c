/* certificate.c: gradings as a document to keep, in Markdown for people and in JSON for programs. */
#include "certificate.h"

#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "command.h"
#include "commit.h" /* made by commit.cmake */
#include "json.h"

static const char grades[] = "ABCDF";

void engine_name(char name[64], const grading *g) {
    const char *slash = g->library ? strrchr(g->library->given, '/') : NULL;
    if (g->library)
        snprintf(name, 64, "%s", slash ? slash + 1 : g->library->given);
    else if (g->device->made_from.device == TSR_DEVICE_CUDA)
        snprintf(name, 64, "cuda:%d", g->device->made_from.device_index);
    else
        snprintf(name, 64, "cpu");
}

static const char *engine_description(const grading *g) {
    return g->library ? g->library->description : g->device->name;
}

/* tsr_info_print's lines, the version's left out, and the system's; to be freed. NULL: no memory. */
static char *machine_lines(void) {
    struct utsname system;
    size_t size = tsr_info_print(NULL, 0) + 1;
    char *info = malloc(size), *lines = NULL;
    if (info) {
        tsr_info_print(info, size);
        const char *rest = strchr(info, '\n');
        if (uname(&system)) system = (struct utsname){.sysname = "unknown"};
        if (asprintf(&lines, "%ssystem: %s %s %s\n", rest ? rest + 1 : "", system.sysname, system.release,
                     system.machine) < 0)
            lines = NULL;
    }
    free(info);
    return lines;
}

/* The command that computes the same products. */
static void print_command(FILE *out, const options *asked) {
    fprintf(out, "tessera check --report --seed %llu", (unsigned long long)asked->seed);
    if (asked->quick) fputs(" --quick", out);
    if (asked->library) fprintf(out, " --library %s", asked->library);
    if (asked->device == CHOOSE_CPU) fputs(" --device cpu", out);
    if (asked->device == CHOOSE_CUDA) fprintf(out, " --device cuda:%d", asked->device_index);
    if (asked->kernel) fprintf(out, " --kernel %s", asked->kernel);
    if (asked->precision_given) fprintf(out, " --precision %s", tsr_precision_name(asked->precision));
    if (asked->threads) fprintf(out, " --threads %d", asked->threads);
}

static const char *kind_name(family_kind kind) {
    static const char *const names[] = {[ORDINARY] = "ordinary", [HARD] = "hard", [SPECIAL] = "special"};
    return names[kind];
}

static bool has_failed(const outcome *o) { return o->broken || o->unrepeatable; }

/* ---- Markdown ---------------------------------------------------------------------------------------------------- */

static void print_machine_rows(FILE *out) {
    char *lines = machine_lines(), *rest = NULL;
    for (char *line = lines ? strtok_r(lines, "\n", &rest) : NULL; line; line = strtok_r(NULL, "\n", &rest)) {
        char *colon = strchr(line, ':');
        if (!colon) continue;
        fprintf(out, "| %.*s | %s |\n", (int)(colon - line), line, colon + 1 + strspn(colon + 1, " "));
    }
    free(lines);
}

static void print_families(FILE *out, const grading *g) {
    bool tf32 = g->precision == TSR_TF32;
    fprintf(out,
            "| family | kind | products | error | %s | used | relative error | nearest to it | |\n"
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
            tf32 ? "limit" : "bound");
    for (int i = 0; i < FAMILY_TOTAL; i++) {
        outcome o = outcome_of_family(g, i);
        if (!o.products) continue;
        const judgement *worst = &o.worst;
        const product_shape *p = &o.layout;
        fprintf(out, "| %s | %s | %d | %.3g | ", families[i].name, kind_name(families[i].kind), o.products,
                worst->worst);
        if (tf32)
            fprintf(out, "%.2e", worst->tf32_limit);
        else
            fprintf(out, "%.0f", worst->bound);
        fprintf(out, " | %.3f | %.2e | %lld x %lld x %lld %s | %s |\n", o.used, o.relative, (long long)p->m,
                (long long)p->n, (long long)p->k, shape_layout(p), has_failed(&o) ? "**FAILED**" : "pass");
    }
    for (int i = 0; i < FAMILY_TOTAL; i++)
        if (g->failures[i][0]) fprintf(out, "\n**FAILED**, %s: %s.\n", families[i].name, g->failures[i]);
}

static void print_shapes(FILE *out, const grading *g) {
    fputs("\n| M x N x K | gap | products | most used | relative error on uniform, normal |\n"
          "| --- | --- | --- | --- | --- |\n",
          out);
    for (int i = 0; i < SHAPE_TOTAL; i++) {
        outcome o = outcome_of_shape(g, i);
        const shape *s = &shapes[i];
        if (!o.products) continue;
        fprintf(out, "| %lld x %lld x %lld | %lld | %d | %.3f | %.2e, %.2e |\n", (long long)s->m, (long long)s->n,
                (long long)s->k, (long long)s->gap, o.products, o.used, g->outcomes[0][i].relative,
                g->outcomes[1][i].relative);
    }
}

static void print_attention(FILE *out, const grading *g) {
    fputs("\n| attention | kind | calls | used | nearest to it | relative error | |\n"
          "| --- | --- | --- | --- | --- | --- | --- |\n",
          out);
    for (int i = 0; i < ATTENTION_FAMILY_TOTAL; i++) {
        const attention_outcome *o = &g->attention[i];
        fprintf(out, "| %s | %s | %d | %.3f | %s | %.2e | %s |\n", attention_families[i].name,
                kind_name(attention_families[i].kind), o->calls, o->used, o->result ? o->result : "-", o->relative,
                o->failure[0] ? "**FAILED**" : "pass");
    }
    for (int i = 0; i < ATTENTION_FAMILY_TOTAL; i++)
        if (g->attention[i].failure[0])
            fprintf(out, "\n**FAILED**, attention, %s: %s.\n", attention_families[i].name, g->attention[i].failure);
}

static void print_section(FILE *out, const grading *g) {
    char name[64];
    engine_name(name, g);
    outcome all = outcome_of_all(g);
    fprintf(out, "\n## %s, %s: grade %c\n%s\n\n", name, tsr_precision_name(g->precision), grade_of(g),
            engine_description(g));
    print_families(out, g);
    print_shapes(out, g);
    if (g->device) print_attention(out, g);
    fprintf(out, "\nEach product was computed twice: %d of %d came out with other bits.\n", all.unrepeatable,
            all.products);
}

void certificate_print_markdown(FILE *out, const certificate *c) {
    char date[32], name[64];
    date_now(date);
    fprintf(out, "# Numerical certificate\n\n| | |\n| --- | --- |\n");
    if (c->asked->library) fprintf(out, "| library | %s |\n", c->gradings[0].library->description);
    fprintf(out, "| %s | %s, commit %s |\n", c->asked->library ? "graded by Tessera" : "Tessera", tsr_version(),
            TESSERA_COMMIT);
    print_machine_rows(out);
    fprintf(out, "| date | %s |\n| seed | %llu |\n| reproduce with | `", date, (unsigned long long)c->asked->seed);
    print_command(out, c->asked);
    fputs("` |\n\n| engine | held to | grade | | products | most of the bound used |\n"
          "| --- | --- | --- | --- | --- | --- |\n",
          out);
    for (int i = 0; i < c->count; i++) {
        const grading *g = &c->gradings[i];
        outcome all = outcome_of_all(g);
        engine_name(name, g);
        fprintf(out, "| %s | %s | **%c** | %s | %d | %.3f |\n", name, tsr_precision_name(g->precision), grade_of(g),
                grade_meaning(grade_of(g)), all.products, all.used);
    }
    fputs("\n`ieee` and `fp32` promise abs(C - AB) <= (K+2) 2^-24 (abs(A) abs(B)) in each element, with alpha and beta "
          "(K+4) 2^-24 (abs(alpha) abs(A) abs(B) + abs(beta C)); `tf32` promises a relative Frobenius error within the "
          "limit shown. Below, `error` is the worst element in units of 2^-24 times its terms, `used` how much of what "
          "is allowed that comes to, `relative error` the largest of the family (of cancelling matrices it is large "
          "because AB itself is nearly zero). Every size was computed in the layouts "
          "nn, tn, nt and tt, with `gap` floats between stored rows, and compared with float64.",
          out);
    if (!c->asked->library)
        fputs(" Attention's bounds are those of docs/internals/numerics.md, for O, lse and the three gradients.", out);
    fputs("\n\n", out);
    for (const char *grade = grades; *grade; grade++) fprintf(out, "- **%c**: %s\n", *grade, grade_meaning(*grade));
    for (int i = 0; i < c->count; i++) print_section(out, &c->gradings[i]);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void print_text(FILE *out, const char *key, const char *text) {
    fprintf(out, "\"%s\": ", key);
    json_string(out, text, strlen(text));
}

static void print_number(FILE *out, const char *key, double value) {
    fprintf(out, ", \"%s\": ", key);
    json_number(out, value);
}

/* The members that outcomes of a family and of one shape of it share. */
static void print_outcome(FILE *out, const outcome *o, tsr_precision precision) {
    fprintf(out, "\"products\": %d, \"broken\": %d, \"unrepeatable\": %d", o->products, o->broken, o->unrepeatable);
    print_number(out, "error", o->worst.worst);
    if (precision == TSR_TF32)
        print_number(out, "limit", o->worst.tf32_limit);
    else
        print_number(out, "bound", o->worst.bound);
    print_number(out, "used", o->used);
    print_number(out, "relative", o->relative);
    fprintf(out, ", \"layout\": \"%s\"", shape_layout(&o->layout));
}

static void print_json_family(FILE *out, const grading *g, int index) {
    outcome total = outcome_of_family(g, index);
    const char *separator = "";
    fprintf(out, "{\"family\": \"%s\", \"kind\": \"%s\", ", families[index].name, kind_name(families[index].kind));
    print_outcome(out, &total, g->precision);
    if (g->failures[index][0]) {
        fputs(", ", out);
        print_text(out, "failure", g->failures[index]);
    }
    fputs(", \"sizes\": [", out);
    for (int i = 0; i < SHAPE_TOTAL; i++) {
        const outcome *o = &g->outcomes[index][i];
        if (!o->products) continue;
        fprintf(out, "%s{\"m\": %lld, \"n\": %lld, \"k\": %lld, \"gap\": %lld, ", separator, (long long)shapes[i].m,
                (long long)shapes[i].n, (long long)shapes[i].k, (long long)shapes[i].gap);
        print_outcome(out, o, g->precision);
        putc('}', out);
        separator = ", ";
    }
    fputs("]}", out);
}

static void print_json_attention(FILE *out, const grading *g) {
    fputs("], \"attention\": [", out);
    for (int i = 0; i < ATTENTION_FAMILY_TOTAL; i++) {
        const attention_outcome *o = &g->attention[i];
        fprintf(out, "%s{\"family\": \"%s\", \"kind\": \"%s\", \"calls\": %d, \"broken\": %d, \"unrepeatable\": %d",
                i ? ", " : "", attention_families[i].name, kind_name(attention_families[i].kind), o->calls, o->broken,
                o->unrepeatable);
        print_number(out, "used", o->used);
        print_number(out, "relative", o->relative);
        fputs(", ", out);
        print_text(out, o->failure[0] ? "failure" : "result", o->failure[0] ? o->failure : o->result ? o->result : "");
        fputs("}", out);
    }
}

static void print_json_grading(FILE *out, const grading *g) {
    char name[64];
    engine_name(name, g);
    outcome all = outcome_of_all(g);
    fputs("{", out);
    print_text(out, "engine", name);
    fputs(", ", out);
    print_text(out, "description", engine_description(g));
    fprintf(out, ", \"precision\": \"%s\", \"grade\": \"%c\", ", tsr_precision_name(g->precision), grade_of(g));
    print_text(out, "meaning", grade_meaning(grade_of(g)));
    fprintf(out, ", \"products\": %d, \"broken\": %d, \"unrepeatable\": %d", all.products, all.broken,
            all.unrepeatable);
    print_number(out, "used", all.used);
    fputs(", \"families\": [", out);
    const char *separator = "";
    for (int i = 0; i < FAMILY_TOTAL; i++) {
        if (!outcome_of_family(g, i).products) continue;
        fputs(separator, out);
        print_json_family(out, g, i);
        separator = ", ";
    }
    if (g->device) print_json_attention(out, g);
    fputs("]}", out);
}

/* A line for what the gradings have in common, and one for each of them. */
void certificate_print_json(FILE *out, const certificate *c) {
    char date[32], *lines = machine_lines(), *rest = NULL;
    const char *separator = "";
    date_now(date);
    fprintf(out,
            "{\"schema\": \"tessera-certificate-1\", \"version\": \"%s\", \"commit\": \"%s\", \"date\": \"%s\", "
            "\"seed\": %llu, \"scope\": \"%s\", \"machine\": [",
            tsr_version(), TESSERA_COMMIT, date, (unsigned long long)c->asked->seed,
            c->asked->quick ? "quick" : "full");
    for (char *line = lines ? strtok_r(lines, "\n", &rest) : NULL; line; line = strtok_r(NULL, "\n", &rest)) {
        fputs(separator, out);
        json_string(out, line, strlen(line));
        separator = ", ";
    }
    free(lines);
    fputs("], \"gradings\": [\n", out);
    for (int i = 0; i < c->count; i++) {
        print_json_grading(out, &c->gradings[i]);
        fputs(i + 1 < c->count ? ",\n" : "\n", out);
    }
    fputs("]}\n", out);
}
