# Token ids of length-prefixed strings, compared with Hugging Face tokenizers over the demo model's vocabulary (make model).
add_executable(kvant_tokenize tools/kvant_tokenize.cc)
target_link_libraries(kvant_tokenize PRIVATE kvant_options kvant_engine fmt::fmt)
add_test(NAME Tokenizer.GivesTheIdsOfHuggingFaceOn20000Strings
  COMMAND "${KVANT_DEPS_PREFIX}/bin/python" -B "${CMAKE_CURRENT_SOURCE_DIR}/golden/compare_tokenizers.py"
          --tool $<TARGET_FILE:kvant_tokenize> "${CMAKE_SOURCE_DIR}/build/models/SmolLM2-135M-Instruct.gguf")
set_tests_properties(Tokenizer.GivesTheIdsOfHuggingFaceOn20000Strings PROPERTIES LABELS model SKIP_RETURN_CODE 77 TIMEOUT 300)

# Chat templates, compared with Jinja2 set up as Hugging Face does.
add_executable(kvant_render tools/kvant_render.cc)
target_link_libraries(kvant_render PRIVATE kvant_options kvant_engine fmt::fmt nlohmann_json::nlohmann_json)
add_test(NAME ChatTemplate.RendersTheDemoModelsTemplateLikeJinja2
  COMMAND "${KVANT_DEPS_PREFIX}/bin/python" -B "${CMAKE_CURRENT_SOURCE_DIR}/golden/compare_chat_templates.py"
          --tool $<TARGET_FILE:kvant_render> "${CMAKE_SOURCE_DIR}/build/models/SmolLM2-135M-Instruct.gguf")
set_tests_properties(ChatTemplate.RendersTheDemoModelsTemplateLikeJinja2 PROPERTIES LABELS model SKIP_RETURN_CODE 77 TIMEOUT 120)

# The vocabularies and templates of llama.cpp's tests (make vocabularies).
set(vocabularies "${CMAKE_SOURCE_DIR}/build/vocabularies")
add_test(NAME Tokenizer.GivesTheIdsOfHuggingFaceOnPublicVocabularies
  COMMAND "${KVANT_DEPS_PREFIX}/bin/python" -B "${CMAKE_CURRENT_SOURCE_DIR}/golden/compare_tokenizers.py"
          --tool $<TARGET_FILE:kvant_tokenize> "${vocabularies}")
add_test(NAME ChatTemplate.RendersPublicTemplatesLikeJinja2
  COMMAND "${KVANT_DEPS_PREFIX}/bin/python" -B "${CMAKE_CURRENT_SOURCE_DIR}/golden/compare_chat_templates.py"
          --tool $<TARGET_FILE:kvant_render> --most-refused 6 "${vocabularies}/templates")
set_tests_properties(Tokenizer.GivesTheIdsOfHuggingFaceOnPublicVocabularies
  ChatTemplate.RendersPublicTemplatesLikeJinja2 PROPERTIES LABELS model SKIP_RETURN_CODE 77 TIMEOUT 1800)
