/* The calls of a rank: charge the price, buffer or enter, note the call in the digest. Arguments were checked above. */
#include "entry.h"
#include "heap.h"
#include <stdlib.h>

int sp_compute(local_t *l, i64 ps, i64 kind, i64 publish)
{
    i64 start = l->now;
    sp_begin(l);
    l->now += ps;
    sp_note(l, C_COMPUTE, start, kind, ps, 0);
    return publish ? sp_enter(l, 0, -1, l->now + l->c->cfg.price) : 0;
}

void sp_fence(local_t *l)
{
    sp_begin(l);
    sp_note(l, C_FENCE, l->now, 0, 0, 0);
}

/* QUIET, GET (a = handle), READ (a = word), OBSERVE, TEST (a = word, b = comparison, d = value). */
int sp_block(local_t *l, i64 wait, i64 a, i64 b, i64 d)
{
    i64 start = l->now;
    rank_t *r = RANK(l->c, l->rank);
    sp_begin(l);
    r->a = a;
    r->b = b;
    r->c = d;
    int code = sp_enter(l, wait, -1, 0);
    if (!code) sp_note(l, wait, start, a, b, l->result);
    return code;
}

int sp_wait(local_t *l, const condition_t *conditions, i64 count, i64 any, i64 timeout)
{
    i64 start = l->now;
    rank_t *r = RANK(l->c, l->rank);
    sp_begin(l);
    memcpy(AT(l->c, condition_t, l->c->conditions) + l->rank * l->c->cfg.conditions, conditions,
           (size_t)count * sizeof *conditions);
    r->num_conditions = count;
    r->any = any;
    int code = sp_enter(l, W_WAIT, timeout, 0);
    if (!code) sp_note(l, W_WAIT, start, count, any, l->result);
    return code;
}

/* First negative count + 1, or 0. */
static i64 negative(const i32 *counts, i64 n)
{
    for (i64 q = 0; q < n; q++)
        if (counts[q] < 0) return q + 1;
    return 0;
}

/* Where my row of the channel's next exchange goes: counts and offsets. */
row_t sp_next_row(local_t *l, i64 channel)
{
    core_t *c = l->c;
    i64 n = c->cfg.n, p = l->rank, round = AT(c, i64, c->rounds)[p * c->cfg.channels + channel];
    slot_t *s = SLOT(c, 2 * channel + (round & 1));
    return (row_t){ AT(c, i32, s->counts) + p * n, AT(c, i32, s->offsets) + p * n };
}

int sp_post_row(local_t *l, const row_args_t *a)
{
    core_t *c = l->c;
    i64 n = c->cfg.n, p = l->rank, slot = sp_open_slot(c, p, a->channel);
    const i64 *sizes = l->sizes;
    l->sizes = 0;
    if (slot < 0) return FATAL_REUSE;
    slot_t *s = SLOT(c, slot);
    size_t g = (size_t)own_group(c, a->channel, p).size;
    i32 *row = AT(c, i32, s->counts) + p * n, *where = AT(c, i32, s->offsets) + p * n;
    if (a->has_counts && !a->in_place) {
        memcpy(row, l->rows, g * 4);
        if (a->has_offsets) memcpy(where, l->rows + n, g * 4);
        else memset(where, 0, g * 4);
    }
    AT(c, uint8_t, s->lagged)[p] = sizes != 0;
    for (size_t j = 0; sizes && j < g; j++) AT(c, sent_t, s->sent)[p * n + (i64)j].bytes = sizes[j];
    AT(c, i64, s->has_rows)[p] = a->has_counts;
    AT(c, i64, s->meta)[p] = a->meta;
    AT(c, i64, s->row_bytes)[p] = a->row_bytes;
    AT(c, i64, s->tag)[p] = a->tag;
    AT(c, i64, s->records)[p] = INF;
    post_t *post = sp_new_post(l);
    post->t = l->now;
    post->key = key_of(p, l->seq, 0, S_ROW);
    post->target = p;
    post->aux = slot;
    post->has_op = 0;
    l->slot = slot;
    return 0;
}

/* What the exchange that ended brought me. */
static void take_rows(local_t *l)
{
    core_t *c = l->c;
    slot_t *s = SLOT(c, l->slot);
    group_t g = own_group(c, l->slot / 2, l->rank);
    i64 n = c->cfg.n, p = l->rank, *tags = (i64 *)(l->rows + 4 * n);
    i32 *counts = l->rows + 2 * n, *offsets = l->rows + 3 * n;
    const i32 *where = AT(c, i32, s->offsets) + g.me;
    memcpy(counts, AT(c, i32, s->received) + p * n, (size_t)g.size * 4);
    for (i64 j = 0; j < g.size; j++) offsets[j] = counts[j] ? where[RANK_AT(&g, j) * n] : 0;
    for (i64 j = 0; j < g.size; j++) tags[j] = AT(c, i64, s->tag)[RANK_AT(&g, j)];
}

int sp_wait_rows(local_t *l, const row_args_t *a, i64 slot)
{
    rank_t *r = RANK(l->c, l->rank);
    i64 start = l->now;
    r->a = a->channel;
    r->slot = slot;
    r->pull_start = a->pull_start;
    r->record = a->record;
    r->exchange_seq = l->seq;
    r->chain_count = a->steps;
    r->chain_at = 0;
    int code = sp_enter(l, W_EXCHANGE, -1, 0);
    l->seq += a->steps;
    if (code) return code;
    sp_note(l, W_EXCHANGE, start, a->channel, l->result, l->records);
    if (!a->in_place) take_rows(l);
    return 0;
}

static row_args_t arguments(const local_t *l)
{
    row_args_t a = { 0 };
    memcpy(&a, l->args, sizeof l->args);
    return a;
}

/* What is wrong with my row: minus (the first negative count's index + 1), NOT_A_MEMBER, or 0. */
static i64 refused(local_t *l, const row_args_t *a)
{
    if (AT(l->c, i32, l->c->grouped)[a->channel] && !l->opened[a->channel]) return NOT_A_MEMBER;
    return a->has_counts ? -negative(l->rows, own_group(l->c, a->channel, l->rank).size) : 0;
}

/* The arguments are in l->args and l->rows. Returns 0, a FATAL_ code, or minus (the first negative count's index + 1). */
int sp_exchange(local_t *l, const chain_t *chain)
{
    const row_args_t given = arguments(l), *a = &given;
    i64 bad = refused(l, a);
    if (bad) return (int)bad;
    sp_begin(l);
    int code = sp_post_row(l, a);
    if (code) return code;
    if (a->steps)
        memcpy(AT(l->c, chain_t, l->c->chains) + l->rank * l->c->cfg.chain_steps, chain,
               (size_t)a->steps * sizeof *chain);
    return sp_wait_rows(l, a, l->slot);
}

int sp_exchange_post(local_t *l)
{
    const row_args_t given = arguments(l), *a = &given;
    i64 bad = refused(l, a);
    if (bad) return (int)bad;
    sp_begin(l);
    sp_note(l, C_POST, l->now, a->channel, a->row_bytes, a->meta);
    l->open[a->channel] = 1;
    return sp_post_row(l, a);
}

int sp_exchange_wait(local_t *l, i64 channel, i64 slot, i64 pull_start, i64 record)
{
    row_args_t a = { channel, 0, 0, 0, pull_start, record, 0, 0, 0, 0 };
    l->open[channel] = 0;
    sp_begin(l);
    return sp_wait_rows(l, &a, slot);
}

/* Sizes of the records of the row I post next; they stay the caller's. Minus (the first bad one's index + 1), or 0. */
i64 sp_set_sizes(local_t *l, const i64 *sizes, i64 count)
{
    l->sizes = 0;
    for (i64 j = 0; j < count; j++)
        if (sizes[j] < 0 || sizes[j] > (i64)1 << 40) return -j - 1;
    l->sizes = sizes;
    return 0;
}

/* My exchanges of the channel are among `ranks` from now on, where `place` is mine. check: of the list, 0 for all ranks
 * in order. Returns 1, or 0 if an older exchange is still under way. */
i64 sp_open_group(local_t *l, i64 channel, const i32 *ranks, i64 count, i64 check)
{
    core_t *c = l->c;
    i64 n = c->cfg.n, p = l->rank, first = ranks[0], place = 0;
    for (i64 j = 0; j < count; j++) {
        first = min64(first, ranks[j]);
        if (ranks[j] == p) place = j;
    }
    int others = 0; /* an exchange of other members is under way; my own would be refused, on all ranks */
    for (i64 i = 2 * channel; i < 2 * channel + 2; i++) {
        const round_t *o = AT(c, round_t, SLOT(c, i)->rounds) + first;
        if (AT(c, i64, SLOT(c, i)->start)[p] < INF) return 0;
        others |= o->posted && o->check != check;
    }
    AT(c, i64, c->rounds)[p * c->cfg.channels + channel] = 0;
    *MEMBER(c, channel, p) = (member_t){ check ? (i32)first + 1 : 0, (i32)place, check };
    l->opened[channel] = 1;
    if (!check || others) return 1;
    memcpy(AT(c, i32, c->lists) + (channel * n + first) * n, ranks, (size_t)count * 4);
    AT(c, i32, c->list_sizes)[channel * n + first] = (i32)count;
    AT(c, i64, c->list_checks)[channel * n + first] = check;
    __atomic_store_n(AT(c, i32, c->grouped) + channel, 1, __ATOMIC_RELEASE);
    return 1;
}
