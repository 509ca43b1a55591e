"""translate.py PACK.CU TO.CPP: pack.cu as a C++ source that the headers beside this file can be compiled with. The text is the same but for
the instructions that copy to shared memory, how that memory is declared, and a function at the end that runs the kernels by name."""

import re
import sys

COPIES = {
    "copy_16": "queue_copy(to, from, bytes, 16);",
    "copy_4": "queue_copy(to, from, there ? 4 : 0, 4);",
    "close_copies": "close_queue();",
    "wait_copies": "wait_queue(N);",
}

RUN = """
static const pack_pair_args *launched;

/* Runs a kernel's blocks one after the other, in an order drawn by lot. */
extern "C" void emulate(int splits, unsigned blocks, const pack_pair_args *pair, unsigned seed) {
    std::vector<unsigned> order;
    lots = seed;
    for (unsigned i = 0; i < blocks; i++) order.insert(order.begin() + draw(i + 1), i);
    gridDim.x = blocks;
    launched = pair;
    for (unsigned block : order) {
        blockIdx.x = block;
        memset(shared_memory, 0xff, sizeof shared_memory); /* NaN */
        if (splits)
            run_block([] { pack_split(*launched); });
        else
            run_block([] { pack_sample(*launched); });
    }
}
"""


def once(pattern, replacement, text):
    text, count = re.subn(pattern, lambda match: match[1] + replacement, text, flags=re.S)
    assert count == 1, f"pack.cu has {count} times what {pattern} describes: tests/emulator/translate.py must follow it"
    return text


text = open(sys.argv[1]).read()
for name, body in COPIES.items():
    text = once(rf"(__device__ void {name}\([^)]*\) \{{).*?\}}(?=\n\n|\ntemplate)", f" {body} }}", text)
text = once(r"()extern __shared__ __align__\(16\) uint8_t shared_memory\[\];", "alignas(16) static uint8_t shared_memory[PACK_SHARED];", text)
open(sys.argv[2], "w").write(text + RUN)
