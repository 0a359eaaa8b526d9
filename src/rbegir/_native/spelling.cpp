// How alike a query and a keyword are spelled: the features that a reranker combines with codes and vectors. They have
// the same bits on every machine: sums run in a fixed order, and nothing but + − · / √ is used.
#include "spelling.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cmath>

#include "parallel.hpp"

namespace spelling {

namespace {

constexpr const char *NAMES[] = {
    "gram cosine",            // of idf-weighted tri-letter grams
    "query words found",      // share of the query's idf whose words stand in the keyword
    "keyword words found",    // and the other way round
    "query words alike",      // the same with alike() instead of equality
    "keyword words alike",
    "lexical score",          // S(q, t) over the idf of the query
    "common prefix",          // share of the query's letters
    "length",                 // (k − q) / (k + q) for k letters of the keyword and q of the query
    "length difference",      // its size
    "query numbers missing",  // words with digits of the query that the keyword lacks, up to 2
    "keyword numbers missing",
    "acronym",                // one is the other's initials
    "first letter",           // is the same
    "more words",             // of the keyword than of the query, within ±4
    "word pairs found",       // share of the neighbours in the query that are neighbours in the keyword
    "letters alike",          // 1 − edit distance of the letters without spaces, over the longer length
    "query words",            // up to 8
};
constexpr size_t FEATURES = std::size(NAMES);

// Grams of a text with their weights tf · idf, by gram; the norm of the weights.
struct Bag {
    std::vector<std::pair<int32_t, float>> weights;
    float norm = 0;

    void fill(const Text &text, const Weights &idf) {
        sorted_ = text.grams;
        std::sort(sorted_.begin(), sorted_.end());
        weights.clear();
        for (int32_t gram : sorted_) {
            if (!weights.empty() && weights.back().first == gram)
                weights.back().second += idf.gram(gram);
            else
                weights.emplace_back(gram, idf.gram(gram));
        }
        float sum = 0;
        for (auto [gram, weight] : weights) sum += weight * weight;
        norm = std::sqrt(sum);
    }

    float cosine(const Bag &other) const {
        float sum = 0;
        auto p = weights.begin(), q = other.weights.begin();
        while (p != weights.end() && q != other.weights.end()) {
            if (p->first == q->first)
                sum += p++->second * q++->second;
            else if (p->first < q->first)
                ++p;
            else
                ++q;
        }
        return norm > 0 && other.norm > 0 ? sum / (norm * other.norm) : 0.0f;
    }

private:
    std::vector<int32_t> sorted_;
};

// Edit distance to a fixed string of up to 64 bytes, all of its cells in one machine word (Myers 1999).
class EditDistance {
public:
    void set(std::string_view letters) {
        length_ = std::min<size_t>(letters.size(), 64);
        places_.fill(0);
        for (size_t i = 0; i < length_; ++i) places_[uint8_t(letters[i])] |= uint64_t(1) << i;
    }

    size_t to(std::string_view other) const {
        uint64_t up = ~uint64_t(0), down = 0, last = uint64_t(1) << (length_ - 1);
        size_t distance = length_;
        for (char c : other) {
            uint64_t equal = places_[uint8_t(c)];
            uint64_t diagonal = (((equal & up) + up) ^ up) | equal | down;
            uint64_t right = down | ~(diagonal | up), left = up & diagonal;
            distance += (right & last) != 0;
            distance -= (left & last) != 0;
            right = right << 1 | 1;
            up = left << 1 | ~(diagonal | right);
            down = right & diagonal;
        }
        return distance;
    }
    size_t length() const { return length_; }

private:
    std::array<uint64_t, 256> places_{};
    size_t length_ = 0;
};

// How alike each word of the query is to each word of the keyword, and what follows from that.
class Likeness {
public:
    void compare(const Text &query, const Text &keyword) {
        query_ = &query, keyword_ = &keyword;
        degrees_.clear();
        for (const Word &word : query.words)
            for (const Word &other : keyword.words)
                degrees_.push_back(word.hash == other.hash ? 1.0f : alike(query, word, keyword, other));
    }

    // Shares of the query's idf in words that the keyword has, and in words that it has something alike to.
    std::pair<float, float> of_query() const {
        return shares(*query_, *keyword_, keyword_->words.size(), 1);
    }
    std::pair<float, float> of_keyword() const {
        return shares(*keyword_, *query_, 1, keyword_->words.size());
    }

    float lexical_score(const Weights &weights) const {
        float sum = 0, all = 0;
        for (size_t i = 0; i < query_->words.size(); ++i) {
            if (!query_->is_first(i)) continue;
            float idf = query_->words[i].idf, best = 0;
            for (size_t j = 0; j < keyword_->words.size(); ++j) best = std::max(best, degrees_[i * keyword_->words.size() + j]);
            sum += best >= ALIKE ? idf * best : 0;
            all += idf;
        }
        return all > 0 ? sum * weights.length_factor(keyword_->words.size()) / all : 0;
    }

private:
    std::pair<float, float> shares(const Text &of, const Text &in, size_t step, size_t other_step) const {
        float all = 0, equal = 0, near = 0;
        for (size_t i = 0; i < of.words.size(); ++i) {
            float best = 0;
            for (size_t j = 0; j < in.words.size(); ++j) best = std::max(best, degrees_[i * step + j * other_step]);
            all += of.words[i].idf;
            equal += in.has(of.words[i].hash) ? of.words[i].idf : 0;
            near += best >= ALIKE ? of.words[i].idf * best : 0;
        }
        return all > 0 ? std::pair(equal / all, near / all) : std::pair(0.0f, 0.0f);
    }

    const Text *query_ = nullptr, *keyword_ = nullptr;
    std::vector<float> degrees_;  // [words of the query, words of the keyword]
};

float numbers_missing(const Text &from, const Text &in) {
    auto count = std::count_if(from.words.begin(), from.words.end(),
                               [&](const Word &word) { return word.digits && !in.has(word.hash); });
    return float(std::min<ptrdiff_t>(count, 2));
}

bool abbreviates(const Text &a, const Text &b) {
    return a.words.size() == 1 && b.words.size() > 1 && a.letters == b.initials;
}

float pairs_found(const Text &query, const Text &keyword) {
    if (query.words.size() < 2) return 0;
    size_t found = 0;
    for (size_t i = 1; i < query.words.size(); ++i)
        for (size_t j = 1; j < keyword.words.size(); ++j)
            if (query.words[i - 1].hash == keyword.words[j - 1].hash && query.words[i].hash == keyword.words[j].hash) {
                ++found;
                break;
            }
    return float(found) / float(query.words.size() - 1);
}

// What a thread needs for one query after the other.
struct Comparison {
    Text query, keyword;
    Bag query_bag, keyword_bag;
    EditDistance distance;
    Likeness likeness;

    void ask(const Texts &texts, size_t i, const Weights &weights) {
        query.parse(texts, i, weights);
        query_bag.fill(query, weights);
        distance.set(query.letters);
    }

    void features(const Texts &texts, size_t i, const Weights &weights, float *out) {
        std::fill_n(out, FEATURES, 0.0f);
        keyword.parse(texts, i, weights);
        if (query.words.empty() || keyword.words.empty()) return;
        keyword_bag.fill(keyword, weights);
        likeness.compare(query, keyword);
        auto [words_of_query, alike_of_query] = likeness.of_query();
        auto [words_of_keyword, alike_of_keyword] = likeness.of_keyword();
        size_t prefix = 0, shorter = std::min(query.letters.size(), keyword.letters.size());
        while (prefix < shorter && query.letters[prefix] == keyword.letters[prefix]) ++prefix;
        const auto of_query = float(query.letters.size()), of_keyword = float(keyword.letters.size());
        const float length = (of_keyword - of_query) / (of_keyword + of_query);
        std::string_view letters = std::string_view(keyword.letters).substr(0, 128);
        const float values[] = {
            query_bag.cosine(keyword_bag),
            words_of_query,
            words_of_keyword,
            alike_of_query,
            alike_of_keyword,
            likeness.lexical_score(weights),
            float(prefix) / of_query,
            length,
            std::abs(length),
            numbers_missing(query, keyword),
            numbers_missing(keyword, query),
            abbreviates(query, keyword) || abbreviates(keyword, query) ? 1.0f : 0.0f,
            query.letters[0] == keyword.letters[0] ? 1.0f : 0.0f,
            std::clamp(float(keyword.words.size()) - float(query.words.size()), -4.0f, 4.0f),
            pairs_found(query, keyword),
            1.0f - float(distance.to(letters)) / float(std::max(distance.length(), letters.size())),
            float(std::min<size_t>(query.words.size(), 8)),
        };
        static_assert(std::size(values) == FEATURES);
        std::copy(std::begin(values), std::end(values), out);
    }
};

using Table = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Offsets = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Row j of `out` compares keyword j with the query i for which offsets[i] ≤ j < offsets[i + 1].
void features(const Texts &queries, const Texts &keywords, Offsets offsets, const Weights &weights, Table out,
              size_t threads) {
    const int64_t *at = offsets.data();
    size_t count = queries.size(), total = keywords.size();
    bool ok = offsets.shape(0) == count + 1 && at[0] == 0 && at[count] == int64_t(total) && std::is_sorted(at, at + count + 1);
    if (!ok || out.shape(0) != total || out.shape(1) != FEATURES)
        throw nb::value_error("offsets must divide the keywords among the queries, and out be [keywords, features]");
    nb::gil_scoped_release released;
    size_t parts = std::clamp<size_t>(total / 64, 1, std::max<size_t>(threads, 1));
    rbegir::in_parallel(parts, [&](size_t part) {
        Comparison comparison;
        size_t first = total * part / parts, last = total * (part + 1) / parts;
        size_t query = size_t(std::upper_bound(at, at + count + 1, int64_t(first)) - at) - 1;
        for (size_t j = first; j < last; ++query) {
            size_t end = std::min(last, size_t(at[query + 1]));
            if (j < end) comparison.ask(queries, query, weights);
            for (; j < end; ++j) comparison.features(keywords, j, weights, out.data() + j * FEATURES);
        }
    });
}

using Counts = nb::ndarray<uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Add the number of texts that hold each gram and each word; returns the number of words of all texts.
size_t count(const Texts &texts, Counts grams, Counts slots) {
    if (grams.shape(0) <= size_t(words::VOCABULARY) || !slots.shape(0) || (slots.shape(0) & (slots.shape(0) - 1)))
        throw nb::value_error("counts need a gram table and a word table of a power of two");
    nb::gil_scoped_release released;
    uint32_t buckets = uint32_t(grams.shape(0) - words::VOCABULARY);
    std::string folded, bounded;
    std::vector<int32_t> found, held;
    size_t total = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
        found.clear(), held.clear();
        texts.split(i, folded, [&](std::string_view word) {
            words::grams(word, buckets, bounded, found);
            held.push_back(int32_t(hash(word) & (slots.shape(0) - 1)));
            ++total;
        });
        make_set(found, 0), make_set(held, 0);
        for (int32_t gram : found) ++grams.data()[gram];
        for (int32_t slot : held) ++slots.data()[slot];
    }
    return total;
}

}  // namespace
}  // namespace spelling

void bind_spelling(nb::module_ &m) {
    using spelling::Weights;
    nb::class_<Weights>(m, "SpellingWeights", "Inverse document frequencies of grams and words.")
        .def(nb::init<spelling::Floats, spelling::Floats, float>(), nb::arg("grams").noconvert(),
             nb::arg("words").noconvert(), nb::arg("mean_words"));
    m.def("spelling_features", &spelling::features, nb::arg("queries"), nb::arg("keywords"), nb::arg("offsets"),
          nb::arg("weights"), nb::arg("out").noconvert(), nb::arg("threads"));
    m.def("spelling_counts", &spelling::count, nb::arg("texts"), nb::arg("grams").noconvert(),
          nb::arg("words").noconvert());
    m.attr("SPELLING_FEATURES") = std::vector<std::string>(std::begin(spelling::NAMES), std::end(spelling::NAMES));
}
