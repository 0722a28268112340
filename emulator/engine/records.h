/* When records of an exchange arrive: what their leaving (depart.c) and their service (records.c) share. */
#ifndef SUPERPOD_RECORDS_H
#define SUPERPOD_RECORDS_H
#include "ports.h"

typedef struct { i64 at, key; i32 q, slot; } msg_t;
typedef struct { i64 ser[4], latency[4]; } cost_t;

static inline cost_t cost_of(const config_t *k, i64 meta)
{
    cost_t s;
    for (int l = 0; l < 4; l++) {
        s.ser[l] = occupy_ps(meta, k->write_bw[l]);
        s.latency[l] = k->put[l];
    }
    return s;
}

/* When q's record reaches p's ingress, if q's row is one of equal records to all ranks. */
static inline i64 arrival(const core_t *c, const slot_t *s, const cost_t *k, i64 p, i64 q)
{
    u32 v = AT(c, u32, c->paths)[p * c->cfg.n + q];
    return AT(c, i64, s->start)[q] + (v & 1023) * k->ser[CHIP] + (v >> 10 & 1023) * k->ser[NODE]
         + (v >> 20) * k->ser[POD] + k->latency[CLASS(c, p, q)];
}

/* When q's record reaches p's ingress, if q's row says of each when it leaves. me: p's place. */
static inline i64 arrival_lagged(const core_t *c, const slot_t *s, i64 p, i64 me, i64 q)
{
    return AT(c, i64, s->start)[q] + AT(c, sent_t, s->sent)[q * c->cfg.n + me].lag + c->cfg.put[CLASS(c, p, q)];
}

static inline int before(const msg_t *a, const msg_t *b) { return a->at < b->at || (a->at == b->at && a->key < b->key); }

static inline i64 pod_arrival(const core_t *c, const slot_t *s, const cost_t *k, i64 p, i64 q)
{
    return AT(c, i64, s->shift)[q] + (p - 1 + (q > p ? c->cfg.n : 0)) * k->ser[POD] + k->latency[POD];
}

void sp_sort_records(msg_t *a, msg_t *tmp, i64 n);
#endif
