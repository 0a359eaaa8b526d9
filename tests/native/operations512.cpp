// Compares every operation of the emulated 64-byte vectors with the AVX-512 instruction, on random and extreme bytes.
// Prints the names of those that differ.
#include <cstdio>
#include <cstring>
#include <random>

#include "scan_avx512.hpp"
#include "scan_emulated512.hpp"

using namespace rbegir::scan;

namespace {

constexpr int VECTORS = 4;

struct Input {
    uint8_t bytes[VECTORS][64];
    uint64_t lanes;
    int shift, number;
};

// All operations of one implementation, their results one after the other.
template <class Ops>
struct Results {
    char text[64][16];
    uint8_t bytes[64][64];
    int count = 0;

    void add(const char *name, const void *result, size_t size) {
        std::strcpy(text[count], name);
        std::memset(bytes[count], 0, 64);
        std::memcpy(bytes[count++], result, size);
    }
    void add(const char *name, typename Ops::V v) {
        uint8_t stored[64];
        Ops::store(stored, v);
        add(name, stored, 64);
    }
    void add(const char *name, uint64_t lanes) { add(name, &lanes, sizeof lanes); }

    explicit Results(const Input &in) {
        const auto a = Ops::load(in.bytes[0]), b = Ops::load(in.bytes[1]);
        const auto c = Ops::load(in.bytes[2]), d = Ops::load(in.bytes[3]);
        add("zero", Ops::zero());
        add("set8", Ops::set8(in.number));
        add("set16", Ops::set16(in.number));
        add("add8", Ops::add8(a, b));
        add("adds8", Ops::adds8(a, b));
        add("average8", Ops::average8(a, b));
        add("min8", Ops::min8(a, b));
        add("popcount8", Ops::popcount8(a));
        add("add16", Ops::add16(a, b));
        add("adds16", Ops::adds16(a, b));
        add("min16", Ops::min16(a, b));
        add("shift_left16", Ops::shift_left16(a, in.shift));
        add("shift_right16", Ops::shift_right16(a, in.shift));
        add("bit_and", Ops::bit_and(a, b));
        add("bit_or", Ops::bit_or(a, b));
        add("bit_xor", Ops::bit_xor(a, b));
        add("select", Ops::select(a, b, c));
        add("repeat16", Ops::repeat16(in.bytes[0]));
        add("shuffle8", Ops::shuffle8(a, Ops::bit_and(b, Ops::set8(15))));
        add("permute8", Ops::permute8(a, b, c));
        add("compress8", Ops::compress8(in.lanes, a));
        int64_t __attribute__((vector_size(64))) numbers;
        std::memcpy(&numbers, in.bytes[1], 64);
        add("signs64", uint64_t{Ops::signs64(numbers)});
        add("nonzero64", uint64_t{Ops::nonzero64(numbers)});
        const auto chosen = Ops::compress64(in.lanes & 255, numbers);
        add("compress64", &chosen, 64);
        uint16_t narrow[8], at[8];
        Ops::narrow64(numbers, narrow);
        add("narrow64", narrow, sizeof narrow);
        uint64_t words[23];
        for (int i = 0; i < 23; ++i) words[i] = in.lanes * (2 * i + 1);
        for (int i = 0; i < 8; ++i) at[i] = in.bytes[0][i] % 8;
        decltype(numbers) first, second;
        Ops::pairs64(words, 3, at, first, second);
        add("pairs64", &first, 64);
        add("pairs64", &second, 64);
        add("low_turns8", Ops::low_turns8(a, b));
        add("high_turns8", Ops::high_turns8(a, b));
        add("fields8", Ops::fields8(a, b));
        add("widen8", Ops::widen8(in.bytes[0] + 5));
        add("repeat4", Ops::repeat4(in.bytes[0] + 7));
        add("dot32", Ops::dot32(a, b, c));
        add("permute32", Ops::permute32(a, b, c));
        add("at_least32", Ops::at_least32(a, c));
        add("at_most8", Ops::at_most8(a, b));
        add("at_most16", Ops::at_most16(a, b, c, d));
    }
};

}  // namespace

int main() {
    std::mt19937_64 random(1);
    int wrong = 0;
    for (int turn = 0; turn < 20000; ++turn) {
        Input in;
        for (auto &vector : in.bytes)
            for (uint8_t &byte : vector)
                byte = static_cast<uint8_t>(random() % 4 ? random() : random() % 2 ? 255 : 0);
        if (turn % 3 == 0) std::memcpy(in.bytes[2], in.bytes[0], 64);  // equal numbers for the comparisons
        in.lanes = turn % 5 ? random() : turn % 2 ? 0 : ~uint64_t{0};
        in.shift = static_cast<int>(random() % 16);
        in.number = static_cast<int>(random() % 65536);
        const Results<Avx512> real(in);
        const Results<Emulated512> emulated(in);
        for (int i = 0; i < real.count; ++i)
            if (std::memcmp(real.bytes[i], emulated.bytes[i], 64)) {
                std::printf("%s\n", real.text[i]);
                ++wrong;
            }
    }
    return wrong != 0;
}
