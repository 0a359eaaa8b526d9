// The operations of 64-byte vectors in plain C++, so that the AVX-512 kernels can be tested on every CPU.
#pragma once

#include "scan_kernel.hpp"

namespace rbegir::scan {
namespace {

struct Emulated512 {
    struct alignas(64) V {
        uint8_t byte[64];
    };
    static constexpr int LANES = 64, TILE = 1;

    RBEGIR_INLINE static V load(const uint8_t *p) {
        V v;
        __builtin_memcpy(v.byte, p, 64);
        return v;
    }
    RBEGIR_INLINE static void store(uint8_t *p, V v) { __builtin_memcpy(p, v.byte, 64); }
    RBEGIR_INLINE static V repeat16(const uint8_t *p) {
        return map8([=](int i) { return p[i % 16]; });
    }
    RBEGIR_INLINE static V zero() { return set8(0); }
    RBEGIR_INLINE static V set8(int x) {
        return map8([=](int) { return x; });
    }
    RBEGIR_INLINE static V set16(int x) {
        return map16([=](int) { return x; });
    }
    RBEGIR_INLINE static V add8(V a, V b) {
        return map8([&](int i) { return a.byte[i] + b.byte[i]; });
    }
    RBEGIR_INLINE static V adds8(V a, V b) {
        return map8([&](int i) { return least(a.byte[i] + b.byte[i], 255); });
    }
    RBEGIR_INLINE static V average8(V a, V b) {
        return map8([&](int i) { return (a.byte[i] + b.byte[i] + 1) / 2; });
    }
    RBEGIR_INLINE static V min8(V a, V b) {
        return map8([&](int i) { return least(a.byte[i], b.byte[i]); });
    }
    RBEGIR_INLINE static V popcount8(V a) {
        return map8([&](int i) { return __builtin_popcount(a.byte[i]); });
    }
    RBEGIR_INLINE static V add16(V a, V b) {
        return map16([&](int i) { return word(a, i) + word(b, i); });
    }
    RBEGIR_INLINE static V adds16(V a, V b) {
        return map16([&](int i) { return least(word(a, i) + word(b, i), 65535); });
    }
    RBEGIR_INLINE static V min16(V a, V b) {
        return map16([&](int i) { return least(word(a, i), word(b, i)); });
    }
    RBEGIR_INLINE static V shift_left16(V a, int by) {
        return map16([&](int i) { return word(a, i) << by; });
    }
    RBEGIR_INLINE static V shift_right16(V a, int by) {
        return map16([&](int i) { return word(a, i) >> by; });
    }
    RBEGIR_INLINE static V bit_and(V a, V b) {
        return map8([&](int i) { return a.byte[i] & b.byte[i]; });
    }
    RBEGIR_INLINE static V bit_or(V a, V b) {
        return map8([&](int i) { return a.byte[i] | b.byte[i]; });
    }
    RBEGIR_INLINE static V bit_xor(V a, V b) {
        return map8([&](int i) { return a.byte[i] ^ b.byte[i]; });
    }
    RBEGIR_INLINE static V select(V mask, V a, V b) {
        return map8([&](int i) { return (mask.byte[i] & a.byte[i]) | (~mask.byte[i] & b.byte[i]); });
    }
    RBEGIR_INLINE static V low_turns8(V a, V b) {
        return map8([&](int i) { return (i % 2 ? b : a).byte[i / 16 * 16 + i % 16 / 2]; });
    }
    RBEGIR_INLINE static V high_turns8(V a, V b) {
        return map8([&](int i) { return (i % 2 ? b : a).byte[i / 16 * 16 + 8 + i % 16 / 2]; });
    }
    RBEGIR_INLINE static V shuffle8(V table, V index) {
        return map8([&](int i) { return table.byte[i / 16 * 16 + index.byte[i] % 16]; });
    }
    RBEGIR_INLINE static V permute8(V low, V index, V high) {
        uint8_t table[128];
        store(table, low);
        store(table + 64, high);
        return map8([&](int i) { return table[index.byte[i] % 128]; });
    }
    template <class Numbers>
    RBEGIR_INLINE static uint32_t signs64(const Numbers &a) {
        uint32_t signs = 0;
        for (int i = 0; i < ABREAST; ++i) signs |= static_cast<uint32_t>(a[i] < 0) << i;
        return signs;
    }
    template <class Numbers>
    RBEGIR_INLINE static uint32_t nonzero64(const Numbers &a) {
        uint32_t lanes = 0;
        for (int i = 0; i < ABREAST; ++i) lanes |= static_cast<uint32_t>(a[i] != 0) << i;
        return lanes;
    }
    template <class Numbers>
    RBEGIR_INLINE static Numbers compress64(uint32_t lanes, const Numbers &a) {
        Numbers out{};
        for (int at = 0; lanes; lanes &= lanes - 1) out[at++] = a[__builtin_ctz(lanes)];
        return out;
    }
    template <class Numbers>
    RBEGIR_INLINE static void narrow64(const Numbers &a, uint16_t *out) {
        for (int i = 0; i < ABREAST; ++i) out[i] = static_cast<uint16_t>(a[i]);
    }
    template <class Numbers>
    RBEGIR_INLINE static void pairs64(const uint64_t *from, int width, const uint16_t *at, Numbers &first,
                                      Numbers &second) {
        for (int i = 0; i < ABREAST; ++i) {
            first[i] = from[static_cast<size_t>(width) * at[i]];
            second[i] = from[static_cast<size_t>(width) * at[i] + 1];
        }
    }
    RBEGIR_INLINE static V compress8(uint64_t lanes, V a) {
        V out = zero();
        for (int at = 0; lanes; lanes &= lanes - 1) out.byte[at++] = a.byte[__builtin_ctzll(lanes)];
        return out;
    }
    RBEGIR_INLINE static V fields8(V first, V a) {
        return map8([&](int i) {
            uint64_t number;
            __builtin_memcpy(&number, a.byte + i / 8 * 8, 8);
            return static_cast<int>((number >> first.byte[i] % 64 | number << (64 - first.byte[i]) % 64) & 255);
        });
    }
    RBEGIR_INLINE static V widen8(const uint8_t *p) {
        return map32([=](int i) { return p[i]; });
    }
    RBEGIR_INLINE static V repeat4(const uint8_t *p) {
        return map8([=](int i) { return p[i % 4]; });
    }
    RBEGIR_INLINE static V dot32(V sum, V a, V b) {
        return map32([&](int i) {
            int products = 0;
            for (int j = 4 * i; j < 4 * i + 4; ++j) products += a.byte[j] * static_cast<int8_t>(b.byte[j]);
            return static_cast<uint32_t>(number(sum, i)) + static_cast<uint32_t>(products);
        });
    }
    RBEGIR_INLINE static V permute32(V low, V index, V high) {
        return map32([&](int i) {
            const int from = number(index, i) & 31;
            return number(from < 16 ? low : high, from % 16);
        });
    }
    RBEGIR_INLINE static uint64_t at_least32(V a, V b) {
        uint64_t lanes = 0;
        for (int i = 0; i < 16; ++i) lanes |= static_cast<uint64_t>(number(a, i) >= number(b, i)) << i;
        return lanes;
    }
    RBEGIR_INLINE static uint64_t at_most8(V a, V b) {
        uint64_t lanes = 0;
        for (int i = 0; i < 64; ++i) lanes |= static_cast<uint64_t>(a.byte[i] <= b.byte[i]) << i;
        return lanes;
    }
    RBEGIR_INLINE static uint64_t at_most16(V even, V odd, V even_limit, V odd_limit) {
        uint64_t lanes = 0;
        for (int i = 0; i < 32; ++i) {
            lanes |= static_cast<uint64_t>(word(even, i) <= word(even_limit, i)) << (2 * i);
            lanes |= static_cast<uint64_t>(word(odd, i) <= word(odd_limit, i)) << (2 * i + 1);
        }
        return lanes;
    }
    RBEGIR_INLINE static void pin(V &) {}

  private:
    RBEGIR_INLINE static int least(int a, int b) { return a < b ? a : b; }
    RBEGIR_INLINE static int word(const V &v, int i) { return v.byte[2 * i] | v.byte[2 * i + 1] << 8; }
    RBEGIR_INLINE static int32_t number(const V &v, int i) {
        int32_t number;
        __builtin_memcpy(&number, v.byte + 4 * i, 4);
        return number;
    }
    template <class F>
    RBEGIR_INLINE static V map32(const F &f) {
        V v;
        for (int i = 0; i < 16; ++i) {
            const auto number = static_cast<uint32_t>(f(i));
            __builtin_memcpy(v.byte + 4 * i, &number, 4);
        }
        return v;
    }
    template <class F>
    RBEGIR_INLINE static V map8(const F &f) {
        V v;
        for (int i = 0; i < 64; ++i) v.byte[i] = static_cast<uint8_t>(f(i));
        return v;
    }
    template <class F>
    RBEGIR_INLINE static V map16(const F &f) {
        V v;
        for (int i = 0; i < 32; ++i) {
            const int x = f(i);
            v.byte[2 * i] = static_cast<uint8_t>(x);
            v.byte[2 * i + 1] = static_cast<uint8_t>(x >> 8);
        }
        return v;
    }
};

}  // namespace
}  // namespace rbegir::scan
