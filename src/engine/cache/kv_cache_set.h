#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cache/checkpoint_scales.h"
#include "engine/cache/layer_groups.h"
#include "engine/cache/page_allocator.h"
#include "engine/cache/profile.h"
#include "kvant/attn/attention.h"
#include "kvant/attn/batch.h"
#include "kvant/attn/edges.h"
#include "kvant/attn/head_preparation.h"
#include "kvant/attn/kv_spec.h"
#include "kvant/attn/shared_runs.h"
#include "kvant/core/status.h"
#include "kvant/core/stream.h"
#include "kvant/engine/model_config.h"

namespace kvant::engine {

/// Why a row is in a batch. It decides when pages age, never how many tokens the row may have: a decode row (one
/// accepted token, then any drafts) ages by what is accepted, prompt chunks age on the prefill grid.
using RowPhase = attn::RequestPhase;

using SequenceId = int32_t;

struct KvCacheOptions {
  attn::KvSpec spec;  ///< Resolved: not `auto`.
  int32_t page_size = 16;
  int32_t max_sequences = 1;
  int32_t max_tokens = 0;                    ///< Per sequence.
  int64_t pool_tokens = 0;                   ///< Of all sequences together; 0 = max_sequences * max_tokens.
  bool prefix_cache = false;                 ///< Keep pages of finished sequences for prompts that start alike.
  std::shared_ptr<const KvProfile> profile;  ///< Shared by the caches of one model. Ignored by 16-bit and plain specs.
  /// The user named the profile: FP8 specs without conditioning take their scales from it too, instead of 1.
  bool profile_is_explicit = false;
  /// Scales of a checkpoint, for layers without conditioning.
  std::shared_ptr<const CheckpointScales> checkpoint_scales = nullptr;
  bool batch_invariant = false;
  /// Which requests that begin alike read what they share once, where the device has a kernel for it; those of the
  /// prefix cache alone do. Never in batch-invariant caches.
  attn::SharedRunRules sharing = {};
  uint64_t id = 0;  ///< Given by the runner.
};

/// One sequence's part in a step.
struct StepRow {
  SequenceId sequence = 0;
  int32_t num_tokens = 0;
  RowPhase phase = RowPhase::kDecode;
};

/// What a step is padded to, so that a captured step can serve it: requests without tokens, and tokens that no request
/// has. 0 = no padding.
struct StepPadding {
  int32_t num_requests = 0;
  int32_t num_tokens = 0;
};

/// What `attend` launches in a step. Steps of one shape make the same calls with the same pointers.
struct StepShape {
  static constexpr size_t kMaxGroups = 6;
  int32_t num_requests = 0;
  int32_t num_tokens = 0;
  std::array<int32_t, kMaxGroups> num_ages{};
  std::array<int32_t, kMaxGroups> plans{};
  std::array<bool, kMaxGroups> shares{};  ///< Whether attention is told which requests share pages.

  friend auto operator<=>(const StepShape&, const StepShape&) = default;
};

/// The cache of a model under one `--kv` spec: pools, page tables, exact edges, conditioner and attention plans of
/// every layer group. Several sets with different specs can live over one set of weights.
///
/// A step is begin_step, then attend once per layer in order, then end_step. Memory is taken at construction only.
class KvCacheSet {
 public:
  /// `limits` bounds a step (max_pages_per_request is filled in here).
  static Result<std::unique_ptr<KvCacheSet>> create(const ModelConfig& config, const KvCacheOptions& options,
                                                    attn::AttnLimits limits, Stream stream);
  ~KvCacheSet();
  KvCacheSet(const KvCacheSet&) = delete;
  KvCacheSet& operator=(const KvCacheSet&) = delete;

  Result<SequenceId> add_sequence();
  void remove_sequence(SequenceId sequence);
  int32_t length(SequenceId sequence) const;
  int32_t max_tokens() const;

  /// Drops rejected drafts: the newest tokens, none of which may lie in an aged page.
  void rollback(SequenceId sequence, int32_t length);

  /// How many tokens of a prompt chunk may go into one step from `position` on: up to the next grid point when the
  /// cache has exact edges.
  int32_t tokens_to_grid_point(int32_t position) const;
  /// How many tokens a decode row of this sequence may have such that none of them, decoded alone, would see a page
  /// aged that the first one sees exact. At least 1.
  int32_t tokens_to_ageing_point(SequenceId sequence) const;
  bool has_exact_edges() const;

  /// Lets an empty sequence start with what the prefix cache holds of `tokens`, and returns how many tokens that is:
  /// less than all of them, and what a fresh run over them as a prompt would hold byte for byte. Under exact edges
  /// prefixes end at grid points. Only prefixes published under the same salt are found.
  int32_t reuse_prefix(SequenceId sequence, std::span<const int32_t> tokens, std::string_view salt);
  /// Offers a sequence's whole pages to the prefix cache. `tokens` are all of the sequence's, of which the cache may
  /// hold fewer. To be called after every step, since exact tails are there for a while only.
  void publish_prefix(SequenceId sequence, std::span<const int32_t> tokens, std::string_view salt);
  /// Forgets every prefix that no sequence stands on.
  void clear_prefixes();
  int32_t num_prefix_blocks() const;

  /// Sequences that begin alike have places next to each other. None where it does not matter: nothing reads shared
  /// pages once.
  struct PrefixPlace {
    int32_t first_page = 0;
    int32_t prefix = 0;  ///< The end of what is shared.

    friend auto operator<=>(const PrefixPlace&, const PrefixPlace&) = default;
  };
  std::optional<PrefixPlace> prefix_place(SequenceId sequence) const;

  /// Whether these rows find pages for one step; cached prefixes are given up for them, the least recently used first.
  bool make_room(std::span<const StepRow> rows);
  /// kResourceExhausted when a sequence of `length` tokens exceeds the pools even alone.
  Status check_fits_alone(int32_t length) const;
  /// Gives up cached prefixes until there are free base pages for this many tokens; false when that is not enough.
  bool make_token_room(int64_t tokens);

  /// Reserves pages, ages what falls out of the tail, and prepares slots and tables on the device. On failure nothing
  /// has changed. The step before must be done on the device.
  Status begin_step(std::span<const StepRow> rows, StepPadding padding = {});
  /// Requests of the step that read shared pages once; the most of any layer group.
  int32_t num_sharing() const;
  /// None where padding cannot make steps alike: too many layer groups, or more ageing pages than requests.
  std::optional<StepShape> step_shape() const;
  /// Writes this step's keys and values of a layer, ages its pages, then attends. Tokens are those of the rows, in
  /// order. q and out are dense [tokens, heads, head_dim]; k and v have token strides in elements. All are activations
  /// of the stream's device, f32 on the CPU and bf16 on CUDA.
  struct AttendArgs {
    const void* k = nullptr;
    const void* v = nullptr;
    int64_t k_token_stride = 0;
    int64_t v_token_stride = 0;
    attn::HeadPreparation preparation;  ///< With the step's queries, which attention reads at `q_out`.
    const float* sinks = nullptr;
    void* out = nullptr;
  };
  Status attend(int32_t layer, const AttendArgs& args, Stream stream);
  void end_step();

  /// Fills all pages with reproducible noise, small numbers in every format: for measurements of time.
  Status fill_with_noise();
  /// Tells the sets of one runner apart for ever, unlike their addresses.
  uint64_t id() const;
  const attn::KvSpec& spec() const;
  /// The specs in effect in canonical form: one, or one per group with its number of layers.
  std::string format() const;
  std::span<const LayerGroup> groups() const;
  /// All layers, base format.
  double bytes_per_token() const;
  /// Bytes that a sequence of `length` decoded tokens occupies, exact edges included, per token.
  double effective_bytes_per_token(int32_t length) const;
  /// Attention routes of the groups, joined by ", ".
  std::string route() const;
  /// How many of the checkpoint's scale tensors are in effect.
  int32_t num_checkpoint_scales() const;
  /// True when scales or conditioners come from the profile.
  bool uses_profile() const;
  /// "profile 1f2e... (998 tokens)", "checkpoint (64 of 64 used)", "1.0", "1.0 (plain)", or "none" for a cache without
  /// scales.
  std::string scale_source() const;
  /// Pages in use over all groups.
  int64_t base_pages_used() const;
  int64_t exact_pages_used() const;
  int64_t base_pages() const;
  int64_t exact_pages() const;

 private:
  struct Sequence;
  struct Layer;
  struct Group;
  struct Impl;
  explicit KvCacheSet(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvant::engine
