// The bindings of the native module: one line a part, each part binds itself in its own file.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_isa(nb::module_ &m);       // isa.cpp: instruction sets of this CPU
void bind_checksum(nb::module_ &m);  // checksum.cpp: CRC-32C
void bind_mapping(nb::module_ &m);   // mapping.cpp: mapped files that are cut short
void bind_hash(nb::module_ &m);      // hash.cpp: 64-bit hashes of ids
void bind_masks(nb::module_ &m);     // masks.cpp: positions divided among masks
void bind_text(nb::module_ &m);      // text.cpp: texts → words → tri-letter grams
void bind_batch(nb::module_ &m);     // batch.cpp: training batches cut out of tokenised texts
void bind_learn(nb::module_ &m);     // learn.cpp: parts of a training step
void bind_tower(nb::module_ &m);     // tower.cpp: CLSM forward without torch
void bind_spelling(nb::module_ &m);  // spelling.cpp: how alike texts are spelled
void bind_lexical(nb::module_ &m);   // lexical.cpp: texts by their words
void bind_product(nb::module_ &m);   // product.cpp: products and roundings of rows
void bind_maxsim(nb::module_ &m);    // maxsim.cpp: items by several vectors
void bind_refine(nb::module_ &m);    // refine.cpp: the nearest code of a vector
void bind_scan(nb::module_ &m);      // scan.cpp: exhaustive match and selection

NB_MODULE(_core, m) {
    m.doc() = "Native kernels of rbegir: checksums, the gram tokeniser, training batches, the CLSM tower, the exhaustive scan.";
    nb::set_leak_warnings(false);  // a process may end while a thread still holds a model: nothing to tell its user
    bind_isa(m);
    bind_checksum(m);
    bind_mapping(m);
    bind_hash(m);
    bind_masks(m);
    bind_text(m);
    bind_batch(m);
    bind_learn(m);
    bind_tower(m);
    bind_spelling(m);
    bind_lexical(m);
    bind_product(m);
    bind_refine(m);
    bind_maxsim(m);
    bind_scan(m);
}
