set(sources kv_layout.cc)
