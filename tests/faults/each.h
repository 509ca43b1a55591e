/* each.h: runs a scenario in a child process once for each call that may fail, until none is left to fail. */
#ifndef TESSERA_TESTS_EACH_H
#define TESSERA_TESTS_EACH_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faults.h"

enum { NOTHING_FAILED = 0, SOMETHING_FAILED = 10, WRONG = 1, CHILD_SECONDS = 600 };

/* Ends the child with a sentence. */
#define REQUIRE(condition, ...)           \
    do {                                  \
        if (!(condition)) {               \
            fprintf(stderr, __VA_ARGS__); \
            fprintf(stderr, "\n");        \
            _exit(WRONG);                 \
        }                                 \
    } while (0)

/* scenario(true) while calls fail, then scenario(false), when everything must succeed. Prints how many times a call
 * failed. Returns main's status. */
static int each_fault(int count, char **words, void (*scenario)(bool faulty)) {
    const enum fault_kind kind = count == 3 ? faults_kind(words[1]) : FAULT_KINDS;
    if (kind == FAULT_KINDS) return WRONG;
    const bool for_good = words[2][0] == '+';
    long number = 1;
    for (int status = 0;; number++) {
        const pid_t child = fork();
        if (child < 0) return WRONG;
        if (!child) {
            alarm(CHILD_SECONDS);
            faults_begin(kind, number, for_good);
            scenario(true);
            const long failed = faults_end();
            scenario(false);
            _exit(failed ? SOMETHING_FAILED : NOTHING_FAILED);
        }
        waitpid(child, &status, 0);
        if (WIFSIGNALED(status)) printf("signal %d ", WTERMSIG(status));
        if (!WIFEXITED(status) || (WEXITSTATUS(status) != SOMETHING_FAILED && WEXITSTATUS(status) != NOTHING_FAILED)) {
            printf("wrong where call %ld fails\n", number);
            return WRONG;
        }
        if (WEXITSTATUS(status) == NOTHING_FAILED) break;
    }
    printf("%ld\n", number - 1);
    return 0;
}

#endif
