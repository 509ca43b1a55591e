/* fork.c: a fork at some moment of another thread's first call; the child makes its own. Exits with 1 where the child
 * does not come to its end. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera_blas.h"

static void *multiply(void *unused) {
    float a[4] = {1, 2, 3, 4}, b[4] = {1, 0, 0, 1}, c[4];
    cblas_sgemm(CblasColMajor, CblasNoTrans, CblasNoTrans, 2, 2, 2, 1, a, 2, b, 2, 0, c, 2);
    if (c[3] != 4) abort();
    return unused;
}

int main(int count, char **words) {
    pthread_t thread;
    int status = 0;
    if (pthread_create(&thread, NULL, multiply, NULL)) return 1;
    for (volatile int i = 0; count > 1 && i < atoi(words[1]); i++) continue;
    const pid_t child = fork();
    if (!child) {
        alarm(600);
        multiply(NULL);
        _exit(0);
    }
    waitpid(child, &status, 0);
    pthread_join(thread, NULL);
    return !WIFEXITED(status) || WEXITSTATUS(status);
}
