/* json.h: strings, numbers and dates as JSON has them. */
#ifndef TESSERA_CLI_JSON_H
#define TESSERA_CLI_JSON_H

#include <stddef.h>
#include <stdio.h>

/* Quoted, with what must be escaped escaped. */
void json_string(FILE *out, const char *text, size_t length);

/* NaN and infinities, for which JSON has no word, become null. */
void json_number(FILE *out, double value);

/* This second in UTC, "2026-01-31T12:00:00Z". */
void date_now(char date[32]);

#endif
