/* superpod-rank: what mpirun starts, once per rank.
 *
 * It hands its three standard files, environment, directory and arguments to the fork server of this host, waits for the
 * rank that the server forks, and then ends as the rank ended: with the same exit status or by the same signal.  Signals
 * sent to the stub go to the rank; the stub dies with mpirun, and the rank with the stub.
 *
 * With SUPERPOD_SOCKET set (superpod run) the server is there.  Otherwise the first stub on a host starts one: it binds
 * the socket under a lock, hands it to a detached Python, and every other stub finds it.  launch/stub.py is the same
 * program in Python, used where there was no compiler; launch/wire.py describes the messages. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SITE_PACKAGES            /* relative to the directory of this program; any pip install touches it */
#define SITE_PACKAGES "../lib/python3/site-packages"
#endif
#ifndef BUILD_PYTHON             /* the interpreter that built this program: tried last */
#define BUILD_PYTHON "/usr/bin/python3"
#endif

extern char **environ;

typedef struct { char magic[4]; uint32_t body, arguments, mask; } hello_t;
typedef struct { uint32_t kind; int32_t value; } note_t;
enum { STARTED = 'P', ENDED = 'E', FAILED = 'X', DIRECTORY = 'D', SIGNAL = 'S' };

static char body[1 << 20];
static uint32_t body_len;
static char job_directory[PATH_MAX];
static char socket_path[108], lock_path[128], runtime_dir[128];

static void fail(const char *what) {
    fprintf(stderr, "superpod-rank: %s: %s\n", what, strerror(errno));
    _exit(1);
}

/* ---- what is sent ---- */

static void add(const char *s) {
    size_t n = strlen(s) + 1;
    if (body_len + n > sizeof body) { errno = E2BIG; fail("arguments and environment exceed 1 MB"); }
    memcpy(body + body_len, s, n);
    body_len += n;
}

static void send_all(int c, const void *bytes, size_t n) {
    for (const char *p = bytes; n;) {
        ssize_t k = send(c, p, n, MSG_NOSIGNAL);
        if (k < 0 && errno != EINTR) fail("cannot send to the fork server");
        if (k > 0) { p += k; n -= k; }
    }
}

static void send_hello(int c, int argc, char **argv) {
    char cwd[PATH_MAX];
    if (!getcwd(cwd, sizeof cwd)) fail("current directory");
    mode_t mask = umask(0);
    umask(mask);
    add(cwd);
    for (int i = 1; i < argc; i++) add(argv[i]);
    for (char **e = environ; *e; e++) add(*e);
    hello_t h = {{'S', 'P', 'D', '1'}, body_len, (uint32_t)argc - 1, mask};
    union { char b[CMSG_SPACE(3 * sizeof(int))]; struct cmsghdr h; } u;
    memset(&u, 0, sizeof u);
    struct iovec v = {&h, sizeof h};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = u.b, .msg_controllen = sizeof u.b};
    u.h.cmsg_level = SOL_SOCKET; u.h.cmsg_type = SCM_RIGHTS; u.h.cmsg_len = CMSG_LEN(3 * sizeof(int));
    int files[3] = {0, 1, 2};
    memcpy(CMSG_DATA(&u.h), files, sizeof files);
    while (sendmsg(c, &m, MSG_NOSIGNAL) < 0)
        if (errno != EINTR) fail("cannot send to the fork server");
    send_all(c, body, body_len);
}

/* ---- which fork server ---- */

static uint64_t hash(uint64_t h, const void *p, size_t n) {                                 /* FNV-1a */
    for (const unsigned char *b = p; n--; b++) h = (h ^ *b) * 0x100000001b3ull;
    return h;
}

static int matters(const char *entry) {          /* environment that a server's own start depends on */
    static const char *names[] = {"PYTHON", "LD_LIBRARY_PATH=", "LD_PRELOAD=", "OMP_", "MKL_", "TORCH_", "OPENBLAS_", "LANG=",
                                  "LC_", "SLURM_JOB_ID=", "SLURM_STEP_ID=", "SUPERPOD_PYTHON=", "SUPERPOD_IDLE_S="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(entry, names[i], strlen(names[i]))) return 1;
    return 0;
}

static uint64_t file_hash(uint64_t h, const char *path) {
    struct stat s;
    h = hash(h, path, strlen(path));
    if (stat(path, &s)) return h;
    h = hash(h, &s.st_mtim, sizeof s.st_mtim);
    return hash(h, &s.st_ino, sizeof s.st_ino);
}

static const char *find_python(const char *here, char *out) {
    const char *set = getenv("SUPERPOD_PYTHON");
    if (set) return set;
    static const char *names[] = {"python", "python3"};
    for (int i = 0; i < 2; i++) {
        snprintf(out, PATH_MAX, "%s/%s", here, names[i]);
        if (!access(out, X_OK)) return out;
    }
    return BUILD_PYTHON;
}

static void make_runtime_dir(void) {
    const char *base = getenv("TMPDIR");
    if (!base || !*base || strlen(base) > 48) base = "/tmp";
    snprintf(runtime_dir, sizeof runtime_dir, "%s/superpod-%u", base, getuid());
    if (mkdir(runtime_dir, 0700) && errno != EEXIST) fail(runtime_dir);
    struct stat s;
    if (lstat(runtime_dir, &s)) { if (errno == ENOENT) return; fail(runtime_dir); }
    if (!S_ISDIR(s.st_mode) || s.st_uid != getuid() || (s.st_mode & 077)) { errno = EPERM; fail(runtime_dir); }
}

static const char *choose_server(char *python_buf) {
    char here[PATH_MAX], site[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", here, sizeof here - 1);
    if (n < 0) fail("/proc/self/exe");
    here[n] = 0;
    uint64_t h = file_hash(0xcbf29ce484222325ull, here), sum = 0;
    *strrchr(here, '/') = 0;
    const char *python = find_python(here, python_buf);
    snprintf(site, sizeof site, "%s/" SITE_PACKAGES, here);
    h = file_hash(file_hash(h, python), site);
    for (char **e = environ; *e; e++)            /* a sum, since the order of an environment means nothing */
        if (matters(*e)) sum += hash(0xcbf29ce484222325ull, *e, strlen(*e));
    h = hash(h, &sum, sizeof sum);
    make_runtime_dir();
    snprintf(socket_path, sizeof socket_path, "%s/%016llx.sock", runtime_dir, (unsigned long long)h);
    snprintf(lock_path, sizeof lock_path, "%s/%016llx.lock", runtime_dir, (unsigned long long)h);
    return python;
}

static int try_connect(const char *path) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path) { errno = ENAMETOOLONG; fail(path); }
    strcpy(a.sun_path, path);
    int c = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c < 0) fail("socket");
    while (connect(c, (struct sockaddr *)&a, sizeof a)) {
        if (errno == EINTR || errno == EAGAIN) continue;
        int e = errno; close(c); errno = e;
        return -1;
    }
    struct ucred who; socklen_t l = sizeof who;
    if (getsockopt(c, SOL_SOCKET, SO_PEERCRED, &who, &l) || who.uid != getuid()) { errno = EPERM; fail(path); }
    return c;
}

static int lock_server(int how) {                /* the lock file, locked and still the one at its path; or -1 */
    for (;;) {
        int wait = !(how & LOCK_NB), fd = open(lock_path, O_RDWR | O_CLOEXEC | (wait ? O_CREAT : 0), 0600);
        if (fd < 0 && errno == ENOENT && !wait) return -1;
        if (fd < 0 && errno == ENOENT) { make_runtime_dir(); continue; }
        if (fd < 0) fail(lock_path);
        while (flock(fd, how)) {
            if (errno == EINTR) continue;
            close(fd);
            return -1;
        }
        struct stat a, b;
        if (!fstat(fd, &a) && !stat(lock_path, &b) && a.st_ino == b.st_ino) return fd;
        close(fd);
    }
}

static void start_server(const char *python) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strcpy(a.sun_path, socket_path);
    unlink(socket_path);
    int s = socket(AF_UNIX, SOCK_STREAM, 0);     /* not close-on-exec: the server inherits it */
    if (s < 0 || bind(s, (struct sockaddr *)&a, sizeof a) || chmod(socket_path, 0600) || listen(s, 4096)) fail(socket_path);
    pid_t p = fork();
    if (p < 0) fail("fork");
    if (!p) {
        setsid();
        if (fork()) _exit(0);
        char number[16];
        snprintf(number, sizeof number, "%d", s);
        const char *log = getenv("SUPERPOD_SERVER_LOG");
        int null = open("/dev/null", O_RDWR), err = fcntl(2, F_DUPFD_CLOEXEC, 3);
        int out = log ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : null;
        dup2(null, 0); dup2(out < 0 ? null : out, 1); dup2(out < 0 ? null : out, 2);
        if (chdir("/")) _exit(1);
        execl(python, python, "-P", "-m", "launch.forkserver", "--listen-fd", number, "--path", socket_path, "--lock",
              lock_path, (char *)NULL);
        dprintf(err, "superpod-rank: cannot start %s: %s\n", python, strerror(errno));
        _exit(1);
    }
    close(s);
}

static int reach_server(void) {
    const char *given = getenv("SUPERPOD_SOCKET");
    if (given && *given) {
        int c = try_connect(given);
        if (c < 0) fail(given);
        return c;
    }
    char python_buf[PATH_MAX];
    const char *python = choose_server(python_buf);
    for (int attempt = 0;; attempt++) {
        int c = try_connect(socket_path);
        if (c >= 0) return c;
        if ((errno != ENOENT && errno != ECONNREFUSED) || attempt == 100) fail(socket_path);
        int lock = lock_server(LOCK_EX);
        c = try_connect(socket_path);            /* another stub may have been first */
        if (c < 0) start_server(python);
        close(lock);
        if (c >= 0) return c;
    }
}

/* ---- waiting for the rank ---- */

static int remove_tree(const char *path) {       /* one level deep is all the server makes; 1 if we were the ones */
    DIR *d = opendir(path);
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    return !rmdir(path);
}

static void server_gone(void) {                  /* killed: what it can no longer remove, its last stubs do */
    const char *rank = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    int first = *job_directory ? remove_tree(job_directory) : !rank || !strcmp(rank, "0");
    if (first)                                   /* one of hundreds says so */
        fputs("superpod-rank: the fork server ended before this rank did (SUPERPOD_SERVER_LOG=FILE keeps its messages)\n",
              stderr);
    int lock = *lock_path ? lock_server(LOCK_EX | LOCK_NB) : -1;
    if (lock >= 0) {
        int c = try_connect(socket_path);
        if (c < 0 && errno == ECONNREFUSED) unlink(socket_path);
        if (c < 0) unlink(lock_path);
    }
    if (*lock_path) rmdir(runtime_dir);
    _exit(1);
}

static void end_as(int32_t status) {
    if (status >= 0) _exit(status & 255);
    struct rlimit none = {0, 0};
    sigset_t all;
    setrlimit(RLIMIT_CORE, &none);
    signal(-status, SIG_DFL);
    sigfillset(&all);
    sigprocmask(SIG_UNBLOCK, &all, NULL);
    kill(getpid(), -status);
    _exit(128 - status);
}

static void take(int c, void *to, size_t n) {
    for (char *p = to; n;) {
        ssize_t k = recv(c, p, n, MSG_WAITALL);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) server_gone();
        p += k; n -= k;
    }
}

static void read_note(int c) {
    note_t m;
    take(c, &m, sizeof m);
    if (m.kind == ENDED) end_as(m.value);
    if (m.kind != FAILED && m.kind != DIRECTORY) return;
    if (m.value < 0 || m.value >= (int)sizeof body) server_gone();
    take(c, body, (size_t)m.value);
    body[m.value] = 0;
    if (m.kind == FAILED) { fprintf(stderr, "superpod-rank: %s\n", body); _exit(1); }
    snprintf(job_directory, sizeof job_directory, "%s", body);
}

static const int passed_on[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP, SIGWINCH};

static void wait_for_rank(int c, int signals) {
    struct pollfd p[2] = {{c, POLLIN, 0}, {signals, POLLIN, 0}};
    for (;;) {
        if (poll(p, 2, -1) < 0 && errno != EINTR) fail("poll");
        struct signalfd_siginfo s;
        if (p[1].revents && read(signals, &s, sizeof s) == sizeof s) {
            note_t m = {SIGNAL, (int32_t)s.ssi_signo};
            send(c, &m, sizeof m, MSG_NOSIGNAL);
        }
        if (p[0].revents) read_note(c);
    }
}

int main(int argc, char **argv) {
    if (argc < 2 || !strcmp(argv[1], "-h") || !strcmp(argv[1], "--help")) {
        fputs("usage: mpirun -n N superpod-rank {program.py | -m module} [arguments]\n", argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : 0;
    }
    pid_t parent = getppid();
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent) return 1;           /* it died meanwhile */
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++) sigaddset(&set, passed_on[i]);
    int c = reach_server();                      /* before signals are held: the server must not inherit a mask */
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_CLOEXEC);
    send_hello(c, argc, argv);
    close(0); close(1);                          /* else a reader of the rank's output would wait for us as well */
    wait_for_rank(c, signals);
}
