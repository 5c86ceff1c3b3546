/* Functions of Unix that the library for DOS lacks, and parts of the linker that are not built. */

int chmod(path, mode)
char *path;
int mode;
{
    return 0;
}

int umask(mask)
int mask;
{
    return 0;
}

int access(path, mode)
char *path;
int mode;
{
    int file;

    file = open(path, 0);
    if (file < 0)
        return -1;
    close(file);
    return 0;
}

/* The preprocessor shows a time that is not known as such. */
int gettimeofday(time, zone)
char *time, *zone;
{
    return -1;
}

/* Archives and output for other systems. */
int ld86r()
{
    _exit(2);
}

int writebin()
{
    _exit(2);
}

int write_dosemu()
{
    _exit(2);
}
