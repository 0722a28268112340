/* Records for a rank: a ring that its owner empties, and a word that counts what was ever put in. */
#include "entry.h"
#include <string.h>

inbox_t sp_record_of(const op_t *o, i32 kind, i64 rank, i64 value, i64 status)
{
    const args_t *a = &o->a;
    return (inbox_t){ .seq = o->seq, .value = value, .nbytes = a->nbytes, .tag = a->tag, .context = a->context,
                      .user_a = a->user_a, .user_b = a->user_b, .file = a->ref.file, .file_offset = a->ref.file_offset,
                      .real_bytes = a->ref.nbytes, .kind = kind, .rank = (i32)rank, .status = (i32)status,
                      .context_lo = (i32)a->context };
}

void sp_tell(ctx_t *x, i64 p, const node_t *e, inbox_t m)
{
    core_t *c = x->c;
    rank_t *r = RANK(c, p);
    if (r->state == EXITED || r->state == DEAD) return; /* nobody will look */
    i64 size = c->cfg.inbox_entries, *head = &WORD(c, p, INBOX_WORD(c));
    if (*head - __atomic_load_n(&r->inbox_tail, __ATOMIC_ACQUIRE) >= size) {
        sp_fail(c, FATAL_INBOX, p);
        return;
    }
    m.t = e->t;
    m.key = e->key;
    AT(c, inbox_t, c->inboxes)[p * size + *head % size] = m;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
}

/* Something ended at p; `records` is how many records there were before the event. */
void sp_evaluate_end(ctx_t *x, i64 p, i64 t, i64 records)
{
    core_t *c = x->c;
    sp_evaluate(x, p, t, WORD(c, p, INBOX_WORD(c)) != records ? INBOX_WORD(c) : -1);
}

/* Take at most `most` of my records up to my last observation; out may be 0 to count only. */
i64 sp_inbox(local_t *l, inbox_t *out, i64 most)
{
    core_t *c = l->c;
    rank_t *r = RANK(c, l->rank);
    i64 size = c->cfg.inbox_entries, head = __atomic_load_n(&WORD(c, l->rank, INBOX_WORD(c)), __ATOMIC_ACQUIRE), k = 0;
    const inbox_t *ring = AT(c, inbox_t, c->inboxes) + l->rank * size;
    for (i64 at = r->inbox_tail; at < head && k < most && ring[at % size].t <= l->observed; at++, k++)
        if (out) out[k] = ring[at % size];
    if (out) __atomic_store_n(&r->inbox_tail, r->inbox_tail + k, __ATOMIC_RELEASE);
    return k;
}
