// Compares the exported adder with this CPU on pairs of float32: adder_pairs PAIRS
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "Vfloat_adder.h"

namespace {

constexpr int kLatency = 8;
constexpr uint32_t kQuiet = 0x00400000, kInvalid = 0xffc00000;
constexpr uint32_t kEdges[] = {0x00000000, 0x00000001, 0x007fffff, 0x00800000, 0x00800001, 0x33800000, 0x3f7fffff,
                               0x3f800000, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000, 0x4b000000, 0x4b7fffff};

struct Pair {
    uint32_t a, b;
};

float as_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint32_t as_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Of two NaN a CPU may keep either: the hardware keeps the first.
uint32_t expected(Pair pair) {
    const float a = as_float(pair.a), b = as_float(pair.b);
    if (std::isnan(a)) return pair.a | kQuiet;
    if (std::isnan(b)) return pair.b | kQuiet;
    const volatile float sum = a + b;
    return std::isnan(sum) ? kInvalid : as_bits(sum);
}

uint64_t state = 0x9e3779b97f4a7c15;

uint64_t draw() {
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * 0x2545f4914f6cdd1d;
}

uint32_t edge(uint64_t random) {
    return kEdges[random % (sizeof kEdges / sizeof *kEdges)] ^ static_cast<uint32_t>(random >> 32 & 1) << 31;
}

Pair next() {
    const uint64_t random = draw(), choice = draw();
    Pair pair{static_cast<uint32_t>(random), static_cast<uint32_t>(random >> 32)};
    switch (choice & 7) {
        case 0:  // any bits
            break;
        case 1:  // edges
            pair.b = edge(choice >> 3);
            if (choice >> 60 & 1) pair.a = edge(choice >> 20);
            break;
        case 2:  // subnormals, and the exponents above them
            pair.a = (pair.a & 0x807fffff) | static_cast<uint32_t>(choice >> 3 & 3) << 23;
            pair.b = (pair.b & 0x807fffff) | static_cast<uint32_t>(choice >> 5 & 3) << 23;
            break;
        case 3:  // all but cancel
            pair.b = pair.a ^ 0x80000000 ^ static_cast<uint32_t>(choice >> 8 & 0xff);
            break;
        default: {  // overlap: exponents at most 27 apart
            const int near = static_cast<int>(pair.a >> 23 & 255) + static_cast<int>(choice >> 8 & 63) % 55 - 27;
            const uint32_t exponent = near < 0 ? 0 : near > 255 ? 255 : near;
            pair.b = (pair.b & 0x807fffff) | exponent << 23;
        }
    }
    return pair;
}

}  // namespace

int main(int argc, char** argv) {
    const long pairs = argc == 2 ? std::atol(argv[1]) : 0;
    Vfloat_adder adder;
    Pair sent[kLatency] = {};
    long wrong = 0;
    adder.rst = 0;
    for (long at = 0; at < pairs + kLatency - 1;) {
        const Pair pair = next();
        adder.enable = (draw() & 15) != 0;
        adder.a = pair.a, adder.b = pair.b;
        adder.clk = 0, adder.eval();
        adder.clk = 1, adder.eval();
        if (!adder.enable) continue;
        sent[at % kLatency] = pair;
        ++at;
        const Pair back = sent[at % kLatency];
        if (at >= kLatency && adder.sum != expected(back) && ++wrong <= 5)
            std::printf("%08x + %08x: %08x instead of %08x\n", back.a, back.b, adder.sum, expected(back));
    }
    std::printf("%ld of %ld sums differ\n", wrong, pairs);
    return wrong != 0 || pairs <= 0;
}
