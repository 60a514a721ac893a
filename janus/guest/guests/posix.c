/* What an ordinary program does with files and waiting: `posix FILE`, which it may write. It says what it got, and what it was
 * refused. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void say(const char *what, int failed) { printf("%s: %s\n", what, failed ? strerror(errno) : "done"); }

static void list(void) {
    DIR *folder = opendir("/");
    if (!folder) {
        return say("opendir", 1);
    }
    for (struct dirent *entry; (entry = readdir(folder));) {
        printf("entry: %s%s\n", entry->d_name, entry->d_type == DT_REG ? "" : "?");
    }
    say("closedir", closedir(folder));
}

static void contents(const char *name) {
    char text[9] = "";
    int fd = open(name, O_RDWR);
    if (fd < 0) {
        return say("open", 1);
    }
    say("pwrite", pwrite(fd, "middle", 6, 2) != 6);
    say("write", write(fd, "in", 2) != 2);
    say("pread", pread(fd, text, 8, 0) != 8);
    printf("text: %s\n", text);
    say("ftruncate", ftruncate(fd, 4));
    printf("size: %lld\n", (long long)lseek(fd, 0, SEEK_END));
    say("fsync", fsync(fd));
    say("fdatasync", fdatasync(fd));
    errno = posix_fadvise(fd, 0, 4, POSIX_FADV_SEQUENTIAL);
    say("fadvise", errno != 0);
    errno = posix_fallocate(fd, 0, 100);
    say("fallocate", errno != 0);
    say("close", close(fd));
    say("pread of input", pread(0, text, 1, 0) < 0);
}

static void refused(const char *name) {
    char text[8];
    say("mkdir", mkdir("folder", 0777));
    say("rmdir", rmdir("folder"));
    say("unlink", unlink(name));
    say("rename", rename(name, "other"));
    say("link", link(name, "other"));
    say("symlink", symlink(name, "other"));
    say("readlink", readlink(name, text, sizeof text) < 0);
    say("create", open("other", O_CREAT | O_WRONLY, 0666) < 0);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void waiting(void) {
    struct pollfd both[2] = {{.fd = 0, .events = POLLIN}, {.fd = 1, .events = POLLOUT}};
    double start = now();
    usleep(20000);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    printf("slept: %s\n", now() - start >= 0.04 ? "long enough" : "too short");
    printf("output: %d\n", poll(both, 2, 0) > 0 && both[1].revents == POLLOUT);
    start = now();
    printf("input: %d", poll(both, 1, 50));
    printf(" %s\n", now() - start >= 0.05 ? "late" : "at once");
}

int main(int argc, char **argv) {
    if (argc != 2) {
        return 2;
    }
    list();
    contents(argv[1]);
    refused(argv[1]);
    waiting();
    return 0;
}
