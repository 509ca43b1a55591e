/* cgroups.c: how many cores a container's limit of processor time comes to, for folders made here. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cpu/cores.h"

static char root[] = "/tmp/tessera-cgroups-XXXXXX";
static int failures;

static void put(const char *folder, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = '\0';
        mkdir(path, 0700);
    }
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file)) exit(1);
}

static void expect(const char *membership, int cores) {
    const int found = cpu_cores_of_cgroup(membership, root);
    if (found == cores) return;
    fprintf(stderr, "cgroups: %d cores, not %d, for\n%s", found, cores, membership);
    failures++;
}

int main(void) {
    if (!mkdtemp(root)) return 1;
    put("unlimited", "cpu.max", "max 100000\n");
    put("two", "cpu.max", "150000 100000\n");
    put("two/inner", "cpu.max", "max 100000\n");
    put("two/less", "cpu.max", "20000 100000\n");
    put("cpu,cpuacct/three", "cpu.cfs_quota_us", "300000\n");
    put("cpu,cpuacct/three", "cpu.cfs_period_us", "100000\n");
    put("cpu,cpuacct/none", "cpu.cfs_quota_us", "-1\n");
    put("cpu,cpuacct/none", "cpu.cfs_period_us", "100000\n");
    expect("0::/unlimited\n", INT_MAX);
    expect("0::/two\n", 2);
    expect("0::/two/inner\n", 2);
    expect("0::/two/less\n", 1);
    expect("0::/\n", INT_MAX);
    expect("4:memory:/three\n3:cpu,cpuacct:/three\n0::/\n", 3);
    expect("3:cpu,cpuacct:/three/not/visible/here\n", 3);
    expect("3:cpu,cpuacct:/none\n2:cpuset:/\n", INT_MAX);
    expect("", INT_MAX);
    expect("nonsense", INT_MAX);
    char command[600];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command) || failures;
}
