// Training batches: a few texts cut out of many tokenised ones, and the transposed bag of their grams.
//
// A batch is cut anew for every step, so this runs as often as the training step itself. The distinct words of
// a batch are found with a bitmap over all words of the chunk: setting bits removes duplicates, and a running
// count of bits numbers the words in ascending order, without sorting and without a table as large as the chunk.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "arrays.hpp"

namespace nb = nanobind;

namespace {

using rbegir::Array, rbegir::to_numpy;
using Ints = Array<const int32_t, 1>;
using Longs = Array<const int64_t, 1>;
using Vector = std::vector<int32_t>;

// SplitMix64 of key and counter, as a number in [0, 1)
double uniform(uint64_t key, uint64_t counter) {
    uint64_t z = counter * 0x9E3779B97F4A7C15u + key;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<double>(z ^ (z >> 31)) * 0x1p-64;
}

class WordSet {  // of numbers below `size`; `seal` before asking for places
public:
    explicit WordSet(size_t size) : bits_((size + 63) / 64), before_(bits_.size()) {}
    void insert(int32_t word) { bits_[word >> 6] |= uint64_t{1} << (word & 63); }
    int32_t seal() {
        int32_t total = 0;
        for (size_t i = 0; i < bits_.size(); ++i) {
            before_[i] = total;
            total += std::popcount(bits_[i]);
        }
        return total;
    }
    int32_t place(int32_t word) const {
        uint64_t below = bits_[word >> 6] & ((uint64_t{1} << (word & 63)) - 1);
        return before_[word >> 6] + std::popcount(below);
    }
    template <class Visit>
    void each(Visit &&visit) const {
        for (size_t i = 0; i < bits_.size(); ++i)
            for (uint64_t left = bits_[i]; left; left &= left - 1)
                visit(static_cast<int32_t>(64 * i + std::countr_zero(left)));
    }

private:
    std::vector<uint64_t> bits_;
    Vector before_;
};

struct Bags {
    Vector text_offsets, word_ids, gram_offsets, gram_ids;
};

Bags cut(const Ints &text_offsets, const Ints &word_ids, const Ints &gram_offsets, const Ints &gram_ids,
         const Ints &items, double dropout, double gram_dropout, uint64_t key, const Longs &places) {
    Bags out;
    const int32_t *texts = text_offsets.data(), *words = word_ids.data(), *grams = gram_offsets.data();
    out.text_offsets.reserve(items.size() + 1);
    out.text_offsets.push_back(0);
    WordSet present(gram_offsets.size() - 1);
    for (size_t i = 0; i < items.size(); ++i) {
        const int32_t start = texts[items.data()[i]], end = texts[items.data()[i] + 1];
        const size_t before = out.word_ids.size();
        for (int32_t at = start; at < end; ++at) {
            const uint64_t counter = static_cast<uint64_t>(places.data()[i]) * 65536 + (at - start);
            if (dropout > 0 && uniform(key, counter) < dropout) continue;
            out.word_ids.push_back(words[at]);
        }
        if (out.word_ids.size() == before && end > start) out.word_ids.push_back(words[start]);
        for (size_t w = before; w < out.word_ids.size(); ++w) present.insert(out.word_ids[w]);
        out.text_offsets.push_back(static_cast<int32_t>(out.word_ids.size()));
    }
    const int32_t distinct = present.seal();
    for (int32_t &word : out.word_ids) word = present.place(word);
    out.gram_offsets.reserve(distinct + 1);
    out.gram_offsets.push_back(0);
    present.each([&](int32_t word) {
        const int32_t *start = gram_ids.data() + grams[word], *end = gram_ids.data() + grams[word + 1];
        if (gram_dropout > 0) {
            const size_t before = out.gram_ids.size();
            uint64_t spelling = 0;  // not the word's number, which is another one in another process's chunk
            for (const int32_t *at = start; at < end; ++at) spelling = spelling * 0x100000001B3u + *at;
            for (const int32_t *at = start; at < end; ++at)
                if (uniform(key, spelling + (at - start)) >= gram_dropout) out.gram_ids.push_back(*at);
            if (out.gram_ids.size() == before && end > start) out.gram_ids.push_back(*start);
        } else {
            out.gram_ids.insert(out.gram_ids.end(), start, end);
        }
        out.gram_offsets.push_back(static_cast<int32_t>(out.gram_ids.size()));
    });
    return out;
}

struct Transposed {
    Vector rows, offsets, words;
};

Transposed transpose(const Ints &gram_offsets, const Ints &gram_ids) {
    Transposed out;
    const int32_t *ids = gram_ids.data();
    const int32_t largest = gram_ids.size() ? *std::max_element(ids, ids + gram_ids.size()) : -1;
    Vector next(largest + 1);  // grams of each id, then where the next word of that id goes
    for (size_t i = 0; i < gram_ids.size(); ++i) ++next[ids[i]];
    out.offsets.push_back(0);
    for (int32_t id = 0; id <= largest; ++id) {
        if (!next[id]) continue;
        out.rows.push_back(id);
        const int32_t start = out.offsets.back();
        out.offsets.push_back(start + next[id]);
        next[id] = start;
    }
    out.words.resize(gram_ids.size());
    for (size_t word = 0; word + 1 < gram_offsets.size(); ++word)
        for (int32_t at = gram_offsets.data()[word]; at < gram_offsets.data()[word + 1]; ++at)
            out.words[next[ids[at]]++] = static_cast<int32_t>(word);
    return out;
}

void check_offsets(const Ints &offsets, size_t limit, const char *name) {
    const int32_t *o = offsets.data();
    bool good = offsets.size() > 0 && o[0] == 0 && static_cast<size_t>(o[offsets.size() - 1]) <= limit &&
                std::is_sorted(o, o + offsets.size());
    if (!good) throw std::invalid_argument(std::string(name) + " must ascend from 0 and stay inside its array");
}

void check_range(const Ints &values, size_t limit, const char *name) {
    for (size_t i = 0; i < values.size(); ++i)
        if (values.data()[i] < 0 || static_cast<size_t>(values.data()[i]) >= limit)
            throw std::invalid_argument(std::string(name) + " is out of range");
}

}  // namespace

void bind_batch(nb::module_ &m) {
    m.def(
        "cut_batch",
        [](Ints text_offsets, Ints word_ids, Ints gram_offsets, Ints gram_ids, Ints items, double dropout,
           double gram_dropout, uint64_t key, Longs places) {
            Bags bags;
            {
                nb::gil_scoped_release free;
                // the large arrays are those of a tokenised chunk, checked by their maker; items is the caller's
                check_range(items, text_offsets.size() - 1, "items");
                if (places.size() != items.size()) throw std::invalid_argument("places must be one an item");
                bags = cut(text_offsets, word_ids, gram_offsets, gram_ids, items, dropout, gram_dropout, key, places);
            }
            return nb::make_tuple(to_numpy(std::move(bags.text_offsets)), to_numpy(std::move(bags.word_ids)),
                                  to_numpy(std::move(bags.gram_offsets)), to_numpy(std::move(bags.gram_ids)));
        },
        nb::arg("text_offsets"), nb::arg("word_ids"), nb::arg("gram_offsets"), nb::arg("gram_ids"), nb::arg("items"),
        nb::arg("dropout"), nb::arg("gram_dropout"), nb::arg("key"), nb::arg("places"));
    m.def(
        "transpose_grams",
        [](Ints gram_offsets, Ints gram_ids) {
            Transposed bag;
            {
                nb::gil_scoped_release free;
                check_offsets(gram_offsets, gram_ids.size(), "gram_offsets");
                check_range(gram_ids, size_t{1} << 31, "gram_ids");
                bag = transpose(gram_offsets, gram_ids);
            }
            return nb::make_tuple(to_numpy(std::move(bag.rows)), to_numpy(std::move(bag.offsets)),
                                  to_numpy(std::move(bag.words)));
        },
        nb::arg("gram_offsets"), nb::arg("gram_ids"));
}
