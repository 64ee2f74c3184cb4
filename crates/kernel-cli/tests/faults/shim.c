// Makes the C library fail as broken file systems do, for the tests of this folder.
//
// FAULT names what fails: `full` (writes to files below CACHE after ROOM bytes), `no-links` (no
// symbolic links), `no-locks` (no file locks), `read-only` (nothing below CACHE can be changed).
// Several are separated by blanks.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int faulty(const char *name) {
    const char *fault = getenv("FAULT");
    return fault && strstr(fault, name);
}

static int in_cache(const char *path) {
    const char *cache = getenv("CACHE");
    return cache && strncmp(path, cache, strlen(cache)) == 0;
}

static int refuse(int error) {
    errno = error;
    return -1;
}

int flock(int fd, int operation) {
    int (*real)(int, int) = dlsym(RTLD_NEXT, "flock");
    return faulty("no-locks") ? refuse(ENOLCK) : real(fd, operation);
}

int symlink(const char *target, const char *path) {
    int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "symlink");
    if (faulty("no-links")) return refuse(EPERM);
    return faulty("read-only") && in_cache(path) ? refuse(EROFS) : real(target, path);
}

int mkdir(const char *path, mode_t mode) {
    int (*real)(const char *, mode_t) = dlsym(RTLD_NEXT, "mkdir");
    struct stat found;
    if (faulty("read-only") && in_cache(path)) return refuse(stat(path, &found) ? EROFS : EEXIST);
    return real(path, mode);
}

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    return faulty("read-only") && in_cache(to) ? refuse(EROFS) : real(from, to);
}

int unlink(const char *path) {
    int (*real)(const char *) = dlsym(RTLD_NEXT, "unlink");
    return faulty("read-only") && in_cache(path) ? refuse(EROFS) : real(path);
}

int open64(const char *path, int flags, ...) {
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open64");
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    if (faulty("read-only") && in_cache(path) && (flags & (O_WRONLY | O_RDWR | O_CREAT)))
        return refuse(EROFS);
    return real(path, flags, mode);
}

ssize_t write(int fd, const void *bytes, size_t count) {
    static size_t written;
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    char link[64], path[4096];
    if (faulty("full")) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path - 1);
        if (length > 0) {
            path[length] = 0;
            size_t room = strtoul(getenv("ROOM"), NULL, 10);
            if (in_cache(path)) {
                if (written + count > room) return refuse(ENOSPC);
                written += count;
            }
        }
    }
    return real(fd, bytes, count);
}
