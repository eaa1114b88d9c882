set(sources batch_order.cc batch_padding.cc mask.cc query_lengths.cc)
