// expect: te: block: the list is too long; it holds 96 ops at most
// 120 ops.
#include "te/te.h"

#ifdef TE_FIXED
TE_SEQUENTIAL(block, bf16, (bias, b, 64),
    (gelu, a0), (gelu, a1), (gelu, a2), (gelu, a3), (gelu, a4), (gelu, a5), (gelu, a6), (gelu, a7),
    (gelu, a8), (gelu, a9), (gelu, a10), (gelu, a11), (gelu, a12), (gelu, a13), (gelu, a14), (gelu, a15))
#else
TE_SEQUENTIAL(block, bf16, (bias, b, 64),
    (gelu, a0), (gelu, a1), (gelu, a2), (gelu, a3), (gelu, a4), (gelu, a5), (gelu, a6), (gelu, a7),
    (gelu, a8), (gelu, a9), (gelu, a10), (gelu, a11), (gelu, a12), (gelu, a13), (gelu, a14), (gelu, a15),
    (gelu, a16), (gelu, a17), (gelu, a18), (gelu, a19), (gelu, a20), (gelu, a21), (gelu, a22), (gelu, a23),
    (gelu, a24), (gelu, a25), (gelu, a26), (gelu, a27), (gelu, a28), (gelu, a29), (gelu, a30), (gelu, a31),
    (gelu, a32), (gelu, a33), (gelu, a34), (gelu, a35), (gelu, a36), (gelu, a37), (gelu, a38), (gelu, a39),
    (gelu, a40), (gelu, a41), (gelu, a42), (gelu, a43), (gelu, a44), (gelu, a45), (gelu, a46), (gelu, a47),
    (gelu, a48), (gelu, a49), (gelu, a50), (gelu, a51), (gelu, a52), (gelu, a53), (gelu, a54), (gelu, a55),
    (gelu, a56), (gelu, a57), (gelu, a58), (gelu, a59), (gelu, a60), (gelu, a61), (gelu, a62), (gelu, a63),
    (gelu, a64), (gelu, a65), (gelu, a66), (gelu, a67), (gelu, a68), (gelu, a69), (gelu, a70), (gelu, a71),
    (gelu, a72), (gelu, a73), (gelu, a74), (gelu, a75), (gelu, a76), (gelu, a77), (gelu, a78), (gelu, a79),
    (gelu, a80), (gelu, a81), (gelu, a82), (gelu, a83), (gelu, a84), (gelu, a85), (gelu, a86), (gelu, a87),
    (gelu, a88), (gelu, a89), (gelu, a90), (gelu, a91), (gelu, a92), (gelu, a93), (gelu, a94), (gelu, a95),
    (gelu, a96), (gelu, a97), (gelu, a98), (gelu, a99), (gelu, a100), (gelu, a101), (gelu, a102), (gelu, a103),
    (gelu, a104), (gelu, a105), (gelu, a106), (gelu, a107), (gelu, a108), (gelu, a109), (gelu, a110), (gelu, a111),
    (relu, r1), (relu, r2), (relu, r3), (relu, r4), (relu, r5), (relu, r6), (relu, r7))
#endif

int main(void) { return block_forward_steps == 0; }
