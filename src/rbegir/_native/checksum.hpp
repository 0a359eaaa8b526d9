// CRC-32C (Castagnoli), the checksum of every byte that rbegir stores.
//
// The instruction (crc32q on x86, crc32cx on ARM) takes 3 cycles but one can start every cycle, so a single chain of
// them idles two thirds of the time. Three neighbouring lanes of a buffer are therefore summed side by side and joined:
//
//     crc(A B C) = shift(shift(crc(A)) ^ crc(B)) ^ crc(C),      shift(x) = x · z^(8·lane) mod P
//
// shift is linear over GF(2), so it is four table lookups, one a byte of x. Lanes of two lengths keep both
// large blocks and 4 KiB blocks fast. CPUs without the instruction take the slicing-by-8 tables instead;
// tests force them through `portable=True`. PCLMUL folding was left out: three lanes already outrun memory.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "platform.hpp"

#if defined(__x86_64__)
#include <nmmintrin.h>
#define RBEGIR_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#define RBEGIR_CRC_TARGET
#endif

namespace rbegir::crc {

inline constexpr uint32_t POLYNOMIAL = 0x82F63B78u;  // of CRC-32C, bit-reversed

using Table = std::array<uint32_t, 256>;

constexpr std::array<Table, 8> make_slices() {
    std::array<Table, 8> slices{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
        slices[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; ++byte)
        for (size_t s = 1; s < 8; ++s)
            slices[s][byte] = (slices[s - 1][byte] >> 8) ^ slices[0][slices[s - 1][byte] & 0xFF];
    return slices;
}

inline constexpr std::array<Table, 8> SLICES = make_slices();

inline uint64_t load64(const uint8_t *at) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
    return word;
}

inline uint32_t update_portable(uint32_t crc, const uint8_t *at, size_t size) {
    for (; size >= 8; at += 8, size -= 8) {
        const uint64_t word = load64(at) ^ crc;
        crc = 0;
        for (size_t byte = 0; byte < 8; ++byte) crc ^= SLICES[7 - byte][(word >> (8 * byte)) & 0xFF];
    }
    for (; size; ++at, --size) crc = (crc >> 8) ^ SLICES[0][(crc ^ *at) & 0xFF];
    return crc;
}

#ifdef RBEGIR_CRC_TARGET

// The CRC with eight more bytes, in one instruction. Its target is named per function, since the rest of the module
// must run on CPUs without it. On ARM it is written as assembly: older versions of clang have the intrinsic only if
// the whole file is compiled for it.
#if defined(__x86_64__)
RBEGIR_CRC_TARGET inline uint64_t crc_of_8(uint64_t crc, uint64_t word) { return _mm_crc32_u64(crc, word); }
#else
inline uint64_t crc_of_8(uint64_t crc, uint64_t word) {
    asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}
#endif

inline constexpr size_t LONG = 8192, MIDDLE = 1360, SHORT = 128;  // 3 · 1360 = 4080 of the 4096 bytes of a block

// x · z^(8·lane) mod P as four lookups: the effect of feeding `lane` zero bytes to the register.
template <size_t lane>
struct Shift {
    std::array<Table, 4> tables;

    Shift() {
        std::array<uint32_t, 32> image;  // of each single bit
        const std::vector<uint8_t> zeros(lane);
        for (int bit = 0; bit < 32; ++bit) image[bit] = update_portable(1u << bit, zeros.data(), lane);
        for (int byte = 0; byte < 4; ++byte)
            for (uint32_t value = 0; value < 256; ++value) {
                uint32_t sum = 0;
                for (int bit = 0; bit < 8; ++bit)
                    if (value >> bit & 1) sum ^= image[8 * byte + bit];
                tables[byte][value] = sum;
            }
    }

    uint32_t operator()(uint32_t x) const {
        return tables[0][x & 0xFF] ^ tables[1][x >> 8 & 0xFF] ^ tables[2][x >> 16 & 0xFF] ^ tables[3][x >> 24];
    }
};

template <size_t lane>
const Shift<lane> &shift_of() {
    static const Shift<lane> shift;
    return shift;
}

template <size_t lane>
RBEGIR_CRC_TARGET void lanes(uint32_t &crc, const uint8_t *&at, size_t &size) {
    const Shift<lane> &shift = shift_of<lane>();
    for (; size >= 3 * lane; at += 3 * lane, size -= 3 * lane) {
        uint64_t a = crc, b = 0, c = 0;  // of 32 bits; wider, so that nothing is cut off between instructions
        for (size_t i = 0; i < lane; i += 8) {
            a = crc_of_8(a, load64(at + i));
            b = crc_of_8(b, load64(at + lane + i));
            c = crc_of_8(c, load64(at + 2 * lane + i));
        }
        crc = shift(shift(uint32_t(a)) ^ uint32_t(b)) ^ uint32_t(c);
    }
}

RBEGIR_CRC_TARGET inline uint32_t update_hardware(uint32_t crc, const uint8_t *at, size_t size) {
    lanes<LONG>(crc, at, size);
    lanes<MIDDLE>(crc, at, size);
    lanes<SHORT>(crc, at, size);
    for (; size >= 8; at += 8, size -= 8) crc = uint32_t(crc_of_8(crc, load64(at)));
    return update_portable(crc, at, size);
}

#endif

using Update = uint32_t (*)(uint32_t, const uint8_t *, size_t);

inline Update choose(bool portable) {
#ifdef RBEGIR_CRC_TARGET
    if (!portable && has_crc()) {
        // The tables are made here, where Python's lock is held: a fork cannot find them half made.
        shift_of<LONG>(), shift_of<MIDDLE>(), shift_of<SHORT>();
        return update_hardware;
    }
#endif
    (void)portable;
    return update_portable;
}

inline uint32_t checksum(Update update, uint32_t start, const uint8_t *at, size_t size) {
    return ~update(~start, at, size);
}

}  // namespace rbegir::crc
