/* The calls of a rank: charge the price, buffer or enter, note the call in the digest. Arguments were checked above. */
#include "entry.h"
#include "heap.h"
#include <stdlib.h>

static post_t *new_post(local_t *l)
{
    if (l->num_posts == l->max_posts) {
        i64 size = l->max_posts ? 2 * l->max_posts : 64;
        post_t *more = realloc(l->posts, (size_t)size * sizeof *more);
        if (!more) abort();
        l->posts = more;
        l->max_posts = size;
    }
    return l->posts + l->num_posts++;
}

static void post_op(local_t *l, i64 delay, i64 stage, i64 at, const op_t *o)
{
    post_t *p = new_post(l);
    *p = (post_t){ l->now + delay, key_of(l->rank, l->seq, 0, stage), at, 0, 1, *o };
    p->op.poster = (i32)l->rank;
    p->op.seq = l->seq;
}

static op_t op_with_ref(i32 kind, i64 peer, i64 bytes, const ref_t *ref)
{
    op_t o = { 0 };
    o.kind = kind;
    o.peer = (i32)peer;
    o.bytes = bytes;
    if (ref) {
        o.ref = *ref;
        o.has_ref = 1;
    }
    return o;
}

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

void sp_put(local_t *l, i64 dst, i64 bytes, const ref_t *ref, i64 op, i64 word, i64 value)
{
    sp_begin(l);
    op_t o = op_with_ref(OP_PUT, dst, bytes, ref);
    o.op = (i32)op;
    o.word = word;
    o.value = value;
    post_op(l, 0, S_EGRESS, l->rank, &o);
    sp_note(l, C_PUT, l->now, dst, bytes, op ? word : -1);
}

i64 sp_get(local_t *l, i64 src, i64 bytes, const ref_t *ref)
{
    sp_begin(l);
    op_t o = op_with_ref(OP_GET, src, bytes, ref);
    post_op(l, l->c->cfg.request[CLASS(l->c, l->rank, src)], S_EGRESS, src, &o);
    sp_note(l, C_GET, l->now, src, bytes, 0);
    return l->seq;
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

int sp_atomic(local_t *l, i64 dst, i64 word, i64 op, i64 value, i64 compare)
{
    i64 start = l->now;
    sp_begin(l);
    op_t o = op_with_ref(OP_ATOMIC, dst, 0, 0);
    o.word = word;
    o.op = (i32)op;
    o.value = value;
    o.compare = compare;
    post_op(l, l->c->cfg.request[CLASS(l->c, l->rank, dst)], S_ATOMIC, dst, &o);
    RANK(l->c, l->rank)->a = dst;
    RANK(l->c, l->rank)->b = word;
    int code = sp_enter(l, W_ATOMIC, -1, 0);
    if (!code) sp_note(l, W_ATOMIC, start, dst, word, l->result);
    return code;
}

int sp_wait(local_t *l, const condition_t *conditions, i64 count, i64 any, i64 timeout)
{
    i64 start = l->now;
    rank_t *r = RANK(l->c, l->rank);
    sp_begin(l);
    memcpy(AT(l->c, condition_t, l->c->conditions) + l->rank * l->c->cfg.words, conditions,
           (size_t)count * sizeof *conditions);
    r->num_conditions = count;
    r->any = any;
    int code = sp_enter(l, W_WAIT, timeout, 0);
    if (!code) sp_note(l, W_WAIT, start, count, any, l->result);
    return code;
}

static int post_row(local_t *l, i64 channel, const i32 *counts, const i32 *offsets, i64 row_bytes, i64 meta, i64 tag)
{
    core_t *c = l->c;
    i64 n = c->cfg.n, p = l->rank, slot = sp_open_slot(c, p, channel);
    if (slot < 0) return FATAL_REUSE;
    slot_t *s = SLOT(c, slot);
    i32 *row = AT(c, i32, s->counts) + p * n, *where = AT(c, i32, s->offsets) + p * n;
    if (counts) memcpy(row, counts, (size_t)n * 4);
    else memset(row, 0, (size_t)n * 4);
    if (offsets) memcpy(where, offsets, (size_t)n * 4);
    else memset(where, 0, (size_t)n * 4);
    AT(c, i64, s->has_rows)[p] = counts != 0;
    AT(c, i64, s->meta)[p] = meta;
    AT(c, i64, s->row_bytes)[p] = row_bytes;
    AT(c, i64, s->tag)[p] = tag;
    AT(c, i64, s->records)[p] = INF;
    *new_post(l) = (post_t){ l->now, key_of(p, l->seq, 0, S_ROW), p, slot, 0, { 0 } };
    l->slot = slot;
    return 0;
}

int sp_exchange_post(local_t *l, i64 channel, const i32 *counts, const i32 *offsets, i64 row_bytes, i64 meta, i64 tag)
{
    sp_begin(l);
    sp_note(l, C_POST, l->now, channel, row_bytes, meta);
    return post_row(l, channel, counts, offsets, row_bytes, meta, tag);
}

static int wait_rows(local_t *l, i64 channel, i64 slot, i64 pull_start, i64 record, i64 steps)
{
    rank_t *r = RANK(l->c, l->rank);
    i64 start = l->now;
    r->a = channel;
    r->slot = slot;
    r->pull_start = pull_start;
    r->record = record;
    r->exchange_seq = l->seq;
    r->chain_count = steps;
    r->chain_at = 0;
    int code = sp_enter(l, W_EXCHANGE, -1, 0);
    l->seq += steps;
    if (!code) sp_note(l, W_EXCHANGE, start, channel, l->result, l->records);
    return code;
}

int sp_exchange(local_t *l, i64 channel, const i32 *counts, const i32 *offsets, i64 row_bytes, i64 meta, i64 tag,
                i64 pull_start, i64 record, const chain_t *chain, i64 steps)
{
    sp_begin(l);
    int code = post_row(l, channel, counts, offsets, row_bytes, meta, tag);
    if (code) return code;
    if (steps)
        memcpy(AT(l->c, chain_t, l->c->chains) + l->rank * l->c->cfg.chain_steps, chain, (size_t)steps * sizeof *chain);
    return wait_rows(l, channel, l->slot, pull_start, record, steps);
}

int sp_exchange_wait(local_t *l, i64 channel, i64 slot, i64 pull_start, i64 record)
{
    sp_begin(l);
    return wait_rows(l, channel, slot, pull_start, record, 0);
}

/* What the exchange of `slot` brought me. */
void sp_exchange_rows(local_t *l, i64 slot, i32 *counts, i32 *offsets, i64 *tags)
{
    core_t *c = l->c;
    slot_t *s = SLOT(c, slot);
    i64 n = c->cfg.n, p = l->rank;
    memcpy(tags, AT(c, i64, s->tag), (size_t)n * 8);
    memcpy(counts, AT(c, i32, s->received) + p * n, (size_t)n * 4);
    const i32 *where = AT(c, i32, s->offsets) + p;
    for (i64 q = 0; q < n; q++) offsets[q] = counts[q] ? where[q * n] : 0;
}
