// Blocks over threads.
#pragma once
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "kernels.h"

namespace secateur {

/// Memory for each of some threads, 64-byte aligned; the same for many calls, because fresh pages cost time.
class Scratch {
public:
    Scratch(Index bytes, Index threads);
    std::byte* of(Index thread) const { return memory[thread].get(); }
    Index threads() const { return static_cast<Index>(memory.size()); }

private:
    struct Release {
        void operator()(std::byte* bytes) const { ::operator delete(bytes, std::align_val_t{64}); }
    };
    std::vector<std::unique_ptr<std::byte, Release>> memory;
};

/// Calls work(block, scratch) for every block, on as many threads as there is scratch for, each with its own.
void for_each_block(Index blocks, const Scratch& scratch, const std::function<void(Index block, std::byte* scratch)>& work);

/// Calls work(block, scratch) for every block, on up to `threads` threads, each with its own scratch of that size.
void for_each_block(Index blocks, int threads, Index scratch_bytes,
                    const std::function<void(Index block, std::byte* scratch)>& work);

}    // namespace secateur
