# prepare_test makes the packed files that it reads.
target_link_libraries(data_test PRIVATE ZLIB::ZLIB ${ZSTD_LIBRARY})
add_test(NAME data COMMAND data_test)
