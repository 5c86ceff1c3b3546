/* Times operations on files, step by step: share FOLDER [write]. Writes `ready STEP OPERATIONS`
   before each step, waits for a line, and writes `done NANOSECONDS` after the step, so that the
   reader can count other things in the meantime. */

#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FOLDERS = 50, FILES = 100, TREE = FOLDERS * FILES, SAME = 20000, NEW = 1000 };

static struct timespec begun;

static void begin(const char *step, long operations)
{
    char line[16];
    printf("ready %s %ld\n", step, operations);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        errx(1, "no answer came");
    clock_gettime(CLOCK_MONOTONIC, &begun);
}

static void end(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("done %lld\n", (now.tv_sec - begun.tv_sec) * 1000000000LL + now.tv_nsec - begun.tv_nsec);
    fflush(stdout);
}

static char path[256], data[1 << 17];

static const char *file(const char *tree, int number, const char *suffix)
{
    snprintf(path, sizeof path, "%s/%d/%d%s", tree, number / FILES, number % FILES, suffix);
    return path;
}

static void look(const char *step, const char *suffix, int is_there)
{
    struct stat status;
    begin(step, TREE);
    for (int number = 0; number < TREE; number++)
        if ((stat(file("tree", number, suffix), &status) == 0) != is_there)
            err(1, "%s", path);
    end();
}

static void read_all(const char *step)
{
    begin(step, TREE);
    for (int number = 0; number < TREE; number++) {
        int descriptor = open(file("tree", number, ""), O_RDONLY);
        if (descriptor < 0 || read(descriptor, data, sizeof data) != 1000)
            err(1, "%s", path);
        close(descriptor);
    }
    end();
}

static int walk(const char *folder, int with_attributes)
{
    int count = 0;
    DIR *entries = opendir(folder);
    if (!entries)
        err(1, "%s", folder);
    for (struct dirent *entry; (entry = readdir(entries));) {
        struct stat status;
        if (entry->d_name[0] == '.')
            continue;
        count++;
        if (with_attributes && fstatat(dirfd(entries), entry->d_name, &status, AT_SYMLINK_NOFOLLOW))
            err(1, "%s/%s", folder, entry->d_name);
        if (entry->d_type == DT_DIR) {
            char below[512];
            snprintf(below, sizeof below, "%s/%s", folder, entry->d_name);
            count += walk(below, with_attributes);
        }
    }
    closedir(entries);
    return count;
}

static void walk_all(const char *step, const char *folder, int with_attributes, int times, int expected)
{
    begin(step, (long)times * expected);
    for (int time = 0; time < times; time++)
        if (walk(folder, with_attributes) != expected)
            errx(1, "%s is not complete", folder);
    end();
}

static void read_large(const char *step)
{
    int descriptor = open("large", O_RDONLY);
    long bytes = 0, count;
    begin(step, 64 << 20 >> 17);
    while ((count = read(descriptor, data, sizeof data)) > 0)
        bytes += count;
    end();
    if (bytes != 64 << 20)
        err(1, "large");
    close(descriptor);
}

static void make_files(void)
{
    begin("create, write, close", NEW);
    for (int number = 0; number < NEW; number++) {
        snprintf(path, sizeof path, "new-%d", number);
        int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
        if (descriptor < 0 || write(descriptor, data, 1000) != 1000 || close(descriptor))
            err(1, "%s", path);
    }
    end();
    begin("unlink", NEW);
    for (int number = 0; number < NEW; number++) {
        snprintf(path, sizeof path, "new-%d", number);
        if (unlink(path))
            err(1, "%s", path);
    }
    end();
}

int main(int count, char **arguments)
{
    struct stat status;
    if (count < 2 || chdir(arguments[1]))
        err(2, "share FOLDER [write]");
    look("stat, new paths", "", 1);
    look("stat, the same 5,000 again", "", 1);
    begin("stat, one path", SAME);
    for (int number = 0; number < SAME; number++)
        if (stat(file("tree", 17, ""), &status))
            err(1, "%s", path);
    end();
    look("stat, missing names", ".h", 0);
    look("stat, the same missing names again", ".h", 0);
    read_all("open, read, close, first");
    read_all("open, read, close, again");
    walk_all("readdir of 1,000 entries, first", "many", 0, 1, 1000);
    walk_all("readdir of 1,000 entries, again", "many", 0, 10, 1000);
    walk_all("find, first", "find", 0, 1, TREE + FOLDERS);
    walk_all("find, again", "find", 0, 1, TREE + FOLDERS);
    walk_all("find with lstat, first", "list", 1, 1, TREE + FOLDERS);
    walk_all("find with lstat, again", "list", 1, 1, TREE + FOLDERS);
    read_large("read 128 KiB, first");
    read_large("read 128 KiB, again");
    if (count > 2)
        make_files();
    return 0;
}
