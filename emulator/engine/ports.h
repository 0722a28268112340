/* Cost and ports: how long bytes occupy a port, and the record of every reservation (digest, trace). */
#ifndef SUPERPOD_PORTS_H
#define SUPERPOD_PORTS_H
#include "layout.h"

static inline i64 occupy_ps(i64 bytes, i64 bytes_per_s) /* ceil(bytes * 10^12 / bytes_per_s), without overflow */
{
    if (bytes <= 18000000) return (i64)(((u64)bytes * 1000000000000ull + (u64)bytes_per_s - 1) / (u64)bytes_per_s);
    return (i64)(((unsigned __int128)bytes * 1000000000000ull + (u64)bytes_per_s - 1) / (u64)bytes_per_s);
}

static inline u64 mix(u64 z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Two running polynomial hashes modulo 2^64 of mixed records; NumPy can compute the same for a block at once. */
static inline void fold(i64 h[2], i64 a, i64 b, i64 c, i64 d, i64 e, i64 f)
{
    u64 v = (u64)a * 0x9e3779b97f4a7c15ull + (u64)b * 0xc2b2ae3d27d4eb4full + (u64)c * 0x165667b19e3779f9ull
          + (u64)d * 0xd6e8feb86659fd93ull + (u64)e * 0xa0761d6478bd642full + (u64)f * 0xe7037ed1a0b428dbull;
    h[0] = (i64)((u64)h[0] * 0x5851f42d4c957f2dull + mix(v));
    h[1] = (i64)((u64)h[1] * 0x2545f4914f6cdd1dull + mix(v + 0x9e3779b97f4a7c15ull));
}

static inline void record(ctx_t *x, i64 p, i64 port, i64 kind, i64 peer, i64 t, i64 key, i64 start, i64 end, i64 bytes)
{
    core_t *c = x->c;
    rank_t *r = RANK(c, p);
    fold(r->hash[port], t, key, start, end, bytes, kind + 8 * (peer + 1));
    r->busy[port] += end - start;
    r->used |= (i64)1 << port;
    if (!c->cfg.trace_records) return;
    if (c->trace_head - c->trace_tail == c->cfg.trace_records) {
        if (x->trace_fd >= 0) sp_flush_trace(c, x->trace_fd);
        else { sp_fail(c, FATAL_TRACE, p); return; }
    }
    AT(c, record_t, c->trace)[c->trace_head++ % c->cfg.trace_records] =
        (record_t){ t, key, start, end, bytes, (i32)p, (i32)peer, (i32)port, (i32)kind };
}

static inline i64 kind_of(const op_t *o) /* of a reservation */
{
    return o->a.kind == K_SEND ? KIND_SEND : o->a.kind == K_WORD ? KIND_WORD : o->a.kind == K_GET ? KIND_GET : KIND_PUT;
}

/* Serve `occupy` ps at a port in order of arrival; returns the start. */
static inline i64 serve(rank_t *r, i64 port, i64 t, i64 occupy)
{
    i64 start = max64(t, r->free[port]);
    r->free[port] = start + occupy;
    return start;
}
#endif
