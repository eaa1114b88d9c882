set(sources append_no_cuda.cc)
