// Words as spelling sees them: a hash, a weight (idf), and the set of tri-letter grams.
//
// Two words are alike by the Dice coefficient of their gram sets, 2 |A ∩ B| / (|A| + |B|); below ALIKE they are
// different words. The lexical score of a text, a function of query, text and the weights alone:
//
//     S(q, t) = Σ_{words w of q} idf(w) · max_{words u of t} alike(w, u) · 2.2 / (1 + 1.2 (¼ + ¾ |t| / mean words))
//
// which is BM25 (k1 = 1.2, b = ¾) for words that occur once, extended to words with typos. Sums run over the
// distinct words of the query in their order, so that a score has the same bits however texts are grouped.
//
// Only the first QUERY_WORDS words of a query are looked at, and for features only the first KEYWORD_WORDS of a
// keyword, so that a long text cannot make a search slow.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "texts.hpp"

namespace spelling {

constexpr float ALIKE = 0.5f;
constexpr size_t QUERY_WORDS = 64;  // a set of them is one machine word
constexpr size_t KEYWORD_WORDS = 512;

using Floats = rbegir::Array<const float, 1>;

// FNV-1a, spread over all bits: the same number on every machine.
inline uint64_t hash(std::string_view word) {
    uint64_t h = 0xCBF29CE484222325u;
    for (char c : word) h = (h ^ uint8_t(c)) * 0x100000001B3u;
    return words::mix(h);
}

// The inverse document frequencies that a model was trained with. Words share slots of a hashed table.
struct Weights {
    Floats gram_table, word_table;  // [VOCABULARY + buckets], [a power of two]
    float mean_words;

    Weights(Floats grams, Floats words, float mean) : gram_table(grams), word_table(words), mean_words(mean) {
        if (grams.shape(0) <= size_t(words::VOCABULARY) || !words.shape(0) || (words.shape(0) & (words.shape(0) - 1)) ||
            !(mean > 0))
            throw nb::value_error("weights need a gram table, a word table of a power of two, and a positive mean");
    }
    uint32_t buckets() const { return uint32_t(gram_table.shape(0) - words::VOCABULARY); }
    float gram(int32_t id) const { return gram_table.data()[id]; }
    float word(uint64_t hash) const { return word_table.data()[hash & (word_table.shape(0) - 1)]; }
    float length_factor(size_t count) const {
        return 2.2f / (1.0f + 1.2f * (0.25f + 0.75f * float(count) / mean_words));
    }
};

inline void make_set(std::vector<int32_t> &values, size_t from) {
    std::sort(values.begin() + ptrdiff_t(from), values.end());
    values.erase(std::unique(values.begin() + ptrdiff_t(from), values.end()), values.end());
}

inline float dice(size_t common, size_t a, size_t b) { return 2.0f * float(common) / float(a + b); }

struct Word {
    uint64_t hash;
    float idf;
    uint32_t first, last;  // its gram set in Text::sets
    bool digits;
};

// A text cut into words. Reused from text to text, so that nothing is allocated.
struct Text {
    std::vector<Word> words;
    std::vector<int32_t> grams;  // of all words, in order
    std::vector<int32_t> sets;   // the same by word, each a sorted set
    std::u32string letters;      // the words without anything between them, as code points
    std::u32string initials;

    // The first `most` words of text i.
    void parse(const Texts &texts, size_t i, const Weights &weights, size_t most) {
        words.clear(), grams.clear(), sets.clear(), letters.clear(), initials.clear();
        texts.split(i, folded_, [&](std::string_view word) {
            if (words.size() == most) return;
            uint32_t first = uint32_t(sets.size());
            size_t before = grams.size();
            words::grams(word, weights.buckets(), bounded_, grams);
            sets.insert(sets.end(), grams.begin() + ptrdiff_t(before), grams.end());
            make_set(sets, first);
            uint64_t h = hash(word);
            bool digits = std::any_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
            words.push_back({h, weights.word(h), first, uint32_t(sets.size()), digits});
            initials.push_back(words::decode(word.data()));
            for (const char *p = word.data(), *end = p + word.size(); p < end; p += words::sequence_length(uint8_t(*p)))
                letters.push_back(words::decode(p));
        });
    }

    // Whether word i is the first one of its kind.
    bool is_first(size_t i) const {
        return std::none_of(words.begin(), words.begin() + ptrdiff_t(i),
                            [&](const Word &word) { return word.hash == words[i].hash; });
    }

private:
    std::string folded_, bounded_;
};

}  // namespace spelling
