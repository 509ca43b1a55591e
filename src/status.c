/* status.c: statuses, their messages, names and versions; text that grows into a caller's buffer. */
#include <stdarg.h>

#include "internal.h"

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
