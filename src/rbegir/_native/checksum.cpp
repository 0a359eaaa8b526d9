// The bindings of CRC-32C (checksum.hpp).
#include "checksum.hpp"

#include <algorithm>

#include "arrays.hpp"

namespace nb = nanobind;
using rbegir::Array, rbegir::to_numpy;
using namespace rbegir::crc;

namespace {

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

nb::object crc32c_blocks(nb::handle buffer, size_t block, Array<const int64_t, 1> indices) {
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
    return to_numpy(std::move(sums), count);
}

}  // namespace

void bind_checksum(nb::module_ &m) {
    using namespace nb::literals;
    m.def("crc32c", &crc32c, "buffer"_a, "start"_a = 0, "portable"_a = false,
          "CRC-32C of a buffer, continuing from the CRC of what came before it.");
    m.def("crc32c_blocks", &crc32c_blocks, "buffer"_a, "block"_a, "indices"_a,
          "CRC-32C of each of the given blocks of `block` bytes of a buffer (the last block may be short).");
}
