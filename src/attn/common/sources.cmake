set(sources batch_order.cc batch_padding.cc conservative_profile.cc kernel_table.cc mask.cc query_lengths.cc support_matrix.cc
  validate.cc)
