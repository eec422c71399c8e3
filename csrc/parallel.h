// Blocks over threads.
#pragma once
#include <functional>

#include "kernels.h"

namespace secateur {

/// Calls work(block, scratch) for every block, on up to `threads` threads, each with its own scratch of that size.
void for_each_block(Index blocks, int threads, Index scratch_bytes,
                    const std::function<void(Index block, std::byte* scratch)>& work);

}    // namespace secateur
