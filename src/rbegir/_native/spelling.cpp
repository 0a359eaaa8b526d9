// How alike a query and a keyword are spelled: the features that a reranker combines with codes and vectors. They have
// the same bits on every machine: sums run in a fixed order, and nothing but + − · / √ is used.
#include "spelling.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <bit>
#include <cmath>

#include "parallel.hpp"

namespace spelling {

namespace {

// Letters are code points.
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
    "letters alike",          // 1 − edit distance of the first 128 letters, without spaces, over the longer length
    "query words",            // up to 8
};
constexpr size_t FEATURES = std::size(NAMES);

// Ascending order. Many grams are sorted digit by digit (radix sort), in time proportional to their number.
void sort_grams(std::vector<int32_t> &grams, std::vector<int32_t> &spare) {
    constexpr size_t FEW = 128, DIGIT = 9, MASK = (1 << DIGIT) - 1;
    if (grams.size() < FEW) return std::sort(grams.begin(), grams.end());
    const int32_t most = *std::max_element(grams.begin(), grams.end());
    spare.resize(grams.size());
    for (size_t shift = 0; shift < 31 && most >> shift; shift += DIGIT) {
        std::array<size_t, MASK + 2> next{};  // where the next gram with this digit goes
        for (int32_t gram : grams) ++next[size_t(gram >> shift & MASK) + 1];
        for (size_t digit = 1; digit < next.size(); ++digit) next[digit] += next[digit - 1];
        for (int32_t gram : grams) spare[next[size_t(gram >> shift & MASK)]++] = gram;
        grams.swap(spare);
    }
}

// Grams of a text with their weights tf · idf, by gram; the norm of the weights.
struct Bag {
    std::vector<std::pair<int32_t, float>> weights;
    float norm = 0;

    void fill(const Text &text, const Weights &idf) {
        sorted_ = text.grams;
        sort_grams(sorted_, spare_);
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
    std::vector<int32_t> sorted_, spare_;
};

// Edit distance to a fixed string of up to LETTERS letters, all of its cells in one or two machine words (Myers 1999).
class EditDistance {
public:
    static constexpr size_t LETTERS = 128;

    void set(std::u32string_view letters) {
        length_ = letters.size();
        places_.fill(Place());
        for (size_t i = 0; i < length_; ++i) {
            size_t at = find(letters[i]);
            places_[at].letter = letters[i];
            places_[at].cells |= Wide(1) << i;
        }
    }

    size_t to(std::u32string_view other) const { return length_ <= 64 ? to<uint64_t>(other) : to<Wide>(other); }
    size_t length() const { return length_; }

private:
    __extension__ typedef unsigned __int128 Wide;
    // Where a letter stands in the string. Open addressing; letters of one alphabet have slots of their own.
    struct Place {
        Wide cells = 0;
        char32_t letter = 0;  // free: no word has a U+0000
    };

    size_t find(char32_t letter) const {
        size_t at = letter % places_.size();
        while (places_[at].letter && places_[at].letter != letter) at = (at + 1) % places_.size();
        return at;
    }

    template <class Cells>
    size_t to(std::u32string_view other) const {
        Cells up = ~Cells(0), down = 0, last = Cells(1) << (length_ - 1);
        size_t distance = length_;
        for (char32_t letter : other) {
            auto equal = Cells(places_[find(letter)].cells);
            Cells diagonal = (((equal & up) + up) ^ up) | equal | down;
            Cells right = down | ~(diagonal | up), left = up & diagonal;
            distance += (right & last) != 0;
            distance -= (left & last) != 0;
            right = right << 1 | 1;
            up = left << 1 | ~(diagonal | right);
            down = right & diagonal;
        }
        return distance;
    }

    std::array<Place, 512> places_{};
    size_t length_ = 0;
};

// Gram → the words of a query that have it, as bits. Open addressing, with at least seven free slots per gram: most
// grams of a keyword are in no word of the query, and should find a free slot at once.
class GramTable {
public:
    void fill(const Text &query) {
        slots_.assign(std::bit_ceil(8 * query.sets.size() + 2), Slot());
        shift_ = 32 - std::countr_zero(slots_.size());
        for (size_t i = 0; i < query.words.size(); ++i)
            for (uint32_t at = query.words[i].first; at < query.words[i].last; ++at) {
                Slot &slot = slots_[place(query.sets[at])];
                slot.gram = query.sets[at];
                slot.words |= uint64_t(1) << i;
            }
    }
    uint64_t words(int32_t gram) const { return slots_[place(gram)].words; }

private:
    struct Slot {
        int32_t gram = -1;
        uint64_t words = 0;
    };

    // Where the gram is, or the free slot where it would be.
    size_t place(int32_t gram) const {
        size_t at = uint32_t(gram) * 0x9E3779B1u >> shift_;
        while (slots_[at].gram != gram && slots_[at].gram >= 0) at = (at + 1) & (slots_.size() - 1);
        return at;
    }

    std::vector<Slot> slots_;
    int shift_ = 0;
};

// How much of a text's idf is in words that the other text has, and in words that it has something alike to.
struct Shares {
    float all = 0, equal = 0, near = 0;

    void add(float idf, bool found, float best) {
        all += idf;
        equal += found ? idf : 0;
        near += best >= ALIKE ? idf * best : 0;
    }
    std::pair<float, float> get() const {
        return all > 0 ? std::pair(equal / all, near / all) : std::pair(0.0f, 0.0f);
    }
};

// How alike the words of a query and of a keyword are, and what follows from that. Words that are alike share a gram,
// so the grams of the keyword are looked up among those of the query, and other pairs of words are never compared.
class Likeness {
public:
    void ask(const Text &query) {
        query_ = &query;
        grams_.fill(query);
        distinct_.clear();
        for (size_t i = 0; i < query.words.size(); ++i)
            if (query.is_first(i)) distinct_.push_back(i);
    }

    void compare(const Text &keyword) {
        best_.fill(0);
        found_ = pairs_ = 0;
        of_keyword_ = Shares();
        numbers_missing_ = 0;
        uint64_t before = 0;  // the `equal` of the word before
        for (const Word &word : keyword.words) {
            uint64_t near = 0, equal = 0;  // words of the query that share a gram with this one; that equal it
            for (uint32_t at = word.first; at < word.last; ++at) {
                uint64_t holders = grams_.words(keyword.sets[at]);
                near |= holders;
                for (; holders; holders &= holders - 1) ++common_[size_t(std::countr_zero(holders))];
            }
            float best = 0;
            for (; near; near &= near - 1) {
                size_t i = size_t(std::countr_zero(near));
                const Word &other = query_->words[i];
                float degree = 1.0f;
                if (word.hash == other.hash)
                    equal |= uint64_t(1) << i;
                else
                    degree = dice(common_[i], other.last - other.first, word.last - word.first);
                common_[i] = 0;
                best = std::max(best, degree);
                best_[i] = std::max(best_[i], degree);
            }
            of_keyword_.add(word.idf, equal != 0, best);
            numbers_missing_ += word.digits && !equal;
            found_ |= equal;
            pairs_ |= before << 1 & equal;
            before = equal;
        }
        length_ = keyword.words.size();
    }

    // Shares of the idf in words that the other text has, and in words that it has something alike to.
    std::pair<float, float> of_query() const {
        Shares shares;
        for (size_t i = 0; i < query_->words.size(); ++i) shares.add(query_->words[i].idf, found(i), best_[i]);
        return shares.get();
    }
    std::pair<float, float> of_keyword() const { return of_keyword_.get(); }

    float lexical_score(const Weights &weights) const {
        float sum = 0, all = 0;
        for (size_t i : distinct_) {
            float idf = query_->words[i].idf;
            sum += best_[i] >= ALIKE ? idf * best_[i] : 0;
            all += idf;
        }
        return all > 0 ? sum * weights.length_factor(length_) / all : 0;
    }

    float query_numbers_missing() const {
        size_t count = 0;
        for (size_t i = 0; i < query_->words.size(); ++i) count += query_->words[i].digits && !found(i);
        return float(std::min<size_t>(count, 2));
    }
    float keyword_numbers_missing() const { return float(std::min<size_t>(numbers_missing_, 2)); }

    float pairs_found() const {
        return query_->words.size() < 2 ? 0 : float(std::popcount(pairs_)) / float(query_->words.size() - 1);
    }

private:
    bool found(size_t i) const { return found_ >> i & 1; }

    const Text *query_ = nullptr;
    GramTable grams_;
    std::vector<size_t> distinct_;  // first occurrences of the query's words
    std::array<uint32_t, QUERY_WORDS> common_{};  // grams shared with a word of the keyword; all zero between words
    std::array<float, QUERY_WORDS> best_{};  // by word of the query: the most alike word of the keyword
    uint64_t found_ = 0, pairs_ = 0;  // words of the query that the keyword has; that it has behind the same word
    Shares of_keyword_;
    size_t numbers_missing_ = 0, length_ = 0;  // of the keyword, in words
};

bool abbreviates(const Text &a, const Text &b) {
    return a.words.size() == 1 && b.words.size() > 1 && a.letters == b.initials;
}

// What a thread needs for one query after the other.
struct Comparison {
    Text query, keyword;
    Bag query_bag, keyword_bag;
    EditDistance distance;
    Likeness likeness;

    // What the edit distance sees of a text: as much of a query as of a keyword, so that equal texts have distance 0.
    static std::u32string_view first_letters(const Text &text) {
        return std::u32string_view(text.letters).substr(0, EditDistance::LETTERS);
    }

    void ask(const Texts &texts, size_t i, const Weights &weights) {
        query.parse(texts, i, weights, QUERY_WORDS);
        query_bag.fill(query, weights);
        likeness.ask(query);
        distance.set(first_letters(query));
    }

    void features(const Texts &texts, size_t i, const Weights &weights, float *out) {
        std::fill_n(out, FEATURES, 0.0f);
        keyword.parse(texts, i, weights, KEYWORD_WORDS);
        if (query.words.empty() || keyword.words.empty()) return;
        keyword_bag.fill(keyword, weights);
        likeness.compare(keyword);
        auto [words_of_query, alike_of_query] = likeness.of_query();
        auto [words_of_keyword, alike_of_keyword] = likeness.of_keyword();
        size_t prefix = 0, shorter = std::min(query.letters.size(), keyword.letters.size());
        while (prefix < shorter && query.letters[prefix] == keyword.letters[prefix]) ++prefix;
        const auto of_query = float(query.letters.size()), of_keyword = float(keyword.letters.size());
        const float length = (of_keyword - of_query) / (of_keyword + of_query);
        const std::u32string_view letters = first_letters(keyword);
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
            likeness.query_numbers_missing(),
            likeness.keyword_numbers_missing(),
            abbreviates(query, keyword) || abbreviates(keyword, query) ? 1.0f : 0.0f,
            query.letters[0] == keyword.letters[0] ? 1.0f : 0.0f,
            std::clamp(float(keyword.words.size()) - float(query.words.size()), -4.0f, 4.0f),
            likeness.pairs_found(),
            1.0f - float(distance.to(letters)) / float(std::max(distance.length(), letters.size())),
            float(std::min<size_t>(query.words.size(), 8)),
        };
        static_assert(std::size(values) == FEATURES);
        std::copy(std::begin(values), std::end(values), out);
    }
};

using rbegir::Array;

// Row j of `out` compares keyword j with the query i for which offsets[i] ≤ j < offsets[i + 1].
void features(const Texts &queries, const Texts &keywords, Array<const int64_t, 1> offsets, const Weights &weights,
              Array<float, 2> out, size_t threads) {
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

// Add the number of texts that hold each gram and each word; returns the number of words of all texts.
size_t count(const Texts &texts, Array<uint32_t, 1> grams, Array<uint32_t, 1> slots) {
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
