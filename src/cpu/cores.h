/* cores.h: how many threads a context gets by default. */
#ifndef TESSERA_CPU_CORES_H
#define TESSERA_CPU_CORES_H

/* Cores' worth of time that the process's control group, or one around it, allows: cpu.max of version 2, cfs_quota of
 * version 1. membership: the text of /proc/self/cgroup; root: where the hierarchies are mounted, /sys/fs/cgroup. At
 * least 1; INT_MAX where there is no limit. */
int cpu_cores_of_cgroup(const char *membership, const char *root);

#endif
