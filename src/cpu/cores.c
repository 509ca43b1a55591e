/* cores.c: the cores that this process may run on, and how much of their time its container allows. */
#include "cpu/cores.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/cpu.h"

/* Reads a small file whole, as text. False where there is none. */
static bool read_text(const char *path, char *text, size_t size) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const ssize_t length = read(file, text, size - 1);
    close(file);
    if (length < 0) return false;
    text[length] = '\0';
    return true;
}

/* Whole cores for so much time in each period. */
static int cores_for(long long quota, long long period) {
    if (quota <= 0 || period <= 0) return INT_MAX;
    const long long cores = (quota + period - 1) / period;
    return cores > INT_MAX ? INT_MAX : (int)cores;
}

/* The limit of the group in one folder. */
static int cores_of_folder(const char *folder, bool version_2) {
    char path[1200], text[64], *end;
    snprintf(path, sizeof path, "%s/%s", folder, version_2 ? "cpu.max" : "cpu.cfs_quota_us");
    if (!read_text(path, text, sizeof text)) return INT_MAX;
    const long long quota = strtoll(text, &end, 10); /* 0 for "max" */
    if (version_2) return cores_for(quota, strtoll(end, NULL, 10));
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    return read_text(path, text, sizeof text) ? cores_for(quota, strtoll(text, NULL, 10)) : INT_MAX;
}

/* The least limit from a group's folder up to that of its hierarchy, of so many characters. */
static int cores_up_to(char *folder, size_t root, bool version_2) {
    int least = INT_MAX;
    for (;;) {
        const int cores = cores_of_folder(folder, version_2);
        if (cores < least) least = cores;
        char *last = strrchr(folder + root, '/');
        if (!last) return least;
        *last = '\0';
    }
}

/* Whether one of a version 1 hierarchy's controllers, separated by commas, is "cpu". */
static bool has_cpu(const char *controllers, size_t length) {
    for (const char *at = controllers, *end = controllers + length; at < end;) {
        const size_t name = strcspn(at, ",:");
        if (name == 3 && !strncmp(at, "cpu", 3)) return true;
        at += name + 1;
    }
    return false;
}

/* Lines are "number:controllers:/group"; version 2 has the number 0 and no controllers. */
int cpu_cores_of_cgroup(const char *membership, const char *root) {
    int least = INT_MAX;
    for (const char *line = membership; *line;) {
        const size_t length = strcspn(line, "\n");
        const char *controllers = memchr(line, ':', length);
        const char *group = controllers ? memchr(controllers + 1, ':', length - (size_t)(controllers + 1 - line))
                                        : NULL;
        if (group) {
            const size_t named = (size_t)(group - controllers - 1);
            const bool version_2 = !named;
            char folder[1024];
            const int at = version_2 ? snprintf(folder, sizeof folder, "%s", root)
                                     : snprintf(folder, sizeof folder, "%s/%.*s", root, (int)named, controllers + 1);
            const int group_length = (int)(length - (size_t)(group + 1 - line));
            if ((version_2 || has_cpu(controllers + 1, named)) && at > 0 && at + group_length < (int)sizeof folder) {
                snprintf(folder + at, sizeof folder - (size_t)at, "%.*s", group_length, group + 1);
                const int cores = cores_up_to(folder, (size_t)at, version_2);
                if (cores < least) least = cores;
            }
        }
        line += length + (line[length] == '\n');
    }
    return least;
}

int cpu_default_threads(void) {
    enum { MOST = 1024 }; /* that options.threads may be */
    cpu_set_t allowed;
    long cores = sched_getaffinity(0, sizeof allowed, &allowed) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&allowed);
    char membership[4096];
    if (read_text("/proc/self/cgroup", membership, sizeof membership)) {
        const int limit = cpu_cores_of_cgroup(membership, "/sys/fs/cgroup");
        if (limit < cores) cores = limit;
    }
    return cores < 1 ? 1 : cores > MOST ? MOST : (int)cores;
}
