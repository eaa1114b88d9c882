set(sources append.cc attention.cc capability.cc select.cc)
