/* The undo journal: what a rank killed inside the lock had half changed is put back by the next holder.
 *
 * Built with SP_UNDO (a second library, used when survivors go on), every other file is compiled with the compiler's
 * thread instrumentation, which calls __tsan_write... before each store. The functions of that name here note the old
 * bytes of stores into the shared buffer, in the buffer itself, before they happen. The journal is emptied before the
 * lock is released and between two batches of settled events, where the state is whole. Additions to wake-up words are
 * not noted: a word must never come back to a value somebody sleeps on.
 */
#include "entry.h"
#include <signal.h>
#include <unistd.h>

#ifdef SP_UNDO
#define HOOK __attribute__((no_sanitize("thread")))
#define BARRIER() __atomic_signal_fence(__ATOMIC_SEQ_CST)

typedef struct { u64 where, old; } undo_t; /* where: offset << 4 | bytes */

static __thread core_t *noting __attribute__((tls_model("initial-exec")));
static i64 die_after = -1, keep_all; /* for tests */

HOOK static void note(core_t *c, u64 at, u64 bytes)
{
    i64 k = c->undo_count;
    if (k < 0) return;
#ifdef BREAK_UNDO_SMALL
    if (bytes == 4) return;
#endif
    if (k >= c->undo_size) {
        c->undo_count = -1; /* too much: cannot be undone */
        return;
    }
    undo_t *u = (undo_t *)((char *)c + c->undo) + k;
    u->where = at << 4 | bytes;
    __builtin_memcpy(&u->old, (char *)c + at, bytes);
    BARRIER();
    c->undo_count = k + 1;
    BARRIER();
    if (die_after >= 0 && die_after-- == 0) kill(getpid(), SIGKILL);
}

HOOK static inline void noted(const void *to, u64 bytes)
{
    core_t *c = noting;
    if (!c) return;
    u64 at = (u64)((const char *)to - (const char *)c);
    if (at >= (u64)c->total) return;
    for (; bytes > 8; at += 8, bytes -= 8) note(c, at, 8);
    note(c, at, bytes);
}

HOOK void sp_undo_begin(core_t *c)
{
    if (!c->undo) return;
    c->undo_count = 0;
    BARRIER();
    noting = c;
}

HOOK void sp_undo_commit(core_t *c)
{
    BARRIER();
    if (noting && !keep_all) c->undo_count = 0;
    BARRIER();
}

HOOK void sp_undo_end(core_t *c)
{
    noting = 0;
    BARRIER();
    c->undo_count = 0;
}

/* Puts everything back; 0 if that cannot be done. Dying in here leaves the rest to the next. */
HOOK int sp_undo_roll_back(core_t *c)
{
    noting = 0;
    if (!c->undo || c->undo_count < 0) return 0;
    while (c->undo_count) {
        undo_t *u = (undo_t *)((char *)c + c->undo) + c->undo_count - 1;
        __builtin_memcpy((char *)c + (u->where >> 4), &u->old, u->where & 15);
        BARRIER();
        c->undo_count--;
        BARRIER();
    }
    return 1;
}

/* For tests: be killed at the k-th noted store from now (-1: never); whole: note entries from begin to end. */
HOOK void sp_undo_die(i64 k, i64 whole)
{
    die_after = k;
    keep_all = whole;
}

HOOK void *sp_undo_memcpy(void *to, const void *from, size_t bytes)
{
    if (noting && bytes) noted(to, bytes);
    return __builtin_memcpy(to, from, bytes);
}

HOOK void *sp_undo_memset(void *to, int value, size_t bytes)
{
    if (noting && bytes) noted(to, bytes);
    return __builtin_memset(to, value, bytes);
}

HOOK void __tsan_init(void) {}
HOOK void __tsan_func_entry(void *p) { (void)p; }
HOOK void __tsan_func_exit(void) {}
HOOK void __tsan_vptr_update(void **p, void *v) { (void)p, (void)v; }
HOOK void __tsan_read_range(const void *p, u64 n) { (void)p, (void)n; }
HOOK void __tsan_write_range(const void *p, u64 n) { if (n) noted(p, n); }
#define ACCESS(n)                                                                                                      \
    HOOK void __tsan_read##n(const void *p) { (void)p; }                                                               \
    HOOK void __tsan_unaligned_read##n(const void *p) { (void)p; }                                                     \
    HOOK void __tsan_write##n(const void *p) { noted(p, n); }                                                          \
    HOOK void __tsan_unaligned_write##n(const void *p) { noted(p, n); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
#define ATOMICS(n, type)                                                                                               \
    HOOK type __tsan_atomic##n##_load(const type *p, int order) { (void)order; return __atomic_load_n(p, __ATOMIC_SEQ_CST); } \
    HOOK type __tsan_atomic##n##_fetch_add(type *p, type v, int order) { (void)order; return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); } \
    HOOK void __tsan_atomic##n##_store(type *p, type v, int order)                                                     \
    {                                                                                                                  \
        (void)order;                                                                                                   \
        noted(p, sizeof v);                                                                                            \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                                      \
    }
ATOMICS(32, u32)
ATOMICS(64, u64)
#else
void sp_undo_begin(core_t *c) { (void)c; }
void sp_undo_commit(core_t *c) { (void)c; }
void sp_undo_end(core_t *c) { (void)c; }
int sp_undo_roll_back(core_t *c) { return (void)c, 0; }
void sp_undo_die(i64 k, i64 whole) { (void)k, (void)whole; }
#endif
