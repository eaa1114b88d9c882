#include "kvant/attn/batch.h"

#include <numeric>
#include <utility>

namespace kvant::attn {
namespace {

// Places that stand in region [from] and hold a request of phase [to], taken in ascending order.
struct Misplaced {
  std::vector<int32_t> places;
  size_t next = 0;

  bool empty() const { return next == places.size(); }
  int32_t take() { return places[next++]; }
};

}  // namespace

BatchOrder order_batch(std::span<const RequestPhase> phases) {
  const int32_t num_requests = static_cast<int32_t>(phases.size());
  BatchOrder order;
  order.source.resize(phases.size());
  std::iota(order.source.begin(), order.source.end(), 0);
  for (RequestPhase phase : phases) ++order.counts[static_cast<size_t>(phase)];

  std::array<std::array<Misplaced, kNumPhases>, kNumPhases> misplaced;
  const int32_t first_extend = order.counts[0];
  const int32_t first_prefill = first_extend + order.counts[1];
  for (int32_t place = 0; place < num_requests; ++place) {
    const size_t region = place < first_extend ? 0 : place < first_prefill ? 1 : 2;
    const size_t phase = static_cast<size_t>(phases[static_cast<size_t>(place)]);
    if (region == phase) continue;
    misplaced[region][phase].places.push_back(place);
    ++order.num_moved;
  }

  // Two that want each other's region swap; that is one swap for two requests.
  for (size_t a = 0; a < kNumPhases; ++a) {
    for (size_t b = a + 1; b < kNumPhases; ++b) {
      while (!misplaced[a][b].empty() && !misplaced[b][a].empty()) {
        const int32_t in_a = misplaced[a][b].take();
        const int32_t in_b = misplaced[b][a].take();
        std::swap(order.source[static_cast<size_t>(in_a)], order.source[static_cast<size_t>(in_b)]);
      }
    }
  }
  // Every region gives as many as it takes, so what is left goes round in threes, all in one direction.
  constexpr std::array<std::array<size_t, kNumPhases>, 2> kRounds{{{0, 1, 2}, {0, 2, 1}}};
  for (const auto& [a, b, c] : kRounds) {
    while (!misplaced[a][b].empty()) {
      const int32_t from_a = misplaced[a][b].take();
      const int32_t from_b = misplaced[b][c].take();
      const int32_t from_c = misplaced[c][a].take();
      order.source[static_cast<size_t>(from_b)] = from_a;
      order.source[static_cast<size_t>(from_c)] = from_b;
      order.source[static_cast<size_t>(from_a)] = from_c;
    }
  }
  return order;
}

}  // namespace kvant::attn
