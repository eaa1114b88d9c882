set(sources append.cc capability.cc select.cc)
