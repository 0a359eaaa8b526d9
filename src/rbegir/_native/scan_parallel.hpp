// Threads for the length of one call: no pool, no state between calls.
#pragma once

#include <exception>
#include <thread>
#include <vector>

namespace rbegir {

// Runs work(0) … work(threads − 1) at once, the first on the calling thread; rethrows the first exception.
template <class Work>
void in_parallel(int threads, const Work &work) {
    std::vector<std::exception_ptr> errors(threads);
    const auto guarded = [&](int id) {
        try {
            work(id);
        } catch (...) {
            errors[id] = std::current_exception();
        }
    };
    {
        std::vector<std::jthread> others;
        for (int id = 1; id < threads; ++id) others.emplace_back(guarded, id);
        guarded(0);
    }
    for (const auto &error : errors)
        if (error) std::rethrow_exception(error);
}

}  // namespace rbegir
