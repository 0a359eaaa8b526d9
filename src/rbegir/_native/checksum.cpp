// CRC-32C (Castagnoli), the checksum of every byte that rbegir stores.
//
// The instruction crc32q takes 3 cycles but one can start every cycle, so a single chain of them idles two
// thirds of the time. Three neighbouring lanes of a buffer are therefore summed side by side and joined:
//
//     crc(A B C) = shift(shift(crc(A)) ^ crc(B)) ^ crc(C),      shift(x) = x · z^(8·lane) mod P
//
// shift is linear over GF(2), so it is four table lookups, one a byte of x. Lanes of two lengths keep both
// large blocks and 4 KiB blocks fast. CPUs without the instruction take the slicing-by-8 tables instead;
// tests force them through `portable=True`. PCLMUL folding was left out: three lanes already outrun memory.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define RBEGIR_CRC_X86 1
#endif

namespace nb = nanobind;

namespace {

constexpr uint32_t POLYNOMIAL = 0x82F63B78u;  // of CRC-32C, bit-reversed

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

constexpr std::array<Table, 8> SLICES = make_slices();

uint64_t load64(const uint8_t *at) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
    return word;
}

uint32_t update_portable(uint32_t crc, const uint8_t *at, size_t size) {
    for (; size >= 8; at += 8, size -= 8) {
        const uint64_t word = load64(at) ^ crc;
        crc = 0;
        for (size_t byte = 0; byte < 8; ++byte) crc ^= SLICES[7 - byte][(word >> (8 * byte)) & 0xFF];
    }
    for (; size; ++at, --size) crc = (crc >> 8) ^ SLICES[0][(crc ^ *at) & 0xFF];
    return crc;
}

#ifdef RBEGIR_CRC_X86

constexpr size_t LONG = 8192, MIDDLE = 1360, SHORT = 128;  // 3 · 1360 = 4080 of the 4096 bytes of a block

// x · z^(8·lane) mod P as four lookups: the effect of feeding `lane` zero bytes to the register.
template <size_t lane> struct Shift {
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
__attribute__((target("sse4.2"))) void lanes(uint32_t &crc, const uint8_t *&at, size_t &size) {
    const Shift<lane> &shift = shift_of<lane>();
    for (; size >= 3 * lane; at += 3 * lane, size -= 3 * lane) {
        uint64_t a = crc, b = 0, c = 0;
        for (size_t i = 0; i < lane; i += 8) {
            a = _mm_crc32_u64(a, load64(at + i));
            b = _mm_crc32_u64(b, load64(at + lane + i));
            c = _mm_crc32_u64(c, load64(at + 2 * lane + i));
        }
        crc = shift(shift(uint32_t(a)) ^ uint32_t(b)) ^ uint32_t(c);
    }
}

__attribute__((target("sse4.2"))) uint32_t update_sse42(uint32_t crc, const uint8_t *at, size_t size) {
    lanes<LONG>(crc, at, size);
    lanes<MIDDLE>(crc, at, size);
    lanes<SHORT>(crc, at, size);
    uint64_t wide = crc;
    for (; size >= 8; at += 8, size -= 8) wide = _mm_crc32_u64(wide, load64(at));
    crc = uint32_t(wide);
    for (; size; ++at, --size) crc = _mm_crc32_u8(crc, *at);
    return crc;
}

#endif

using Update = uint32_t (*)(uint32_t, const uint8_t *, size_t);

Update choose(bool portable) {
#ifdef RBEGIR_CRC_X86
    if (!portable && __builtin_cpu_supports("sse4.2")) {
        // The tables are made here, where Python's lock is held: a fork cannot find them half made.
        shift_of<LONG>(), shift_of<MIDDLE>(), shift_of<SHORT>();
        return update_sse42;
    }
#endif
    (void)portable;
    return update_portable;
}

uint32_t checksum(Update update, uint32_t start, const uint8_t *at, size_t size) {
    return ~update(~start, at, size);
}

// Any contiguous read-only buffer: bytes, memoryview, mmap, a NumPy array of any dtype.
class Bytes {
  public:
    explicit Bytes(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE)) throw nb::python_error();
    }
    ~Bytes() { PyBuffer_Release(&view_); }
    Bytes(const Bytes &) = delete;
    Bytes &operator=(const Bytes &) = delete;
    const uint8_t *data() const { return static_cast<const uint8_t *>(view_.buf); }
    size_t size() const { return size_t(view_.len); }

  private:
    Py_buffer view_;
};

uint32_t crc32c(nb::handle buffer, uint32_t start, bool portable) {
    const Bytes bytes(buffer);
    const Update update = choose(portable);
    nb::gil_scoped_release release;
    return checksum(update, start, bytes.data(), bytes.size());
}

using Indices = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sums = nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>>;

Sums crc32c_blocks(nb::handle buffer, size_t block, Indices indices) {
    const Bytes bytes(buffer);
    if (!block) throw nb::value_error("block must be positive");
    const size_t count = indices.shape(0), blocks = (bytes.size() + block - 1) / block;
    for (size_t i = 0; i < count; ++i)
        if (indices.data()[i] < 0 || size_t(indices.data()[i]) >= blocks)
            throw nb::index_error("a block index lies outside the buffer");
    auto sums = std::make_unique<uint32_t[]>(count);
    const Update update = choose(false);
    {
        nb::gil_scoped_release release;
        for (size_t i = 0; i < count; ++i) {
            const size_t from = size_t(indices.data()[i]) * block;
            sums[i] = checksum(update, 0, bytes.data() + from, std::min(block, bytes.size() - from));
        }
    }
    uint32_t *raw = sums.release();
    nb::capsule owner(raw, [](void *p) noexcept { delete[] static_cast<uint32_t *>(p); });
    return Sums(raw, {count}, owner);
}

}  // namespace

void bind_checksum(nb::module_ &m) {
    using namespace nb::literals;
    m.def("crc32c", &crc32c, "buffer"_a, "start"_a = 0, "portable"_a = false,
          "CRC-32C of a buffer, continuing from the CRC of what came before it.");
    m.def("crc32c_blocks", &crc32c_blocks, "buffer"_a, "block"_a, "indices"_a,
          "CRC-32C of each of the given blocks of `block` bytes of a buffer (the last block may be short).");
}
