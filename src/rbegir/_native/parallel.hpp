// Threads for the length of one call: no pool, no state between calls, nothing that a fork could leave locked.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <vector>

#include "platform.hpp"

namespace rbegir {

// Runs work(0) … work(parts − 1), each part once, on as many threads as there are parts or on fewer if the system
// gives fewer; the caller's is one of them. Parts must not wait for each other. Rethrows the first part's exception.
template <class Work>
void in_parallel(size_t parts, const Work &work) {
    std::vector<std::exception_ptr> errors(parts);
    std::atomic<size_t> next{0};
    const auto run = [&] {
        for (size_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;) {
            try {
                work(part);
            } catch (...) {
                errors[part] = std::current_exception();
            }
        }
    };
    {
        Threads others(parts);
        try {
            for (size_t i = 1; i < parts; ++i) others.start(run);
        } catch (const std::exception &) {  // the limit on threads or on memory is reached: those there are do all
        }
        run();
    }
    for (const auto &error : errors)
        if (error) std::rethrow_exception(error);
}

}  // namespace rbegir
