// Products and roundings of rows, the same bits in any batch and on any machine (float_kernels.hpp says how).
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

#include "arrays.hpp"
#include "float_kernels.hpp"
#include "parallel.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace rbegir;

namespace {

constexpr size_t ROWS = 16 * floats::ROW_TILE;  // rows that a thread takes at a time
constexpr size_t FEW = 4 * floats::ROW_TILE;    // rows that are not worth the copy of a matrix

using In = Array<const float, 2>;

// The columns of a matrix in panels of a tile's width, each contiguous: the rows of a panel that lie a large power of
// two apart would evict each other from the cache. The last panel is padded with zeros to COLUMN_PAD.
class Panels {
public:
    Panels(const float *matrix, size_t depth, size_t columns, size_t panel)
        : depth_(depth), width_(floats::padded(columns)),
          panel_(panel), zeros_(panel), values_(depth * width_) {
        for (size_t c = 0; c < columns; c += panel)
            for (size_t k = 0; k < depth; ++k)
                std::copy_n(matrix + k * columns + c, std::min(panel, columns - c), values_.data() + at(c, k));
    }

    size_t width() const { return width_; }

    void multiply(const floats::Kernels &kernels, const float *in, size_t rows, float *out) const {
        for (size_t c = 0; c < width_; c += panel_)
            kernels.multiply(in, depth_, rows, depth_, values_.data() + at(c, 0), zeros_.data(),
                             std::min(panel_, width_ - c), out + c, width_);
    }

private:
    size_t at(size_t column, size_t k) const { return column * depth_ + k * std::min(panel_, width_ - column); }
    size_t depth_, width_, panel_;
    std::vector<float> zeros_, values_;
};

nb::object product(In a, In b, size_t threads, const std::string &isa) {
    const size_t rows = a.shape(0), depth = a.shape(1), columns = b.shape(1);
    if (b.shape(0) != depth || !threads) throw nb::value_error("a must be [rows, depth], b [depth, columns]");
    const floats::Kernels &kernels = floats::kernels(isa);
    std::unique_ptr<float[]> out(new float[rows * columns]);
    {
        nb::gil_scoped_release release;
        if (rows < FEW && columns % floats::COLUMN_PAD == 0) {
            const std::vector<float> zeros(columns);
            kernels.multiply(a.data(), depth, rows, depth, b.data(), zeros.data(), columns, out.get(), columns);
        } else {
            const Panels panels(b.data(), depth, columns, kernels.panel);
            std::atomic<size_t> next{0};
            in_parallel(std::min(threads, (rows + ROWS - 1) / ROWS), [&](size_t) {
                std::vector<float> wide(panels.width() == columns ? 0 : ROWS * panels.width());
                for (size_t first; (first = next.fetch_add(ROWS)) < rows;) {
                    const size_t count = std::min(ROWS, rows - first);
                    float *to = out.get() + first * columns;
                    panels.multiply(kernels, a.data() + first * depth, count, wide.empty() ? to : wide.data());
                    for (size_t r = 0; r < count && !wide.empty(); ++r)
                        std::copy_n(wide.data() + r * panels.width(), columns, to + r * columns);
                }
            });
        }
    }
    return to_numpy(std::move(out), rows, columns);
}

nb::object dots(In a, In b, const std::string &isa) {
    const size_t rows = a.shape(0), width = a.shape(1);
    if (b.shape(0) != rows || b.shape(1) != width) throw nb::value_error("a and b must have one shape");
    const floats::Kernels &kernels = floats::kernels(isa);
    std::unique_ptr<float[]> out(new float[rows]);
    {
        nb::gil_scoped_release release;
        for (size_t i = 0; i < rows; ++i) out[i] = kernels.dot(a.data() + i * width, b.data() + i * width, width);
    }
    return to_numpy(std::move(out), rows);
}

// Cosines [keywords] of each keyword with its query: offsets[i] ≤ j < offsets[i + 1] for keyword j of query i.
nb::object group_cosines(In queries, In keywords, Array<const int64_t, 1> offsets, const std::string &isa) {
    const size_t count = queries.shape(0), rows = keywords.shape(0), width = queries.shape(1);
    const int64_t *at = offsets.data();
    if (keywords.shape(1) != width || offsets.shape(0) != count + 1 || at[0] != 0 || at[count] != int64_t(rows) ||
        !std::is_sorted(at, at + count + 1))
        throw nb::value_error("offsets must divide the keywords among the queries, all of one width");
    const floats::Kernels &kernels = floats::kernels(isa);
    std::unique_ptr<float[]> out(new float[rows]);
    {
        nb::gil_scoped_release release;
        for (size_t i = 0; i < count; ++i) {
            const float *query = queries.data() + i * width, length = kernels.dot(query, query, width);
            for (size_t j = size_t(at[i]); j < size_t(at[i + 1]); ++j) {
                const float *keyword = keywords.data() + j * width;
                const float scale = std::sqrt(length * kernels.dot(keyword, keyword, width));
                out[j] = scale > 0 ? kernels.dot(query, keyword, width) / scale : 0.0f;
            }
        }
    }
    return to_numpy(std::move(out), rows);
}

nb::object nearest(In y, int planes, Array<const float, 1> steps, size_t threads, const std::string &isa) {
    const size_t rows = y.shape(0), n = y.shape(1);
    if (planes < 1 || planes > 8 || !n || !steps.shape(0) || !threads)
        throw nb::value_error("planes must be 1 to 8; n, steps and threads at least one");
    const floats::Kernels &kernels = floats::kernels(isa);
    const auto limit = float((1 << planes) - 1);
    std::unique_ptr<int16_t[]> out(new int16_t[rows * n]);
    {
        nb::gil_scoped_release release;
        std::atomic<size_t> next{0};
        in_parallel(std::min(threads, (rows + ROWS - 1) / ROWS), [&](size_t) {
            std::vector<float> scratch(3 * floats::padded(n));
            for (size_t first; (first = next.fetch_add(ROWS)) < rows;)
                for (size_t i = first; i < std::min(first + ROWS, rows); ++i)
                    kernels.nearest(y.data() + i * n, n, limit, steps.data(), steps.shape(0), scratch.data(),
                                    out.get() + i * n);
        });
    }
    return to_numpy(std::move(out), rows, n);
}

}  // namespace

void bind_product(nb::module_ &m) {
    m.def("product", &product, "a"_a, "b"_a, "threads"_a, "isa"_a, "a · b of [rows, depth] and [depth, columns].");
    m.def("nearest", &nearest, "y"_a, "planes"_a, "steps"_a, "threads"_a, "isa"_a,
          "The odd integers [rows, n] nearest in direction to y [rows, n], of the roundings with each step.");
    m.def("group_cosines", &group_cosines, "queries"_a, "keywords"_a, "offsets"_a, "isa"_a,
          "Cosines [keywords] of keywords [keywords, width] with the queries [queries, width] they are candidates of.");
    m.def("dots", &dots, "a"_a, "b"_a, "isa"_a, "Inner products [rows] of the rows of a and b [rows, width].");
}
