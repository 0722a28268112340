/* Looking in from outside: apply logs under their own robust locks, counters, and who waits for whom. */
#include "entry.h"
#include <errno.h>
#include <string.h>
#include <time.h>

int sp_log_lock(local_t *l, i64 target) /* 0, or ETIMEDOUT */
{
    core_t *c = l->c;
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += c->cfg.wall_ms / 1000 + 1;
    int rc = pthread_mutex_timedlock(&RANK(c, target)->log_lock, &limit);
    if (rc == EOWNERDEAD) return pthread_mutex_consistent(&RANK(c, target)->log_lock);
    return rc;
}

int sp_log_unlock(local_t *l, i64 target) { return pthread_mutex_unlock(&RANK(l->c, target)->log_lock); }

i64 sp_log_count(local_t *l, i64 target)
{
    rank_t *r = RANK(l->c, target);
    return __atomic_load_n(&r->log_head, __ATOMIC_ACQUIRE) - r->log_tail;
}

void sp_log_copy(local_t *l, i64 target, i64 count, log_t *out)
{
    core_t *c = l->c;
    i64 size = c->cfg.log_entries, at = RANK(c, target)->log_tail % size, first = min64(count, size - at);
    const log_t *ring = AT(c, log_t, c->logs) + target * size;
    memcpy(out, ring + at, (size_t)first * sizeof *out);
    memcpy(out + first, ring, (size_t)(count - first) * sizeof *out);
}

void sp_log_advance(local_t *l, i64 target, i64 count)
{
    __atomic_add_fetch(&RANK(l->c, target)->log_tail, count, __ATOMIC_RELEASE);
}

/* out: i64[n][16]: state, wait, a (of a schedule: the step), b, c, since, slot, conditions, any, wakes, skipped, waited, busy[3], vain */
void sp_ranks(local_t *l, i64 *out)
{
    for (i64 p = 0; p < l->c->cfg.n; p++, out += 16) {
        rank_t *r = RANK(l->c, p);
        i64 a = r->wait == W_SCHEDULE ? r->first_step + r->step_at : r->a;
        i64 row[16] = { r->state, r->wait, a, r->b, r->c, r->since, r->slot, r->num_conditions, r->any, r->wakes,
                        r->skipped, r->waited, r->busy[0], r->busy[1], r->busy[2], r->vain };
        memcpy(out, row, sizeof row);
    }
}

void sp_lost(local_t *l, i64 *out) /* out: i64[n], number of the change of membership that found them dead, 0: alive */
{
    for (i64 p = 0; p < l->c->cfg.n; p++) out[p] = RANK(l->c, p)->lost;
}

void sp_bytes_by_class(local_t *l, i64 *out)
{
    for (i64 p = 0; p < l->c->cfg.n; p++, out += 4) memcpy(out, RANK(l->c, p)->bytes, 4 * sizeof *out);
}

void sp_conditions(local_t *l, i64 rank, i64 count, i64 *out)
{
    memcpy(out, AT(l->c, condition_t, l->c->conditions) + rank * l->c->cfg.conditions, (size_t)count * sizeof(condition_t));
}

/* Who of the group that `rank` waits for in the slot has not posted; group: which exchange of it that is (from 1), and
 * its size, 0 for all ranks. */
i64 sp_missing(local_t *l, i64 slot, i64 rank, i32 *out, i64 *group)
{
    core_t *c = l->c;
    group_t g = own_group(c, slot / 2, rank);
    i64 k = 0;
    group[0] = AT(c, i64, c->rounds)[rank * c->cfg.channels + slot / 2];
    group[1] = g.ranks ? g.size : 0;
    for (i64 j = 0; j < g.size; j++) {
        i64 p = RANK_AT(&g, j);
        if (AT(c, i64, SLOT(c, slot)->start)[p] == INF) out[k++] = (i32)p;
    }
    return k;
}

void sp_busy(local_t *l, i64 *out) /* out: i64[n][NUM_PORTS] */
{
    for (i64 p = 0; p < l->c->cfg.n; p++, out += NUM_PORTS) memcpy(out, RANK(l->c, p)->busy, NUM_PORTS * sizeof *out);
}

/* out: hashes of the ports of plane 0, of the calls, then (port, hash) of every other port ever used; returns how many
 * numbers, at most 8 + 3 * (NUM_PORTS - 3) */
i64 sp_hashes(local_t *l, i64 rank, i64 *out)
{
    rank_t *r = RANK(l->c, rank);
    i64 k = 8;
    memcpy(out, r->hash, 6 * sizeof *out);
    memcpy(out + 6, r->calls, sizeof r->calls);
    for (i64 port = 3; port < NUM_PORTS; port++) {
        if (!(r->used >> port & 1)) continue;
        out[k++] = port;
        out[k++] = r->hash[port][0];
        out[k++] = r->hash[port][1];
    }
    return k;
}

/* out: i64[6]: fatal code, its rank, events, entries, initialised, link class of (a, b) */
void sp_facts(core_t *c, i64 a, i64 b, i64 *out)
{
    i64 row[6] = { __atomic_load_n(&c->fatal, __ATOMIC_ACQUIRE), c->fatal_rank, c->events, c->entries, (i64)c->magic,
                   CLASS(c, a, b) };
    memcpy(out, row, sizeof row);
}

i64 sp_version(void) { return SP_VERSION; }

void sp_in_use(local_t *l, i64 *out) /* out: operations, streams kept */
{
    core_t *c = l->c;
    out[0] = c->ops_used;
    out[1] = c->streams_used;
    for (i64 i = c->op_free; i; i = OP(c, i - 1)->next) out[0]--;
    for (i64 i = c->stream_free; i; i = STREAM(c, i - 1)->next) out[1]--;
}

void sp_sizes(i64 *out) /* of what Python has a dtype for: posts, inbox, log, trace records, steps, sends */
{
    i64 sizes[6] = { sizeof(args_t), sizeof(inbox_t), sizeof(log_t), sizeof(record_t), sizeof(step_t), sizeof(send_t) };
    memcpy(out, sizes, sizeof sizes);
}

const char *sp_reason(core_t *c) { return c->reason; }

void *PyInit__core(void) { return 0; } /* some linkers of extension modules insist on the name; never imported */
