/* json.c: strings, numbers and dates as JSON has them. */
#include "json.h"

#include <math.h>
#include <time.h>

void json_string(FILE *out, const char *text, size_t length) {
    putc('"', out);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\') putc('\\', out);
        if (c < ' ')
            fprintf(out, "\\u%04x", c);
        else
            putc(c, out);
    }
    putc('"', out);
}

void json_number(FILE *out, double value) {
    if (isfinite(value))
        fprintf(out, "%.9g", value);
    else
        fputs("null", out);
}

void date_now(char date[32]) {
    time_t seconds = time(NULL);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    strftime(date, 32, "%Y-%m-%dT%H:%M:%SZ", &utc);
}
