/* Part d of the accelerated start: one table of segment descriptors for all ranks of a host.
 *
 * For each peer Open MPI's sm transport keeps the descriptor of the peer's segment: DESCRIPTOR bytes, 4,097 of them
 * room for a path. It allocates them in the order of the peers, itself left out, and with part s (segments in one
 * mapping) they hold the same bytes in every rank. Each is a page for each of n^2 pairs: 1.6 MB a rank at 384 ranks.
 * Here they are allocated in one shared table instead, at their peer's place.
 *
 * That order is proven, not believed, place by place: until PROVERS ranks have seen a peer's path opened from the
 * descriptor that the order foretells, ranks keep a descriptor of their own for it. (Place by place, because all ranks
 * may pass here at once, and none would wait for a whole proof.) Everybody writes the same bytes at a place, and what
 * the first rank to leave erases nobody reads again but the detaching ones, whose munmap of nothing board.c answers.
 *
 * calloc and free are in front of the C library's for this alone; all else passes through. */
#define _GNU_SOURCE
#include "descriptors.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { DESCRIPTOR = 4136, PATH_AT = 32, STRIDE = 4160, PROVERS = 2 };
typedef struct { atomic_uint refuted, shared, seen[]; } proof_t; /* seen: how many ranks, for each place */

extern void *__libc_calloc(size_t, size_t);
extern void __libc_free(void *);

static proof_t *proof;
static char *table;
static size_t table_bytes;
static uint32_t n, me, made;
static char *last;                 /* the newest descriptor of our own */
static int in_rank, lies;
static const void *transport;      /* where the library with the sm transport lies */

int descriptors_new(uint32_t ranks, int lie) {
    n = ranks;
    lies = lie;
    table_bytes = (size_t)n * (STRIDE + sizeof(atomic_uint)) + sizeof *proof;
    table = mmap(NULL, table_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED) return table = NULL, -1;
    proof = (proof_t *)(table + (size_t)n * STRIDE);
    return 0;
}

void descriptors_rank(uint32_t rank) {
    Dl_info of;
    void *opal = dlopen("libopen-pal.so.80", RTLD_LAZY | RTLD_NOLOAD);
    void *known = opal ? dlsym(opal, "opal_init") : NULL;
    if (!table || !known || !dladdr(known, &of)) return;
    me = rank;
    transport = of.dli_fbase;
    in_rank = 1;
}

uint32_t descriptors_shared(void) { return proof ? atomic_load(&proof->shared) : 0; }

static uint32_t peer_of(uint32_t index) { return (index < me ? index : index + 1) + (lies ? 1 : 0); }

static void settle(uint32_t foretold, uint32_t segment) {
    if (foretold != segment) atomic_store(&proof->refuted, 1);
    else atomic_fetch_add(&proof->seen[segment], 1);
}

static int proven(uint32_t peer) {
    return peer < n && atomic_load(&proof->seen[peer]) >= PROVERS && !atomic_load(&proof->refuted);
}

void descriptor_opened(const char *path, uint32_t segment) {
    if (!in_rank) return;
    if (path >= table && path < table + (size_t)n * STRIDE) {
        if ((size_t)(path - table) == (size_t)segment * STRIDE + PATH_AT) return;
        fputs("superpod: Open MPI's segments are not attached in the order that was proven;"
              " run with SUPERPOD_ACCELERATE=0\n", stderr);
        abort();
    }
    if (last && path == last + PATH_AT) settle(peer_of(made - 1), segment);
}

static void *descriptor(const void *caller) {
    Dl_info of;
    if (made >= n - 1 || !dladdr(caller, &of) || of.dli_fbase != transport) return NULL;
    uint32_t peer = peer_of(made++);
    if (!proven(peer)) return last = __libc_calloc(1, DESCRIPTOR);
    atomic_fetch_add_explicit(&proof->shared, 1, memory_order_relaxed);
    return table + (size_t)peer * STRIDE;
}

void *calloc(size_t count, size_t size) {
    int asked = size == DESCRIPTOR && count == 1 && in_rank;
    void *p = __builtin_expect(asked, 0) ? descriptor(__builtin_return_address(0)) : NULL;
    return p ? p : __libc_calloc(count, size);
}

void free(void *p) {
    if (__builtin_expect(table && (char *)p >= table && (char *)p < table + table_bytes, 0)) return;
    __libc_free(p);
}
