/* Posting: arguments checked, an operation buffered, the call noted. One row or a thousand. */
#include "entry.h"
#include <stdlib.h>
#include <string.h>

#define LIMIT_PS ((i64)1 << 60)
#define LIMIT_BYTES ((i64)1 << 50)

post_t *sp_new_post(local_t *l)
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

/* Buffer the operation's first event, start_ps after now. */
post_t *sp_post_op(local_t *l, const args_t *a)
{
    core_t *c = l->c;
    post_t *p = sp_new_post(l);
    i64 t = l->now + a->start, stage = S_EGRESS, at = l->rank;
    if (a->kind > K_SEND) stage = S_LOCAL;
    else if (a->unit >= 0 || a->stream > 0 || a->rd_below > 0) stage = S_START;
    else if (a->kind == K_GET || a->kind == K_WORD) {
        at = a->peer;
        t += c->cfg.plane[a->plane].request[CLASS(c, l->rank, at)];
        if (a->kind == K_WORD) {
            stage = S_ATOMIC;
            t += a->tail;
        }
    }
    memset(&p->op, 0, sizeof p->op);
    p->op.a = *a;
    p->op.seq = l->seq;
    p->op.posted = l->now;
    p->op.poster = (i32)l->rank;
    p->op.rnr_left = a->rnr_retries;
    p->op.lost_left = a->lost_retries;
    p->t = t;
    p->key = key_of(l->rank, l->seq, 0, stage);
    p->target = at;
    p->aux = 0;
    p->has_op = 1;
    return p;
}

static args_t blank(i32 kind, i64 peer, i64 bytes, const ref_t *ref, i32 log_kind)
{
    args_t a = { .kind = kind, .peer = (i32)peer, .nbytes = bytes, .unit = -1, .region_word = -1, .state_word = -1 };
    if (ref) {
        a.ref = *ref;
        a.log_kind = log_kind;
    }
    return a;
}

void sp_put(local_t *l, i64 dst, i64 bytes, const ref_t *ref, i64 op, i64 word, i64 value)
{
    sp_begin(l);
    args_t a = blank(K_PUT, dst, bytes, ref, LOG_PUT);
    a.op = (i32)op;
    a.word = (i32)word;
    a.value = value;
    sp_post_op(l, &a);
    sp_note(l, C_PUT, l->now, dst, bytes, op ? word : -1);
}

i64 sp_get(local_t *l, i64 src, i64 bytes, const ref_t *ref)
{
    sp_begin(l);
    args_t a = blank(K_GET, src, bytes, ref, LOG_SNAPSHOT);
    sp_post_op(l, &a);
    sp_note(l, C_GET, l->now, src, bytes, 0);
    return l->seq;
}

int sp_atomic(local_t *l, i64 dst, i64 word, i64 op, i64 value, i64 compare)
{
    i64 start = l->now;
    sp_begin(l);
    args_t a = blank(K_WORD, dst, 0, 0, 0);
    a.word = (i32)word;
    a.op = (i32)op;
    a.value = value;
    a.compare = compare;
    sp_post_op(l, &a)->op.blocking = 1;
    RANK(l->c, l->rank)->a = dst;
    RANK(l->c, l->rank)->b = word;
    int code = sp_enter(l, W_ATOMIC, -1, 0);
    if (!code) sp_note(l, W_ATOMIC, start, dst, word, l->result);
    return code;
}

/* ---- rows of arguments; checks.py says what is wrong with one, and must know the same rules */

static int in(i64 value, i64 low, i64 high) { return value >= low && value <= high; }

static int sound_path(const config_t *k, const args_t *a)
{
    return in(a->kind, K_PUT, K_CLOSE) && in(a->nbytes, 0, LIMIT_BYTES) && in(a->start, 0, LIMIT_PS)
        && in(a->unit_ps, 0, LIMIT_PS) && in(a->tail, 0, LIMIT_PS) && in(a->done_ps, 0, LIMIT_PS)
        && in(a->unit, -1, NUM_UNITS - 1) && in(a->plane, 0, k->planes - 1) && in(a->peer, 0, k->n - 1)
        && a->stream >= 0 && a->rd_below >= 0 && a->fence >= 0 && in(a->order, 0, 15);
}

static int sound_effect(const config_t *k, const args_t *a)
{
    int put = a->kind == K_PUT || a->kind == K_SEND, get = a->kind == K_GET;
    return in(a->op, 0, a->kind == K_WORD ? ATOMIC_XOR : ADD) && in(a->word, 0, k->words - 1) && in(a->note, 0, NOTE_DELIVERED | NOTE_REFUSED)
        && in(a->done, DONE_NEVER, put && !a->pull_bytes ? DONE_SENT : DONE_ON_ERROR)
        && (!a->log_kind || (put && a->log_kind == LOG_PUT)
            || (get && in(a->log_kind, 0, 1 << 20) && in(a->log_kind & 7, LOG_SNAPSHOT, LOG_RMW)));
}

static int sound_refusal(const config_t *k, const args_t *a)
{
    return a->region_word >= -1 && a->state_word >= -1 && in(a->region_offset, -LIMIT_PS, LIMIT_PS)
        && in(a->region_bytes, 0, LIMIT_PS) && in(a->rnr_ps, 1, LIMIT_PS) && in(a->lost_ps, 1, LIMIT_PS)
        && in(a->rnr_retries, -1, 7) && a->lost_retries >= 0 && in(a->source, -1, k->n - 1)
        && a->capacity >= 0 && in(a->pull_bytes, 0, LIMIT_BYTES);
}

static void note_row(local_t *l, const args_t *a) /* a put or get as sp_put and sp_get do */
{
    i64 kind = a->kind == K_PUT ? C_PUT : a->kind == K_GET ? C_GET : C_POSTED + a->kind;
    i64 word = a->kind == K_GET ? 0 : a->kind == K_PUT && !a->op ? -1 : a->word;
    sp_note(l, kind, l->now, a->peer, a->nbytes, word);
}

/* Post `count` rows; returns the sequence number of the first, or minus (the first bad row + 1) with nothing done. */
i64 sp_post(local_t *l, const args_t *rows, i64 count, i64 step)
{
    const config_t *k = &l->c->cfg;
    for (i64 i = 0; i < count; i++)
        if (!sound_path(k, rows + i) || !sound_effect(k, rows + i) || !sound_refusal(k, rows + i)) return -i - 1;
    i64 first = l->seq + 1;
    for (i64 i = 0; i < count; i++) {
        sp_begin(l);
        l->now += step;
        sp_post_op(l, rows + i);
        note_row(l, rows + i);
    }
    return first;
}

void sp_retire_stream(local_t *l, i64 stream)
{
    post_t *p = sp_new_post(l);
    p->target = -1;
    p->aux = stream;
}
