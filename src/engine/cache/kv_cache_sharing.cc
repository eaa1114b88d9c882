// Requests that begin alike and read what they share once.
#include <algorithm>

#include "engine/cache/kv_cache_impl.h"

namespace kvant::engine {

void KvCacheSet::Impl::find_runs() {
  const auto requests = static_cast<size_t>(step_requests);
  for (size_t g = 0; g < groups.size(); ++g) {
    Group& group = groups[g];
    group.num_sharing = 0;
    if (!may_share || step_requests < options.sharing.min_requests ||
        plans.plan(g, step_query_len).launch().shared_kernel < 0)
      continue;
    const Status status = attn::find_shared_runs({.q_offsets = q_offsets.span().first(requests + 1),
                                                  .kv_lens = kv_lens.span().first(requests),
                                                  .page_table = group.table.span(),
                                                  .page_table_stride = group.pages.table_stride(),
                                                  .page_size = options.page_size,
                                                  .context_parallel = {}},
                                                 options.sharing, group.runs.span().first(requests + 1));
    KVANT_CHECK(status.ok());
    group.num_sharing = group.runs.host[0].num_requests;
  }
}

std::optional<KvCacheSet::PrefixPlace> KvCacheSet::prefix_place(SequenceId id) const {
  const Impl& impl = *impl_;
  if (!impl.may_share || impl.at(id).length < impl.options.page_size) return std::nullopt;
  const auto whole = std::find_if(impl.groups.begin(), impl.groups.end(),
                                  [](const Group& group) { return group.info.desc.window == 0; });
  if (whole == impl.groups.end()) return std::nullopt;
  return PrefixPlace{.first_page = whole->pages.table(id).front(), .prefix = impl.at(id).prefix};
}

int32_t KvCacheSet::num_sharing() const {
  int32_t most = 0;
  for (const Group& group : impl_->groups) most = std::max(most, group.num_sharing);
  return most;
}

}  // namespace kvant::engine
