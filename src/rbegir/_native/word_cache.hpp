// The vectors of recent words. Words repeat (32,000 make two thirds of all in article titles), and a cached vector
// costs one read of 3·conv floats where summing costs one a gram.
//
// Eight ways a set; the oldest of a set makes room. Words are compared letter by letter, so a hash collision costs
// time, never a wrong vector. A cache belongs to one thread at a time: sharing would cost a lock a word.
#pragma once
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "platform.hpp"
#include "words.hpp"

namespace tower {

class WordCache {
public:
    // Room for about `words` vectors of `width` floats. Vectors lie in the order in which words came, so memory is
    // touched only as words come, and frequent words share pages.
    WordCache(size_t words, size_t width) : width_(width) {
        size_t sets = std::bit_ceil(std::max<size_t>(words / WAYS, 1));
        entries_.resize(sets * WAYS);
        places_.resize(sets * WAYS);
        vectors_ = rbegir::large_array<float>(sets * WAYS * width);
    }

    // The place of a word's vector, and whether the vector is there already. The place is good until the next
    // call. The word needs eight readable bytes behind it.
    std::pair<float *, bool> find(std::string_view word) {
        if (word.size() > LONGEST) {
            if (long_word_.empty()) long_word_.resize(width_);
            return {long_word_.data(), false};
        }
        uint64_t hash = words::hash_word(word);
        size_t first = (hash >> 32) % (entries_.size() / WAYS) * WAYS, oldest = first;
        ++clock_;
        for (size_t at = first; at < first + WAYS; ++at) {
            Entry &entry = entries_[at];
            if (entry.hash == uint32_t(hash) && entry.length == word.size() &&
                !std::memcmp(entry.letters, word.data(), word.size())) {
                entry.used = clock_;
                return {vectors_.get() + places_[at] * width_, true};
            }
            if (entry.used < entries_[oldest].used) oldest = at;
        }
        Entry &entry = entries_[oldest];
        if (!entry.length) places_[oldest] = placed_++;
        entry.used = clock_;
        entry.hash = uint32_t(hash);
        entry.length = uint8_t(word.size());
        std::memcpy(entry.letters, word.data(), word.size());
        return {vectors_.get() + places_[oldest] * width_, false};
    }

private:
    static constexpr size_t WAYS = 8, LONGEST = 19;
    struct Entry {
        uint64_t used = 0;
        uint32_t hash = 0;
        uint8_t length = 0;  // 0 for free: no word is empty
        char letters[LONGEST] = {};
    };
    static_assert(sizeof(Entry) == 32);

    size_t width_, placed_ = 0;
    uint64_t clock_ = 0;
    std::vector<Entry> entries_;
    std::vector<size_t> places_;  // of the vector of each entry that was ever used
    rbegir::LargeArray<float> vectors_;
    std::vector<float> long_word_;
};

}  // namespace tower
