set(sources append.cc)
