// Words and tri-letter grams of one normalised text. The definition every encoder shares.
//
// A word is a maximal run of letters, digits and marks (Unicode categories L, N, M) with at least one letter or
// digit in it; "#word#" is cut into overlapping grams of three code points, so a word of k letters has k grams.
// A gram of a–z, 0–9 and # alone has its own id, three digits in base 37; any other gram shares a hash bucket:
//
//     '#' → 0, 'a'–'z' → 1–26, '0'–'9' → 27–36       id = c0·37² + c1·37 + c2                  0 … 50,652
//     any other letter in it                          id = 37³ + FNV-1a-64(UTF-8 of the gram) mod buckets
//
// A table of every gram beyond ASCII was rejected: three scripts' worth of them would outgrow the model, and a
// fixed list would leave some language out.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "unicode_classes.hpp"

namespace words {

inline constexpr int32_t LETTERS = 37;
inline constexpr int32_t VOCABULARY = LETTERS * LETTERS * LETTERS;
enum CharClass : uint8_t { UNASSIGNED, SEPARATOR, WORD, MARK };

// The class of every code point, two bits each (272 KiB), unrolled from the runs at the first use.
class Classes {
public:
    static const Classes &get() {
        static const Classes table;
        return table;
    }
    CharClass operator[](uint32_t c) const { return CharClass(bits_[c >> 2] >> ((c & 3) * 2) & 3); }

private:
    Classes() : bits_(0x110000 / 4) {
        uint32_t c = 0;
        for (uint32_t run : UNICODE_RUNS)
            for (uint32_t end = c + (run >> 2); c < end; ++c) bits_[c >> 2] |= uint8_t((run & 3) << ((c & 3) * 2));
    }
    std::vector<uint8_t> bits_;
};

// ASCII byte → its lower-case letter or digit, 0 for a separator; and letter → its digit in base 37.
struct AsciiTables {
    std::array<char, 256> fold{};
    std::array<int8_t, 256> digit{};
    constexpr AsciiTables() {
        for (auto &d : digit) d = -1;
        digit['#'] = 0;
        for (int i = 0; i < 26; ++i) {
            fold['a' + i] = fold['A' + i] = char('a' + i);
            digit['a' + i] = int8_t(1 + i);
        }
        for (int i = 0; i < 10; ++i) {
            fold['0' + i] = char('0' + i);
            digit['0' + i] = int8_t(27 + i);
        }
    }
};
inline constexpr AsciiTables ASCII;

// Bytes of the UTF-8 sequence that a lead byte opens.
inline size_t sequence_length(unsigned char lead) {
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

// Decode one code point of valid UTF-8.
inline uint32_t decode(const char *p) {
    auto b = [p](int i) { return uint32_t(uint8_t(p[i])); };
    if (b(0) < 0x80) return b(0);
    if (b(0) < 0xE0) return (b(0) & 0x1F) << 6 | (b(1) & 0x3F);
    if (b(0) < 0xF0) return (b(0) & 0x0F) << 12 | (b(1) & 0x3F) << 6 | (b(2) & 0x3F);
    return (b(0) & 0x07) << 18 | (b(1) & 0x3F) << 12 | (b(2) & 0x3F) << 6 | (b(3) & 0x3F);
}

// Call word(std::string_view) for each word of an ASCII text. The views point into `scratch`, folded, and end
// with eight readable bytes, so that hashing may load whole machine words.
template <class Word>
inline void split_ascii(std::string_view text, std::string &scratch, Word &&word) {
    const size_t size = text.size();
    if (scratch.size() < size + 8) scratch.resize(2 * size + 64);
    char *folded = scratch.data();
    for (size_t i = 0; i < size; ++i) folded[i] = ASCII.fold[uint8_t(text[i])];
    folded[size] = 0;
    for (size_t i = 0; i < size;) {
        if (!folded[i]) {
            ++i;
            continue;
        }
        size_t start = i;
        while (folded[i]) ++i;
        word(std::string_view(folded + start, i - start));
    }
}

// The same for UTF-8 that is already normalised and case-folded, followed by eight readable bytes.
template <class Word>
inline void split_normalised(std::string_view text, Word &&word) {
    const Classes &classes = Classes::get();
    const char *p = text.data(), *end = p + text.size(), *start = nullptr;
    bool solid = false;  // the run holds a letter or digit, not marks alone
    for (; p < end; p += sequence_length(uint8_t(*p))) {
        CharClass kind = classes[decode(p)];
        if (kind >= WORD) {
            if (!start) start = p;
            solid |= kind == WORD;
        } else if (start) {
            if (solid) word(std::string_view(start, p - start));
            start = nullptr;
            solid = false;
        }
    }
    if (start && solid) word(std::string_view(start, end - start));
}

// Append the gram ids of a word.
inline void grams(std::string_view word, uint32_t buckets, std::string &scratch, std::vector<int32_t> &out) {
    scratch.assign(1, '#').append(word).push_back('#');
    const char *p = scratch.data(), *end = p + scratch.size();
    const char *start[3] = {p, p + 1, nullptr};  // where the gram's first two code points begin
    int32_t digit[3] = {0, ASCII.digit[uint8_t(p[1])], 0};
    for (p += 1 + sequence_length(uint8_t(p[1])); p < end;) {
        size_t length = sequence_length(uint8_t(*p));
        start[2] = p;
        digit[2] = ASCII.digit[uint8_t(*p)];
        if ((digit[0] | digit[1] | digit[2]) >= 0) {
            out.push_back((digit[0] * LETTERS + digit[1]) * LETTERS + digit[2]);
        } else {
            uint64_t hash = 0xCBF29CE484222325u;
            for (const char *q = start[0]; q < p + length; ++q) hash = (hash ^ uint8_t(*q)) * 0x100000001B3u;
            out.push_back(VOCABULARY + int32_t(hash % buckets));
        }
        start[0] = start[1], start[1] = start[2];
        digit[0] = digit[1], digit[1] = digit[2];
        p += length;
    }
}

inline uint64_t mix(uint64_t h) {  // a bijection, so that eight letters or fewer hash without collision
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

// Hash of a word with eight readable bytes behind it. Equal length ≤ 8 and equal hash imply equal words.
inline uint64_t hash_word(std::string_view word) {
    auto load = [](const char *p) {
        uint64_t v;
        std::memcpy(&v, p, 8);
        return v;
    };
    const char *p = word.data();
    size_t left = word.size();
    uint64_t h = 0;
    for (; left > 8; left -= 8, p += 8) h = mix(h ^ load(p)) + left;
    uint64_t mask = ~uint64_t(0) >> (64 - 8 * left);
    if constexpr (std::endian::native == std::endian::big) mask = ~uint64_t(0) << (64 - 8 * left);
    return mix(h ^ (load(p) & mask));
}

// Words → 0, 1, 2 … in order of first occurrence. Open addressing; the letters of all words lie end to end.
class WordMap {
public:
    WordMap() : slots_(1024), ends_{0} {}

    size_t size() const { return ends_.size() - 1; }
    std::string_view operator[](size_t id) const {
        return {letters_.data() + ends_[id], ends_[id + 1] - ends_[id]};
    }

    // The word's number and whether it is new. The word needs eight readable bytes behind it.
    std::pair<uint32_t, bool> insert(std::string_view word) {
        uint64_t hash = hash_word(word);
        uint32_t length = uint32_t(std::min<size_t>(word.size(), 9));
        size_t at = hash & (slots_.size() - 1);
        for (; slots_[at].id; at = (at + 1) & (slots_.size() - 1)) {
            const Slot &slot = slots_[at];
            if (slot.hash == hash && slot.length == length && (length <= 8 || (*this)[slot.id - 1] == word))
                return {slot.id - 1, false};
        }
        uint32_t id = uint32_t(size());
        slots_[at] = {hash, id + 1, length};
        letters_.append(word);
        ends_.push_back(letters_.size());
        if (2 * size() > slots_.size()) grow();
        return {id, true};
    }

    void pad() { letters_.append(8, '\0'); }  // eight readable bytes behind the last word

private:
    struct Slot {
        uint64_t hash = 0;
        uint32_t id = 0;  // 0 for free, else the word's number + 1
        uint32_t length = 0;  // 9 for longer ones
    };

    void grow() {
        std::vector<Slot> wider(2 * slots_.size());
        for (const Slot &slot : slots_) {
            if (!slot.id) continue;
            size_t at = slot.hash & (wider.size() - 1);
            while (wider[at].id) at = (at + 1) & (wider.size() - 1);
            wider[at] = slot;
        }
        slots_.swap(wider);
    }

    std::vector<Slot> slots_;
    std::string letters_;
    std::vector<size_t> ends_;
};

}  // namespace words
