"""A kernel in Triton's language, which is read from this file. Its compiler takes annotations for values."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def increment(values, count, block: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    places = tl.program_id(0) * block + tl.arange(0, block)
    inside = places < count
    tl.store(values + places, tl.load(values + places, mask=inside) + 1, mask=inside)
