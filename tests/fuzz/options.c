/* options.c: any words as a subcommand's options. The first four bytes are the options that it takes, the rest are
 * words that end in NUL. */
#include "options.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "command.h"
#include "fuzz.h"

static char message[1024];

int misuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return EXIT_USAGE;
}

static bool is_among(char *word, char *const *words, int count) {
    for (int i = 0; i < count; i++)
        if (words[i] == word) return true;
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { MOST_WORDS = 64 };
    if (size < 4) return 0;
    unsigned accepted;
    memcpy(&accepted, data, sizeof accepted);
    char *text = malloc(size - 3), *given[MOST_WORDS], *words[MOST_WORDS];
    if (!text) abort();
    memcpy(text, data + 4, size - 4);
    text[size - 4] = '\0';
    int count = 0;
    for (char *at = text; at < text + size - 3 && count < MOST_WORDS; at += strlen(at) + 1) given[count++] = at;
    memcpy(words, given, sizeof(char *) * (size_t)count);

    options chosen;
    bool help;
    message[0] = '\0';
    const int status = options_parse(&chosen, accepted, count, words, &help);
    EXPECT(status == EXIT_OK || status == EXIT_USAGE, "status %d", status);
    EXPECT((status == EXIT_USAGE) == (message[0] != '\0'), "status %d with the message \"%s\"", status, message);
    if (!status && !help) {
        EXPECT(chosen.precision >= TSR_FP32 && chosen.precision <= TSR_TF32, "precision %d", (int)chosen.precision);
        EXPECT(chosen.threads >= 0 && chosen.threads <= 1024, "%d threads", chosen.threads);
        EXPECT(chosen.seconds > 0 && chosen.seconds <= 86400, "%g seconds", chosen.seconds);
        EXPECT(chosen.batch >= 0, "a batch of %lld", (long long)chosen.batch);
        EXPECT(chosen.device_index >= 0 && chosen.device_index <= 1023, "GPU %d", chosen.device_index);
        EXPECT(chosen.argument_count >= 0 && chosen.argument_count <= count, "%d arguments of %d words",
               chosen.argument_count, count);
        for (int i = 0; i < chosen.argument_count; i++)
            EXPECT(is_among(chosen.arguments[i], given, count), "argument %d is no word that was given", i);
    }
    free(text);
    return 0;
}
