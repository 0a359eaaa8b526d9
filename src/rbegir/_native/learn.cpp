// What a CPU runs natively of a training step: the maximum over windows, its gradient, and the update of the rows of a
// gram table. Each is one pass over memory where tensor operations need several.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"
#include "parallel.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using rbegir::Array;
using Ints = Array<const int32_t, 1>;

void expect(bool good, const char *what) {
    if (!good) throw std::invalid_argument(what);
}

// The texts of a batch: text t has the words ids[offsets[t]] … ids[offsets[t + 1] − 1], each below `unique`.
struct Batch {
    const int32_t *offsets, *ids;
    size_t texts;

    Batch(const Ints &text_offsets, const Ints &word_ids, size_t unique)
        : offsets(text_offsets.data()), ids(word_ids.data()), texts(text_offsets.size() - 1) {
        const size_t words = word_ids.size();
        expect(text_offsets.size() && offsets[0] == 0 && std::is_sorted(offsets, offsets + texts + 1) &&
                   size_t(offsets[texts]) == words,
               "text_offsets must ascend from 0 to the number of words");
        expect(std::all_of(ids, ids + words, [=](int32_t id) { return id >= 0 && size_t(id) < unique; }),
               "word_ids is out of range");
    }
};

// best[t] = the largest window of text t in each column, where[t] = the place of its middle word. A word's vector is
// left | centre | right, what it adds to the window after it, to its own, and to the one before it.
template <class T>
void window_max(Array<const T, 2> words, Ints text_offsets, Ints word_ids, Array<T, 2> best, Array<int32_t, 2> where) {
    nb::gil_scoped_release free;
    const Batch batch(text_offsets, word_ids, words.shape(0));
    const size_t width = words.shape(1) / 3;
    expect(best.shape(0) == batch.texts && where.shape(0) == batch.texts && best.shape(1) == width &&
               where.shape(1) == width && words.shape(1) == 3 * width,
           "best and where must be [texts, width]");
    const std::vector<T> nothing(width);
    for (size_t t = 0; t < batch.texts; ++t) {
        T *__restrict top = best.data() + t * width;
        int32_t *__restrict place = where.data() + t * width;
        const int32_t start = batch.offsets[t], end = batch.offsets[t + 1];
        for (int32_t at = start; at < end; ++at) {
            const auto vector = [&](int32_t position) { return words.data() + batch.ids[position] * 3 * width; };
            const T *left = at > start ? vector(at - 1) : nothing.data();
            const T *centre = vector(at) + width;
            const T *right = at + 1 < end ? vector(at + 1) + 2 * width : nothing.data();
            if (at == start)
                for (size_t j = 0; j < width; ++j) top[j] = left[j] + centre[j] + right[j], place[j] = at;
            else
                for (size_t j = 0; j < width; ++j) {
                    const T window = left[j] + centre[j] + right[j];
                    place[j] = window > top[j] ? at : place[j];
                    top[j] = window > top[j] ? window : top[j];
                }
        }
    }
}

// total = the gradient of the word vectors: that of each maximum goes to the three words of its window.
template <class T>
void window_max_gradient(Array<const T, 2> grad, Array<const int32_t, 2> where, Ints text_offsets, Ints word_ids,
                         Array<T, 2> total) {
    nb::gil_scoped_release free;
    const Batch batch(text_offsets, word_ids, total.shape(0));
    const size_t width = total.shape(1) / 3;
    expect(grad.shape(0) == batch.texts && where.shape(0) == batch.texts && grad.shape(1) == width &&
               where.shape(1) == width && total.shape(1) == 3 * width,
           "grad and where must be [texts, width]");
    std::fill_n(total.data(), total.size(), T(0));
    for (size_t t = 0; t < batch.texts; ++t) {
        const int32_t start = batch.offsets[t], end = batch.offsets[t + 1];
        for (size_t j = 0; j < width && start < end; ++j) {
            const T g = grad.data()[t * width + j];
            const int32_t at = std::clamp(where.data()[t * width + j], start, end - 1);
            const auto part = [&](int32_t position, size_t third) -> T & {
                return total.data()[(batch.ids[position] * 3 + third) * width + j];
            };
            part(at, 1) += g;
            if (at > start) part(at - 1, 0) += g;
            if (at + 1 < end) part(at + 1, 2) += g;
        }
    }
}

float mean_square(const float *values, size_t count) {
    constexpr size_t LANES = 8;
    float sums[LANES] = {};
    size_t j = 0;
    for (; j + LANES <= count; j += LANES)
        for (size_t l = 0; l < LANES; ++l) sums[l] += values[j + l] * values[j + l];
    for (; j < count; ++j) sums[0] += values[j] * values[j];
    float total = 0;
    for (float sum : sums) total += sum;
    return total / float(count);
}

// The step of `RowRMS` (training/step.py) on a table [rows, 3c]. A row may occur several times: its values are added.
void update_rows(Array<float, 2> table, Array<float, 2> second, Array<float, 1> steps, Array<const int64_t, 1> rows,
                 Array<const float, 2> values, float rate, float beta, float eps, size_t threads) {
    nb::gil_scoped_release free;
    const size_t width = table.shape(1), part = width / 3;
    expect(width == 3 * part && second.shape(0) == table.shape(0) && second.shape(1) == 3 &&
               steps.shape(0) == table.shape(0),
           "second must be [rows, 3] and steps [rows] of a table [rows, 3c]");
    expect(values.shape(0) == rows.size() && values.shape(1) == width, "values must be [rows, 3c]");
    struct Touched {
        int64_t row;
        const float *gradient;
    };
    std::vector<Touched> touched(rows.size());
    for (size_t i = 0; i < touched.size(); ++i) {
        touched[i] = {rows.data()[i], values.data() + i * width};
        expect(touched[i].row >= 0 && size_t(touched[i].row) < table.shape(0), "rows is out of range");
    }
    std::stable_sort(touched.begin(), touched.end(), [](const Touched &a, const Touched &b) { return a.row < b.row; });
    const auto border = [&](size_t i) {  // the first of a row's gradients at i or after it
        while (i > 0 && i < touched.size() && touched[i].row == touched[i - 1].row) ++i;
        return i;
    };
    rbegir::in_parallel(threads, [&](size_t thread) {
        std::vector<float> sum(width);
        const size_t end = border(touched.size() * (thread + 1) / threads);
        for (size_t i = border(touched.size() * thread / threads), next; i < end; i = next) {
            const size_t row = size_t(touched[i].row);
            const float *gradient = touched[i].gradient;
            for (next = i + 1; next < end && touched[next].row == touched[i].row; ++next) {
                for (size_t j = 0; j < width; ++j) sum[j] = gradient[j] + touched[next].gradient[j];
                gradient = sum.data();
            }
            const float count = steps.data()[row] += 1;
            for (size_t p = 0; p < 3; ++p) {
                const float *__restrict g = gradient + p * part;
                float *__restrict to = table.data() + row * width + p * part;
                float &v = second.data()[row * 3 + p];
                v += (mean_square(g, part) - v) * (1 - beta);
                const float scale = rate / (std::sqrt(v / (1 - std::pow(beta, count))) + eps);
                for (size_t j = 0; j < part; ++j) to[j] -= scale * g[j];
            }
        }
    });
}

template <class T>
void bind_windows(nb::module_ &m) {
    m.def("window_max", window_max<T>, "words"_a, "text_offsets"_a, "word_ids"_a, "best"_a.noconvert(),
          "where"_a.noconvert());
    m.def("window_max_gradient", window_max_gradient<T>, "grad"_a, "where"_a, "text_offsets"_a, "word_ids"_a,
          "total"_a.noconvert());
}

}  // namespace

void bind_learn(nb::module_ &m) {
    bind_windows<float>(m);
    bind_windows<double>(m);
    m.def("update_rows", update_rows, "table"_a.noconvert(), "second"_a.noconvert(), "steps"_a.noconvert(), "rows"_a,
          "values"_a, "rate"_a, "beta"_a, "eps"_a, "threads"_a);
}
