/* grade.h: products of every family and shape, and attention, held to the contract, and the grade that follows. */
#ifndef TESSERA_CLI_GRADE_H
#define TESSERA_CLI_GRADE_H

#include "accuracy.h"
#include "device.h"
#include "family.h"
#include "library.h"

/* What the products of one family and one shape came to, in all four layouts. */
typedef struct outcome {
    int products;
    int broken;       /* of these, how many break the contract */
    int unrepeatable; /* and how many have other bits when computed again */
    int shape;        /* of the product nearest to what is allowed, or furthest beyond: index, layout, judgement */
    product_shape layout;
    judgement worst;
    double used;     /* how much of what is allowed that one uses */
    double relative; /* the largest relative Frobenius error of all */
} outcome;

/* Attention and its gradients (attention.c): families of their own, and what one came to in all shapes. */
typedef struct attention_family {
    const char *name;
    family_kind kind;
} attention_family;

enum { ATTENTION_FAMILY_TOTAL = 6 };
extern const attention_family attention_families[ATTENTION_FAMILY_TOTAL];

typedef struct attention_outcome {
    int calls, broken, unrepeatable; /* calls: forward and backward together */
    double used;                     /* how much of what is allowed the element uses that is nearest to it, */
    const char *result;              /* and which result that is of */
    double relative;                 /* the largest relative Frobenius error of a result */
    char failure[400];               /* as in a grading */
} attention_outcome;

/* Who computes, which contract that is held to, and how it did. */
typedef struct grading {
    device *device;   /* Tessera's engine there, */
    library *library; /* or another library; the other of both is NULL */
    tsr_precision precision;
    outcome outcomes[FAMILY_TOTAL][SHAPE_TOTAL];
    attention_outcome attention[ATTENTION_FAMILY_TOTAL]; /* of our own engines */
    bool wrote_outside;                                  /* memory between C's rows was changed */
    char failures[FAMILY_TOTAL][400]; /* of each family the first product that fails, as a sentence; empty: none */
} grading;

/* Computes the products of one family, in the shapes of a scope, by each of the gradings' own; these share the exact
 * products. EXIT_OK or EXIT_FAILED. */
int grade_family(grading *gradings, int count, int family_index, scope limit, uint64_t seed);

/* The same of one family of attention. */
int grade_attention(grading *gradings, int count, int family_index, scope limit, uint64_t seed);
int attention_shapes_within(scope limit);
attention_outcome attention_of_all(const grading *g);

/* Sums over shapes, over families, and over both. */
outcome outcome_of_family(const grading *g, int family_index);
outcome outcome_of_shape(const grading *g, int shape_index);
outcome outcome_of_all(const grading *g);

/* 'A' to 'F', and what a grade says. */
char grade_of(const grading *g);
const char *grade_meaning(char grade);

#endif
