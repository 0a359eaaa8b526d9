// The kernels of one architecture against plain arithmetic, without Python: for machines that can only be emulated.
//
// Scan: every shape, with keywords that are hard (small norms, ties, one bit away from the best), batches on both sides
// of the limit where groups are expanded, masks, limits of each query, and k around the thresholds. Floating point: every
// kernel must give the bits of the portable one. Checksum: the instruction against tables. Prints a digest of all results,
// which is the same on every architecture.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <vector>

#include "checksum.hpp"
#include "float_kernels.hpp"
#include "scan_search.hpp"

using namespace rbegir;

namespace {

// SplitMix64: emulated machines are slow, and a draw per dimension must be cheap.
struct Generator {
    uint64_t state = 1;
    uint64_t operator()() {
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }
} generator;
uint64_t digest = 14695981039346656037u;  // FNV-1a
int wrong = 0;

int below(int limit) { return static_cast<int>(generator() % static_cast<uint64_t>(limit)); }

void note(const void *data, size_t size) {
    const auto *bytes = static_cast<const uint8_t *>(data);
    for (size_t i = 0; i < size; ++i) digest = (digest ^ bytes[i]) * 1099511628211u;
}

// ---- scan ----

enum World { RANDOM, SMALL_NORMS, TIES, ONE_BIT, EQUAL_PLANES, WORLDS };

using Values = std::vector<int16_t>;  // [count, n]

// Odd integers within ±top. The hard ones stand in the last tenth, where a sample of groups may miss them.
Values keywords(const scan::Shape &shape, int count, World world, const int16_t *query) {
    const int n = shape.n(), top = shape.top();
    Values values(static_cast<size_t>(count) * n);
    for (int i = 0; i < count; ++i) {
        int16_t *at = &values[static_cast<size_t>(i) * n];
        if (world == TIES && i >= 3) {
            std::memcpy(at, &values[static_cast<size_t>(below(3)) * n], n * sizeof *at);
            continue;
        }
        const bool near = i >= count - count / 10;
        const int flipped = below(n);
        for (int d = 0; d < n; ++d) {
            const uint64_t draw = generator();
            int value = 2 * static_cast<int>(draw & top) - top;
            const int sign = query[d] > 0 ? 1 : -1;
            if (world == SMALL_NORMS && near)  // mostly ±1 with the sign of the query
                value = (draw >> 8 & 15 ? sign : -sign) * (draw >> 16 & 31 || top == 1 ? 1 : 3);
            if (world == ONE_BIT && near) value = d == flipped ? sign * (top - 2) : sign * top;
            if (world == EQUAL_PLANES) value = value > 0 ? top : -top;
            at[d] = static_cast<int16_t>(value);
        }
    }
    return values;
}

std::vector<uint8_t> pack(const scan::Shape &shape, const Values &values, int count) {
    const int n = shape.n(), groups = (count + scan::GROUP - 1) / scan::GROUP;
    std::vector<uint8_t> packed(static_cast<size_t>(shape.planes) * groups * shape.plane_bytes());
    for (int i = 0; i < count; ++i)
        for (int d = 0; d < n; ++d) {
            const int level = (values[static_cast<size_t>(i) * n + d] + shape.top()) / 2;
            for (int p = 0; p < shape.planes; ++p) {
                const size_t group = static_cast<size_t>(p) * groups + i / scan::GROUP;
                const int bit = level >> (shape.planes - 1 - p) & 1;
                packed[group * shape.plane_bytes() + d / 8 * scan::GROUP + i % scan::GROUP] |= bit << (d % 8);
            }
        }
    return packed;
}

int dot_of(const int16_t *a, const int16_t *b, int n) {  // at most 1024 · 255 · 15
    int dot = 0;
    for (int d = 0; d < n; ++d) dot += a[d] * b[d];
    return dot;
}

// sign(dot) · ⌊2³⁶ · dot² / norm⌋
int64_t key_of(int64_t dot, int64_t norm) {
    const auto key = static_cast<int64_t>((static_cast<unsigned __int128>(dot * dot) << 36) / norm);
    return dot < 0 ? -key : key;
}

// What the hits of a search are limited to. LIMITED: some queries have filters that pass many keywords or few, floors,
// and hits before theirs. FEW: every query has a filter that passes few.
enum Limits { NONE, MASKED, LIMITED, FEW, LIMITS };

// About one bit in `rarity`, and none in some words.
std::vector<uint64_t> random_mask(int count, int rarity) {
    std::vector<uint64_t> mask((count + 63) / 64);
    for (int i = 0; i < count; ++i)
        if (!below(rarity)) mask[i / 64] |= uint64_t{1} << (i % 64);
    return mask;
}

bool passes(const uint64_t *mask, int64_t i) { return !mask || (mask[i / 64] >> (i % 64) & 1); }

void check_scan(const scan::Shape &shape, World world, int count, int limit, const scan::Kernel *const *kernels,
                size_t kernel_count) {
    const int n = shape.n(), queries = 4;
    Values asked(static_cast<size_t>(queries) * n);
    for (int16_t &value : asked) value = static_cast<int16_t>(below(2 * limit + 1) - limit);
    const Values values = keywords(shape, count, world, asked.data());
    const std::vector<uint8_t> packed = pack(shape, values, count);
    std::vector<uint64_t> mask((count + 63) / 64);
    for (uint64_t &bits : mask) bits = generator() & (below(3) ? ~uint64_t{0} : generator() & generator());
    const std::vector<uint64_t> many = random_mask(count, 2), few[] = {random_mask(count, 60), random_mask(count, 200)};
    std::vector<int64_t> keys(static_cast<size_t>(queries) * count);
    for (int i = 0; i < count; ++i) {
        const int16_t *keyword = &values[static_cast<size_t>(i) * n];
        const int norm = dot_of(keyword, keyword, n);
        for (int q = 0; q < queries; ++q)
            keys[static_cast<size_t>(q) * count + i] = key_of(dot_of(keyword, &asked[q * n], n), norm);
    }
    for (int limited = 0; limited < LIMITS; ++limited) {
        scan::Partition part{packed.data(), static_cast<size_t>(count), limited ? mask.data() : nullptr, 0, {}};
        if (limited >= LIMITED) part.filters = {few[0].data(), many.data(), few[1].data(), nullptr};
        const std::vector<scan::Partition> parts{part};
        std::vector<scan::Limit> limits(queries, scan::NO_LIMIT);
        std::vector<std::vector<int64_t>> order(queries);
        for (int q = 0; q < queries; ++q) {
            const int64_t *key = &keys[static_cast<size_t>(q) * count];
            if (limited == LIMITED) limits[q].filter = q < 3 ? q : -1;
            if (limited == FEW) limits[q].filter = q % 2 * 2;
            const uint64_t *filter = limits[q].filter < 0 ? nullptr : part.filters[limits[q].filter];
            for (int i = 0; i < count; ++i)
                if (passes(part.mask, i) && passes(filter, i)) order[q].push_back(i);
            std::stable_sort(order[q].begin(), order[q].end(), [&](int64_t a, int64_t b) { return key[a] > key[b]; });
            if (limited < LIMITED || order[q].size() < 4) continue;
            if (q != 1) {
                limits[q].before = {key[order[q][2]], order[q][2]};
                order[q].erase(order[q].begin(), order[q].begin() + 3);
            }
            if (q) {
                limits[q].floor = key[order[q][order[q].size() / 2]];
                std::erase_if(order[q], [&](int64_t i) { return key[i] < limits[q].floor; });
            }
        }
        for (const int batch : {1, queries})
            for (const size_t k : {size_t{1}, size_t{10}, size_t{300}})
                for (size_t i = 0; i < kernel_count; ++i) {
                    const std::vector<scan::Limit> own(limits.begin(), limits.begin() + batch);
                    const scan::Found found = scan::search(shape, *kernels[i], parts, asked.data(), own, k, 1);
                    size_t most = 0;
                    for (int q = 0; q < batch; ++q) most = std::max(most, std::min(k, order[q].size()));
                    bool same = found.k == most;
                    for (int q = 0; q < batch; ++q)
                        for (size_t j = 0; same && j < found.k; ++j) {
                            const bool hit = j < order[q].size();
                            const int64_t position = hit ? order[q][j] : -1;
                            same = found.positions[q * found.k + j] == position &&
                                   found.keys[q * found.k + j] ==
                                       (hit ? keys[static_cast<size_t>(q) * count + position] : scan::NO_KEY);
                        }
                    if (same) continue;
                    ++wrong;
                    std::printf("%s: wrong hits for n = %d, planes %d, world %d, limits %d, %d keywords, batch %d, "
                                "k %zu\n",
                                kernels[i]->name, n, shape.planes, world, limited, count, batch, k);
                }
        for (const auto &hits : order) note(hits.data(), std::min<size_t>(300, hits.size()) * sizeof(int64_t));
    }
}

size_t check_scans(const scan::Kernel *const *kernels, size_t count) {
    size_t worlds = 0;
    for (int words = 1; words <= scan::MAX_WORDS; ++words)
        for (int planes = 1; planes <= scan::MAX_PLANES; ++planes) {
            const scan::Shape shape{words, planes};
            for (int world = 0; world < WORLDS; ++world, ++worlds)
                // Below and above 4,096 keywords: scanned without a threshold, and with one from a sample.
                check_scan(shape, static_cast<World>(world), (words + planes + world) % 4 ? 450 + words : 4161,
                           world % 3 == 1 ? 255 : 7, kernels, count);
        }
    for (const int size : {1, 63, 64, 65}) check_scan({1, 2}, RANDOM, size, 7, kernels, count), ++worlds;
    return worlds;
}

// ---- floating point ----

std::vector<float> numbers(size_t count) {
    std::vector<float> made(count);
    for (float &number : made) number = static_cast<float>(static_cast<int>(generator() % 20001) - 10000) / 1024.0f;
    return made;
}

// All floating-point kernels on one set of inputs; the results one after the other.
std::vector<float> results(const floats::Kernels &kernels, size_t n, uint64_t seed) {
    generator.state = seed;
    std::vector<float> out;
    const auto keep = [&](const std::vector<float> &values) { out.insert(out.end(), values.begin(), values.end()); };
    const size_t width = 3 * floats::padded(n), rows = 13, depth = 37, columns = floats::padded(n);

    const std::vector<float> table = numbers(width * 20);
    const std::vector<int32_t> chosen{3, 19, 0, 7, 7};
    std::vector<float> word(width), bytes(width);
    kernels.sum_rows(table.data(), width, chosen.data(), chosen.size(), word.data());
    keep(word);
    std::vector<int8_t> small(width * 20);
    for (int8_t &value : small) value = static_cast<int8_t>(generator());
    const std::vector<float> scales = numbers(60);
    kernels.sum_bytes(small.data(), scales.data(), width, chosen.data(), chosen.size(), bytes.data());
    keep(bytes);

    std::vector<float> bias = numbers(columns), open = numbers(columns), next = numbers(columns), peak = numbers(columns);
    kernels.slide(word.data(), bias.data(), width / 3, open.data(), next.data(), peak.data());
    keep(open), keep(next), keep(peak);
    kernels.tanh(peak.data(), peak.size());
    keep(peak);

    const std::vector<float> in = numbers(rows * depth), weight = numbers(depth * columns);
    std::vector<float> product(rows * columns);
    kernels.multiply(in.data(), depth, rows, depth, weight.data(), bias.data(), columns, product.data(), columns);
    keep(product);
    out.push_back(kernels.dot(table.data(), weight.data(), n));

    const std::vector<float> y = numbers(n), steps{0.3f, 0.5f, 0.7f, 1.1f};
    std::vector<float> scratch(3 * columns);
    std::vector<int16_t> code(n);
    kernels.nearest(y.data(), n, 3, steps.data(), steps.size(), scratch.data(), code.data());
    for (const int16_t value : code) out.push_back(value);

    for (const int planes : {1, 2}) {
        const size_t count = 3, stride = columns;
        std::vector<float> gram(n * stride), g = numbers(count * n), v = numbers(count * n), b(count * n), h(count * n);
        for (size_t i = 0; i < n; ++i)
            for (size_t j = 0; j <= i; ++j)
                gram[i * stride + j] = gram[j * stride + i] = i == j ? 40.0f : numbers(1)[0] / 16;
        for (float &value : v) value /= 64;
        for (float &value : b) value = below(2) ? 1.0f : -1.0f;
        for (size_t c = 0; c < count; ++c)
            for (size_t i = 0; i < n; ++i) {
                double sum = 0, along = 0;
                for (size_t j = 0; j < n; ++j) {
                    sum += gram[i * stride + j] * b[c * n + j];
                    along += b[c * n + j] * v[c * n + j];
                }
                h[c * n + i] = static_cast<float>(sum + along * v[c * n + i]);
            }
        std::vector<std::vector<float>> memory(12, std::vector<float>(stride));
        std::vector<std::vector<int>> integers(6, std::vector<int>(stride));
        floats::Desk desks[2];
        for (int d = 0; d < 2; ++d)
            desks[d] = {memory[6 * d].data(),     memory[6 * d + 1].data(),   memory[6 * d + 2].data(),
                        memory[6 * d + 3].data(), memory[6 * d + 4].data(),   memory[6 * d + 5].data(),
                        integers[3 * d].data(),   integers[3 * d + 1].data(), integers[3 * d + 2].data()};
        const floats::Problem problem{gram.data(), stride, static_cast<int>(n), (1 << planes) - 1, 60, 5, 17};
        kernels.refine(problem, planes == 1, g.data(), v.data(), b.data(), h.data(), count, desks);
        keep(b);
    }

    for (int planes = 1; planes <= 4 && n % 64 == 0; ++planes) {  // five items of 150 keywords in two parts
        const size_t stride[] = {n / 8 * 64 * 2, n / 8 * 64}, table = n / 8 * 256 * floats::MAXSIM_MANY;
        std::vector<uint8_t> packed[] = {std::vector<uint8_t>(planes * stride[0]), std::vector<uint8_t>(planes * stride[1])};
        for (auto &bytes : packed)
            for (uint8_t &byte : bytes) byte = static_cast<uint8_t>(generator());
        const uint64_t mask[] = {generator(), generator()};
        const floats::MaxSimPart parts[] = {{packed[0].data(), mask, stride[0], 0, 100},
                                            {packed[1].data(), nullptr, stride[1], 100, 50}};
        const int64_t starts[] = {0, 1, 30, 31, 120, 150};
        std::vector<int64_t> order(150), first(5);
        for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i * 77 % 150);
        std::vector<int16_t> narrow(2 * table);
        for (int16_t &entry : narrow) entry = static_cast<int16_t>(below(15)) - 7;
        const std::vector<int32_t> wide(narrow.begin(), narrow.end());
        std::vector<double> norms(28 * n + 1), inverse(2 * floats::MAXSIM_MANY);
        for (size_t i = 0; i < norms.size(); ++i) norms[i] = 1 / std::sqrt(static_cast<double>(i + 1));
        for (size_t i = 0; i < inverse.size(); ++i) inverse[i] = 1 / std::sqrt(static_cast<double>(i + 3));
        for (const int kind : {0, 1, 2, 3}) {
            const int block = kind % 2 ? floats::MAXSIM_FEW : floats::MAXSIM_MANY;
            const floats::MaxSim job{planes, n / 8, parts, 2, order.data(), starts, block, 2,
                                     kind < 2 ? narrow.data() : nullptr, wide.data(), norms.data(), inverse.data()};
            std::vector<double> scores(5);
            kernels.maxsim(job, 0, 5, scores.data(), first.data());
            for (size_t i = 0; i < scores.size(); ++i) {
                out.push_back(static_cast<float>(scores[i]));
                out.push_back(static_cast<float>(scores[i] - static_cast<double>(out.back())));
                out.push_back(static_cast<float>(first[i]));
            }
        }
    }
    return out;
}

void check_floats(const floats::Kernels *const *kernels, size_t count) {
    for (const size_t n : {1, 15, 16, 17, 48, 64, 129, 384, 1024}) {
        const std::vector<float> expected = results(floats::PORTABLE, n, n);
        for (const float number : expected)
            if (!std::isfinite(number)) ++wrong, std::printf("a result that is not finite for n = %zu\n", n);
        note(expected.data(), expected.size() * sizeof(float));
        for (size_t i = 0; i < count; ++i)
            if (const auto got = results(*kernels[i], n, n);
                std::memcmp(got.data(), expected.data(), expected.size() * sizeof(float))) {
                ++wrong;
                std::printf("%s: other bits than portable for n = %zu\n", kernels[i]->name, n);
            }
    }
}

// ---- checksum ----

void check_checksums() {
    std::vector<uint8_t> bytes(60000);
    for (uint8_t &byte : bytes) byte = static_cast<uint8_t>(generator());
    const crc::Update fast = crc::choose(false), plain = crc::choose(true);
#if defined(__aarch64__)
    if (fast == plain) ++wrong, std::printf("the CRC instruction was not used\n");
#endif
    if (crc::checksum(fast, 0, reinterpret_cast<const uint8_t *>("123456789"), 9) != 0xE3069283)
        ++wrong, std::printf("crc32c: not the CRC of Castagnoli\n");
    for (const size_t size : {0, 1, 7, 8, 9, 383, 384, 385, 4080, 4096, 24576, 24577, 59990})
        for (const size_t from : {0, 3}) {
            const uint32_t expected = crc::checksum(plain, 5, bytes.data() + from, size);
            note(&expected, sizeof expected);
            if (crc::checksum(fast, 5, bytes.data() + from, size) == expected) continue;
            ++wrong, std::printf("crc32c: wrong for %zu bytes\n", size);
        }
}

}  // namespace

int main() {
#if defined(__aarch64__)
    const scan::Kernel *scans[] = {&scan::NEON, &scan::PORTABLE};
    const floats::Kernels *family[] = {&floats::NEON};
#else
    const scan::Kernel *scans[] = {&scan::PORTABLE};
    const floats::Kernels *family[] = {&floats::PORTABLE};
#endif
    const size_t worlds = check_scans(scans, std::size(scans));
    check_floats(family, std::size(family));
    check_checksums();
    std::printf("%zu worlds, %d wrong, digest %016llx\n", worlds, wrong, static_cast<unsigned long long>(digest));
    return wrong != 0;
}
