add_test(NAME tensor COMMAND tensor_test)

# On a machine with an older GPU than the kernels take: a driver that is found before the real one.
set(driver_folder ${CMAKE_CURRENT_BINARY_DIR}/old_gpu_driver)
add_library(old_gpu_driver SHARED ${CMAKE_CURRENT_LIST_DIR}/old_gpu_driver.cpp)
set_target_properties(old_gpu_driver PROPERTIES OUTPUT_NAME cuda SOVERSION 1 LIBRARY_OUTPUT_DIRECTORY ${driver_folder})
add_dependencies(tensor_test old_gpu_driver)
add_test(NAME tensor_old_gpu COMMAND tensor_test --gtest_filter=ChooseDevice.*)
set_tests_properties(tensor_old_gpu PROPERTIES ENVIRONMENT "LD_LIBRARY_PATH=${driver_folder}:$ENV{LD_LIBRARY_PATH}")
