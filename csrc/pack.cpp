// Packing, once per matrix: speed matters little here.
#include "pack.h"

#include <algorithm>
#include <bitset>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

namespace secateur {

namespace {

struct Entry {
    std::uint16_t offset;
    float value;
};
using Row = std::vector<Entry>;

/// Entries of two rows, apart: in columns both have, and in others.
struct Pair {
    Row shared0, shared1, single0, single1;
};

Pair split(const Row& a, const Row& b, bool share) {
    Pair pair;
    std::size_t i = 0, j = 0;
    while (i < a.size() && j < b.size()) {
        if (share && a[i].offset == b[j].offset) {
            pair.shared0.push_back(a[i++]);
            pair.shared1.push_back(b[j++]);
        } else if (a[i].offset <= b[j].offset) {
            pair.single0.push_back(a[i++]);
        } else {
            pair.single1.push_back(b[j++]);
        }
    }
    pair.single0.insert(pair.single0.end(), a.begin() + i, a.end());
    pair.single1.insert(pair.single1.end(), b.begin() + j, b.end());
    for (; pair.shared0.size() % quad; pair.shared0.pop_back(), pair.shared1.pop_back()) {    // quads are whole
        pair.single0.push_back(pair.shared0.back());
        pair.single1.push_back(pair.shared1.back());
    }
    return pair;
}

void append_values(PackedArrays& packed, const Row& row, std::size_t first) {
    for (std::size_t i = first; i < first + quad; ++i)
        packed.values.push_back(i < row.size() ? row[i].value : 0.0f);
}

void append_offsets(PackedArrays& packed, const Row& row, std::size_t first) {
    for (std::size_t i = first; i < first + quad; ++i) packed.offsets.push_back(i < row.size() ? row[i].offset : 0);
}

/// Two rows of a block.
struct Tile {
    std::int32_t row0, row1;
    Pair pair;

    std::size_t singles() const { return std::max(pair.single0.size(), pair.single1.size()); }
    std::pair<std::size_t, std::size_t> length() const { return {pair.shared0.size(), singles()}; }
};

/// Rows two by two: to each, from the longest on, the row with most columns in common among those about as long.
std::vector<std::pair<std::int32_t, std::int32_t>> partners(const std::vector<Row>& entries, bool share) {
    constexpr std::size_t window = 256;    // rows that are looked at
    std::vector<std::int32_t> left(entries.size());
    std::iota(left.begin(), left.end(), 0);
    std::stable_sort(left.begin(), left.end(),
                     [&](std::int32_t a, std::int32_t b) { return entries[a].size() > entries[b].size(); });
    std::vector<std::bitset<1024>> columns(entries.size());
    for (std::size_t r = 0; r < entries.size(); ++r)
        for (const Entry& entry : entries[r]) columns[r].set(entry.offset / panel);
    std::vector<std::pair<std::int32_t, std::int32_t>> found;
    while (!left.empty()) {
        std::size_t best = 1;
        std::ptrdiff_t most = std::numeric_limits<std::ptrdiff_t>::min();
        for (std::size_t i = 1; share && i < std::min(left.size(), window); ++i) {
            const std::ptrdiff_t common = (columns[left[0]] & columns[left[i]]).count() / quad * quad;
            const std::ptrdiff_t gain = common - (entries[left[0]].size() - entries[left[i]].size());    // the rest is waste
            if (gain > most) {
                most = gain;
                best = i;
            }
        }
        found.push_back({left[0], left[best]});
        left.erase(left.begin() + best);
        left.erase(left.begin());
    }
    return found;
}

void append_tile(PackedArrays& packed, const Tile& tile) {
    const Pair& pair = tile.pair;
    const std::size_t singles = tile.singles();
    packed.tiles.insert(packed.tiles.end(), {tile.row0, tile.row1, static_cast<std::int32_t>(pair.shared0.size() / quad),
                                             static_cast<std::int32_t>(singles)});
    for (std::size_t i = 0; i < pair.shared0.size(); i += quad) {
        append_offsets(packed, pair.shared0, i);
        append_values(packed, pair.shared0, i);
        append_values(packed, pair.shared1, i);
    }
    for (std::size_t i = 0; i < singles; i += quad) {
        append_offsets(packed, pair.single0, i);
        append_offsets(packed, pair.single1, i);
        append_values(packed, pair.single0, i);
        append_values(packed, pair.single1, i);
    }
}

}    // namespace

PackedMatrix PackedArrays::view() const {
    return {rows, columns, width, (rows + 1) / 2, tiles.data(), values.data(), offsets.data(), bias.data()};
}

PackedArrays pack(const float* weight, const float* bias, Index rows, Index columns, Index width, bool share) {
    PackedArrays packed;
    packed.rows = rows;
    packed.columns = columns;
    packed.width = width;
    const Index padded = (rows + 1) / 2 * 2;
    packed.bias.assign(padded, 0.0f);
    if (bias) std::copy(bias, bias + rows, packed.bias.begin());
    for (Index begin = 0; begin < columns; begin += width) {
        const Index end = std::min(begin + width, columns);
        std::vector<Row> entries(padded);
        for (Index r = 0; r < rows; ++r)
            for (Index c = begin; c < end; ++c)
                if (weight[r * columns + c] != 0.0f)
                    entries[r].push_back({static_cast<std::uint16_t>((c - begin) * panel), weight[r * columns + c]});
        std::vector<Tile> tiles;
        for (const auto& [a, b] : partners(entries, share)) tiles.push_back({a, b, split(entries[a], entries[b], share)});
        // tiles of equal length one after the other: the processor guesses where they end
        std::stable_sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) { return a.length() > b.length(); });
        for (const Tile& tile : tiles) append_tile(packed, tile);
    }
    return packed;
}

std::string check_packed(const PackedArrays& packed) {
    if (packed.rows < 1 || packed.columns < 1 || packed.rows >= (Index(1) << 30) || packed.columns >= (Index(1) << 30))
        return "the matrix is empty or too large";
    if (packed.width < 1 || packed.width * panel > 65536) return "a block is wider than an offset reaches";
    const Index padded = (packed.rows + 1) / 2 * 2, blocks = (packed.columns + packed.width - 1) / packed.width;
    if (Index(packed.bias.size()) != padded) return "the bias does not fit the rows";
    if (Index(packed.tiles.size()) / 2 != blocks * padded || packed.tiles.size() % 2)
        return "the tiles do not fit rows and columns";
    std::size_t values = 0, offsets = 0;
    for (Index block = 0; block < blocks; ++block) {
        const Index reach = std::min(packed.width, packed.columns - block * packed.width) * panel;
        std::vector<bool> seen(padded);
        for (Index i = block * padded / 2; i < (block + 1) * padded / 2; ++i) {
            const std::int32_t* tile = &packed.tiles[4 * i];
            for (int k = 0; k < 2; ++k) {
                if (tile[k] < 0 || tile[k] >= padded || seen[tile[k]]) return "a row is missing or named twice";
                seen[tile[k]] = true;
            }
            if (tile[2] < 0 || tile[3] < 0 || tile[2] > packed.width || tile[3] > packed.width)
                return "a row has more entries than columns";
            const std::size_t quads = tile[2], pairs = (tile[3] + quad - 1) / quad;
            const std::size_t end = offsets + quad * (quads + 2 * pairs);
            values += 2 * quad * (quads + pairs);
            if (end > packed.offsets.size() || values > packed.values.size()) return "entries are missing";
            for (; offsets < end; ++offsets)
                if (packed.offsets[offsets] % panel || packed.offsets[offsets] >= reach)
                    return "an offset is outside its block";
        }
    }
    return values == packed.values.size() && offsets == packed.offsets.size() ? "" : "there are entries too many";
}

}    // namespace secateur
