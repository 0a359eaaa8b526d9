// Reading mapped files that other people can cut short: SIGBUS becomes a flag instead of the end of the process.
//
// A page of a mapping that no longer exists in the file, or that the disk cannot read, raises SIGBUS in whichever
// thread touches it, in the middle of whatever it was doing. The handler puts zeros under that page and sets the flag
// of its slot; the reader goes on, and the caller asks for the flag before it believes what was
// read. Faults outside the guarded ranges go to the handler that was there before.
//
// A process has one handler, and crash reporters (faulthandler, Ray's) take the place without asking. `arm`,
// called before anything is read, puts ours in front again. Such a reporter knows ours as the one before it: what it
// passes on, or raises again when it is done, must not be given back to it. Then the system does what it does by itself.
//
// A fault in a thread that blocks SIGBUS ends the process, whoever handles the signal. So `arm` unblocks it in the calling
// thread, and the threads that this one starts inherit that. It stays unblocked: blocking a fault is of no use to anybody.
//
// The handler may only use what is safe in a signal: a fixed table of atomics and plain system calls.
#include <nanobind/nanobind.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <pthread.h>
#include <stdexcept>
#include <sys/mman.h>
#include <unistd.h>

#include "platform.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr size_t SLOTS = 1 << 16;  // mappings guarded at once; more are simply not guarded

struct Slot {
    std::atomic<uintptr_t> first{0};  // 0: free
    std::atomic<uintptr_t> last{0};   // one past the last page
    std::atomic<bool> broken{false};
};

Slot slots[SLOTS];
std::atomic<size_t> used{0};  // slots [0, used) may be taken
uintptr_t page_bytes = 0;
struct sigaction previous[2];            // the handler before ours; written aside, then pointed to
std::atomic<int> newest{0};              // which of the two holds
std::atomic<pthread_t> asking{};         // the thread whose fault is with the handler before ours
std::atomic<pthread_t> reported{};       // the thread whose last fault was
std::mutex registering;

void pass_on(int signal, siginfo_t *info, void *context) {
    const struct sigaction &before = previous[newest.load(std::memory_order_acquire)];
    const pthread_t thread = pthread_self();
    const bool somebody = before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN;
    const bool raised = info->si_code == rbegir::RAISED && info->si_pid == getpid() && reported.load() == thread;
    if (!somebody || raised || asking.load() == thread) {
        struct sigaction ending = {};
        ending.sa_handler = SIG_DFL;
        sigaction(SIGBUS, &ending, nullptr);
        raise(SIGBUS);  // waits until we return, then nobody is in the way
        return;
    }
    asking.store(thread);
    reported.store(thread);
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(signal, info, context);
    } else {
        before.sa_handler(signal);
    }
    asking.store(pthread_t{});
}

void on_bus_error(int signal, siginfo_t *info, void *context) {
    const uintptr_t page = reinterpret_cast<uintptr_t>(info->si_addr) & ~(page_bytes - 1);
    const size_t count = info->si_code > 0 ? used.load(std::memory_order_acquire) : 0;  // 0: sent by somebody
    bool ours = false;
    for (size_t i = 0; i < count; i++) {
        const uintptr_t first = slots[i].first.load(std::memory_order_acquire);
        const uintptr_t last = slots[i].last.load(std::memory_order_acquire);
        if (first == 0 || page < first || page >= last) continue;
        slots[i].broken.store(true, std::memory_order_release);
        ours = true;
    }
    // Only the page that faulted: whatever a slot may say, nothing that is in use can be under it.
    if (ours && mmap(reinterpret_cast<void *>(page), page_bytes, PROT_READ,
                     MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED)
        return;
    pass_on(signal, info, context);
}

// Makes our handler the one that is asked first, in this thread too. Half a microsecond when it already is.
void arm() {
    sigset_t bus;
    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS);
    if (pthread_sigmask(SIG_UNBLOCK, &bus, nullptr) != 0) throw std::runtime_error("pthread_sigmask failed");
    struct sigaction now;
    if (sigaction(SIGBUS, nullptr, &now) != 0) throw std::runtime_error("sigaction failed");
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus_error) return;
    std::lock_guard<std::mutex> lock(registering);
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const int other = 1 - newest.load();
    if (sigaction(SIGBUS, nullptr, &previous[other]) != 0) throw std::runtime_error("sigaction failed");
    if ((previous[other].sa_flags & SA_SIGINFO) && previous[other].sa_sigaction == on_bus_error) return;
    newest.store(other, std::memory_order_release);
    if (sigaction(SIGBUS, &action, nullptr) != 0) throw std::runtime_error("sigaction failed");
}

// Guards the pages of a mapped buffer; the number of its slot, −1 when all are taken.
ptrdiff_t guard(nb::handle buffer) {
    Py_buffer view;
    if (PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
    const auto first = reinterpret_cast<uintptr_t>(view.buf);
    const auto bytes = static_cast<uintptr_t>(view.len);
    PyBuffer_Release(&view);  // the caller unguards before it unmaps
    arm();
    std::lock_guard<std::mutex> lock(registering);
    for (size_t i = 0; i < SLOTS; i++) {
        if (slots[i].first.load() != 0) continue;
        slots[i].broken.store(false);
        slots[i].last.store((first + bytes + page_bytes - 1) & ~(page_bytes - 1));
        slots[i].first.store(first, std::memory_order_release);
        if (i >= used.load()) used.store(i + 1, std::memory_order_release);
        return static_cast<ptrdiff_t>(i);
    }
    return -1;
}

void unguard(ptrdiff_t slot) {
    if (slot >= 0 && slot < static_cast<ptrdiff_t>(SLOTS)) slots[slot].first.store(0, std::memory_order_release);
}

bool broken(ptrdiff_t slot) {
    return slot >= 0 && slot < static_cast<ptrdiff_t>(SLOTS) && slots[slot].broken.load(std::memory_order_acquire);
}

}  // namespace

void bind_mapping(nb::module_ &m) {
    // A fork must not leave the lock to a child in which nobody unlocks it.
    pthread_atfork([] { registering.lock(); }, [] { registering.unlock(); }, [] { registering.unlock(); });
    m.def("arm", &arm, "Be asked first about faults; other handlers may have come in between since the last time.");
    m.def("guard", &guard, "buffer"_a,
          "Turn faults in the pages of a mapped buffer into a flag; its slot, -1 when there is no free one.");
    m.def("unguard", &unguard, "slot"_a, "Give a slot back, before the buffer is unmapped.");
    m.def("broken", &broken, "slot"_a, "Whether a page of the guarded buffer could not be read; it reads as zeros.");
}
