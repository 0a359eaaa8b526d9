// The gram tokeniser: texts → unique words → gram ids, in the layout of rbegir.read.tokenizer.GramBatch.
#include "texts.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <limits>

#include "parallel.hpp"

namespace {

bool is_ascii(std::string_view text) {
    uint64_t bits = 0;
    const char *p = text.data();
    size_t left = text.size();
    for (; left >= 8; left -= 8, p += 8) {
        uint64_t v;
        std::memcpy(&v, p, 8);
        bits |= v;
    }
    for (; left; --left, ++p) bits |= uint8_t(*p);
    return !(bits & 0x8080808080808080u);
}

// Strict UTF-8: shortest form, no surrogates, nothing past U+10FFFF.
bool is_utf8(std::string_view text) {
    auto *p = reinterpret_cast<const uint8_t *>(text.data()), *end = p + text.size();
    auto continues = [](uint8_t b) { return (b & 0xC0) == 0x80; };
    while (p < end) {
        if (*p < 0x80) {
            ++p;
            continue;
        }
        size_t length = words::sequence_length(*p);
        if (*p < 0xC2 || *p > 0xF4 || size_t(end - p) < length) return false;
        for (size_t i = 1; i < length; ++i)
            if (!continues(p[i])) return false;
        if ((*p == 0xE0 && p[1] < 0xA0) || (*p == 0xED && p[1] > 0x9F) || (*p == 0xF0 && p[1] < 0x90) ||
            (*p == 0xF4 && p[1] > 0x8F))
            return false;
        p += length;
    }
    return true;
}

// Which character of a str is a surrogate; UTF-8 has no form for those.
Py_ssize_t find_surrogate(PyObject *text) {
    Py_ssize_t length = PyUnicode_GetLength(text), i = 0;
    while (i < length && (PyUnicode_ReadChar(text, i) & ~0x7FFu) != 0xD800) ++i;
    return i;
}

}  // namespace

void Texts::add(std::string_view text) {
    bool foreign = !is_ascii(text);
    if (foreign) foreign_.push_back(views_.size());
    is_foreign_.push_back(foreign);
    views_.push_back(text);
}

Texts::Problem Texts::add_strings(nb::tuple strings) {
    views_.reserve(views_.size() + strings.size());
    for (nb::handle item : strings) {
        PyObject *text = item.ptr();
        if (!PyUnicode_Check(text)) {
            const auto type = nb::steal<nb::str>(PyType_GetName(Py_TYPE(text)));
            return {{views_.size(), std::string("is not a str but ") + type.c_str()}};
        }
        Py_ssize_t length;
        const char *data = PyUnicode_AsUTF8AndSize(text, &length);  // no copy where the str is ASCII
        if (!data) {
            PyErr_Clear();
            return {{views_.size(), "holds a lone surrogate at character " + std::to_string(find_surrogate(text))}};
        }
        add({data, size_t(length)});
    }
    return {};
}

template <class Offset>
Texts::Problem Texts::add_arrow(rbegir::Array<const Offset, 1> offsets, rbegir::Array<const uint8_t, 1> data) {
    const Offset *at = offsets.data();
    for (size_t i = 0; i + 1 < offsets.shape(0); ++i) {
        if (at[i] < 0 || at[i + 1] < at[i] || size_t(at[i + 1]) > data.shape(0))
            return {{views_.size(), "lies outside of its Arrow buffer"}};
        std::string_view text(reinterpret_cast<const char *>(data.data()) + at[i], size_t(at[i + 1] - at[i]));
        add(text);
        if (is_foreign_.back() && !is_utf8(text)) return {{views_.size() - 1, "is not valid UTF-8"}};
    }
    return {};
}

nb::bytes Texts::foreign() const {
    const words::Classes &classes = words::Classes::get();
    std::string lines;
    for (size_t i : foreign_) {
        const char *p = views_[i].data(), *end = p + views_[i].size();
        while (p < end) {
            size_t length = words::sequence_length(uint8_t(*p));
            if (*p == '\n' || classes[words::decode(p)] == words::UNASSIGNED)
                lines.push_back(' ');
            else
                lines.append(p, length);
            p += length;
        }
        lines.push_back('\n');
    }
    return nb::bytes(lines.data(), lines.size());
}

void Texts::supply(nb::bytes normalised) {
    normalised_.assign(normalised.c_str(), normalised.size());
    size_t end = normalised_.size();
    normalised_.append(8, '\0');
    size_t at = 0, line = 0;
    for (; at < end && line < foreign_.size(); ++line) {
        size_t stop = normalised_.find('\n', at);
        views_[foreign_[line]] = std::string_view(normalised_).substr(at, stop - at);
        at = stop + 1;
    }
    if (at != end || line != foreign_.size()) throw nb::value_error("normalising changed the number of lines");
}

namespace {

// The words and grams of a run of texts.
struct Batch {
    std::vector<int32_t> text_ends;  // [texts] words up to and including each text
    std::vector<int32_t> word_ids;   // [words]
    std::vector<int32_t> gram_ends;  // [unique] grams up to and including each word
    std::vector<int32_t> gram_ids;   // [grams]
    words::WordMap unique;
};

void tokenize_range(const Texts &texts, size_t first, size_t last, uint32_t buckets, Batch &out) {
    std::string folded, bounded;
    out.text_ends.reserve(last - first);
    for (size_t i = first; i < last; ++i) {
        texts.split(i, folded, [&](std::string_view word) {
            auto [id, fresh] = out.unique.insert(word);
            out.word_ids.push_back(int32_t(id));
            if (fresh) {
                words::grams(word, buckets, bounded, out.gram_ids);
                out.gram_ends.push_back(int32_t(out.gram_ids.size()));
            }
        });
        out.text_ends.push_back(int32_t(out.word_ids.size()));
    }
}

// Append a later part. Its unique words, taken in its own order of first occurrence, get their numbers here in
// the same order as if one thread had met them.
void append(Batch &all, Batch &part) {
    std::vector<int32_t> renamed(part.unique.size());
    part.unique.pad();
    for (size_t w = 0; w < renamed.size(); ++w) {
        auto [id, fresh] = all.unique.insert(part.unique[w]);
        renamed[w] = int32_t(id);
        if (!fresh) continue;
        auto grams = part.gram_ids.begin();
        all.gram_ids.insert(all.gram_ids.end(), grams + (w ? part.gram_ends[w - 1] : 0), grams + part.gram_ends[w]);
        all.gram_ends.push_back(int32_t(all.gram_ids.size()));
    }
    int32_t before = int32_t(all.word_ids.size());
    for (int32_t id : part.word_ids) all.word_ids.push_back(renamed[size_t(id)]);
    for (int32_t end : part.text_ends) all.text_ends.push_back(before + end);
}

nb::tuple tokenize(const Texts &texts, uint32_t buckets, size_t threads) {
    Batch all;
    {
        nb::gil_scoped_release released;
        size_t parts = std::clamp<size_t>(texts.size() / 256, 1, std::max<size_t>(threads, 1));
        std::vector<Batch> batches(parts);
        rbegir::in_parallel(parts, [&](size_t part) {
            size_t first = texts.size() * part / parts, last = texts.size() * (part + 1) / parts;
            tokenize_range(texts, first, last, buckets, batches[part]);
        });
        all = std::move(batches[0]);
        for (size_t part = 1; part < parts; ++part) append(all, batches[part]);
        size_t largest = std::max(all.word_ids.size(), all.gram_ids.size());
        if (largest > size_t(std::numeric_limits<int32_t>::max()))
            throw nb::value_error("more than 2³¹ words or grams in one batch");
        all.text_ends.insert(all.text_ends.begin(), 0);
        all.gram_ends.insert(all.gram_ends.begin(), 0);
    }
    return nb::make_tuple(rbegir::to_numpy(std::move(all.text_ends)), rbegir::to_numpy(std::move(all.word_ids)),
                          rbegir::to_numpy(std::move(all.gram_ends)), rbegir::to_numpy(std::move(all.gram_ids)));
}

}  // namespace

void bind_text(nb::module_ &m) {
    nb::class_<Texts>(m, "Texts", "A batch of texts as views into str objects or Arrow buffers.")
        .def(nb::init<>())
        .def("__len__", &Texts::size)
        .def("add_strings", &Texts::add_strings, nb::keep_alive<1, 2>())
        .def("add_arrow", &Texts::add_arrow<int32_t>, nb::arg("offsets").noconvert(), nb::arg("data").noconvert(),
             nb::keep_alive<1, 3>())  // converted data would not be kept alive
        .def("add_arrow", &Texts::add_arrow<int64_t>, nb::arg("offsets").noconvert(), nb::arg("data").noconvert(),
             nb::keep_alive<1, 3>())
        .def("foreign", &Texts::foreign)
        .def("supply", &Texts::supply);
    m.def("tokenize", &tokenize, nb::arg("texts"), nb::arg("buckets"), nb::arg("threads"));
    m.attr("VOCABULARY") = words::VOCABULARY;
    m.attr("UNICODE_VERSION") = UNICODE_VERSION;
}
