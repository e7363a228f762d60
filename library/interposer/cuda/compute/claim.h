/*
 * What a neighbour may claim: GPU time that its row says was its own, and that is therefore not charged to us.
 *
 * In: the rate that its limit gives it, what it was credited with, the time. Out: whether its row is believed. Not here: what rows say, how a stretch is
 * divided.
 *
 * A container that is held to its limit uses its rate, and more only for as long as a kernel takes that was on the GPU already; it pays for that by not
 * coming back. So does a claim: it is an account that grows with the rate and is drawn by what the row took of our stretches. What was saved up counts
 * only as far as the stretch itself could have earned it. An account that is overdrawn by more than a long kernel is spent: the row says what cannot be,
 * and is ignored until the account is even again. A row without a limit is always ignored.
 *
 * A row that cannot be read, or that the agent found to leave out what its container does, says nothing that counts. Its container is assumed to use its
 * rate: the account is what it can have taken, so that who hides its turns leaves them to nobody else to pay for.
 * Invariant: over any time T a row takes no more of our GPU time than its rate x T, CLAIM_NS and one stretch; an assumed one no more than its rate x T and
 * what a container can save up (budget.h).
 */
#ifndef VCUDA_COMPUTE_CLAIM_H
#define VCUDA_COMPUTE_CLAIM_H

#include <stdbool.h>
#include <stdint.h>

/* Longer kernels than this are charged, beyond it, to the containers that share the GPU with them. */
#define CLAIM_NS 2e9

struct claim {
    double account_ns;
    uint64_t filled_ns;
    uint32_t rate;                      /* thousandths of a percent */
    bool spent;
    bool assumed;
};

void claim_fill(struct claim *claim, uint64_t now);
/* Of a stretch of ours that long, so much. */
void claim_draw(struct claim *claim, uint64_t length_ns, double taken_ns);
/* How long of such a stretch an assumed container was on the GPU with us: it takes half of what they share. */
uint64_t claim_present(const struct claim *claim, uint64_t length_ns);

#endif
