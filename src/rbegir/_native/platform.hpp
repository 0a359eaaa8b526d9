// What differs between operating systems, so that nothing else asks which one it is.
#pragma once

#include <csignal>
#include <cstddef>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif
#endif

namespace rbegir {

// The si_code of a signal that a thread of this process raised itself.
#if defined(SI_TKILL)
inline constexpr int RAISED = SI_TKILL;
#else
inline constexpr int RAISED = SI_USER;
#endif

// Threads that are joined on every way out. std::jthread does as much, but libc++ had none for long.
class Threads {
  public:
    explicit Threads(size_t most) { threads_.reserve(most); }
    Threads(const Threads &) = delete;
    Threads &operator=(const Threads &) = delete;
    ~Threads() {
        for (std::thread &thread : threads_) thread.join();
    }
    template <class Run>
    void start(const Run &run) {
        threads_.emplace_back(run);
    }

  private:
    std::vector<std::thread> threads_;
};

// An array for random access, in huge pages where the system has them: a random read then needs no page walk, and new
// memory comes 2 MiB at a time. Its values are not set.
struct LargeDelete {
    static constexpr std::align_val_t PAGE{size_t{2} << 20};
    void operator()(void *p) const { ::operator delete(p, PAGE); }
};
template <class T>
using LargeArray = std::unique_ptr<T[], LargeDelete>;
template <class T>
LargeArray<T> large_array(size_t count) {
    void *array = ::operator new(count * sizeof(T), LargeDelete::PAGE);
#if defined(__linux__)
    madvise(array, count * sizeof(T), MADV_HUGEPAGE);  // a wish: where it is refused, pages are small
#endif
    return LargeArray<T>(static_cast<T *>(array));
}

// Whether the CPU has an instruction for CRC-32C.
inline bool has_crc() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("sse4.2");
#elif defined(__linux__) && defined(__aarch64__)
    constexpr unsigned long CRC32 = 1 << 7;  // HWCAP_CRC32
    return getauxval(AT_HWCAP) & CRC32;
#elif defined(__APPLE__) && defined(__aarch64__)
    return true;  // on every Mac with an ARM CPU
#else
    return false;
#endif
}

}  // namespace rbegir
