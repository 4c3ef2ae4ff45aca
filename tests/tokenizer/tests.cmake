add_test(NAME tokenizer COMMAND tokenizer_test)
# Against the libraries that define the formats; the seed is fixed.
add_test(NAME tokenizer_parity
         COMMAND ${TorchWheel_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/parity_test.py
                 $<TARGET_FILE:reynard_cli> --strings 1500)
set_tests_properties(tokenizer_parity PROPERTIES SKIP_RETURN_CODE 77)
