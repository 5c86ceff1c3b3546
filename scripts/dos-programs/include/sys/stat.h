/* The library for DOS has no such functions; only the structure must exist. */
#ifndef SYS_STAT_H
#define SYS_STAT_H

struct stat {
    long st_size;
};

#endif
