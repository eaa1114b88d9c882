set(sources kv_layout.cc kv_spec.cc)
