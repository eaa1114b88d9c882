set(sources append.cc convert_pages.cc write_tokens.cc)
