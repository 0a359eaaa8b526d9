#include "isa.hpp"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace rbegir {
namespace {

#if defined(__x86_64__)
bool avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}

bool avx512bw() {
    return avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool avx512() {
    return avx512bw() && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
           __builtin_cpu_supports("avx512bitalg") && __builtin_cpu_supports("avx512vpopcntdq") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

bool always() { return true; }

struct Isa {
    const char *name;
    bool (*runs)();
};

// Those of this architecture, the best first.
constexpr Isa ISAS[] = {
#if defined(__x86_64__)
    {"avx512", avx512},
    {"avx512bw", avx512bw},
    {"avx2", avx2},
#elif defined(__aarch64__)
    {"neon", always},  // part of every aarch64
#endif
    {"portable", always},
};

}  // namespace

bool runs(const std::string &isa) {
    for (const Isa &known : ISAS)
        if (isa == known.name) return known.runs();
    return false;
}

}  // namespace rbegir

void bind_isa(nb::module_ &m) {
    m.def("isas", [] {
        nb::dict known;
        for (const rbegir::Isa &isa : rbegir::ISAS) known[isa.name] = isa.runs();
        return known;
    });
}
