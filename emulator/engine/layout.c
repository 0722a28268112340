/* Sizes and the first state of the shared buffer. */
#include "heap.h"
#include <string.h>

typedef struct { i64 at; } plan_t;
static i64 place(plan_t *p, i64 bytes)
{
    i64 at = p->at;
    p->at = (at + bytes + 63) & ~(i64)63;
    return at;
}

static void plan_slots(core_t *c, plan_t *p, slot_t *s)
{
    i64 n = c->cfg.n, *by_rank[] = { &s->start, &s->key, &s->meta, &s->row_bytes, &s->tag, &s->has_rows, &s->self,
                                     &s->low, &s->meta_end, &s->done_count, &s->records, &s->shift, &s->order };
    for (unsigned i = 0; i < sizeof by_rank / sizeof *by_rank; i++) *by_rank[i] = place(p, 8 * n);
    s->rounds = place(p, n * (i64)sizeof(round_t));
    s->leader = place(p, 4 * n);
    s->place = place(p, 4 * n);
    s->lagged = place(p, n);
    s->counts = place(p, 4 * n * n);
    s->offsets = place(p, 4 * n * n);
    s->received = place(p, 4 * n * n);
    s->done = place(p, n * n);
    s->sent = place(p, n * n * (i64)sizeof(sent_t));
}

static void plan(core_t *c, slot_t *slots)
{
    config_t *k = &c->cfg;
    plan_t p = { (sizeof(core_t) + 63) & ~(i64)63 };
    i64 n = k->n;
    for (c->half = 1; c->half < n; c->half *= 2) {}
    c->ranks = place(&p, n * (i64)sizeof(rank_t));
    c->bounds = place(&p, 2 * c->half * 8);
    c->winners = place(&p, 2 * c->half * 4);
    c->head_t = place(&p, c->half * 8);
    c->head_key = place(&p, c->half * 8);
    c->classes = place(&p, n * n);
    c->paths = place(&p, n * n * 4);
    c->words = place(&p, n * (k->words + 1) * 8);
    c->conditions = place(&p, n * k->conditions * (i64)sizeof(condition_t));
    c->chains = place(&p, n * k->chain_steps * (i64)sizeof(chain_t));
    c->rounds = place(&p, n * k->channels * 8);
    c->logs = place(&p, n * k->log_entries * (i64)sizeof(log_t));
    c->inboxes = place(&p, n * k->inbox_entries * (i64)sizeof(inbox_t));
    c->slots = place(&p, 2 * k->channels * (i64)sizeof(slot_t));
    for (i64 s = 0; s < 2 * k->channels; s++) {
        slot_t dummy;
        plan_slots(c, &p, slots ? slots + s : &dummy);
    }
    c->members = place(&p, k->channels * n * (i64)sizeof(member_t));
    c->lists = place(&p, k->channels * n * n * 4);
    c->list_sizes = place(&p, k->channels * n * 4);
    c->list_checks = place(&p, k->channels * n * 8);
    c->grouped = place(&p, k->channels * 4);
    c->num_ops = max64(65536, 512 * n);
    c->ops = place(&p, c->num_ops * (i64)sizeof(op_t));
    c->streams = place(&p, c->num_ops * (i64)sizeof(stream_t));
    for (c->stream_mask = 1023; c->stream_mask < c->num_ops / 4; c->stream_mask = 2 * c->stream_mask + 1) {}
    c->stream_table = place(&p, (c->stream_mask + 1) * 4);
    c->trace = place(&p, k->trace_records * (i64)sizeof(record_t));
    c->programs = place(&p, n * k->schedule_bytes);
    c->walls = place(&p, n * (i64)sizeof(wall_t));
    c->delays = place(&p, n * k->delays * (i64)sizeof(delay_t));
    c->arena_size = k->node_bytes ? k->node_bytes : max64((i64)16 << 20, n * (8 * n + 1024) * (i64)sizeof(node_t));
    c->arena = place(&p, c->arena_size);
    c->undo_size = k->keep_going ? max64(65536, 8 * n * n) : 0;
    c->undo = c->undo_size ? place(&p, 16 * c->undo_size) : 0;
    c->total = p.at;
}

i64 sp_bytes(const i64 *cfg)
{
    core_t c;
    memset(&c, 0, sizeof c);
    memcpy(&c.cfg, cfg, sizeof c.cfg);
    plan(&c, 0);
    return c.total;
}

void sp_init_mutex(pthread_mutex_t *m)
{
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(m, &a);
    pthread_mutexattr_destroy(&a);
}

static int class_of(const config_t *k, i64 p, i64 q)
{
    if (p == q) return SELF;
    if (p / k->dies_per_chip == q / k->dies_per_chip) return CHIP;
    return p / k->dies_per_node == q / k->dies_per_node ? NODE : POD;
}

/* paths[p][q]: how many records of q's row leave before the one for p, by class: chip | node << 10 | pod << 20. */
static void fill_paths(core_t *c)
{
    i64 n = c->cfg.n;
    for (i64 q = 0; q < n; q++) {
        u32 before = 0;
        for (i64 j = 1; j <= n; j++) {
            i64 p = (q + j) % n;
            int k = class_of(&c->cfg, q, p);
            CLASS(c, q, p) = (uint8_t)k;
            AT(c, u32, c->paths)[p * n + q] = before;
            if (k) before += k == POD ? 1u << 20 : k == NODE ? 1u << 10 : 1u;
            RANK(c, q)->mates[k]++;
            if (p > q && (k == CHIP || k == NODE)) RANK(c, q)->above[k]++;
        }
    }
}

static i64 least_latency_into(const core_t *c, i64 p)
{
    i64 low = INF, least[4] = { INF, INF, INF, INF }, planes = c->cfg.planes;
#ifdef BREAK_LOOK_ONE_PLANE
    planes = 1;
#endif
    for (i64 i = 0; i < 4 * planes; i++) {
        const plane_t *k = &c->cfg.plane[i / 4];
        i64 l = i % 4;
        least[l] = min64(least[l], min64(min64(k->put[l], k->request[l]), min64(k->response[l], k->ack[l])));
    }
    for (i64 q = 0; q < c->cfg.n; q++)
        if (q != p) low = min64(low, least[CLASS(c, p, q)]);
#ifdef BREAK_LOOKAHEAD
    return min64(low, INF / 2) + 1;
#endif
    return c->cfg.lookahead ? min64(low, INF / 2) : 0;
}

int sp_create(core_t *c, const i64 *cfg)
{
    memcpy(&c->cfg, cfg, sizeof c->cfg);
    plan(c, 0);
    plan(c, SLOT(c, 0));
    i64 n = c->cfg.n;
    sp_init_mutex(&c->lock);
    c->owner = -1;
    fill_paths(c);
    i32 *winners = AT(c, i32, c->winners);
    for (i64 i = 2 * c->half - 1; i > 0; i--) {
        AT(c, i64, c->bounds)[i] = INF;
        winners[i] = i >= c->half ? (i32)(i - c->half) : winners[2 * i];
    }
    for (i64 i = 0; i < c->half; i++) AT(c, i64, c->head_t)[i] = AT(c, i64, c->head_key)[i] = INF;
    for (i64 s = 0; s < 2 * c->cfg.channels; s++)
        for (i64 p = 0; p < n; p++)
            AT(c, i64, SLOT(c, s)->start)[p] = AT(c, i64, SLOT(c, s)->low)[p] = AT(c, i64, SLOT(c, s)->records)[p] = INF;
    for (i64 p = 0; p < n; p++) {
        rank_t *r = RANK(c, p);
        r->look = least_latency_into(c, p);
        r->slot = -1;
        sp_init_mutex(&r->log_lock);
        set_bound(c, p, c->cfg.price);
        set_head(c, p);
    }
    __atomic_store_n(&c->magic, 0x53504f4431ull, __ATOMIC_RELEASE);
    return 0;
}
