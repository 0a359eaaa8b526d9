// One side of a model without torch: texts → words → windows → max pooling → tanh layers → RBE planes or floats.
//
// A thread takes texts in blocks. Each text is pooled word by word, from cached word vectors; the small dense
// products then run over the block, whose activations and weights stay in the second-level cache.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <optional>

#include "arrays.hpp"
#include "float_kernels.hpp"
#include "parallel.hpp"
#include "texts.hpp"
#include "word_cache.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tower {

namespace {

using rbegir::floats::Kernels, rbegir::floats::padded, rbegir::floats::ROW_TILE;

constexpr size_t BLOCK = 16 * ROW_TILE;  // texts whose activations are computed together

using Table = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;  // of either type
using Matrix = rbegir::Array<const float, 2>;
using Bias = rbegir::Array<const float, 1>;  // empty: no bias

// A dense layer, its weight turned to [in, out] and padded with zero columns.
struct Dense {
    size_t depth, columns;
    std::vector<float> weight, bias;

    Dense(const Matrix &w, const Bias &b) : depth(w.shape(1)), columns(padded(w.shape(0))) {
        if (b.shape(0) && b.shape(0) != w.shape(0)) throw nb::value_error("bias and weight differ in length");
        weight.resize(depth * columns);
        bias.resize(columns);
        for (size_t o = 0; o < w.shape(0); ++o)
            for (size_t i = 0; i < depth; ++i) weight[i * columns + o] = w.data()[o * depth + i];
        std::copy_n(b.data(), b.shape(0), bias.begin());
    }

    void operator()(const Kernels &kernels, const std::vector<float> &in, size_t in_stride, size_t rows,
                    std::vector<float> &out) const {
        out.resize(BLOCK * columns);
        kernels.multiply(in.data(), in_stride, rows, depth, weight.data(), bias.data(), columns, out.data(), columns);
    }
};

}  // namespace

class Tower {
public:
    // `conv` is the gram table, of floats, or of bytes with a scale for each third of a row.
    Tower(Table conv, std::optional<Matrix> scales, Bias conv_bias, size_t cache_words, const std::string &isa)
        : kernels_(rbegir::floats::kernels(isa)), width_(conv.shape(1) / 3), cache_words_(cache_words) {
        if (conv.dtype() == nb::dtype<float>() && !scales)
            table_ = static_cast<const float *>(conv.data());
        else if (conv.dtype() == nb::dtype<int8_t>() && scales && scales->shape(0) == conv.shape(0) && scales->shape(1) == 3)
            bytes_ = static_cast<const int8_t *>(conv.data()), scales_ = scales->data();
        else
            throw nb::type_error("the gram table must be float32, or int8 with float32 scales [rows, 3]");
        if (conv.shape(0) <= size_t(words::VOCABULARY) || conv.shape(1) % 3 || !width_)
            throw nb::value_error("the gram table must be [VOCABULARY + buckets, 3 * conv]");
        if (conv_bias.shape(0) && conv_bias.shape(0) != width_) throw nb::value_error("bias must be [conv]");
        buckets_ = uint32_t(conv.shape(0) - words::VOCABULARY);
        bias_.assign(width_, 0.0f);
        std::copy_n(conv_bias.data(), conv_bias.shape(0), bias_.begin());
        top_ = width_;
    }

    Tower(const Tower &) = delete;
    ~Tower() {
        for (std::atomic<Work *> &place : idle_) delete place.load();
    }

    void add_hidden(const Matrix &weight, const Bias &bias) {
        expect(!head_ && weight.shape(1) == top_);
        hidden_.emplace_back(weight, bias);
        top_ = weight.shape(0);
    }

    // The first product: ρ of it is plane 0, or, of a float side, tanh of it is the vector.
    void set_head(const Matrix &weight, const Bias &bias) {
        expect(!head_ && weight.shape(1) == top_ && weight.shape(0) % 64 == 0);
        head_.emplace(weight, bias);
        n_ = weight.shape(0);
    }

    // The iteration that makes plane t: reconstruct with B, project the rest with R. `worth` is (½)^t.
    void add_iteration(const Matrix &b, const Bias &b_bias, const Matrix &r, const Bias &r_bias, float worth) {
        expect(b.shape(1) == n_ && b.shape(0) == top_ && r.shape(1) == top_ && r.shape(0) == n_);
        iterations_.push_back({Dense(b, b_bias), Dense(r, r_bias), worth});
    }

    // Fill planes[:, start : start + texts]; returns the first text without a word, or −1.
    int64_t encode(const Texts &texts, rbegir::Array<uint64_t, 3> planes, size_t start, size_t threads) {
        size_t total = planes.shape(1), words = planes.shape(2);
        expect(head_ && planes.shape(0) == iterations_.size() + 1 && words * 64 == n_ && fits(texts, start, total));
        uint64_t *out = planes.data();
        return run(texts, threads, [=, this](size_t first, size_t count, Work &work) {
            planes_of(count, work, out + (start + first) * words, total * words);
        });
    }

    // Fill vectors[start : start + texts] of a float side; returns as above.
    int64_t embed(const Texts &texts, rbegir::Array<float, 2> vectors, size_t start, size_t threads) {
        expect(head_ && iterations_.empty() && vectors.shape(1) == n_ && fits(texts, start, vectors.shape(0)));
        float *out = vectors.data();
        return run(texts, threads, [=, this](size_t first, size_t count, Work &work) {
            project(count, work);
            kernels_.tanh(work.signs.data(), count * n_);
            std::copy_n(work.signs.data(), count * n_, out + (start + first) * n_);
        });
    }

    const char *isa() const { return kernels_.name; }

private:
    // What a thread needs: its word cache, and the activations of a block.
    struct Work {
        WordCache cache;
        std::string folded, bounded;
        std::vector<int32_t> grams;
        std::vector<float> open, next;    // [conv] windows of a text that still miss words
        std::vector<float> f, rest;       // [BLOCK, m] f and f − tanh(B b)
        std::vector<float> signs, total;  // [BLOCK, n] what ρ is taken of, and b
        std::vector<float> swap;
    };
    struct Iteration {
        Dense reconstruct, project;
        float worth;
    };

    static bool fits(const Texts &texts, size_t start, size_t total) {
        return start <= total && texts.size() <= total - start;
    }

    static void expect(bool ok) {
        if (!ok) throw nb::value_error("shapes do not belong together");
    }

    // Threads borrow a Work, so that word caches outlive calls, whoever calls. No lock: one that was held during a fork
    // would stay locked in the child for ever.
    std::unique_ptr<Work> borrow() {
        for (std::atomic<Work *> &place : idle_)
            if (Work *work = place.exchange(nullptr)) return std::unique_ptr<Work>(work);
        return std::unique_ptr<Work>(new Work{WordCache(cache_words_, 3 * width_), {}, {}, {}, {}, {}, {}, {}, {}, {}, {}});
    }

    void give_back(std::unique_ptr<Work> work) {
        for (std::atomic<Work *> &place : idle_) {
            Work *none = nullptr;
            if (place.compare_exchange_strong(none, work.get())) return void(work.release());
        }
    }

    template <class Finish>
    int64_t run(const Texts &texts, size_t threads, Finish &&finish) {
        nb::gil_scoped_release released;
        const size_t blocks = (texts.size() + BLOCK - 1) / BLOCK, none = texts.size();
        std::atomic<size_t> next = 0, empty = none;
        rbegir::in_parallel(std::min(std::max<size_t>(threads, 1), blocks), [&](size_t) {
            auto work = borrow();
            for (size_t block; (block = next++) < blocks;) {
                size_t first = block * BLOCK, count = std::min(BLOCK, texts.size() - first);
                size_t wordless = pool(texts, first, count, *work);
                for (size_t seen = empty; wordless < seen && !empty.compare_exchange_weak(seen, wordless);) {
                }
                hidden(count, *work);
                finish(first, count, *work);
            }
            give_back(std::move(work));
        });
        return empty == none ? -1 : int64_t(empty);
    }

    // f = tanh(max over the windows), row by row; returns the first text without a word, or SIZE_MAX.
    size_t pool(const Texts &texts, size_t first, size_t count, Work &work) const {
        constexpr float LOWEST = -std::numeric_limits<float>::infinity();
        size_t wordless = std::numeric_limits<size_t>::max();
        work.f.assign(BLOCK * padded(width_), 0.0f);
        for (size_t i = 0; i < count; ++i) {
            float *peak = work.f.data() + i * padded(width_);
            bool any = false;
            texts.split(first + i, work.folded, [&](std::string_view word) {
                if (!any) {
                    any = true;
                    std::fill_n(peak, width_, LOWEST);
                    work.open.assign(width_, LOWEST);
                    work.next = bias_;
                }
                auto [vector, known] = work.cache.find(word);
                if (!known) {
                    work.grams.clear();
                    words::grams(word, buckets_, work.bounded, work.grams);
                    if (table_)
                        kernels_.sum_rows(table_, 3 * width_, work.grams.data(), work.grams.size(), vector);
                    else
                        kernels_.sum_bytes(bytes_, scales_, 3 * width_, work.grams.data(), work.grams.size(), vector);
                }
                kernels_.slide(vector, bias_.data(), width_, work.open.data(), work.next.data(), peak);
            });
            if (!any)
                wordless = std::min(wordless, first + i);
            else
                for (size_t j = 0; j < width_; ++j) peak[j] = std::max(peak[j], work.open[j]);
        }
        kernels_.tanh(work.f.data(), count * padded(width_));
        return wordless;
    }

    void hidden(size_t count, Work &work) const {
        size_t stride = padded(width_);
        for (const Dense &layer : hidden_) {
            layer(kernels_, work.f, stride, count, work.swap);
            kernels_.tanh(work.swap.data(), count * layer.columns);
            std::swap(work.f, work.swap);
            stride = layer.columns;
        }
    }

    void project(size_t count, Work &work) const {
        (*head_)(kernels_, work.f, padded(top_), count, work.signs);
    }

    // b⁰ = ρ(W f);  plane t = ρ(R (f − tanh(B b))), b += (½)^t · plane t.
    void planes_of(size_t count, Work &work, uint64_t *out, size_t plane_stride) const {
        const size_t m = padded(top_);
        project(count, work);
        work.total.assign(BLOCK * n_, 0.0f);
        take_signs(count, 1.0f, work, out);
        for (const Iteration &iteration : iterations_) {
            iteration.reconstruct(kernels_, work.total, n_, count, work.rest);
            kernels_.tanh(work.rest.data(), count * m);
            for (size_t i = 0; i < count * m; ++i) work.rest[i] = work.f[i] - work.rest[i];
            iteration.project(kernels_, work.rest, m, count, work.signs);
            take_signs(count, iteration.worth, work, out += plane_stride);
        }
    }

    // ρ(x) = +1 for x > 0, else −1: into the bits of codes/planes.py and, by its worth, into b.
    void take_signs(size_t count, float worth, Work &work, uint64_t *out) const {
        const float *x = work.signs.data();
        float *b = work.total.data();
        for (size_t i = 0; i < count * n_; ++i) b[i] += x[i] > 0 ? worth : -worth;
        for (size_t word = 0; word < count * n_ / 64; ++word, x += 64) {
            uint64_t bits = 0;
            for (size_t d = 0; d < 64; ++d) bits |= uint64_t(x[d] > 0) << d;
            out[word] = bits;
        }
    }

    const Kernels &kernels_;
    // [VOCABULARY + buckets, 3 · conv] of floats, or of bytes with scales [VOCABULARY + buckets, 3]: memory-mapped; the
    // binding keeps them alive
    const float *table_ = nullptr, *scales_ = nullptr;
    const int8_t *bytes_ = nullptr;
    size_t width_, cache_words_, top_ = 0, n_ = 0;
    uint32_t buckets_ = 0;
    std::vector<float> bias_;
    std::vector<Dense> hidden_;
    std::optional<Dense> head_;
    std::vector<Iteration> iterations_;
    std::vector<std::atomic<Work *>> idle_{std::max(64u, std::thread::hardware_concurrency())};
};

}  // namespace tower

void bind_tower(nb::module_ &m) {
    using tower::Tower;
    nb::class_<Tower>(m, "Tower", "One side of a model: texts to planes or float vectors, without torch.")
        .def(nb::init<tower::Table, std::optional<tower::Matrix>, tower::Bias, size_t, const std::string &>(),
             "conv"_a.noconvert(), "scales"_a.noconvert().none(), "bias"_a, "cache_words"_a, "isa"_a,
             nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())  // converted ones would not be kept alive
        .def("add_hidden", &Tower::add_hidden)
        .def("set_head", &Tower::set_head)
        .def("add_iteration", &Tower::add_iteration)
        .def("encode", &Tower::encode, "texts"_a, "planes"_a.noconvert(), "start"_a, "threads"_a)
        .def("embed", &Tower::embed, "texts"_a, "vectors"_a.noconvert(), "start"_a, "threads"_a)
        .def_prop_ro("isa", &Tower::isa);
}
