/* certificate.h: gradings as a document to keep. */
#ifndef TESSERA_CLI_CERTIFICATE_H
#define TESSERA_CLI_CERTIFICATE_H

#include <stdio.h>

#include "grade.h"

/* The options that reproduce the document. */
typedef struct certificate {
    const grading *gradings;
    int count;
    const options *asked;
} certificate;

void certificate_print_markdown(FILE *out, const certificate *c);
void certificate_print_json(FILE *out, const certificate *c);

/* "cpu", "cuda:0", or the library's file. */
void engine_name(char name[64], const grading *g);

#endif
