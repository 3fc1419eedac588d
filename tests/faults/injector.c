/* A fault at the k-th call that changes a file below a folder, counted over all processes that load this library.
 *
 * Loaded by LD_PRELOAD into issueflow, its runner, its agent, git and sh, and told what to do by the environment:
 *
 *   FAULT_FILE   a file of sizeof(struct shared) zero bytes, mapped by all: counter, what was hit, who is there
 *   FAULT_ROOT   only calls on paths below it count, so that neither .pyc files nor /tmp do
 *   FAULT_ROLES  whose calls count, and who dies: any of c (the command and its git), r (the runner), a (the agent)
 *   FAULT_OPS    which calls count, comma-separated: open+ (makes or empties a file), open (for writing otherwise),
 *                write, rename, link, unlink, mkdir, rmdir, symlink, truncate, fsync, chmod
 *   FAULT_AT     k; 0 only counts
 *   FAULT_DO     kill | torn (half of a write gets through) | errno:N (once) | errno:N:on (from then on)
 *   FAULT_LOG    where each counted call is logged: number, pid, role, call, path, second path
 *
 * A kill spares nobody: once it has happened, every process of the scope dies at its next call here or at its start,
 * so that the moment is one moment for all, as when a machine stops.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST_PIDS 16384

struct shared {
    atomic_long count;
    atomic_int fired, off, used, unused;
    char hit[1000];
    struct { int pid, role; } who[MOST_PIDS];
};

static struct shared *shared;
static const char *root, *roles, *ops, *doing, *file;
static size_t root_length;
static long at;
static char role = 'c';
static int log_handle = -1, error_number, goes_on, kills, torn;

static size_t slurp(const char *path, char *buffer, size_t size) {
    int handle = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    size_t got = 0;
    ssize_t n;
    if (handle < 0) return 0;
    while (got < size && (n = syscall(SYS_read, handle, buffer + got, size - got)) > 0) got += n;
    syscall(SYS_close, handle);
    return got;
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static int is_ours(int pid) {
    static char environment[1 << 17];
    char path[64], wanted[PATH_MAX + 16];
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    snprintf(wanted, sizeof wanted, "FAULT_FILE=%s", file);
    size_t got = slurp(path, environment, sizeof environment);
    return got && memmem(environment, got, wanted, strlen(wanted) + 1) != NULL;
}

static void kill_all(void) {
    int used = atomic_load(&shared->used);
    for (int i = 0; i < used && i < MOST_PIDS; i++) {
        int pid = shared->who[i].pid;
        if (pid != getpid() && strchr(roles, shared->who[i].role) && is_ours(pid)) syscall(SYS_kill, pid, SIGKILL);
    }
    die();
}

static int is_dead(void) {
    return shared && kills && atomic_load(&shared->fired) && !atomic_load(&shared->off) && strchr(roles, role);
}

__attribute__((constructor)) static void begin(void) {
    file = getenv("FAULT_FILE");
    root = getenv("FAULT_ROOT");
    if (!file || !root) return;
    roles = getenv("FAULT_ROLES") ? getenv("FAULT_ROLES") : "cra";
    ops = getenv("FAULT_OPS") ? getenv("FAULT_OPS") : "";
    doing = getenv("FAULT_DO") ? getenv("FAULT_DO") : "kill";
    at = getenv("FAULT_AT") ? atol(getenv("FAULT_AT")) : 0;
    root_length = strlen(root);
    torn = !strcmp(doing, "torn");
    kills = torn || !strcmp(doing, "kill");
    if (!strncmp(doing, "errno:", 6)) {
        error_number = atoi(doing + 6);
        goes_on = strstr(doing, ":on") != NULL;
    }
    int handle = syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC);
    if (handle < 0) return;
    void *map = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    syscall(SYS_close, handle);
    if (map == MAP_FAILED) return;
    shared = map;
    if (getenv("ISSUEFLOW_RUN")) role = 'a';
    else {
        static char words[4096];
        size_t got = slurp("/proc/self/cmdline", words, sizeof words);
        if (memmem(words, got, "hosts/runner.py", 15)) role = 'r';
    }
    int slot = atomic_fetch_add(&shared->used, 1);
    if (slot < MOST_PIDS) {
        shared->who[slot].role = role;
        shared->who[slot].pid = getpid();
    }
    if (getenv("FAULT_LOG"))
        log_handle = syscall(SYS_openat, AT_FDCWD, getenv("FAULT_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (is_dead()) die();
}

/* The whole path of what a call names; 0 when it cannot be told. */
static int whole(int folder, const char *path, char *out) {
    char link[64];
    ssize_t n;
    if (path && path[0] == '/') return snprintf(out, PATH_MAX, "%s", path) < PATH_MAX;
    if (folder == AT_FDCWD) {
        n = syscall(SYS_getcwd, out, PATH_MAX);
        if (n <= 0) return 0;
        n--;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        n = syscall(SYS_readlinkat, AT_FDCWD, link, out, PATH_MAX - 1);
        if (n <= 0) return 0;
        out[n] = 0;
    }
    if (path) snprintf(out + n, PATH_MAX - n, "/%s", path);
    return 1;
}

static int is_below(const char *path) {
    return !strncmp(path, root, root_length) && (path[root_length] == '/' || path[root_length] == 0);
}

static int counts(const char *op) {
    const char *found = ops;
    size_t length = strlen(op);
    while ((found = strstr(found, op))) {
        if ((found == ops || found[-1] == ',') && (found[length] == ',' || !found[length])) return 1;
        found += length;
    }
    return 0;
}

/* What the call shall do: 0 go on, above 0 fail with this errno, -1 write half and die. */
static int fault(const char *op, int folder, const char *path, int folder2, const char *path2) {
    char one[PATH_MAX], two[PATH_MAX] = "", line[2 * PATH_MAX + 64];
    if (!shared) return 0;
    int before = errno;
    if (is_dead()) die();
    if (atomic_load(&shared->off) || !strchr(roles, role) || !counts(op) || !whole(folder, path, one) ||
        (path2 && !whole(folder2, path2, two)) || !(is_below(one) || (path2 && is_below(two)))) {
        errno = before;
        return 0;
    }
    long n = atomic_fetch_add(&shared->count, 1) + 1;
    if (log_handle >= 0) {
        int length = snprintf(line, sizeof line, "%ld\t%d\t%c\t%s\t%s\t%s\n", n, getpid(), role, op, one, two);
        syscall(SYS_write, log_handle, line, length);
    }
    errno = before;
    if (!at || n < at || (n > at && !goes_on)) return 0;
    if (n == at) {
        snprintf(shared->hit, sizeof shared->hit, "%c %s %.480s %.480s", role, op, one, two);
        atomic_store(&shared->fired, 1);
    }
    if (!kills) return error_number;
    if (torn && !strcmp(op, "write")) return -1;
    kill_all();
    return 0;
}

static int fault_fd(const char *op, int fd) {
    if (!shared) return 0;
    if (!strcmp(op, "write")) { /* a pipe or a terminal is nobody's state */
        struct stat state;
        int before = errno;
        int regular = fstat(fd, &state) == 0 && S_ISREG(state.st_mode);
        errno = before;
        if (!regular) {
            if (is_dead()) die();
            return 0;
        }
    }
    return fault(op, fd, NULL, 0, NULL);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL_IF(check) \
    do { \
        int wrong_ = (check); \
        if (wrong_ > 0) { \
            errno = wrong_; \
            return -1; \
        } \
    } while (0)

/* ── opening ── */

static const char *kind_of_open(int folder, const char *path, int flags) {
    if (flags & O_TRUNC) return "open+";
    if ((flags & O_CREAT) && syscall(SYS_faccessat, folder, path, F_OK) != 0) return "open+";
    if ((flags & O_ACCMODE) == O_WRONLY || (flags & O_CREAT)) return "open";
    return NULL;
}

static int before_open(int folder, const char *path, int flags) {
    if (!shared || (flags & O_TMPFILE) == O_TMPFILE) return 0;
    int before = errno;
    const char *op = kind_of_open(folder, path, flags);
    errno = before;
    if (op) return fault(op, folder, path, 0, NULL);
    if (is_dead()) die();
    return 0;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }

int open(const char *path, int flags, ...) {
    MODE(flags)
    FAIL_IF(before_open(AT_FDCWD, path, flags));
    return REAL(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags)
    FAIL_IF(before_open(AT_FDCWD, path, flags));
    return REAL(open64)(path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE(flags)
    FAIL_IF(before_open(folder, path, flags));
    return REAL(openat)(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags)
    FAIL_IF(before_open(folder, path, flags));
    return REAL(openat64)(folder, path, flags, mode);
}
/* What fortified programs call when there is no mode. */
int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open64(path, flags); }
int __openat_2(int folder, const char *path, int flags) { return openat(folder, path, flags); }
int __openat64_2(int folder, const char *path, int flags) { return openat64(folder, path, flags); }
int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

static int before_fopen(const char *path, const char *how) {
    int flags = how[0] == 'w' ? O_WRONLY | O_CREAT | O_TRUNC : how[0] == 'a' ? O_WRONLY | O_CREAT : 0;
    return flags ? before_open(AT_FDCWD, path, flags) : 0;
}
FILE *fopen(const char *path, const char *how) {
    int wrong = before_fopen(path, how);
    if (wrong > 0) return errno = wrong, NULL;
    return REAL(fopen)(path, how);
}
FILE *fopen64(const char *path, const char *how) {
    int wrong = before_fopen(path, how);
    if (wrong > 0) return errno = wrong, NULL;
    return REAL(fopen64)(path, how);
}

/* ── writing ── */

#define WRITING(name, size, half, ...) \
    int wrong = fault_fd("write", fd); \
    if (wrong < 0) { \
        if ((size) > 1) half; \
        kill_all(); \
    } \
    if (wrong > 0) return errno = wrong, -1; \
    return REAL(name)(__VA_ARGS__);

ssize_t write(int fd, const void *data, size_t size) {
    WRITING(write, size, syscall(SYS_write, fd, data, size / 2), fd, data, size)
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t place) {
    WRITING(pwrite, size, syscall(SYS_pwrite64, fd, data, size / 2, place), fd, data, size, place)
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t place) {
    WRITING(pwrite64, size, syscall(SYS_pwrite64, fd, data, size / 2, place), fd, data, size, place)
}
ssize_t writev(int fd, const struct iovec *parts, int number) {
    WRITING(writev, parts[0].iov_len, syscall(SYS_write, fd, parts[0].iov_base, parts[0].iov_len / 2), fd, parts, number)
}
ssize_t sendfile(int fd, int from, off_t *place, size_t size) {
    WRITING(sendfile, size, (void)0, fd, from, place, size)
}
ssize_t sendfile64(int fd, int from, off64_t *place, size_t size) {
    WRITING(sendfile64, size, (void)0, fd, from, place, size)
}
ssize_t copy_file_range(int from, off64_t *a, int fd, off64_t *b, size_t size, unsigned flags) {
    WRITING(copy_file_range, size, (void)0, from, a, fd, b, size, flags)
}

/* ── everything else ── */

#define ON_FD(name, op, ...) FAIL_IF(fault_fd(op, fd)); return REAL(name)(__VA_ARGS__);
#define ON_PATH(name, op, folder, path, ...) \
    FAIL_IF(fault(op, folder, path, 0, NULL)); return REAL(name)(__VA_ARGS__);
#define ON_TWO(name, op, f1, p1, f2, p2, ...) FAIL_IF(fault(op, f1, p1, f2, p2)); return REAL(name)(__VA_ARGS__);

int ftruncate(int fd, off_t size) { ON_FD(ftruncate, "truncate", fd, size) }
int ftruncate64(int fd, off64_t size) { ON_FD(ftruncate64, "truncate", fd, size) }
int fsync(int fd) { ON_FD(fsync, "fsync", fd) }
int fdatasync(int fd) { ON_FD(fdatasync, "fsync", fd) }
int fchmod(int fd, mode_t mode) { ON_FD(fchmod, "chmod", fd, mode) }

int truncate(const char *path, off_t size) { ON_PATH(truncate, "truncate", AT_FDCWD, path, path, size) }
int truncate64(const char *path, off64_t size) { ON_PATH(truncate64, "truncate", AT_FDCWD, path, path, size) }
int unlink(const char *path) { ON_PATH(unlink, "unlink", AT_FDCWD, path, path) }
int unlinkat(int folder, const char *path, int flags) {
    ON_PATH(unlinkat, flags & AT_REMOVEDIR ? "rmdir" : "unlink", folder, path, folder, path, flags)
}
int rmdir(const char *path) { ON_PATH(rmdir, "rmdir", AT_FDCWD, path, path) }
int mkdir(const char *path, mode_t mode) { ON_PATH(mkdir, "mkdir", AT_FDCWD, path, path, mode) }
int mkdirat(int folder, const char *path, mode_t mode) { ON_PATH(mkdirat, "mkdir", folder, path, folder, path, mode) }
int chmod(const char *path, mode_t mode) { ON_PATH(chmod, "chmod", AT_FDCWD, path, path, mode) }
int fchmodat(int folder, const char *path, mode_t mode, int flags) {
    ON_PATH(fchmodat, "chmod", folder, path, folder, path, mode, flags)
}
int symlink(const char *target, const char *path) { ON_PATH(symlink, "symlink", AT_FDCWD, path, target, path) }
int symlinkat(const char *target, int folder, const char *path) {
    ON_PATH(symlinkat, "symlink", folder, path, target, folder, path)
}
int rename(const char *a, const char *b) { ON_TWO(rename, "rename", AT_FDCWD, a, AT_FDCWD, b, a, b) }
int renameat(int f, const char *a, int g, const char *b) { ON_TWO(renameat, "rename", f, a, g, b, f, a, g, b) }
int renameat2(int f, const char *a, int g, const char *b, unsigned flags) {
    ON_TWO(renameat2, "rename", f, a, g, b, f, a, g, b, flags)
}
int link(const char *a, const char *b) { ON_TWO(link, "link", AT_FDCWD, a, AT_FDCWD, b, a, b) }
int linkat(int f, const char *a, int g, const char *b, int flags) {
    ON_TWO(linkat, "link", f, a, g, b, f, a, g, b, flags)
}
