/* See claim.h. */
#include "claim.h"

#include "budget.h"

/* Two containers do not measure the same stretch alike, and learn of a change of limits one after the other. */
static double earned(const struct claim *claim, uint64_t ns)
{
    uint32_t at_ease = claim->rate == 0 || claim->assumed ? claim->rate : claim->rate + claim->rate / 16 + 500;
    return (double)ns * at_ease / BUDGET_WHOLE;
}

void claim_fill(struct claim *claim, uint64_t now)
{
    if (claim->filled_ns != 0 && now > claim->filled_ns)
        claim->account_ns += earned(claim, now - claim->filled_ns);
    claim->filled_ns = now;
    claim->spent = claim->rate == 0 || (claim->spent && claim->account_ns < 0);
}

void claim_draw(struct claim *claim, uint64_t length_ns, double taken_ns)
{
    double most = claim->assumed ? (double)budget_cap(claim->rate) : earned(claim, length_ns);
    claim->account_ns = (claim->account_ns < most ? claim->account_ns : most) - taken_ns;
    claim->spent = claim->spent || claim->account_ns < -CLAIM_NS;
}

uint64_t claim_present(const struct claim *claim, uint64_t length_ns)
{
    double most = (double)budget_cap(claim->rate), account = claim->account_ns < most ? claim->account_ns : most;
    if (account <= 0)
        return 0;
    return 2 * account < (double)length_ns ? (uint64_t)(2 * account) : length_ns;
}
