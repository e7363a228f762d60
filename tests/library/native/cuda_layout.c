/*
 * Prints the binary interface as a header declares it: sizes, offsets and numbers. Compiled once against ours and once against
 * a real cuda.h; the two outputs must be the same. What to print is read from our header by the test.
 */
#include <stddef.h>
#include <stdio.h>

#include <cuda.h>

#define T(type) printf("%s size %zu, class %d\n", #type, sizeof(type), __builtin_classify_type(*(type *)0));
#define F(type, field) printf("%s.%s at %zu size %zu\n", #type, #field, offsetof(type, field), sizeof(((type *)0)->field));
#define N(name) printf("%s = %lld\n", #name, (long long)(name));

int main(void)
{
#include "cuda_layout.inc"
    return 0;
}
