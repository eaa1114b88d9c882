set(sources batch_order.cc batch_padding.cc conservative_profile.cc host_args.cc kernel_table.cc mask.cc query_lengths.cc shared_runs.cc support_matrix.cc
  validate.cc)
