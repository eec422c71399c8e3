// Threads take the next few blocks from an atomic counter until none is left. The calling thread is one of them, so
// the work is done even where the system grants no further thread.
#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace secateur {

namespace {

constexpr std::align_val_t alignment{64};

struct Release {
    void operator()(std::byte* memory) const { ::operator delete(memory, alignment); }
};

}    // namespace

void for_each_block(Index blocks, int threads, Index scratch_bytes,
                    const std::function<void(Index block, std::byte* scratch)>& work) {
    // small blocks come in handfuls: enough to hide the counter, few enough to keep the threads level
    const Index handful = std::clamp<Index>(blocks / (16 * std::max(threads, 1)), 1, 64);
    const Index workers = std::clamp<Index>(threads, 1, std::max<Index>(1, blocks / handful));
    std::vector<std::unique_ptr<std::byte, Release>> scratch;    // all of it before the first thread starts
    for (Index i = 0; i < workers; ++i)
        scratch.emplace_back(static_cast<std::byte*>(::operator new(scratch_bytes, alignment)));

    std::atomic<Index> next{0};
    const auto run = [&](std::byte* memory) {
        for (Index first; (first = next.fetch_add(handful)) < blocks;)
            for (Index block = first; block < std::min(first + handful, blocks); ++block) work(block, memory);
    };
    std::vector<std::thread> others;
    others.reserve(workers - 1);
    try {
        for (Index i = 1; i < workers; ++i) others.emplace_back(run, scratch[i].get());
    } catch (const std::system_error&) {
        // fewer threads than asked for: slower, and the same result
    }
    run(scratch[0].get());
    for (std::thread& other : others) other.join();
}

}    // namespace secateur
