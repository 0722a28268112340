/* The accelerated start: a library preloaded into the fork server, so that forked ranks find it before PMIx and libc.
 *
 * Open MPI's start costs n^2 look-ups (PMIx_Get, each a hand-over to the PMIx thread and back), n^2 attachments of
 * shared segments, and polling while it waits.  The ranks of one job on one host share a "board", memory mapped before
 * they are forked, and three parts use it (letters as board_new takes them):
 *   g  what a rank publishes with PMIx_Put its peers read from the board (published.c); likewise the keys in `answered`
 *   f  the fences inside MPI_Init sleep until they are released instead of polling every 100 us
 *   s  the segments of the sm transport lie in one mapping, so that attaching a peer is arithmetic
 *   d  (with s) their descriptors are kept once for all ranks, not once for each pair (descriptors.c)
 *   x  (tests only) the board answers wrongly, which the proof must notice
 *   k, l  (tests only) the first rank half-way through writing what it put, or a locality string, is killed
 * Every put is also done for real; every other host, other key and miss goes to the real function.
 *
 * The layouts and key names are those of PMIx 5, so launch/template.py uses this library with the pinned wheel only.
 * Even then each kind of answer is proven first: until PROOFS answers of a kind equalled the real one, callers get the
 * real one; a single difference turns part g off for the whole job. */
#define _GNU_SOURCE
#include "descriptors.h"
#include "published.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* PMIx 5 types, as its public header lays them out */
typedef struct { char nspace[256]; uint32_t rank; } proc_t;
typedef struct {
    uint16_t type;
    union { char *string; uint16_t u16; struct { char *bytes; size_t size; } object; uint64_t pad[7]; } data;
} value_t;
typedef void (*op_cb)(int, void *);
enum { UINT16 = 13 };
#define WILDCARD ((uint32_t)-2)

enum { PROOFS = 16 };
enum kind { PUT, LOCALITY_STRING, LOCAL_RANK, LOCALITY, KINDS };
typedef struct { atomic_uint proofs[KINDS]; atomic_uint refuted, answers; } state_t;

#define SEGMENT (16ul << 20)      /* btl_sm_segment_size; launch/template.py leaves part s out when it is set */
#define FAKE_FD 1000000000        /* never a real descriptor */

static state_t *state;
static uint32_t n, me;
static char job[256], segment_prefix[512];
static char *segments;
static size_t directory_len;
static int get_on, fence_on, lie;
static uint16_t *locality;
static uint32_t *local_rank;

static void *shared(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* ---- called by launch/template.py ---- */

int board_new(uint32_t ranks, const char *nspace, const char *parts, const char *segment_directory) {
    n = ranks;
    strncpy(job, nspace, sizeof job - 1);
    strncpy(segment_prefix, segment_directory, sizeof segment_prefix - 16);
    strcat(segment_prefix, "/sm_segment.");
    directory_len = strlen(segment_prefix);
    get_on = !!strchr(parts, 'g');
    fence_on = !!strchr(parts, 'f');
    lie = !!strchr(parts, 'x');
    if (!(state = shared(sizeof *state)) || board_rows_new(n, parts)) return -1;
    if (!strchr(parts, 's')) return 0;
    if (!(segments = shared(n * SEGMENT))) return -1;
    return strchr(parts, 'd') ? descriptors_new(n, lie) : 0;
}
void board_rank(uint32_t rank) {                                                          /* in the rank, after fork */
    me = rank;
    locality = calloc(n, sizeof *locality);
    board_rows_rank(rank);
    descriptors_rank(rank);
}
int board_refuted(void) { return state && atomic_load(&state->refuted); }
uint32_t board_answers(void) { return state ? atomic_load(&state->answers) : 0; }

/* ---- part g: the board ---- */

static void *real(const char *name) {          /* RTLD_NEXT would miss it: mpi4py loads its libraries privately */
    static void *h;
    if (!h) h = dlopen("libpmix.so.2", RTLD_LAZY | RTLD_NOLOAD);
    return h ? dlsym(h, name) : NULL;
}
#define REAL(name) static __typeof__(name) *f; if (!f) f = real(#name); if (!f) return -1
static int ours(const proc_t *p) {
    return get_on && locality && p && p->rank < n && !atomic_load_explicit(&state->refuted, memory_order_relaxed) &&
           !strcmp(p->nspace, job);
}

static value_t *u16_value(uint16_t x) {
    value_t *v = calloc(1, sizeof *v);
    if (v) { v->type = UINT16; v->data.u16 = x; }
    return v;
}
static value_t *board_value(const char *e) {
    uint16_t type, size;
    memcpy(&type, e + KEY, 2);
    memcpy(&size, e + KEY + 2, 2);
    value_t *v = calloc(1, sizeof *v);
    char *copy = malloc(size + 1u);
    if (!v || !copy) { free(v); free(copy); return NULL; }
    memcpy(copy, e + KEY + 4, size);
    copy[size] = 0;
    v->type = type;
    if (type == BYTES) { v->data.object.bytes = copy; v->data.object.size = size; }
    else if (size) v->data.string = copy;
    else free(copy);                            /* an unbound rank's locality string is NULL */
    return v;
}
static int same(const value_t *a, const value_t *b) {
    if (!a || !b || a->type != b->type) return 0;
    if (a->type == UINT16) return a->data.u16 == b->data.u16;
    if (a->type == STRING)
        return a->data.string && b->data.string ? !strcmp(a->data.string, b->data.string) : a->data.string == b->data.string;
    return a->data.object.size == b->data.object.size &&
           !memcmp(a->data.object.bytes, b->data.object.bytes, a->data.object.size);
}
static void drop(value_t *v) {
    if (v && v->type == STRING) free(v->data.string);
    if (v && v->type == BYTES) free(v->data.object.bytes);
    free(v);
}
static int proven(enum kind k) { return atomic_load_explicit(&state->proofs[k], memory_order_relaxed) >= PROOFS; }

static uint32_t peer_local_rank(const proc_t *p, int (*f)(const proc_t *, const char *, const void *, size_t, value_t **)) {
    if (!local_rank) {
        proc_t all = *p;
        value_t *v = NULL;
        all.rank = WILDCARD;
        if (f(&all, "pmix.lpeers", NULL, 0, &v) || !v || v->type != STRING || !v->data.string) return UINT32_MAX;
        if (!(local_rank = malloc(n * sizeof *local_rank))) return UINT32_MAX;
        memset(local_rank, 0xff, n * sizeof *local_rank);
        uint32_t i = 0;
        for (char *s = v->data.string; s; s = strchr(s, ',')) {
            s += *s == ',';
            uint32_t r = strtoul(s, NULL, 10);
            if (r < n) local_rank[r] = i++;
        }
        drop(v);
    }
    return local_rank[p->rank];
}

static value_t *answered(const proc_t *p, const char *key, enum kind *k,
                         int (*f)(const proc_t *, const char *, const void *, size_t, value_t **)) {
    if (!strcmp(key, "pmix.loc")) { *k = LOCALITY; return locality[p->rank] ? u16_value(locality[p->rank]) : NULL; }
    if (!strcmp(key, "pmix.lrank")) {
        uint32_t r = peer_local_rank(p, f);
        *k = LOCAL_RANK;
        return r != UINT32_MAX ? u16_value((uint16_t)r) : NULL;
    }
    *k = strcmp(key, "pmix.locstr") ? PUT : LOCALITY_STRING;
    const char *e = *k == LOCALITY_STRING ? board_locality(p->rank) : p->rank == me ? NULL : board_published(p->rank, key);
    return e ? board_value(e) : NULL;
}

int PMIx_Put(uint8_t scope, const char *key, value_t *v) {
    REAL(PMIx_Put);
    if (get_on && locality && v && v->type == BYTES) board_publish(key, v->data.object.bytes, v->data.object.size);
    return f(scope, key, v);
}
int PMIx_Store_internal(const proc_t *p, const char *key, value_t *v) {      /* private to the caller */
    REAL(PMIx_Store_internal);
    if (ours(p) && v->type == UINT16 && v->data.u16 && !strcmp(key, "pmix.loc")) {
        locality[p->rank] = v->data.u16;
        if (proven(LOCALITY)) return 0;
    }
    return f(p, key, v);
}
int PMIx_Get(const proc_t *p, const char *key, const void *info, size_t ninfo, value_t **out) {
    REAL(PMIx_Get);
    if (!out || !key || !ours(p)) return f(p, key, info, ninfo, out);
    enum kind k;
    value_t *mine = answered(p, key, &k, f);
    if (mine && lie && mine->type == BYTES && mine->data.object.size) mine->data.object.bytes[0] ^= 1;
    if (mine && proven(k)) { atomic_fetch_add(&state->answers, 1); *out = mine; return 0; }
    int rc = f(p, key, info, ninfo, out);
    if (!rc && mine) {
        if (same(mine, *out)) atomic_fetch_add(&state->proofs[k], 1); else atomic_store(&state->refuted, 1);
    }
    if (!rc && !mine && k == LOCALITY_STRING && (*out)->type == STRING) board_publish_locality(p->rank, key, (*out)->data.string);
    drop(mine);
    return rc;
}

/* ---- part f: fences ---- */

typedef struct { pthread_mutex_t m; pthread_cond_t c; int done, status; } wait_t;
static void released(int status, void *p) {
    wait_t *w = p;
    pthread_mutex_lock(&w->m);
    w->done = 1;
    w->status = status;
    pthread_cond_signal(&w->c);
    pthread_mutex_unlock(&w->m);
}
static int mpi_started(void) {        /* a fence in MPI_Finalize must go on polling: a peer may still need our progress */
    static int (*f)(int *);
    int started = 1;
    if (!f) { void *h = dlopen("libmpi.so.40", RTLD_LAZY | RTLD_NOLOAD); f = h ? dlsym(h, "MPI_Initialized") : NULL; }
    if (f) f(&started);
    return started;
}
int PMIx_Fence_nb(const proc_t *p, size_t np, const void *info, size_t ninfo, op_cb cb, void *data) {
    REAL(PMIx_Fence_nb);
    if (!fence_on || !locality || mpi_started()) return f(p, np, info, ninfo, cb, data);
    wait_t w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
    int rc = f(p, np, info, ninfo, released, &w);
    if (rc) return rc;
    pthread_mutex_lock(&w.m);
    while (!w.done) pthread_cond_wait(&w.c, &w.m);
    pthread_mutex_unlock(&w.m);
    if (cb) cb(w.status, data);
    return 0;
}

/* ---- part s: segments ---- */

static long segment_of(const char *path, int flags) {
    if (!segments || !locality || !path || strncmp(path, segment_prefix, directory_len)) return -1;
    char *dot = strrchr(path, '.'), *end;
    long r = strtol(dot + 1, &end, 10);
    if (*end || r < 0 || r >= (long)n) return -1;
    size_t len = (size_t)(dot - path);          /* our own segment, made first, tells the job's prefix */
    if (flags & O_CREAT && segment_prefix[directory_len] == 0 && len < sizeof segment_prefix) {
        memcpy(segment_prefix, path, len);
        segment_prefix[len] = 0;
    }
    return !strncmp(path, segment_prefix, strlen(segment_prefix)) && segment_prefix[len] == 0 ? r : -1;
}
#define OPEN(name)                                                                                                       \
    int name(const char *path, int flags, ...) {                                                                         \
        va_list a;                                                                                                       \
        va_start(a, flags);                                                                                              \
        int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(a, int) : 0;                                                   \
        va_end(a);                                                                                                       \
        long r = segment_of(path, flags);                                                                                \
        if (r >= 0 && !(flags & O_CREAT)) descriptor_opened(path, (uint32_t)r);                                          \
        if (r >= 0) return FAKE_FD + (int)r;                                                                             \
        static int (*f)(const char *, int, ...);                                                                         \
        if (!f) f = dlsym(RTLD_NEXT, #name);                                                                             \
        return f(path, flags, mode);                                                                                     \
    }
OPEN(open)
OPEN(open64)
int ftruncate(int fd, off_t size) {
    if (fd < FAKE_FD) return (int)syscall(SYS_ftruncate, fd, size);
    if (size <= (off_t)SEGMENT) return 0;
    errno = EFBIG;
    return -1;
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }
int close(int fd) {
    static int (*f)(int);
    if (fd >= FAKE_FD) return 0;
    if (!f) f = dlsym(RTLD_NEXT, "close");
    return f(fd);
}
void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset) {
    if (fd >= FAKE_FD && size <= SEGMENT) return segments + (size_t)(fd - FAKE_FD) * SEGMENT;
    return (void *)syscall(SYS_mmap, at, size, prot, flags, fd, offset);
}
void *mmap64(void *at, size_t size, int prot, int flags, int fd, off64_t offset) {
    return mmap(at, size, prot, flags, fd, offset);
}
int munmap(void *at, size_t size) {
    if (segments && at == MAP_FAILED) return 0;        /* a shared descriptor which another rank has detached */
    if (segments && (char *)at >= segments && (char *)at < segments + n * SEGMENT) return 0;
    return (int)syscall(SYS_munmap, at, size);
}
int unlink(const char *path) {
    return segment_of(path, 0) >= 0 ? 0 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
