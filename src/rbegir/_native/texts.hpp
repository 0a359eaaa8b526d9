// A batch of texts as views into memory that Python owns: str objects or Arrow buffers, no copy.
//
// ASCII texts are used as they are. The others wait for `supply`: Python normalises them (NFKC, case-folded),
// joined by newlines into one string, which costs two calls a batch instead of two a text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "words.hpp"

namespace nb = nanobind;

class Texts {
public:
    using Problem = std::optional<std::pair<size_t, std::string>>;  // position of a bad text and what ails it

    // The table of classes is made here, where Python's lock is held: a fork cannot find it half made.
    Texts() { words::Classes::get(); }

    size_t size() const { return views_.size(); }

    // The binding keeps the arguments alive as long as this object, so the views stay good.
    Problem add_strings(nb::tuple strings);
    template <class Offset>
    Problem add_arrow(rbegir::Array<const Offset, 1> offsets, rbegir::Array<const uint8_t, 1> data);

    // The texts beyond ASCII as UTF-8, one a line; what must not reach the normaliser is a space already.
    nb::bytes foreign() const;
    // The same lines normalised, in return.
    void supply(nb::bytes normalised);

    // Call word(std::string_view), folded and with eight readable bytes behind it, for each word of text i.
    template <class Word>
    void split(size_t i, std::string &scratch, Word &&word) const {
        if (is_foreign_[i])
            words::split_normalised(views_[i], word);
        else
            words::split_ascii(views_[i], scratch, word);
    }

private:
    void add(std::string_view text);

    std::vector<std::string_view> views_;
    std::vector<bool> is_foreign_;
    std::vector<size_t> foreign_;  // positions of the texts beyond ASCII
    std::string normalised_;       // what their views point into after `supply`
};
