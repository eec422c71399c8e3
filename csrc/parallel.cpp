// Threads take the next few blocks from an atomic counter until none is left. The calling thread is one of them, so
// the work is done even where the system grants no further thread.
//
// The threads are those of the OpenMP runtime that torch has loaded, where there is one: they go on spinning for a
// while after torch's own work, and threads beside them would share their cores. It is looked up at run time, because
// a runtime of our own would again be a second one.
#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

#ifndef _WIN32
#include <dlfcn.h>
#endif

namespace secateur {

namespace {

/// The entry point that GCC's and LLVM's OpenMP runtimes share: work(data) on so many threads, this one included.
using ParallelRegion = void (*)(void (*work)(void*), void* data, unsigned threads, unsigned flags);

ParallelRegion loaded_runtime() {
#ifdef _WIN32
    return nullptr;
#else
    return reinterpret_cast<ParallelRegion>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
#endif
}

void on_own_threads(const std::function<void()>& work, Index workers) {
    std::vector<std::thread> others;
    others.reserve(workers - 1);
    try {
        for (Index i = 1; i < workers; ++i) others.emplace_back(work);
    } catch (const std::system_error&) {
        // fewer threads than asked for: slower, and the same result
    }
    work();
    for (std::thread& other : others) other.join();
}

void on_threads(const std::function<void()>& work, Index workers) {
    static const ParallelRegion region = loaded_runtime();
    if (workers == 1) return work();
    if (!region) return on_own_threads(work, workers);
    region([](void* data) { (*static_cast<const std::function<void()>*>(data))(); },
           const_cast<std::function<void()>*>(&work), static_cast<unsigned>(workers), 0);
}

/// Small blocks come in handfuls: enough to hide the counter, few enough to keep the threads level.
Index handful_of(Index blocks, Index threads) {
    return std::clamp<Index>(blocks / (16 * std::max<Index>(threads, 1)), 1, 64);
}

Index workers_for(Index blocks, Index threads) {
    return std::clamp<Index>(threads, 1, std::max<Index>(1, blocks / handful_of(blocks, threads)));
}

}    // namespace

Scratch::Scratch(Index bytes, Index threads) {
    for (Index i = 0; i < threads; ++i)
        memory.emplace_back(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64})));
}

void for_each_block(Index blocks, const Scratch& scratch,
                    const std::function<void(Index block, std::byte* scratch)>& work) {
    const Index handful = handful_of(blocks, scratch.threads());
    std::atomic<Index> next{0}, arrived{0};
    const auto run = [&] {
        std::byte* memory = scratch.of(arrived.fetch_add(1));
        for (Index first; (first = next.fetch_add(handful)) < blocks;)
            for (Index block = first; block < std::min(first + handful, blocks); ++block) work(block, memory);
    };
    on_threads(run, workers_for(blocks, scratch.threads()));
}

void for_each_block(Index blocks, int threads, Index scratch_bytes,
                    const std::function<void(Index block, std::byte* scratch)>& work) {
    for_each_block(blocks, Scratch(scratch_bytes, workers_for(blocks, threads)), work);
}

}    // namespace secateur
