// Run work(0 … parts − 1), each part on its own thread, the last on the caller's. Exceptions come out here.
#pragma once
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

template <class Work>
inline void in_parallel(size_t parts, Work &&work) {
    std::exception_ptr failure;
    std::mutex guard;
    auto run = [&](size_t part) {
        try {
            work(part);
        } catch (...) {
            std::lock_guard lock(guard);
            failure = std::current_exception();
        }
    };
    std::vector<std::jthread> threads;  // joined on every way out
    for (size_t part = 0; part + 1 < parts; ++part) threads.emplace_back(run, part);
    if (parts) run(parts - 1);
    threads.clear();
    if (failure) std::rethrow_exception(failure);
}
