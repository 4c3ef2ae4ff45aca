# What needs a GPU runs by hand on a machine that has one (CONTRIBUTING.md).
add_test(NAME knn COMMAND knn_test --gtest_filter=-GpuSearch*)
set_tests_properties(knn PROPERTIES ENVIRONMENT OMP_WAIT_POLICY=passive)
# FAISS is the oracle of exact search.
add_test(NAME knn_faiss COMMAND ${TorchWheel_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/faiss_test.py
                                $<TARGET_FILE:reynard>)
set_tests_properties(knn_faiss PROPERTIES SKIP_RETURN_CODE 77)
# Under torch.compile; on a GPU with REYNARD_TEST_DEVICE=cuda.
add_test(NAME knn_compiled
         COMMAND ${TorchWheel_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/compiled_search_test.py
                 $<TARGET_FILE:reynard>)
set_tests_properties(knn_compiled PROPERTIES SKIP_RETURN_CODE 77)
