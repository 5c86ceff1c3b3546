/* The library for DOS has no such functions; elvis.c has the one that the editor calls. */
#ifndef SYS_STAT_H
#define SYS_STAT_H

struct stat {
    unsigned st_mode;
    long st_size;
    long st_mtime;
    unsigned st_ino;
    unsigned st_dev;
    unsigned st_uid;
};

#define S_IFMT 1
#define S_IFREG 1
#define S_IWRITE 2

#endif
